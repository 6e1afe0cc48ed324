// Laws of the forward in bits, for every recipe as it is evaluated: prompt in pieces = decode = one
// forward, alone = in a batch, threads change nothing, one expert = a dense layer. A recipe claims
// them where each token is routed by itself; the others are shown to break them. causality_test.cpp
// has later tokens.
#include <fmt/format.h>

#include <algorithm>

#include "support/model_check.h"
#include "support/param_named.h"
#include "support/same_rows.h"

namespace moe::test::laws_test {
namespace {

ModelConfig config_of(const Recipe& r) {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 48;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 12;
  c.context = 200;
  c.dense_width = 64;
  c.expert_width = 40;
  c.qk_norm = QkNorm::full;
  c.init.std = 0.15f;
  if (!r.has_router()) return c;
  const bool many = r.default_top_k > 2;
  c.routing = default_options(r, many ? 8 : 6, many ? 3 : r.default_top_k, c.layers);
  if (r.name == "custom") c.routing.stages = "{}";
  return c;
}

// Whether a token's experts and weights depend on nothing but the token.
bool routes_tokens_alone(const RoutingSpec& spec) {
  return std::holds_alternative<Dropless>(spec.capacity) &&
         !std::holds_alternative<ExpertChoice>(spec.select);
}

using Logits = std::vector<std::vector<float>>;  // [N,V]
using Ids = std::vector<int32_t>;

// Evaluates sequences laid end to end.
struct Eval {
  Model& model;
  moe::Run run;
  RoutingSpec spec;
  RngKey key = {};

  Eval(Model& m, int threads, DType dtype) : model(m), run(threads, dtype) {
    if (m.config().moe_layer_count() > 0) spec = eval_spec(m.config().routing);
  }

  // Logits of the sequences' tokens from position `first` on; keys and values of earlier ones come
  // from the cache's slots.
  Logits logits(const std::vector<Ids>& sequences, KvCache* cache = nullptr, const Ids& slots = {},
                int32_t first = 0, Keep keep = Keep::nothing) {
    Ids ids, positions;
    std::vector<int64_t> bounds = {0};
    for (const auto& s : sequences) {
      for (size_t i = 0; i < s.size(); ++i) {
        ids.push_back(s[i]);
        positions.push_back(first + static_cast<int32_t>(i));
      }
      bounds.push_back(static_cast<int64_t>(ids.size()));
    }
    ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run,
                  {.batch = {ids, positions, bounds, slots},
                   .routing = &spec,
                   .keep = keep,
                   .cache = cache,
                   .key = key},
                  saved);
    Tensor out =
        run.saved.alloc(DType::f32, {static_cast<int64_t>(ids.size()), model.config().vocab});
    model.logits(run, out, saved.hidden);
    Logits rows;
    for (int64_t n = 0; n < out.rows(); ++n)
      rows.emplace_back(out.row<float>(n), out.row<float>(n) + out.cols());
    return rows;
  }

  // The same of one sequence, `piece` tokens at a time.
  Logits in_pieces(const Ids& ids, int64_t piece) {
    const auto length = static_cast<int64_t>(ids.size());
    KvCache cache(model.config(), run.compute, length);
    const Ids slots = {cache.open()};
    cache.extend(slots[0], length);
    Logits all;
    for (int64_t at = 0; at < length; at += piece)
      for (auto& row : logits({{ids.begin() + at, ids.begin() + std::min(length, at + piece)}},
                              &cache, slots, static_cast<int32_t>(at)))
        all.push_back(std::move(row));
    return all;
  }
};

Ids text(int64_t length, uint64_t seed) {
  Ids ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), static_cast<uint64_t>(i), 50)));
  return ids;
}

// The first token whose logits differ; -1: none does.
int64_t first_difference(const Logits& a, const Logits& b, DType dtype) {
  for (size_t n = 0; n < a.size(); ++n)
    if (!same_rows(a[n], b[n], dtype)) return static_cast<int64_t>(n);
  return -1;
}

