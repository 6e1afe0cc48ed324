// Does sparse pay? Seconds that an MoE needs to reach the validation loss of its dense twin: same
// active parameters, same tokens a step, each run with its own whole schedule, each arm at its best
// learning rate. What a run loses is settled by its steps alone (the same bits on the same
// machine), so runs may share the machine with other work; what a step costs is measured apart, all
// arms alternating on a quiet machine. Runs are ordinary folders of `moe train`: interrupted ones
// go on, finished ones are not run again, so that the figures can be gathered over days.
//   bench_time_to_loss DIR clock [rounds=9]         times a step of every arm, writes
//                                                   DIR/clock.json
//   bench_time_to_loss DIR run ARM STEPS [seeds=3]  searches the learning rate until the best is
//     not at the grid's end, then runs the other seeds at it
//   bench_time_to_loss DIR one ARM STEPS LR SEED    a single run
//   bench_time_to_loss DIR report                   prints the tables, writes DIR/time_to_loss.svg
//                                                   and DIR/time_to_loss_ratio.svg
// Text: data/corpus (scripts/corpus.sh); threads: one a core it may run on (taskset).
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "chart.h"
#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "hub/folder/styles.h"
#include "median.h"
#include "model/cost.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace {

using namespace moe;
namespace fs = std::filesystem;

constexpr int64_t kWidth = 128, kLayers = 4, kHeads = 4, kContext = 256, kBatch = 32;
constexpr double kFirstRate = 2e-3;
constexpr DType kDType = DType::bf16;  // of the products: what trains the dense twin fastest

// The dense twin has FFN width 4 D; the experts that a token meets in the other arms, shared ones
// too, are together as wide. All have the attention of OLMoE.
struct Arm {
  const char* name;
  const char* recipe;
  int64_t experts, top_k, shared;
};
constexpr Arm kArms[] = {{"dense", "dense", 1, 1, 0},         {"e8", "mixtral", 8, 2, 0},
                         {"e16", "mixtral", 16, 2, 0},        {"e32", "mixtral", 32, 2, 0},
                         {"e32k4", "mixtral", 32, 4, 0},      {"e16olmoe", "olmoe", 16, 2, 0},
                         {"e31k3s1", "deepseek-v3", 31, 3, 1}};

bool is_dense(const Arm& arm) { return arm.experts == 1; }

const Arm& find_arm(const std::string& name) {
  for (const Arm& arm : kArms)
    if (name == arm.name) return arm;
  fail_usage("no arm is called '{}'", name);
}

ModelConfig config_of(const Arm& arm) {
  ModelConfig c = find_style("olmoe").parts;
  c.width = kWidth;
  c.layers = kLayers;
  c.heads = c.kv_heads = kHeads;
  c.head_width = kWidth / kHeads;
  c.context = kContext;
  c.dense_width = 4 * kWidth;
  c.expert_width = c.shared_width = 4 * kWidth / (arm.top_k + arm.shared);
  c.shared_experts = arm.shared;
  c.routing =
      default_options(find_recipe(arm.recipe), arm.experts, arm.top_k, is_dense(arm) ? 0 : kLayers);
  return c;
}

TrainOptions options_of(int64_t steps, double lr, uint64_t seed) {
  TrainOptions o;
  o.context = kContext;
  o.batch = kBatch;
  o.steps = steps;
  o.lr = lr;
  o.seed = seed;
  o.dtype = kDType;
  o.eval_every = std::max<int64_t>(1, steps / 4);
  o.save_every = 250;
  return resolved(o);
}

std::atomic<bool> stop_asked{false};

struct RunKey {
  std::string arm;
  int64_t steps = 0;
  double lr = 0;
  uint64_t seed = 1;

  std::string folder(const std::string& dir) const {
    return fmt::format("{}/runs/{}-s{}-lr{:g}-seed{}", dir, arm, steps, lr, seed);
  }
};

// The loss after the last step; nothing while the run is not finished.
std::optional<double> final_loss(const std::string& dir, const RunKey& key) {
  std::ifstream in(key.folder(dir) + "/metrics.jsonl");
  std::string line, last;
  while (std::getline(in, line))
    if (!line.empty()) last = line;
  if (last.empty()) return {};
  const Json row = parse_json(last, key.folder(dir));
  if (row.at("step").get<int64_t>() != key.steps || !row.contains("eval_ce")) return {};
  return row.at("eval_ce").get<double>();
}

double run_one(const std::string& dir, const RunKey& key) {
  if (const auto done = final_loss(dir, key)) return *done;
  const std::string out = key.folder(dir);
  fmt::print("{}\n", out);
  std::fflush(stdout);
  std::optional<Checkpoint> checkpoint;
  LoadedModel fresh;
  if (holds_model(out)) {
    checkpoint = load_checkpoint(out);
  } else {
    fs::create_directories(out);
    fresh.model = std::make_unique<Model>(config_of(find_arm(key.arm)));
    fresh.model->initialise(key.seed);
    fresh.tokenizer = make_tokenizer("bytes");
  }
  const LoadedModel& start = checkpoint ? checkpoint->loaded : fresh;
  const Corpus corpus({"data/corpus/train"}, *start.tokenizer),
      held_out({"data/corpus/valid"}, *start.tokenizer);
  const TrainJob job{out, options_of(key.steps, key.lr, key.seed), &corpus, &held_out,
                     start.tokenizer.get()};
  const TrainSummary summary =
      train(*start.model, job, {}, stop_asked, checkpoint ? &*checkpoint : nullptr);
  if (summary.interrupted) fail("interrupted; the same command goes on");
  return summary.eval->ce;
}

