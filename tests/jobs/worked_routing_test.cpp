// `moe route` by its library function: the golden vectors of the notes on recipes, worked out by a
// script apart from this code, gradients against differences of the reply itself, and hostile input
// refused in one line that names file and key.
#include "jobs/worked_routing.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "moe/recipes/recipes.h"
#include "support/files.h"

namespace moe::test::worked_routing_test {
namespace {

const std::string kFile = "z.json";

Json json(const std::string& text) { return parse_json(text, "test"); }
Json golden() {
  return json(R"({"logits": [[2,1,0,-1],[1.5,1.5,0.5,0],[3,-1,2,0],[0.2,0.1,0,2.2]]})");
}

RoutingOptions options(const char* recipe, int64_t experts, int64_t top_k) {
  return default_options(find_recipe(recipe), experts, top_k, 1);
}
Json routed(const char* recipe, const Json& input, int64_t top_k = 2) {
  return route(train_spec(options(recipe, 4, top_k)), input, kFile, 1);
}

void expect_rows(const Json& got, const std::vector<std::vector<double>>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size()) << got;
  for (size_t n = 0; n < want.size(); ++n) {
    ASSERT_EQ(got[n].size(), want[n].size()) << got;
    for (size_t i = 0; i < want[n].size(); ++i)
      EXPECT_NEAR(got[n][i].get<double>(), want[n][i], tolerance) << n << " " << i;
  }
}

constexpr double kPrinted = 1e-6;  // the vectors have six decimals

TEST(RouteGolden, TopKRawAndRenormalised) {
  const Json raw = routed("olmoe", golden());
  EXPECT_EQ(raw.at("experts"), json("[[0,1],[0,1],[0,2],[3,0]]"));
  expect_rows(raw.at("weights"),
              {{.643914, .236883}, {.385950, .385950}, {.696387, .256187}, {.730676, .098886}},
              kPrinted);
  EXPECT_EQ(raw.at("counts"), json("[4,2,1,1]"));
  EXPECT_NEAR(raw.at("balance").get<double>(), 1.275060, kPrinted);
  EXPECT_NEAR(raw.at("z").get<double>(), 7.397051, 2e-6);
  EXPECT_EQ(raw.at("max_vio"), 1.0);
  EXPECT_EQ(raw.at("cv2"), 0.375);
  EXPECT_NEAR(raw.at("entropy").get<double>(), 0.875, kPrinted);
  EXPECT_TRUE(raw.at("capacity").is_null());
  EXPECT_EQ(raw.at("dropped"), 0);
  const Json mixtral = routed("mixtral", golden());
  expect_rows(mixtral.at("weights"),
              {{.731059, .268941}, {.5, .5}, {.731059, .268941}, {.880797, .119203}}, kPrinted);
  // canonical: Hugging Face's 2.550119 / K
  EXPECT_NEAR(mixtral.at("balance").get<double>(), 1.275060, kPrinted);
}

TEST(RouteGolden, SwitchAndNanomoe) {
  const Json one = routed("switch", golden(), 1);
  EXPECT_EQ(one.at("counts"), json("[3,0,0,1]"));
  EXPECT_NEAR(one.at("balance").get<double>(), 1.589734, kPrinted);
  EXPECT_EQ(one.at("capacity"), 4);
  const Json masked = routed("nanomoe", golden());
  // ours is 1 where nanoMoE's is K
  EXPECT_NEAR(masked.at("balance").get<double>(), 2.753225 / 2, kPrinted);
}

TEST(RouteGolden, ExpertChoice) {
  const Json r = routed("expert-choice", golden());
  EXPECT_EQ(r.at("experts"), json("[[0,1],[1,2,3],[0,2],[3]]"));
  expect_rows(r.at("weights"),
              {{.643914, .236883}, {.385950, .141983, .086117}, {.696387, .256187}, {.730676}},
              kPrinted);
  EXPECT_EQ(r.at("counts"), json("[2,2,2,2]"));
}

TEST(RouteGolden, DeepSeekV3) {
  Json input = golden();
  input["bias"] = {-0.2, 0, 0.1, 0};
  RoutingOptions o = options("deepseek-v3", 4, 2);
  o.expert_groups = o.groups_kept = 1;
  const Json r = route(train_spec(o), input, kFile, 1);
  EXPECT_EQ(r.at("experts"), json("[[1,0],[1,2],[2,0],[3,2]]"));
  expect_rows(
      r.at("weights"),
      {{1.133877, 1.366123}, {1.419367, 1.080633}, {1.201062, 1.298938}, {1.607302, .892698}},
      kPrinted);
}

// The discriminating case: one place an expert, token 0 wants (0, 1), token 1 wants (1, 0).
TEST(RouteGolden, OrderOfDrops) {
  const Json input = json(R"({"logits": [[1, 0.5], [0.5, 1]]})");
  const auto kept = [&](const std::string& order) {
    RoutingOptions o = options("custom", 2, 2);
    o.stages = R"({"capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "order": ")" +
               order + "\"}}";
    const Json r = route(train_spec(o), input, kFile, 1);
    EXPECT_EQ(r.at("capacity"), 1);
    EXPECT_EQ(r.at("dropped"), 2);
    EXPECT_EQ(r.at("counts"), json("[2,2]"));
    for (size_t n = 0; n < 2; ++n)
      for (size_t i = 0; i < 2; ++i) EXPECT_EQ(r["weights"][n][i] == 0.0, r["kept"][n][i] == false);
    return r.at("kept");
  };
  EXPECT_EQ(kept("choice_major"), json("[[true,false],[true,false]]"));
  EXPECT_EQ(kept("token_major"), json("[[true,true],[false,false]]"));
}

TEST(Route, HashReadsIdsOnly) {
  RoutingOptions o = options("custom", 4, 2);
  o.stages = R"({"select": {"type": "hash", "map": "modulo"}, "weigh": "one"})";
  const RoutingSpec spec = train_spec(o);
  const Json r = route(spec, json(R"({"ids": [0, 5, 7]})"), kFile, 1);
  EXPECT_EQ(r.at("experts"), json("[[0,1],[1,2],[3,0]]"));
  EXPECT_EQ(r.at("weights"), json("[[1.0,1.0],[1.0,1.0],[1.0,1.0]]"));
  EXPECT_FALSE(r.contains("z"));
  EXPECT_FAILS(route(spec, golden(), kFile, 1), "\"logits\" has no meaning for hash routing");
  EXPECT_FAILS(route(spec, json(R"({"ids": [0, -1]})"), kFile, 1), "\"ids\"[1]");
}

TEST(Route, ThresholdsAndScopes) {
  Json input = golden();
  input["threshold"] = {0.6, 0.3, 0.3, 0.7};
  const RoutingSpec spec = eval_spec(options("expert-choice", 4, 2), EvalRouting::threshold);
  const Json r = route(spec, input, kFile, 1);
  EXPECT_EQ(r.at("experts"), json("[[0],[1],[0],[3]]"));
  EXPECT_FAILS(route(spec, golden(), kFile, 1), "\"threshold\" is missing");
  // Nothing chosen: no evenness to speak of.
  input["threshold"] = {2, 2, 2, 2};
  const Json none = route(spec, input, kFile, 1);
  EXPECT_EQ(none.at("experts"), json("[[],[],[],[]]"));
  EXPECT_TRUE(none.at("max_vio").is_null() && none.at("cv2").is_null() &&
              none.at("entropy").is_null());
  // Two sequences of different length have capacities of their own.
  RoutingOptions o = options("custom", 4, 2);
  o.stages =
      R"({"capacity": {"type": "buffer", "factor": 1, "minimum": 0, "rounding": "ceil", "scope": "sequence"}})";
  Json parted = golden();
  EXPECT_EQ(route(train_spec(o), parted, kFile, 1).at("capacity"), 2);
  parted["sequences"] = {3, 1};
  EXPECT_EQ(route(train_spec(o), parted, kFile, 1).at("capacity"), json("[2,1]"));
}

TEST(Route, NoiseIsGivenOrDrawn) {
  Json given = golden();
  given["noise"] = json("[[0,0,0,9],[0,0,0,0],[0,0,0,0],[0,0,0,0]]");
  EXPECT_EQ(routed("olmoe", given).at("experts"), json("[[3,0],[0,1],[0,2],[3,0]]"));
  given["sigma"] = json("[[1,1,1,0],[1,1,1,1],[1,1,1,1],[1,1,1,1]]");
  EXPECT_EQ(routed("olmoe", given).at("experts"), json("[[0,1],[0,1],[0,2],[3,0]]"));
  // The same logits as x with an identity for the router.
  Json x = json(
      R"({"weight": [[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]], "noise_weight": [[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,0]]})");
  x["x"] = golden()["logits"];
  EXPECT_EQ(routed("nanomoe", x).at("experts"), json("[[0,1],[0,1],[0,2],[3,0]]"));
  x["draw"] = true;
  const Json drawn = routed("nanomoe", x);
  EXPECT_EQ(routed("nanomoe", x), drawn);
  EXPECT_NE(drawn.at("weights"), routed("nanomoe", golden()).at("weights"));
  x["seed"] = 2;
  EXPECT_NE(routed("nanomoe", x).at("weights"), drawn.at("weights"));
  Json logits = golden();
  logits["draw"] = true;
  EXPECT_FAILS(routed("nanomoe", logits), "needs \"x\"");
  EXPECT_NO_THROW(routed("gshard", logits));  // a random second choice needs no x
}

// sum of dweights . weights and coefficients . losses, as the reply gives them.
double objective(const Json& reply, const Json& input) {
  double sum = 0;
  for (size_t n = 0; n < reply["weights"].size(); ++n)
    for (size_t i = 0; i < reply["weights"][n].size(); ++i)
      sum += input["dweights"][n][i].get<double>() * reply["weights"][n][i].get<double>();
  for (const auto& [name, coef] : input.at("coef").items())
    sum += coef.get<double>() * reply.at(name).get<double>();
  return sum;
}

// Central differences of the reply's own numbers (floats: the step is wide and the tolerance the
// differences' error, not the gradient's) against what it says.
void check_gradient(const RoutingSpec& spec, Json input, const char* from, const char* to) {
  constexpr double kStep = 1.0 / 128, kTolerance = 2e-3;
  const Json reply = route(spec, input, kFile, 1);
  ASSERT_TRUE(reply.contains(to)) << to;
  double norm = 0;
  for (size_t i = 0; i < input[from].size(); ++i)
    for (size_t j = 0; j < input[from][i].size(); ++j) {
      const double at = input[from][i][j];
      input[from][i][j] = at + kStep;
      const double above = objective(route(spec, input, kFile, 1), input);
      input[from][i][j] = at - kStep;
      const double below = objective(route(spec, input, kFile, 1), input);
      input[from][i][j] = at;
      EXPECT_NEAR(reply[to][i][j].get<double>(), (above - below) / (2 * kStep), kTolerance)
          << from << " " << i << " " << j;
      norm += std::abs(reply[to][i][j].get<double>());
    }
  EXPECT_GT(norm, 0.05) << to;
}

Json shazeer_case() {
  return json(
      R"({"x": [[1,0.5],[-0.5,1],[0.25,-1],[1.5,1]], "weight": [[0.9,-0.4],[-0.3,0.8],[0.5,0.6],[-0.7,-0.2]],
    "noise_weight": [[0.2,0.1],[-0.4,0.3],[0.1,-0.2],[0.3,0.2]], "noise": [[0.3,-0.2,0.5,0.1],[-0.4,0.2,0.1,-0.3],[0.2,0.6,-0.5,0.4],[-0.1,0.3,0.2,-0.6]],
    "coef": {"importance": 0.5, "load": 0.7, "z": 0.1}, "dweights": [[1,-0.5],[0.25,2],[-1,0.5],[0.75,-0.25]]})");
}

