// Merging: whose numbers stand where, what the gates made of prompts are, and what is refused.
#include "convert/merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "convert/condition.h"
#include "convert/models.h"
#include "hub/folder/styles.h"
#include "hub/hub.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::test::merge_test {
namespace {

struct Siblings {
  std::vector<std::unique_ptr<Model>> models;  // the first is the base
  std::vector<MergeExpert> experts;

  explicit Siblings(const ModelConfig& c, int64_t count = 3, bool silent = false) {
    for (int64_t i = 0; i <= count; ++i)
      models.push_back(drawn_model(c, static_cast<uint64_t>(i) + 1));
    // Without what FFNs write, every layer of the result sees what the base's sees.
    for (const auto& model : models)
      for (Param* p : model->params())
        if (silent && p->name.find("ffn.experts.down") != std::string::npos)
          std::memset(p->value.data, 0, static_cast<size_t>(p->value.bytes()));
    for (int64_t i = 1; i <= count; ++i) {
      GatePrompts prompts;
      for (int64_t p = 0; p < 2; ++p)
        prompts.positive.push_back(some_ids(5 + 3 * p + i, static_cast<uint64_t>(10 * i + p)));
      experts.push_back(
          {models[static_cast<size_t>(i)].get(), "expert " + std::to_string(i), prompts});
    }
  }
  Model& base() { return *models[0]; }
  MergeOptions options(Gates gates = Gates::hidden) {
    MergeOptions o;
    o.routing = routing_for_dense(base().config(), static_cast<int64_t>(experts.size()), 2,
                                  base().config().layers);
    o.gates = gates;
    o.threads = 2;
    return o;
  }
};

// What the routers of the merged model see, [L][N][D], read from its own forward.
std::vector<std::vector<std::vector<double>>> seen_by_routers(Model& model,
                                                              const std::vector<int32_t>& ids) {
  std::vector<std::vector<std::vector<double>>> seen;
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t, const MoeLayer::Saved& saved) {
        seen.emplace_back();
        for (int64_t n = 0; n < saved.router.x.rows(); ++n)
          seen.back().push_back(values(saved.router.x.slice_rows(n, n + 1)));
      };
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> bounds = {0, static_cast<int64_t>(ids.size())};
  const RoutingSpec spec = eval_spec(model.config().routing);
  moe::Run run(2);
  ModelSaved saved;
  model.forward(run, {.batch = {ids, positions, bounds}, .routing = &spec, .on_routing = &listen},
                saved);
  return seen;
}

// The mean over prompts of the last token, or of the mean over tokens.
std::vector<double> mean_seen(Model& model, const std::vector<std::vector<int32_t>>& prompts,
                              size_t layer, bool all_tokens) {
  std::vector<double> sum(static_cast<size_t>(model.config().width));
  for (const auto& ids : prompts) {
    const auto x = seen_by_routers(model, ids)[layer];
    for (size_t n = all_tokens ? 0 : x.size() - 1; n < x.size(); ++n)
      for (size_t d = 0; d < sum.size(); ++d)
        sum[d] += x[n][d] / static_cast<double>(prompts.size() * (all_tokens ? x.size() : 1));
  }
  return sum;
}

// A config may say how experts would be of which the model has none.
TEST(Merge, TakesNothingOfExpertsThatTheBaseHasNot) {
  ModelConfig c = dense_config();
  c.shared_experts = 2;
  c.shared_width = 8;
  c.shared_gate = c.expert_down_bias = c.shared_average = c.moe_out_norm = c.weigh_inputs = true;
  Siblings s(c);
  const Merged merged = merge(s.base(), s.experts, s.options());
  EXPECT_EQ(merged.model->config().shared_experts, 0);
  EXPECT_EQ(merged.model->find(Part::experts, ParamKind::down, 0, true), nullptr);
}

TEST(Merge, EveryNumberIsWhereItBelongs) {
  for (const bool bias : {false, true}) {
    ModelConfig c = dense_config();
    c.ffn_bias = bias;
    Siblings s(c);
    const Merged merged = merge(s.base(), s.experts, s.options());
    int64_t before = 0, after = 0;
    for (const PartFate& fate : merged.parts) before += fate.before, after += fate.after;
    EXPECT_EQ(before, 4 * numbers_of(s.base()));
    EXPECT_EQ(after, numbers_of(*merged.model));
    for (const Param* p : merged.model->params()) {
      if (p->name.find("router") != std::string::npos) continue;
      if (p->name.find(".ffn.") == std::string::npos) {
        EXPECT_TRUE(same_bits(p->value, param_named(s.base(), p->name)->value)) << p->name;
        continue;
      }
      for (int64_t e = 0; e < 3; ++e)
        EXPECT_TRUE(
            same_bits(expert_of(*p, e),
                      expert_of(*param_named(*s.models[static_cast<size_t>(e) + 1], p->name), 0)))
            << p->name;
    }
  }
}

