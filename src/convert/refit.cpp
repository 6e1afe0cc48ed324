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

constexpr double kRidge = 0.3;   // lambda
constexpr double kFloor = 1e-6;  // of the mean diagonal: neurons that never work

void store(float& to, float x) { to = x; }
void store(bf16& to, float x) { to = to_bf16(x); }

// features [N, F + E + shared], rows times the root of the token's weight.
template <class T>
void fill_features(Carving& c, Tensor features, Tensor choice, std::span<const int32_t> expert_of,
                   int64_t begin, int64_t end) {
  const int64_t neurons = c.shape.neurons, experts = c.shape.experts;
  std::vector<float> on(static_cast<size_t>(experts + 1));  // on[0]: shared
  for (int64_t n = begin; n < end; ++n) {
    const float root = std::sqrt(c.token_weight[static_cast<size_t>(n)]);
    std::fill(on.begin(), on.end(), 0.0f);
    on[0] = root;
    for (int64_t k = 0; k < choice.cols(); ++k)
      on[static_cast<size_t>(choice.row<int32_t>(n)[k]) + 1] = root;
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
  ArenaScope saved_scope(run.saved), scope(run.scratch);
  MoeLayer::Saved saved;
  const Tensor given = run.scratch.alloc(DType::f32, {c.tokens(), c.a.x.cols()});
  c.carved.forward(run, given, c.a.x, {}, c.pass, saved);
  weigh_rows(c, given, given);

  const std::vector<int32_t> expert_of = c.partition.expert_of();
  const int64_t columns = c.shape.neurons + c.shape.experts + (c.carved.shared ? 1 : 0);
  const Tensor features = run.scratch.alloc(c.a.x.dtype, {c.tokens(), columns});
  parallel_for(run.threads, c.tokens(), 16, [&](int64_t begin, int64_t end, int) {
    if (features.dtype == DType::bf16)
      fill_features<bf16>(c, features, saved.router.choice, expert_of, begin, end);
    else fill_features<float>(c, features, saved.router.choice, expert_of, begin, end);
  });
  Tensor missing = given;
  if (features.dtype != DType::f32)
    ops::cast(run, missing = run.scratch.alloc(features.dtype, {c.tokens(), given.cols()}), given);
  const Tensor gram = inner_products(run, run.scratch, features, features);
  const Tensor change = inner_products(run, run.scratch, features, missing);
  double mean = 0;
  for (int64_t i = 0; i < columns; ++i)
    mean += static_cast<double>(gram.row<float>(i)[i]) / static_cast<double>(columns);
  std::vector<double> ridge(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i)
    ridge[static_cast<size_t>(i)] =
        kRidge * static_cast<double>(gram.row<float>(i)[i]) + kFloor * mean;
  solve_ridge(run, change, gram, ridge);
  add_change(c, change);
}

}  // namespace moe
