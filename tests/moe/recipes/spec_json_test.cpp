// Stages as JSON: every recipe's stages come back as they were, every enumerator has its own name,
// what the object does not name is the base's, and what it names wrongly is refused in one line
// with the nearest known name.
#include "moe/recipes/spec_json.h"

#include <nlohmann/json.hpp>

#include "moe/recipes/recipes.h"
#include "support/files.h"

namespace moe::test::spec_json_test {
namespace {

const std::string kFile = "stages.json";

CustomStages parse(const std::string& text) { return parse_stages(text, kFile); }
std::string written(const CustomStages& s) { return to_json(s.train, s.eval_as_trained).dump(); }

TEST(SpecJson, WithoutABaseTheDefaultsHold) {
  const CustomStages s = parse("{}");
  EXPECT_TRUE(std::holds_alternative<NoNoise>(s.train.noise));
  EXPECT_TRUE(std::holds_alternative<SoftmaxScore>(s.train.score));
  EXPECT_TRUE(std::holds_alternative<TopK>(s.train.select));
  EXPECT_TRUE(std::holds_alternative<ChosenScores>(s.train.weigh));
  EXPECT_TRUE(std::holds_alternative<KeepSecond>(s.train.second));
  EXPECT_TRUE(std::holds_alternative<Dropless>(s.train.capacity));
  EXPECT_TRUE(std::holds_alternative<Dropless>(s.eval_as_trained));
  EXPECT_FALSE(s.train.losses.balance || s.train.losses.device || s.train.losses.communication);
  EXPECT_FALSE(s.train.losses.importance || s.train.losses.load || s.train.losses.z_of_clean);
}

TEST(SpecJson, TheHeadersExample) {
  const CustomStages s =
      parse(R"({"base": "mixtral", "noise": {"type": "learned", "floor": 0.01}, "score": "softmax",
    "select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 2, "bias": {"rate": 0.001}},
    "weigh": {"type": "scores", "renormalise": "before_drop"}, "second": "all",
    "capacity": {"type": "buffer", "factor": 1.5, "order": "token_major", "scope": "sequence"}, "capacity_eval": "dropless",
    "losses": {"balance": {"counts": "unbiased_choices", "probs": "normalised_scores", "scope": {"group": 512}, "shares": "own"}, "load": true}})");
  EXPECT_EQ(std::get<LearnedNoise>(s.train.noise).floor, 0.01f);
  const auto& select = std::get<GroupedTopK>(s.train.select);
  EXPECT_EQ(select.groups, 4);
  EXPECT_EQ(select.keep, 2);
  EXPECT_EQ(select.group_top, 2);
  ASSERT_TRUE(select.bias.has_value());
  EXPECT_EQ(select.bias->rate, 0.001f);
  EXPECT_EQ(std::get<ChosenScores>(s.train.weigh).renormalise,
            ChosenScores::Renormalise::before_drop);
  const auto& capacity = std::get<BufferCapacity>(s.train.capacity);
  EXPECT_EQ(capacity.factor, 1.5f);
  EXPECT_EQ(capacity.order, BufferCapacity::Order::token_major);
  EXPECT_EQ(capacity.scope.kind, Scope::Kind::sequence);
  EXPECT_EQ(capacity.minimum, BufferCapacity().minimum);
  ASSERT_TRUE(s.train.losses.balance.has_value());
  EXPECT_EQ(s.train.losses.balance->counts, BalanceLoss::Counts::unbiased_choices);
  EXPECT_EQ(s.train.losses.balance->probs, BalanceLoss::Probs::normalised_scores);
  EXPECT_EQ(s.train.losses.balance->scope.kind, Scope::Kind::group);
  EXPECT_EQ(s.train.losses.balance->scope.group, 512);
  EXPECT_TRUE(s.train.losses.load);
}

TEST(SpecJson, EveryRecipeComesBackAsItWas) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    SCOPED_TRACE(std::string(recipe.name));
    const CustomStages row = {recipe.train, recipe.eval_as_trained};
    const std::string text = written(row);
    EXPECT_EQ(written(parse(text)), text);
    EXPECT_FALSE(Json::parse(text).contains("base"));
    if (recipe.name == "custom") continue;
    EXPECT_EQ(written(parse(Json({{"base", recipe.name}}).dump())), text);
  }
}

