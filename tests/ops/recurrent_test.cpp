// Layers that keep a state, against their scalar twins: forward, every gradient, and that a state
// goes on in pieces as in one.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twin_linear.h"

namespace moe::test::recurrent_test {
namespace {

using twin::flat;
using twin::matrix;

class Recurrent : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(Recurrent, ShortConvolutions) {
  const std::vector<int64_t> bounds = {0, 5, 5, 6, 13};
  constexpr int64_t kRows = 13, kChannels = 21, kTaps = 4;
  for (const auto& [silu, biased] :
       {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
    const bool with_silu = silu;
    const ops::ConvAct act = silu ? ops::ConvAct::silu : ops::ConvAct::none;
    Param w = draw_param(memory, {kChannels, kTaps}, 1), bias;
    if (biased) bias = draw_param(memory, {kChannels}, 4);
    const Tensor x = draw(memory, dtype, {kRows, kChannels + 3}, 2).slice_cols(1, 1 + kChannels),
                 dy = draw(memory, dtype, {kRows, kChannels}, 3),
                 y = memory.alloc(dtype, {kRows, kChannels}),
                 dx = memory.alloc(dtype, {kRows, kChannels});
    const std::vector<double> at[] = {values(x), values(w.value),
                                      biased ? values(bias.value) : std::vector<double>{}};
    const auto twin_of = [&](const auto& in) {
      return flat(twin::short_conv(matrix(in[0], kChannels), in[1], bounds, with_silu, in[2]));
    };
    ops::short_conv_forward(run, y, x, w, bias, bounds, {}, act);
    expect_near(y, twin_of(at), tolerance(dtype), "y");
    if (biased) {  // what stands there counts as zero
      std::fill_n(bias.grad.as<float>(), kChannels, 7.0f);
      bias.grad_is_zero = true;
    }
    ops::short_conv_backward(run, dx, w, bias, dy, x, bounds, act);
    const std::vector<double> r = values(dy);
    const Tensor got[] = {dx, w.grad, bias.grad};
    for (size_t i = 0; i < (biased ? 3 : 2); ++i) {
      DualVector dual[3];
      for (size_t j = 0; j < 3; ++j) dual[j] = constants(at[j]);
      const std::vector<double> want = dual_gradient(at[i], [&](const DualVector& in) {
        dual[i] = in;
        return inner(twin_of(dual), r);
      });
      expect_near(got[i], want, tolerance(dtype), "gradient " + std::to_string(i));
    }
  }
}

TEST_P(Recurrent, AConvolutionGoesOn) {
  constexpr int64_t kRows = 9, kChannels = 21, kTaps = 4;
  const Param w = draw_param(memory, {kChannels, kTaps}, 1),
              bias = draw_param(memory, {kChannels}, 4);
  const Tensor x = draw(memory, dtype, {kRows, kChannels}, 2),
               whole = memory.alloc(dtype, {kRows, kChannels}),
               pieces = memory.alloc(dtype, {kRows, kChannels});
  const int64_t all[] = {0, kRows};
  ops::short_conv_forward(run, whole, x, w, bias, all, {}, ops::ConvAct::silu);
  std::vector<float> kept((kTaps - 1) * kChannels);
  float* const state[] = {kept.data()};
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 7}, {7, 9}}) {
    const int64_t bounds[] = {0, end - begin};
    ops::short_conv_forward(run, pieces.slice_rows(begin, end), x.slice_rows(begin, end), w, bias,
                            bounds, state, ops::ConvAct::silu);
  }
  EXPECT_EQ(values(pieces), values(whole));
}

struct DeltaCase {
  ops::DeltaHeads heads;
  std::vector<int64_t> bounds;
};
const std::vector<DeltaCase> kDeltas = {{{1, 1, 4, 4}, {0, 3}},
                                        {{2, 4, 5, 3}, {0, 2, 2, 5}},
                                        {{1, 2, 3, 5}, {0, 70}},  // more than a chunk
                                        {{2, 2, 6, 37}, {0, 4}},  // more than a strip
                                        // channels that each have their decay
                                        {{1, 1, 4, 4, true}, {0, 3}},
                                        {{2, 4, 5, 3, true}, {0, 2, 2, 5}},
                                        {{2, 2, 3, 3, true}, {0, 70}},
                                        {{1, 1, 19, 37, true}, {0, 3}}};

struct DeltaInput {
  Tensor qkv, log_decay, strength;
  DeltaInput(Arena& memory, DType dtype, const DeltaCase& c)
      : qkv(draw(memory, dtype,
                 {c.bounds.back(), 2 * c.heads.key_heads * c.heads.key_width +
                                       c.heads.value_heads * c.heads.value_width},
                 1)),
        log_decay(
            draw(memory, DType::f32, {c.bounds.back(), c.heads.value_heads * c.heads.decays()}, 2)),
        strength(draw(memory, DType::f32, {c.bounds.back(), c.heads.value_heads}, 3)) {
    for (int64_t n = 0; n < log_decay.rows(); ++n)
      for (int64_t i = 0; i < log_decay.cols(); ++i)
        set(log_decay, n, i, -0.2f * std::fabs(get(log_decay, n, i)));
    for (int64_t n = 0; n < strength.rows(); ++n)
      for (int64_t h = 0; h < strength.cols(); ++h)
        set(strength, n, h, 2 / (1 + std::exp(-get(strength, n, h))));
  }
};

