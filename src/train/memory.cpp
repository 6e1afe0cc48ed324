#include "train/memory.h"

#include <fmt/format.h>

#include <algorithm>

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

// Of the parameter that takes most.
MuonBytes most_of_muon(const Model& shapes, const TrainOptions& o) {
  MuonBytes most;
  for (const Param* param : shapes.params()) {
    if (!takes_muon(*param, o)) continue;
    const MuonBytes bytes = muon_bytes(*param, o.dtype);
    most.scratch = std::max(most.scratch, bytes.scratch);
    most.copies = std::max(most.copies, bytes.copies);
  }
  return most;
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
          int64_t left) {
  return training_need(config, o, held).total() + beside.total() <= left;
}

}  // namespace

MemoryNeed training_need(const ModelConfig& config, const TrainOptions& o, Held held,
                         const Model* teacher, bool quantised) {
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
                                                             .spread = o.expert_parallel});
  const MuonBytes muon = most_of_muon(shapes, o);
  MemoryNeed need;
  const bool in_file = tunes_adapters(o.tune);
  if (held == Held::nothing && !in_file) need.add("weights", bytes_of_all(shapes));
  need.add("gradients", trained.gradients);
  need.add("moments", trained.moments);
  need.add("adapters", trained.adapters);
  if (!in_file || !quantised) need.add("packed", pass.copies + muon.copies);
  need.add("activations", pass.activations);
  // Muon's comes when the passes of the step are over.
  need.add("scratch",
           std::max(pass.scratch, muon.scratch) + (in_file && quantised ? ops::kPassingBytes : 0));
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
  const MuonBytes muon = most_of_muon(shapes, o);
  m.copies += muon.copies;
  m.scratch = std::max(m.scratch, muon.scratch);
  return m;
}

std::string training_advice(const ModelConfig& config, const TrainOptions& o, Held held,
                            const MemoryNeed& beside, int64_t left) {
  TrainOptions lower = o;
  int64_t most = 0;  // the largest batch that fits
  for (int64_t low = 1, high = o.batch - 1; low <= high;) {
    lower.batch = low + (high - low) / 2;
    if (fits(config, lower, held, beside, left)) {
      most = lower.batch;
      low = most + 1;
    } else {
      high = lower.batch - 1;
    }
  }
  TrainOptions recomputed = o;
  recomputed.recompute = true;
  const bool recompute = !o.recompute && fits(config, recomputed, held, beside, left);
  if (most == 0)
    return marked(recompute ? "add @recompute"
                            : "take a smaller model, @context or @batch, or more memory");
  const int64_t times = (o.batch * o.accumulate + most - 1) / most;
  return message("lower @batch (now {}) to {} and raise @accumulate (now {}) to {}{}", o.batch,
                 most, o.accumulate, times, recompute ? message(", or add @recompute") : "");
}

}  // namespace moe
