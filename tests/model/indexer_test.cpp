// Sparse attention: a layer against its scalar twin, given what its indexer chose, and the choice
// against every score; a model in one piece, in pieces and among others.
#include "model/indexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "model/attention.h"
#include "model/cost.h"
#include "model/rope.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/same_rows.h"
#include "support/twins_choice.h"
#include "support/twins_rowwise.h"

namespace moe::test::indexer_test {
namespace {

constexpr int64_t kWidth = 6, kHeads = 3, kTurning = 4, kOwn = 3, kLatent = 7, kQueries = 6,
                  kValues = 5, kTop = 11, kIndexHeads = 4, kIndexWidth = 6;
using Vector = std::vector<double>;

// y[n,o] = sum_i x[n,i] w[o,i]
Vector linear(const Vector& x, const Tensor& weight) {
  const Vector w = values(weight);
  const auto in = static_cast<size_t>(weight.cols()), out = static_cast<size_t>(weight.rows());
  Vector y(x.size() / in * out);
  for (size_t n = 0; n < x.size() / in; ++n)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i) y[n * out + o] += x[n * in + i] * w[o * in + i];
  return y;
}

struct SparseLayer {
  Attention attention;

  SparseLayer(moe::Run& run, bool indexed) {
    const auto matrix = [&](Param& param, int64_t out, int64_t in, uint64_t seed) {
      param = draw_param(run.saved, {out, in}, seed, 0.7f);
    };
    const auto vector = [&](Param& param, int64_t width, uint64_t seed) {
      param = draw_param(run.saved, {width}, seed, 0.3f);
      for (int64_t i = 0; i < width; ++i) param.value.as<float>()[i] += 1;
    };
    attention.shape = {
        .heads = kHeads,
        .kv_heads = kHeads,
        .key_width = kTurning + kOwn,
        .value_width = kValues,
        .rotary_width = kTurning,
        .score_factor = 1.3f,
        .latent = {.width = kLatent, .query_width = kQueries, .value_width = kValues},
        .shared_width = kTurning,
        .top = kTop,
        .index_heads = indexed ? kIndexHeads : 0,
        .index_width = indexed ? kIndexWidth : 0};
    Latents& latents = attention.latents.emplace();
    matrix(latents.q_a, kQueries, kWidth, 1);
    matrix(latents.kv_a, kLatent, kWidth, 2);
    matrix(latents.k_rope, kTurning, kWidth, 3);
    latents.q_norm.emplace().eps = latents.kv_norm.eps = 1e-6f;
    vector(latents.q_norm->weight, kQueries, 4);
    vector(latents.kv_norm.weight, kLatent, 5);
    matrix(attention.q, kHeads * (kTurning + kOwn), kQueries, 6);
    matrix(attention.k, kHeads * kOwn, kLatent, 7);
    matrix(attention.v, kHeads * kValues, kLatent, 8);
    matrix(attention.o, kWidth, kHeads * kValues, 9);
    if (!indexed) return;
    Indexer& indexer = attention.indexer.emplace();
    matrix(indexer.q, kIndexHeads * kIndexWidth, kQueries, 10);
    matrix(indexer.k, kIndexWidth, kWidth, 11);
    matrix(indexer.weights, kIndexHeads, kWidth, 12);
    indexer.k_norm.kind = NormKind::layer;
    indexer.k_norm.eps = 1e-6f;
    vector(indexer.k_norm.weight, kIndexWidth, 13);
    vector(indexer.k_norm.bias, kIndexWidth, 14);
  }
};

// Some sequences laid end to end, whole.
struct Texts {
  std::vector<int64_t> bounds = {0};
  std::vector<int32_t> positions, ids;
  Texts(std::initializer_list<int32_t> lengths) {
    for (const int32_t length : lengths) {
      for (int32_t p = 0; p < length; ++p) positions.push_back(p);
      bounds.push_back(static_cast<int64_t>(positions.size()));
    }
    ids.resize(positions.size());
  }
  int64_t tokens() const { return bounds.back(); }
};

std::vector<int32_t> list_of(const Tensor& kept, int64_t n) {
  std::vector<int32_t> list(kept.row<int32_t>(n), kept.row<int32_t>(n) + kept.cols());
  while (!list.empty() && list.back() == -1) list.pop_back();
  return list;
}

// How far the choice is from the best by scores in double.
void expect_best(const Attention& attention, const Vector& x, const Texts& texts,
                 const Tensor& kept) {
  const Indexer& of = *attention.indexer;
  const Vector f = rope_frequencies(kTurning, 100, {}).frequency,
               from = twin::rms_norm_forward(linear(x, attention.latents->q_a.value),
                                             values(attention.latents->q_norm->weight.value), 1e-6),
               q = twin::rope(linear(from, of.q.value), texts.positions, kIndexHeads, f, 1, false),
               k = twin::rope(
                   twin::layer_norm_forward(linear(x, of.k.value), values(of.k_norm.weight.value),
                                            values(of.k_norm.bias.value), 1e-6),
                   texts.positions, 1, f, 1, false),
               w = linear(x, of.weights.value);
  for (size_t s = 0; s + 1 < texts.bounds.size(); ++s)
    for (int64_t n = texts.bounds[s]; n < texts.bounds[s + 1]; ++n) {
      const int64_t seen = texts.positions[static_cast<size_t>(n)] + 1;
      const Vector scores =
          twin::key_scores(q.data() + n * kIndexHeads * kIndexWidth, w.data() + n * kIndexHeads, k,
                           texts.bounds[s], seen, kIndexHeads, kIndexWidth);
      const std::vector<int32_t> list = list_of(kept, n);
      ASSERT_EQ(std::ssize(list), std::min(seen, kTop)) << n;
      ASSERT_TRUE(std::is_sorted(list.begin(), list.end())) << n;
      EXPECT_LT(twin::missed_by(scores, list), 1e-4) << n;
    }
}

// Attention of every query to what `kept` lists, and to nothing else.
Vector twin_of(const Attention& attention, const Vector& x, const Texts& texts,
               const Tensor& kept) {
  const Latents& latents = *attention.latents;
  const Vector f = rope_frequencies(kTurning, 100, {}).frequency;
  const Vector from = twin::rms_norm_forward(linear(x, latents.q_a.value),
                                             values(latents.q_norm->weight.value), 1e-6),
               kv = twin::rms_norm_forward(linear(x, latents.kv_a.value),
                                           values(latents.kv_norm.weight.value), 1e-6),
               q = twin::rope(linear(from, attention.q.value), texts.positions, kHeads, f, 1,
                              false),
               turned =
                   twin::rope(linear(x, latents.k_rope.value), texts.positions, 1, f, 1, false),
               own = linear(kv, attention.k.value), v = linear(kv, attention.v.value);
  constexpr size_t kC = kTurning + kOwn;
  const double scale = static_cast<double>(attention.shape.score_factor) / std::sqrt(kC);
  Vector o(static_cast<size_t>(texts.tokens() * kHeads * kValues));
  for (size_t s = 0; s + 1 < texts.bounds.size(); ++s)
    for (int64_t n = texts.bounds[s]; n < texts.bounds[s + 1]; ++n)
      for (size_t h = 0; h < kHeads; ++h) {
        const size_t at = static_cast<size_t>(n) * kHeads + h;
        double total = 0;
        for (const int32_t place : list_of(kept, n)) {
          const auto j = static_cast<size_t>(texts.bounds[s] + place);
          double score = 0;
          for (size_t c = 0; c < kC; ++c)
            score += q[at * kC + c] * (c < kTurning ? turned[j * kTurning + c]
                                                    : own[(j * kHeads + h) * kOwn + c - kTurning]);
          const double p = std::exp(scale * score);
          total += p;
          for (size_t c = 0; c < kValues; ++c)
            o[at * kValues + c] += p * v[(j * kHeads + h) * kValues + c];
        }
        for (size_t c = 0; c < kValues; ++c) o[at * kValues + c] /= total;
      }
  return linear(o, attention.o.value);
}

Pass pass_of(moe::Run& run, const Texts& texts) {
  Pass pass{.batch = {texts.ids, texts.positions, texts.bounds}};
  pass.cos_sin =
      ops::cos_sin_table(run, run.saved, texts.positions, rope_frequencies(kTurning, 100, {}));
  pass.kept = run.saved.alloc(DType::i32, {texts.tokens(), kTop});
  return pass;
}

TEST(SparseAttention, ALayerSeesWhatItsIndexerChose) {
  for (const int threads : {1, 2}) {
    moe::Run run(threads);
    SparseLayer layer(run, true);
    const Texts texts({40, 1, 70, 11});
    const Tensor x = draw(run.saved, DType::f32, {texts.tokens(), kWidth}, 20),
                 y = run.saved.alloc(DType::f32, {texts.tokens(), kWidth});
    const Pass pass = pass_of(run, texts);
    Attention::Saved saved;
    layer.attention.forward(run, y, x, pass, 0, saved);
    expect_best(layer.attention, values(x), texts, pass.kept);
    expect_near(y, twin_of(layer.attention, values(x), texts, pass.kept), kTwinF32, "y");
    EXPECT_FAILS(layer.attention.backward(run, y, x, x, pass, saved),
                 "beyond 11 tokens the attention of the model is sparse, which is not trained");
  }
}

// One without an indexer takes the choice that stands there, whatever it is.
TEST(SparseAttention, ALayerFollowsAnothersChoice) {
  moe::Run run(2);
  SparseLayer layer(run, false);
  const Texts texts({30, 25});
  const Tensor x = draw(run.saved, DType::f32, {texts.tokens(), kWidth}, 21),
               y = run.saved.alloc(DType::f32, {texts.tokens(), kWidth});
  const Pass pass = pass_of(run, texts);
  for (int64_t n = 0; n < texts.tokens(); ++n) {
    const int32_t position = texts.positions[static_cast<size_t>(n)];
    std::fill_n(pass.kept.row<int32_t>(n), kTop, -1);
    for (int32_t i = 0; i <= std::min<int32_t>(position, kTop - 1); ++i)  // the first, and itself
      pass.kept.row<int32_t>(n)[i] = i == kTop - 1 ? position : i;
  }
  Attention::Saved saved;
  layer.attention.forward(run, y, x, pass, 0, saved);
  expect_near(y, twin_of(layer.attention, values(x), texts, pass.kept), kTwinF32, "y");
}

// ---- a model ------------------------------------------------------------------------------------

ModelConfig sparse_config(std::vector<int64_t> followers) {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 32;
  c.layers = 3;
  c.heads = c.kv_heads = 4;
  c.head_width = 12;
  c.rotary_width = 4;
  c.latent = {.width = 16, .query_width = 24, .value_width = 8};
  c.sparse = {.top = 24, .heads = 8, .width = 16, .followers = std::move(followers)};
  c.context = 300;
  c.dense_width = 48;
  c.init.std = 0.15f;
  return c;
}

struct Eval {
  explicit Eval(const ModelConfig& c, DType dtype = DType::f32, int threads = 2)
      : model(c), run(threads, dtype) {
    model.initialise(3);
  }
  static std::vector<int32_t> text(int64_t length, uint64_t seed) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i)
      ids.push_back(static_cast<int32_t>(
          uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 50)));
    return ids;
  }
  // Logits of texts' tokens from position `first` on, which the cache's slots hold the others of.
  Vector logits(const std::vector<std::vector<int32_t>>& texts, KvCache* cache = nullptr,
                const std::vector<int32_t>& slots = {}, int32_t first = 0) {
    std::vector<int32_t> ids, positions;
    std::vector<int64_t> bounds = {0};
    for (const auto& text : texts) {
      for (size_t i = 0; i < text.size(); ++i)
        ids.push_back(text[i]), positions.push_back(first + static_cast<int32_t>(i));
      bounds.push_back(std::ssize(ids));
    }
    const ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run, {.batch = {ids, positions, bounds, slots}, .cache = cache}, saved);
    const Tensor out = run.saved.alloc(DType::f32, {std::ssize(ids), 50});
    model.logits(run, out, saved.hidden);
    return values(out);
  }
  Vector in_pieces(const std::vector<int32_t>& text, int64_t piece, DType cached) {
    KvCache cache(model.config(), cached, std::ssize(text));
    const int32_t slot = cache.open();
    Vector all;
    for (int64_t at = 0; at < std::ssize(text); at += piece) {
      const int64_t count = std::min(piece, std::ssize(text) - at);
      cache.extend(slot, count);
      const auto begin = text.begin() + at;
      const Vector some =
          logits({{begin, begin + count}}, &cache, {slot}, static_cast<int32_t>(at));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  Model model;
  moe::Run run;
};

TEST(SparseModel, PiecesThreadsAndNeighboursChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!ops::products_keep_row_bits(dtype)) continue;
    Eval one(sparse_config({1}), dtype, 1), two(sparse_config({1}), dtype, 2);
    const std::vector<int32_t> text = Eval::text(150, 5), other = Eval::text(40, 6);
    const Vector whole = one.in_pieces(text, 150, dtype);
    for (const int64_t piece : {1, 7, 64}) {
      EXPECT_EQ(one.in_pieces(text, piece, dtype), whole) << piece;
      EXPECT_EQ(two.in_pieces(text, piece, dtype), whole) << piece;
    }
    KvCache cache(one.model.config(), dtype, 256);
    const std::vector<int32_t> slots = {cache.open(), cache.open()};
    cache.extend(slots[0], 40);
    cache.extend(slots[1], 150);
    Vector both = two.logits({other, text}, &cache, slots);
    both.erase(both.begin(), both.begin() + 40 * 50);
    EXPECT_EQ(both, whole);
  }
}

