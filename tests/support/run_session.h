// Whole runs of training on a tiny text, which are stopped and resumed.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/step_numbers.h"
#include "support/tiny_model.h"
#include "train/checkpoint.h"

namespace moe::test {

inline const std::atomic<bool> kGoOn = false;

// A run into OUT that stops by itself after `stop_after` steps (0: runs to its end).
struct RunSession {
  std::string out;
  ModelConfig config = noisy_config();
  TrainOptions options = tiny_options();
  Corpus corpus = tiny_corpus();
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  std::vector<std::string> log = {};

  TrainJob job() { return {out, options, &corpus, nullptr, tokenizer.get()}; }
  // A run of `steps` on one thread, fitted to a minute: from 100 to 160 on a clock that the test
  // turns.
  TrainJob job_of_a_minute(const double& clock, int64_t steps, int64_t warmup) {
    options.steps = steps;
    options.warmup = warmup;
    options.minutes = 1;
    options.threads = 1;
    TrainJob made = job();
    made.deadline = Deadline{[&clock] { return clock; }, 160, 0};
    return made;
  }
  TrainSummary start(int64_t stop_after = 0, std::unique_ptr<Model>* keep = nullptr) {
    auto model = fresh(config);
    const TrainSummary s = go(*model, stop_after, nullptr);
    if (keep) *keep = std::move(model);
    return s;
  }
  TrainSummary resume(int64_t stop_after = 0) {
    const Checkpoint checkpoint = load_checkpoint(out);
    return go(*checkpoint.loaded.model, stop_after, &checkpoint);
  }
  TrainSummary go(Model& model, int64_t stop_after, const Checkpoint* checkpoint) {
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == stop_after; };
    callbacks.on_log = [&](const std::string& line) { log.push_back(line); };
    return train(model, job(), callbacks, stop, checkpoint);
  }
};

}  // namespace moe::test
