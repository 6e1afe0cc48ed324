// Pruning: the saliencies, who stays, that what nobody chooses can go without a change, and what is
// refused.
#include "convert/prune.h"

#include <algorithm>
#include <numeric>

#include "convert/logit_difference.h"
#include "convert/models.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/routings.h"

namespace moe::test::prune_test {
namespace {

ModelConfig moe_config(const char* recipe, int64_t experts = 8) {
  ModelConfig c = dense_config();
  c.layers = 3;
  c.moe_layers = {0, 2};
  c.expert_width = 16;
  c.routing = default_options(find_recipe(recipe), experts, 2, 2);
  if (c.routing.expert_groups) c.routing.expert_groups = 2, c.routing.groups_kept = 1;
  return c;
}

PruneOptions keep(int64_t experts, Saliency saliency = Saliency::output) {
  PruneOptions o;
  o.experts = experts;
  o.saliency = saliency;
  o.window = 16;
  o.windows = 3;
  o.threads = 2;
  return o;
}

// Sums of w |f(x)| and counts of one layer, expert by expert, from the bank itself with weights
// of 1.
void expected(Model& model, std::span<const int32_t> ids, int64_t layer, int64_t window,
              std::vector<double>& sums, std::vector<int64_t>& counts) {
  const auto part = [&](const char* name) -> const Param& {
    return *param_named(model, fmt::format("layers.{}.ffn.experts.{}", layer, name));
  };
  ExpertBank bank;
  bank.gate.value = part("gate.weight").value;
  bank.up.value = part("up.weight").value;
  bank.down.value = part("down.weight").value;
  moe::Run run(1);
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t at, const MoeLayer::Saved& saved) {
        if (at != layer) return;
        moe::Run own(1);
        const RoutingPlan& plan = saved.plan;
        for (int64_t e = 0; e < static_cast<int64_t>(counts.size()); ++e)
          for (int64_t r = plan.offsets[static_cast<size_t>(e)];
               r < plan.offsets[static_cast<size_t>(e) + 1]; ++r) {
            std::vector<int64_t> offsets(counts.size() + 1, 0);
            std::fill(offsets.begin() + e + 1, offsets.end(), 1);
            const int32_t token = plan.token[static_cast<size_t>(r)];
            const Tensor x = saved.router.x.slice_rows(token, token + 1),
                         out = own.saved.alloc(DType::f32, {1, model.config().width});
            ExpertBank::Saved scratch;
            bank.forward(own, out, {.x = x, .weight = {}, .offsets = offsets}, scratch);
            sums[static_cast<size_t>(e)] +=
                static_cast<double>(plan.weight.as<float>()[r]) * norm(values(out));
            ++counts[static_cast<size_t>(e)];
          }
      };
  const RoutingSpec spec = eval_spec(model.config().routing);
  std::vector<int32_t> positions(static_cast<size_t>(window));
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> bounds = {0, window};
  for (size_t begin = 0; begin + positions.size() <= ids.size(); begin += positions.size()) {
    const Batch batch{ids.subspan(begin, positions.size()), positions, bounds};
    ArenaScope scope(run.saved);
    ModelSaved saved;
    model.forward(run, {.batch = batch, .routing = &spec, .on_routing = &listen}, saved);
  }
}

TEST(Prune, SaliencyIsTheNormOfWhatAnExpertAdds) {
  const auto model = drawn_model(moe_config("olmoe"));
  const std::vector<int32_t> ids = some_ids(48);
  const Pruned output = prune(*model, ids, keep(5)),
               mean = prune(*model, ids, keep(5, Saliency::mean)),
               often = prune(*model, ids, keep(5, Saliency::frequency));
  ASSERT_EQ(output.layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    std::vector<double> sums(8);
    std::vector<int64_t> counts(8);
    expected(*model, ids, output.layers[i].layer, 16, sums, counts);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 2 * 48);
    expect_near(output.layers[i].saliency, sums, 1e-5, "output");
    EXPECT_EQ(often.layers[i].tokens, counts);
    EXPECT_EQ(often.layers[i].saliency, std::vector<double>(counts.begin(), counts.end()));
    for (size_t e = 0; e < 8; ++e) sums[e] /= static_cast<double>(std::max<int64_t>(counts[e], 1));
    expect_near(mean.layers[i].saliency, sums, 1e-5, "mean");
  }
}