// Every value that an enum of the stages can have, set in C++, written and read: two enumerators
// under one name, or one under another's, would not come back.
TEST(SpecJson, EveryEnumeratorHasItsName) {
  const auto comes_back = [](const CustomStages& s, auto field, auto value) {
    EXPECT_EQ(field(parse(written(s))), value) << written(s);
  };
  using C = BufferCapacity;
  for (int i = 0; i < 4; ++i) {
    CustomStages s = parse(R"({"capacity": "buffer"})");
    std::get<C>(s.train.capacity).rounding = static_cast<C::Rounding>(i);
    comes_back(
        s, [](const CustomStages& x) { return std::get<C>(x.train.capacity).rounding; },
        static_cast<C::Rounding>(i));
  }
  for (int i = 0; i < 5; ++i) {
    CustomStages s = parse(R"({"capacity": "buffer"})");
    std::get<C>(s.train.capacity).order = static_cast<C::Order>(i);
    comes_back(
        s, [](const CustomStages& x) { return std::get<C>(x.train.capacity).order; },
        static_cast<C::Order>(i));
  }
  for (int i = 0; i < 3; ++i) {
    CustomStages s = parse(R"({"losses": {"balance": true}})");
    s.train.losses.balance->counts = static_cast<BalanceLoss::Counts>(i);
    s.train.losses.balance->probs = static_cast<BalanceLoss::Probs>((i + 1) % 3);
    s.train.losses.balance->shares = static_cast<BalanceLoss::Shares>((i + 2) % 3);
    comes_back(
        s, [](const CustomStages& x) { return x.train.losses.balance->counts; },
        static_cast<BalanceLoss::Counts>(i));
    comes_back(
        s, [](const CustomStages& x) { return x.train.losses.balance->probs; },
        static_cast<BalanceLoss::Probs>((i + 1) % 3));
    comes_back(
        s, [](const CustomStages& x) { return x.train.losses.balance->shares; },
        static_cast<BalanceLoss::Shares>((i + 2) % 3));
    s.train.weigh = ChosenScores{static_cast<ChosenScores::Renormalise>(i), 2.5f};
    comes_back(
        s, [](const CustomStages& x) { return std::get<ChosenScores>(x.train.weigh).renormalise; },
        static_cast<ChosenScores::Renormalise>(i));
  }
  for (const HashChoice::Map map : {HashChoice::Map::modulo, HashChoice::Map::random}) {
    CustomStages s;
    s.train.select = HashChoice{.map = map, .seed = 7};
    comes_back(
        s, [](const CustomStages& x) { return std::get<HashChoice>(x.train.select).map; }, map);
    comes_back(
        s, [](const CustomStages& x) { return std::get<HashChoice>(x.train.select).seed; }, 7);
  }
}

// The names are an interface: each enumerator under the one that docs/recipes.md gives it.
TEST(SpecJson, NamesAreThoseOfTheDocumentation) {
  using C = BufferCapacity;
  const auto capacity = [](const char* key, const char* name) {
    return std::get<C>(
        parse(fmt::format(R"({{"capacity": {{"type": "buffer", "{}": "{}"}}}})", key, name))
            .train.capacity);
  };
  for (const auto& [name, value] :
       {std::pair{"floor", C::Rounding::floor},
        std::pair{"floor_to_even", C::Rounding::floor_to_even},
        std::pair{"round", C::Rounding::round}, std::pair{"ceil", C::Rounding::ceil}})
    EXPECT_EQ(capacity("rounding", name).rounding, value) << name;
  for (const auto& [name, value] : {std::pair{"choice_major", C::Order::choice_major},
                                    std::pair{"token_major", C::Order::token_major},
                                    std::pair{"by_weight", C::Order::by_weight},
                                    std::pair{"batch_priority", C::Order::batch_priority},
                                    std::pair{"random", C::Order::random}})
    EXPECT_EQ(capacity("order", name).order, value) << name;
  EXPECT_EQ(capacity("scope", "micro_batch").scope.kind, Scope::Kind::micro_batch);
  EXPECT_EQ(capacity("scope", "sequence").scope.kind, Scope::Kind::sequence);
  const auto balance = [](const char* key, const char* name) {
    return *parse(fmt::format(R"({{"losses": {{"balance": {{"{}": "{}"}}}}}})", key, name))
                .train.losses.balance;
  };
  using B = BalanceLoss;
  for (const auto& [name, value] : {std::pair{"first_choice", B::Counts::first_choice},
                                    std::pair{"all_choices", B::Counts::all_choices},
                                    std::pair{"unbiased_choices", B::Counts::unbiased_choices}})
    EXPECT_EQ(balance("counts", name).counts, value) << name;
  for (const auto& [name, value] : {std::pair{"scores", B::Probs::scores},
                                    std::pair{"chosen_weights", B::Probs::chosen_weights},
                                    std::pair{"normalised_scores", B::Probs::normalised_scores}})
    EXPECT_EQ(balance("probs", name).probs, value) << name;
  for (const auto& [name, value] :
       {std::pair{"own", B::Shares::own}, std::pair{"running", B::Shares::running},
        std::pair{"step", B::Shares::step}})
    EXPECT_EQ(balance("shares", name).shares, value) << name;
  using R = ChosenScores::Renormalise;
  for (const auto& [name, value] :
       {std::pair{"never", R::never}, std::pair{"before_drop", R::before_drop},
        std::pair{"after_drop", R::after_drop}})
    EXPECT_EQ(
        std::get<ChosenScores>(
            parse(fmt::format(R"({{"weigh": {{"type": "scores", "renormalise": "{}"}}}})", name))
                .train.weigh)
            .renormalise,
        value);
  using M = HashChoice::Map;
  for (const auto& [name, value] : {std::pair{"modulo", M::modulo}, std::pair{"random", M::random}})
    EXPECT_EQ(std::get<HashChoice>(
                  parse(fmt::format(R"({{"select": {{"type": "hash", "map": "{}"}}}})", name))
                      .train.select)
                  .map,
              value);
}