TEST(SparseModel, HasNoTextsThatEndForAnotherReason) {
  ModelConfig c = sparse_config({1});
  c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
  EXPECT_NO_THROW(validate(c));
  c.rope_scaling.kind = RopeScaling::Kind::dynamic;
  EXPECT_THROW(validate(c), Error);
}

TEST(SparseModel, OneForwardIsWhatTheCacheGives) {
  Eval eval(sparse_config({1}));
  const std::vector<int32_t> text = Eval::text(100, 5);
  const Vector whole = eval.logits({text});
  expect_near(eval.in_pieces(text, 9, DType::f32), whole, kTwinF32, "by the cache");
  // Every token sees all of a text as short as this; of a longer one not.
  ModelConfig all = sparse_config({1}), dense = sparse_config({});
  all.sparse.top = 100;
  dense.sparse = {};
  Eval seeing(all), unasked(dense);
  for (Param* p : unasked.model.params()) {
    const Tensor from = seeing.model.find(*p)->value;
    std::copy_n(from.as<float>(), from.numel(), p->value.as<float>());
    p->touched();
  }
  EXPECT_EQ(seeing.logits({text}), unasked.logits({text}));
  for (const Param* p : eval.model.params()) {  // drawn in the same order
    const Tensor from = seeing.model.find(*p)->value;
    EXPECT_EQ(values(p->value), values(from)) << p->name;
  }
  EXPECT_GT(relative_error(whole, seeing.logits({text})), 1e-3);
}

