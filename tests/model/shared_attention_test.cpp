// Models whose latents are the one key and value of all heads, with matrices of parts of the heads
// and entries that stand for several tokens, against the scalar twin: loss, every gradient, and
// texts that are read piece by piece around the ends of windows and entries.
#include "model/model.h"

#include "core/error.h"
#include "support/model_check.h"
#include "support/same_rows.h"

namespace moe::test::shared_attention_test {
namespace {

ModelConfig shared(int64_t groups = 2) {
  ModelConfig c = small();
  c.heads = 4;
  c.kv_heads = 1;
  c.head_width = 6;
  c.rotary_width = 4;
  c.latent = {.width = 6, .query_width = 5, .value_width = 6, .shared = true};
  if (groups > 0) c.latent.out_groups = groups, c.latent.out_width = 3;
  c.attention_sinks = true;
  c.attention_window = 2;
  c.window_rope_theta = 100;
  return c;
}

ModelConfig with_heavy() {
  ModelConfig c = shared();
  c.heavy = {.tokens = 3};
  c.heavy_layers = {1};
  return c;
}

ModelConfig with_light(int64_t top) {
  ModelConfig c = shared();
  c.light = {.tokens = 2, .top = top, .heads = 2, .width = 5};
  c.light_layers = {1};
  return c;
}

ModelConfig all_kinds() {
  ModelConfig c = with_light(1);
  c.layers = 3;
  c.heavy = {.tokens = 2};
  c.heavy_layers = {0};
  return c;
}

TEST(SharedAttention, MatchesItsTwin) {
  expect_gradients({.name = "heads as they are", .config = shared(0)});
  expect_gradients({.name = "parts of the heads", .config = shared()});
  ModelConfig c = shared();
  c.attention_window = 0;
  c.window_rope_theta = 0;
  c.attention_sinks = false;
  expect_gradients({.name = "no window and no sinks", .config = c});
}

TEST(SharedAttention, WithEntriesMatchesItsTwin) {
  expect_gradients({.name = "entries of three tokens", .config = with_heavy()});
  expect_gradients({.name = "all entries of two", .config = with_light(9)});
  expect_gradients({.name = "chosen entries of two", .config = with_light(1)});
  ModelConfig c = all_kinds();
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                    .factor = 4,
                    .original_context = 4,
                    .beta_fast = 2,
                    .beta_slow = 0.5f};
  c.hyper = {.streams = 2, .mixes = true, .rounds = 3};
  expect_gradients({.name = "all kinds between streams", .config = c});
}

// Logits [N,V] of texts that are read `piece` tokens at a time, each in its turn; 0: as a whole,
// without a cache.
std::vector<std::vector<float>> logits(Model& model, const std::vector<std::vector<int32_t>>& texts,
                                       int64_t piece, int threads = 2) {
  moe::Run run(threads);
  const auto length = [&](size_t s) { return std::ssize(texts[s]); };
  int64_t longest = 0, all = 0;
  for (size_t s = 0; s < texts.size(); ++s)
    longest = std::max(longest, length(s)), all += length(s) + ops::kKeyBlock;
  KvCache cache(model.config(), DType::f32, all);
  std::vector<int32_t> slots;
  for (size_t s = 0; s < texts.size(); ++s) {
    slots.push_back(cache.open());
    cache.extend(slots.back(), length(s));
  }
  std::vector<std::vector<std::vector<float>>> rows(texts.size());
  for (int64_t at = 0; at<longest; at += piece> 0 ? piece : longest) {
    std::vector<int32_t> ids, positions, here;
    std::vector<int64_t> bounds = {0};
    for (size_t s = 0; s < texts.size(); ++s) {
      const int64_t end = std::min(length(s), at + (piece > 0 ? piece : longest));
      if (at >= end) continue;
      for (int64_t p = at; p < end; ++p) {
        ids.push_back(texts[s][static_cast<size_t>(p)]);
        positions.push_back(static_cast<int32_t>(p));
      }
      bounds.push_back(std::ssize(ids));
      here.push_back(slots[s]);
    }
    const ArenaScope scope(run.saved);
    ModelSaved saved;
    Pass pass{.batch = {ids, positions, bounds, {}}};
    if (piece > 0) pass.batch.slots = here, pass.cache = &cache;
    model.forward(run, pass, saved);
    const Tensor out = run.saved.alloc(DType::f32, {std::ssize(ids), model.config().vocab});
    model.logits(run, out, saved.hidden);
    for (size_t i = 0, s = 0; i < here.size(); ++i, ++s) {
      while (slots[s] != here[i]) ++s;
      for (int64_t n = bounds[i]; n < bounds[i + 1]; ++n)
        rows[s].emplace_back(out.row<float>(n), out.row<float>(n) + out.cols());
    }
  }
  std::vector<std::vector<float>> flat;
  for (auto& text : rows)
    for (auto& row : text) flat.push_back(std::move(row));
  return flat;
}

std::vector<int32_t> text(int64_t length, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 9)));
  return ids;
}

