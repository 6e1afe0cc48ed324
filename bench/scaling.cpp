// How the cost of a training step grows: with tokens, with layers, and with the number of experts
// while the active work stays the same. The OLMoE shape at half width; medians of alternating
// rounds, so that a slow moment hits every point alike.
//   bench_scaling [threads=2] [rounds=5] [folder=.]     prints three tables, writes scaling.svg
//                                                       (each axis relative to its first point)
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "chart.h"
#include "core/file.h"
#include "hub/folder/styles.h"
#include "median.h"
#include "train/trainer.h"

namespace {

using namespace moe;

struct Point {
  const char* axis;
  int64_t value, batch, layers, experts;
};

struct Job {
  Point point;
  Corpus corpus;
  Model model;
  Trainer trainer;
  std::vector<double> ms;

  static ModelConfig config(const Point& p) {
    ModelConfig c = find_style("olmoe").parts;
    c.width = 192;
    c.layers = p.layers;
    c.heads = c.kv_heads = 3;
    c.head_width = 64;
    c.expert_width = 512;
    c.routing = default_options(find_recipe("olmoe"), p.experts, 2, p.layers);
    return c;
  }
  static TrainOptions options(const Point& p, int threads) {
    TrainOptions o;
    o.batch = p.batch;
    o.steps = 1000;
    o.threads = threads;
    return o;
  }
  static std::vector<int32_t> tokens() {
    std::vector<int32_t> ids(65536);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(1), i, 256));
    return ids;
  }
  Job(const Point& p, int threads)
      : point(p),
        corpus(tokens()),
        model(config(p)),
        trainer((model.initialise(1), model), options(p, threads), corpus) {}
  double step() {
    const auto start = std::chrono::steady_clock::now();
    trainer.step();
    return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2, rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::string folder = argc > 3 ? argv[3] : ".";
  std::vector<Point> points;
  for (int64_t b : {2, 4, 8, 16}) points.push_back({"tokens", b * 256, b, 4, 8});
  for (int64_t l : {2, 4, 8, 12}) points.push_back({"layers", l, 8, l, 8});
  for (int64_t e : {4, 8, 16, 32, 64}) points.push_back({"experts", e, 8, 4, e});
  std::vector<std::unique_ptr<Job>> jobs;
  for (const Point& p : points) jobs.push_back(std::make_unique<Job>(p, threads));
  for (auto& job : jobs) job->step();
  for (int round = 0; round < rounds; ++round)
    for (auto& job : jobs) job->ms.push_back(job->step());

  bench::Chart chart{"Cost of a training step against size, each relative to its smallest",
                     "size, relative",
                     "time, relative",
                     false,
                     true,
                     {}};
  std::string axis;
  double first_value = 1, first_ms = 1;
  for (auto& job : jobs) {
    const double ms = bench::median(job->ms);
    if (axis != job->point.axis) {
      axis = job->point.axis;
      first_value = static_cast<double>(job->point.value), first_ms = ms;
      chart.series.push_back({axis, {}});
      fmt::print("\n| {} | ms a step | relative size | relative time |\n|---|---|---|---|\n", axis);
    }
    const double size = static_cast<double>(job->point.value) / first_value;
    chart.series.back().points.emplace_back(size, ms / first_ms);
    fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} |\n", job->point.value, ms, size, ms / first_ms);
  }
  write_atomically(folder + "/scaling.svg", bench::to_svg(chart));
  return 0;
}
