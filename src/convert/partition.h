// Which neurons of a dense FFN go into the slices that are always on, and which into which expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "convert/activations.h"
#include "core/rng.h"

namespace moe {

// What a layer is cut into: `neurons` = (shared + experts) * width.
struct SliceShape {
  int64_t neurons = 0;  // F
  int64_t shared = 0;   // S
  int64_t experts = 0;  // E - S
  int64_t width = 0;    // m
};

// Every neuron stands in it once, in ascending order within its slice.
struct Partition {
  std::vector<int32_t> shared;                // [S*m]
  std::vector<std::vector<int32_t>> experts;  // [E-S][m]

  // [F] the expert of each neuron, -1: shared.
  std::vector<int32_t> expert_of() const;
};

// The S*m neurons of the highest rate, the lower index first where equal, in ascending order;
// `rest`: the others by falling rate.
struct RatedNeurons {
  std::vector<int32_t> shared, rest;
};
RatedNeurons rate_neurons(const Marks&, const SliceShape&);

// CMoE: the E-S highest rates among the rest are the centroids; balanced assignment by Hamming
// distance of the marks.
Partition partition_by_marks(const Marks&, const SliceShape&);
// [E-S] of each expert the member whose marks are closest (L1) to the mean of its members' marks,
// the lower index where equal: CMoE's one update of the centroids and the neurons that stand for
// them.
std::vector<int32_t> representatives(const Marks&, const Partition&);
// Balanced k-means of the rows, each divided by its norm (MoEfication, LLaMA-MoE): the first
// centroids are drawn, squared Euclidean distance, until nothing moves or 20 rounds. The slices
// always on are those of the highest rate, as in LLaMA-MoE's residual block.  rows [F,D] f32
Partition partition_by_weights(Run&, const Marks&, Tensor rows, const SliceShape&, RngKey);
// A permutation drawn from the key, dealt out (LLaMA-MoE's "independent random", with a shared
// part).
Partition partition_at_random(const SliceShape&, RngKey);

}  // namespace moe
