// Every member and parameter of the routing stages in a whole model against the scalar twin, beside
// the rows that model_test.cpp walks. Most cases name a rival: a routing that differs in the one
// thing the case is about, and that the drawn model must tell apart, so that a stage which ignored
// it would fail.
#include "support/model_check.h"

namespace moe::test::routing_test {
namespace {

using Counts = BalanceLoss::Counts;
using Order = BufferCapacity::Order;
using Probs = BalanceLoss::Probs;
using Renormalise = ChosenScores::Renormalise;
using Rounding = BufferCapacity::Rounding;
using Shares = BalanceLoss::Shares;

// One layer of the stages in `json`.
Case custom(const std::string& name, int64_t experts, int64_t k, const std::string& json,
            std::function<void(RoutingSpec&)> rival = {}) {
  Case item{.name = name, .config = small(), .rival = std::move(rival)};
  item.config.layers = 1;
  RoutingOptions& o = item.config.routing;
  o.recipe = "custom";
  o.experts = experts;
  o.top_k = k;
  o.stages = json;
  weigh_losses(o);
  return item;
}
Case drawing(Case item) {
  item.random = true;
  return item;
}
Case dropping(Case item) {
  item.drops = true;
  return item;
}

BufferCapacity& buffer(RoutingSpec& spec) { return std::get<BufferCapacity>(spec.capacity); }
ChosenScores& scores(RoutingSpec& spec) { return std::get<ChosenScores>(spec.weigh); }
BalanceLoss& balance(RoutingSpec& spec) { return *spec.losses.balance; }

void expect_all(const std::vector<Case>& cases) {
  for (const Case& item : cases) expect_gradients(item);
}

TEST(Routing, NoiseAndScores) {
  const std::string noisy =
      R"("noise": {"type": "learned", "floor": 0.25}, "score": "raw", "weigh": "softmax")";
  expect_all({
      drawing(custom("jitter", 4, 2, R"({"noise": {"type": "jitter", "eps": 0.25}})",
                     [](RoutingSpec& s) { s.noise = InputJitter{.eps = 0.125f}; })),
      drawing(custom("learned noise with a floor", 4, 2, "{" + noisy + "}",
                     [](RoutingSpec& s) { s.noise = LearnedNoise{.floor = 0}; })),
      drawing(custom("learned noise on softmax scores", 4, 3, R"({"noise": "learned"})",
                     [](RoutingSpec& s) { s.noise = NoNoise{}; })),
      drawing(custom("z-loss of clean logits", 4, 2,
                     "{" + noisy + R"(, "losses": {"z_of_clean": true}})",
                     [](RoutingSpec& s) { s.losses.z_of_clean = false; })),
      custom("learned noise that is not drawn", 4, 2,
             "{" + noisy + R"(, "losses": {"z_of_clean": true}})"),
      custom("sigmoid scores", 4, 2, R"({"score": "sigmoid"})",
             [](RoutingSpec& s) { s.score = SoftmaxScore{}; }),
      custom("raw scores", 4, 3, R"({"score": "raw", "weigh": "softmax"})"),
  });
}

TEST(Routing, Selections) {
  const auto no_bias = [](RoutingSpec& s) { std::get<TopK>(s.select).bias.reset(); };
  const auto no_groups = [](RoutingSpec& s) {
    auto& g = std::get<GroupedTopK>(s.select);
    g.groups = g.keep = 1;
  };
  Case threshold = custom("thresholds", 4, 2, R"({"select": "expert_choice"})",
                          [](RoutingSpec& s) { s.select = TopK{}; });
  threshold.adjust = [](RoutingSpec& s) { s.select = ThresholdChoice{}; };
  Case half = custom("half an expert a token", 4, 2,
                     R"({"select": {"type": "expert_choice", "scope": "sequence"}})");
  half.config.routing.capacity_factor = 0.5f;
  const auto micro_batch = [](RoutingSpec& s) { std::get<ExpertChoice>(s.select).scope = {}; };
  expect_all({
      custom("selection bias", 4, 2, R"({"select": {"type": "top_k", "bias": true}})", no_bias),
      custom("selection bias on sigmoid scores", 4, 1,
             R"({"score": "sigmoid", "select": {"type": "top_k", "bias": true}})", no_bias),
      custom("groups by the largest", 8, 3,
             R"({"select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 1}})",
             no_groups),
      custom(
          "groups by the sum of two", 8, 3,
          R"({"score": "sigmoid", "select": {"type": "grouped_top_k", "groups": 2, "keep": 1, "group_top": 2}})",
          [](RoutingSpec& s) { std::get<GroupedTopK>(s.select).group_top = 1; }),
      // Raw scores are often negative: a masked expert that counted as 0 would be chosen.
      custom(
          "groups of raw scores", 8, 3,
          R"({"score": "raw", "weigh": "softmax", "select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 2}})",
          no_groups),
      custom(
          "groups with a bias", 8, 3,
          R"({"score": "sigmoid", "select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 2, "bias": true}})",
          [](RoutingSpec& s) { std::get<GroupedTopK>(s.select).bias.reset(); }),
      custom("experts choose in each sequence", 4, 1,
             R"({"select": {"type": "expert_choice", "scope": "sequence"}})", micro_batch),
      custom("experts choose in groups of five", 4, 2,
             R"({"score": "sigmoid", "select": {"type": "expert_choice", "scope": {"group": 5}}})",
             micro_batch),
      custom(
          "experts choose, sigmoid renormalised", 4, 2,
          R"({"score": "sigmoid", "weigh": {"type": "scores", "renormalise": "before_drop"}, "select": "expert_choice"})",
          [](RoutingSpec& s) { scores(s).renormalise = Renormalise::never; }),
      half,
      threshold,
      custom("hash by modulo", 4, 2,
             R"({"select": {"type": "hash", "map": "modulo"}, "weigh": "one"})",
             [](RoutingSpec& s) { std::get<HashChoice>(s.select).map = HashChoice::Map::random; }),
      custom("hash of another seed", 4, 3,
             R"({"select": {"type": "hash", "seed": 5}, "weigh": "one"})",
             [](RoutingSpec& s) { std::get<HashChoice>(s.select).seed = 0; }),
  });
}

