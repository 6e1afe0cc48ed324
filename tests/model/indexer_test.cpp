// Sparse attention, of single tokens and of blocks: a layer against its scalar twin, given what its
// indexer chose, and the choice against every score; a model in one piece, in pieces and among
// others.
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

// ---- blocks -------------------------------------------------------------------------------------

constexpr int64_t kSharing = 2, kKeyWidth = 8, kBlock = 64, kChoices = 3, kLocal = 2;

// Two heads share each key/value head.
struct BlockLayer {
  Attention attention;

  explicit BlockLayer(moe::Run& run) {
    const auto matrix = [&](Param& param, int64_t out, uint64_t seed) {
      param = draw_param(run.saved, {out, kWidth}, seed, 0.7f);
    };
    const auto norm = [&](Norm& of, uint64_t seed) {
      of.eps = 1e-6f;
      of.offset = 1;
      of.weight = draw_param(run.saved, {kIndexWidth}, seed, 0.3f);
    };
    attention.shape = {.heads = kSharing * 2,
                       .kv_heads = 2,
                       .key_width = kKeyWidth,
                       .value_width = kValues,
                       .rotary_width = kTurning,
                       .score_factor = 1.3f,
                       .top = kBlock * kChoices,
                       .index_heads = 2,
                       .index_width = kIndexWidth,
                       .block = kBlock,
                       .local = kLocal};
    matrix(attention.q, kSharing * 2 * kKeyWidth, 1);
    matrix(attention.k, 2 * kKeyWidth, 2);
    matrix(attention.v, 2 * kValues, 3);
    attention.o = draw_param(run.saved, {kWidth, kSharing * 2 * kValues}, 4, 0.7f);
    Indexer& indexer = attention.indexer.emplace();
    matrix(indexer.q, 2 * kIndexWidth, 5);
    matrix(indexer.k, kIndexWidth, 6);
    norm(indexer.q_norm.emplace(), 7);
    norm(indexer.k_norm, 8);
  }
};

// Of one key/value head.
std::vector<int32_t> blocks_of(const Tensor& kept, int64_t n, int64_t group) {
  return list_of(kept.slice_cols(group * kChoices, (group + 1) * kChoices), n);
}

void expect_best_blocks(const Attention& attention, const Vector& x, const Texts& texts,
                        const Tensor& kept) {
  const Indexer& of = *attention.indexer;
  const Vector f = rope_frequencies(kTurning, 100, {}).frequency;
  const auto made = [&](const Param& matrix, const Norm& norm, int64_t heads) {
    Vector weight = values(norm.weight.value);
    for (double& w : weight) w += 1;
    return twin::rope(twin::rms_norm_forward(linear(x, matrix.value), weight, 1e-6),
                      texts.positions, heads, f, 1, false);
  };
  const Vector q = made(of.q, *of.q_norm, 2), k = made(of.k, of.k_norm, 1);
  for (size_t s = 0; s + 1 < texts.bounds.size(); ++s)
    for (int64_t n = texts.bounds[s]; n < texts.bounds[s + 1]; ++n)
      for (int64_t g = 0; g < 2; ++g) {
        const int64_t seen = texts.positions[static_cast<size_t>(n)] + 1;
        const Vector scores =
            twin::block_scores(q.data() + (n * 2 + g) * kIndexWidth, k, texts.bounds[s], seen,
                               kIndexWidth, kBlock, kLocal);
        const std::vector<int32_t> list = blocks_of(kept, n, g);
        ASSERT_EQ(std::ssize(list), std::min(std::ssize(scores), kChoices)) << n;
        ASSERT_TRUE(std::is_sorted(list.begin(), list.end())) << n;
        EXPECT_LT(twin::missed_by(scores, list), 1e-4) << n;
      }
}

