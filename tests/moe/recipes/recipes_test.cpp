// The recipe table: what options make of the rows, and what is refused. golden_test.cpp has the
// numbers.
#include "moe/recipes/recipes.h"

#include <functional>

#include "core/error.h"
#include "support/check.h"

namespace moe::test::recipes_test {
namespace {

RoutingOptions options_of(const Recipe& recipe, int64_t experts = 0, int64_t top_k = 0) {
  RoutingOptions options = default_options(recipe, experts > 0 ? experts : recipe.default_experts,
                                           top_k > 0 ? top_k : recipe.default_top_k, 1);
  if (recipe.name == kCustom) options.stages = R"({"base": "olmoe"})";
  return options;
}

TEST(Recipes, AreTheNamedOnes) {
  std::string names;
  for (const Recipe& recipe : recipes()) names += std::string(recipe.name) + " ";
  EXPECT_EQ(
      names,
      "dense shazeer gshard switch glam st-moe expert-choice expert-choice-notes nanomoe "
      "deepseek-moe deepseek-v2 deepseek-v3 deepseek-v4 olmoe mixtral gpt-oss gemma4 sparsemixer "
      "ernie-moe qwen2-moe qwen3-moe hash cmoe carved sketch custom ");
}

TEST(Recipes, EveryRowTrainsAndEvaluatesByItsDefaults) {
  for (const Recipe& recipe : recipes()) {
    SCOPED_TRACE(std::string(recipe.name));
    EXPECT_FALSE(recipe.title.empty() || recipe.source.empty() || recipe.formula.empty());
    for (std::string_view text :
         {recipe.title, recipe.source, recipe.formula, recipe.causality, recipe.differs})
      for (char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
    if (!recipe.has_router()) continue;
    const RoutingOptions options = options_of(recipe);
    const RoutingSpec train = train_spec(options), eval = eval_spec(options);
    EXPECT_EQ(train.slots(), experts_choose(train.select) ? options.experts : options.top_k);
    EXPECT_TRUE(std::holds_alternative<NoNoise>(eval.noise));
    EXPECT_TRUE(std::holds_alternative<Dropless>(eval.capacity));
    EXPECT_FALSE(std::holds_alternative<RandomSecond>(eval.second));
    EXPECT_EQ(std::holds_alternative<ThresholdSecond>(train.second),
              std::holds_alternative<ThresholdSecond>(eval.second));
    const RoutingSpec as_trained = eval_spec(options, EvalRouting::as_trained);
    EXPECT_EQ(as_trained.capacity.index(), train.capacity.index());
    EXPECT_EQ(as_trained.select.index(), train.select.index());
    EXPECT_EQ(as_trained.second.index(), train.second.index());
    EXPECT_TRUE(std::holds_alternative<NoNoise>(as_trained.noise));
    // Every coefficient of the row belongs to a loss it has, and every auxiliary loss has a
    // coefficient.
    if (recipe.name == kCustom) continue;
    EXPECT_EQ(train.losses.balance.has_value(), options.coef.balance > 0);
    EXPECT_EQ(train.losses.device.has_value(), options.coef.device > 0);
    EXPECT_EQ(train.losses.communication.has_value(), options.coef.communication > 0);
    EXPECT_EQ(train.losses.importance, options.coef.importance > 0);
    EXPECT_EQ(train.losses.load, options.coef.load > 0);
  }
}

TEST(Recipes, WorkForAnyNumberOfExperts) {
  for (const Recipe& recipe : recipes())
    for (int64_t experts : {2, 3, 4, 6, 7, 8, 12, 16, 60, 64, 160, 256})
      for (int64_t k : {1, 2, 3, 6, 8}) {
        if (!recipe.has_router() || k > experts ||
            (recipe.top_k_is_fixed && k != recipe.default_top_k))
          continue;
        const RoutingOptions options = options_of(recipe, experts, k);
        const std::string what = fmt::format("{} with {} experts, top-{}", recipe.name, experts, k);
        const bool renormalises =
            recipe.train.select.index() < 2 && constant_when_alone(recipe.train.weigh);
        if (k == 1 && renormalises) continue;  // refused, see below
        EXPECT_NO_THROW(train_spec(options)) << what;
        EXPECT_NO_THROW(eval_spec(options)) << what;
      }
}

TEST(Recipes, ConvertCoefficientsToTheCanonicalForm) {
  // nanoMoE adds the losses of its layers up and its balanced loss is k; ours is 1 and a mean.
  const RoutingOptions nano = default_options(find_recipe("nanomoe"), 8, 2, 3);
  EXPECT_FLOAT_EQ(nano.coef.balance, 0.01f * 2 * 3);
  EXPECT_FLOAT_EQ(nano.coef.z, 0.001f * 3);
  const RoutingOptions olmoe = default_options(find_recipe("olmoe"), 64, 8, 16);
  EXPECT_FLOAT_EQ(olmoe.coef.balance, 0.01f);
  EXPECT_FLOAT_EQ(olmoe.coef.z, 0.001f);
  const RoutingOptions mixtral = default_options(find_recipe("mixtral"), 8, 2, 32);
  EXPECT_FLOAT_EQ(mixtral.coef.balance, 0.02f * 2);
  const RoutingOptions shazeer = default_options(find_recipe("shazeer"), 16, 2, 2);
  EXPECT_FLOAT_EQ(shazeer.coef.importance, 0.1f * 2);
  EXPECT_FLOAT_EQ(shazeer.coef.load, 0.1f * 2);
  EXPECT_EQ(shazeer.coef.balance, 0);
  const RoutingOptions v2 = default_options(find_recipe("deepseek-v2"), 160, 6, 10);
  EXPECT_FLOAT_EQ(v2.coef.balance, 0.003f * 10);
  EXPECT_FLOAT_EQ(v2.coef.device, 0.05f * 10);
  EXPECT_FLOAT_EQ(v2.coef.communication, 0.02f * 10);
}

TEST(Recipes, FitGroupsToTheExperts) {
  struct Want {
    const char* recipe;
    int64_t experts, top_k, groups, keep;
  };
  for (const Want& want : {Want{"deepseek-v3", 256, 8, 8, 4},
                           {"deepseek-v3", 16, 4, 8, 4},
                           {"deepseek-v3", 8, 2, 4, 2},
                           {"deepseek-v3", 12, 2, 6, 3},
                           {"deepseek-v3", 7, 2, 1, 1},
                           {"deepseek-v3", 8, 6, 4, 3},
                           {"deepseek-v2", 160, 6, 8, 3},
                           {"deepseek-v2", 64, 6, 8, 3},
                           {"deepseek-v2", 8, 2, 4, 2},
                           {"deepseek-v2", 2, 1, 1, 1}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", want.recipe, want.experts, want.top_k));
    const RoutingOptions options =
        default_options(find_recipe(want.recipe), want.experts, want.top_k, 1);
    EXPECT_EQ(options.expert_groups, want.groups);
    EXPECT_EQ(options.groups_kept, want.keep);
    const RoutingSpec spec = train_spec(options);
    const auto& select = std::get<GroupedTopK>(spec.select);
    EXPECT_EQ(select.groups, want.groups);
    EXPECT_EQ(select.keep, want.keep);
    // The device losses look at the same groups, and go with them.
    EXPECT_EQ(spec.losses.device.has_value(),
              std::string(want.recipe) == "deepseek-v2" && want.groups > 1);
    if (spec.losses.communication) {
      EXPECT_EQ(spec.losses.communication->devices, want.groups);
      EXPECT_EQ(spec.losses.communication->at_most, std::min(want.keep, want.top_k));
    }
    // Left out, they come out the same.
    RoutingOptions bare = options;
    bare.expert_groups.reset();
    bare.groups_kept.reset();
    EXPECT_EQ(std::get<GroupedTopK>(train_spec(bare).select).keep, want.keep);
  }
}

TEST(Recipes, OneGroupIsAPlainChoice) {
  for (const char* name : {"deepseek-v2", "deepseek-v3"}) {
    RoutingOptions options = options_of(find_recipe(name), 1, 1);
    EXPECT_NO_THROW(train_spec(options)) << name;
    options = options_of(find_recipe(name), 8, 2);  // with the coefficients of more groups
    options.expert_groups = options.groups_kept = 1;
    const RoutingSpec spec = train_spec(options);
    EXPECT_FALSE(spec.losses.device || spec.losses.communication) << name;
    EXPECT_TRUE(spec.losses.balance.has_value()) << name;
  }
}

TEST(Recipes, OptionsChangeWhatTheyName) {
  RoutingOptions options = options_of(find_recipe("olmoe"), 8, 2);
  options.norm_topk_prob = true;
  EXPECT_EQ(std::get<ChosenScores>(train_spec(options).weigh).renormalise,
            ChosenScores::Renormalise::before_drop);
  const auto loss_over = [&](BalanceOver over) {
    options.balance_over = over;
    return *train_spec(options).losses.balance;
  };
  EXPECT_EQ(loss_over(BalanceOver::sequence).scope.kind, Scope::Kind::sequence);
  EXPECT_EQ(loss_over(BalanceOver::running).shares, BalanceLoss::Shares::running);
  EXPECT_EQ(loss_over(BalanceOver::step).shares, BalanceLoss::Shares::step);
  EXPECT_EQ(loss_over(BalanceOver::micro_batch).shares, BalanceLoss::Shares::own);
  EXPECT_EQ(loss_over(BalanceOver::step).scope.kind, Scope::Kind::micro_batch);

  options = options_of(find_recipe("deepseek-v3"), 16, 4);
  options.expert_groups = 4;
  options.routed_scale = 1.5f;
  RoutingSpec spec = train_spec(options);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 4);
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).scale, 1.5f);

