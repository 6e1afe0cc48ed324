#include "moe/router.h"

#include <array>

#include "core/error.h"

namespace moe {
namespace {

bool has_drops(const CapacityStage& stage) { return std::holds_alternative<BufferCapacity>(stage); }

}  // namespace

void validate(const RoutingSpec& spec) {
  const int64_t k = spec.top_k();
  if (spec.experts < 1) fail_usage("a router needs at least one expert, {} were asked for", spec.experts);
  if (k < 1 || k > spec.experts) fail_usage("top-k is {} but a token can take 1 to {} experts; lower --top-k or raise --experts", k, spec.experts);
  if (k == 1 && spec.experts > 1 && constant_when_alone(spec.weigh))
    fail_usage(
        "top-k 1 with renormalised weights: the one weight is always 1, so the router would get no gradient from the language-model loss; use a recipe "
        "that keeps the raw probability (switch, olmoe) or top-k 2");
  if (const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity); buffer && !(buffer->factor > 0))
    fail_usage("the capacity factor is {}; it must be above 0 (1.25 is usual)", buffer->factor);
}

void Router::logits(Run& run, Tensor x, const RoutingSpec& spec, Saved& saved) {
  const int64_t tokens = x.rows();
  const std::array<int64_t, 2> all = {0, tokens};
  const auto* jitter_stage = std::get_if<InputJitter>(&spec.noise);
  saved.x = x;
  if (x.dtype != DType::f32) {
    saved.x = run.saved.alloc(DType::f32, {tokens, x.cols()});
    ops::cast(run, saved.x, x);
  }
  if (jitter_stage && !saved.key.empty()) {
    Tensor jittered = run.saved.alloc(DType::f32, {tokens, x.cols()});
    jitter(run, jittered, saved.x, *jitter_stage, saved.key);
    saved.x = jittered;
  }
  saved.logits = run.saved.alloc(DType::f32, {tokens, spec.experts});
  ops::matmul_forward(run, saved.logits, saved.x, weight, all);
  saved.raw = {};
  const auto* learned = std::get_if<LearnedNoise>(&spec.noise);
  if (learned && !saved.key.empty()) {
    saved.raw = run.saved.alloc(DType::f32, {tokens, spec.experts});
    ops::matmul_forward(run, saved.raw, saved.x, noise, all);
    learned_noise_forward_acc(run, saved.logits, saved.raw, *learned, saved.key);
  }
}

RoutingPlan Router::forward(Run& run, Tensor x, const RoutingSpec& spec, RngKey key, Saved& saved) {
  saved.key = key;
  logits(run, x, spec, saved);
  return decide(run, spec, saved);
}

RoutingPlan Router::decide(Run& run, const RoutingSpec& spec, Saved& saved) {
  const int64_t tokens = saved.logits.rows(), k = spec.top_k();
  saved.lse = run.saved.alloc(DType::f32, {tokens});
  saved.losses.z = z_loss_forward(run, saved.lse, saved.logits);

  saved.scores = run.saved.alloc(DType::f32, {tokens, spec.experts});
  score_forward(run, saved.scores, saved.logits, spec.score);
  saved.choice = run.saved.alloc(DType::i32, {tokens, k});
  select_forward(run, saved.choice, saved.scores, spec.select);
  saved.weights = run.saved.alloc(DType::f32, {tokens, k});
  weigh_forward(run, saved.weights, saved.scores, saved.choice, spec.weigh);

  saved.losses.balance = balance_forward(run, saved.scores, saved.weights, saved.choice, spec.balance);
  saved.counts = run.saved.alloc(DType::i32, {spec.experts});
  count_choices(saved.counts, saved.choice, k);

  ArenaScope scope(run.scratch);
  Tensor kept = run.scratch.alloc(DType::i32, {tokens, k});
  saved.dropped = capacity_forward(kept, saved.choice, spec.experts, spec.capacity);
  return make_plan(run.saved, saved.choice, kept, saved.weights, spec.experts);
}

void Router::backward_acc(Run& run, Tensor dx, Tensor dweight, const RoutingPlan& plan, const RoutingSpec& spec, RoutingLosses coef, const Saved& saved) {
  ArenaScope scope(run.scratch);
  const int64_t tokens = plan.tokens();
  // A dropped pair contributes nothing, so its weight gets no gradient from the experts.
  Tensor dw = has_drops(spec.capacity) ? run.scratch.alloc_zeroed(DType::f32, {tokens, spec.top_k()}) : run.scratch.alloc(DType::f32, {tokens, spec.top_k()});
  for (int64_t r = 0; r < plan.rows(); ++r) dw.as<float>()[plan.pair[static_cast<size_t>(r)]] = dweight.as<float>()[r];

  Tensor dz = run.scratch.alloc_zeroed(DType::f32, {tokens, spec.experts});  // first the gradient of the scores
  balance_backward_acc(run, dz, dw, saved.choice, spec.experts, spec.balance, coef.balance);
  weigh_backward_acc(run, dz, dw, saved.weights, saved.scores, saved.choice, spec.weigh);
  score_backward(run, dz, dz, saved.scores, spec.score);
  z_loss_backward_acc(run, dz, saved.lse, saved.logits, coef.z);

  const std::array<int64_t, 2> all = {0, tokens};
  const auto* jitter_stage = std::get_if<InputJitter>(&spec.noise);
  const bool jittered = jitter_stage && !saved.key.empty();
  Tensor dx_seen = jittered ? run.scratch.alloc_zeroed(DType::f32, {tokens, dx.cols()}) : dx;
  ops::matmul_dw(run, weight, dz, saved.x, all);
  ops::matmul_dx_acc(run, dx_seen, dz, weight, all);
  if (!saved.raw.empty()) {
    Tensor draw = run.scratch.alloc(DType::f32, {tokens, spec.experts});
    learned_noise_backward(run, draw, dz, saved.raw, std::get<LearnedNoise>(spec.noise), saved.key);
    ops::matmul_dw(run, noise, draw, saved.x, all);
    ops::matmul_dx_acc(run, dx_seen, draw, noise, all);
  }
  if (jittered) {
    jitter(run, dx_seen, dx_seen, *jitter_stage, saved.key);
    ops::add(run, dx, dx, dx_seen);
  }
}

}  // namespace moe
