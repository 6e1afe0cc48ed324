// The router as a whole: every recipe's training stages against the scalar twin, from the hidden
// states to the gradients of both matrices; routers without a matrix; and what happens to the
// buffers after an optimizer step.
#include <algorithm>

#include "moe/router.h"

#include "core/error.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"
#include "support/jet.h"
#include "support/twin_router.h"

namespace moe::test::router_test {
namespace {

RoutingLosses losses_in(const Router::Saved& saved) {
  return saved.losses.empty() ? RoutingLosses{} : losses_of(saved.losses.as<float>());
}
template <class F>
void each_loss_in(const Router::Saved& saved, F&& f) {
  const RoutingLosses losses = losses_in(saved);
  each_loss(losses, f);
}

constexpr int64_t kTokens = 24, kWidth = 5, kExperts = 8;
constexpr int kWide = 20;  // directions at once
using Number = Jet<kWide>;

RoutingSpec training(const Recipe& recipe) {
  const int64_t k = recipe.top_k_is_fixed || recipe.default_top_k == 1 ? recipe.default_top_k : 2;
  return train_spec(default_options(recipe, kExperts, k, 1));
}

// A router and what it routes, with the twin's numbers of the same values.
struct Case {
  moe::Run run;
  Router router;
  Tensor x, r;  // [N,D]; [N*K] the gradient of the loss by a pair's weight
  std::vector<int32_t> ids;
  std::vector<int64_t> bounds, step_counts = {3, 1, 4, 1, 5, 9, 2, 6};
  RngKey key;

