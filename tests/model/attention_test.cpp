// One attention layer against its scalar twin, forward and every gradient: heads whose values are
// narrower or wider than their keys, of which a part turns or none, and windows.
#include "model/attention.h"

#include <fmt/format.h>

#include <array>

#include "model/rope.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twins_attention.h"
#include "support/twins_rowwise.h"

namespace moe::test {
namespace {

constexpr int64_t kWidth = 6;
const std::vector<int64_t> kLengths = {5, 1, 4};

std::vector<double> frequencies(int64_t rotary) {
  return rotary == 0 ? std::vector<double>{} : rope_frequencies(rotary, 100, {}).frequency;
}

// y[n,o] = sum_i x[n,i] w[o,i]
template <class T>
std::vector<T> linear(const std::vector<T>& x, const std::vector<T>& w, int64_t in) {
  const size_t width = static_cast<size_t>(in), rows = x.size() / width, out = w.size() / width;
  std::vector<T> y(rows * out, T(0.0));
  for (size_t n = 0; n < rows; ++n)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < width; ++i) y[n * out + o] += x[n * width + i] * w[o * width + i];
  return y;
}

// x, then the matrices of queries, keys, values and the way out.
template <class T>
using Inputs = std::array<std::vector<T>, 5>;

template <class T>
std::vector<T> twin_attention(const Inputs<T>& in, const AttentionShape& shape) {
  const twin::AttentionRows rows = twin::AttentionRows::of_lengths(kLengths);
  const std::vector<double> f = frequencies(shape.rotary_width);
  const std::vector<T> q = twin::rope(linear(in[0], in[1], kWidth), rows.positions, shape.heads, f,
                                      1, false),
                       k = twin::rope(linear(in[0], in[2], kWidth), rows.positions, shape.kv_heads,
                                      f, 1, false),
                       v = linear(in[0], in[3], kWidth);
  const twin::AttentionShape of{shape.heads,
                                shape.kv_heads,
                                shape.key_width,
                                shape.value_width,
                                1 / std::sqrt(static_cast<double>(shape.key_width)),
                                shape.window};
  return linear(twin::attention_forward(q, k, v, rows, of).o, in[4], shape.o_width());
}

void expect_like_the_twin(const AttentionShape& shape) {
  SCOPED_TRACE(fmt::format("keys of {}, values of {}, {} turn, window {}", shape.key_width,
                           shape.value_width, shape.rotary_width, shape.window));
  moe::Run run(2);
  const twin::AttentionRows rows = twin::AttentionRows::of_lengths(kLengths);
  const int64_t tokens = rows.bounds.back();
  Attention attention;
  attention.shape = shape;
  attention.q = draw_param(run.saved, {shape.q_width(), kWidth}, 1, 0.7f);
  attention.k = draw_param(run.saved, {shape.k_width(), kWidth}, 2, 0.7f);
  attention.v = draw_param(run.saved, {shape.v_width(), kWidth}, 3, 0.7f);
  attention.o = draw_param(run.saved, {kWidth, shape.o_width()}, 4, 0.7f);
  const Tensor x = draw(run.saved, DType::f32, {tokens, kWidth}, 5),
               dy = draw(run.saved, DType::f32, {tokens, kWidth}, 6);
  const Tensor y = run.saved.alloc(DType::f32, {tokens, kWidth}),
               dx = run.saved.alloc(DType::f32, {tokens, kWidth});
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  Pass pass{.batch = {ids, rows.positions, rows.bounds}, .keep = Keep::all};
  if (shape.rotary_width > 0)
    pass.cos_sin = ops::cos_sin_table(run, run.saved, rows.positions,
                                      rope_frequencies(shape.rotary_width, 100, {}));

  Attention::Saved saved;
  attention.forward(run, y, x, pass, 0, saved);
  Inputs<double> in = {values(x), values(attention.q.value), values(attention.k.value),
                       values(attention.v.value), values(attention.o.value)};
  expect_near(y, twin_attention(in, shape), kTwinF32, "y");
  attention.backward(run, dx, dy, x, pass, saved);
  const Tensor got[] = {dx, attention.q.grad, attention.k.grad, attention.v.grad, attention.o.grad};
  const std::vector<double> r = values(dy);
  for (size_t i = 0; i < in.size(); ++i) {
    Inputs<Dual<double>> dual;
    for (size_t j = 0; j < in.size(); ++j) dual[j] = constants(in[j]);
    const std::vector<double> want = dual_gradient(in[i], [&](const DualVector& at) {
      dual[i] = at;
      return inner(twin_attention(dual, shape), r);
    });
    expect_near(got[i], want, kTwinF32, fmt::format("gradient {}", i));
  }
}

TEST(AttentionLayer, MatchesItsTwinWhateverItsHeadsAre) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 4, 4, 4, 0}, AttentionShape{4, 2, 6, 4, 4, 0},
        AttentionShape{2, 1, 4, 6, 2, 3}, AttentionShape{3, 1, 5, 3, 0, 2},
        AttentionShape{2, 1, 8, 2, 6, 0}})
    expect_like_the_twin(shape);
}

// What a model's layers are given is what its options say, one layer after another.
TEST(AttentionLayer, IsShapedByTheConfig) {
  ModelConfig c;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_width = 10;
  c.attention_window = 7;
  c.window_from = 2;
  EXPECT_EQ(c.attention(1).window, 0);
  const AttentionShape a = c.attention(c.layers - 1);
  EXPECT_EQ(a.q_width(), 60);
  EXPECT_EQ(a.k_width(), 20);
  EXPECT_EQ(a.v_width(), 20);
  EXPECT_EQ(a.o_width(), 60);
  EXPECT_EQ(a.rotary_width, 10);
  EXPECT_EQ(a.window, 7);
  c.positions = Positions::learned;
  EXPECT_EQ(c.attention(0).rotary_width, 0);
}

}  // namespace
}  // namespace moe::test
