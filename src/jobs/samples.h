// Samples while training: every N steps the model continues a prompt, told to a caller and kept in
// OUT/samples.jsonl. Reads the weights, changes none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "infer/generate.h"
#include "jobs/training.h"
#include "train/step_lines.h"

namespace moe {

struct SampleOptions {
  int64_t every = 0;
  std::optional<int64_t> tokens;  // of a sample; absent: 60
  std::string prompt;
  std::optional<EvalRouting> routing;
};
FieldList fields(SampleOptions&);

class TrainingSamples {
 public:
  // Usage errors for options that do not go together and for models that cannot write. `training`
  // and `stop` must outlive it; call before training.run().
  TrainingSamples(const SampleOptions& options, Training& training, const std::atomic<bool>& stop);

  // After every step; writes a sample when it is due, and tells it in a line. A sample that is
  // interrupted is lost.
  void after_step(int64_t step, const std::function<void(const std::string& line)>& tell);

 private:
  Generated write(int64_t tokens);

  SampleOptions asked_;
  Training& training_;
  const std::atomic<bool>& stop_;
  int64_t tokens_ = 0;  // of a sample
  GenerateOptions options_;
  std::unique_ptr<Run> run_;
  std::unique_ptr<StepLines> file_;  // once there is a step: the folder is there only then
};

}  // namespace moe
