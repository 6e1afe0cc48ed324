// What has no meaning, refused with the reason and a valid alternative. One function a group of
// rules; docs/recipes.md lists them.
#include <cmath>
#include <string>

#include "core/error.h"
#include "core/words.h"
#include "moe/router.h"

namespace moe {
namespace {

using Renormalise = ChosenScores::Renormalise;
using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;
using Shares = BalanceLoss::Shares;

template <class Member, class Stage>
bool is(const Stage& stage) {
  return std::holds_alternative<Member>(stage);
}

std::string divisors(int64_t n, int64_t from = 1) {
  std::string list;
  for (int64_t d = from; d <= n; ++d)
    if (n % d == 0) list += fmt::format("{}{}", list.empty() ? "" : ", ", d);
  return list;
}

bool finite_above(float x, float least) { return x > least && std::isfinite(x); }

// Whether a token's weights add up to the same number (times the scale) whatever it chose.
bool adds_up(const RoutingSpec& spec) {
  if (is<ChosenSoftmax>(spec.weigh)) return true;
  if (const auto* sigmoids = std::get_if<ChosenSigmoids>(&spec.weigh)) return sigmoids->renormalise;
  const auto* scores = std::get_if<ChosenScores>(&spec.weigh);
  return scores && scores->renormalise == Renormalise::before_drop;
}

std::string_view name_of(const ScoreStage& score) {
  return std::visit([](const auto& member) { return member.kName; }, score);
}

// Whether a weight may be as large as it likes.
bool has_no_end(const RoutingSpec& spec) {
  return is<SqrtSoftplusScore>(spec.score) && is<ChosenScores>(spec.weigh) && !adds_up(spec);
}

void check_scope(const Scope& scope, std::string_view what) {
  if (scope.kind == Scope::Kind::group && scope.group < 1)
    fail_usage(
        "the {} looks at groups of {} tokens; give a group at least one token, or take the scope "
        "\"sequence\" or \"micro_batch\"",
        what, scope.group);
}

void check_k(const RoutingSpec& spec, int64_t k) {
  if (k < 1 || k > spec.experts)
    fail_usage("top-k is {} but a token can take 1 to {} experts; lower @top_k or raise @experts",
               k, spec.experts);
}

void check_noise(const RoutingSpec& spec) {
  if (const auto* jitter = std::get_if<InputJitter>(&spec.noise);
      jitter && !(jitter->eps >= 0 && jitter->eps < 1))
    fail_usage(
        "the jitter's eps is {}: from 1 on it would turn the input's sign; give 0 or more and less "
        "than 1 (Switch uses 0.01)",
        jitter->eps);
  if (const auto* learned = std::get_if<LearnedNoise>(&spec.noise);
      learned && !(learned->floor >= 0 && std::isfinite(learned->floor)))
    fail_usage(
        "the learned noise's floor is {}, but it is added to a standard deviation; give 0 or more "
        "(Shazeer uses 0.01)",
        learned->floor);
}

void check_near(float eps) {
  if (!(eps >= 0 && std::isfinite(eps)))
    fail_usage(
        "experts count as near the best within 2 times {} of it; give an eps of 0 (the best alone) "
        "or more (0.01 is usual)",
        eps);
}

void check_groups(const RoutingSpec& spec, const GroupedTopK& s) {
  const int64_t experts = spec.experts;
  if (s.groups < 1 || experts % s.groups != 0)
    fail_usage("{} groups do not divide {} experts evenly; give @expert_groups one of {}", s.groups,
               experts, divisors(experts));
  const int64_t size = experts / s.groups;
  if (s.keep < 1 || s.keep > s.groups)
    fail_usage("{} of {} expert groups cannot be kept; give @groups_kept a number from 1 to {}",
               s.keep, s.groups, s.groups);
  if (s.keep * size < s.k)
    fail_usage(
        "{} groups of {} experts hold fewer than the {} experts a token takes; raise @groups_kept, "
        "or lower @expert_groups or @top_k",
        s.keep, size, s.k);
  if (s.group_top < 1 || s.group_top > size)
    fail_usage(
        "a group's score is the sum of its {} largest, but a group has {}; give group_top a number "
        "from 1 to {}, or lower @expert_groups",
        s.group_top, counted(size, "expert"), size);
}

void check_select(const RoutingSpec& spec) {
  if (!experts_choose(spec.select)) check_k(spec, spec.slots());
  if (const auto* s = std::get_if<GroupedTopK>(&spec.select)) check_groups(spec, *s);
  if (const auto* s = std::get_if<TopK>(&spec.select); s && !s->sorted && s->bias)
    fail_usage(
        "a selection that is not sorted knows no selection bias; give \"sorted\" as true, or leave "
        "the bias out");
  if (const auto* s = std::get_if<ExpertChoice>(&spec.select)) {
    if (!finite_above(s->factor, 0) || s->factor > static_cast<float>(spec.experts))
      fail_usage(
          "expert choice with {} experts a token on average, of {}; give a factor above 0 and at "
          "most {} (2 is usual)",
          s->factor, spec.experts, spec.experts);
    check_scope(s->scope, "expert choice");
  }
  if (const auto* s = std::get_if<NearBestChoice>(&spec.select)) check_near(s->eps);
  if (const SelectionBias* bias = selection_bias(spec.select);
      bias && !(bias->rate >= 0 && std::isfinite(bias->rate)))
    fail_usage(
        "the selection bias moves by {} a step; give a rate of 0 (it stays) or more (0.001 is "
        "usual): a negative one would feed the overloaded",
        bias->rate);
}

// Hash routing has neither logits nor scores, so a stage that works on them has nothing to do.
void check_hash(const RoutingSpec& spec) {
  if (!is<NoNoise>(spec.noise))
    fail_usage(
        "hash routing has no logits, so noise has no effect; use \"none\", or a learned selection "
        "such as \"top_k\"");
  if (const auto* linear = std::get_if<LinearLogits>(&spec.logits);
      linear == nullptr || linear->bias)
    fail_usage(
        "hash routing has no logits, so how they are made is not read; leave the stage at its "
        "default (use \"linear\")");
  if (!is<SoftmaxScore>(spec.score))
    fail_usage(
        "hash routing computes no scores, so the score stage is not read; leave it at its default "
        "(use \"softmax\")");
  if (!is<UnitWeight>(spec.weigh))
    fail_usage(
        "hash routing has no scores to weigh the experts by; use the weighing \"one\", or the "
        "selection \"top_k\"");
  if (!is<KeepSecond>(spec.second))
    fail_usage(
        "hash routing weighs every expert 1, so a second choice has no weight to be judged by; use "
        "\"all\"");
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  if (buffer && (buffer->order == BufferCapacity::Order::by_weight ||
                 buffer->order == BufferCapacity::Order::batch_priority))
    fail_usage(
        "hash routing weighs every expert 1, so no pair goes before another by weight; use the "
        "order \"token_major\", \"choice_major\" or \"random\"");
  const AuxLosses& l = spec.losses;
  if (l.balance || l.device || l.communication || l.importance || l.load || l.z_of_clean)
    fail_usage(
        "hash routing has no router that a loss could teach; leave the losses out, or use the "
        "selection \"top_k\"");
}

void check_weigh(const RoutingSpec& spec) {
  if (is<UnitWeight>(spec.weigh) && !is_fixed(spec.logits))
    fail_usage(
        "weights that are always 1 give a learned router no gradient; use \"scores\" or "
        "\"softmax\", or the selection \"hash\"");
  if (const auto* w = std::get_if<ChosenScores>(&spec.weigh)) {
    if (!finite_above(w->scale, 0))
      fail_usage(
          "the combine weights are scaled by {}; give a finite scale above 0 (1 leaves them as "
          "they are)",
          w->scale);
    if (w->renormalise == Renormalise::after_drop && w->scale != 1)
      fail_usage(
          "weights divided by their sum after the drop add up to 1, which takes the scale of {} "
          "away again; use before_drop, or a scale of 1",
          w->scale);
  }
  if (is<RawScore>(spec.score) && (is<ChosenScores>(spec.weigh) || is<ScaledScores>(spec.weigh)))
    fail_usage(
        "raw logits as combine weights can be negative and have no scale; use the weighing "
        "\"softmax\" or \"sigmoids\", or the score \"softmax\" or \"sigmoid\"");
  const bool squashed = !is<RawScore>(spec.score);
  if (is<ChosenSoftmax>(spec.weigh) && squashed)
    fail_usage(
        "a softmax of scores that are squashed already is nearly flat; use the score "
        "\"raw\", or the weighing \"scores\" with renormalise");
  if (is<ChosenSigmoids>(spec.weigh) && squashed)
    fail_usage(
        "sigmoids of scores that are squashed already hardly differ; use the score "
        "\"raw\", or the weighing \"scores\"");
  if (is<TokenSoftmax>(spec.weigh)) {
    if (squashed)
      fail_usage(
          "a softmax over tokens of scores that are squashed already is nearly flat; use "
          "the score \"raw\"");
    const auto* choice = std::get_if<ExpertChoice>(&spec.select);
    if (is<ThresholdChoice>(spec.select))
      fail_usage(
          "a softmax over an expert's tokens reads later tokens, which thresholds are there to "
          "avoid; use the weighing \"scores\" (recipe expert-choice)");
    if (!choice)
      fail_usage(
          "a softmax over the tokens of an expert needs experts that choose; use the selection "
          "\"expert_choice\", or the weighing \"softmax\"");
    if (choice->scope.kind == Scope::Kind::group && spec.experts > 1 &&
        tokens_per_expert(*choice, choice->scope.group, spec.experts) < 2)
      fail_usage(
          "an expert takes one token of each group of {}, so a softmax over its tokens is always "
          "1; give larger groups or raise the factor",
          choice->scope.group);
  }
  if (const auto* near = std::get_if<NearSoftmax>(&spec.weigh)) {
    check_near(near->eps);
    if (near->eps == 0)
      fail_usage(
          "near the best within 0 there is the best alone, whose weight is always 1; give an eps "
          "above 0 (0.01 is usual), or use the weighing \"softmax\"");
    if (squashed)
      fail_usage(
          "a softmax of scores that are squashed already is nearly flat; use the score "
          "\"raw\"");
    if (!is<NearBestChoice>(spec.select))
      fail_usage(
          "weights among the experts near the best need choices that are made so; use the "
          "selection \"near_best\", or the weighing \"softmax\"");
  }
  if (!experts_choose(spec.select) && spec.slots() == 1 && spec.experts > 1 &&
      constant_when_alone(spec.weigh) && !is_fixed(spec.logits))
    fail_usage(
        "top-k 1 with renormalised weights: the one weight is always 1, so the router would get no "
        "gradient from the language-model loss; use a recipe "
        "that keeps the raw probability (switch, olmoe) or top-k 2");
}

void check_second(const RoutingSpec& spec) {
  if (is<KeepSecond>(spec.second)) return;
  if (experts_choose(spec.select))
    fail_usage("where experts choose there is no second choice to send away; use \"all\"");
  if (const int64_t k = spec.slots(); k != 2)
    fail_usage("a policy for the second choice needs top-k 2, not {}; take 2, or use \"all\"", k);
  if (const auto* random = std::get_if<RandomSecond>(&spec.second);
      random && !(random->full > 0 && random->full <= 1))
    fail_usage(
        "the random second choice is always kept from a weight of {} on; give \"full\" a number "
        "above 0 and at most 1 (GShard uses 0.5)",
        random->full);
  if (has_expert_scale(spec.weigh))
    fail_usage(
        "weights with a learned factor do not say what a second choice counts; use \"all\", or the "
        "weighing \"scores\"");
  const auto* threshold = std::get_if<ThresholdSecond>(&spec.second);
  if (!threshold) return;
  const auto* w = std::get_if<ChosenScores>(&spec.weigh);
  // The second of two numbers that add up to at most 1 is at most 1/2. A selection bias or a draw
  // may choose the larger one second.
  const bool half = !threshold->relative && !selection_bias(spec.select) &&
                    !is<NearBestChoice>(spec.select) &&
                    (adds_up(spec) || is<SoftmaxScore>(spec.score));
  const float share = half ? 0.5f : has_no_end(spec) && !threshold->relative ? INFINITY : 1.f;
  const float most = share * (w && !threshold->relative ? w->scale : 1.f);
  if (!(threshold->least >= 0 && threshold->least <= most && std::isfinite(threshold->least)))
    fail_usage(
        "no second choice reaches a threshold of {}; give \"least\" a number from 0 to {} (Mesh "
        "TensorFlow uses 0.2)",
        threshold->least, most);
}

void check_capacity(const RoutingSpec& spec) {
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  if (!buffer) return;
  if (experts_choose(spec.select))
    fail_usage(
        "where experts choose, each takes its share and nothing overflows; use \"dropless\" and "
        "set expert choice's factor");
  if (!finite_above(buffer->factor, 0))
    fail_usage(
        "the capacity factor is {}; give a finite one above 0 (1.25 is usual), or use \"dropless\"",
        buffer->factor);
  if (buffer->minimum < 0)
    fail_usage("an expert's buffer holds at least {} tokens; give a minimum of 0 or more",
               buffer->minimum);
  check_scope(buffer->scope, "capacity");
  if (buffer->skipped_take_room && is<KeepSecond>(spec.second))
    fail_usage(
        "no second choice is ever skipped, so none can take room; give skipped_take_room as false, "
        "or use the second policy \"random\" or \"threshold\"");
}

void check_balance(const RoutingSpec& spec, const BalanceLoss& b) {
  check_scope(b.scope, "balance loss");
  if (b.shares != Shares::own && b.scope.kind != Scope::Kind::micro_batch)
    fail_usage(
        "counts of the whole optimizer step cannot be compared with probabilities of one sequence "
        "or group; use the scope \"micro_batch\", or shares \"own\"");
  if (b.counts == Counts::unbiased_choices && !selection_bias(spec.select))
    fail_usage(
        "choices without the selection bias are counted, but there is no bias; use "
        "\"all_choices\", or give the selection a bias");
  if (b.probs == Probs::scores && !is<SoftmaxScore>(spec.score))
    fail_usage(
        "the balance loss needs probabilities, and {} scores do not add up to 1; use probs {}, or "
        "the score \"softmax\"",
        name_of(spec.score),
        is<RawScore>(spec.score) ? "\"softmax\" or \"chosen_weights\"" : "\"normalised_scores\"");
  if (b.probs == Probs::softmax && !is<RawScore>(spec.score))
    fail_usage(
        "a softmax of scores that are squashed already is nearly flat; use probs "
        "\"scores\" or \"normalised_scores\", or the score \"raw\"");
  if (b.probs == Probs::normalised_scores && is<RawScore>(spec.score))
    fail_usage(
        "raw logits divided by their sum are not probabilities; use probs \"softmax\" or "
        "\"chosen_weights\", or the score \"softmax\" or \"sigmoid\"");
  if (b.probs != Probs::chosen_weights) return;
  const auto* w = std::get_if<ChosenScores>(&spec.weigh);
  if (!adds_up(spec) || (w && w->scale != 1))
    fail_usage(
        "chosen weights serve the balance loss as probabilities, but these do not add up to 1; use "
        "probs \"scores\" or \"normalised_scores\", or renormalise "
        "before_drop with a scale of 1");
}

void check_device(const RoutingSpec& spec, const DeviceLoss& d, bool communication) {
  const std::string_view name = communication ? "communication loss" : "device loss";
  check_scope(d.scope, name);
  if (is<RawScore>(spec.score))
    fail_usage(
        "the {} sums up probabilities, which raw logits are not; use the score \"softmax\" or "
        "\"sigmoid\"",
        name);
  if (spec.experts == 1)
    fail_usage("one expert cannot be spread over devices; leave the {} out, or raise @experts",
               name);
  if (d.devices < 2 || spec.experts % d.devices != 0)
    fail_usage(
        "the {} needs experts on two or more equal devices, and {} do not divide {} experts so; "
        "give one of {}",
        name, d.devices, spec.experts, divisors(spec.experts, 2));
  const int64_t most = std::min(d.devices, spec.slots());
  if (communication && (d.at_most < 1 || d.at_most > most))
    fail_usage(
        "a token cannot go to {} of {} devices with {} experts; give at_most a number from 1 to {}",
        d.at_most, d.devices, spec.slots(), most);
}

void check_losses(const RoutingSpec& spec) {
  const AuxLosses& l = spec.losses;
  if (is_fixed(spec.logits) && (l.balance || l.device || l.communication || l.importance || l.load))
    fail_usage(
        "logits of a fixed sketch do not learn, so no loss can teach them; leave the losses out, "
        "or give \"fixed\" as false");
  if (experts_choose(spec.select) &&
      (l.balance || l.device || l.communication || l.importance || l.load))
    fail_usage(
        "where experts choose, their load is even by construction and a loss has nothing to even "
        "out; leave the losses out, or use the selection \"top_k\"");
  if (l.balance) check_balance(spec, *l.balance);
  if (l.device) check_device(spec, *l.device, false);
  if (l.communication) check_device(spec, *l.communication, true);
  if (l.load) {
    if (!is<LearnedNoise>(spec.noise))
      fail_usage(
          "the load loss asks how likely other noise would choose the expert, so it needs noise of "
          "a learned scale; use the noise \"learned\", or the "
          "loss \"importance\"");
    if (!is<TopK>(spec.select) || selection_bias(spec.select))
      fail_usage(
          "the load loss takes the largest noisy logits to be the chosen ones, which groups or a "
          "bias break; use a plain \"top_k\"");
  }
  if (l.z_of_clean && !is<LearnedNoise>(spec.noise))
    fail_usage(
        "without noise on the logits the clean ones are the only ones; give z_of_clean as false, "
        "or use the noise \"learned\"");
}

// Experts that give a token back as it is.
void check_zero_experts(const RoutingSpec& spec) {
  if (spec.zero_experts == 0) return;
  if (spec.zero_experts < 0)
    fail_usage("@zero_experts is {}; it must be at least 0", spec.zero_experts);
  if (experts_choose(spec.select))
    fail_usage(
        "where experts choose, one that computes nothing would take tokens for nothing; leave "
        "@zero_experts out, or take a recipe whose tokens choose");
  if (const auto* grouped = std::get_if<GroupedTopK>(&spec.select); grouped && grouped->groups > 1)
    fail_usage(
        "groups stand for devices, on which zero experts do not lie; leave @zero_experts out, or "
        "give @expert_groups 1");
  if (spec.losses.device || spec.losses.communication)
    fail_usage(
        "the device and communication losses look at groups of experts, in which zero experts have "
        "no part; leave @zero_experts or these losses out");
}

}  // namespace

void validate(const RoutingSpec& spec) {
  if (spec.with_weights() < 1)
    fail_usage("a router needs at least one expert, {} were asked for; raise @experts",
               spec.with_weights());
  check_zero_experts(spec);
  check_noise(spec);
  check_select(spec);
  if (needs_logits(spec.select)) {
    check_weigh(spec);
    check_second(spec);
    check_losses(spec);
  } else {
    check_hash(spec);
  }
  check_capacity(spec);
}

}  // namespace moe