  options = options_of(find_recipe("switch"));
  options.capacity_factor = 3;
  options.capacity_factor_eval = 4;
  EXPECT_EQ(std::get<BufferCapacity>(train_spec(options).capacity).factor, 3);
  EXPECT_EQ(std::get<BufferCapacity>(eval_spec(options, EvalRouting::as_trained).capacity).factor,
            4);

  options = options_of(find_recipe("expert-choice"), 8, 3);
  EXPECT_EQ(std::get<ExpertChoice>(train_spec(options).select).factor, 3);
  options.capacity_factor = 0.5f;
  EXPECT_EQ(std::get<ExpertChoice>(train_spec(options).select).factor, 0.5f);
  EXPECT_EQ(std::get<ExpertChoice>(eval_spec(options, EvalRouting::as_trained).select).factor,
            0.5f);

  options = options_of(find_recipe("nanomoe"));
  options.noise = false;
  EXPECT_TRUE(std::holds_alternative<NoNoise>(train_spec(options).noise));
}

TEST(Recipes, ExpertChoiceIsEvaluatedByThresholdsOrSaysThatItLooksAhead) {
  const RoutingOptions zhou = options_of(find_recipe("expert-choice")),
                       notes = options_of(find_recipe("expert-choice-notes"));
  EXPECT_EQ(default_eval(zhou), EvalRouting::threshold);
  EXPECT_TRUE(std::holds_alternative<ThresholdChoice>(eval_spec(zhou).select));
  EXPECT_EQ(not_causal_because(zhou, EvalRouting::threshold), "");
  EXPECT_NE(not_causal_because(zhou, EvalRouting::as_trained), "");
  // A softmax over tokens has no causal form.
  EXPECT_EQ(default_eval(notes), EvalRouting::as_trained);
  EXPECT_NE(not_causal_because(notes, default_eval(notes)), "");
  for (const char* name : {"olmoe", "gshard", "hash", "dense"}) {
    const RoutingOptions options = options_of(find_recipe(name));
    EXPECT_EQ(default_eval(options), EvalRouting::dropless) << name;
    EXPECT_EQ(not_causal_because(options, EvalRouting::dropless), "") << name;
    EXPECT_EQ(not_causal_because(options, EvalRouting::as_trained).empty(),
              std::string(name) != "gshard")
        << name;
  }
}

TEST(Recipes, CustomTakesItsStagesFromJson) {
  RoutingOptions options;
  options.recipe = kCustom;
  options.experts = 8;
  options.top_k = 2;
  options.coef.balance = 0.01f;
  options.stages =
      R"({"base": "gshard", "second": {"type": "threshold", "least": 0.3}, "capacity_eval": "dropless"})";
  const RoutingSpec spec = train_spec(options);
  EXPECT_EQ(std::get<ThresholdSecond>(spec.second).least, 0.3f);
  EXPECT_TRUE(std::holds_alternative<BufferCapacity>(spec.capacity));
  EXPECT_EQ(resolved_recipe(options).causality, find_recipe("gshard").causality);
  EXPECT_TRUE(
      std::holds_alternative<Dropless>(eval_spec(options, EvalRouting::as_trained).capacity));
  options.stages = R"({"select": "expert_choice"})";
  options.coef.balance = 0;
  EXPECT_EQ(default_eval(options), EvalRouting::threshold);
  EXPECT_EQ(resolved_recipe(options).causality, find_recipe("expert-choice").causality);
  // Groups are those of the file, whatever a recipe would fit.
  options.stages = R"({"select": {"type": "grouped_top_k", "groups": 2, "keep": 1}})";
  EXPECT_EQ(std::get<GroupedTopK>(train_spec(options).select).keep, 1);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
  return "";
}
// The training stages of a recipe with 4 experts and top-2, or what `change` makes of these
// options.
std::string refusal(const std::string& recipe,
                    const std::function<void(RoutingOptions&)>& change = {}) {
  RoutingOptions options;
  options.recipe = recipe;
  options.experts = 4;
  options.top_k = 2;
  if (change) change(options);
  return refusal([&] { train_spec(options); });
}
void expect_refused(const std::string& message, const std::string& reason) {
  EXPECT_NE(message.find(reason), std::string::npos)
      << "wanted: " << reason << "\ngot: " << message;
}

TEST(Recipes, RefuseWhatHasNoMeaning) {
  const auto top_1 = [](RoutingOptions& o) { o.top_k = 1; };
  for (const char* name : {"mixtral", "nanomoe", "deepseek-v3", "qwen3-moe", "shazeer"})
    expect_refused(refusal(name, top_1), "no gradient");
  EXPECT_EQ(refusal("olmoe", top_1), "");
  expect_refused(refusal("olmoe",
                         [](RoutingOptions& o) {
                           o.top_k = 1;
                           o.norm_topk_prob = true;
                         }),
                 "no gradient");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.top_k = 5; }), "top_k");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.top_k = 0; }), "top_k");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.capacity_factor = 1.25f; }),
                 "never drops");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.capacity_factor_eval = 1.25f; }),
                 "without drops");
  expect_refused(refusal("nanomoe", [](RoutingOptions& o) { o.capacity_factor = 0.f; }),
                 "capacity factor");
  expect_refused(refusal("expert-choice", [](RoutingOptions& o) { o.capacity_factor = 5.f; }),
                 "at most 4");
  expect_refused(refusal("switch"), "use top_k 1");
  expect_refused(refusal("gshard", top_1), "use top_k 2");
  for (const char* name : {"mixtral", "nanomoe", "hash", "deepseek-v2"})
    expect_refused(
        refusal(name,
                [&](RoutingOptions& o) { o.norm_topk_prob = std::string(name) != "mixtral"; }),
        "another recipe");
  EXPECT_EQ(refusal("mixtral", [](RoutingOptions& o) { o.norm_topk_prob = true; }), "");
  expect_refused(refusal("olmo"), "olmoe");
  expect_refused(refusal("dense"), "no router");
}

