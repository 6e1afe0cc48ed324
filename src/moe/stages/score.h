// Score stage: logits to scores.
#pragma once

#include <string_view>
#include <variant>

#include "tensor/run.h"

namespace moe {

struct SoftmaxScore {  // over all experts
  static constexpr std::string_view kName = "softmax";
  template <class V, class S>
  static void fields(V&, S&) {}
};
struct SigmoidScore {
  static constexpr std::string_view kName = "sigmoid";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// sqrt(log(1 + e^z)), which has no upper end as a sigmoid has (DeepSeek-V4, arXiv 2606.19348,
// section 2.1).
struct SqrtSoftplusScore {
  static constexpr std::string_view kName = "sqrt_softplus";
  template <class V, class S>
  static void fields(V&, S&) {}
};
struct RawScore {  // the logits themselves: choose first, then softmax over the chosen
  static constexpr std::string_view kName = "raw";
  template <class V, class S>
  static void fields(V&, S&) {}
};
using ScoreStage = std::variant<SoftmaxScore, SigmoidScore, RawScore, SqrtSoftplusScore>;

// Scores, and the logsumexp of the logits, which a softmax has at hand.  s, z [N,E] f32; lse [N]
// f32 or absent
void score_forward(Run&, Tensor s, Tensor lse, Tensor z, const ScoreStage&);
// dz = ds through the score, plus dlse through the logsumexp.  dz, ds [N,E] (may be the same
// memory); dlse [N] or absent, and then lse is not read, and z by sqrt_softplus alone
void score_backward(Run&, Tensor dz, Tensor ds, Tensor dlse, Tensor s, Tensor z, Tensor lse,
                    const ScoreStage&);

}  // namespace moe
