#include "jobs/train_memory.h"

#include "core/error.h"
#include "infer/eval_routing.h"
#include "infer/memory_plan.h"
#include "train/memory.h"

namespace moe {
namespace {

// What to lower is worked out only for a run that does not fit.
void refuse_too_much(const MemoryNeed& need, const ModelConfig& config, const TrainOptions& o,
                     Held held, const MemoryNeed& beside, const MemoryLimits& limits,
                     int64_t document = 0) {
  const int64_t left = limits.left();
  if (need.total() > left)
    check_memory(need, limits, training_advice(config, o, held, beside, left, document));
}

}  // namespace

void check_before_weights(const ModelConfig& config, const TrainOptions& o,
                          const MemoryLimits& limits, const MemoryNeed& beside) {
  MemoryNeed need = training_need(config, o, Held::nothing, nullptr, /*quantised=*/true);
  need.add(beside);
  refuse_too_much(need, config, o, Held::nothing, beside, limits);
}

std::string check_before_training(const Model& model, const TrainOptions& o,
                                  const MemoryLimits& limits, Model* teacher, int64_t document) {
  const ModelConfig& config = model.config();
  if (teacher == nullptr && limits.packed)
    fail_usage(
        "@pack_memory is of a teacher, whose weights lie in a file; there is none: leave it out");
  const MemoryNeed training =
      training_need(config, o, Held::weights, teacher, mostly_quantised(model), document);
  MemoryNeed need = training;
  if (teacher) {
    const ForwardUse use{.model = teacher, .shape = {.tokens = 1, .dtype = o.dtype}};
    need = plan_memory(std::span(&use, 1), training, limits).need;
    if (need.total() <= limits.left()) settle_memory(use, training, limits, "");
  }
  const std::string estimated = describe(need, taken_memory());
  refuse_too_much(need, config, o, Held::weights, {}, limits, document);
  return estimated;
}

MemoryNeed adapter_need(const Model& model, const TrainOptions& o) {
  MemoryNeed need;
  for (const Param* param : model.params()) need.add("file", param->value.bytes());
  need.add(training_need(model.config(), o, Held::weights, nullptr, mostly_quantised(model)));
  return need;
}

}  // namespace moe