// In every layer, since no FFN writes anything here, the merged model's router sees what the base's
// norm gives for a prompt.
TEST(Merge, GatesAreWhatTheRouterSeesOfThePrompts) {
  for (const Gates gates : {Gates::hidden, Gates::hidden_avg})
    for (const bool negative : {false, true}) {
      Siblings s(dense_config(), 3, true);
      if (negative)
        s.experts[1].prompts.negative = {some_ids(9, 70), some_ids(4, 71), some_ids(6, 72)};
      const Merged merged = merge(s.base(), s.experts, s.options(gates));
      for (size_t layer = 0; layer < 4; ++layer) {
        const Tensor weight =
            param_named(*merged.model, "layers." + std::to_string(layer) + ".ffn.router.weight")
                ->value;
        for (size_t e = 0; e < 3; ++e) {
          std::vector<double> want = mean_seen(*merged.model, s.experts[e].prompts.positive, layer,
                                               gates == Gates::hidden_avg);
          if (!s.experts[e].prompts.negative.empty()) {
            const std::vector<double> away = mean_seen(*merged.model, s.experts[e].prompts.negative,
                                                       layer, gates == Gates::hidden_avg);
            for (size_t d = 0; d < want.size(); ++d) want[d] -= away[d];
          }
          const double length = norm(want);
          for (double& x : want) x /= length;
          expect_near(weight.slice_rows(static_cast<int64_t>(e), static_cast<int64_t>(e) + 1), want,
                      1e-5, "gate");
        }
      }
    }
}

// With one prompt each, no other gate of length 1 can score higher on it.
TEST(Merge, APromptChoosesItsExpert) {
  Siblings s(dense_config());
  for (MergeExpert& expert : s.experts) expert.prompts.positive.resize(1);
  const Merged merged = merge(s.base(), s.experts, s.options());
  for (size_t e = 0; e < 3; ++e) {
    const std::vector<double> x =
        seen_by_routers(*merged.model, s.experts[e].prompts.positive[0])[0].back();
    const Tensor weight = param_named(*merged.model, "layers.0.ffn.router.weight")->value;
    std::vector<double> logits;
    for (int64_t other = 0; other < 3; ++other) {
      const std::vector<double> gate = values(weight.slice_rows(other, other + 1));
      logits.push_back(std::inner_product(x.begin(), x.end(), gate.begin(), 0.0));
    }
    EXPECT_EQ(static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()),
              e);
    EXPECT_NEAR(logits[e], norm(x), 1e-4);
  }
}

TEST(Merge, RandomGatesNeedNoPrompts) {
  Siblings s(dense_config());
  for (MergeExpert& expert : s.experts) expert.prompts = {};
  const Merged merged = merge(s.base(), s.experts, s.options(Gates::random));
  const std::vector<double> gates =
      values(param_named(*merged.model, "layers.2.ffn.router.weight")->value);
  EXPECT_NEAR(norm(gates) / std::sqrt(static_cast<double>(gates.size())), 0.02, 0.005);
  EXPECT_NE(gates, values(param_named(*merged.model, "layers.1.ffn.router.weight")->value));
}

TEST(Merge, TheBaseMayBeAnExpert) {
  Siblings s(dense_config());
  s.experts[0].model = &s.base();
  const Merged merged = merge(s.base(), s.experts, s.options());
  int64_t before = 0;
  for (const PartFate& fate : merged.parts) before += fate.before;
  EXPECT_EQ(before, 3 * numbers_of(s.base()));
}

