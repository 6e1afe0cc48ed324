// The last matrix of the FFN, fitted again to what the carved layer leaves out. With the chosen
// experts known, the layer's output is linear in `down` and in a bias of each expert: y = Phi K,
// Phi [N, F + E + 1] the hidden values of the neurons that work (0 elsewhere), 1 for each chosen
// expert, and 1 for what is always on. K moves from the dense K0 by D, the ridge regression of what
// is missing: (Phi^T W Phi + P) D = Phi^T W (Y - Phi K0), P = diag(lambda diag(Phi^T W Phi)). Y is
// what leads from the carved residual stream to the dense one after this layer, so that earlier
// layers' errors are mended too. Where nothing is missing D is 0: with all experts active the dense
// model remains.
#include <algorithm>
#include <cmath>

#include "convert/carve_steps.h"
#include "convert/least_squares.h"
#include "core/threads.h"

namespace moe {
namespace {

// lambda: of slices; of neurons, which leave little to mend (docs/internals/carving.md)
constexpr double kRidge = 0.3, kNeuronRidge = 3;
constexpr double kFloor = 1e-6;  // of the mean diagonal: neurons that never work

void store(float& to, float x) { to = x; }
void store(bf16& to, float x) { to = to_bf16(x); }

// features [N, F + biases], rows times the root of the token's weight.
template <class T>
void fill_features(const Carving& c, Tensor features, int64_t begin, int64_t end) {
  const int64_t neurons = c.shape.neurons;
  for (int64_t n = begin; n < end; ++n) {
    const float root = std::sqrt(c.token_weight[static_cast<size_t>(n)]);
    const T* hidden = c.a.hidden.row<T>(n);
    T* out = features.row<T>(n);
    for (int64_t f = 0; f < neurons; ++f) store(out[f], to_f32(hidden[f]) * root);
    if (c.biases() == 0) continue;
    std::fill(out + neurons, out + features.cols(), T{});
    for (int64_t k = 0; k < c.active; ++k) store(out[neurons + c.choice.row<int32_t>(n)[k]], root);
    if (c.carved.shared) store(out[neurons + c.shape.experts], root);
  }
}

// missing = root of weight * (target - given)
void weigh_rows(Carving& c, Tensor missing, Tensor given) {
  parallel_for(c.run.threads, c.tokens(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      const float root = std::sqrt(c.token_weight[static_cast<size_t>(n)]);
      for (int64_t d = 0; d < missing.cols(); ++d)
        missing.row<float>(n)[d] = root * (c.target.row<float>(n)[d] - given.row<float>(n)[d]);
    }
  });
}

}  // namespace

void refit(Carving& c) {
  Run& run = c.run;
  ArenaScope scope(run.scratch);
  const int64_t columns = c.map.rows();
  const Tensor features = run.scratch.alloc(c.a.x.dtype, {c.tokens(), columns});
  parallel_for(run.threads, c.tokens(), 16, [&](int64_t begin, int64_t end, int) {
    if (features.dtype == DType::bf16) fill_features<bf16>(c, features, begin, end);
    else fill_features<float>(c, features, begin, end);
  });
  Tensor missing = run.scratch.alloc(DType::f32, {c.tokens(), c.map.cols()});
  weigh_rows(c, missing, c.given);
  if (features.dtype != DType::f32) {
    const Tensor wide = missing;
    ops::cast(run, missing = run.scratch.alloc(features.dtype, {c.tokens(), wide.cols()}), wide);
  }
  const Tensor gram = inner_products(run, run.scratch, features, features);
  const Tensor change = inner_products(run, run.scratch, features, missing);
  const double lambda = c.carved.by_neuron ? kNeuronRidge : kRidge;
  double mean = 0;
  for (int64_t i = 0; i < columns; ++i)
    mean += static_cast<double>(gram.row<float>(i)[i]) / static_cast<double>(columns);
  if (mean == 0) return;  // no neuron works for any token
  std::vector<double> ridge(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i)
    ridge[static_cast<size_t>(i)] =
        lambda * static_cast<double>(gram.row<float>(i)[i]) + kFloor * mean;
  solve_ridge(run, change, gram, ridge);
  ops::add(run, c.map, c.map, change);
  c.give();
}

}  // namespace moe