class Laws : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  Laws() : model(config_of(find_recipe(std::get<0>(GetParam())))) { draw_params(model, 4); }
  void SetUp() override {
    if (dtype() == DType::bf16 && !ops::products_keep_row_bits(DType::bf16))
      GTEST_SKIP() << "products here do not keep the bits of a row, and rounding to bf16 in "
                      "between can make another choice of experts of that";
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  Model model;
};

TEST_P(Laws, PromptInPiecesAndTokenByTokenEqualOneForward) {
  Eval eval(model, 2, dtype());
  const Ids ids = text(100, 1);
  const Logits whole = eval.logits({ids}, nullptr, {}, 0, Keep::all);
  for (int64_t piece : {1, 7, 64}) {
    const int64_t differs = first_difference(eval.in_pieces(ids, piece), whole, dtype());
    if (routes_tokens_alone(eval.spec)) EXPECT_EQ(differs, -1) << "in pieces of " << piece;
    else EXPECT_GE(differs, 0) << "in pieces of " << piece;
  }
}

TEST_P(Laws, ASequenceDoesNotFeelItsNeighboursInABatch) {
  Eval eval(model, 2, dtype());
  const Ids a = text(70, 2), b = text(1, 3), c = text(33, 4);
  Logits alone;
  for (const Ids* one : {&a, &b, &c})
    for (auto& row : eval.logits({*one})) alone.push_back(std::move(row));
  const int64_t differs = first_difference(eval.logits({a, b, c}), alone, dtype());
  if (routes_tokens_alone(eval.spec)) EXPECT_EQ(differs, -1);
  else EXPECT_GE(differs, 0);
}

TEST_P(Laws, ThreadsChangeNoBitOfTheForward) {
  Eval one(model, 1, dtype()), two(model, 2, dtype()), three(model, 3, dtype());
  const Ids a = text(100, 6), b = text(61, 7);
  const RngKey key = RngKey::from_seed(8);
  std::vector<RoutingSpec> specs = {one.spec};
  if (model.config().moe_layer_count() > 0) {
    specs.push_back(eval_spec(model.config().routing, EvalRouting::as_trained));
    specs.push_back(train_spec(model.config().routing));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    for (Eval* eval : {&one, &two, &three}) {
      eval->spec = specs[i];
      eval->key = i == 2 ? key : RngKey{};
    }
    const Logits want = one.logits({a, b});
    EXPECT_EQ(first_difference(two.logits({a, b}), want, dtype()), -1);
    EXPECT_EQ(first_difference(three.logits({a, b}), want, dtype()), -1);
  }
}