// Rates a factor 2 apart around the first guess, until the best has a worse one on either side.
double best_rate(const std::string& dir, const std::string& arm, int64_t steps) {
  std::map<double, double> loss;  // by rate
  std::set<double> wanted = {kFirstRate / 2, kFirstRate, kFirstRate * 2};
  while (true) {
    for (double lr : wanted)
      if (!loss.count(lr)) loss[lr] = run_one(dir, {arm, steps, lr, 1});
    const auto best = std::min_element(
        loss.begin(), loss.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == loss.begin()) wanted.insert(best->first / 2);
    else if (std::next(best) == loss.end()) wanted.insert(best->first * 2);
    else return best->first;
  }
}

void clock_arms(const std::string& dir, int rounds) {
  struct Clocked {
    const Arm* arm;
    Corpus corpus;
    Model model;
    Trainer trainer;
    std::vector<double> seconds, flops;
    static std::vector<int32_t> tokens() {
      std::vector<int32_t> ids(1 << 18);
      for (size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(1), i, 256));
      return ids;
    }
    explicit Clocked(const Arm& a)
        : arm(&a),
          corpus(tokens()),
          model(config_of(a)),
          trainer((model.initialise(1), model), options_of(1000, 1e-4, 1), corpus) {}
  };
  std::vector<std::unique_ptr<Clocked>> all;
  for (const Arm& arm : kArms) all.push_back(std::make_unique<Clocked>(arm));
  for (auto& c : all) c->trainer.step();
  Run probe(available_threads());
  std::vector<double> peaks;
  for (int i = 0; i < rounds; ++i) {
    peaks.push_back(ops::measure_peak_flops(probe, kDType, 0.2));
    for (auto& c : all) {
      const auto start = std::chrono::steady_clock::now();
      const StepResult r = c->trainer.step();
      c->seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      c->flops.push_back(r.flops);
    }
  }
  using bench::median;
  Json out = Json::object();
  const double peak = median(peaks), dense = median(all.front()->seconds);
  fmt::print(
      "{} peak {:.0f} GFLOP/s, {} threads, {} alternating rounds\n\n| arm | parameters | active | "
      "ms a step | over dense | share of peak "
      "|\n|---|---|---|---|---|---|\n",
      name_of(kDType), peak / 1e9, probe.threads, rounds);
  for (auto& c : all) {
    const double s = median(c->seconds);
    const ParamCount params = count_params(c->model.config());
    out[c->arm->name] = s;
    fmt::print("| {} | {:.2f}M | {:.2f}M | {:.0f} | {:.2f} | {:.0f}% |\n", c->arm->name,
               1e-6 * static_cast<double>(params.total()),
               1e-6 * static_cast<double>(params.active()), 1e3 * s, s / dense,
               100 * median(c->flops) / s / peak);
  }
  write_atomically(dir + "/clock.json", out.dump() + "\n");
}

// One arm at one schedule length: the mean over seeds at the rate that was best for seed 1.
struct Point {
  int64_t steps = 0;
  double seconds = 0, lr = 0, ce = 0, spread = 0;
  int seeds = 0;
  bool inner = false;  // worse rates were run on either side
};

std::map<std::string, std::vector<Point>> gather(const std::string& dir) {
  const Json clock = read_json(dir + "/clock.json");
  // arm, steps, rate, seed
  std::map<std::string, std::map<int64_t, std::map<double, std::map<uint64_t, double>>>> runs;
  for (const auto& entry : fs::directory_iterator(dir + "/runs")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    const size_t s = name.find("-s"), lr = name.find("-lr"), seed = name.find("-seed");
    if (s == std::string::npos || lr == std::string::npos || seed == std::string::npos) continue;
    const RunKey key{name.substr(0, s), std::stoll(name.substr(s + 2)),
                     std::stod(name.substr(lr + 3)), std::stoull(name.substr(seed + 5))};
    if (const auto ce = final_loss(dir, key)) runs[key.arm][key.steps][key.lr][key.seed] = *ce;
  }
  std::map<std::string, std::vector<Point>> out;
  for (const auto& [arm, by_steps] : runs)
    for (const auto& [steps, by_rate] : by_steps) {
      auto best = by_rate.end();
      for (auto it = by_rate.begin(); it != by_rate.end(); ++it)
        if (it->second.count(1) && (best == by_rate.end() || it->second.at(1) < best->second.at(1)))
          best = it;
      if (best == by_rate.end()) continue;
      Point p{steps,       static_cast<double>(steps) * clock.at(arm).get<double>(),
              best->first, 0,
              0,           static_cast<int>(best->second.size()),
              false};
      p.inner = best != by_rate.begin() && std::next(best) != by_rate.end();
      double low = 1e9, high = -1e9;
      for (const auto& [seed, ce] : best->second)
        p.ce += ce / p.seeds, low = std::min(low, ce), high = std::max(high, ce);
      p.spread = high - low;
      out[arm].push_back(p);
    }
  return out;
}