  Case(const RoutingSpec& spec, uint64_t seed, int threads = 2, int32_t tokens = kTokens)
      : run(threads), bounds{0, tokens / 2 - 2, tokens}, key(RngKey::from_seed(seed).fold(7)) {
    x = draw(run.saved, DType::f32, {tokens, kWidth}, seed);
    r = draw(run.saved, DType::f32, {tokens * spec.slots()}, seed + 100);
    for (int32_t n = 0; n < tokens; ++n) ids.push_back(n * n % 13);
    if (needs_logits(spec.select))
      router.logit.weight = draw_param(run.saved, {kExperts, kWidth}, seed + 200, 0.7f);
    const auto* linear = std::get_if<LinearLogits>(&spec.logits);
    if (linear == nullptr)
      router.logit.up = draw_param(run.saved, {kExperts, kWidth}, seed + 600, 0.7f);
    if (linear != nullptr && linear->bias)
      router.logit.bias = draw_param(run.saved, {kExperts}, seed + 700, 0.7f);
    if (has_expert_scale(spec.weigh))
      router.scale = draw_param(run.saved, {kExperts}, seed + 800, 0.7f);
    if (std::holds_alternative<LearnedNoise>(spec.noise))
      router.noise = draw_param(run.saved, {kExperts, kWidth}, seed + 300, 0.7f);
    if (selection_bias(spec.select))
      router.bias.value = draw(run.saved, DType::f32, {kExperts}, seed + 400, 0.1f);
    if (experts_choose(spec.select))
      router.threshold.value = draw(run.saved, DType::f32, {kExperts}, seed + 500, 0.1f);
  }
  Pass pass(const RoutingSpec& spec) const {
    return {.batch = {.ids = ids, .bounds = bounds},
            .routing = &spec,
            .keep = Keep::all,
            .step_counts = std::span(&step_counts, 1),
            .wanted = Wanted::all()};
  }
};

template <class T>
Matrix<T> rows_of(const std::vector<T>& flat, size_t cols) {
  Matrix<T> out;
  for (size_t i = 0; i < flat.size(); i += cols)
    out.emplace_back(flat.begin() + static_cast<long>(i),
                     flat.begin() + static_cast<long>(i + cols));
  return out;
}

TwinRouterInput twin_input(const Case& c) {
  TwinRouterInput in{c.ids, c.bounds, c.step_counts, {}, {}, c.key};
  if (c.router.bias.present()) in.bias = values(c.router.bias.value);
  if (c.router.threshold.present()) in.threshold = values(c.router.threshold.value);
  return in;
}

// In numbers_of's order, after x.
std::vector<const Param*> params_of(const Router& r) {
  std::vector<const Param*> out;
  for (const Param* p : {&r.logit.weight, &r.logit.up, &r.logit.bias, &r.noise, &r.scale})
    if (p->present()) out.push_back(p);
  return out;
}

// All numbers that have a gradient, x first.
std::vector<double> numbers_of(const Case& c) {
  std::vector<double> all = values(c.x);
  for (const Param* p : params_of(c.router)) {
    const std::vector<double> more = values(p->value);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

template <class T>
TwinRoute<T> twin_route(const RoutingSpec& spec, const Case& c, const std::vector<T>& numbers) {
  const auto part = [&](size_t i, size_t n) {
    return std::vector<T>(numbers.begin() + static_cast<long>(i),
                          numbers.begin() + static_cast<long>(i + n));
  };
  const Router& r = c.router;
  size_t at = kTokens * kWidth;
  std::map<const Param*, std::vector<T>> of;
  for (const Param* p : params_of(r)) {
    of[p] = part(at, static_cast<size_t>(p->value.numel()));
    at += of[p].size();
  }
  const auto maybe = [&](const Param& p) { return p.present() ? &of[&p] : nullptr; };
  TwinRouterParams<T> params{maybe(r.logit.weight), maybe(r.logit.up), maybe(r.logit.bias),
                             maybe(r.noise), maybe(r.scale)};
  return TwinRouter<T>(spec, twin_input(c))
      .from_x(rows_of(part(0, kTokens * kWidth), kWidth), params);
}

template <class T>
T twin_loss(const TwinRoute<T>& route, const Case& c, const RoutingLosses& coef) {
  const std::vector<double> r = values(c.r.reshape({1, c.r.numel()}));
  T loss{};
  size_t i = 0;
  for (const auto& row : route.weights)
    for (const T& w : row) loss += w * T(r[i++]);
  std::vector<T> of_losses;
  each_loss(route.losses, [&](const char*, const T& value) { of_losses.push_back(value); });
  i = 0;
  each_loss(coef, [&](const char*, float factor) {
    loss += of_losses[i++] * T(static_cast<double>(factor));
  });
  return loss;
}

// d loss / d everything in numbers_of's order.
std::vector<double> twin_gradient(const RoutingSpec& spec, const Case& c,
                                  const RoutingLosses& coef) {
  const std::vector<double> at = numbers_of(c);
  std::vector<Number> numbers(at.begin(), at.end());
  std::vector<double> out;
  for (size_t i = 0; i < at.size(); i += kWide) {
    const size_t wide = std::min<size_t>(kWide, at.size() - i);
    for (size_t j = 0; j < wide; ++j) numbers[i + j].d[j] = 1;
    const Number loss = twin_loss(twin_route(spec, c, numbers), c, coef);
    for (size_t j = 0; j < wide; ++j) {
      out.push_back(loss.d[j]);
      numbers[i + j].d[j] = 0;
    }
  }
  return out;
}

// A different factor for each loss that the stages have.
RoutingLosses factors(const RoutingSpec& spec) {
  const AuxLosses& l = spec.losses;
  const bool there[] = {l.balance.has_value(),       true,         l.device.has_value(),
                        l.communication.has_value(), l.importance, l.load};
  RoutingLosses coef;
  float factor = 0.5f;
  size_t i = 0;
  each_loss(coef, [&](const char*, float& c) { c = there[i++] ? factor += 0.25f : 0; });
  return coef;
}

void expect_decisions(const RoutingSpec& spec, const Router::Saved& saved,
                      const TwinRoute<double>& want) {
  const auto k = static_cast<size_t>(spec.slots());
  std::vector<double> weights;
  for (size_t n = 0; n < kTokens; ++n)
    for (size_t i = 0; i < k; ++i) {
      const auto at = static_cast<int64_t>(n * k + i);
      ASSERT_EQ(saved.choice.as<int32_t>()[at], static_cast<int32_t>(want.choice[n][i]))
          << "token " << n << " choice " << i;
      EXPECT_EQ(saved.selected.as<int32_t>()[at] != 0, want.selected[n][i])
          << "token " << n << " choice " << i;
      EXPECT_EQ(saved.kept.as<int32_t>()[at] != 0, want.kept[n][i])
          << "token " << n << " choice " << i;
      weights.push_back(want.before_drop[n][i]);
    }
  expect_near(saved.weights, weights, kTwinF32, "weights before the drop");
  EXPECT_EQ(saved.dropped, experts_choose(spec.select) ? 0 : want.dropped);
  for (int64_t e = 0; e < kExperts; ++e)
    EXPECT_EQ(saved.counts.as<int32_t>()[e], want.counts[static_cast<size_t>(e)]) << "expert " << e;
  for (int64_t e = 0; spec.losses.balance && e < kExperts; ++e)
    EXPECT_EQ(saved.balance_counts.as<int32_t>()[e], want.balance_counts[static_cast<size_t>(e)])
        << "expert " << e;
  EXPECT_EQ(saved.balance_counts.empty(), !spec.losses.balance.has_value());
  if (std::holds_alternative<ExpertChoice>(spec.select))
    expect_near(saved.cutoff.reshape({1, kExperts}), want.cutoff, kTwinF32, "cutoffs");
  std::vector<double> losses;
  each_loss(want.losses, [&](const char*, double value) { losses.push_back(value); });
  size_t i = 0;
  each_loss_in(saved, [&](const char* name, float value) {
    EXPECT_NEAR(value, losses[i], kTwinF32 * std::max(1.0, std::abs(losses[i]))) << name;
    ++i;
  });
}

// Forward and backward against the twin; the draw is one whose decisions are clear.
void expect_like_the_twin(const RoutingSpec& spec, const std::string& name) {
  SCOPED_TRACE(name);
  uint64_t seed = 1;
  while (seed < 200 &&
         twin_route(spec, Case(spec, seed), numbers_of(Case(spec, seed))).margin < 1e-3)
    ++seed;
  ASSERT_LT(seed, 200u) << "no draw has clear decisions";
  Case c(spec, seed);
  Router::Saved saved;
  const RoutingPlan plan = c.router.forward(c.run, c.x, c.pass(spec), c.key, saved);
  const TwinRoute<double> want = twin_route(spec, c, numbers_of(c));
  expect_decisions(spec, saved, want);

  const RoutingLosses coef = factors(spec);
  Tensor dweight = c.run.saved.alloc(DType::f32, {plan.rows()}),
         dx = draw(c.run.saved, DType::f32, {kTokens, kWidth}, 77);
  const std::vector<double> before = values(dx);
  std::vector<double> got_weights, want_weights;
  for (int64_t i = 0; i < plan.rows(); ++i) {
    const int64_t pair = plan.pair[static_cast<size_t>(i)], k = spec.slots();
    dweight.as<float>()[i] = c.r.as<float>()[pair];
    got_weights.push_back(plan.weight.as<float>()[i]);
    want_weights.push_back(
        want.weights[static_cast<size_t>(pair / k)][static_cast<size_t>(pair % k)]);
  }
  expect_near(got_weights, want_weights, kTwinF32, "weights of the plan");
  c.router.backward_acc(c.run, dx, dweight, {}, plan, c.pass(spec), coef, saved);

  const std::vector<double> gradient = twin_gradient(spec, c, coef);
  std::vector<double> got_dx = values(dx);
  for (size_t i = 0; i < got_dx.size(); ++i) got_dx[i] -= before[i];
  EXPECT_EQ(c.run.scratch.mark().used, 0u);
  if (is_fixed(spec.logits)) {  // nothing learns, and nothing goes back
    EXPECT_EQ(norm(gradient), 0);
    EXPECT_EQ(norm(got_dx), 0);
    return;
  }
  const auto part = [&](size_t i, size_t n) {
    return std::vector<double>(gradient.begin() + static_cast<long>(i),
                               gradient.begin() + static_cast<long>(i + n));
  };
  expect_near(got_dx, part(0, kTokens * kWidth), kTwinF32, "dx");
  size_t at = kTokens * kWidth;
  for (const Param* p : params_of(c.router)) {
    const auto n = static_cast<size_t>(p->value.numel());
    expect_near(values(p->grad), part(at, n), kTwinF32, "parameter of the router");
    at += n;
  }
}

TEST(Router, EveryRecipeIsItsTwinForwardAndBackward) {
  int routed = 0;
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router() || recipe.name == kCustom) continue;
    const RoutingSpec spec = training(recipe);
    if (!needs_logits(spec.select)) continue;
    ++routed;
    expect_like_the_twin(spec, std::string(recipe.name));
  }
  EXPECT_EQ(routed, 23);
}

TEST(Router, StagesOfNoRecipeToo) {
  RoutingSpec base;
  base.experts = kExperts;
  base.select = TopK{2, {}};
  {
    // The z-loss of the logits before the noise sends nothing to the noise.
    RoutingSpec spec = base;
    spec.noise = LearnedNoise{0.1f};
    spec.losses.z_of_clean = true;
    expect_like_the_twin(spec, "z-loss of the clean logits");
    spec.losses.load = true;
    expect_like_the_twin(spec, "with the load loss beside it");
  }
  {
    RoutingSpec spec = base;
    spec.weigh = ChosenScores{ChosenScores::Renormalise::after_drop, 1};
    spec.capacity = BufferCapacity{.factor = 0.7f, .minimum = 1};
    expect_like_the_twin(spec, "renormalised after the drop");
  }
  {
    RoutingSpec spec = base;
    spec.noise = InputJitter{0.2f};
    spec.score = SigmoidScore{};
    spec.second = ThresholdSecond{0.8f, true};
    spec.capacity = BufferCapacity{.factor = 0.7f,
                                   .minimum = 1,
                                   .order = BufferCapacity::Order::random,
                                   .skipped_take_room = true};
    expect_like_the_twin(spec, "jitter, sigmoid, a relative threshold and random places");
  }
  {
    RoutingSpec spec = base;
    spec.losses.balance = BalanceLoss{.shares = BalanceLoss::Shares::step};
    expect_like_the_twin(spec, "balance over the whole step");
  }
  for (const bool renormalise : {false, true}) {
    RoutingSpec spec = base;
    spec.score = RawScore{};
    spec.select = TopK{2, SelectionBias{}};
    spec.weigh = ChosenSigmoids{renormalise};
    spec.losses.balance = BalanceLoss{.counts = BalanceLoss::Counts::unbiased_choices,
                                      .probs = BalanceLoss::Probs::softmax};
    expect_like_the_twin(spec, "sigmoids of logits that a bias chooses among");
  }
}

TEST(Router, EvaluationByThresholdsIsItsTwin) {
  const Recipe& recipe = find_recipe("expert-choice");
  expect_like_the_twin(eval_spec(default_options(recipe, kExperts, 2, 1)), "thresholds");
}

TEST(Router, HasTheSameBitsForAnyThreads) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router() || recipe.name == kCustom) continue;
    const RoutingSpec spec = training(recipe);
    Case one(spec, 3, 1, 500), two(spec, 3, 2, 500);  // enough tokens for two threads to share
    Router::Saved a, b;
    const RoutingPlan p = one.router.forward(one.run, one.x, one.pass(spec), one.key, a),
                      q = two.router.forward(two.run, two.x, two.pass(spec), two.key, b);
    ASSERT_EQ(p.rows(), q.rows()) << recipe.name;
    EXPECT_TRUE(std::equal(p.pair.begin(), p.pair.end(), q.pair.begin())) << recipe.name;
    EXPECT_TRUE(same_bits(p.weight.reshape({1, p.rows()}), q.weight.reshape({1, q.rows()})))
        << recipe.name;
    std::vector<float> values;
    each_loss_in(a, [&](const char*, float value) { values.push_back(value); });
    size_t i = 0;
    each_loss_in(b, [&](const char* name, float value) {
      EXPECT_EQ(values[i++], value) << recipe.name << " " << name;
    });
  }
}

