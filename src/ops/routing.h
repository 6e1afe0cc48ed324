// The mathematics of routing, on tensors alone: which experts a token takes or which tokens an
// expert, what they weigh, the plan of rows and its counts. What a backend gives beside ops.h for a
// router to run on it. Nothing here knows a stage or a recipe: which of these they are made of is
// moe/'s affair.
//
// N tokens, E experts, K slots a token; s scores [N,E] f32; choice [N,K] i32, a token's experts in
// choice order; selected [N,K] i32, 1 where the pair is meant; w combine weights [N,K] f32. The
// rule of ties: the higher score first, then the lower index. A sum over a token's slots runs in
// choice order, a sum over tokens in token order: threads change no bit. A choice is a constant for
// the gradient.
#pragma once

#include <cstdint>
#include <span>

#include "core/rng.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::ops {

// Beside a sum of scores that something is divided by, which may be 0.
constexpr float kRenormFloor = 1e-20f;

// ---- score (ops/cpu/routing/score.cpp) ----------------------------------------------------------
// s = sqrt(log(1 + e^z)); dz = ds sigmoid(z) / (2 s), 0 where s has come to 0. dz may be ds.
void sqrt_softplus_forward(Run&, Tensor s, Tensor z);
void sqrt_softplus_backward(Run&, Tensor dz, Tensor ds, Tensor s, Tensor z);

// ---- select (ops/cpu/routing/select.cpp) --------------------------------------------------------
// Only the `keep` best of `groups` equal groups of neighbouring experts count; a group's score is
// the sum of its `best` largest.
struct ExpertGroups {
  int64_t groups = 1, keep = 1, best = 1;
};
// choice[n] = the K experts of token n with the largest s + bias, in falling order. Throws, naming
// the token, where a score is not a number. bias [E] f32 or absent; `groups` null: all experts
// compete
void top_experts(Run&, Tensor choice, Tensor s, Tensor bias, const ExpertGroups* groups = nullptr);
// choice[n] = the K experts of token n with the largest s by rising index: a set, for a K too large
// to rank (ops/cpu/routing/top_set.cpp). Throws as top_experts does
void top_set(Run&, Tensor choice, Tensor s);
// Every expert takes the take[i] tokens of scope i, [scopes[i], scopes[i+1]), that score highest
// for it: selected 1 or 0 for every pair of choice, in which each expert stands once (K = E);
// cutoff[e] = mean over scopes that have tokens of the lowest score that e took.  cutoff [E] f32
void top_tokens(Run&, Tensor selected, Tensor cutoff, Tensor choice, Tensor s,
                std::span<const int64_t> scopes, std::span<const int64_t> take);
// selected = s[n, choice] >= threshold[choice].  threshold [E] f32
void reach_threshold(Run&, Tensor selected, Tensor choice, Tensor s, Tensor threshold);
// choice[n,i] = (ids[n] + i) mod E.  ids [N] >= 0
void count_on_from_ids(Run&, Tensor choice, std::span<const int32_t> ids, int64_t experts);
// choice[n] = the first K steps of Fisher and Yates' shuffle of the experts under
// seed.fold(ids[n]): for i = 0..K-1 p[i] changes places with p[i + uniform_index(key, i, E - i)], p
// = 0..E-1 at first.  ids [N] >= 0
void shuffle_by_ids(Run&, Tensor choice, std::span<const int32_t> ids, int64_t experts,
                    RngKey seed);
void select_all(Run&, Tensor selected);

// ---- near the best (ops/cpu/routing/near_best.cpp) ----------------------------------------------
// SparseMixer's: a choice is made among those near the best of the experts that the selected
// choices before it left. m being their largest score, e is near unless (m - s_e) / max(|s_e|, m) >
// 2 eps; p is the softmax of the scores of those near, 0 of all others (transformers:phimoe/
// modeling_phimoe.py, sparsemixer).
// choice[n,i] drawn from p.  s without what is no number (top_experts looks)
void draw_near_best(Run&, Tensor choice, Tensor s, float eps, RngKey key);
// w = p[choice]; under a key, where the choice is not the best one, a third of it with a chance of
// three in four. The gradient is that of p[choice] whatever was drawn (GRIN, arXiv 2409.12136,
// section 2.2): ds_e += dw p[choice] ([e = choice] - p_e).
void weigh_near_best_forward(Run&, Tensor w, Tensor s, Tensor choice, Tensor selected, float eps,
                             RngKey key);
void weigh_near_best_backward_acc(Run&, Tensor ds, Tensor dw, Tensor s, Tensor choice,
                                  Tensor selected, float eps);

// ---- weigh (ops/cpu/routing/weigh.cpp) ----------------------------------------------------------
// Slots that are not selected weigh 0. Backward adds to ds [N,E]; dw [N,K], w as forward made it.
// w = scale s[choice], divided by the token's sum over the selected (+ 1e-20) where `renormalise`.
// Renormalised: ds_j = (scale dw_j - <dw, w>) / sum; else scale dw_j.
void weigh_scores_forward(Run&, Tensor w, Tensor s, Tensor choice, Tensor selected,
                          bool renormalise, float scale);
void weigh_scores_backward_acc(Run&, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice,
                               Tensor selected, bool renormalise, float scale);
// w = softmax over the token's selected scores; ds_j = w_j (dw_j - <dw, w>).
void weigh_softmax_forward(Run&, Tensor w, Tensor s, Tensor choice, Tensor selected);
void weigh_softmax_backward_acc(Run&, Tensor ds, Tensor dw, Tensor w, Tensor choice,
                                Tensor selected);
