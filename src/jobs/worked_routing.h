// A routing worked out on given numbers, JSON in and JSON out: the body of `moe route`, and of the
// test against golden files. docs/recipes.md shows examples.
//
// Input, one object: "logits" [T][E]; or "x" [T][D] and "weight" [E][D] (and "noise_weight" [E][D]
// for learned noise, "logit_bias" [E] for logits with a bias, "up_weight" [E][D] for analytic ones
// of a gated network); or "ids" [T] alone for hash routing. Optional: "noise" [T][E], added to the
// logits, after a multiplication by the noise's scale where that is known ("sigma" [T][E], or
// "noise_weight"); "bias" [E], the selection bias; "scale" [E] of weights 1 + scale s; "threshold"
// [E]; "ids" [T]; "sequences": lengths that add up to T; "step_counts" [E]; "draw": true to draw
// the recipe's noise (needs x), second choices and drop order from "seed"; "coef": {loss:
// coefficient}; "dweights": the gradient of some loss by each weight of the reply, row by row.
//
// Reply: "experts", "weights" (0 where dropped) and "kept", a row a token in choice order; "counts"
// [E] before any drop; "dropped"; "capacity" (null without buffers; a list where the scopes
// differ); each loss that the stages have, in canonical form, and "z"; "max_vio", "cv2" and
// "entropy" of the counts, null when nothing was chosen. With "coef" or "dweights" the gradients:
// "dlogits" (of the logits the choice was made from), "dclean" and "dsigma" where a loss reads the
// logits before the noise or its scale directly, with x "dx" and "dweight" (and "dnoise_weight",
// "dlogit_bias", "dup_weight"); "dscale".
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "moe/router.h"

namespace moe {

// `where` names the file in errors; "seed" in the input goes before `seed`.
Json route(const RoutingSpec&, const Json& input, const std::string& where, uint64_t seed);

// How many experts the input speaks of; 0 when it has token ids only.
int64_t route_experts(const Json& input, const std::string& where);

}  // namespace moe
