// Capacity stage: which chosen (token, choice) pairs find room in their expert's buffer. What does
// not is dropped and passes through the residual only. A constant for the gradient.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "core/rng.h"
#include "moe/stages/scope.h"
#include "tensor/run.h"

namespace moe {

struct Dropless {
  static constexpr std::string_view kName = "dropless";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// Each expert keeps at most C pairs of each scope of n tokens:
//   C = max(minimum, round(factor * (K if count_choices else 1) * n / E)), the rounded number being
//     at most n where `at_most_tokens`.
// The factor is the decimal number its user wrote (1.1, not the f32 beside it), and `round` rounds
// halves to even. The formulas differ between codebases on purpose (docs/recipes.md). Pairs are
// placed in `order`:
//   choice_major    all first choices in token order, then all second ones (GShard, nanoMoE)
//   token_major     token by token
//   by_weight       the highest combine weights first, then the lower token (Megatron's "probs")
//   batch_priority  tokens by their first choice's weight, then as choice_major (V-MoE; recommended
//     by ST-MoE below a factor of 1)
//   random          choice by choice in a random order of tokens (DeepSpeed); token order where
//                   nothing may be drawn
struct BufferCapacity {
  static constexpr std::string_view kName = "buffer";
  enum class Rounding {
    floor,
    floor_to_even,
    round,
    ceil
  };  // floor_to_even: floor, then plus one when odd (nanoMoE)
  enum class Order { choice_major, token_major, by_weight, batch_priority, random };
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("factor", s.factor);
    v("count_choices", s.count_choices);
    v("rounding", s.rounding);
    v("minimum", s.minimum);
    v("at_most_tokens", s.at_most_tokens);
    v("order", s.order);
    v("scope", s.scope);
    v("skipped_take_room", s.skipped_take_room);
  }
  float factor = 1.25f;
  bool count_choices = true;
  Rounding rounding = Rounding::floor;
  int64_t minimum = 4;
  bool at_most_tokens = false;
  Order order = Order::choice_major;
  Scope scope;
  bool skipped_take_room = false;  // a second choice that the policy sent away still takes a place
                                   // (GShard's pseudo-code; Mesh frees it)
};
using CapacityStage = std::variant<Dropless, BufferCapacity>;

int64_t expert_capacity(const BufferCapacity&, int64_t tokens, int64_t experts, int64_t top_k);
// kept [N,K] i32 (0 or 1), 0 where selected is. Returns the number of dropped pairs: selected and
// not kept. Experts from `zero_from` on compute nothing and take whatever comes.  choice, selected
// [N,K] i32; w [N,K] f32; bounds [S+1] of the sequences, may be empty
int64_t capacity_forward(Run&, Tensor kept, Tensor choice, Tensor selected, Tensor w,
                         std::span<const int64_t> bounds, int64_t experts, const BufferCapacity&,
                         RngKey key, int64_t zero_from = INT64_MAX);

}  // namespace moe