// w = softmax over the tokens of a scope that an expert selected; ds_n = w_n (dw_n - sum over the
// expert's tokens of dw w). scopes empty: one of all tokens.
void weigh_over_tokens_forward(Run&, Tensor w, Tensor s, Tensor choice, Tensor selected,
                               std::span<const int64_t> scopes);
void weigh_over_tokens_backward_acc(Run&, Tensor ds, Tensor dw, Tensor w, Tensor choice,
                                    Tensor selected, std::span<const int64_t> scopes);
// w = 1
void weigh_one_forward(Run&, Tensor w, Tensor selected);
// w = 1 + scale[choice] s[choice]; scale.grad[choice] += dw s.  scale [E] f32
void weigh_one_plus_forward(Run&, Tensor w, Tensor s, Tensor scale, Tensor choice, Tensor selected);
void weigh_one_plus_backward_acc(Run&, Tensor ds, Tensor dw, Tensor scale, Tensor choice,
                                 Tensor selected);
void weigh_one_plus_scale_backward(Run&, Param& scale, Tensor dw, Tensor s, Tensor choice,
                                   Tensor selected);
// y = w scale[choice]; y may be w.  y, w [N,K]; scale [E] f32
void scale_by_expert_forward(Run&, Tensor y, Tensor w, Tensor scale, Tensor choice);
// scale.grad[choice] += dy w, of the selected, tokens in order
void scale_by_expert_backward(Run&, Param& scale, Tensor dy, Tensor w, Tensor choice,
                              Tensor selected);
// In place: w divided by the token's sum over the kept (+ 1e-20), 0 where a pair was not kept. kept
// [N,K] i32
void weigh_kept_forward(Run&, Tensor w, Tensor kept);
// In place: dw becomes the gradient of the weights before weigh_kept_forward; a pair that was not
// kept gets 0.  w before it
void weigh_kept_backward(Run&, Tensor dw, Tensor w, Tensor kept);

// ---- zero experts (ops/cpu/routing/zero_experts.cpp) --------------------------------------------
// Experts from `first` on give a token back as it is. What a token's kept pairs with them weigh is
// one number, and they are no rows.
// zero[n] = sum of w[n,i] over kept pairs with choice[n,i] >= first; rows[n,i] = kept[n,i] where
// choice[n,i] < first, else 0.  zero [N] f32; rows, kept [N,K] i32
void weigh_zero_experts_forward(Run&, Tensor zero, Tensor rows, Tensor choice, Tensor kept,
                                Tensor w, int64_t first);
// dw[n,i] += dzero[n] for those pairs.  dw [N,K]; dzero [N] f32
void weigh_zero_experts_backward_acc(Run&, Tensor dw, Tensor dzero, Tensor choice, Tensor kept,
                                     int64_t first);

// ---- losses of the load (ops/cpu/routing/slopes.cpp) --------------------------------------------
// What a loss multiplies a slope by, p[n,e]: the scores; scores over their token's sum (+ 1e-20);
// their softmax; or the weights of the chosen pairs, 0 of the others.
enum class ShareOf { scores, normalised_scores, softmax, chosen_weights };
struct TokenShares {
  ShareOf of;
  Tensor s, w, choice, selected;
};
// slopes[i,e] = whole c[i,e] / sum_e c[i,e], 0 where there is nothing, with c = counts + other.
// counts [scopes,E] i32 or absent; other [E] or empty; slopes [scopes,E], where the run computes
void slopes_of_counts(Run&, std::span<double> slopes, Tensor counts, std::span<const int64_t> other,
                      double whole);
// sum = sum over tokens n and experts e of slopes[scope of n, e] p[n,e], a token at a time in
// double and over tokens in order. Tokens [bounds[i], bounds[i+1]) are scope i.  sum [1] f32;
// slopes [scopes,E]
void slopes_forward(Run&, Tensor sum, const TokenShares& p, std::span<const int64_t> bounds,
                    std::span<const double> slopes);
// ds, or dw of the weights, += coef times the gradient of that; slopes are constants.
void slopes_backward_acc(Run&, Tensor ds, Tensor dw, const TokenShares& p,
                         std::span<const int64_t> bounds, std::span<const double> slopes,
                         double coef);

// ---- plan and counts (ops/cpu/routing/plan.cpp) -------------------------------------------------
// R kept (token, expert) pairs, called rows, sorted by expert, then token, then choice rank. All
// memory lies in run.saved.
struct RoutingPlan {
  std::span<const int32_t> token;    // [R] whose copy a row is
  std::span<const int64_t> offsets;  // [E+1] rows of expert e: [offsets[e], offsets[e+1])
  // [N+1] token n's rows are row[bounds[n]..bounds[n+1]), in choice order
  std::span<const int32_t> bounds;
  std::span<const int32_t> row;   // [R]
  std::span<const int32_t> pair;  // [R] the row's place in matrices [N,K]: n * K + choice rank
  Tensor weight;                  // [R] f32 combine weights

  int64_t rows() const { return static_cast<int64_t>(token.size()); }
  int64_t tokens() const { return static_cast<int64_t>(bounds.size()) - 1; }
};
// Keeps the pairs with kept != 0.  kept [N,K] i32, or absent: all
RoutingPlan make_plan(Run&, Tensor choice, Tensor kept, Tensor w, int64_t experts);
// dw[pair] = dweight[row], 0 where a pair is no row.  dw [N,K]; dweight [R]
void spread_rows(Run&, Tensor dw, Tensor dweight, const RoutingPlan&);
// Pairs per expert over the selected ones (absent: all) of the first `columns` choices.  counts [E]
// i32
void count_pairs(Run&, Tensor counts, Tensor choice, Tensor selected, int64_t columns);
// The same added to what is there.
void count_pairs_acc(Run&, Tensor counts, Tensor choice, Tensor selected, int64_t columns);

}  // namespace moe::ops