// Two unit rows at an angle of a: sqrt((1 + cos a) / (1 - cos a)).
TEST(Merge, Condition) {
  Arena arena;
  const Tensor m = arena.alloc(DType::f32, {2, 3});
  for (const double angle : {0.1, 0.5, 1.0, 1.5707963}) {
    fill(m, {1, 0, 0, std::cos(angle), std::sin(angle), 0});
    EXPECT_NEAR(condition_of(m) / std::sqrt((1 + std::cos(angle)) / (1 - std::cos(angle))), 1,
                1e-5);
  }
  fill(m, {1, 2, 3, 2, 4, 6});
  EXPECT_EQ(condition_of(m), INFINITY);
  Siblings s(dense_config());
  s.experts[1].prompts = s.experts[0].prompts;
  // all but the last token of the first prompt is alike
  s.experts[1].prompts.positive[0].back() ^= 1;
  const Merged close = merge(s.base(), s.experts, s.options(Gates::hidden_avg));
  ASSERT_EQ(close.layers.size(), 4u);
  EXPECT_GT(close.layers[0].condition, kBadCondition);
}

TEST(Merge, Refusals) {
  const auto refused = [](Siblings& s, const MergeOptions& o,
                          const std::vector<std::string>& parts) {
    const std::string said = message_of([&] { merge(s.base(), s.experts, o); });
    for (const std::string& part : parts) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, said);
  };
  {
    Siblings s(dense_config());
    ModelConfig wide = dense_config();
    wide.dense_width = 64;
    const auto other = drawn_model(wide);
    s.experts[1].model = other.get();
    refused(s, s.options(), {"expert 2", "intermediate_size", "64", "48"});
    ModelConfig heads = dense_config();
    heads.heads = heads.kv_heads = 4;
    heads.head_width = 8;
    const auto many = drawn_model(heads);
    s.experts[1].model = many.get();
    refused(s, s.options(), {"expert 2", "num_attention_heads", "4", "2"});
    ModelConfig theta = dense_config();
    theta.rope_theta = 5000;
    const auto turned = drawn_model(theta, 9);
    s.experts[1].model = turned.get();
    const Merged merged = merge(s.base(), s.experts, s.options());
    ASSERT_EQ(merged.notes.size(), 1u);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "rope_theta", merged.notes[0]);
  }
  {
    Siblings s(dense_config());
    s.experts[2].prompts = s.experts[0].prompts;
    refused(s, s.options(), {"expert 1 and expert 3", "the same"});
    s.experts[2].prompts = {};
    refused(s, s.options(), {"expert 3 has no prompts", "gates random"});
    s.experts[2].prompts = {.positive = {some_ids(7)}, .negative = {some_ids(7)}};
    refused(s, s.options(), {"expert 3", "cancel"});
  }
  {
    Siblings s(dense_config());
    const auto twin = drawn_model(dense_config(), 3);  // as expert 2
    s.experts[2].model = twin.get();
    refused(s, s.options(), {"expert 2 and expert 3", "the same FFNs", "moe upcycle"});
    s.experts.resize(1);
    refused(s, s.options(), {"at least two"});
  }
  {
    Siblings s(dense_config());
    const Merged merged = merge(s.base(), s.experts, s.options());
    s.experts[0].model = merged.model.get();
    refused(s, s.options(), {"expert 1 has experts already"});
  }
  {
    ModelConfig halves = dense_config();
    halves.mixer_only_layers = {0};
    Siblings s(halves);
    refused(s, s.options(), {"the base are attention or an FFN alone"});
  }
}