TEST(Routing, Weighings) {
  const std::string tight = R"(, "capacity": {"type": "buffer", "factor": 0.5, "minimum": 1}})";
  const auto never = [](RoutingSpec& s) { scores(s).renormalise = Renormalise::never; };
  const auto before = [](RoutingSpec& s) { scores(s).renormalise = Renormalise::before_drop; };
  expect_all({
      custom("scaled", 4, 1, R"({"weigh": {"type": "scores", "scale": 2.5}})",
             [](RoutingSpec& s) { scores(s).scale = 1; }),
      custom(
          "sigmoid, renormalised and scaled", 4, 3,
          R"({"score": "sigmoid", "weigh": {"type": "scores", "renormalise": "before_drop", "scale": 2.5}})",
          never),
      dropping(custom("renormalised before drops", 4, 2,
                      R"({"weigh": {"type": "scores", "renormalise": "before_drop"})" + tight,
                      [](RoutingSpec& s) { scores(s).renormalise = Renormalise::after_drop; })),
      dropping(custom("renormalised after drops", 4, 2,
                      R"({"weigh": {"type": "scores", "renormalise": "after_drop"})" + tight,
                      before)),
      dropping(custom(
          "sigmoid renormalised after drops", 4, 3,
          R"({"score": "sigmoid", "weigh": {"type": "scores", "renormalise": "after_drop"})" +
              tight,
          before)),
      dropping(custom("softmax over the chosen, drops", 4, 2,
                      R"({"score": "raw", "weigh": "softmax")" + tight,
                      [](RoutingSpec& s) { s.capacity = Dropless{}; })),
      custom("sigmoids of raw scores", 4, 2, R"({"score": "raw", "weigh": "sigmoids"})",
             [](RoutingSpec& s) { s.weigh = ChosenSigmoids{true}; }),
      custom(
          "sigmoids, divided, of logits that a bias chooses among", 4, 2,
          R"({"score": "raw", "select": {"type": "top_k", "bias": true}, "weigh": {"type": "sigmoids", "renormalise": true}})",
          [](RoutingSpec& s) { std::get<TopK>(s.select).bias.reset(); }),
      custom(
          "softmax over an expert's tokens of a sequence", 4, 2,
          R"({"score": "raw", "weigh": "token_softmax", "select": {"type": "expert_choice", "scope": "sequence"}})",
          [](RoutingSpec& s) { std::get<ExpertChoice>(s.select).scope = {}; }),
      custom(
          "softmax over an expert's tokens of a group", 4, 2,
          R"({"score": "raw", "weigh": "token_softmax", "select": {"type": "expert_choice", "scope": {"group": 7}}})"),
  });
}