// What nobody wants is not worked out, and neither the plan nor a gradient feels it: an evaluation
// asks for nothing, a recomputed block neither.
TEST(Router, WorksOutOnlyWhatIsWanted) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router() || recipe.name == kCustom) continue;
    const RoutingSpec spec = training(recipe);
    Case c(spec, 3);
    Pass all = c.pass(spec), quiet = all, evaluation = all;
    quiet.wanted = evaluation.wanted = {};
    evaluation.keep = Keep::nothing;
    std::vector<std::vector<double>> dx;
    RoutingPlan first;
    for (const Pass& pass : {all, quiet, evaluation}) {
      Router::Saved saved;
      const RoutingPlan plan = c.router.forward(c.run, c.x, pass, c.key, saved);
      EXPECT_EQ(saved.counts.empty(), !pass.wanted.counts) << recipe.name;
      EXPECT_EQ(saved.balance_counts.empty(), !pass.wanted.balance_counts || !spec.losses.balance)
          << recipe.name;
      EXPECT_EQ(saved.lse.empty(), !pass.goes_back() || !needs_logits(spec.select)) << recipe.name;
      if (pass.wanted.losses) first = plan;
      else
        each_loss_in(saved, [&](const char* name, float value) {
          EXPECT_EQ(value, 0) << recipe.name << " " << name;
        });
      ASSERT_EQ(plan.rows(), first.rows()) << recipe.name;
      EXPECT_TRUE(std::equal(plan.pair.begin(), plan.pair.end(), first.pair.begin()))
          << recipe.name;
      EXPECT_TRUE(
          same_bits(plan.weight.reshape({1, plan.rows()}), first.weight.reshape({1, plan.rows()})))
          << recipe.name;
      if (!pass.goes_back()) continue;
      const Tensor d = c.run.saved.alloc_zeroed(DType::f32, {kTokens, kWidth});
      c.router.backward_acc(c.run, d, {}, {}, plan, pass, factors(spec), saved);
      dx.push_back(values(d));
    }
    EXPECT_EQ(dx[0], dx[1]) << recipe.name;
    if (needs_logits(spec.select) && !is_fixed(spec.logits))
      EXPECT_GT(norm(dx[0]), 0) << recipe.name;
  }
}

