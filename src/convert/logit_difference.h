// How far apart the logits of two models are on the same tokens.
#pragma once

#include <cstdint>
#include <span>

#include "model/model.h"

namespace moe {

struct LogitDifference {
  int64_t tokens = 0;
  double largest = 0;        // of |a - b| over all logits
  double largest_logit = 0;  // of |a|
};

// Both read the tokens as one text, routed as evaluation does, computing in run.compute.
LogitDifference compare_logits(Model& a, Model& b, Run&, std::span<const int32_t> ids);

}  // namespace moe
