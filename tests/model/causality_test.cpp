// Whether a token's output depends on later tokens. Two sequences of a batch get other tokens from
// some position on; outputs before it, in either sequence, must keep every bit where a routing
// claims to be causal, and must be seen to change where it does not.
#include "core/error.h"
#include "support/model_check.h"
#include "support/same_rows.h"

namespace moe::test::causality_test {
namespace {

constexpr int32_t kVocab = 20;
constexpr size_t kLength = 12;  // tokens of a sequence
constexpr size_t kSequences = 2;

ModelConfig config_of(RoutingOptions routing) {
  ModelConfig c = small();
  c.vocab = kVocab;
  c.context = kLength;
  c.routing = std::move(routing);
  return c;
}

RoutingOptions options_of(const Recipe& r) {
  if (!r.has_router()) return {};
  const bool many = r.default_top_k > 2;
  RoutingOptions o = default_options(r, many ? 8 : 4, many ? 3 : r.default_top_k, 2);
  if (r.name == "custom") o.stages = "{}";
  return o;
}

// Logits of the whole batch, token by token.
std::vector<std::vector<float>> logits(Model& model, const RoutingSpec& spec, RngKey key,
                                       const std::vector<int32_t>& ids) {
  moe::Run run(1);
  std::vector<int32_t> positions;
  std::vector<int64_t> bounds = {0};
  for (size_t i = 0; i < ids.size(); ++i) positions.push_back(static_cast<int32_t>(i % kLength));
  for (size_t s = 1; s <= kSequences; ++s) bounds.push_back(static_cast<int64_t>(s * kLength));
  ModelSaved saved;
  model.forward(run, {.batch = {ids, positions, bounds}, .routing = &spec, .key = key}, saved);
  Tensor out = run.saved.alloc(DType::f32, {static_cast<int64_t>(ids.size()), kVocab});
  model.logits(run, out, saved.hidden);
  std::vector<std::vector<float>> rows;
  for (int64_t n = 0; n < out.rows(); ++n)
    rows.emplace_back(out.row<float>(n), out.row<float>(n) + kVocab);
  return rows;
}

// How many of the probes saw an output that felt later tokens.
int leaks(Model& model, const RoutingSpec& spec, bool random) {
  int leaking = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    draw_params(model, seed);
    const RngKey draw = RngKey::from_seed(100 + seed), key = random ? draw.fold(1) : RngKey{};
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < kSequences * kLength; ++i)
      ids.push_back(static_cast<int32_t>(uniform_index(draw, i, kVocab)));
    const auto before = logits(model, spec, key, ids);
    for (size_t from : {size_t{1}, kLength / 2, kLength - 1}) {
      std::vector<int32_t> changed = ids;
      for (size_t i = 0; i < ids.size(); ++i)
        if (i % kLength >= from) changed[i] = (changed[i] + 7) % kVocab;
      const auto after = logits(model, spec, key, changed);
      bool felt = false;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (i % kLength < from) felt |= !same_rows(after[i], before[i]);
        else if (i % kLength == from) EXPECT_NE(after[i], before[i]) << "the changed token itself";
      }
      leaking += felt;
    }
  }
  return leaking;
}

void expect_causal(Model& model, const RoutingSpec& spec, bool random, bool causal,
                   const std::string& what) {
  const int leaking = leaks(model, spec, random);
  if (causal) EXPECT_EQ(leaking, 0) << what << " claims to be causal";
  else EXPECT_GT(leaking, 0) << what << " is said not to be causal, and nothing shows it";
}

TEST(Causality, OfEveryRecipeInTraining) {
  for (const Recipe& recipe : recipes()) {
    RoutingOptions o = options_of(recipe);
    // tight, so that 24 tokens show what many do
    if (std::holds_alternative<BufferCapacity>(recipe.train.capacity)) o.capacity_factor = 0.5f;
    Model model(config_of(o));
    const RoutingSpec spec = recipe.has_router() ? train_spec(o) : RoutingSpec{};
    expect_causal(
        model, spec, true,
        recipe.has_router() ? resolved_recipe(o).causality.empty() : recipe.causality.empty(),
        fmt::format("training {}", recipe.name));
  }
}

TEST(Causality, OfEveryRecipeInEveryEvaluation) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    RoutingOptions o = options_of(recipe);
    if (std::holds_alternative<BufferCapacity>(recipe.eval_as_trained))
      o.capacity_factor_eval = 0.5f;
    Model model(config_of(o));
    int evaluations = 0;
    for (const EvalRouting routing :
         {EvalRouting::dropless, EvalRouting::as_trained, EvalRouting::threshold}) {
      RoutingSpec spec;
      try {
        spec = eval_spec(o, routing);
      } catch (const Error&) {
        continue;  // has no meaning for this recipe
      }
      ++evaluations;
      expect_causal(model, spec, false, not_causal_because(o, routing).empty(),
                    fmt::format("{} evaluated by {}", recipe.name, static_cast<int>(routing)));
    }
    EXPECT_GE(evaluations, 1) << recipe.name;
    EXPECT_NO_THROW(eval_spec(o)) << recipe.name;
  }
}

// What no row has: each order and scope of the buffers, and the selections and policies that look
// as if they might leak.
TEST(Causality, OfStages) {
  struct Stages {
    const char* json;
    bool causal;
  };
  const std::vector<Stages> list = {
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "choice_major", "scope": "sequence"}})",
       false},
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "by_weight", "scope": "sequence"}})",
       false},
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "batch_priority", "scope": "sequence"}})",
       false},
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "random", "scope": "sequence"}})",
       false},
      // Across the sequences of a batch, which share the buffers, but not within one of a fixed
      // length.
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "token_major", "scope": "micro_batch"}})",
       false},
      {R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": "token_major", "scope": "sequence"}})",
       true},
      {R"({"select": {"type": "expert_choice", "scope": "sequence"}})", false},
      {R"({"select": {"type": "expert_choice", "scope": {"group": 6}}})", false},
      {R"({"select": {"type": "expert_choice", "scope": "sequence"}, "score": "raw", "weigh": "token_softmax"})",
       false},
      {R"({"noise": "learned", "weigh": {"type": "scores", "renormalise": "before_drop"}, "second": "random"})",
       true},
      {R"({"noise": "jitter", "weigh": {"type": "scores", "renormalise": "before_drop"}, "second": "threshold"})",
       true},
      {R"({"score": "sigmoid", "select": {"type": "grouped_top_k", "groups": 2, "keep": 1, "group_top": 2, "bias": true}})",
       true},
      {R"({"select": "hash", "weigh": "one"})", true},
  };
  for (const Stages& stages : list) {
    RoutingOptions o;
    o.recipe = "custom";
    o.experts = 4;
    o.top_k = 2;
    o.stages = stages.json;
    Model model(config_of(o));
    expect_causal(model, train_spec(o), true, stages.causal, stages.json);
    if (!stages.causal) EXPECT_FALSE(resolved_recipe(o).causality.empty()) << stages.json;
  }
}

}  // namespace
}  // namespace moe::test::causality_test
