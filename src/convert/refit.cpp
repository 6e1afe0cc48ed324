// The last matrix of the FFN, fitted again to what the carved layer leaves out. With the chosen
// experts known, the layer's output is linear in `down` and in a bias of each expert: y = Phi K,
// Phi [N, F + E + 1] the hidden values of the neurons that work (0 elsewhere), 1 for each chosen
// expert, and 1 for what is always on. K moves from the dense K0 by D, the ridge regression of what
// is missing: (Phi^T W Phi + P) D = Phi^T W (Y - Phi K0), P = diag(lambda diag(Phi^T W Phi)). Y is
// what leads from the carved residual stream to the dense one after this layer, so that earlier
// layers' errors are mended too. Where nothing is missing D is 0: with all experts active the dense
// model remains.
#include <array>
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

// Experts that have a bias.
int64_t biases(const Carving& c) { return c.carved.by_neuron ? 0 : c.shape.experts; }

// features [N, F + E + shared], rows times the root of the token's weight; choice [*,K] of tokens
// from `first` on. Where every neuron is an expert there are no biases.
template <class T>
void fill_features(Carving& c, Tensor features, Tensor choice, int64_t first,
                   std::span<const int32_t> expert_of, int64_t begin, int64_t end) {
  const int64_t neurons = c.shape.neurons, experts = biases(c);
  std::vector<float> on(static_cast<size_t>(c.shape.experts + 1));  // on[0]: shared
  for (int64_t n = first + begin; n < first + end; ++n) {
    const float root = std::sqrt(c.token_weight[static_cast<size_t>(n)]);
    std::fill(on.begin(), on.end(), 0.0f);
    on[0] = root;
    for (int64_t k = 0; k < choice.cols(); ++k)
      on[static_cast<size_t>(choice.row<int32_t>(n - first)[k]) + 1] = root;
    const T* hidden = c.a.hidden.row<T>(n);
    T* out = features.row<T>(n);
    for (int64_t f = 0; f < neurons; ++f)
      store(out[f],
            to_f32(hidden[f]) * on[static_cast<size_t>(expert_of[static_cast<size_t>(f)] + 1)]);
    for (int64_t e = 0; e < experts; ++e) store(out[neurons + e], on[static_cast<size_t>(e) + 1]);
    if (features.cols() > neurons + experts) store(out[neurons + experts], root);
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

// `change` [F + E + shared, D] f32
void add_change(Carving& c, Tensor change) {
  if (c.carved.by_neuron) {
    const Tensor down = c.carved.experts.down.value.at(0);  // [F,D]
    ops::add(c.run, down, down, change);
    return c.carved.experts.down.touched();
  }
  const int64_t width = change.cols(), neurons = c.shape.neurons;
  const auto add = [&](ExpertBank& bank, int64_t e, std::span<const int32_t> members,
                       int64_t bias_row) {
    const Tensor down = bank.down.value.at(e);
    for (size_t j = 0; j < members.size(); ++j)
      for (int64_t d = 0; d < width; ++d) down.row<float>(d)[j] += change.row<float>(members[j])[d];
    for (int64_t d = 0; d < width; ++d)
      bank.down_bias.value.row<float>(e)[d] += change.row<float>(bias_row)[d];
    bank.down.touched();
    bank.down_bias.touched();
  };
  for (int64_t e = 0; e < c.shape.experts; ++e)
    add(c.carved.experts, e, c.partition.experts[static_cast<size_t>(e)], neurons + e);
  if (c.carved.shared) add(*c.carved.shared, 0, c.partition.shared, neurons + c.shape.experts);
}

}  // namespace

void refit(Carving& c) {
  Run& run = c.run;
  ArenaScope scope(run.scratch);
  const Tensor given = run.scratch.alloc(DType::f32, {c.tokens(), c.a.x.cols()});
  const std::vector<int32_t> expert_of = c.partition.expert_of();
  const int64_t columns = c.shape.neurons + biases(c) + (c.carved.shared ? 1 : 0);
  const Tensor features = run.scratch.alloc(c.a.x.dtype, {c.tokens(), columns});
  c.forward(given, [&](int64_t first, const MoeLayer::Saved& saved) {
    const Tensor choice = saved.router.choice;
    parallel_for(run.threads, choice.rows(), 16, [&](int64_t begin, int64_t end, int) {
      if (features.dtype == DType::bf16)
        fill_features<bf16>(c, features, choice, first, expert_of, begin, end);
      else fill_features<float>(c, features, choice, first, expert_of, begin, end);
    });
  });
  weigh_rows(c, given, given);
  Tensor missing = given;
  if (features.dtype != DType::f32)
    ops::cast(run, missing = run.scratch.alloc(features.dtype, {c.tokens(), given.cols()}), given);
  const Tensor gram = inner_products(run, run.scratch, features, features);
  const Tensor change = inner_products(run, run.scratch, features, missing);
  const double lambda = c.carved.by_neuron ? kNeuronRidge : kRidge;
  double mean = 0;
  for (int64_t i = 0; i < columns; ++i)
    mean += static_cast<double>(gram.row<float>(i)[i]) / static_cast<double>(columns);
  std::vector<double> ridge(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i)
    ridge[static_cast<size_t>(i)] =
        lambda * static_cast<double>(gram.row<float>(i)[i]) + kFloor * mean;
  solve_ridge(run, change, gram, ridge);
  add_change(c, change);
}

}  // namespace moe
