// One attention layer against its scalar twin, forward and every gradient: heads whose values are
// narrower or wider than their keys, of which a part turns or none, and windows.
#include "model/attention.h"

#include <fmt/format.h>

#include <array>

#include "model/adapters.h"
#include "model/rope.h"
#include "support/check.h"
#include "support/files.h"
#include "support/gradient.h"
#include "support/twin_router.h"
#include "support/twins_attention.h"
#include "support/twins_rowwise.h"

namespace moe::test::attention_test {
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

// x, then q_a, q_b, kv_a, k_rope, k_b, v_b, the way out, and the gates and the sinks of heads where
// there are any.
template <class T>
using LatentInputs = std::array<std::vector<T>, 10>;

// y = x / rms(x) of rows of `width`
template <class T>
std::vector<T> unit_rows(const std::vector<T>& x, int64_t width) {
  std::vector<T> y = x;
  const auto cols = static_cast<size_t>(width);
  for (size_t n = 0; n < x.size() / cols; ++n) {
    T squares(0.0);
    for (size_t c = 0; c < cols; ++c) squares += x[n * cols + c] * x[n * cols + c];
    using std::sqrt;
    const T rms = sqrt(squares / T(static_cast<double>(cols)) + T(1e-6));
    for (size_t c = 0; c < cols; ++c) y[n * cols + c] = x[n * cols + c] / rms;
  }
  return y;
}

// What queries of latents grow by, where they do; a head has all of it, also what does not turn.
const QueryGrowth kGrowth = {.beta = 0.7f, .context = 2};

template <class T>
void grow(std::vector<T>& q, const std::vector<int32_t>& positions) {
  const size_t width = q.size() / positions.size();
  for (size_t i = 0; i < q.size(); ++i)
    q[i] *= T(1 + static_cast<double>(kGrowth.beta) *
                      std::log(1 + std::floor(static_cast<double>(positions[i / width]) /
                                              static_cast<double>(kGrowth.context))));
}

template <class T>
std::vector<T> times(std::vector<T> x, float factor) {
  for (T& v : x) v *= T(static_cast<double>(factor));
  return x;
}

// What queries are made of: the latents behind their norm, and before it too where they are of
// both.
template <class T>
std::vector<T> made_of(const std::vector<T>& raw, const LatentAttention& l) {
  const std::vector<T> normed = times(unit_rows(raw, l.query_width), l.query_factor);
  if (!l.query_both) return normed;
  const auto width = static_cast<size_t>(l.query_width);
  std::vector<T> both;
  for (size_t begin = 0; begin < raw.size(); begin += width)
    for (const std::vector<T>* half : {&normed, &raw})
      both.insert(both.end(), half->begin() + static_cast<long>(begin),
                  half->begin() + static_cast<long>(begin + width));
  return both;
}

template <class T>
std::vector<T> twin_latent_attention(const LatentInputs<T>& in, const AttentionShape& shape) {
  const twin::AttentionRows rows = twin::AttentionRows::of_lengths(kLengths);
  std::vector<double> f = frequencies(shape.shared_width);
  if (shape.rotary_width == 0) std::fill(f.begin(), f.end(), 0.0);
  const LatentAttention& l = shape.latent;
  const std::vector<T> q_from = made_of(linear(in[0], in[1], kWidth), l),
                       kv = times(unit_rows(linear(in[0], in[3], kWidth), l.width), l.factor),
                       k_rope = linear(in[0], in[4], kWidth), own = linear(kv, in[5], l.width);
  const auto turning = static_cast<size_t>(shape.shared_width),
             width = static_cast<size_t>(shape.key_width), rest = width - turning;
  std::vector<T> k;
  for (size_t n = 0; n < k_rope.size() / turning; ++n)
    for (size_t h = 0; h < static_cast<size_t>(shape.heads); ++h)
      for (size_t c = 0; c < width; ++c)
        k.push_back(c < turning
                        ? k_rope[n * turning + c]
                        : own[(n * static_cast<size_t>(shape.heads) + h) * rest + c - turning]);
  std::vector<T> q =
      twin::rope(linear(q_from, in[2], l.queries_of()), rows.positions, shape.heads, f, 1, false);
  if (shape.queries_grow) grow(q, rows.positions);
  k = twin::rope(k, rows.positions, shape.heads, f, 1, false);
  const twin::AttentionShape of{
      shape.heads,
      shape.heads,
      shape.key_width,
      shape.value_width,
      static_cast<double>(shape.score_factor) / std::sqrt(static_cast<double>(shape.key_width)),
      0};
  const std::vector<T> v = linear(kv, in[6], l.width);
  const twin::AttentionOut<T> given = twin::attention_forward(q, k, v, rows, of);
  std::vector<T> o = given.o;
  const auto values_of_head = static_cast<size_t>(shape.value_width);
  if (!in[9].empty())  // o / (1 + e^(sink - lse))
    for (size_t i = 0; i < o.size(); ++i) {
      const size_t head = i / values_of_head;
      o[i] *= twin::sigmoid(given.lse[head] - in[9][head % static_cast<size_t>(shape.heads)]);
    }
  if (!in[8].empty()) {
    const std::vector<T> gate =
        l.query_both ? linear(q_from, in[8], l.queries_of()) : linear(in[0], in[8], kWidth);
    for (size_t i = 0; i < o.size(); ++i)
      o[i] *= twin::sigmoid(gate[shape.head_gates ? i / values_of_head : i]);
  }
  return linear(o, in[7], shape.o_width());
}

enum class Latent { turns, stands, grows, gated, sunk, both, both_gated, scaled };
std::string name_of(Latent kind) {
  constexpr const char* kNames[] = {"turns", "stands", "grows",      "gated",
                                    "sunk",  "both",   "both_gated", "scaled"};
  return kNames[static_cast<size_t>(kind)];
}

struct LatentLayer {
  static constexpr int64_t kHeads = 3, kTurning = 4, kStill = 2;
  Attention attention;

