// Laws that hold in bits for dropless token choice: prompt = decode = training forward, alone = in a batch, no token sees a later one, threads change nothing.
#include <fmt/format.h>

#include <numeric>

#include "model/model.h"
#include "ops/ops.h"
#include "support/check.h"

namespace moe::test {
namespace {

ModelConfig config_of(const char* recipe) {
  ModelConfig c;
  c.vocab = 50;
  c.width = 48;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 12;
  c.context = 200;
  c.dense_width = 64;
  c.expert_width = 40;
  c.qk_norm = QkNorm::full;
  const Recipe& r = find_recipe(recipe);
  c.routing = default_options(r, r.has_router() ? 6 : 1, r.has_router() ? r.default_top_k > 1 ? 2 : 1 : 1, c.layers);
  c.init.std = 0.15f;
  return c;
}

// Evaluates sequences laid end to end.
struct Eval {
  Model& model;
  moe::Run run;
  RoutingSpec spec;

  Eval(Model& m, int threads, DType dtype) : model(m), run(threads, dtype) {
    if (m.config().moe_layer_count() > 0) spec = eval_spec(m.config().routing);
  }

  // Logits [N,V] of the sequences' tokens from position `first` on; keys and values of earlier ones come from the cache.
  std::vector<std::vector<float>> logits(const std::vector<std::vector<int32_t>>& sequences, KvCache* cache = nullptr, int32_t first = 0,
                                         Keep keep = Keep::nothing) {
    std::vector<int32_t> ids, positions;
    std::vector<int64_t> bounds = {0};
    for (const auto& s : sequences) {
      for (size_t i = 0; i < s.size(); ++i) {
        ids.push_back(s[i]);
        positions.push_back(first + static_cast<int32_t>(i));
      }
      bounds.push_back(static_cast<int64_t>(ids.size()));
    }
    const Batch batch{ids, positions, bounds};
    ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run, {&batch, &spec, keep, cache}, saved);
    Tensor out = run.saved.alloc(DType::f32, {static_cast<int64_t>(ids.size()), model.config().vocab});
    model.logits(run, out, saved.hidden);
    std::vector<std::vector<float>> rows;
    for (int64_t n = 0; n < out.rows(); ++n) rows.emplace_back(out.row<float>(n), out.row<float>(n) + out.cols());
    return rows;
  }
};

std::vector<int32_t> text(int64_t length, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 50)));
  return ids;
}

class Laws : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  Laws() : model(config_of(std::get<0>(GetParam()))) { model.initialise(4); }
  DType dtype() const { return std::get<1>(GetParam()); }
  Model model;
};

TEST_P(Laws, PromptInPiecesAndTokenByTokenEqualOneForward) {
  Eval eval(model, 2, dtype());
  const std::vector<int32_t> ids = text(150, 1);
  const auto whole = eval.logits({ids}, nullptr, 0, Keep::all);
  for (int64_t piece : {1, 7, 64, 100}) {
    KvCache cache(model.config(), dtype(), 1, 150);
    for (int64_t at = 0; at < 150; at += piece) {
      const int64_t end = std::min<int64_t>(150, at + piece);
      const auto got = eval.logits({{ids.begin() + at, ids.begin() + end}}, &cache, static_cast<int32_t>(at));
      for (int64_t n = at; n < end; ++n)
        ASSERT_EQ(got[static_cast<size_t>(n - at)], whole[static_cast<size_t>(n)]) << "token " << n << " in pieces of " << piece;
    }
  }
}

TEST_P(Laws, ASequenceDoesNotFeelItsNeighboursInABatch) {
  Eval eval(model, 2, dtype());
  const std::vector<int32_t> a = text(70, 2), b = text(1, 3), c = text(33, 4);
  const auto together = eval.logits({a, b, c}), alone_a = eval.logits({a}), alone_b = eval.logits({b}), alone_c = eval.logits({c});
  for (size_t n = 0; n < 70; ++n) ASSERT_EQ(together[n], alone_a[n]);
  ASSERT_EQ(together[70], alone_b[0]);
  for (size_t n = 0; n < 33; ++n) ASSERT_EQ(together[71 + n], alone_c[n]);
}

TEST_P(Laws, NoTokenSeesALaterOne) {
  Eval eval(model, 2, dtype());
  std::vector<int32_t> ids = text(100, 5);
  const auto before = eval.logits({ids});
  for (size_t from : {1u, 40u, 64u, 99u}) {
    std::vector<int32_t> changed = ids;
    for (size_t i = from; i < changed.size(); ++i) changed[i] = (changed[i] + 17) % 50;
    const auto after = eval.logits({changed});
    for (size_t n = 0; n < from; ++n) ASSERT_EQ(after[n], before[n]) << "token " << n << " felt a change at " << from;
    EXPECT_NE(after[from], before[from]);
  }
}

TEST_P(Laws, OneAndTwoThreadsGiveTheSameForwardBits) {
  Eval one(model, 1, dtype()), two(model, 2, dtype());
  const std::vector<int32_t> a = text(100, 6), b = text(61, 7);
  EXPECT_EQ(one.logits({a, b}), two.logits({a, b}));
}

// softmax over one expert is 1, so routing to the only one there is changes nothing.
TEST(OneExpert, IsADenseLayerInBits) {
  ModelConfig dense = config_of("dense"), routed = config_of("olmoe");
  routed.expert_width = dense.dense_width;
  routed.routing.experts = routed.routing.top_k = 1;
  Model a(dense), b(routed);
  a.initialise(8);
  for (Param* p : b.params()) {
    if (const Param* same = a.find(p->name)) std::memcpy(p->value.data, same->value.data, static_cast<size_t>(p->value.bytes()));
    p->touched();
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    Eval x(a, 2, dtype), y(b, 2, dtype);
    EXPECT_EQ(x.logits({text(60, 9)}), y.logits({text(60, 9)}));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, Laws,
                         ::testing::Combine(::testing::Values("dense", "nanomoe", "olmoe", "mixtral", "switch"), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& item) { return fmt::format("{}_{}", std::get<0>(item.param), name_of(std::get<1>(item.param))); });

}  // namespace
}  // namespace moe::test