std::vector<std::string> all_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(EveryRecipe, Laws,
                         ::testing::Combine(::testing::ValuesIn(all_recipes()),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& item) {
                           std::string name = fmt::format("{}_{}", std::get<0>(item.param),
                                                          name_of(std::get<1>(item.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

void expect_pieces_and_neighbours_change_no_bit(const ModelConfig& c) {
  Model model(c);
  draw_params(model, 4);
  Eval eval(model, 2, DType::f32);
  const Ids ids = text(100, 1);
  const Logits want = eval.logits({ids});
  for (const int64_t piece : {1, 7, 64})
    EXPECT_EQ(first_difference(eval.in_pieces(ids, piece), want, DType::f32), -1) << piece;
  const Logits among = eval.logits({text(9, 2), ids, text(70, 3)});
  EXPECT_EQ(first_difference({among.begin() + 9, among.begin() + 109}, want, DType::f32), -1);
}

TEST(HeadsOfTwoKinds, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("gemma4"));
  c.norm_placement = NormPlacement::both;
  c.qk_norm = QkNorm::head;
  c.value_norm = c.layer_scale = c.branch_norms = true;
  c.shared_experts = 1;
  c.shared_width = 24;
  c.attention_window = 20;
  c.window_layers = {0};
  c.window_rope_theta = 500;
  c.full = {.kv_heads = 1, .head_width = 2 * c.head_width, .values_of_keys = true};
  c.multipliers.attention = 1;
  c.logit_cap = 20;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(Chunks, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.attention_window = 64;
  c.window_chunks = true;
  c.window_layers = {0};
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(ValuesApart, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("deepseek-v3"));
  c.qk_norm = QkNorm::none;
  c.kv_heads = 4;
  c.full = {.kv_heads = 2};
  c.rotary_width = 4;
  c.window_rotary_width = 8;
  c.value_width = 20;
  c.value_factor = 0.7f;
  c.attention_sinks = c.window_sinks = true;
  c.attention_window = 20;
  c.window_layers = {0};
  c.window_rope_theta = 500;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(ZeroExperts, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.routing.zero_experts = 5;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(Shortcut, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.layers = 4;
  c.moe_layers = {0, 2};
  c.shared_experts = 1;
  c.shared_width = 24;
  c.shortcut = true;
  c.routing.zero_experts = 3;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(GatesBehindNorms, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("deepseek-v3"));
  c.norm_gate = 7;
  c.dense_first = 1;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(SoftplusGates, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("deepseek-v3"));
  c.qk_norm = QkNorm::head;
  c.full = {.heads = 6};
  c.attention_gate = c.gate_softplus = c.head_gates = true;
  c.attention_window = 20;
  c.window_layers = {0};
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(LinearAttention, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("qwen3-moe"));
  c.attention_gate = c.norm_offset = true;
  c.linear = {.key_heads = 2, .value_heads = 4, .key_width = 8, .value_width = 20, .conv_width = 4};
  c.linear_layers = {0};
  for (const int64_t gate_width : {0, 6}) {
    c.linear.gate_width = gate_width;
    expect_pieces_and_neighbours_change_no_bit(c);
  }
  c.linear.gate_width = 0;
  c.linear.negative = true;
  c.norm_placement = NormPlacement::output;
  c.states_pre_norm = true;
  expect_pieces_and_neighbours_change_no_bit(c);
  c.norm_placement = NormPlacement::pre;
  c.states_pre_norm = false;
  c.linear.channel_decays = true;
  c.linear.decay_floor = -5;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(CarriedResiduals, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.norm_placement = NormPlacement::carried;
  c.multipliers.attention_sum = {.kept = 1.7f, .added = 0.6f};
  c.multipliers.ffn_sum = {.kept = 0.8f, .added = 1.3f};
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(GatesOfHeads, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("qwen3-moe"));
  c.attention_gate = c.head_gates = true;
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(StateSpaces, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.scan_layers = {0};
  for (const int64_t groups : {1, 2}) {
    c.scan = {
        .heads = 4, .groups = groups, .width = 8, .states = 20, .conv_width = 4, .conv_bias = true};
    expect_pieces_and_neighbours_change_no_bit(c);
  }
}

TEST(Lightning, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.lightning_layers = {0};
  expect_pieces_and_neighbours_change_no_bit(c);
}

TEST(StateSpaces, BesideAttentionPiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.scan_layers = {0};
  c.scan_beside = true;
  c.multipliers.scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f};
  c.multipliers.attention_out = 1.5f;
  for (const bool norm : {true, false}) {
    c.scan = {.heads = 4,
              .groups = 2,
              .width = 8,
              .states = 20,
              .conv_width = 4,
              .conv_bias = true,
              .norm = norm};
    expect_pieces_and_neighbours_change_no_bit(c);
  }
}

TEST(SelectiveScans, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.scan_layers = {0};
  for (const bool norm : {true, false}) {
    c.scan = {.heads = 70,
              .groups = 1,
              .width = 1,
              .states = 20,
              .conv_width = 4,
              .conv_bias = true,
              .norm = norm,
              .step_rank = 6};
    expect_pieces_and_neighbours_change_no_bit(c);
  }
}

TEST(LayersOfOneSublayer, PiecesAndNeighboursChangeNoBit) {
  ModelConfig c = config_of(find_recipe("mixtral"));
  c.layers = 4;
  c.scan = {.heads = 4, .groups = 2, .width = 8, .states = 20, .conv_width = 4, .conv_bias = true};
  c.scan_layers = {0};
  c.mixer_only_layers = {0, 2};
  c.ffn_only_layers = {1, 3};
  expect_pieces_and_neighbours_change_no_bit(c);
}

// Buffers, and experts that choose, tie the sequences of a batch together: evaluated the way they
// are trained, such recipes feel their neighbours.
TEST(AsTrained, FeelsItsNeighboursWhereTokensAreNotRoutedAlone) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    ModelConfig c = config_of(recipe);
    if (std::holds_alternative<BufferCapacity>(recipe.eval_as_trained))
      c.routing.capacity_factor_eval = 0.5f;
    Model model(c);
    draw_params(model, 4);
    Eval eval(model, 2, DType::f32);
    eval.spec = eval_spec(c.routing, EvalRouting::as_trained);
    const auto* buffer = std::get_if<BufferCapacity>(&eval.spec.capacity);
    const bool by_sequence = buffer && buffer->scope.kind == Scope::Kind::sequence;
    const Ids a = text(40, 2), b = text(33, 4);
    const Logits alone = eval.logits({a});
    const bool feels_pieces = first_difference(eval.in_pieces(a, 7), alone, DType::f32) >= 0,
               feels_neighbours = first_difference(alone, eval.logits({a, b}), DType::f32) >= 0;
    EXPECT_EQ(feels_pieces, !routes_tokens_alone(eval.spec)) << recipe.name;
    // Where each sequence has buffers of its own, only the number of its own tokens counts.
    EXPECT_EQ(feels_neighbours, !routes_tokens_alone(eval.spec) && !by_sequence) << recipe.name;
    EXPECT_EQ(not_causal_because(c.routing, EvalRouting::as_trained).empty(),
              routes_tokens_alone(eval.spec))
        << recipe.name;
  }
}

// Whether the one expert's weight is 1 whatever the token is.
bool weighs_one(const RoutingSpec& spec) {
  if (const auto* w = std::get_if<ChosenScores>(&spec.weigh))
    return w->scale == 1 && (std::holds_alternative<SoftmaxScore>(spec.score) ||
                             w->renormalise != ChosenScores::Renormalise::never);
  return !std::holds_alternative<TokenSoftmax>(spec.weigh);
}

// A softmax over one expert is 1, so routing to the only one there is changes nothing. An expert's
// softmax over tokens is not.
TEST(OneExpert, IsADenseLayerInBits) {
  ModelConfig dense = config_of(find_recipe("dense"));
  Model a(dense);
  draw_params(a, 8);
  int tried = 0;
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router() || (recipe.top_k_is_fixed && recipe.default_top_k > 1)) continue;
    ModelConfig c = config_of(recipe);
    c.expert_width = dense.dense_width;
    const std::string stages = c.routing.stages;
    c.routing = default_options(recipe, 1, 1, c.layers);
    c.routing.stages = stages;
    if (const auto* w = std::get_if<ChosenScores>(&recipe.train.weigh); w && w->scale != 1)
      c.routing.routed_scale = 1;
    Model b(c);
    b.initialise(8);
    for (Param* p : b.params()) {
      if (const Param* same = param_named(a, p->name))
        std::memcpy(p->value.data, same->value.data, static_cast<size_t>(p->value.bytes()));
      p->touched();
    }
    ++tried;
    for (DType dtype : {DType::f32, DType::bf16}) {
      Eval x(a, 2, dtype), y(b, 2, dtype);
      const int64_t differs =
          first_difference(x.logits({text(60, 9)}), y.logits({text(60, 9)}), dtype);
      if (weighs_one(y.spec)) EXPECT_EQ(differs, -1) << recipe.name;
      else EXPECT_GE(differs, 0) << recipe.name;
    }
  }
  EXPECT_GE(tried, 10);
}

}  // namespace
}  // namespace moe::test::laws_test
