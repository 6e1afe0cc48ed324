#include "infer/model_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "infer/eval_routing.h"
#include "ops/ops.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

constexpr int64_t kRepeatedRows = 64;  // of a step that is like the one before: texts are written
constexpr int64_t kMostCounted = int64_t{1} << 30;  // pairs that 32 bits hold

// Rows of several sequences laid end to end.
struct StepBatch {
  std::vector<int32_t> ids, positions, slots;
  std::vector<int64_t> bounds = {0};
  std::vector<int64_t> last;  // of each, after which logits are asked for
  int64_t wanted = 0;         // of all

  // `held`: tokens that the sequence has before these.
  void add(const StepRows& rows, int64_t held) {
    ids.insert(ids.end(), rows.ids.begin(), rows.ids.end());
    for (size_t i = 0; i < rows.ids.size(); ++i)
      positions.push_back(static_cast<int32_t>(held) + static_cast<int32_t>(i));
    slots.push_back(rows.slot);
    bounds.push_back(std::ssize(ids));
    last.push_back(rows.logits);
    wanted += rows.logits;
  }
};

// The routing to ask for instead of one that looks at later tokens.
std::string way_out(const RoutingOptions& options) {
  switch (default_eval(options)) {
    case EvalRouting::dropless: return marked("leave @routing out, or take @routing dropless");
    case EvalRouting::threshold:
      return marked(
          "@routing threshold takes the tokens whose score reaches what was learned in training");
    case EvalRouting::as_trained: break;
  }
  return "a model of this recipe can be scored but not continued";
}

}  // namespace

void check_asked_for(const ModelConfig& config, std::optional<EvalRouting> asked) {
  if (asked || config.moe_layer_count() == 0 ||
      default_eval(config.routing) != EvalRouting::threshold)
    return;
  fail_usage("recipe '{}' does not say how to write a text: {}; {}", config.routing.recipe,
             not_causal_because(config.routing, EvalRouting::as_trained), way_out(config.routing));
}

DType cache_dtype(const SessionOptions& options, const Model& model, DType compute) {
  const DType halves = ops::has_bf16_products() ? DType::bf16 : DType::f16;
  return options.cache_dtype.value_or(mostly_quantised(model) ? halves : compute);
}

ModelRunner::ModelRunner(Model& model, Run& run, int64_t capacity, const SessionOptions& options)
    : model_(model),
      run_(run),
      routing_(evaluation_spec(model.config(), options.routing, options.top_k_experts)),
      cache_(model.config(), cache_dtype(options, model, run.compute), capacity,
             run.saved.device()),
      counts_memory_(0, run.saved.device()) {
  if (model.config().moe_layer_count() == 0) return;
  const RoutingOptions& recipe = model.config().routing;
  if (const std::string_view reason =
          not_causal_because(recipe, options.routing.value_or(default_eval(recipe)));
      !reason.empty())
    fail_usage("recipe '{}' cannot be routed so while a text is being written: {}; {}",
               recipe.recipe, reason, way_out(recipe));
  expert_rows_.assign(static_cast<size_t>(model.config().moe_layer_count()),
                      std::vector<int64_t>(static_cast<size_t>(recipe.scored())));
  counts_ = counts_memory_.alloc_zeroed(
      DType::i32, {model.config().moe_layer_count(), model.config().routing.scored()});
}

int64_t ModelRunner::slots() const {
  return model_.config().moe_layer_count() == 0 ? 0 : routing_.slots();
}

void ModelRunner::step(std::span<float> logits, std::span<const StepRows> rows,
                       const StepRouting& routing) {
  for (const StepRows& r : rows)
    if (r.ids.empty() || r.logits < 0 || r.logits > std::ssize(r.ids))
      fail("slot {}: logits of {} tokens are asked for where a step reads {}", r.slot, r.logits,
           r.ids.size());
  if (rows.empty()) return;
  std::vector<int64_t> held;  // of the sequences that were extended
  try {
    for (const StepRows& r : rows) {
      held.push_back(cache_.length(r.slot));
      cache_.extend(r.slot, std::ssize(r.ids));
    }
    forward(logits, rows, routing);
  } catch (...) {
    for (size_t i = 0; i < held.size(); ++i) cache_.truncate(rows[i].slot, held[i]);
    throw;
  }
}

void ModelRunner::forward(std::span<float> logits, std::span<const StepRows> rows,
                          const StepRouting& routing) {
  StepBatch step;
  for (const StepRows& r : rows) step.add(r, cache_.length(r.slot) - std::ssize(r.ids));
  const auto only_read = std::make_unique<bool[]>(rows.size());
  std::ranges::transform(rows, only_read.get(), &StepRows::only_read);
  const ArenaScope scope(run_.saved);
  const Repeated repeated(run_.device, std::ssize(step.ids) <= kRepeatedRows);
  ModelSaved saved;
  const bool all = step.wanted == std::ssize(step.ids);
  model_.forward(run_,
                 {.batch = {step.ids, step.positions, step.bounds, step.slots},
                  .routing = &routing_,
                  .cache = &cache_,
                  .recorded = routing.recorded,
                  .totals = counts_,
                  .only_read = {only_read.get(), rows.size()},
                  .last_rows = all ? std::span<const int64_t>() : step.last,
                  .same_everywhere = true,
                  .on_routing = routing.on_routing},
                 saved);
  if (step.wanted > 0)
    model_.logits(run_, Tensor(logits.data(), DType::f32, {step.wanted, model_.config().vocab}),
                  saved.hidden);
  counted_ += std::ssize(step.ids) * slots();
  if (counted_ > kMostCounted) add_up_rows();
}

void ModelRunner::add_up_rows() {
  if (counted_ == 0) return;
  OnHost host(run_);
  const Tensor counts = host.write(counts_);
  for (int64_t i = 0; i < counts.rows(); ++i)
    for (int64_t e = 0; e < counts.cols(); ++e)
      expert_rows_[static_cast<size_t>(i)][static_cast<size_t>(e)] +=
          std::exchange(counts.row<int32_t>(i)[e], 0);
  counted_ = 0;
}

const std::vector<std::vector<int64_t>>& ModelRunner::expert_rows() {
  add_up_rows();
  return expert_rows_;
}

}  // namespace moe