TEST(Routing, SecondChoices) {
  const std::string weigh =
      R"({"weigh": {"type": "scores", "renormalise": "before_drop"}, "losses": {"balance": true, "importance": true}, "second": )";
  const auto all = [](RoutingSpec& s) { s.second = KeepSecond{}; };
  const std::string room =
      R"(, "capacity": {"type": "buffer", "factor": 0.5, "minimum": 1, "skipped_take_room": true}})";
  const auto freed = [](RoutingSpec& s) { buffer(s).skipped_take_room = false; };
  expect_all({
      custom("by threshold", 4, 2, weigh + R"({"type": "threshold", "least": 0.375}})", all),
      custom("by threshold relative to the first", 4, 2,
             weigh + R"({"type": "threshold", "least": 0.375, "relative": true}})",
             [](RoutingSpec& s) { std::get<ThresholdSecond>(s.second).relative = false; }),
      drawing(custom("at random", 4, 2, weigh + R"({"type": "random", "full": 0.5}})", all)),
      drawing(custom("at random, from 1 on surely", 4, 2,
                     weigh + R"({"type": "random", "full": 1}})",
                     [](RoutingSpec& s) { std::get<RandomSecond>(s.second).full = 0.5f; })),
      custom("at random, nothing drawn", 4, 2, weigh + R"({"type": "random", "full": 0.5}})"),
      dropping(custom("skipped ones take room", 4, 2,
                      weigh + R"({"type": "threshold", "least": 0.375})" + room, freed)),
      drawing(dropping(custom("randomly skipped ones take room", 4, 2,
                              weigh + R"({"type": "random", "full": 1})" + room, freed))),
      drawing(dropping(custom(
          "randomly skipped ones free their room", 4, 2,
          weigh +
              R"({"type": "random", "full": 1}, "capacity": {"type": "buffer", "factor": 0.5, "minimum": 1}})",
          [](RoutingSpec& s) { buffer(s).skipped_take_room = true; }))),
  });
}

std::string capacity(const std::string& parameters) {
  return R"({"capacity": {"type": "buffer", )" + parameters + "}}";
}

TEST(Routing, CapacityOrders) {
  const auto order = [](Order o) { return [o](RoutingSpec& s) { buffer(s).order = o; }; };
  std::vector<Case> cases = {
      dropping(custom("as it is by default", 4, 2, capacity(R"("factor": 0.5, "minimum": 1)"),
                      order(Order::token_major)))};
  for (const char* scope : {R"("micro_batch")", R"("sequence")", R"({"group": 5})"}) {
    const auto one = [&](const char* name, Order rival) {
      Case item =
          custom(fmt::format("{} in {}", name, scope), 4, 2,
                 capacity(fmt::format(R"("factor": 0.5, "minimum": 1, "order": "{}", "scope": {})",
                                      name, scope)),
                 order(rival));
      cases.push_back(dropping(item));
    };
    one("token_major", Order::choice_major);
    one("by_weight", Order::choice_major);
    one("batch_priority", Order::choice_major);
    one("batch_priority", Order::by_weight);
    one("random", Order::token_major);
    one("random", Order::choice_major);
    cases.back().random = true;
  }
  expect_all(cases);
}