TEST_P(Recurrent, TheDeltaRuleAndItsGradients) {
  for (const DeltaCase& c : kDeltas) {
    const DeltaInput in(memory, dtype, c);
    const int64_t rows = c.bounds.back(), out = c.heads.value_heads * c.heads.value_width,
                  cols = in.qkv.cols(), heads = c.heads.value_heads, decays = in.log_decay.cols();
    const auto like = [&](const Tensor& t) { return memory.alloc(t.dtype, {t.rows(), t.cols()}); };
    const Tensor o = memory.alloc(dtype, {rows, out}), dout = draw(memory, dtype, {rows, out}, 4),
                 chunks = memory.alloc(DType::f32,
                                       {ops::delta_chunks(c.bounds), out * c.heads.key_width}),
                 dqkv = like(in.qkv), ddecay = like(in.log_decay), dstrength = like(in.strength);
    ops::delta_rule_forward(run, o, chunks, in.qkv, in.log_decay, in.strength, c.heads, c.bounds,
                            {});
    const std::vector<double> x = values(in.qkv), g = values(in.log_decay), b = values(in.strength),
                              r = values(dout);
    const auto twin_of = [&](const auto& qkv, const auto& decay, const auto& strength) {
      return flat(twin::delta_rule(matrix(qkv, cols), matrix(decay, decays),
                                   matrix(strength, heads), c.heads, c.bounds));
    };
    expect_near(o, twin_of(x, g, b), tolerance(dtype), "o");
    ops::delta_rule_backward(run, dqkv, ddecay, dstrength, dout, chunks, in.qkv, in.log_decay,
                             in.strength, c.heads, c.bounds);
    const DualVector xs = constants(x), gs = constants(g), bs = constants(b);
    expect_near(
        dqkv, dual_gradient(x, [&](const DualVector& at) { return inner(twin_of(at, gs, bs), r); }),
        tolerance(dtype), "dqkv");
    expect_near(
        ddecay,
        dual_gradient(g, [&](const DualVector& at) { return inner(twin_of(xs, at, bs), r); }),
        tolerance(dtype), "dlog_decay");
    expect_near(
        dstrength,
        dual_gradient(b, [&](const DualVector& at) { return inner(twin_of(xs, gs, at), r); }),
        tolerance(dtype), "dstrength");
  }
}

TEST_P(Recurrent, AStateGoesOn) {
  for (const bool by_channel : {false, true}) {
    const DeltaCase c = {{2, 4, 5, 37, by_channel}, {0, 150}};
    const DeltaInput in(memory, dtype, c);
    const int64_t out = c.heads.value_heads * c.heads.value_width;
    const Tensor whole = memory.alloc(dtype, {150, out}), pieces = memory.alloc(dtype, {150, out});
    ops::delta_rule_forward(run, whole, {}, in.qkv, in.log_decay, in.strength, c.heads, c.bounds,
                            {});
    std::vector<float> kept(static_cast<size_t>(out * c.heads.key_width));
    float* const state[] = {kept.data()};
    for (const auto& [begin, end] : {std::pair{0, 70}, {70, 71}, {71, 72}, {72, 150}}) {
      const int64_t bounds[] = {0, end - begin};
      const auto part = [&, from = begin, to = end](const Tensor& t) {
        return t.slice_rows(from, to);
      };
      ops::delta_rule_forward(run, part(pieces), {}, part(in.qkv), part(in.log_decay),
                              part(in.strength), c.heads, bounds, state);
    }
    EXPECT_EQ(values(pieces), values(whole));
  }
}

// A head whose channels all have one decay is a head with that decay.
TEST_P(Recurrent, EqualDecaysOfChannelsAreTheHeads) {
  const DeltaCase by_head = {{2, 4, 5, 37}, {0, 3, 70}};
  DeltaCase by_channel = by_head;
  by_channel.heads.by_channel = true;
  const DeltaInput in(memory, dtype, by_head), spread(memory, dtype, by_channel);
  for (int64_t n = 0; n < 70; ++n)
    for (int64_t c = 0; c < spread.log_decay.cols(); ++c)
      set(spread.log_decay, n, c, get(in.log_decay, n, c / by_head.heads.key_width));
  const int64_t out = by_head.heads.value_heads * by_head.heads.value_width;
  const Tensor want = memory.alloc(dtype, {70, out}), got = memory.alloc(dtype, {70, out});
  ops::delta_rule_forward(run, want, {}, in.qkv, in.log_decay, in.strength, by_head.heads,
                          by_head.bounds, {});
  ops::delta_rule_forward(run, got, {}, in.qkv, spread.log_decay, in.strength, by_channel.heads,
                          by_channel.bounds, {});
  expect_near(got, values(want), tolerance(dtype), "o");
}