// Attention of every query to the blocks that `kept` lists for the head's keys, and to nothing
// else.
Vector twin_of_blocks(const Attention& attention, const Vector& x, const Texts& texts,
                      const Tensor& kept) {
  constexpr size_t kHeadsHere = kSharing * 2, kC = kKeyWidth;
  const Vector f = rope_frequencies(kTurning, 100, {}).frequency,
               q = twin::rope(linear(x, attention.q.value), texts.positions, kHeadsHere, f, 1,
                              false),
               k = twin::rope(linear(x, attention.k.value), texts.positions, 2, f, 1, false),
               v = linear(x, attention.v.value);
  const double scale = static_cast<double>(attention.shape.score_factor) / std::sqrt(kC);
  Vector o(static_cast<size_t>(texts.tokens()) * kHeadsHere * kValues);
  for (size_t s = 0; s + 1 < texts.bounds.size(); ++s)
    for (int64_t n = texts.bounds[s]; n < texts.bounds[s + 1]; ++n)
      for (size_t h = 0; h < kHeadsHere; ++h) {
        const size_t at = static_cast<size_t>(n) * kHeadsHere + h, g = h / kSharing;
        double total = 0;
        for (const int32_t block : blocks_of(kept, n, static_cast<int64_t>(g)))
          for (int64_t place = block * kBlock;
               place < (block + 1) * kBlock && place <= texts.positions[static_cast<size_t>(n)];
               ++place) {
            const auto j = static_cast<size_t>(texts.bounds[s] + place);
            double score = 0;
            for (size_t c = 0; c < kC; ++c) score += q[at * kC + c] * k[(j * 2 + g) * kC + c];
            const double p = std::exp(scale * score);
            total += p;
            for (size_t c = 0; c < kValues; ++c)
              o[at * kValues + c] += p * v[(j * 2 + g) * kValues + c];
          }
        for (size_t c = 0; c < kValues; ++c) o[at * kValues + c] /= total;
      }
  return linear(o, attention.o.value);
}

TEST(BlockAttention, ALayerSeesTheBlocksThatItsIndexerChose) {
  for (const int threads : {1, 2}) {
    moe::Run run(threads);
    BlockLayer layer(run);
    const Texts texts({500, 1, 192, 65, 330});
    const Tensor x = draw(run.saved, DType::f32, {texts.tokens(), kWidth}, 20),
                 y = run.saved.alloc(DType::f32, {texts.tokens(), kWidth});
    Pass pass = pass_of(run, texts);
    pass.kept = run.saved.alloc(DType::i32, {texts.tokens(), 2 * kChoices});
    Attention::Saved saved;
    layer.attention.forward(run, y, x, pass, 0, saved);
    expect_best_blocks(layer.attention, values(x), texts, pass.kept);
    expect_near(y, twin_of_blocks(layer.attention, values(x), texts, pass.kept), kTwinF32, "y");
    // the two key/value heads do not see the same
    int apart = 0;
    for (int64_t n = 0; n < texts.tokens(); ++n)
      apart += blocks_of(pass.kept, n, 0) != blocks_of(pass.kept, n, 1);
    EXPECT_GT(apart, 0);
    EXPECT_FAILS(layer.attention.backward(run, y, x, x, pass, saved),
                 "beyond 192 tokens the attention of the model is sparse, which is not trained");
  }
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

// Layer 0 attends to all tokens.
ModelConfig block_config() {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 32;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 8;
  c.rotary_width = 4;
  c.qk_norm = QkNorm::head;
  c.norm_offset = true;
  c.sparse = {.top = 2 * kBlock, .heads = 2, .width = 16, .block = kBlock, .whole_layers = {0}};
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

void expect_same_bits(const ModelConfig& config, DType dtype, int64_t length) {
  Eval one(config, dtype, 1), two(config, dtype, 2);
  const std::vector<int32_t> text = Eval::text(length, 5), other = Eval::text(40, 6);
  const Vector whole = one.in_pieces(text, length, dtype);
  for (const int64_t piece : {1, 7, 64}) {
    EXPECT_EQ(one.in_pieces(text, piece, dtype), whole) << piece;
    EXPECT_EQ(two.in_pieces(text, piece, dtype), whole) << piece;
  }
  KvCache cache(one.model.config(), dtype, 384);
  const std::vector<int32_t> slots = {cache.open(), cache.open()};
  cache.extend(slots[0], 40);
  cache.extend(slots[1], length);
  Vector both = two.logits({other, text}, &cache, slots);
  both.erase(both.begin(), both.begin() + 40 * 50);
  EXPECT_EQ(both, whole);
}

TEST(SparseModel, PiecesThreadsAndNeighboursChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!ops::products_keep_row_bits(dtype)) continue;
    expect_same_bits(sparse_config({1}), dtype, 150);
    expect_same_bits(block_config(), dtype, 250);
  }
}

TEST(SparseModel, HasNoTextsThatEndForAnotherReason) {
  ModelConfig c = sparse_config({1});
  c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
  EXPECT_NO_THROW(validate(c));
  c.rope_scaling.kind = RopeScaling::Kind::dynamic;
  EXPECT_THROW(validate(c), Error);
}