TEST(RouteGradient, OfLogitsAndOfX) {
  Json input = golden();
  input["logits"][1][1] = 1.25;  // no ties: a difference would change the choice
  input["coef"] = {{"balance", 0.7}, {"z", 0.1}};
  input["dweights"] = json("[[1,-0.5],[0.25,2],[-1,0.5],[0.75,-0.25]]");
  for (const char* recipe : {"olmoe", "mixtral", "nanomoe"})
    check_gradient(train_spec(options(recipe, 4, 2)), input, "logits", "dlogits");
  Json x = shazeer_case();
  x["coef"] = {{"balance", 0.7}, {"z", 0.1}};
  x.erase("noise_weight");
  x.erase("noise");
  check_gradient(train_spec(options("mixtral", 4, 2)), x, "x", "dx");
  check_gradient(train_spec(options("mixtral", 4, 2)), x, "weight", "dweight");
}

TEST(RouteGradient, ThroughGivenNoise) {
  const RoutingSpec spec = train_spec(options("shazeer", 4, 2));
  for (const auto& [from, to] : {std::pair{"x", "dx"}, std::pair{"weight", "dweight"},
                                 std::pair{"noise_weight", "dnoise_weight"}})
    check_gradient(spec, shazeer_case(), from, to);
}

TEST(RouteGradient, ThroughDrawnNoise) {
  Json input = shazeer_case();
  input.erase("noise");
  input["draw"] = true;
  const RoutingSpec spec = train_spec(options("shazeer", 4, 2));
  for (const auto& [from, to] : {std::pair{"x", "dx"}, std::pair{"weight", "dweight"},
                                 std::pair{"noise_weight", "dnoise_weight"}})
    check_gradient(spec, input, from, to);
}

