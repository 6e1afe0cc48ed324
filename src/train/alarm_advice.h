// What to try against an alarm: options of a run that mean something for the recipe and the options
// of the run.
#pragma once

#include <string>

#include "train/alarms.h"

namespace moe {

struct RunFacts {
  const ModelConfig& config;
  const TrainOptions& options;  // resolved
  const RoutingSpec* routing;   // of training; null for a dense model
  int64_t step = 0;
};

// "balance 0.01, a lower lr (now 0.05) or a longer warmup (now 30)", the fields marked.
std::string advice(AlarmKind, const RunFacts&);

}  // namespace moe
