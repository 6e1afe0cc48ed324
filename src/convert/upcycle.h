// Sparse upcycling: the FFN of a dense model, copied, becomes the experts of an MoE layer
// (Komatsuzaki et al. 2022, arXiv 2212.05055), or is cut into G shards which are then repeated:
// virtual groups (He et al. 2024, arXiv 2410.07524, section 2.3). Nothing is trained here; training
// is what makes the copies differ.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/assembly.h"
#include "convert/layer_choice.h"

namespace moe {

struct UpcycleOptions {
  RoutingOptions routing;    // recipe, E and K; E counts shards
  int64_t granularity = 1;   // G: a copy is G experts of width F / G
  LayerChoice layers;        // those that become MoE layers
  float router_std = 0.02f;  // of the routers' rows; each is drawn once for the G experts of a copy
  // A share of each expert's numbers is drawn anew from N(0, noise) (OLMoE, arXiv 2409.02060,
  // section 4.1.5: a share of 0.5 and 0.02, without gain). 0: none.
  float noise = 0;
  float noise_share = 0.5f;
  std::optional<float> down_scale;  // what `down` is multiplied by; absent: what makes the weights
                                    // of a token whose logits are alike count as 1 together
  uint64_t seed = 1;
};

struct Upcycled {
  std::unique_ptr<Model> model;
  std::vector<PartFate> parts;
  double weight_sum = 1;  // of a token's combine weights when its logits are alike
  double down_scale = 1;
  std::string why_not_exact;  // why the result does not compute what the dense model does, fields
                              // marked; empty: it does, but for rounding
};

// Bytes of the numbers that the result cannot view in the dense model: cut or scaled columns, and
// with noise all experts.
int64_t upcycling_bytes(const ModelConfig& dense, const UpcycleOptions&);

// The config of the result, validated. Usage errors for a model that routes already, layers that
// are not there, an E that G does not divide, an F that G does not divide (with what does).
ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleOptions&);
// The result's weights are views of those of `dense`, which must outlive it; what is drawn, scaled
// or has noise is its own.
//   expert r G + j = rows j F/G .. (j + 1) F/G of gate and up and the same columns of down, times
//     down_scale = G / sum_i w_i, its bias 1 / sum_i w_i
// With K a multiple of G the G equal logits of a copy's experts stand together (ties go to the
// lower index), so a token meets whole copies.
Upcycled upcycle(Model& dense, const UpcycleOptions&, int threads);

}  // namespace moe
