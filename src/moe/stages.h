// The stages a router is made of. Each is a variant; each member carries its own parameters and nothing reads another stage's. A member's forward and
// backward stand next to each other in stages.cpp. Order: noise -> (logits) -> score -> select -> weigh -> capacity, and beside them the two losses.
//
// Notation: N tokens, E experts, K chosen; z logits [N,E]; s scores [N,E]; choice [N,K] experts in choice order; w weights [N,K].
// Selection, capacity and counts are constants for the gradient.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "ops/ops.h"
#include "tensor/run.h"

namespace moe {

// ---- noise: what is done to the router's input or logits while training ------------------------------------------------------------------------
struct NoNoise {};
// x' = x * u, u ~ U[1-eps, 1+eps] for every entry, on the router's copy only (Switch, arXiv 2101.03961, section 2.2).
struct InputJitter {
  float eps = 1e-2f;
};
// z' = z + (softplus(x Wn^T) + floor) * n, n ~ N(0,1) (Shazeer 2017, arXiv 1701.06538, eq. 4; nanoMoE has no floor). Wn is a parameter of the router.
struct LearnedNoise {
  float floor = 0;
};
using NoiseStage = std::variant<NoNoise, InputJitter, LearnedNoise>;

// dst = x jittered.  dst, x [N,D] f32. Its own backward on gradients (the same factors).
void jitter(Run&, Tensor dst, Tensor x, const InputJitter&, RngKey key);
// z += (softplus(raw) + floor) * n.  z, raw [N,E] f32
void learned_noise_forward_acc(Run&, Tensor z, Tensor raw, const LearnedNoise&, RngKey key);
// draw = dz * n * sigmoid(raw).  draw [N,E]
void learned_noise_backward(Run&, Tensor draw, Tensor dz, Tensor raw, const LearnedNoise&, RngKey key);

// ---- score: logits -> scores ----------------------------------------------------------------------------------------------------------------------
struct SoftmaxScore {};  // over all experts
struct SigmoidScore {};
struct RawScore {};  // the logits themselves: choose first, then softmax over the chosen
using ScoreStage = std::variant<SoftmaxScore, SigmoidScore, RawScore>;

void score_forward(Run&, Tensor s, Tensor z, const ScoreStage&);
// dz = ds through the score.  dz, ds [N,E] (may be the same memory)
void score_backward(Run&, Tensor dz, Tensor ds, Tensor s, const ScoreStage&);

// ---- select: which experts a token takes ----------------------------------------------------------------------------------------------------------
// The k largest scores; ties go to the lower index. A NaN score is an error naming the token.
struct TopK {
  int64_t k = 2;
};
using SelectStage = std::variant<TopK>;

// choice [N,K] i32, in order of falling score.
void select_forward(Run&, Tensor choice, Tensor s, const SelectStage&);
int64_t chosen_per_token(const SelectStage&);

// ---- weigh: scores of the chosen -> combine weights -------------------------------------------------------------------------------------------------
// w = scale * s[choice], or scale * s[choice] / (sum of the chosen + 1e-20) when renormalised.
struct ChosenScores {
  bool renormalise = false;
  float scale = 1;
};
// w = softmax over the chosen scores.
struct ChosenSoftmax {};
using WeighStage = std::variant<ChosenScores, ChosenSoftmax>;

void weigh_forward(Run&, Tensor w, Tensor s, Tensor choice, const WeighStage&);
// ds[n, choice] += dw through the weighing.  ds [N,E] f32; dw, w [N,K]
void weigh_backward_acc(Run&, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice, const WeighStage&);
// Whether the weights of one chosen expert are 1 whatever the logits are, so that the router gets no gradient.
bool constant_when_alone(const WeighStage&);

// ---- capacity: which (token, choice) pairs are kept ---------------------------------------------------------------------------------------------------
struct Dropless {};
// Each expert keeps at most C pairs: C = max(minimum, round(factor * (K if count_choices else 1) * N / E)). The formulas differ between codebases on purpose
// (docs/recipes.md). Pairs are placed in `order`; what finds the buffer full is dropped and passes through the residual only.
struct BufferCapacity {
  enum class Rounding { floor, floor_to_even };  // floor_to_even: floor, then plus one when odd (nanoMoE)
  enum class Order { choice_major, token_major };
  float factor = 1.25f;
  bool count_choices = true;
  Rounding rounding = Rounding::floor;
  int64_t minimum = 4;
  Order order = Order::choice_major;
};
using CapacityStage = std::variant<Dropless, BufferCapacity>;

int64_t expert_capacity(const BufferCapacity&, int64_t tokens, int64_t experts, int64_t top_k);
// kept [N,K] i32 (0 or 1). Returns the number of dropped pairs.
int64_t capacity_forward(Tensor kept, Tensor choice, int64_t experts, const CapacityStage&);

// ---- balance: the auxiliary loss that spreads the load ------------------------------------------------------------------------------------------------
struct NoBalance {};
// Canonical form, 1 when perfectly balanced: E * sum_e f_e P_e, f_e the share of counted choices that went to e (before any drop; a constant for the
// gradient), P_e the mean over tokens of the probability given to e.
struct BalanceLoss {
  enum class Counts { first_choice, all_choices };
  enum class Probs { scores, chosen_weights };  // chosen_weights: zero outside the chosen (nanoMoE)
  Counts counts = Counts::all_choices;
  Probs probs = Probs::scores;
};
using BalanceStage = std::variant<NoBalance, BalanceLoss>;

// Pairs per expert before any drop, counted over `choices` first choices.  counts [E] i32
void count_choices(Tensor counts, Tensor choice, int64_t choices);
// The loss.  s [N,E], w and choice [N,K]
float balance_forward(Run&, Tensor s, Tensor w, Tensor choice, const BalanceStage&);
// ds += coef * dB/ds and dw += coef * dB/dw.
void balance_backward_acc(Run&, Tensor ds, Tensor dw, Tensor choice, int64_t experts, const BalanceStage&, float coef);

// ---- router z-loss: mean over tokens of logsumexp(z)^2 (ST-MoE, arXiv 2202.08906, eq. 5), on the logits that were used ---------------------------------
float z_loss_forward(Run&, Tensor lse, Tensor z);  // lse [N] f32
// dz += coef * (2/N) lse softmax(z)
void z_loss_backward_acc(Run&, Tensor dz, Tensor lse, Tensor z, float coef);

}  // namespace moe
