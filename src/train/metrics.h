// metrics.jsonl: one JSON object a step, appended as it happens.
#pragma once

#include <optional>
#include <string>

#include "train/trainer.h"

namespace moe {

// The line of one step, without the newline.
std::string metrics_line(const StepResult&, std::optional<double> eval_ce);

class MetricsFile {
 public:
  // Opens `path` for appending. Lines of steps after `last_step`, and a last line that a kill cut short, are cut off first, in one atomic step.
  MetricsFile(std::string path, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void append(const StepResult&, std::optional<double> eval_ce);
  // To disk: called before a checkpoint, so that no line of a saved step can be missing.
  void sync();

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace moe