// Blocks that sequences share, and those that one of them copies to go on, hold its index too.
TEST(SparseModel, ASequenceMayBeginWithAnothersBlocks) {
  Eval eval(sparse_config({}));
  const std::vector<int32_t> text = Eval::text(140, 5);
  const Vector whole = eval.in_pieces(text, 140, DType::f32);
  KvCache cache(eval.model.config(), DType::f32, 512);
  const int32_t first = cache.open(), second = cache.open();
  cache.extend(first, 128);
  eval.logits({{text.begin(), text.begin() + 128}}, &cache, {first});
  cache.adopt(second, cache.blocks(first));
  cache.truncate(second, 100);
  cache.extend(second, 40);
  const Vector rest = eval.logits({{text.begin() + 100, text.end()}}, &cache, {second}, 100);
  EXPECT_EQ(rest, Vector(whole.begin() + 100 * 50, whole.end()));
}

TEST(SparseModel, TheChoiceHasNoGradients) {
  Model model(sparse_config({1}));
  model.enable_grads();
  int64_t frozen = 0;
  for (const Param* p : model.params()) {
    EXPECT_EQ(p->grad.empty(), is_of_indexer(p->kind)) << p->name;
    frozen += p->frozen ? p->value.numel() : 0;
  }
  EXPECT_EQ(frozen, 2 * (8 * 16 * 24 + 16 * 32 + 8 * 32 + 2 * 16));
  EXPECT_EQ(count_params(model.config()).frozen, frozen);
  // What a token leaves: latents and what turns in three layers, an indexer's key in two.
  EXPECT_EQ(count_memory(model.config()).kv_per_token_bf16, 2 * (3 * (16 + 4) + 2 * 16));
}

}  // namespace
}  // namespace moe::test::indexer_test
