// What the command says and does about routing: recipes worked out on given numbers (the golden
// vectors of the notes on recipes), the table of recipes, and models whose routing is not causal.
#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
#include "moe/recipes/recipes.h"
#include "support/command.h"

namespace moe::test::routing_test {
namespace {

class Routing : public ::testing::Test {
 protected:
  Routing() { put(z_, R"({"logits": [[2,1,0,-1],[1.5,1.5,0.5,0],[3,-1,2,0],[0.2,0.1,0,2.2]]})"); }

  // The reply of `moe route --json`.
  Json route(std::vector<std::string> words, const std::string& file) const {
    words.insert(words.begin(), "route");
    words.insert(words.end(), {"--logits", file, "--json"});
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    return r.code == 0 ? Json::parse(r.out) : Json();
  }
  Json route(const std::vector<std::string>& words) const { return route(words, z_); }
  void refused(const std::string& content, const std::vector<std::string>& words, int code,
               const std::vector<std::string>& parts) const {
    put(folder_ / "bad.json", content);
    std::vector<std::string> line = {"route", "--logits", folder_ / "bad.json"};
    line.insert(line.end(), words.begin(), words.end());
    expect_refused(line, code, parts);
  }

  TempFolder folder_;
  std::string z_ = folder_ / "z.json";
};

void expect_rows(const Json& got, const std::vector<std::vector<double>>& want) {
  ASSERT_EQ(got.size(), want.size()) << got;
  for (size_t n = 0; n < want.size(); ++n) {
    ASSERT_EQ(got[n].size(), want[n].size()) << got;
    for (size_t i = 0; i < want[n].size(); ++i)
      EXPECT_NEAR(got[n][i].get<double>(), want[n][i], 1e-6) << n << " " << i;
  }
}

size_t longest_line(const std::string& text) {
  size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
  return most;
}

TEST_F(Routing, GoldenVectorsByCommand) {
  const Json choice = Json::parse("[[0,1],[0,1],[0,2],[3,0]]"), counts = Json::parse("[4,2,1,1]");
  const Json raw = route({"--recipe", "olmoe", "--top-k", "2"});
  EXPECT_EQ(raw["experts"], choice);
  EXPECT_EQ(raw["counts"], counts);
  expect_rows(raw["weights"],
              {{.643914, .236883}, {.385950, .385950}, {.696387, .256187}, {.730676, .098886}});
  EXPECT_NEAR(raw["balance"].get<double>(), 1.275060, 1e-6);
  EXPECT_NEAR(raw["z"].get<double>(), 7.397051, 2e-6);
  EXPECT_EQ(raw["max_vio"], 1.0);
  EXPECT_EQ(raw["cv2"], 0.375);
  EXPECT_NEAR(raw["entropy"].get<double>(), 0.875, 1e-6);
  EXPECT_EQ(route({"--recipe", "qwen2-moe", "--top-k", "2"})["weights"], raw["weights"]);

  const std::vector<std::vector<double>> renormalised = {
      {.731059, .268941}, {.5, .5}, {.731059, .268941}, {.880797, .119203}};
  for (const char* recipe : {"mixtral", "qwen3-moe"})
    expect_rows(route({"--recipe", recipe, "--top-k", "2"})["weights"], renormalised);
  expect_rows(route({"--recipe", "olmoe", "--top-k", "2", "--norm-topk-prob", "true"})["weights"],
              renormalised);

  EXPECT_NEAR(route({"--recipe", "switch", "--top-k", "1"})["balance"].get<double>(), 1.589734,
              1e-6);
  EXPECT_NEAR(route({"--recipe", "nanomoe", "--top-k", "2"})["balance"].get<double>(), 2.753225 / 2,
              1e-6);

  const Json zhou = route({"--recipe", "expert-choice", "--top-k", "2"});
  EXPECT_EQ(zhou["experts"], Json::parse("[[0,1],[1,2,3],[0,2],[3]]"));
  expect_rows(zhou["weights"],
              {{.643914, .236883}, {.385950, .141983, .086117}, {.696387, .256187}, {.730676}});

  put(folder_ / "biased.json",
      R"({"logits": [[2,1,0,-1],[1.5,1.5,0.5,0],[3,-1,2,0],[0.2,0.1,0,2.2]], "bias": [-0.2, 0, 0.1, 0]})");
  const Json v3 = route(
      {"--recipe", "deepseek-v3", "--top-k", "2", "--expert-groups", "1", "--groups-kept", "1"},
      folder_ / "biased.json");
  EXPECT_EQ(v3["experts"], Json::parse("[[1,0],[1,2],[2,0],[3,2]]"));
  expect_rows(
      v3["weights"],
      {{1.133877, 1.366123}, {1.419367, 1.080633}, {1.201062, 1.298938}, {1.607302, .892698}});
}

TEST_F(Routing, CapacityOfCustomStages) {
  put(folder_ / "stages.json",
      R"({"base": "mixtral", "capacity": {"type": "buffer", "factor": 1, "minimum": 0}})");
  const Json r = route({"--recipe", "custom", "--stages", folder_ / "stages.json", "--top-k", "2"});
  EXPECT_EQ(r["capacity"], 2);
  EXPECT_EQ(r["kept"], Json::parse("[[true,true],[true,true],[false,true],[true,false]]"));
  EXPECT_EQ(r["dropped"], 2);
  EXPECT_EQ(r["weights"][2][0], 0.0);
  EXPECT_NEAR(r["weights"][3][0].get<double>(), 0.880797, 1e-6)
      << "a drop must not change the other weight";
  const CommandResult text =
      moe_command({"route", "--stages", folder_ / "stages.json", "--top-k", "2", "--logits", z_});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"2 of 4 experts", "0:dropped", "3:0.8808", "4 2 1 1",
                           "2 of 8 choices dropped", "balance", "1.27506", "entropy 0.875"})
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text.out);
  EXPECT_LE(longest_line(text.out), 100u) << text.out;
}

