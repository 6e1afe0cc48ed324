#include "train/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "model/cost.h"
#include "model/lm_head_chunks.h"
#include "ops/memory.h"
#include "train/muon.h"
#include "train/trainable.h"

namespace moe {
namespace {

// of a token of a micro-batch: id, target, position, and what its row is read through
constexpr int64_t kTextBytes = 16;

int64_t bytes_of_all(const Model& shapes) {
  int64_t bytes = 0;
  for (const Param* param : shapes.params()) bytes += param->value.bytes();
  return bytes;
}

// What Muon takes for its products.
int64_t muon_bytes(const Model& shapes, const TrainOptions& o) {
  std::vector<Tensor> all;
  for (const Param* param : shapes.params())
    if (takes_muon(*param, o)) all.push_back(param->value);
  return ops::newton_schulz_bytes(std::span<const Tensor>(all), o.dtype,
                                  o.threads > 0 ? o.threads : available_threads());
}

// A micro-batch as the teacher reads it: its own activations are gone before the student's come,
// what its head reads stays.
int64_t teaching_bytes(const Model& teacher, const TrainOptions& o, int64_t students) {
  const ModelConfig& c = teacher.config();
  const int64_t tokens = rows_of(o) * o.context;
  const RoutingSpec routing = c.moe_layer_count() > 0 ? eval_spec(c.routing) : RoutingSpec{};
  const int64_t passing = count_forward_memory(c, {.tokens = tokens, .dtype = o.dtype}, routing);
  return tokens * bytes_of(o.dtype, c.width) + kLogitChunkBytes +
         std::max<int64_t>(0, passing - students);
}

bool fits(const ModelConfig& config, const TrainOptions& o, Held held, const MemoryNeed& beside,
          int64_t left, int64_t document) {
  return training_need(config, o, held, nullptr, false, document).total() + beside.total() <= left;
}

}  // namespace

MemoryNeed training_need(const ModelConfig& config, const TrainOptions& o, Held held,
                         const Model* teacher, bool quantised, int64_t document) {
  // Takes no memory for its numbers. Of the processes that its experts lie on one with most of
  // them.
  const Model shapes(config, Storage::bound,
                     {.rank = static_cast<int>(o.expert_parallel) - 1,
                      .size = static_cast<int>(o.expert_parallel)});
  const TrainedBytes trained = trained_bytes(shapes, o);
  const TrainingMemory pass = count_training_memory(config, {.batch = rows_of(o),
                                                             .context = o.context,
                                                             .dtype = o.dtype,
                                                             .recompute = o.recompute,
                                                             .spread = o.expert_parallel,
                                                             .document = document});
  MemoryNeed need;
  const bool in_file = tunes_adapters(o.tune);
  if (held == Held::nothing && !in_file) need.add("weights", bytes_of_all(shapes));
  need.add("gradients", trained.gradients);
  need.add("moments", trained.moments);
  need.add("adapters", trained.adapters);
  if (!in_file || !quantised) need.add("packed", pass.copies);
  need.add("activations", pass.activations);
  // Muon's comes when the passes of the step are over.
  need.add("scratch", std::max(pass.scratch, muon_bytes(shapes, o)) +
                          (in_file && quantised ? ops::kPassingBytes : 0));
  need.add("text", rows_of(o) * o.context * kTextBytes);
  if (teacher) need.add("teacher", teaching_bytes(*teacher, o, pass.activations + pass.scratch));
  return need;
}

TrainingMemory training_memory(const ModelConfig& config, const TrainingShape& shape,
                               OptimizerKind optimizer) {
  TrainingMemory m = count_training_memory(config, shape);
  if (optimizer != OptimizerKind::muon) return m;
  TrainOptions o;
  o.optimizer = optimizer;
  o.dtype = shape.dtype;
  const Model shapes(
      config, Storage::bound,
      {.rank = static_cast<int>(shape.spread) - 1, .size = static_cast<int>(shape.spread)});
  for (const Param* param : shapes.params())
    if (takes_muon(*param, o)) m.moments -= param->value.bytes();
  m.scratch = std::max(m.scratch, muon_bytes(shapes, o));
  return m;
}

std::string training_advice(const ModelConfig& config, const TrainOptions& o, Held held,
                            const MemoryNeed& beside, int64_t left, int64_t document) {
  TrainOptions lower = o;
  int64_t most = 0;  // the largest batch that fits
  for (int64_t low = 1, high = o.batch - 1; low <= high;) {
    lower.batch = low + (high - low) / 2;
    if (fits(config, lower, held, beside, left, document)) {
      most = lower.batch;
      low = most + 1;
    } else {
      high = lower.batch - 1;
    }
  }
  TrainOptions recomputed = o;
  recomputed.recompute = true;
  const bool recompute = !o.recompute && fits(config, recomputed, held, beside, left, document);
  if (most == 0)
    return marked(recompute ? "add @recompute"
                            : "take a smaller model, @context or @batch, or more memory");
  const int64_t times = (o.batch * o.accumulate + most - 1) / most;
  return message("lower @batch (now {}) to {} and raise @accumulate (now {}) to {}{}", o.batch,
                 most, o.accumulate, times, recompute ? message(", or add @recompute") : "");
}

}  // namespace moe