TEST(Router, DrawsNothingWithoutAKeyAndTheSameAgainWithOne) {
  for (const char* name : {"shazeer", "switch", "nanomoe", "gshard"}) {
    const RoutingSpec spec = training(find_recipe(name));
    Case c(spec, 4);
    Router::Saved first, again, quiet;
    c.router.forward(c.run, c.x, c.pass(spec), c.key, first);
    c.router.forward(c.run, c.x, c.pass(spec), c.key, again);
    c.router.forward(c.run, c.x, c.pass(spec), {}, quiet);
    EXPECT_TRUE(same_bits(first.logits, again.logits) && same_bits(first.kept, again.kept)) << name;
    EXPECT_TRUE(quiet.raw.empty() && quiet.sigma.empty() && quiet.clean.empty()) << name;
    // the second choices that were not sent
    if (std::string(name) == "gshard") EXPECT_FALSE(same_bits(first.kept, quiet.kept));
    else EXPECT_FALSE(same_bits(first.logits, quiet.logits)) << name;
  }
}

TEST(Router, TheLoadLossWithoutDrawnNoiseCountsAndTeachesNothing) {
  const RoutingSpec spec = training(find_recipe("shazeer"));
  Case c(spec, 5);
  Router::Saved saved;
  const RoutingPlan plan = c.router.forward(c.run, c.x, c.pass(spec), {}, saved);
  EXPECT_GT(losses_in(saved).load, 0);
  RoutingLosses coef;
  coef.load = 1;
  Tensor dx = c.run.saved.alloc_zeroed(DType::f32, {kTokens, kWidth});
  c.router.backward_acc(c.run, dx, {}, {}, plan, c.pass(spec), coef, saved);
  EXPECT_EQ(norm(values(dx)), 0);
}