void expect_pieces_change_no_bit(const ModelConfig& c, int64_t length) {
  Model model(c);
  draw_params(model, 4);
  const std::vector<std::vector<int32_t>> texts = {text(length, 1), text(1, 2),
                                                   text(length / 2, 3)};
  const auto want = logits(model, texts, 0);
  const auto expect_same = [&](const std::vector<std::vector<float>>& got,
                               const std::string& what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t n = 0; n < got.size(); ++n)
      EXPECT_TRUE(same_rows(got[n], want[n], DType::f32)) << what << ", token " << n;
  };
  for (const int64_t piece : {1, 2, 3, 5, 64, 65})
    expect_same(logits(model, texts, piece), fmt::format("{}", piece));
  expect_same(logits(model, texts, 0, 1), "one thread");
}

TEST(SharedAttention, PiecesOfATextChangeNoBit) {
  expect_pieces_change_no_bit(shared(), 20);
  expect_pieces_change_no_bit(all_kinds(), 20);
}

// Entries whose tokens lie in two blocks of the cache, more than a block of entries, and such as
// are longer than a block.
TEST(SharedAttention, PiecesOfALongTextChangeNoBit) {
  ModelConfig c = all_kinds();
  c.context = 400;
  c.attention_window = 5;
  c.light = {.tokens = 3, .top = 4, .heads = 2, .width = 5};
  c.heavy = {.tokens = 100};
  expect_pieces_change_no_bit(c, 330);
}

TEST(SharedAttention, ASlotThatBeganAnewForgetsWhatItRead) {
  Model model(all_kinds());
  draw_params(model, 4);
  moe::Run run(1);
  KvCache cache(model.config(), DType::f32, 64);
  const int32_t slot = cache.open();
  const std::vector<int32_t> ids = text(5, 1), positions = {0, 1, 2, 3, 4}, slots = {slot};
  const std::vector<int64_t> bounds = {0, 5};
  std::vector<std::vector<double>> hidden;
  for (int i = 0; i < 2; ++i) {
    cache.truncate(slot, 3);
    EXPECT_EQ(cache.length(slot), 0) << "what only goes forward is dropped as a whole";
    cache.extend(slot, 5);
    const ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run, {.batch = {ids, positions, bounds, slots}, .cache = &cache}, saved);
    hidden.push_back(values(saved.hidden));
  }
  EXPECT_EQ(hidden[0], hidden[1]);
}

void expect_refused(const std::function<void(ModelConfig&)>& change, const std::string& why) {
  ModelConfig c = all_kinds();
  change(c);
  try {
    validate(c);
    ADD_FAILURE() << "expected: " << why;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
  }
}

TEST(SharedAttention, RefusesWhatDoesNotFit) {
  expect_refused([](ModelConfig& c) { c.latent.width = 5; }, "cannot be the one key and value");
  expect_refused([](ModelConfig& c) { c.kv_heads = 2; }, "cannot be the one key and value");
  expect_refused([](ModelConfig& c) { c.latent.out_groups = 3; }, "are not 3 parts");
  expect_refused([](ModelConfig& c) { c.attention_gate = true; }, "without gates");
  expect_refused([](ModelConfig& c) { c.light.top = 0; }, "of which 0 are chosen");
  expect_refused([](ModelConfig& c) { c.light.width = 3; }, "of which 4 turn");
  expect_refused([](ModelConfig& c) { c.heavy_layers = {}; }, "give both, or none");
  expect_refused([](ModelConfig& c) { c.heavy_layers = {0, 1}; }, "of many tokens and with such");
  expect_refused([](ModelConfig& c) { c.window_layers = {0}; }, "attention with a window");
  expect_refused([](ModelConfig& c) { c.latent = {}; }, "go with latents that are keys");
}

}  // namespace
}  // namespace moe::test::shared_attention_test