// Seconds at which the curve (loss against the logarithm of the seconds of a whole schedule)
// reaches `ce`; nothing outside the measured range.
std::optional<double> seconds_to(const std::vector<Point>& curve, double ce) {
  for (size_t i = 0; i + 1 < curve.size(); ++i) {
    const Point &a = curve[i], &b = curve[i + 1];
    if (a.ce >= ce && b.ce <= ce && a.ce > b.ce)
      return a.seconds * std::pow(b.seconds / a.seconds, (a.ce - ce) / (a.ce - b.ce));
  }
  return {};
}

void report(const std::string& dir) {
  const auto curves = gather(dir);
  bench::Chart losses{"Held-out loss of whole runs against their minutes",
                      "minutes of the run (log)",
                      "nats per byte",
                      true,
                      false,
                      {}};
  bench::Chart ratios{"Time to the dense twin's loss",
                      "minutes of the dense run (log)",
                      "time / dense time",
                      true,
                      true,
                      {}};
  fmt::print(
      "| arm | steps | seconds | best rate | inner | seeds | held-out CE | spread "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const Arm& arm : kArms) {
    if (!curves.count(arm.name)) continue;
    bench::Series line{arm.name, {}};
    for (const Point& p : curves.at(arm.name)) {
      line.points.emplace_back(p.seconds / 60, p.ce);
      fmt::print("| {} | {} | {:.0f} | {:g} | {} | {} | {:.4f} | {:.4f} |\n", arm.name, p.steps,
                 p.seconds, p.lr, p.inner ? "yes" : "no", p.seeds, p.ce, p.spread);
    }
    losses.series.push_back(line);
  }
  if (!curves.count("dense"))
    fail("{}/runs has no finished run of the dense arm to measure the others by", dir);
  std::vector<std::string> sparse;  // in the order of the table
  for (const Arm& arm : kArms)
    if (!is_dense(arm) && curves.count(arm.name)) sparse.emplace_back(arm.name);
  fmt::print("\n| dense minutes | dense CE |");
  for (const std::string& name : sparse) fmt::print(" {} |", name);
  fmt::print("\n|---|---|");
  for (size_t i = 0; i < sparse.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  std::map<std::string, bench::Series> lines;
  // the mark to meet, in the colour it has in the other chart
  ratios.series.push_back({"dense", {}});
  for (const Point& p : curves.at("dense")) {
    ratios.series.back().points.emplace_back(p.seconds / 60, 1);
    fmt::print("| {:.1f} | {:.4f} |", p.seconds / 60, p.ce);
    for (const std::string& name : sparse) {
      const auto s = seconds_to(curves.at(name), p.ce);
      fmt::print(" {} |", s ? fmt::format("{:.2f}", *s / p.seconds) : "-");
      if (s) lines[name].points.emplace_back(p.seconds / 60, *s / p.seconds);
    }
    fmt::print("\n");
  }
  for (const std::string& name : sparse)
    if (lines.count(name)) ratios.series.push_back({name, lines.at(name).points});
  if (!losses.series.empty()) write_atomically(dir + "/time_to_loss.svg", bench::to_svg(losses));
  if (!lines.empty()) write_atomically(dir + "/time_to_loss_ratio.svg", bench::to_svg(ratios));
}

int run_command(const std::vector<std::string>& args) {
  if (args.size() < 2)
    fail_usage(
        "usage: bench_time_to_loss DIR clock | run ARM STEPS [seeds] | one ARM STEPS LR SEED | "
        "report");
  const std::string &dir = args[0], &verb = args[1];
  fs::create_directories(dir + "/runs");
  if (verb == "clock") {
    clock_arms(dir, args.size() > 2 ? std::stoi(args[2]) : 9);
  } else if (verb == "run" && args.size() >= 4) {
    const int64_t steps = std::stoll(args[3]), seeds = args.size() > 4 ? std::stoll(args[4]) : 3;
    const double lr = best_rate(dir, args[2], steps);
    for (int64_t seed = 2; seed <= seeds; ++seed)
      run_one(dir, {args[2], steps, lr, static_cast<uint64_t>(seed)});
  } else if (verb == "one" && args.size() == 6) {
    run_one(dir, {args[2], std::stoll(args[3]), std::stod(args[4]), std::stoull(args[5])});
  } else if (verb == "report") {
    report(dir);
  } else {
    fail_usage("'{}' with {} arguments is not known", verb, args.size() - 2);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, [](int) { stop_asked = true; });
  try {
    return run_command({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_time_to_loss: {}\n", e.what());
    return 1;
  }
}