TEST(Recipes, RefuseOptionsOfOtherRecipes) {
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.expert_groups = 2; }),
                 "leave expert_groups");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.groups_kept = 2; }), "deepseek-v3");
  expect_refused(refusal("deepseek-v2", [](RoutingOptions& o) { o.expert_groups = 3; }),
                 "one of 1, 2, 4");
  expect_refused(refusal("deepseek-v2", [](RoutingOptions& o) { o.expert_groups = 0; }),
                 "one of 1, 2, 4");
  expect_refused(refusal("deepseek-v2", [](RoutingOptions& o) { o.groups_kept = 0; }),
                 "groups_kept");
  expect_refused(refusal("mixtral", [](RoutingOptions& o) { o.routed_scale = 2.f; }),
                 "does not scale");
  expect_refused(refusal("nanomoe", [](RoutingOptions& o) { o.routed_scale = 2.f; }),
                 "does not scale");
  expect_refused(refusal("deepseek-v2", [](RoutingOptions& o) { o.routed_scale = 0.f; }),
                 "above 0");
  for (const char* name : {"expert-choice", "hash", "shazeer"})
    expect_refused(refusal(name, [](RoutingOptions& o) { o.balance_over = BalanceOver::step; }),
                   "no balance loss");
  expect_refused(refusal("expert-choice", [](RoutingOptions& o) { o.coef.balance = 0.01f; }),
                 "no balance loss");
  expect_refused(refusal("hash", [](RoutingOptions& o) { o.coef.z = 0.01f; }), "no z loss");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.coef.load = 0.01f; }), "no load loss");
  expect_refused(refusal("shazeer", [](RoutingOptions& o) { o.noise = false; }), "router of zeros");
  expect_refused(refusal("olmoe", [](RoutingOptions& o) { o.stages = "{}"; }), "recipe custom");
  expect_refused(refusal("custom"), "needs its stages");
  expect_refused(
      refusal("custom", [](RoutingOptions& o) { o.stages = R"({"select": "threshold"})"; }),
      "expert_choice");
}