TEST_F(Routing, ManyCasesAndRandomDraws) {
  put(folder_ / "cases.json",
      R"({"cases": [{"logits": [[1, 2, 3]]}, {"logits": [[5, 4, 3, 2], [1, 2, 3, 4]], "seed": 7, "draw": true}]})");
  const Json r = route({"--recipe", "mixtral"}, folder_ / "cases.json");
  ASSERT_EQ(r["cases"].size(), 2u);
  EXPECT_EQ(r["cases"][0]["experts"], Json::parse("[[2,1]]"));
  EXPECT_EQ(r["cases"][1]["counts"].size(), 4u);
  put(folder_ / "bad.json", R"({"cases": [{"logits": [[1, 2]]}, {"logits": [[1, 2], [1]]}]})");
  expect_refused({"route", "--recipe", "mixtral", "--json", "--logits", folder_ / "bad.json"}, 1,
                 {"bad.json", "\"cases\"[1]", "\"logits\"[1]"});

  // GShard's second choice is kept at random: the same seed the same way, and never all ways the
  // same.
  std::set<std::string> seen;
  for (int seed = 1; seed <= 8; ++seed) {
    const std::vector<std::string> words = {"--recipe", "gshard", "--draw", "--seed",
                                            std::to_string(seed)};
    const Json once = route(words);
    EXPECT_EQ(route(words), once);
    seen.insert(once["kept"].dump());
  }
  EXPECT_GT(seen.size(), 1u);
}

