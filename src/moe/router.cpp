#include "moe/router.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>

#include "core/error.h"
#include "core/threads.h"
#include "moe/stages/replay.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

// How fast a threshold follows the cutoffs of expert choice: an optimizer step's share in the
// running mean.
constexpr double kThresholdRate = 0.05;

bool z_reads_clean(const RoutingSpec& spec, const Router::Saved& saved) {
  return spec.losses.z_of_clean && !saved.clean.empty();
}

// Scores, and what the z-loss is made of where it or its gradient is wanted.
void score(Run& run, const RoutingSpec& spec, const Pass& pass, Routing& r) {
  if (r.logits.empty()) return;
  const bool of_clean = z_reads_clean(spec, r);
  if (pass.wanted.losses || pass.goes_back())
    r.lse = run.saved.alloc(DType::f32, {r.logits.rows()});
  r.scores = run.saved.alloc(DType::f32, {r.logits.rows(), r.experts});
  score_forward(run, r.scores, of_clean ? Tensor{} : r.lse, r.logits, spec.score);
  if (of_clean && !r.lse.empty()) ops::softmax_forward(run, {}, r.lse, r.clean);
}

// The losses look at all chosen pairs, sent or not.
void measure(Run& run, const RoutingSpec& spec, const Pass& pass, Routing& r) {
  if (spec.losses.balance && pass.wanted.balance_counts) {
    Tensor counts = run.saved.alloc(DType::i32, {r.experts});
    count_for_balance(run, counts, r, *spec.losses.balance);
    r.balance_counts = counts;
  }
  if (!pass.wanted.losses) return;
  r.losses = run.saved.alloc_zeroed(DType::f32, {kRoutingLosses});
  aux_losses_forward(run, r.losses, r, pass, spec.losses);
  if (!r.lse.empty()) z_loss_forward(run, loss_at(r.losses, &RoutingLosses::z), r.lse);
}

// Which of the chosen pairs are sent and find room, where no record says so.
void send(Run& run, const RoutingSpec& spec, const Pass& pass, Routing& r) {
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  ArenaScope scope(run.scratch);
  Tensor sent = r.selected;  // [N,K]
  if (!std::holds_alternative<KeepSecond>(spec.second)) {
    sent = (buffer ? run.scratch : run.saved).copy(r.selected);
    second_forward(run, sent, r.weights, spec.second, r.key);
  }
  if (pass.wanted.counts)
    ops::count_pairs(run, r.counts = run.saved.alloc(DType::i32, {r.experts}), r.choice, sent,
                     r.slots());
  if (!pass.totals.empty())
    ops::count_pairs_acc(run, pass.totals_of(r.index), r.choice, sent, r.slots());
  r.kept = sent;
  if (!buffer) return;
  r.kept = run.saved.alloc(DType::i32, {r.tokens(), r.slots()});
  r.dropped = capacity_forward(run, r.kept, r.choice, sent, r.weights, pass.batch.bounds, r.experts,
                               *buffer, r.key, spec.with_weights());
}

// Absent where every pair is a row, whatever the routing is: then nobody has to count them first.
Tensor kept_of(const RoutingSpec& spec, const Routing& r) {
  const bool all =
      r.kept.data == r.selected.data && r.agreed.empty() && !experts_choose(spec.select);
  return all ? Tensor{} : r.kept;
}

// Zero experts have no rows, so the plan does not know of them.
RoutingPlan place(Run& run, const RoutingSpec& spec, Routing& r) {
  ArenaScope scope(run.scratch);
  Tensor weights = r.weights;
  if (renormalises_after_drop(spec.weigh)) {
    weights = (spec.zero_experts > 0 ? run.saved : run.scratch).copy(r.weights);
    ops::weigh_kept_forward(run, weights, r.kept);
  }
  if (spec.zero_experts == 0)
    return ops::make_plan(run, r.choice, kept_of(spec, r), weights, r.experts);
  r.kept_weights = weights;
  r.zero = run.saved.alloc(DType::f32, {r.tokens()});
  r.rows = run.saved.alloc(DType::i32, {r.tokens(), r.slots()});
  ops::weigh_zero_experts_forward(run, r.zero, r.rows, r.choice, r.kept, weights,
                                  spec.with_weights());
  return ops::make_plan(run, r.choice, r.rows, weights, spec.with_weights());
}

}  // namespace

bool has_loss(const RoutingSpec& spec, std::string_view name) {
  const AuxLosses& l = spec.losses;
  if (name == "balance") return l.balance.has_value();
  if (name == "device") return l.device.has_value();
  if (name == "communication") return l.communication.has_value();
  if (name == "importance") return l.importance;
  if (name == "load") return l.load;
  return needs_logits(spec.select);
}

