// Runs of several processes on disk: one model folder and one trainer file, which hold all experts
// whatever the layout that wrote them, and from which any other goes on.
#include <filesystem>

#include "formats/safetensors.h"
#include "support/files.h"
#include "support/processes.h"
#include "support/routings.h"
#include "support/tiny_model.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/step_lines.h"

namespace moe::layouts_test {
namespace {

using namespace test;

constexpr int64_t kSteps = 6;

struct Launch {
  int processes, spread;
};

TrainOptions options_of_run() {
  TrainOptions o = tiny_options();
  o.batch = 1;
  o.accumulate = 4;
  o.steps = kSteps;
  o.threads = 1;
  o.eval_every = 2;
  o.keep_best = true;
  o.save_every = 4;
  return o;
}

// Runs into `out` until `stop_after`, as that many processes.
void run_until(const std::string& out, const ModelConfig& config, Launch launch,
               int64_t stop_after) {
  const Corpus corpus = tiny_corpus(), held_out = tiny_corpus(100);
  run_processes(launch.processes, [&](const comm::Group& group) {
    const comm::Layout layout(group, launch.spread);
    const auto tokenizer = make_tokenizer("bytes");
    std::optional<Checkpoint> checkpoint;
    std::unique_ptr<Model> model;
    if (holds_model(out)) checkpoint = load_checkpoint(out, layout.experts());
    else model = fresh(config, 7, layout.experts());
    group.any(false);  // nobody writes before all have looked
    TrainJob job{out, options_of_run(), &corpus, &held_out, tokenizer.get()};
    job.layout = layout;
    // one process is told to stop
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) {
      stop = r.step == stop_after && stop_after < kSteps && group.rank == group.size - 1;
    };
    const TrainSummary summary = train(checkpoint ? *checkpoint->loaded.model : *model, job,
                                       callbacks, stop, checkpoint ? &*checkpoint : nullptr);
    EXPECT_EQ(summary.interrupted, stop_after < kSteps);
    EXPECT_EQ(summary.last.step, stop_after);
  });
}

std::vector<double> weights_of(const std::string& folder) {
  std::vector<double> all;
  const LoadedModel loaded = load_model(folder);
  for (const Param* param : loaded.model->params())
    for (double x : values(param->value)) all.push_back(x);
  return all;
}

// What a run leaves besides times.
void expect_same_run(const std::string& got, const std::string& want) {
  EXPECT_LE(relative_error(weights_of(got), weights_of(want)), 1e-4);
  EXPECT_LE(relative_error(weights_of(best_folder(got)), weights_of(best_folder(want))), 1e-4);
  const Safetensors a = Safetensors::open(got + "/trainer-6.safetensors"),
                    b = Safetensors::open(want + "/trainer-6.safetensors");
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const NamedTensor& tensor : b.tensors()) {
    EXPECT_EQ(describe(a.get(tensor.name)), describe(tensor.value)) << tensor.name;
    if (norm(values(tensor.value)) > 0)
      EXPECT_LE(relative_error(values(a.get(tensor.name)), values(tensor.value)), 1e-3)
          << tensor.name;
  }
  std::vector<double> losses[2];
  for (const std::string& out : {got, want})
    each_last_line(out + "/metrics.jsonl", 100, [&](std::string_view line) {
      losses[out == want].push_back(parse_metrics_line(line, out)->ce);
    });
  ASSERT_EQ(losses[0].size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(losses[1].size(), losses[0].size());
  for (size_t s = 0; s < losses[0].size(); ++s) EXPECT_NEAR(losses[0][s], losses[1][s], 1e-5) << s;
}

TEST(Layouts, EachGoesOnWhereAnotherStopped) {
  const TempFolder folder;
  run_until(folder / "alone", plain_config(), {1, 1}, kSteps);
  run_until(folder / "changed", plain_config(), {2, 2}, 2);
  run_until(folder / "changed", plain_config(), {1, 1}, 3);
  run_until(folder / "changed", plain_config(), {4, 2}, 5);
  run_until(folder / "changed", plain_config(), {4, 4}, kSteps);
  expect_same_run(folder / "changed", folder / "alone");
}

// Biases of experts, shared ones and buffers included, and names of files that hold an expert a
// tensor, or all of a layer in one.
TEST(Layouts, WriteTheSameFiles) {
  ModelConfig biased = plain_config();
  biased.ffn_bias = true;
  biased.shared_experts = 1;
  biased.shared_width = 16;
  ModelConfig deepseek = plain_config();
  deepseek.routing = small_routing("deepseek-v3", 4, 2);
  for (const ModelConfig& config : {plain_config(), biased, deepseek}) {
    const TempFolder folder;
    run_until(folder / "alone", config, {1, 1}, kSteps);
    run_until(folder / "spread", config, {4, 4}, kSteps);
    expect_same_run(folder / "spread", folder / "alone");
    const Safetensors a = Safetensors::open(folder / "spread/model.safetensors"),
                      b = Safetensors::open(folder / "alone/model.safetensors");
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (size_t i = 0; i < b.tensors().size(); ++i)
      EXPECT_EQ(a.tensors()[i].name, b.tensors()[i].name);
  }
}

}  // namespace
}  // namespace moe::layouts_test