TEST(Prune, TheBestStayAsTheyAre) {
  const auto model = drawn_model(moe_config("deepseek-v3"));
  PruneOptions o = keep(4);
  const Pruned pruned = prune(*model, some_ids(48), o);
  EXPECT_EQ(pruned.model->config().routing.experts, 4);
  int64_t before = 0, after = 0;
  for (const PartFate& fate : pruned.parts) before += fate.before, after += fate.after;
  EXPECT_EQ(before, numbers_of(*model));
  EXPECT_EQ(after, numbers_of(*pruned.model));
  for (const PrunedLayer& layer : pruned.layers) {
    ASSERT_EQ(layer.kept.size(), 4u);
    EXPECT_TRUE(std::is_sorted(layer.kept.begin(), layer.kept.end()));
    EXPECT_GT(layer.lost_output, 0);
    EXPECT_LT(layer.lost_output, 0.5) << "the worse half holds less than half";
    for (const char* which : {"experts.gate.weight", "experts.up.weight", "experts.down.weight",
                              "router.weight", "router.bias"}) {
      const std::string name = fmt::format("layers.{}.ffn.{}", layer.layer, which);
      const Param &now = *param_named(*pruned.model, name), &then = *param_named(*model, name);
      for (size_t i = 0; i < 4; ++i) {
        const auto to = static_cast<int64_t>(i);
        if (now.value.rank == 1)
          EXPECT_EQ(now.value.as<float>()[i], then.value.as<float>()[layer.kept[i]]) << name;
        else EXPECT_TRUE(same_bits(expert_of(now, to), expert_of(then, layer.kept[i]))) << name;
      }
    }
  }
  EXPECT_TRUE(same_bits(param_named(*pruned.model, "layers.1.ffn.experts.up.weight")->value,
                        param_named(*model, "layers.1.ffn.experts.up.weight")->value));
}

// A bias keeps some experts from ever being chosen; the others' weights are normalised among the
// chosen, so nothing is left of those that go.
TEST(Prune, WhatNobodyChoosesIsNotMissed) {
  ModelConfig c = moe_config("deepseek-v3");
  c.routing.expert_groups = c.routing.groups_kept = 1;
  const auto model = drawn_model(c);
  const std::vector<std::vector<int64_t>> idle = {{0, 3, 6}, {}, {1, 2, 7}};
  for (const int64_t layer : {0, 2})
    for (const int64_t e : idle[static_cast<size_t>(layer)])
      param_named(*model, fmt::format("layers.{}.ffn.router.bias", layer))->value.as<float>()[e] =
          -100;
  for (const Saliency saliency : {Saliency::output, Saliency::mean, Saliency::frequency}) {
    const Pruned pruned = prune(*model, some_ids(48), keep(5, saliency));
    EXPECT_EQ(pruned.layers[0].kept, (std::vector<int64_t>{1, 2, 4, 5, 7}));
    EXPECT_EQ(pruned.layers[1].kept, (std::vector<int64_t>{0, 3, 4, 5, 6}));
    EXPECT_EQ(pruned.layers[0].lost_choices, 0);
    moe::Run run(2);
    EXPECT_LT(compare_logits(*model, *pruned.model, run, some_ids(30, 8)).largest, 1e-5);
    EXPECT_GT(compare_logits(*model, *prune(*model, some_ids(48), keep(4, saliency)).model, run,
                             some_ids(30, 8))
                  .largest,
              1e-2);
  }
}

TEST(Prune, EachGroupKeepsAsMany) {
  ModelConfig c = moe_config("deepseek-v3");
  const auto model = drawn_model(c);
  for (const PrunedLayer& layer : prune(*model, some_ids(48), keep(4)).layers)
    EXPECT_EQ(std::count_if(layer.kept.begin(), layer.kept.end(), [](int64_t e) { return e < 4; }),
              2);
  EXPECT_FAILS(check_prune(c, keep(5)), "multiple of 2");
}