bool takes_a_set(const RoutingSpec& spec) {
  const auto* top = std::get_if<TopK>(&spec.select);
  return top != nullptr && !top->sorted && spec.zero_experts == 0 &&
         std::holds_alternative<UnitWeight>(spec.weigh) &&
         std::holds_alternative<KeepSecond>(spec.second) &&
         std::holds_alternative<Dropless>(spec.capacity);
}

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
  if (spec.losses.load || spec.losses.z_of_clean) saved.clean = run.saved.copy(saved.logits);
  saved.raw = run.saved.alloc(DType::f32, {tokens, spec.experts});
  ops::matmul_forward_f32(run, saved.raw, saved.x, noise, all);
  learned_noise_forward_acc(run, saved.logits, saved.raw, *learned, saved.key);
  if (!spec.losses.load) return;
  saved.sigma = run.saved.alloc(DType::f32, {tokens, spec.experts});
  learned_noise_scale(run, saved.sigma, saved.raw, *learned);
}

RoutingPlan Router::forward(Run& run, Tensor x, const Pass& pass, RngKey key, Saved& saved) {
  choose(run, x, pass, key, saved);
  return place(run, *pass.routing, saved);
}

void Router::choose(Run& run, Tensor x, const Pass& pass, RngKey key, Saved& saved) {
  const RoutingSpec& spec = *pass.routing;
  saved = Saved{};
  saved.key = key;
  if (needs_logits(spec.select)) make_logits(run, x, spec, saved);
  else if (pass.batch.tokens() != x.rows())
    fail("hash routing of {} tokens was given {} token ids; pass one id for each token", x.rows(),
         pass.batch.tokens());
  decide_choice(run, pass, saved);
}

RoutingPlan Router::decide(Run& run, const Pass& pass, Saved& saved) const {
  decide_choice(run, pass, saved);
  return place(run, *pass.routing, saved);
}

void Router::decide_choice(Run& run, const Pass& pass, Saved& saved) const {
  const RoutingSpec& spec = *pass.routing;
  saved.experts = spec.experts;
  saved.index = index;
  saved.scale = scale.value;
  if (selection_bias(spec.select)) saved.bias = bias.value;
  if (std::holds_alternative<ThresholdChoice>(spec.select)) {
    if (!threshold.present())
      fail(
          "routing by thresholds needs the {} thresholds of a model trained with expert choice; "
          "this one has none",
          spec.experts);
    saved.threshold = threshold.value;
  }
  const bool replayed = pass.recorded != nullptr;
  score(run, spec, pass, saved);
  if (table.present()) look_up(run, pass, saved);
  else select_forward(run, saved, pass, spec.select);
  if (replayed) replay(run, pass, saved);
  weigh_forward(run, saved, spec.weigh);
  measure(run, spec, pass, saved);
  if (!replayed) send(run, spec, pass, saved);
}

void Router::look_up(Run& run, const Pass& pass, Saved& saved) const {
  const std::span<const int32_t> ids = pass.batch.ids;
  const int64_t tokens = saved.scores.rows(), slots = pass.routing->slots();
  if (std::ssize(ids) != tokens || table.value.cols() != slots)
    fail("layer {} has a table of {} experts for each id, and was asked for {} of {} tokens", layer,
         table.value.cols(), slots, tokens);
  saved.choice = run.saved.alloc(DType::i32, {tokens, slots});
  saved.selected = run.saved.alloc(DType::i32, {tokens, slots});
  ops::select_all(run, saved.selected);
  OnHost host(run);
  const Tensor rows = host.read(table.value), choice = host.write(saved.choice);
  for (int64_t n = 0; n < tokens; ++n) {
    const int32_t id = ids[static_cast<size_t>(n)];
    if (id < 0 || id >= rows.rows())
      fail("token id {} is outside the table of layer {}, which has {} rows", id, layer,
           rows.rows());
    for (int64_t i = 0; i < slots; ++i) {
      const float expert = rows.row<float>(id)[i];
      if (!(expert >= 0 && expert < static_cast<float>(saved.experts)))
        fail("the table of layer {} says expert {} for token id {}, and there are {}", layer,
             expert, id, saved.experts);
      choice.row<int32_t>(n)[i] = static_cast<int32_t>(expert);
    }
  }
}

// Recorded choices take the place of the router's own, which are made all the same: a score that is
// not a number still stops the run, experts' cutoffs stay what they were, and how far the two agree
// is known. Pairs are sent as they were recorded, whatever second-choice policy and capacity would
// say.
void Router::replay(Run& run, const Pass& pass, Saved& saved) const {
  const Tensor recorded = pass.recorded_of(index);
  check_recorded(recorded, saved.tokens(), saved.slots(), saved.experts,
                 fmt::format("the recorded routing of layer {}", layer), run.threads);
  saved.kept = run.saved.alloc(DType::i32, {saved.tokens(), saved.slots()});
  saved.agreed = run.saved.alloc(DType::i32, {saved.tokens()});
  saved.own = replay_choices(run, saved.choice, saved.selected, saved.kept, saved.agreed, recorded,
                             saved.experts);
  if (pass.wanted.counts)
    ops::count_pairs(run, saved.counts = run.saved.alloc(DType::i32, {saved.experts}), saved.choice,
                     saved.selected, saved.slots());
  if (!pass.totals.empty())
    ops::count_pairs_acc(run, pass.totals_of(index), saved.choice, saved.selected, saved.slots());
  OnHost host(run);
  const auto ones = [&](Tensor flags) {
    flags = host.read(flags);
    return std::accumulate(flags.as<int32_t>(), flags.as<int32_t>() + flags.numel(), int64_t{0});
  };
  saved.dropped = ones(saved.selected) - ones(saved.kept);
}

