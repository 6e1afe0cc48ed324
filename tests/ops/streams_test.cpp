// Residual streams beside one another: what a sublayer sees of them and gives to them against the
// formulas in double and on dual numbers, and the weights of tokens, which the streams' mixing
// makes doubly stochastic.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"

namespace moe::test::streams_test {
namespace {

// w of one token [W] from z, base [W] and the scales.
template <class T>
std::vector<T> weights_twin(const std::vector<T>& z, const std::vector<T>& base,
                            const std::vector<T>& scale, const ops::HyperShape& shape) {
  using std::exp;
  const auto streams = static_cast<size_t>(shape.streams), parts = scale.size();
  const T eps(static_cast<double>(shape.eps)), one(1.0);
  std::vector<T> w;
  for (size_t i = 0; i < z.size(); ++i)
    w.push_back(scale[std::min(i / streams, size_t{2})] * z[i] + base[i]);
  for (size_t i = 0; i < std::min(w.size(), 2 * streams); ++i) {
    const T share = one / (one + exp(-w[i]));
    w[i] = i < streams ? share + eps
                       : T(static_cast<double>(shape.magnitude)) * share + (parts == 2 ? eps : T{});
  }
  if (parts < 3) return w;
  const auto at = [&](size_t j, size_t k) -> T& { return w[(2 + j) * streams + k]; };
  for (size_t j = 0; j < streams; ++j) {
    T sum{};
    for (size_t k = 0; k < streams; ++k) sum += at(j, k) = exp(at(j, k));
    for (size_t k = 0; k < streams; ++k) at(j, k) = at(j, k) / sum + eps;
  }
  for (int64_t step = 1; step < 2 * shape.rounds; ++step)
    for (size_t i = 0; i < streams; ++i) {
      T sum = eps;
      for (size_t k = 0; k < streams; ++k) sum += step % 2 == 1 ? at(k, i) : at(i, k);
      for (size_t k = 0; k < streams; ++k) (step % 2 == 1 ? at(k, i) : at(i, k)) /= sum;
    }
  return w;
}

// All tokens' together.  z [N,W]
template <class T>
std::vector<T> all_weights(const std::vector<T>& z, const std::vector<T>& base,
                           const std::vector<T>& scale, const ops::HyperShape& shape) {
  std::vector<T> all;
  for (size_t n = 0; n < z.size(); n += base.size()) {
    const auto begin = z.begin() + static_cast<long>(n);
    const std::vector<T> w =
        weights_twin({begin, begin + static_cast<long>(base.size())}, base, scale, shape);
    all.insert(all.end(), w.begin(), w.end());
  }
  return all;
}

struct Shape {
  ops::HyperShape hyper;
  int64_t parts;
  int64_t weights() const { return hyper.streams * (parts == 3 ? 2 + hyper.streams : parts); }
};
const Shape kShapes[] = {
    {{.streams = 4}, 1},
    {{.streams = 3, .magnitude = 1.5f, .eps = 1e-2f}, 2},
    {{.streams = 4, .mixes = true}, 3},
    {{.streams = 2, .mixes = true, .eps = 1e-2f, .rounds = 1}, 3},
    {{.streams = 5, .mixes = true, .magnitude = 3, .rounds = 4}, 3},
};

TEST(Streams, WeightsAndTheirGradientsMatchTheTwin) {
  for (const Shape& shape : kShapes) {
    moe::Run run(2);
    const std::string what = fmt::format("{} streams, {} parts", shape.hyper.streams, shape.parts);
    const int64_t tokens = 5, weights = shape.weights();
    const Tensor z = draw(run.saved, DType::f32, {tokens, weights}, 1),
                 w = run.saved.alloc(DType::f32, {tokens, weights}),
                 dw = draw(run.saved, DType::f32, {tokens, weights}, 2),
                 dz = run.saved.alloc(DType::f32, {tokens, weights});
    Param base = draw_param(run.saved, {weights}, 3, 0.7f),
          scale = draw_param(run.saved, {shape.parts}, 4, 0.7f);
    ops::hyper_weights_forward(run, w, z, base, scale, shape.hyper);
    const std::vector<double> of_z = values(z), of_base = values(base.value),
                              of_scale = values(scale.value), r = values(dw);
    expect_near(w, all_weights(of_z, of_base, of_scale, shape.hyper), kTwinF32, what);
    ops::hyper_weights_backward(run, dz, base, scale, dw, z, shape.hyper);
    const auto loss = [&](const DualVector& x, const DualVector& b, const DualVector& s) {
      return inner(all_weights(x, b, s, shape.hyper), r);
    };
    expect_near(dz,
                dual_gradient(of_z,
                              [&](const DualVector& at) {
                                return loss(at, constants(of_base), constants(of_scale));
                              }),
                kTwinF32, what + " dz");
    expect_near(base.grad,
                dual_gradient(of_base,
                              [&](const DualVector& at) {
                                return loss(constants(of_z), at, constants(of_scale));
                              }),
                kTwinF32, what + " dbase");
    expect_near(scale.grad,
                dual_gradient(of_scale,
                              [&](const DualVector& at) {
                                return loss(constants(of_z), constants(of_base), at);
                              }),
                kTwinF32, what + " dscale");
  }
}

TEST(Streams, MixingIsDoublyStochasticAfterTwentyRounds) {
  moe::Run run(1);
  const ops::HyperShape shape = {.streams = 4, .mixes = true};
  const Tensor z = draw(run.saved, DType::f32, {50, shape.weights()}, 1, 3),
               w = run.saved.alloc(DType::f32, {50, shape.weights()});
  Param base = draw_param(run.saved, {shape.weights()}, 2, 1),
        scale = draw_param(run.saved, {3}, 3, 1);
  ops::hyper_weights_forward(run, w, z, base, scale, shape);
  for (int64_t n = 0; n < 50; ++n)
    for (int64_t i = 0; i < 4; ++i) {
      double row = 0, column = 0;
      for (int64_t k = 0; k < 4; ++k) {
        row += get(w, n, (2 + i) * 4 + k);
        column += get(w, n, (2 + k) * 4 + i);
        EXPECT_GT(get(w, n, (2 + i) * 4 + k), 0);
      }
      EXPECT_NEAR(column, 1, 1e-4);
      EXPECT_NEAR(row, 1, 2e-2);
    }
}

// What is collapsed of h [N,SD]; and what is spread over it from y [N,D].
template <class T>
std::vector<T> collapse_twin(const std::vector<T>& h, const std::vector<T>& w, size_t tokens,
                             size_t streams) {
  const size_t width = h.size() / tokens / streams, weights = w.size() / tokens;
  std::vector<T> x(tokens * width, T{});
  for (size_t n = 0; n < tokens; ++n)
    for (size_t s = 0; s < streams; ++s)
      for (size_t d = 0; d < width; ++d)
        x[n * width + d] += w[n * weights + s] * h[(n * streams + s) * width + d];
  return x;
}
template <class T>
std::vector<T> spread_twin(const std::vector<T>& h, const std::vector<T>& y,
                           const std::vector<T>& w, size_t tokens, size_t streams, bool mixes) {
  const size_t width = y.size() / tokens, weights = w.size() / tokens;
  std::vector<T> out(h.size(), T{});
  for (size_t n = 0; n < tokens; ++n)
    for (size_t k = 0; k < streams; ++k)
      for (size_t d = 0; d < width; ++d) {
        T& one = out[(n * streams + k) * width + d];
        one = w[n * weights + streams + k] * y[n * width + d];
        if (!mixes) one += h[(n * streams + k) * width + d];
        for (size_t j = 0; mixes && j < streams; ++j)
          one += w[n * weights + (2 + j) * streams + k] * h[(n * streams + j) * width + d];
      }
  return out;
}

void expect_streams(int64_t width, bool mixes) {
  SCOPED_TRACE(fmt::format("width {}, {}", width, mixes ? "mixed" : "apart"));
  constexpr int64_t kTokens = 3, kStreams = 3;
  moe::Run run(2);
  Arena arena;
  const int64_t weights = kStreams * (mixes ? 2 + kStreams : 2);
  const Fenced h(arena, DType::f32, kTokens, kStreams * width, 1),
      out(arena, DType::f32, kTokens, kStreams * width), x(arena, DType::f32, kTokens, width),
      y(arena, DType::f32, kTokens, width, 2), w(arena, DType::f32, kTokens, weights, 3),
      dx(arena, DType::f32, kTokens, width, 4), dh(arena, DType::f32, kTokens, kStreams * width, 5),
      dw(arena, DType::f32, kTokens, weights), dy(arena, DType::f32, kTokens, width),
      dout(arena, DType::f32, kTokens, kStreams * width, 6);
  const std::vector<double> of_h = values(h.view), of_y = values(y.view), of_w = values(w.view),
                            r = values(dout.view), q = values(dx.view), before = values(dh.view);
  ops::collapse_streams_forward(run, x.view, h.view, w.view);
  expect_near(x.view, collapse_twin(of_h, of_w, kTokens, kStreams), kTwinF32, "collapsed");
  ops::spread_streams_forward(run, out.view, h.view, y.view, w.view, mixes);
  expect_near(out.view, spread_twin(of_h, of_y, of_w, kTokens, kStreams, mixes), kTwinF32,
              "spread");

  const auto of_x = [&](const DualVector& a, const DualVector& b) {
    return inner(collapse_twin(a, b, kTokens, kStreams), q);
  };
  ops::collapse_streams_backward_acc(run, dh.view, dw.view, dx.view, h.view, w.view);
  std::vector<double> want =
      dual_gradient(of_h, [&](const DualVector& at) { return of_x(at, constants(of_w)); });
  for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
  expect_near(dh.view, want, kTwinF32, "dh of collapsing, added");
  const std::vector<double> of_pre =
      dual_gradient(of_w, [&](const DualVector& at) { return of_x(constants(of_h), at); });

  const auto of_out = [&](const DualVector& a, const DualVector& b, const DualVector& c) {
    return inner(spread_twin(a, b, c, kTokens, kStreams, mixes), r);
  };
  ops::spread_streams_backward(run, dh.view, dy.view, dw.view, dout.view, h.view, y.view, w.view,
                               mixes);
  expect_near(
      dh.view,
      dual_gradient(
          of_h, [&](const DualVector& at) { return of_out(at, constants(of_y), constants(of_w)); }),
      kTwinF32, "dh of spreading");
  expect_near(
      dy.view,
      dual_gradient(
          of_y, [&](const DualVector& at) { return of_out(constants(of_h), at, constants(of_w)); }),
      kTwinF32, "dy");
  want = dual_gradient(
      of_w, [&](const DualVector& at) { return of_out(constants(of_h), constants(of_y), at); });
  for (size_t i = 0; i < want.size(); ++i) want[i] += of_pre[i];
  expect_near(dw.view, want, kTwinF32, "dw of both");
  EXPECT_TRUE(h.intact() && out.intact() && x.intact() && dh.intact() && dy.intact() &&
              dw.intact());
}

TEST(Streams, CollapsingAndSpreadingMatchTheTwin) {
  for (const int64_t width : {1, 7, 16, 33})
    for (const bool mixes : {false, true}) expect_streams(width, mixes);
}

TEST(Streams, ShapesThatDoNotFitAreRefused) {
  moe::Run run(1);
  const Tensor h = draw(run.saved, DType::f32, {2, 12}, 1),
               x = draw(run.saved, DType::f32, {2, 5}, 2),
               w = draw(run.saved, DType::f32, {2, 8}, 3);
  EXPECT_THROW(ops::collapse_streams_forward(run, x, h, w), Error);
  Param base = draw_param(run.saved, {7}, 4, 1), scale = draw_param(run.saved, {2}, 5, 1);
  EXPECT_THROW(ops::hyper_weights_forward(run, w, w, base, scale, {.streams = 4}), Error);
}

}  // namespace
}  // namespace moe::test::streams_test
