// The auxiliary losses of a router, each in canonical form: its value does not depend on K, E or
// the number of tokens, and the balance losses are 1 when the load is perfectly even (the CV^2 ones
// 0). Counts are taken before any drop and are constants for the gradient.
#pragma once

#include <cstdint>
#include <optional>

#include "moe/routing.h"
#include "moe/stages/scope.h"

namespace moe {

// E * sum_e f_e P_e over each scope, then the mean over scopes weighted by their tokens. f_e the
// share of counted choices that went to e, P_e the mean over tokens of the probability given to e.
struct BalanceLoss {
  // unbiased: the top-K of the scores over all experts, without the selection bias and without
  // groups (DeepSeek-V3, eq. 18)
  enum class Counts { first_choice, all_choices, unbiased_choices };
  // chosen_weights: zero outside the chosen (nanoMoE); normalised: s / sum s (DeepSeek-V3);
  // softmax: of scores that are the logits
  enum class Probs { scores, chosen_weights, normalised_scores, softmax };
  // Whose counts f is made of: this micro-batch's; those of the optimizer step so far, this
  // micro-batch included (Megatron's global_aux_loss); or the whole step's, known beforehand, so
  // that k micro-batches give exactly the gradient of one batch. The last two need scope =
  // micro_batch.
  enum class Shares { own, running, step };
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("counts", s.counts);
    v("probs", s.probs);
    v("scope", s.scope);
    v("shares", s.shares);
  }
  Counts counts = Counts::all_choices;
  Probs probs = Probs::scores;
  Scope scope;
  Shares shares = Shares::own;
};
// Experts lie on `devices` equal groups of neighbours. sum_d f_d P_d with P_d the probability given
// to the device in sum (of s / sum s, so that sigmoid scores are probabilities too) and f_d: the
// mean of E f_e over its experts (device loss; DeepSeekMoE, arXiv 2401.06066, section 3.3), or D /
// M times the share of tokens with at least one expert there (communication loss, M devices a token
// at most; DeepSeek-V2, arXiv 2405.04434, eq. 29-31).
struct DeviceLoss {
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("devices", s.devices);
    v("at_most", s.at_most);
    v("scope", s.scope);
  }
  int64_t devices = 1;
  int64_t at_most = 1;  // M; only the communication loss reads it
  Scope scope;
};
// Shazeer et al. 2017, arXiv 1701.06538, eq. 6-11; CV^2(v) = population variance / (mean^2 +
// 1e-10). importance: of the summed weights before any drop; load: of the expected number of tokens
// when one expert's noise is drawn again.
struct AuxLosses {
  std::optional<BalanceLoss> balance;
  std::optional<DeviceLoss> device;
  std::optional<DeviceLoss> communication;
  bool importance = false;
  bool load = false;  // needs learned noise; counts of chosen pairs without a gradient where none
                      // is drawn or K = E
  bool z_of_clean =
      false;  // the z-loss on the logits before the noise (ST-MoE's is on what was used)
};

// The counts that BalanceLoss::shares = running or step add up over micro-batches: those of the
// balance loss's `counts` kind.  counts [E] i32
void count_for_balance(Run&, Tensor counts, const Routing&, const BalanceLoss&);

// The losses look at all chosen pairs, sent or not. Where the routing has its balance_counts they
// are taken, else counted. The values of all losses but z, which is left as it is.  values
// [kRoutingLosses] f32 in the order of each_loss(), where the run computes
void aux_losses_forward(Run&, Tensor values, const Routing&, const Pass&, const AuxLosses&);
// ds, dw, dlogits (the noisy ones), dclean and dsigma += coef . the losses' gradients. dclean and
// dsigma [N,E] may be absent without the load loss.
void aux_losses_backward_acc(Run&, Tensor ds, Tensor dw, Tensor dlogits, Tensor dclean,
                             Tensor dsigma, const Routing&, const Pass&, const AuxLosses&,
                             const RoutingLosses& coef);

// Router z-loss: mean over tokens of logsumexp(z)^2 (ST-MoE, arXiv 2202.08906, eq. 5).  lse [N] f32
// value [1] f32
void z_loss_forward(Run&, Tensor value, Tensor lse);
// dlse = coef * (2/N) lse, for whoever takes the gradient of the logsumexp with something else.
// dlse, lse [N] f32
void z_loss_backward(Run&, Tensor dlse, Tensor lse, float coef);
// dz += coef * (2/N) lse softmax(z).  dz, z [N,E] f32
void z_loss_backward_acc(Run&, Tensor dz, Tensor lse, Tensor z, float coef);

}  // namespace moe
