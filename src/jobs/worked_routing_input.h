// The input of `moe route`, read and checked; the keys are described in jobs/worked_routing.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/json.h"
#include "moe/router.h"

namespace moe {

// What was given, checked. Tensors live in `memory`.
struct RouteInput {
  Arena memory;
  int64_t tokens = 0, experts = 0;
  Router router;        // its matrices where x is given; bias and threshold
  Tensor logits;        // [T,E]; absent with x and for hash routing
  Tensor x;             // [T,D]
  Tensor noise, sigma;  // [T,E]
  std::vector<int32_t> ids;
  std::vector<int64_t> bounds, step_counts;
  RngKey key;
  RoutingLosses coef;
  const Json* dweights = nullptr;
  bool wants_gradient = false;

  // Everything is worked out, and gradients may follow.
  Pass pass(const RoutingSpec& spec) const {
    return {.batch = {.ids = ids, .bounds = bounds},
            .routing = &spec,
            .keep = Keep::all,
            .step_counts = std::span(&step_counts, step_counts.empty() ? 0 : 1),
            .wanted = Wanted::all()};
  }
};
// Fills an empty one. Fails on what is missing, misshapen or has no meaning for the stages. `seed`
// is what "draw" draws from where the input names no other.
void read_route_input(RouteInput&, const JsonReader&, const RoutingSpec&, uint64_t seed);

}  // namespace moe