INSTANTIATE_TEST_SUITE_P(All, Recurrent,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

// log_decay = -e^a_log log(1 + e^(a + dt_bias)), strength = 1 / (1 + e^-b)
template <class T>
std::pair<std::vector<T>, std::vector<T>> twin_gates(const std::vector<T>& a,
                                                     const std::vector<T>& b,
                                                     const std::vector<T>& a_log,
                                                     const std::vector<T>& dt_bias, double most,
                                                     double floor) {
  using std::exp, std::log;
  std::vector<T> decay, strength;
  const size_t each = dt_bias.size() / a_log.size();
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t c = i % dt_bias.size();
    const T rate = exp(a_log[c / each]), x = a[i] + dt_bias[c];
    decay.push_back(floor < 0 ? T(floor) * twin::sigmoid(rate * x) : -rate * log(T(1.0) + exp(x)));
  }
  for (const T& x : b) strength.push_back(T(most) * twin::sigmoid(x));
  return {decay, strength};
}

// With a decay of each head, and of each of its channels, which a floor may bound; strengths up to
// 1 and to 2.
class DeltaGates : public testing::TestWithParam<std::tuple<int64_t, float, float>> {};

TEST_P(DeltaGates, AndTheirGradients) {
  Arena memory;
  moe::Run run(2);
  constexpr int64_t kRows = 11, kHeads = 3;
  const auto [channels, strongest, floor] = GetParam();
  const int64_t decays = kHeads * channels;
  const float most = strongest, bound = floor;
  Param a_log = draw_param(memory, {kHeads}, 1), dt_bias = draw_param(memory, {decays}, 2);
  const auto of_width = [&](int64_t cols, uint64_t seed) {
    return draw(memory, DType::f32, {kRows, cols}, seed);
  };
  const Tensor a = of_width(decays, 3), b = of_width(kHeads, 4), ddecay = of_width(decays, 5),
               dstrength = of_width(kHeads, 6), decay = of_width(decays, 7),
               strength = of_width(kHeads, 8);
  ops::delta_gates_forward(run, decay, strength, a, b, a_log, dt_bias, most, bound);
  const std::vector<double> in[] = {values(a), values(b), values(a_log.value),
                                    values(dt_bias.value)};
  const auto [want_decay, want_strength] = twin_gates(in[0], in[1], in[2], in[3], most, bound);
  expect_near(decay, want_decay, kTwinF32, "log_decay");
  expect_near(strength, want_strength, kTwinF32, "strength");
  const std::vector<double> r = values(ddecay), s = values(dstrength);
  ops::delta_gates_backward(run, ddecay, dstrength, a_log, dt_bias, ddecay, dstrength, a, b, most,
                            bound);
  const Tensor got[] = {ddecay, dstrength, a_log.grad, dt_bias.grad};
  for (size_t i = 0; i < 4; ++i) {
    DualVector dual[4];
    for (size_t j = 0; j < 4; ++j) dual[j] = constants(in[j]);
    const std::vector<double> want = dual_gradient(in[i], [&](const DualVector& at) {
      dual[i] = at;
      const auto [of_decay, of_strength] =
          twin_gates(dual[0], dual[1], dual[2], dual[3], most, bound);
      return inner(of_decay, r) + inner(of_strength, s);
    });
    expect_near(got[i], want, kTwinF32, "gradient " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaGates,
                         testing::Combine(testing::Values(1, 5), testing::Values(1.0f, 2.0f),
                                          testing::Values(0.0f, -5.0f)));

TEST(RecurrentErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Param w = draw_param(memory, {4, 3}, 1);
  const Tensor x = draw(memory, DType::f32, {2, 5}, 1), y = draw(memory, DType::f32, {2, 5}, 2);
  const int64_t bounds[] = {0, 2};
  EXPECT_THROW(ops::short_conv_forward(run, y, x, w, {}, bounds, {}, ops::ConvAct::none), Error);
  const Param fits = draw_param(memory, {5, 3}, 6), bias = draw_param(memory, {4}, 7);
  EXPECT_THROW(ops::short_conv_forward(run, y, x, fits, bias, bounds, {}, ops::ConvAct::none),
               Error);
  EXPECT_THROW(ops::delta_rule_forward(run, y, {}, x, y, y, {1, 1, 2, 2}, bounds, {}), Error);
  // a decay of each head where each channel wants its own
  const Tensor qkv = draw(memory, DType::f32, {2, 6}, 3), o = draw(memory, DType::f32, {2, 2}, 4),
               of_head = draw(memory, DType::f32, {2, 1}, 5);
  EXPECT_THROW(
      ops::delta_rule_forward(run, o, {}, qkv, of_head, of_head, {1, 1, 2, 2, true}, bounds, {}),
      Error);
}

}  // namespace
}  // namespace moe::test::recurrent_test