TEST(Recipes, RefuseAnEvaluationThatDoesNotFit) {
  const auto evaluated = [](const char* name, EvalRouting routing) {
    return refusal([&] { eval_spec(options_of(find_recipe(name)), routing); });
  };
  expect_refused(evaluated("expert-choice", EvalRouting::dropless), "use the routing threshold");
  expect_refused(evaluated("olmoe", EvalRouting::threshold), "no thresholds");
  expect_refused(evaluated("expert-choice-notes", EvalRouting::threshold),
                 "train the recipe expert-choice");
}

TEST(Recipes, NanoMoeCapacityOfThePublishedRuns) {
  const auto capacity = [](float factor, int64_t tokens) {
    auto buffer = std::get<BufferCapacity>(find_recipe("nanomoe").train.capacity);
    buffer.factor = factor;
    return expert_capacity(buffer, tokens, 8, 2);
  };
  EXPECT_EQ(capacity(1.25f, 12 * 1024), 3840);
  EXPECT_EQ(capacity(2, 12 * 1024), 6144);
  EXPECT_EQ(capacity(1.25f, 100), 32);
  for (int64_t tokens : {1, 2, 4, 7, 8, 9}) EXPECT_EQ(capacity(2, tokens), 4) << tokens;
  EXPECT_EQ(capacity(2, 10), 6);
  EXPECT_EQ(capacity(2, 16), 8);
}

}  // namespace
}  // namespace moe::test::recipes_test