TEST(Routing, CapacitySizes) {
  // Of 12 tokens with 2 of 4 experts: 6 pairs an expert on average.
  const auto rounding = [](Rounding r) { return [r](RoutingSpec& s) { buffer(s).rounding = r; }; };
  Case nothing = custom("no room at all", 4, 2, capacity(R"("factor": 0.125, "minimum": 0)"));
  nothing.zero = "experts.";
  expect_all({
      dropping(custom("3.6 floored", 4, 2,
                      capacity(R"("factor": 0.6, "minimum": 1, "rounding": "floor")"),
                      rounding(Rounding::ceil))),
      dropping(custom("3.6 floored and made even", 4, 2,
                      capacity(R"("factor": 0.6, "minimum": 1, "rounding": "floor_to_even")"),
                      rounding(Rounding::floor))),
      dropping(custom("3.6 rounded", 4, 2,
                      capacity(R"("factor": 0.6, "minimum": 1, "rounding": "round")"),
                      rounding(Rounding::floor))),
      dropping(custom("4.5 rounded to even", 4, 2,
                      capacity(R"("factor": 0.75, "minimum": 1, "rounding": "round")"),
                      rounding(Rounding::ceil))),
      dropping(custom("4.5 rounded up", 4, 2,
                      capacity(R"("factor": 0.75, "minimum": 1, "rounding": "ceil")"),
                      rounding(Rounding::round))),
      dropping(custom("choices not counted", 4, 2,
                      capacity(R"("factor": 1, "minimum": 1, "count_choices": false)"),
                      [](RoutingSpec& s) { buffer(s).count_choices = true; })),
      dropping(custom("a minimum of 3", 4, 2, capacity(R"("factor": 0.125, "minimum": 3)"),
                      [](RoutingSpec& s) { buffer(s).minimum = 2; })),
      dropping(custom(
          "at most the tokens of a sequence", 4, 2,
          capacity(R"("factor": 0.75, "minimum": 1, "at_most_tokens": true, "scope": "sequence")"),
          [](RoutingSpec& s) { buffer(s).scope = {}; })),
      dropping(custom("every expert of three", 3, 3, capacity(R"("factor": 0.5, "minimum": 1)"))),
      dropping(custom(
          "hashed, dropping", 4, 2,
          R"({"select": "hash", "weigh": "one", "capacity": {"type": "buffer", "factor": 0.5, "minimum": 1}})",
          [](RoutingSpec& s) { buffer(s).order = Order::token_major; })),
      dropping(nothing),
  });
}

std::string losses(const std::string& stages, const std::string& parameters) {
  return "{" + stages + R"("losses": {)" + parameters + "}}";
}

TEST(Routing, BalanceLosses) {
  const std::string sigmoid = R"("score": "sigmoid", "select": {"type": "top_k", "bias": true}, )",
                    chosen = R"("score": "raw", "weigh": "softmax", )";
  const auto counts = [](Counts c) { return [c](RoutingSpec& s) { balance(s).counts = c; }; };
  const auto own = [](RoutingSpec& s) { balance(s).shares = Shares::own; };
  const auto micro_batch = [](RoutingSpec& s) { balance(s).scope = {}; };
  Case running = custom("counts of the step so far", 4, 2,
                        losses("", R"("balance": {"shares": "running"})"), own);
  Case step =
      custom("counts of the whole step", 4, 2, losses("", R"("balance": {"shares": "step"})"), own);
  running.step_counts = {{9, 1, 2, 12}};
  step.step_counts = {{20, 5, 13, 10}};
  Case running_first = running;
  running_first.name = "first choices of the step so far";
  running_first.config.routing.stages =
      losses("", R"("balance": {"shares": "running", "counts": "first_choice"})");
  expect_all({
      custom("first choices", 4, 2, losses("", R"("balance": {"counts": "first_choice"})"),
             counts(Counts::all_choices)),
      custom("all choices", 4, 3, losses("", R"("balance": {"counts": "all_choices"})"),
             counts(Counts::first_choice)),
      custom("choices without the bias", 4, 2,
             losses(sigmoid,
                    R"("balance": {"counts": "unbiased_choices", "probs": "normalised_scores"})"),
             counts(Counts::all_choices)),
      custom(
          "choices with the bias", 4, 2,
          losses(sigmoid, R"("balance": {"counts": "all_choices", "probs": "normalised_scores"})"),
          counts(Counts::unbiased_choices)),
      custom(
          "choices without bias or groups", 8, 2,
          losses(
              R"("score": "sigmoid", "select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 2, "bias": true}, )",
              R"("balance": {"counts": "unbiased_choices", "probs": "normalised_scores", "scope": "sequence"})"),
          counts(Counts::all_choices)),
      custom("sigmoid scores, normalised", 4, 2,
             losses(R"("score": "sigmoid", )", R"("balance": {"probs": "normalised_scores"})"),
             [](RoutingSpec& s) { balance(s).probs = Probs::scores; }),
      custom("chosen weights of each sequence", 4, 2,
             losses(chosen, R"("balance": {"probs": "chosen_weights", "scope": "sequence"})"),
             micro_batch),
      custom(
          "chosen weights, first choices, groups of five", 4, 2,
          losses(
              chosen,
              R"("balance": {"probs": "chosen_weights", "counts": "first_choice", "scope": {"group": 5}})"),
          micro_batch),
      custom("scores of each sequence", 4, 2, losses("", R"("balance": {"scope": "sequence"})"),
             micro_batch),
      custom("scores of groups of five", 4, 2, losses("", R"("balance": {"scope": {"group": 5}})"),
             micro_batch),
      dropping(custom("pairs counted before they are dropped", 4, 2,
                      losses(R"("capacity": {"type": "buffer", "factor": 0.25, "minimum": 1}, )",
                             R"("balance": true)"))),
      running,
      running_first,
      step,
      custom("counts of the step, none known", 4, 2,
             losses("", R"("balance": {"shares": "step"})")),
  });
}