TEST_F(Routing, RouteRefusesBadInput) {
  const std::vector<std::string> olmoe = {"--recipe", "olmoe", "--top-k", "2"};
  expect_refused({"route", "--recipe", "olmoe"}, 2, {"--logits"});
  expect_refused({"route", "--recipe", "olmoe", "--logits", folder_ / "none.json"}, 1,
                 {"none.json"});
  refused("", olmoe, 1, {"bad.json", "line 1"});
  refused("[1]", olmoe, 1, {"bad.json", "object"});
  refused("{}", olmoe, 1, {"bad.json", "\"logits\" is missing"});
  refused(R"({"logits": [[1, 2, 3], [1, 2]]})", olmoe, 1,
          {"bad.json", "\"logits\"[1] has 2 entries, 3 are needed"});
  refused(R"({"logits": [[1, 2, 1e999]]})", olmoe, 1, {"bad.json"});
  refused(R"({"logits": [[1, 2, NaN]]})", olmoe, 1, {"bad.json", "line 1"});
  refused(R"({"logits": [[1, 2, 3]], "nose": [[0, 0, 0]]})", olmoe, 1,
          {"bad.json", "\"nose\"", "\"noise\""});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "olmoe", "--top-k", "4"}, 2,
          {"top-k", "4", "3"});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "olmoe", "--top-k", "2", "--experts", "4"}, 2,
          {"--experts", "bad.json", "3"});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "dense"}, 2, {"dense", "router"});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "mixtal"}, 2, {"\"mixtral\""});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "mixtral", "--eval", "dropfree"}, 2,
          {"--eval", "dropfree"});
  refused(R"({"logits": [[1, 2, 3]]})", {"--recipe", "custom"}, 2, {"--stages"});
  refused(R"({"logits": [[1, 2, 3]]})", {"--stages", R"({"select": "topk"})"}, 1,
          {"--stages", "\"select\"", "\"top_k\""});
  refused(R"({"logits": [[1, 2, 3]]})", {"--stages", folder_ / "none.json"}, 1, {"none.json"});
}

TEST_F(Routing, TheTableOfRecipes) {
  const CommandResult table = moe_command({"recipes"});
  EXPECT_EQ(table.code, 0);
  EXPECT_LE(longest_line(table.out), 100u) << table.out;
  const Json rows = Json::parse(moe_command({"recipes", "--json"}).out);
  ASSERT_EQ(rows.size(), recipes().size());
  for (const Recipe& recipe : recipes()) {
    const std::string name(recipe.name);
    SCOPED_TRACE(name);
    EXPECT_NE(table.out.find("\n" + name + " "), std::string::npos);
    const CommandResult one = moe_command({"recipes", name});
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_TRUE(one.out.starts_with(name + ": ")) << one.out;
    EXPECT_LE(longest_line(one.out), 100u) << one.out;
    const Json full = Json::parse(moe_command({"recipes", name, "--json"}).out);
    EXPECT_EQ(full.at("name"), name);
    EXPECT_EQ(full.at("causal"), recipe.causality.empty());
    EXPECT_EQ(full.at("stages").is_object(), recipe.has_router());
    for (const char* part : {"formula", "source", "causal"})
      EXPECT_NE(one.out.find(std::string("  ") + part), std::string::npos) << part;
  }
  // Coefficients in the source's terms and in ours.
  const Json nano = Json::parse(moe_command({"recipes", "nanomoe", "--json"}).out);
  EXPECT_EQ(nano["losses"]["balance"]["stated"], 0.01);
  EXPECT_EQ(nano["losses"]["balance"]["canonical"], 0.02);
  EXPECT_EQ(nano["losses"]["balance"]["times_moe_layers"], true);
  EXPECT_EQ(nano["causal_when"], "evaluated");
  EXPECT_EQ(
      Json::parse(moe_command({"recipes", "expert-choice-notes", "--json"}).out)["causal_when"],
      "no");
  expect_refused({"recipes", "mixtrall"}, 2, {"mixtrall", "\"mixtral\""});
}

// The stages that `moe recipes NAME --json` shows are those that --stages takes: the same routing
// comes out.
TEST_F(Routing, ShownStagesAreTakenBack) {
  for (const char* recipe : {"olmoe", "gshard", "deepseek-v3", "expert-choice"}) {
    SCOPED_TRACE(recipe);
    Json stages = Json::parse(moe_command({"recipes", recipe, "--json"}).out)["stages"];
    std::vector<std::string> named = {"--recipe", recipe, "--top-k", "2"};
    if (stages["select"].is_object() && stages["select"].contains("groups")) {
      stages["select"]["groups"] = stages["select"]["keep"] = 1;
      named.insert(named.end(), {"--expert-groups", "1", "--groups-kept", "1"});
    }
    put(folder_ / "stages.json", stages.dump());
    EXPECT_EQ(route({"--stages", folder_ / "stages.json", "--top-k", "2"}), route(named));
  }
}

