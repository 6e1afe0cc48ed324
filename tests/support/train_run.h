// Runs of training, in memory and between folders, and whether two left the same.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "support/check.h"
#include "support/tiny_model.h"
#include "train/checkpoint.h"

namespace moe::test {

struct SteppedModel {
  std::unique_ptr<Model> model;
  std::vector<StepResult> steps;
};

// A fresh model after all the steps of the options on a tiny corpus.
inline SteppedModel run_steps(const ModelConfig& config, const TrainOptions& options) {
  const Corpus corpus = tiny_corpus();
  SteppedModel t{fresh(config), {}};
  Trainer trainer(*t.model, options, corpus);
  for (int64_t i = 0; i < options.steps; ++i) t.steps.push_back(trainer.step());
  return t;
}

// A run from the weights in START, which stops by itself after `stop_after` steps (0: at its end).
struct TrainRun {
  std::string start, out;
  TrainOptions options = tiny_options();
  Corpus corpus = tiny_corpus();
  std::optional<Corpus> held_out = {};
  std::unique_ptr<Model> teacher = {};
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");

  TrainSummary run(int64_t stop_after = 0) {
    const LoadedModel loaded = load_model(start);
    return go(*loaded.model, stop_after, nullptr);
  }
  TrainSummary resume() {
    const Checkpoint checkpoint = load_checkpoint(out);
    return go(*checkpoint.loaded.model, 0, &checkpoint);
  }
  TrainSummary go(Model& model, int64_t stop_after, const Checkpoint* checkpoint) {
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == stop_after; };
    return train(model,
                 {out, options, &corpus, held_out ? &*held_out : nullptr, tokenizer.get(),
                  teacher.get(), start},
                 callbacks, stop, checkpoint);
  }
};

inline void expect_same_tensors(const std::string& a, const std::string& b) {
  const Safetensors x = Safetensors::open(a), y = Safetensors::open(b);
  ASSERT_EQ(x.names(), y.names());
  for (const NamedTensor& t : x.tensors()) EXPECT_TRUE(same_bits(t.value, y.get(t.name))) << t.name;
}

}  // namespace moe::test