  explicit LatentLayer(moe::Run& run, Latent kind = Latent::turns) {
    AttentionShape& shape = attention.shape;
    shape = {.heads = kHeads,
             .kv_heads = kHeads,
             .key_width = kTurning + kStill,
             .value_width = 5,
             .rotary_width = kTurning,
             .queries_grow = kind == Latent::grows,
             .score_factor = 1.3f,
             .latent = {.width = 7,
                        .query_width = 6,
                        .value_width = 5,
                        .query_both = kind == Latent::both || kind == Latent::both_gated},
             .shared_width = kTurning};
    if (kind == Latent::stands) shape.rotary_width = 0;
    if (kind == Latent::gated) {
      shape.gates = kHeads;
      shape.head_gates = true;
      attention.gate = draw_param(run.saved, {kHeads, kWidth}, 10, 0.7f);
    }
    if (kind == Latent::sunk) {
      shape.gates = shape.o_width();
      attention.gate = draw_param(run.saved, {shape.gates, kWidth}, 10, 0.7f);
      attention.sinks = draw_param(run.saved, {kHeads}, 11, 0.7f);
    }
    const auto ones = [&](Norm& norm, int64_t width) {
      norm.eps = 1e-6f;
      norm.weight = draw_param(run.saved, {width}, 1, 0);
      for (int64_t i = 0; i < width; ++i) norm.weight.value.as<float>()[i] = 1;
    };
    Latents& latents = attention.latents.emplace();
    latents.q_a = draw_param(run.saved, {6, kWidth}, 1, 0.7f);
    latents.kv_a = draw_param(run.saved, {7, kWidth}, 2, 0.7f);
    latents.k_rope = draw_param(run.saved, {kTurning, kWidth}, 3, 0.7f);
    ones(latents.q_norm.emplace(), 6);
    ones(latents.kv_norm, 7);
    latents.both = shape.latent.query_both;
    if (kind == Latent::scaled) {
      shape.latent.factor = latents.kv_factor = 0.6f;
      shape.latent.query_factor = latents.q_factor = 1.7f;
    }
    const int64_t from = shape.latent.queries_of();
    attention.q = draw_param(run.saved, {shape.q_width(), from}, 4, 0.7f);
    if (kind == Latent::both_gated) {
      shape.gates = shape.o_width();
      attention.gate = draw_param(run.saved, {shape.gates, from}, 10, 0.7f);
    }
    attention.k = draw_param(run.saved, {kHeads * kStill, 7}, 5, 0.7f);
    attention.v = draw_param(run.saved, {shape.v_width(), 7}, 6, 0.7f);
    attention.o = draw_param(run.saved, {kWidth, shape.o_width()}, 7, 0.7f);
  }
};

// What a layer of latents turns by, and what its queries grow by.
void prepare(moe::Run& run, Pass& pass, const AttentionShape& shape) {
  if (shape.rotary_width > 0)
    pass.cos_sin = ops::cos_sin_table(run, run.saved, pass.batch.positions,
                                      rope_frequencies(LatentLayer::kTurning, 100, {}));
  if (shape.queries_grow)
    pass.query_cos_sin =
        grown_cos_sin(run, run.saved, pass.batch, still_frequencies(shape.key_width), kGrowth);
}

void expect_latents_like_the_twin(Latent kind) {
  SCOPED_TRACE(name_of(kind));
  moe::Run run(2);
  LatentLayer layer(run, kind);
  Attention& attention = layer.attention;
  const twin::AttentionRows rows = twin::AttentionRows::of_lengths(kLengths);
  const int64_t tokens = rows.bounds.back();
  const Tensor x = draw(run.saved, DType::f32, {tokens, kWidth}, 8),
               dy = draw(run.saved, DType::f32, {tokens, kWidth}, 9);
  const Tensor y = run.saved.alloc(DType::f32, {tokens, kWidth}),
               dx = run.saved.alloc(DType::f32, {tokens, kWidth});
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  Pass pass{.batch = {ids, rows.positions, rows.bounds}, .keep = Keep::all};
  prepare(run, pass, attention.shape);
  Attention::Saved saved;
  attention.forward(run, y, x, pass, 0, saved);
  Latents& latents = *attention.latents;
  std::vector<Param*> params = {&latents.q_a, &attention.q, &latents.kv_a, &latents.k_rope,
                                &attention.k, &attention.v, &attention.o};
  if (attention.gate.present()) params.push_back(&attention.gate);
  if (attention.sinks.present()) params.push_back(&attention.sinks);
  LatentInputs<double> in = {values(x)};
  for (size_t i = 0; i < params.size(); ++i) in[i + 1] = values(params[i]->value);
  expect_near(y, twin_latent_attention(in, attention.shape), kTwinF32, "y");
  attention.backward(run, dx, dy, x, pass, saved);
  const std::vector<double> r = values(dy);
  for (size_t i = 0; i <= params.size(); ++i) {
    LatentInputs<Dual<double>> dual;
    for (size_t j = 0; j < in.size(); ++j) dual[j] = constants(in[j]);
    const std::vector<double> want = dual_gradient(in[i], [&](const DualVector& at) {
      dual[i] = at;
      return inner(twin_latent_attention(dual, attention.shape), r);
    });
    expect_near(i == 0 ? dx : params[i - 1]->grad, want, kTwinF32, fmt::format("gradient {}", i));
  }
}

TEST(AttentionLayer, OfLatentsMatchesItsTwin) {
  for (const Latent kind : {Latent::turns, Latent::stands, Latent::grows, Latent::gated,
                            Latent::sunk, Latent::both, Latent::both_gated, Latent::scaled})
    expect_latents_like_the_twin(kind);
}

// What is read from a cache is what a whole text gives: the products go another way round. So it is
// with low-rank terms, which give what they give merged.
class LatentCache : public testing::TestWithParam<Latent> {};
TEST_P(LatentCache, KeepsWhatALayerOfLatentsReads) {
  const Latent kind = GetParam();
  ModelConfig c;
  if (kind == Latent::stands) c.nope_layers = {0};
  c.layers = 1;
  c.heads = c.kv_heads = LatentLayer::kHeads;
  c.head_width = LatentLayer::kTurning + LatentLayer::kStill;
  c.latent = {.width = 7, .query_width = 6, .value_width = 5};
  c.rotary_width = LatentLayer::kTurning;
  moe::Run run(2);
  LatentLayer layer(run, kind);
  Attention& attention = layer.attention;
  constexpr int64_t kTokens = 70;
  const Tensor x = draw(run.saved, DType::f32, {kTokens, kWidth}, 8),
               whole = run.saved.alloc(DType::f32, {kTokens, kWidth}),
               pieces = run.saved.alloc(DType::f32, {kTokens, kWidth});
  const std::vector<int32_t> ids(kTokens);
  std::vector<int32_t> positions(kTokens);
  for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
  const auto forward = [&](Tensor y, int64_t begin, int64_t end, KvCache* cache) {
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    const int64_t bounds[] = {0, end - begin};
    const std::span at = std::span<const int32_t>(positions).subspan(first, count);
    Pass pass{.batch = {std::span<const int32_t>(ids).first(count), at, bounds}};
    const int32_t slots[] = {0};
    if (cache) pass.cache = cache, pass.batch.slots = slots;
    prepare(run, pass, attention.shape);
    Attention::Saved saved;
    attention.forward(run, y.slice_rows(begin, end), x.slice_rows(begin, end), pass, 0, saved);
  };
  const auto expect_same_by_cache = [&] {
    KvCache cache(c, DType::f32, kTokens);
    ASSERT_EQ(cache.open(), 0);
    cache.extend(0, kTokens);
    forward(whole, 0, kTokens, nullptr);
    forward(pieces, 0, 66, &cache);
    for (int64_t n = 66; n < kTokens; ++n) forward(pieces, n, n + 1, &cache);
    expect_near(pieces, values(whole), kTwinF32, "by the cache");
  };
  expect_same_by_cache();
  const std::vector<double> without = values(whole);

  Adapters adapters;
  Latents& latents = *attention.latents;
  for (Param* w : {&latents.q_a, &latents.kv_a, &latents.k_rope, &attention.q, &attention.k,
                   &attention.v, &attention.o, &attention.gate}) {
    if (!w->present()) continue;
    Adapter& adapter = adapters.add(*w, {2, 1.5f}, false);
    for (Param* half : {&adapter.a, &adapter.b}) {
      const Tensor drawn = draw(run.saved, DType::f32, {half->value.rows(), half->value.cols()},
                                static_cast<uint64_t>(half->value.numel()), 0.3f);
      std::copy_n(drawn.as<float>(), drawn.numel(), half->value.as<float>());
    }
  }
  expect_same_by_cache();
  const std::vector<double> hung = values(whole);
  EXPECT_GT(relative_error(hung, without), 0.05);
  for (const auto& adapter : adapters.all()) {
    Param& w = *adapter->base;
    for (int64_t o = 0; o < w.value.rows(); ++o)
      adapt_row({w.value.row<float>(o), static_cast<size_t>(w.value.cols())}, w, 0, o);
    w.touched();
  }
  adapters.take_off();
  expect_same_by_cache();
  expect_near(whole, hung, kTwinF32, "merged");
}
INSTANTIATE_TEST_SUITE_P(TurnsOrNot, LatentCache,
                         testing::Values(Latent::turns, Latent::stands, Latent::grows,
                                         Latent::gated, Latent::sunk, Latent::both,
                                         Latent::both_gated, Latent::scaled),
                         [](const auto& item) { return name_of(item.param); });

// What a model's layers are given is what its options say, one layer after another.
TEST(AttentionLayer, IsShapedByTheConfig) {
  ModelConfig c;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_width = 10;
  c.attention_window = 7;
  c.window_layers = {c.layers - 1};
  c.nope_layers = {1};
  EXPECT_EQ(c.attention(1).window, 0);
  EXPECT_EQ(c.attention(1).rotary_width, 0);
  const AttentionShape a = c.attention(c.layers - 1);
  EXPECT_EQ(a.q_width(), 60);
  EXPECT_EQ(a.k_width(), 20);
  EXPECT_EQ(a.v_width(), 20);
  EXPECT_EQ(a.o_width(), 60);
  EXPECT_EQ(a.rotary_width, 10);
  EXPECT_EQ(a.window, 7);
  c.rotary_width = 4;
  EXPECT_EQ(c.attention(0).rotary_width, 4);
  c.multipliers.attention = 2;
  EXPECT_FLOAT_EQ(c.attention(0).score_factor, 2 * std::sqrt(10.0f));
  c.positions = Positions::learned;
  EXPECT_EQ(c.attention(0).rotary_width, 0);
}

TEST(AttentionLayer, IsRefusedBesideGatesThatItCannotHave) {
  ModelConfig c;
  c.norm_gate = 4;
  EXPECT_NO_THROW(validate(c));
  const auto refused = [](ModelConfig of, auto&& change, const std::string& part) {
    change(of);
    EXPECT_FAILS(validate(of), part);
  };
  refused(
      c, [](ModelConfig& of) { of.norm_gate = -1; }, "made of -1 numbers");
  refused(
      c, [](ModelConfig& of) { of.norm_placement = NormPlacement::both; }, "before sublayers");
  refused(
      c, [](ModelConfig& of) { of.hyper.streams = 4; }, "one residual stream");
  c.kv_heads = c.heads;
  c.rotary_width = c.head_width / 2;
  c.latent = {.width = 7, .query_width = 6, .value_width = 5, .query_both = true};
  c.attention_gate = true;
  EXPECT_NO_THROW(validate(c));
  EXPECT_EQ(c.attention(0).gates, c.heads * 5);
  refused(
      c, [](ModelConfig& of) { of.latent.query_width = 0; }, "but of none");
  refused(
      c, [](ModelConfig& of) { of.latent.width = 0; }, "but of none");
  refused(
      c, [](ModelConfig& of) { of.head_gates = true; }, "a sigmoid for each number");
  refused(
      c, [](ModelConfig& of) { of.gate_softplus = true; }, "a sigmoid for each number");
}

}  // namespace
}  // namespace moe::test::attention_test