// The base gives all of these, so an expert that had others was trained beside something else.
TEST(Merge, RefusesWhatTheBaseHasOtherwise) {
  const auto refused = [](const ModelConfig& base, const ModelConfig& other,
                          const std::vector<std::string>& parts) {
    Siblings s(base);
    const auto model = drawn_model(other, 9);
    s.experts[1].model = model.get();
    const std::string said = message_of([&] { merge(s.base(), s.experts, s.options()); });
    for (const std::string& part : parts) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, said);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "expert 2 does not match the base", said);
  };
  const ModelConfig plain = dense_config();
  const auto changed = [](ModelConfig c, const std::function<void(ModelConfig&)>& change) {
    change(c);
    return c;
  };
  refused(plain, changed(plain, [](ModelConfig& c) { c.attention_bias = true; }),
          {"(attention_bias) is true, the base's false"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.attention_out_bias = true; }),
          {"(attention_out_bias) is true, the base's false"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.qk_norm = QkNorm::head; }),
          {"(qk_norm) is per head, the base's none"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.attention_sinks = true; }),
          {"(attention_sinks) is true, the base's false"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.value_width = 8, c.value_factor = 0.5f; }),
          {"(value_head_dim and the like) is 8, 0.5, false, 0, 0, false, the base's 0, 1, "
           "false, 0, 0, false"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.positions = Positions::learned; }),
          {"(position_embedding_type) is learned, the base's rotary"});
  refused(plain, changed(plain, [](ModelConfig& c) { c.tied = true; }),
          {"(tie_word_embeddings) is true, the base's false"});
  refused(plain,
          changed(plain,
                  [](ModelConfig& c) {
                    c.rope_scaling.kind = RopeScaling::Kind::linear;
                    c.rope_scaling.factor = 2;
                  }),
          {"(rope_scaling) is linear, factor 2, the base's none"});
  const ModelConfig yarn = changed(plain, [](ModelConfig& c) {
    c.rope_scaling.kind = RopeScaling::Kind::yarn;
    c.rope_scaling.factor = 4;
    c.rope_scaling.original_context = 8;
  });
  refused(yarn, changed(yarn, [](ModelConfig& c) { c.rope_scaling.truncate = false; }),
          {"(rope_scaling) is yarn", "truncate false", "truncate true"});
  // of the same sum
  const ModelConfig longrope = changed(plain, [](ModelConfig& c) {
    c.rope_scaling.kind = RopeScaling::Kind::longrope;
    c.rope_scaling.original_context = 8;
    c.rope_scaling.short_factors = c.rope_scaling.long_factors = {1, 1, 1, 1, 2, 3, 4, 5};
  });
  refused(longrope,
          changed(longrope,
                  [](ModelConfig& c) {
                    std::swap(c.rope_scaling.long_factors[4], c.rope_scaling.long_factors[5]);
                  }),
          {"(rope_scaling) is longrope, long_factor[4] 3, the base's longrope, long_factor[4] 2"});
  const ModelConfig layer = changed(plain, [](ModelConfig& c) { c.norm = NormKind::layer; });
  refused(layer, changed(layer, [](ModelConfig& c) { c.norm_bias = true; }),
          {"(norm_bias) is true, the base's false"});
  const ModelConfig latent = changed(plain, [](ModelConfig& c) {
    c.rotary_width = 8;
    c.latent = {.width = 8, .query_width = 0, .value_width = 16};
  });
  refused(latent, changed(latent, [](ModelConfig& c) { c.latent.width = 12; }),
          {"kv_lora_rank", "is 12, 0, 16, the base's 8, 0, 16"});
  const ModelConfig streams = changed(plain, [](ModelConfig& c) { c.hyper.streams = 2; });
  refused(streams, plain, {"(hc_mult and the like) is one, the base's 2, weighed up to 2"});
  refused(streams, changed(streams, [](ModelConfig& c) { c.hyper.magnitude = 4; }),
          {"(hc_mult and the like) is 2, weighed up to 4 with", "the base's 2, weighed up to 2"});
  refused(streams, changed(streams, [](ModelConfig& c) { c.hyper.rounds = 5; }),
          {"in 5 rounds, the base's", "in 20 rounds"});
}

TEST(Merge, SaysWhichBanksBecomeF32) {
  ModelConfig c = dense_config();
  c.vocab = 256;
  Siblings s(c);
  const int64_t routers = 4 * 3 * c.width * c.layers;
  EXPECT_EQ(merging_copies(s.base(), s.experts).bytes, routers);
  EXPECT_EQ(merging_copies(s.base(), s.experts).widened, "");
  const TempFolder folder;
  save_model(folder / "half", *s.models[2], *make_tokenizer("bytes"), DType::bf16);
  const LoadedModel half = open_model(folder / "half", {});
  s.experts[1].model = half.model.get();
  const MergeCopies copies = merging_copies(s.base(), s.experts);
  EXPECT_EQ(copies.bytes, routers + 4 * 3 * c.layers * 3 * c.width * c.dense_width);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "expert 1 in f32, expert 2 in bf16, expert 3 in f32",
                      copies.widened);
  const Merged merged = merge(s.base(), s.experts, s.options());
  EXPECT_EQ(param_named(*merged.model, "layers.0.ffn.experts.up.weight")->value.dtype, DType::f32);
  EXPECT_TRUE(std::any_of(merged.parts.begin(), merged.parts.end(), [](const PartFate& fate) {
    return fate.became == "one of each model, of several types: widened to f32";
  }));
}

}  // namespace
}  // namespace moe::test::merge_test