// `top`: of a model in which every token sees all of the text.
void expect_one_forward(const ModelConfig& config, int64_t length, int64_t top) {
  Eval eval(config);
  const std::vector<int32_t> text = Eval::text(length, 5);
  const Vector whole = eval.logits({text});
  expect_near(eval.in_pieces(text, 9, DType::f32), whole, kTwinF32, "by the cache");
  ModelConfig all = config, dense = config;
  all.sparse.top = top;
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

TEST(SparseModel, OneForwardIsWhatTheCacheGives) {
  expect_one_forward(sparse_config({1}), 100, 100);
  expect_one_forward(block_config(), 250, 4 * kBlock);
}

// Blocks that sequences share, and those that one of them copies to go on, hold its index too.
TEST(SparseModel, ASequenceMayBeginWithAnothersBlocks) {
  for (const ModelConfig& config : {sparse_config({}), block_config()}) {
    Eval eval(config);
    const std::vector<int32_t> text = Eval::text(240, 5);
    const Vector whole = eval.in_pieces(text, 240, DType::f32);
    KvCache cache(config, DType::f32, 512);
    const int32_t first = cache.open(), second = cache.open();
    cache.extend(first, 192);
    eval.logits({{text.begin(), text.begin() + 192}}, &cache, {first});
    cache.adopt(second, cache.blocks(first));
    cache.truncate(second, 150);
    cache.extend(second, 90);
    const Vector rest = eval.logits({{text.begin() + 150, text.end()}}, &cache, {second}, 150);
    EXPECT_EQ(rest, Vector(whole.begin() + 150 * 50, whole.end()));
  }
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

TEST(SparseModel, ChoicesOfBlocksAreCounted) {
  const ModelConfig c = block_config();
  int64_t frozen = 0;
  const Model model(c);
  for (const Param* p : model.params()) {
    EXPECT_EQ(p->frozen, is_of_indexer(p->kind)) << p->name;
    frozen += p->frozen ? p->value.numel() : 0;
  }
  EXPECT_EQ(frozen, 2 * (2 * 16 * 32 + 16 + 16 * 32 + 16));  // in two layers
  EXPECT_EQ(count_params(c).frozen, frozen);
  EXPECT_EQ(count_memory(c).kv_per_token_bf16, 2 * (3 * (16 + 16) + 2 * 16));
  EXPECT_EQ(c.attention(0).seen_of(250), 250);
  EXPECT_EQ(c.attention(1).seen_of(128), 128);
  EXPECT_EQ(c.attention(1).seen_of(129), 64 + 1);
  EXPECT_EQ(c.attention(1).seen_of(256), 128);
}

TEST(SparseModel, SaysWhichBlocksCannotBeChosen) {
  const auto refused = [](const std::function<void(ModelConfig&)>& change, const char* why) {
    ModelConfig c = block_config();
    change(c);
    EXPECT_FAILS(validate(c), why);
  };
  refused([](ModelConfig& c) { c.sparse.block = 96; }, "blocks of 96 tokens are chosen");
  refused([](ModelConfig& c) { c.sparse.top = 100; }, "100 tokens are chosen in blocks of 64");
  refused([](ModelConfig& c) { c.sparse.local = 3; }, "the last 3 of them always");
  refused([](ModelConfig& c) { c.sparse.local = 0; }, "the last 0 of them always");
  refused([](ModelConfig& c) { c.sparse.heads = 4; }, "an indexer has 4 heads");
  refused([](ModelConfig& c) { c.sparse.width = 2; }, "2 numbers, of which 4 turn");
  refused([](ModelConfig& c) { c.sparse.followers = {2}; }, "by an indexer in each layer");
  refused([](ModelConfig& c) { c.attention_sinks = true; }, "without sinks and caps");
  refused([](ModelConfig& c) { c.sparse.whole_layers = {0, 1, 2}; }, "all 3 layers attend to all");
  refused([](ModelConfig& c) { c.sparse.whole_layers = {3}; }, "layer 3 is listed as one that");
  refused([](ModelConfig& c) { c.attention_window = 8; }, "no window");
  ModelConfig c = sparse_config({});
  c.sparse.whole_layers = {0};
  EXPECT_FAILS(validate(c), "single tokens are chosen by latent attention");
  EXPECT_FAILS(KvCache(block_config(), DType::q8_0, 64), "cannot be kept in q8_0");
}

}  // namespace
}  // namespace moe::test::indexer_test