TEST_F(Routing, ModelsThatAreNotCausal) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {}: every expert takes its tokens\n", i);
  put(folder_ / "text.txt", text);
  const auto train = [&](const std::string& recipe) {
    const CommandResult r = moe_command(command_line(
        "train --width 16 --heads 2 --layers 2 --experts 4 --top-k 2 --context 16 --batch 2 "
        "--steps 3 --threads 1",
        {"--data", folder_ / "text.txt", "--out", folder_ / recipe, "--recipe", recipe}));
    ASSERT_EQ(r.code, 0) << r.err;
  };
  train("expert-choice");
  train("expert-choice-notes");
  const std::string zhou = folder_ / "expert-choice", notes = folder_ / "expert-choice-notes";
  const auto generate = [&](const std::string& model, std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", model, "-p", "line", "-n", "5"});
    return words;
  };
  expect_refused(generate(zhou, {}), 2, {"expert-choice", "later tokens", "--routing threshold"});
  expect_refused(generate(zhou, {"--routing", "as-trained"}), 2,
                 {"expert-choice", "--routing threshold"});
  expect_refused(generate(notes, {}), 2, {"expert-choice-notes", "scored"});
  expect_refused(generate(zhou, {"--routing", "treshold"}), 2, {"--routing", "\"threshold\""});
  const CommandResult written = moe_command(generate(zhou, {"--routing", "threshold"}));
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_TRUE(written.out.starts_with("line"));

  const auto score = [&](const std::string& model, std::vector<std::string> words) {
    words.insert(words.begin(), {"score", model, "--text", folder_ / "text.txt", "--window", "16",
                                 "--windows", "3", "--json"});
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return std::pair(Json::parse(r.out), r.err);
  };
  const auto [causal, quiet] = score(zhou, {});
  EXPECT_EQ(causal.at("causal"), true);
  EXPECT_EQ(causal.at("routing"), "threshold");
  EXPECT_EQ(quiet.find("too low"), std::string::npos) << quiet;
  const auto [leaking, said] = score(zhou, {"--routing", "as-trained"});
  EXPECT_EQ(leaking.at("causal"), false);
  EXPECT_NE(said.find("too low"), std::string::npos) << said;
  const auto [literal, warned] = score(notes, {});
  EXPECT_EQ(literal.at("causal"), false);
  EXPECT_NE(warned.find("too low"), std::string::npos) << warned;
}

TEST_F(Routing, InspectShowsFigureTwoAndTheDenseTwins) {
  const CommandResult r = moe_command({"inspect", "--preset", "deepseekmoe-mini", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json v = Json::parse(r.out).at("variants");
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0]["combinations"], "28");
  EXPECT_EQ(v[1]["combinations"], "10518300");  // 8 of 32
  EXPECT_EQ(v[2]["combinations"], "593775");    // 6 of 30, 2 shared
  EXPECT_EQ(v[2]["is_model"], true);
  for (const Json& row : v) {
    EXPECT_EQ(row["parameters"].get<int64_t>() - row["router"].get<int64_t>(),
              v[0]["parameters"].get<int64_t>() - v[0]["router"].get<int64_t>());
    EXPECT_EQ(row["active"].get<int64_t>() - row["router"].get<int64_t>(),
              v[0]["active"].get<int64_t>() - v[0]["router"].get<int64_t>());
  }
  const Json dense = Json::parse(r.out).at("dense"), model = Json::parse(r.out);
  EXPECT_LT(dense["equal_flops"]["parameters"], model["parameters"]["total"]);
  EXPECT_GT(dense["equal_parameters"]["flops_per_token"], model["flops_per_token"]["forward"]);
  const CommandResult text = moe_command({"inspect", "--preset", "deepseekmoe-mini"});
  for (const char* part :
       {"fine-grained, shared", "10,518,300", "2^23.33", "times as many", "times as few"})
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text.out);
  expect_refused({"inspect"}, 2, {"--preset"});
  expect_refused({"inspect", "--preset", "deepseek-mini"}, 2, {"\"deepseekmoe-mini\""});
}

}  // namespace
}  // namespace moe::test::routing_test