// What a refusal advises can be done, and what it does not cannot.
TEST(Prune, SaysWhatTheGroupsNeed) {
  const auto grouped = [](const char* recipe, int64_t experts, int64_t k, int64_t groups,
                          int64_t kept) {
    ModelConfig c = moe_config(recipe);
    c.routing = default_options(find_recipe(recipe), experts, k, 2);
    c.routing.expert_groups = groups;
    c.routing.groups_kept = kept;
    return c;
  };
  const auto can = [](const ModelConfig& c, int64_t experts) {
    try {
      check_prune(c, keep(experts));
    } catch (const Error& e) {
      const std::string said = e.what();
      // options of `moe train`, which pruning has not
      EXPECT_EQ(said.find("groups_kept"), std::string::npos) << said;
      EXPECT_EQ(said.find("expert_groups"), std::string::npos) << said;
      EXPECT_EQ(said.find("top_k"), std::string::npos) << said;
      return false;
    }
    return true;
  };
  const auto expect_only = [&](const ModelConfig& c, int64_t step, int64_t least) {
    for (int64_t n = 1; n < c.routing.experts; ++n)
      EXPECT_EQ(can(c, n), n >= least && n % step == 0) << c.routing.recipe << " " << n;
  };
  // a group's score is the sum of its two largest
  ModelConfig c = grouped("deepseek-v3", 16, 2, 4, 2);
  expect_only(c, 4, 8);
  EXPECT_FAILS(check_prune(c, keep(4)), "give a multiple of 4 from 8 to 12");
  EXPECT_FAILS(check_prune(c, keep(16)), "so give a multiple of 4 from 8 to 12");
  // the best group alone holds all six of a token
  c = grouped("deepseek-v2", 16, 6, 2, 1);
  expect_only(c, 2, 12);
  EXPECT_FAILS(check_prune(c, keep(10)), "give a multiple of 2 from 12 to 14");
  c = grouped("deepseek-v2", 8, 2, 4, 2);
  expect_only(c, 4, 4);
  EXPECT_FAILS(check_prune(c, keep(6)), "a token takes 2 from the best 2 of 4 groups");
  EXPECT_FAILS(check_prune(c, keep(6)), "give 4");
  c = grouped("deepseek-v3", 8, 2, 4, 2);
  EXPECT_FAILS(check_prune(c, keep(4)), "none of the 8 experts of an MoE layer can go");
  c = grouped("deepseek-v3", 8, 3, 1, 1);
  expect_only(c, 1, 3);
}

TEST(Prune, ExpertsThatChooseMayBeAsFewAsATokenGets) {
  const ModelConfig c = moe_config("expert-choice");
  check_prune(c, keep(2));
  EXPECT_FAILS(check_prune(c, keep(1)), "a token gets 2 on average: give 2 to 7");
}

TEST(Prune, NeuronsAreNoExpertsOfTheirOwn) {
  ModelConfig c = moe_config("olmoe");
  c.routing = small_routing("sketch", 6, 2);
  c.expert_width = 1;
  EXPECT_FAILS(check_prune(c, keep(4)), "are single neurons");
}

// The result of every recipe routes by as many experts as it has.
TEST(Prune, EveryRecipe) {
  for (const RoutingOptions& routing : small_routings(8, 2)) {
    ModelConfig c = moe_config("olmoe");
    c.routing = routing;
    if (routing.expert_groups) c.routing.expert_groups = 2, c.routing.groups_kept = 1;
    const auto model = drawn_model(c);
    const bool fixed = routing.recipe == "hash";
    if (fixed) {
      EXPECT_FAILS(check_prune(c, keep(4)), "fixed numbers");
      continue;
    }
    const Pruned pruned = prune(*model, some_ids(48), keep(4));
    moe::Run run(2);
    const LogitDifference d = compare_logits(*model, *pruned.model, run, some_ids(20));
    EXPECT_TRUE(std::isfinite(d.largest)) << routing.recipe;
  }
}

TEST(Prune, Refusals) {
  const auto model = drawn_model(moe_config("mixtral"));
  const auto refused = [&](const PruneOptions& o, const std::string& part) {
    EXPECT_FAILS(prune(*model, some_ids(48), o), part);
  };
  refused(keep(8), "give 2 to 7");
  refused(keep(0), "give 2 to 7");
  refused(keep(1), "a token takes 2: give 2 to 7");
  PruneOptions o = keep(4);
  o.windows = 4;
  refused(o, "has 48 tokens, 4 windows of 16 are needed: 64");
  o.windows = 0;
  refused(o, "at least 1");
  EXPECT_FAILS(check_prune(dense_config(), keep(1)), "dense");
  ModelConfig c = moe_config("mixtral");
  c.routing.zero_experts = 2;
  EXPECT_FAILS(check_prune(c, keep(4)), "zero experts");
}

}  // namespace
}  // namespace moe::test::prune_test
