// Noise stage: what is done to the router's input or logits while training. Nothing is drawn where
// the key is empty. Notation of all stages: N tokens, E experts, K slots a token; z logits [N,E]; s
// scores [N,E]; choice [N,K] experts in choice order; w weights [N,K].
#pragma once

#include <string_view>
#include <variant>

#include "core/rng.h"
#include "tensor/run.h"

namespace moe {

struct NoNoise {
  static constexpr std::string_view kName = "none";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// x' = x * u, u ~ U[1-eps, 1+eps] for every entry, on the router's copy only (Switch, arXiv
// 2101.03961, section 2.2).
struct InputJitter {
  static constexpr std::string_view kName = "jitter";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("eps", s.eps);
  }
  float eps = 1e-2f;
};
// z' = z + (softplus(x Wn^T) + floor) * n, n ~ N(0,1) (Shazeer 2017, arXiv 1701.06538, eq. 4;
// nanoMoE has no floor). Wn is a parameter of the router.
struct LearnedNoise {
  static constexpr std::string_view kName = "learned";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("floor", s.floor);
  }
  float floor = 0;
};
using NoiseStage = std::variant<NoNoise, InputJitter, LearnedNoise>;

// dst = x jittered.  dst, x [N,D] f32. Its own backward on gradients (the same factors).
void jitter(Run&, Tensor dst, Tensor x, const InputJitter&, RngKey key);
// z += (softplus(raw) + floor) * n.  z, raw [N,E] f32
void learned_noise_forward_acc(Run&, Tensor z, Tensor raw, const LearnedNoise&, RngKey key);
// draw = (dz * n + dsigma) * sigmoid(raw), dsigma being what a loss sends to the noise's scale
// itself.  draw, dz, raw [N,E]; dsigma [N,E] or absent
void learned_noise_backward(Run&, Tensor draw, Tensor dz, Tensor dsigma, Tensor raw,
                            const LearnedNoise&, RngKey key);
// sigma = softplus(raw) + floor.  sigma, raw [N,E] f32
void learned_noise_scale(Run&, Tensor sigma, Tensor raw, const LearnedNoise&);

}  // namespace moe
