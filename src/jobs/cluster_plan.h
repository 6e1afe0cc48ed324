// What training a model by many processes would take, layout by layout: the body of `moe plan`.
// Worked out from the model's shape and from what one process and its network reach; nothing is
// run. docs/cluster.md has the formulas of what is sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"
#include "model/cost.h"
#include "options/fields.h"
#include "train/options.h"

namespace moe {

// Of one process, while all of them work.
struct ProcessRates {
  double flops = 0;               // FLOP/s of arithmetic in registers; 0: measured here
  double reached = 0.5;           // of that, in training steps
  double read = 0;                // bytes/s from memory; 0: measured here
  double network = 0.125;         // GB/s that it sends
  double latency = 50;            // microseconds of an exchange with next to nothing in it
  std::optional<int64_t> memory;  // bytes; absent: as much as it takes
};

struct ClusterPlanJob {
  std::string model, preset;
  TrainingShape shape{.batch = 8, .context = 0};
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t processes = 1;
  int64_t micro_batches = 0;  // a step, of all processes; 0: one each
  double imbalance = 0.1;     // rows of the process with most, over the mean, less 1
  ProcessRates rates;
  double tokens = 0;  // that are to be trained on; 0: not said
  double price = 0;   // of a process for an hour
};
FieldList fields(ClusterPlanJob&);

// One way to lay the experts out. Seconds are those of a step.
struct LayoutPlan {
  int64_t expert_parallel = 1;
  TrainingMemory memory;  // of a process
  bool fits = true;
  double compute = 0;    // forward and backward of a process's own share of the rows
  double waiting = 0;    // for the process with most rows
  double update = 0;     // of the parameters that it moves, and packing those it holds
  double gradients = 0;  // exchange of gradients and moved parameters
  double rows = 0;       // exchange of rows
  double sent = 0;       // bytes that a process sends

  double seconds() const { return compute + waiting + update + gradients + rows; }
};

struct ClusterPlan {
  ModelConfig config;
  TrainingShape shape;
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t processes = 1, micro_batches = 1;
  ProcessRates rates;  // none of them 0
  std::vector<LayoutPlan> layouts;
  std::optional<size_t> best;  // of those that fit, the quickest
  double tokens_a_step() const {
    return static_cast<double>(micro_batches * shape.batch * shape.context);
  }
};
ClusterPlan plan_cluster(const ClusterPlanJob&);
Json to_json(const ClusterPlan&, const ClusterPlanJob&);

}  // namespace moe