TEST(Routing, OtherLosses) {
  const std::string noisy =
      R"("noise": {"type": "learned", "floor": 0.125}, "score": "raw", "weigh": "softmax", )";
  const auto micro_batch = [](RoutingSpec& s) {
    if (s.losses.device) s.losses.device->scope = {};
    if (s.losses.communication) s.losses.communication->scope = {};
  };
  const auto neither = [](RoutingSpec& s) { s.losses.load = s.losses.importance = false; };
  std::vector<Case> cases = {
      custom("devices", 4, 2, losses("", R"("device": {"devices": 2})"),
             [](RoutingSpec& s) { s.losses.device->devices = 4; }),
      custom("devices, sigmoid, by sequence", 6, 3,
             losses(R"("score": "sigmoid", )", R"("device": {"devices": 3, "scope": "sequence"})"),
             micro_batch),
      custom("communication", 4, 2, losses("", R"("communication": {"devices": 2, "at_most": 1})"),
             [](RoutingSpec& s) { s.losses.communication->at_most = 2; }),
      custom("communication, sigmoid, groups of five", 6, 3,
             losses(R"("score": "sigmoid", )",
                    R"("communication": {"devices": 3, "at_most": 2, "scope": {"group": 5}})"),
             micro_batch),
      custom(
          "balance, devices and communication together", 8, 3,
          losses(
              R"("select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 1}, )",
              R"("balance": {"scope": "sequence"}, "device": {"devices": 4, "scope": "sequence"}, "communication": {"devices": 4, "at_most": 2})"),
          micro_batch),
      custom("importance of scores", 4, 2, losses("", R"("importance": true)"), neither),
      custom("importance of scaled, renormalised weights", 4, 2,
             losses(R"("weigh": {"type": "scores", "renormalise": "before_drop", "scale": 2}, )",
                    R"("importance": true)"),
             neither),
      dropping(custom(
          "importance before drops", 4, 2,
          losses(
              R"("weigh": {"type": "scores", "renormalise": "after_drop"}, "capacity": {"type": "buffer", "factor": 0.5, "minimum": 1}, )",
              R"("importance": true)"),
          neither)),
      custom("load where no noise is drawn", 4, 2,
             losses(noisy, R"("importance": true, "load": true)"), neither),
  };
  for (int64_t k : {1, 2, 3})
    cases.push_back(drawing(custom(fmt::format("importance and load, {} of 4", k), 4, k,
                                   losses(R"("noise": {"type": "learned", "floor": 0.125}, )",
                                          R"("importance": true, "load": true)"),
                                   neither)));
  Case every = drawing(custom("importance and load where all are chosen", 4, 4,
                              losses(noisy, R"("importance": true, "load": true)"), neither));
  every.zero = "load";
  cases.push_back(every);
  expect_all(cases);
}

}  // namespace
}  // namespace moe::test::routing_test
