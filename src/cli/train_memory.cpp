#include "cli/train_memory.h"

#include "core/error.h"
#include "train/memory.h"

namespace moe::cli {
namespace {

std::string advice(const ModelConfig& config, const TrainOptions& o, Held held, const MemoryNeed& beside, const MemoryLimits& limits) {
  return training_advice(config, o, held, beside, limits.left());
}

}  // namespace

void check_before_weights(const ModelConfig& config, const TrainOptions& o, const MemoryFlags& f, const MemoryNeed& beside) {
  const MemoryLimits limits = memory_limits(f);
  MemoryNeed need = training_need(config, o, Held::nothing);
  need.add(beside);
  if (need.total() > limits.left()) moe::check_memory(need, limits, advice(config, o, Held::nothing, beside, limits));
}

std::string check_before_training(const ModelConfig& config, const TrainOptions& o, const MemoryFlags& f, Model* teacher) {
  if (teacher == nullptr && !f.packed.empty()) fail_usage("--pack-memory is of a teacher, whose weights lie in a file; there is none: leave it out");
  const MemoryLimits limits = memory_limits(f);
  MemoryNeed need = training_need(config, o, Held::weights, teacher);
  if (teacher) {
    const ForwardUse use{.model = teacher, .shape = {.tokens = 1, .dtype = o.dtype}};
    need = plan_memory(std::span(&use, 1), need, limits).need;
    if (need.total() <= limits.left()) settle_memory(use, training_need(config, o, Held::weights, teacher), limits, "");
  }
  const std::string foretold = describe(need, taken_memory());
  if (need.total() > limits.left()) moe::check_memory(need, limits, advice(config, o, Held::weights, {}, limits));
  return foretold;
}

}  // namespace moe::cli
