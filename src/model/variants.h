// The same model with its experts cut differently, and without them: what fine-grained and shared
// experts change (DeepSeekMoE, arXiv 2401.06066, figure 2), and what sparse layers buy over dense
// ones. Counted by configuration, like model/cost.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/cost.h"

namespace moe {

// How many sets of k experts there are among n: n! / (k! (n-k)!).
// All decimal digits; empty where min(k, n-k) is above 4096 and nobody would read them.
std::string combinations(int64_t n, int64_t k);
double log2_combinations(int64_t n, int64_t k);

// An MoE layer whose experts, routed and shared, hold `total` and of which a token meets `active`
// units of one width.
struct Variant {
  std::string name;
  int64_t experts = 0;  // routed
  int64_t top_k = 0;
  int64_t expert_width = 0;
  int64_t shared_experts = 0;  // as wide as a routed one
  bool is_model = false;       // the model itself
  ParamCount params;  // of the whole model so; the router's grow with the number of experts
};

// Figure 2's three: conventional (few experts, two of them chosen where that divides), fine-grained
// (each cut into m, m times as many chosen), fine-grained with shared experts; equal in the
// experts' total and active parameters. m is the model's own where its experts are cut, else 4. A
// model that is none of them comes before them. Empty where there is nothing to compare: a dense
// model, one whose tokens do not choose by a router, or widths that do not divide.
std::vector<Variant> fine_grained_variants(const ModelConfig&);

// The model with each MoE layer replaced by one dense FFN.
struct DenseTwin {
  int64_t ffn_width = 0;  // of the replaced layers
  ParamCount params;
  FlopCount flops;  // a token
};
// As wide as what a token meets: the same FLOPs (but the router's), fewer parameters.
DenseTwin dense_of_equal_flops(const ModelConfig&, int64_t context);
// As wide as all experts together: the same parameters (but the router's), more FLOPs.
DenseTwin dense_of_equal_params(const ModelConfig&, int64_t context);

}  // namespace moe