TEST(Router, WithoutAMatrixItReadsIdsAndLearnsNothing) {
  const RoutingSpec spec = training(find_recipe("hash"));
  Case c(spec, 6);
  Router::Saved saved;
  const RoutingPlan plan = c.router.forward(c.run, c.x, c.pass(spec), c.key, saved);
  ASSERT_EQ(plan.rows(), kTokens);
  for (int64_t n = 0; n < kTokens; ++n) {
    EXPECT_EQ(plan.weight.as<float>()[n], 1);
    for (int64_t m = 0; m < n; ++m)
      if (c.ids[static_cast<size_t>(n)] == c.ids[static_cast<size_t>(m)])
        EXPECT_EQ(saved.choice.row<int32_t>(n)[0], saved.choice.row<int32_t>(m)[0]);
  }
  EXPECT_TRUE(saved.logits.empty() && saved.scores.empty());
  Tensor dx = draw(c.run.saved, DType::f32, {kTokens, kWidth}, 8);
  const std::vector<double> before = values(dx);
  c.router.backward_acc(c.run, dx, {}, {}, plan, c.pass(spec), {}, saved);
  EXPECT_EQ(values(dx), before);

  c.ids.pop_back();
  try {
    c.router.forward(c.run, c.x, c.pass(spec), c.key, saved);
    ADD_FAILURE() << "one id too few was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("23 token ids"), std::string::npos) << error.what();
  }
}