void Router::decide_backward(Run& run, Tensor dz, Tensor dclean, Tensor dsigma, Tensor dweight,
                             Tensor dzero, const RoutingPlan& plan, const Pass& pass,
                             const RoutingLosses& coef, const Saved& saved) {
  if (saved.logits.empty()) return;
  const RoutingSpec& spec = *pass.routing;
  assert(saved.clean.empty() || !dclean.empty());
  assert(saved.sigma.empty() || !dsigma.empty());
  ArenaScope scope(run.scratch);
  const int64_t tokens = saved.logits.rows(), k = spec.slots();
  ops::zero(run, dz);
  if (!dclean.empty()) ops::zero(run, dclean);
  if (!dsigma.empty()) ops::zero(run, dsigma);

  // A pair that was not sent or found no room contributes nothing, so its weight gets no gradient
  // from the experts.
  Tensor dw = run.scratch.alloc(DType::f32, {tokens, k});
  if (dweight.empty()) ops::zero(run, dw);
  else ops::spread_rows(run, dw, dweight, plan);
  if (!dzero.empty())
    ops::weigh_zero_experts_backward_acc(run, dw, dzero, saved.choice, saved.kept,
                                         spec.with_weights());
  if (renormalises_after_drop(spec.weigh))
    ops::weigh_kept_backward(run, dw, saved.weights, saved.kept);

  // dz holds the gradient of the scores until score_backward; what the load loss sends to the noisy
  // logits waits beside it.
  Tensor dlogits =
      saved.sigma.empty() ? Tensor{} : run.scratch.alloc_zeroed(DType::f32, {tokens, spec.experts});
  aux_losses_backward_acc(run, dz, dw, dlogits, dclean, dsigma, saved, pass, spec.losses, coef);
  if (!scale.grad.empty()) weigh_scale_backward(run, scale, dw, saved, spec.weigh);
  weigh_backward_acc(run, dz, dw, saved, spec.weigh);
  const bool of_clean = z_reads_clean(spec, saved);
  Tensor dlse;  // [N]
  if (coef.z != 0 && !of_clean) {
    dlse = run.scratch.alloc(DType::f32, {tokens});
    z_loss_backward(run, dlse, saved.lse, coef.z);
  }
  score_backward(run, dz, dz, dlse, saved.scores, saved.logits, saved.lse, spec.score);
  if (!dlogits.empty()) ops::add(run, dz, dz, dlogits);
  if (of_clean) z_loss_backward_acc(run, dclean, saved.lse, saved.clean, coef.z);
}

void Router::backward_acc(Run& run, Tensor dx, Tensor dweight, Tensor dzero,
                          const RoutingPlan& plan, const Pass& pass, const RoutingLosses& coef,
                          const Saved& saved) {
  if (saved.logits.empty()) return;
  const RoutingSpec& spec = *pass.routing;
  ArenaScope scope(run.scratch);
  const int64_t tokens = plan.tokens();
  const auto like = [&](Tensor t) {
    return t.empty() ? Tensor{} : run.scratch.alloc(DType::f32, {tokens, spec.experts});
  };
  Tensor dz = like(saved.logits), dclean = like(saved.clean), dsigma = like(saved.sigma),
         draw = like(saved.raw);
  decide_backward(run, dz, dclean, dsigma, dweight, dzero, plan, pass, coef, saved);
  if (!draw.empty())
    learned_noise_backward(run, draw, dz, dsigma, saved.raw, std::get<LearnedNoise>(spec.noise),
                           saved.key);
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

void Router::end_step(const Run& run, const RoutingSpec& spec, std::span<const int64_t> counts,
                      std::span<const double> cutoff) {
  OnHost host(run);
  if (const SelectionBias* stage = selection_bias(spec.select); stage && bias.present()) {
    int64_t total = 0;
    for (int64_t c : counts) total += c;
    float* b = host.write(bias.value).as<float>();
    // That of all experts together follows from those with weights, so zero experts' bias stays.
    for (size_t e = 0; e < static_cast<size_t>(spec.with_weights()); ++e) {
      const int64_t above = counts[e] * spec.experts - total;  // E (c_e - mean(c)), exact
      b[e] -= stage->rate * static_cast<float>((above > 0) - (above < 0));
    }
    bias.touched();
  }
  if (!cutoff.empty() && threshold.present()) {
    float* t = host.write(threshold.value).as<float>();
    const bool first = std::all_of(t, t + spec.experts, [](float v) { return v == 0; });
    for (size_t e = 0; e < cutoff.size(); ++e)
      t[e] = first ? static_cast<float>(cutoff[e])
                   : static_cast<float>(t[e] + kThresholdRate * (cutoff[e] - t[e]));
    threshold.touched();
  }
}

}  // namespace moe