// The last two of four experts give a token back: chosen and weighed as before, and in the counts.
TEST(Route, ToZeroExperts) {
  RoutingOptions half = options("olmoe", 2, 2);
  half.zero_experts = 2;
  Json input = golden();
  const Json got = route(train_spec(half), input, kFile, 1), want = routed("olmoe", golden());
  for (const char* key : {"experts", "weights", "kept", "counts", "balance", "z"})
    EXPECT_EQ(got.at(key), want.at(key)) << key;
  EXPECT_EQ(got.at("kept"), json("[[true,true],[true,true],[true,true],[true,true]]"));
  EXPECT_NEAR(got.at("max_vio").get<double>(), 1.0 / 3, kPrinted);  // of 4 and 2
  input["logits"][1][1] = 1.25;                                     // no ties
  input["coef"] = {{"balance", 0.7}, {"z", 0.1}};
  input["dweights"] = json("[[1,-0.5],[0.25,2],[-1,0.5],[0.75,-0.25]]");
  check_gradient(train_spec(half), input, "logits", "dlogits");
  half.experts = 1;
  half.zero_experts = 3;
  input = json(R"({"logits": [[0,3,2,1]], "dweights": [[1,-0.5]]})");
  EXPECT_FAILS(route(train_spec(half), input, kFile, 1), "give a token the same");
  input["dweights"] = json("[[1,1]]");
  EXPECT_NO_THROW(route(train_spec(half), input, kFile, 1));
}

