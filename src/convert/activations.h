// What one layer's dense FFN does on the calibration text, and which of its neurons are strongest
// for each token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "convert/carve.h"
#include "moe/experts.h"

namespace moe {

// Views into the arena of whoever made them. The bank is one expert of width F.
struct Activations {
  Tensor x;         // [N,D] A, what the FFN sees
  Tensor gate, up;  // [N,F] A, before the activation, biases in; gate absent when not gated
  Tensor hidden;    // [N,F] A, act(gate) * up
  Tensor out;       // [N,D] f32, what the FFN gives

  int64_t tokens() const { return x.rows(); }
  int64_t neurons() const { return up.cols(); }
};
// Everything but x, into run.saved.
void run_dense(Run&, Activations&, ExpertBank& dense);

// A bit for each neuron and token, set where the neuron is among the strongest of the token; a
// neuron's bits lie together.
class Marks {
 public:
  Marks(int64_t neurons, int64_t tokens);
  void set(int64_t neuron, int64_t token) {
    bits_[static_cast<size_t>(neuron * words_ + token / 64)] |= uint64_t{1} << (token % 64);
  }
  bool get(int64_t neuron, int64_t token) const {
    return bits_[static_cast<size_t>(neuron * words_ + token / 64)] >> (token % 64) & 1;
  }
  std::span<const uint64_t> of(int64_t neuron) const {
    return {bits_.data() + neuron * words_, static_cast<size_t>(words_)};
  }
  int64_t neurons() const { return neurons_; }
  int64_t tokens() const { return tokens_; }
  // How many tokens marked the neuron.
  int64_t rate(int64_t neuron) const;
  // How many tokens marked just one of the two.
  int64_t distance(int64_t a, int64_t b) const;

 private:
  int64_t neurons_, tokens_, words_;
  std::vector<uint64_t> bits_;
};

// Marks the `count` neurons of the largest |activation| of each token, the lower index first where
// equal. Profile::cosine: the products are divided by the Euclidean norms of the token and of the
// neuron's row before the activation (a norm of 0 gives 0).
Marks mark_strongest(Run&, const Activations&, const ExpertBank& dense, Profile, int64_t count);

// mass[n,e] = sum over the neurons of slice e of |hidden[n,f]|.  slice_of [F]: -1: in none; mass
// [N,slices] row after row
std::vector<float> slice_mass(Run&, const Activations&, std::span<const int32_t> slice_of,
                              int64_t slices);

}  // namespace moe