TEST(Router, ThresholdsAreNeededWhereTheyDecide) {
  const RoutingSpec spec = eval_spec(default_options(find_recipe("expert-choice"), kExperts, 2, 1));
  Case c(spec, 7);
  c.router.threshold = {};
  Router::Saved saved;
  EXPECT_THROW(c.router.forward(c.run, c.x, c.pass(spec), {}, saved), Error);
}

TEST(EndStep, TheBiasMovesAgainstTheLoadByItsRate) {
  RoutingSpec spec = training(find_recipe("deepseek-v3"));
  moe::Run run(1);
  Router router;
  router.bias.value = run.saved.alloc_zeroed(DType::f32, {kExperts});
  const uint64_t version = router.bias.version;
  const std::vector<int64_t> counts = {0, 1, 2, 3, 2, 2, 2, 4};  // mean 2
  router.end_step(run, spec, counts, {});
  const float rate = 1e-3f;
  EXPECT_EQ(values(router.bias.value), std::vector<double>({rate, rate, 0, -rate, 0, 0, 0, -rate}));
  EXPECT_GT(router.bias.version, version);
  // A mean that is no whole number: nobody stands exactly on it. Whole-number arithmetic, however
  // large the counts are.
  const int64_t large = int64_t{1} << 40;
  const std::vector<int64_t> uneven = {large, large, large, large, large, large, large, large + 1};
  router.bias.value = run.saved.alloc_zeroed(DType::f32, {kExperts});
  router.end_step(run, spec, uneven, {});
  EXPECT_EQ(values(router.bias.value),
            std::vector<double>({rate, rate, rate, rate, rate, rate, rate, -rate}));
  // Nothing was routed: nothing moves.
  router.end_step(run, spec, std::vector<int64_t>(kExperts, 0), {});
  EXPECT_EQ(values(router.bias.value),
            std::vector<double>({rate, rate, rate, rate, rate, rate, rate, -rate}));
  // A rate of 0 holds it; stages without a bias never touch it.
  std::get<GroupedTopK>(spec.select).bias->rate = 0;
  router.end_step(run, spec, counts, {});
  router.end_step(run, training(find_recipe("mixtral")), counts, {});
  EXPECT_EQ(values(router.bias.value),
            std::vector<double>({rate, rate, rate, rate, rate, rate, rate, -rate}));
}

TEST(EndStep, ThresholdsStartAtTheFirstCutoffAndFollow) {
  const RoutingSpec spec = training(find_recipe("expert-choice"));
  moe::Run run(1);
  Router router;
  router.threshold.value = run.saved.alloc_zeroed(DType::f32, {kExperts});
  std::vector<double> cutoff;
  for (int e = 0; e < kExperts; ++e) cutoff.push_back(0.1 * e);
  router.end_step(run, spec, std::vector<int64_t>(kExperts, 3), cutoff);
  for (size_t e = 0; e < kExperts; ++e)
    EXPECT_FLOAT_EQ(router.threshold.value.as<float>()[e], static_cast<float>(cutoff[e]));
  router.end_step(run, spec, std::vector<int64_t>(kExperts, 3), std::vector<double>(kExperts, 1));
  for (size_t e = 0; e < kExperts; ++e)
    EXPECT_FLOAT_EQ(router.threshold.value.as<float>()[e],
                    static_cast<float>(cutoff[e] + 0.05 * (1 - cutoff[e])));
  const std::vector<double> now = values(router.threshold.value);
  router.end_step(run, spec, std::vector<int64_t>(kExperts, 3), {});
  EXPECT_EQ(values(router.threshold.value), now);
}

}  // namespace
}  // namespace moe::test::router_test