TEST(RouteRefuses, WhatDoesNotFit) {
  const auto with = [](const char* key, const char* value) {
    Json input = golden();
    if (value == nullptr) input.erase(key);
    else input[key] = json(value);
    return message_of([&] { routed("olmoe", input); });
  };
  const auto expect = [](const std::string& message, std::initializer_list<const char*> parts) {
    EXPECT_TRUE(message.starts_with(kFile + ": ")) << message;
    for (const char* part : parts) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message);
  };
  expect(with("logits", nullptr), {"\"logits\"", "missing"});
  expect(with("logits", "3"), {"\"logits\" must be an array"});
  expect(with("logits", "[]"), {"\"logits\" is empty"});
  expect(with("logits", "[[]]"), {"\"logits\"[0] is empty"});
  expect(with("logits", "[[1,2,3,4],[1,2,3]]"), {"\"logits\"[1] has 3 entries, 4 are needed"});
  expect(with("logits", "[[1,2,3,4],5]"), {"\"logits\"[1] must be an array of numbers"});
  expect(with("logits", "[[1,2,3,\"4\"]]"), {"\"logits\"[0][3] must be a finite number"});
  expect(with("logits", "[[1,2,3,1e39]]"), {"\"logits\"[0][3] must be a finite number"});
  expect(with("logits", "[[1,2,3,null]]"), {"\"logits\"[0][3] must be a finite number"});
  expect(with("noise", "[[1,2,3,4]]"), {"\"noise\" has 1 entries, 4 are needed"});
  expect(with("sigma", "[[1,2,3,4]]"), {"\"sigma\"", "\"noise\""});
  expect(with("bias", "[0,0,0,0]"), {"\"bias\" has no meaning"});
  expect(with("threshold", "[0,0,0,0]"), {"\"threshold\" has no meaning"});
  expect(with("x", "[[1]]"), {"\"x\" and \"logits\""});
  expect(with("ids", "[1,2,3]"), {"\"ids\" has 3 entries, 4 are needed"});
  expect(with("ids", "[1,2,3,2.5]"), {"\"ids\""});
  expect(with("sequences", "[3,2]"), {"\"sequences\" add up to 5 tokens, there are 4"});
  expect(with("sequences", "[4,0]"), {"\"sequences\"[1]"});
  expect(with("step_counts", "[1,2]"), {"\"step_counts\" has 2 entries, 4 are needed"});
  expect(with("step_counts", "[1,2,3,-1]"), {"\"step_counts\"[3]"});
  expect(with("coef", "{\"balence\": 1}"), {"\"coef\"", "\"balance\""});
  expect(with("coef", "{\"balance\": \"1\"}"), {"\"balance\""});
  expect(with("dweights", "[[1,1]]"), {"\"dweights\" must be an array of 4 rows"});
  expect(with("dweights", "[[1,1],[1,1],[1,1],[1]]"),
         {"\"dweights\"[3] must be an array of 2 numbers"});
  expect(with("draw", "1"), {"\"draw\"", "true or false"});
  expect(with("seed", "-1"), {"\"seed\""});
  expect(with("logit", "[[1]]"), {"\"logit\" is not known here", "\"logits\""});
}

TEST(RouteRefuses, ExpertsOfTheInput) {
  EXPECT_EQ(route_experts(golden(), kFile), 4);
  EXPECT_EQ(route_experts(json(R"({"x": [[1, 2]], "weight": [[1, 0], [0, 1], [1, 1]]})"), kFile),
            3);
  EXPECT_EQ(route_experts(json(R"({"ids": [1, 2]})"), kFile), 0);
  EXPECT_FAILS(route_experts(json("[]"), kFile), "z.json");
  EXPECT_FAILS(route_experts(json("{}"), kFile), "\"logits\" is missing");
  EXPECT_FAILS(route_experts(json(R"({"logits": [1]})"), kFile), "\"logits\"");
}

}  // namespace
}  // namespace moe::test::worked_routing_test