TEST(SpecJson, WhatIsNotNamedIsTheBases) {
  const auto& row = std::get<BufferCapacity>(find_recipe("nanomoe").train.capacity);
  const CustomStages s = parse(
      R"({"base": "nanomoe", "capacity": {"type": "buffer", "factor": 3}, "losses": {"balance": {"scope": "sequence"}, "load": true}})");
  const auto& capacity = std::get<BufferCapacity>(s.train.capacity);
  EXPECT_EQ(capacity.factor, 3);
  EXPECT_EQ(capacity.rounding, row.rounding);
  EXPECT_NE(capacity.rounding, BufferCapacity().rounding)
      << "the row has the default: this test shows nothing";
  EXPECT_EQ(s.train.losses.balance->probs, find_recipe("nanomoe").train.losses.balance->probs);
  EXPECT_EQ(s.train.losses.balance->scope.kind, Scope::Kind::sequence);
  EXPECT_TRUE(s.train.losses.load);
  // Another type, or another base, starts from its own defaults.
  EXPECT_EQ(
      std::get<BufferCapacity>(parse(R"({"base": "mixtral", "capacity": "buffer"})").train.capacity)
          .rounding,
      BufferCapacity().rounding);
}

TEST(SpecJson, FalseSwitchesOff) {
  ASSERT_TRUE(find_recipe("deepseek-v3").train.losses.balance.has_value());
  ASSERT_NE(selection_bias(find_recipe("deepseek-v3").train.select), nullptr);
  const CustomStages s = parse(
      R"({"base": "deepseek-v3", "select": {"type": "grouped_top_k", "bias": false}, "losses": {"balance": false}})");
  EXPECT_EQ(selection_bias(s.train.select), nullptr);
  EXPECT_FALSE(s.train.losses.balance.has_value());
  EXPECT_NE(selection_bias(parse(R"({"select": {"type": "top_k", "bias": true}})").train.select),
            nullptr);
}

TEST(SpecJson, RefusesWhatItDoesNotKnow) {
  EXPECT_FAILS(parse("[]"), "stages.json");
  EXPECT_FAILS(parse("{"), "line 1");
  EXPECT_FAILS(parse(R"({"selct": "top_k"})"),
               "\"selct\" is not known here; did you mean \"select\"?");
  EXPECT_FAILS(parse(R"({"select": "topk"})"), "\"top_k\"");
  EXPECT_FAILS(parse(R"({"select": {"type": "topk"}})"), "\"top_k\"");
  EXPECT_FAILS(parse(R"({"select": {"type": "grouped_top_k", "group": 2}})"), "\"groups\"");
  EXPECT_FAILS(parse(R"({"select": {"type": "top_k", "k": 2}})"), "\"k\" is not known");
  EXPECT_FAILS(parse(R"({"select": {"groups": 2}})"), "\"type\" is missing");
  EXPECT_FAILS(parse(R"({"select": 3})"), "\"select\" must be a name or an object");
  EXPECT_FAILS(parse(R"({"select": ["top_k"]})"), "\"select\" must be a name or an object");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "factor": "2"}})"), "\"factor\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "factor": -1}})"), "\"factor\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "factor": 1e39}})"), "\"factor\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "minimum": 1.5}})"), "\"minimum\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "minimum": 3000000000}})"), "\"minimum\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "order": "choice-mayor"}})"),
               "\"choice_major\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "count_choices": 1}})"), "true or false");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "scope": "group"}})"), "\"scope\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "scope": {"group": 0}}})"), "\"group\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "scope": {"groups": 8}}})"), "\"group\"");
  EXPECT_FAILS(parse(R"({"capacity": {"type": "buffer", "scope": 8}})"),
               "\"scope\" must be a name or an object");
  EXPECT_FAILS(parse(R"({"losses": {"balence": true}})"), "\"balance\"");
  EXPECT_FAILS(parse(R"({"losses": {"balance": "all"}})"), "\"balance\" must be an object");
  EXPECT_FAILS(parse(R"({"losses": {"load": {}}})"), "\"load\"");
  EXPECT_FAILS(parse(R"({"base": "mixtrall"})"), "\"mixtral\"");
  EXPECT_FAILS(parse(R"({"base": "dense"})"), "\"dense\"");
  EXPECT_FAILS(parse(R"({"base": "custom"})"), "\"custom\"");
}

}  // namespace
}  // namespace moe::test::spec_json_test
