#include "moe/router.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/threads.h"
#include "moe/replay.h"

namespace moe {
namespace {

// How fast a threshold follows the cutoffs of expert choice: an optimizer step's share in the running mean.
constexpr double kThresholdRate = 0.05;
constexpr int64_t kGrainTokens = 256;  // per thread, below which a second thread does not pay

// What TokenSoftmax sums over: the scopes whose tokens the experts chose from.
std::vector<int64_t> weigh_bounds(const RoutingSpec& spec, const RouterInput& input, int64_t tokens) {
  const auto* choice = std::get_if<ExpertChoice>(&spec.select);
  return scope_bounds(choice ? choice->scope : Scope{}, input.bounds, tokens);
}

LossInput loss_input(const RoutingSpec& spec, const Router::Saved& saved) {
  return {.scores = saved.scores,
          .weights = saved.weights,
          .choice = saved.choice,
          .selected = saved.selected,
          .logits = saved.logits,
          .clean = saved.clean,
          .sigma = saved.sigma,
          .input = &saved.input,
          .balance_counts = saved.balance_counts,
          .experts = spec.experts,
          .top_k = spec.slots()};
}

bool z_reads_clean(const RoutingSpec& spec, const Router::Saved& saved) { return spec.losses.z_of_clean && !saved.clean.empty(); }

Tensor copied(Arena& arena, Tensor from) {
  Tensor to = arena.alloc(from.dtype, {from.rows(), from.cols()});
  std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
  return to;
}

// Recorded choices take the place of the router's own, which are made all the same: a score that is not a number still stops the run, experts' cutoffs stay
// what they were, and how far the two agree is known. Pairs are sent as they were recorded, whatever second-choice policy and capacity would say.
void replay(Run& run, const RoutingSpec& spec, Router::Saved& saved) {
  const RouterInput& input = saved.input;
  const int64_t tokens = saved.choice.rows();
  const std::string where = input.layer < 0 ? "the recorded routing" : fmt::format("the recorded routing of layer {}", input.layer);
  check_recorded(input.recorded, tokens, spec.slots(), spec.experts, where, run.threads);
  saved.kept = run.saved.alloc(DType::i32, {tokens, spec.slots()});
  saved.agreed = run.saved.alloc(DType::i32, {tokens});
  saved.own = replay_choices(run, saved.choice, saved.selected, saved.kept, saved.agreed, input.recorded, spec.experts);
}

// Scores, the choice with its weights, and the losses, which look at all chosen pairs, sent or not.
void choose(Run& run, const RoutingSpec& spec, Router::Saved& saved, int64_t tokens, const SelectContext& context, Tensor scale) {
  const int64_t k = spec.slots();
  if (!saved.logits.empty()) {
    saved.lse = run.saved.alloc(DType::f32, {tokens});
    saved.scores = run.saved.alloc(DType::f32, {tokens, spec.experts});
    const bool of_clean = z_reads_clean(spec, saved);
    score_forward(run, saved.scores, of_clean ? Tensor{} : saved.lse, saved.logits, spec.score);
    saved.losses.z = of_clean ? z_loss_forward(run, saved.lse, saved.clean) : z_loss_of(saved.lse);
  }
  saved.choice = run.saved.alloc(DType::i32, {tokens, k});
  saved.selected = run.saved.alloc(DType::i32, {tokens, k});
  if (std::holds_alternative<ExpertChoice>(spec.select)) saved.cutoff = run.saved.alloc_zeroed(DType::f32, {spec.experts});
  select_forward(run, saved.choice, saved.selected, saved.cutoff, saved.scores, spec.experts, context, spec.select);
  if (!saved.input.recorded.empty()) replay(run, spec, saved);
  saved.weights = run.saved.alloc(DType::f32, {tokens, k});
  weigh_forward(run, saved.weights, saved.scores, saved.choice, saved.selected, {weigh_bounds(spec, saved.input, tokens), scale}, spec.weigh);

  if (spec.losses.balance) {
    Tensor counts = run.saved.alloc(DType::i32, {spec.experts});
    count_for_balance(run, counts, loss_input(spec, saved), *spec.losses.balance);
    saved.balance_counts = counts;
  }
  const float z = saved.losses.z;
  saved.losses = aux_losses_forward(run, loss_input(spec, saved), spec.losses);
  saved.losses.z = z;
}

// Which of the chosen pairs are sent and find room; fills counts, kept and dropped.
void send(Run& run, const RoutingSpec& spec, Router::Saved& saved) {
  const int64_t k = spec.slots();
  saved.counts = run.saved.alloc(DType::i32, {spec.experts});
  if (!saved.input.recorded.empty()) {
    count_pairs(run, saved.counts, saved.choice, saved.selected, k);
    const auto ones = [](Tensor flags) { return std::accumulate(flags.as<int32_t>(), flags.as<int32_t>() + flags.numel(), int64_t{0}); };
    saved.dropped = ones(saved.selected) - ones(saved.kept);
    return;
  }
  ArenaScope scope(run.scratch);
  Tensor sent = saved.selected;  // [N,K]
  if (!std::holds_alternative<KeepSecond>(spec.second)) {
    sent = copied(run.scratch, saved.selected);
    second_forward(run, sent, saved.weights, spec.second, saved.key);
  }
  count_pairs(run, saved.counts, saved.choice, sent, k);
  saved.kept = run.saved.alloc(DType::i32, {saved.choice.rows(), k});
  saved.dropped = capacity_forward(saved.kept, saved.choice, sent, saved.weights, saved.input.bounds, spec.experts, spec.capacity, saved.key);
}

RoutingPlan place(Run& run, const RoutingSpec& spec, Router::Saved& saved) {
  send(run, spec, saved);
  ArenaScope scope(run.scratch);
  Tensor weights = saved.weights;
  if (renormalises_after_drop(spec.weigh)) {
    weights = copied(run.scratch, saved.weights);
    weigh_kept_forward(run, weights, saved.kept);
  }
  return make_plan(run, saved.choice, saved.kept, weights, spec.experts);
}

}  // namespace

void Router::make_logits(Run& run, Tensor x, const RoutingSpec& spec, Saved& saved) {
  const int64_t tokens = x.rows();
  const std::array<int64_t, 2> all = {0, tokens};
  saved.x = x;
  const auto* jittered = std::get_if<InputJitter>(&spec.noise);
  if (jittered && !saved.key.empty()) {
    saved.x = run.saved.alloc(DType::f32, {tokens, x.cols()});
    ops::cast(run, saved.x, x);
    jitter(run, saved.x, saved.x, *jittered, saved.key);
  }
  saved.logits = run.saved.alloc(DType::f32, {tokens, spec.experts});
  logit.forward(run, saved.logits, saved.x, spec.logits, saved.made);
  const auto* learned = std::get_if<LearnedNoise>(&spec.noise);
  if (!learned || saved.key.empty()) return;
  if (spec.losses.load || spec.losses.z_of_clean) saved.clean = copied(run.saved, saved.logits);
  saved.raw = run.saved.alloc(DType::f32, {tokens, spec.experts});
  ops::matmul_forward_f32(run, saved.raw, saved.x, noise, all);
  learned_noise_forward_acc(run, saved.logits, saved.raw, *learned, saved.key);
  if (!spec.losses.load) return;
  saved.sigma = run.saved.alloc(DType::f32, {tokens, spec.experts});
  learned_noise_scale(run, saved.sigma, saved.raw, *learned);
}

RoutingPlan Router::forward(Run& run, Tensor x, const RouterInput& input, const RoutingSpec& spec, RngKey key, Saved& saved) {
  saved = Saved{};
  saved.input = input;
  saved.key = key;
  if (needs_logits(spec.select)) make_logits(run, x, spec, saved);
  else if (static_cast<int64_t>(input.ids.size()) != x.rows())
    fail("hash routing of {} tokens was given {} token ids; pass one id for each token", x.rows(), input.ids.size());
  return decide(run, spec, saved);
}

RoutingPlan Router::decide(Run& run, const RoutingSpec& spec, Saved& saved) const {
  const int64_t tokens = saved.logits.empty() ? static_cast<int64_t>(saved.input.ids.size()) : saved.logits.rows();
  SelectContext context;
  context.input = &saved.input;
  if (selection_bias(spec.select)) context.bias = bias.value;
  if (std::holds_alternative<ThresholdChoice>(spec.select)) {
    if (!threshold.present()) fail("routing by thresholds needs the {} thresholds of a model trained with expert choice; this one has none", spec.experts);
    context.threshold = threshold.value;
  }
  choose(run, spec, saved, tokens, context, scale.value);
  return place(run, spec, saved);
}

void Router::decide_backward(Run& run, Tensor dz, Tensor dclean, Tensor dsigma, Tensor dweight, const RoutingPlan& plan, const RoutingSpec& spec,
                             const RoutingLosses& coef, const Saved& saved) {
  if (saved.logits.empty()) return;
  assert(saved.clean.empty() || !dclean.empty());
  assert(saved.sigma.empty() || !dsigma.empty());
  ArenaScope scope(run.scratch);
  const int64_t tokens = saved.logits.rows(), k = spec.slots();
  ops::zero(run, dz);
  if (!dclean.empty()) ops::zero(run, dclean);
  if (!dsigma.empty()) ops::zero(run, dsigma);

  // A pair that was not sent or found no room contributes nothing, so its weight gets no gradient from the experts.
  Tensor dw = run.scratch.alloc_zeroed(DType::f32, {tokens, k});
  if (!dweight.empty())
    parallel_for(run.threads, tokens, kGrainTokens, [&](int64_t begin, int64_t end, int) {
      for (int64_t n = begin; n < end; ++n) {
        auto row = static_cast<size_t>(plan.bounds[static_cast<size_t>(n)]);  // in choice order
        for (int64_t i = 0; i < k; ++i)
          if (saved.kept.row<int32_t>(n)[i] != 0) dw.row<float>(n)[i] = dweight.as<float>()[plan.row[row++]];
      }
    });
  if (renormalises_after_drop(spec.weigh)) weigh_kept_backward(run, dw, saved.weights, saved.kept);

  // dz holds the gradient of the scores until score_backward; what the load loss sends to the noisy logits waits beside it.
  Tensor dlogits = saved.sigma.empty() ? Tensor{} : run.scratch.alloc_zeroed(DType::f32, {tokens, spec.experts});
  aux_losses_backward_acc(run, dz, dw, dlogits, dclean, dsigma, loss_input(spec, saved), spec.losses, coef);
  if (!scale.grad.empty()) weigh_scale_backward(run, scale, dw, saved.scores, saved.choice, saved.selected);
  weigh_backward_acc(run, dz, dw, saved.weights, saved.scores, saved.choice, saved.selected, {weigh_bounds(spec, saved.input, tokens), scale.value},
                     spec.weigh);
  const bool of_clean = z_reads_clean(spec, saved);
  Tensor dlse;  // [N]
  if (coef.z != 0 && !of_clean) {
    dlse = run.scratch.alloc(DType::f32, {tokens});
    z_loss_of_backward(dlse, saved.lse, coef.z);
  }
  score_backward(run, dz, dz, dlse, saved.scores, saved.logits, saved.lse, spec.score);
  if (!dlogits.empty()) ops::add(run, dz, dz, dlogits);
  if (of_clean) z_loss_backward_acc(run, dclean, saved.lse, saved.clean, coef.z);
}

void Router::backward_acc(Run& run, Tensor dx, Tensor dweight, const RoutingPlan& plan, const RoutingSpec& spec, const RoutingLosses& coef,
                          const Saved& saved) {
  if (saved.logits.empty()) return;
  ArenaScope scope(run.scratch);
  const int64_t tokens = plan.tokens();
  const auto like = [&](Tensor t) { return t.empty() ? Tensor{} : run.scratch.alloc(DType::f32, {tokens, spec.experts}); };
  Tensor dz = like(saved.logits), dclean = like(saved.clean), dsigma = like(saved.sigma), draw = like(saved.raw);
  decide_backward(run, dz, dclean, dsigma, dweight, plan, spec, coef, saved);
  if (!draw.empty()) learned_noise_backward(run, draw, dz, dsigma, saved.raw, std::get<LearnedNoise>(spec.noise), saved.key);
  if (!dclean.empty()) ops::add(run, dz, dz, dclean);

  const std::array<int64_t, 2> all = {0, tokens};
  const auto* jitter_stage = std::get_if<InputJitter>(&spec.noise);
  const bool jittered = jitter_stage && !saved.key.empty();
  Tensor dx_seen = jittered ? run.scratch.alloc_zeroed(DType::f32, {tokens, dx.cols()}) : dx;
  logit.backward_acc(run, dx_seen, dz, saved.x, spec.logits, saved.made);
  if (!draw.empty()) {
    ops::matmul_dw(run, noise, draw, saved.x, all);
    ops::matmul_dx_acc(run, dx_seen, draw, noise, all);
  }
  if (jittered) {
    jitter(run, dx_seen, dx_seen, *jitter_stage, saved.key);
    ops::add(run, dx, dx, dx_seen);
  }
}

void Router::end_step(const RoutingSpec& spec, std::span<const int64_t> counts, std::span<const double> cutoff) {
  if (const SelectionBias* stage = selection_bias(spec.select); stage && bias.present()) {
    int64_t total = 0;
    for (int64_t c : counts) total += c;
    float* b = bias.value.as<float>();
    for (size_t e = 0; e < counts.size(); ++e) {
      const int64_t above = counts[e] * spec.experts - total;  // E (c_e - mean(c)), exact
      b[e] -= stage->rate * static_cast<float>((above > 0) - (above < 0));
    }
    bias.touched();
  }
  if (!cutoff.empty() && threshold.present()) {
    float* t = threshold.value.as<float>();
    const bool first = std::all_of(t, t + spec.experts, [](float v) { return v == 0; });
    for (size_t e = 0; e < cutoff.size(); ++e) t[e] = first ? static_cast<float>(cutoff[e]) : static_cast<float>(t[e] + kThresholdRate * (cutoff[e] - t[e]));
    threshold.touched();
  }
}

}  // namespace moe
