// The weigh stages against their formulas on dual numbers: gradients through every member, whatever
// is selected; weights after drops; golden weights.
#include "moe/stages/weigh.h"

#include <fmt/format.h>

#include <numeric>

#include "moe/stages/select.h"
#include "ops/routing.h"
#include "support/check.h"
#include "support/gradient.h"

namespace moe::test::weigh_test {
namespace {

using Renormalise = ChosenScores::Renormalise;

const WeighStage kStages[] = {ChosenScores{Renormalise::never, 2.5f},
                              ChosenScores{Renormalise::before_drop, 2.5f},
                              ChosenScores{Renormalise::after_drop},
                              ChosenSoftmax{},
                              TokenSoftmax{},
                              UnitWeight{},
                              OnePlusScaled{},
                              ScaledScores{},
                              NearSoftmax{0.3f},
                              ChosenSigmoids{false},
                              ChosenSigmoids{true}};

struct Case {
  size_t tokens, experts, slots;
  double selected;  // share of the slots that is
};

// What a selection left behind, drawn: distinct experts for each token, some slots not selected.
struct Drawn {
  Drawn(moe::Run& run, const Case& c)
      : shape(c),
        s(draw(run.saved, DType::f32,
               {static_cast<int64_t>(c.tokens), static_cast<int64_t>(c.experts)}, 11)),
        choice(run.saved.alloc(DType::i32,
                               {static_cast<int64_t>(c.tokens), static_cast<int64_t>(c.slots)})),
        selected(run.saved.alloc(DType::i32,
                                 {static_cast<int64_t>(c.tokens), static_cast<int64_t>(c.slots)})),
        scale(draw(run.saved, DType::f32, {static_cast<int64_t>(c.experts)}, 15)) {
    // like probabilities: sums are not near 0
    for (int64_t i = 0; i < s.numel(); ++i) s.as<float>()[i] = std::abs(s.as<float>()[i]);
    for (size_t n = 0; n < c.tokens; ++n) {
      std::vector<int32_t> order(c.experts);
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = 0; i < c.slots; ++i) {
        std::swap(order[i],
                  order[i + uniform_index(RngKey::from_seed(12).fold(n), i, c.experts - i)]);
        choice.row<int32_t>(static_cast<int64_t>(n))[i] = order[i];
        selected.row<int32_t>(static_cast<int64_t>(n))[i] =
            uniform(RngKey::from_seed(13), n * c.slots + i) < c.selected;
      }
    }
  }
  size_t expert(size_t pair) const { return static_cast<size_t>(choice.as<int32_t>()[pair]); }
  bool taken(size_t pair) const { return selected.as<int32_t>()[pair] != 0; }

  Routing routing(const std::vector<int64_t>& scopes = {}) const {
    return {.experts = s.cols(),
            .scale = scale,
            .scores = s,
            .choice = choice,
            .selected = selected,
            .scopes = scopes};
  }

  Case shape;
  Tensor s, choice, selected, scale;  // scale [E]
};

void weigh(moe::Run& run, Routing& r, const WeighStage& stage) {
  {
    const ArenaScope scope(run.saved);  // what a stage does not write shows
    const Tensor old = run.saved.alloc(DType::f32, {r.tokens() + 16, r.slots()});
    std::fill_n(old.as<float>(), old.numel(), NAN);
  }
  weigh_forward(run, r, stage);
}

// w [N,K]; s [N,E]: a softmax of those near the best that the choices before left
template <class T>
std::vector<T> near_twin(const std::vector<T>& s, const Drawn& d, double eps) {
  using std::exp;
  const size_t k = d.shape.slots, experts = d.shape.experts;
  std::vector<T> w(d.shape.tokens * k, T(0.0));
  for (size_t n = 0; n < d.shape.tokens; ++n) {
    std::vector<bool> left(experts, true);
    for (size_t pair = n * k; pair < (n + 1) * k; ++pair) {
      if (!d.taken(pair)) continue;
      double top = -INFINITY;
      for (size_t e = 0; e < experts; ++e)
        if (left[e]) top = std::max(top, value_of(s[n * experts + e]));
      T sum(0.0), own(0.0);
      for (size_t e = 0; e < experts; ++e) {
        const T& score = s[n * experts + e];
        const double over = std::max(std::abs(value_of(score)), top);
        if (!left[e] || (top - value_of(score)) / over > 2 * eps) continue;
        sum += exp(score);
        if (e == d.expert(pair)) own = exp(score);
      }
      w[pair] = own / sum;
      left[d.expert(pair)] = false;
    }
  }
  return w;
}

// w [N,K]; s [N,E]; `bounds` the scopes
template <class T>
std::vector<T> weigh_twin(const std::vector<T>& s, const Drawn& d,
                          const std::vector<int64_t>& bounds, const WeighStage& stage) {
  using std::exp;
  if (const auto* near = std::get_if<NearSoftmax>(&stage))
    return near_twin(s, d, static_cast<double>(near->eps));
  const size_t k = d.shape.slots;
  std::vector<T> w(d.shape.tokens * k, T(0.0));
  const auto score = [&](size_t pair) { return s[pair / k * d.shape.experts + d.expert(pair)]; };
  const auto divide = [&](const std::vector<size_t>& pairs, T by) {
    for (size_t pair : pairs) w[pair] /= by;
  };
  std::vector<std::vector<size_t>> together(std::holds_alternative<TokenSoftmax>(stage)
                                                ? d.shape.experts * (bounds.size() - 1)
                                                : d.shape.tokens);
  for (size_t pair = 0; pair < w.size(); ++pair) {
    if (!d.taken(pair)) continue;
    const size_t n = pair / k;
    size_t scope = 0;
    while (scope + 2 < bounds.size() && static_cast<int64_t>(n) >= bounds[scope + 1]) ++scope;
    together[std::holds_alternative<TokenSoftmax>(stage) ? scope * d.shape.experts + d.expert(pair)
                                                         : n]
        .push_back(pair);
  }
  for (const std::vector<size_t>& pairs : together) {
    T sum(0.0);
    for (size_t pair : pairs) {
      w[pair] = std::holds_alternative<UnitWeight>(stage) ? T(1.0)
                : std::holds_alternative<ChosenSigmoids>(stage)
                    ? T(1.0) / (T(1.0) + exp(T(0.0) - score(pair)))
                : std::holds_alternative<ChosenScores>(stage) ||
                        std::holds_alternative<ScaledScores>(stage)
                    ? score(pair)
                    : exp(score(pair));
      sum += w[pair];
    }
    if (std::holds_alternative<OnePlusScaled>(stage))
      for (size_t pair : pairs)
        w[pair] =
            T(1.0) + T(static_cast<double>(d.scale.as<float>()[d.expert(pair)])) * score(pair);
    if (std::holds_alternative<ChosenSoftmax>(stage) || std::holds_alternative<TokenSoftmax>(stage))
      divide(pairs, sum);
    if (const auto* sigmoids = std::get_if<ChosenSigmoids>(&stage);
        sigmoids && sigmoids->renormalise)
      divide(pairs, sum);
    if (std::holds_alternative<ScaledScores>(stage))
      for (size_t pair : pairs)
        w[pair] = T(static_cast<double>(d.scale.as<float>()[d.expert(pair)])) * w[pair] / sum;
    if (const auto* c = std::get_if<ChosenScores>(&stage)) {
      if (c->renormalise == Renormalise::before_drop) divide(pairs, sum);
      divide(pairs, T(1.0 / static_cast<double>(c->scale)));
    }
  }
  return w;
}

TEST(Weigh, EveryMemberMatchesItsTwinForwardAndBackward) {
  for (const WeighStage& stage : kStages)
    for (const Case& c : {Case{7, 6, 2, 1}, Case{1, 5, 5, 1}, Case{9, 4, 4, 0.4},
                          Case{12, 8, 3, 0.5}, Case{5, 3, 1, 1}})
      for (const std::vector<int64_t>& scopes :
           {std::vector<int64_t>{0, static_cast<int64_t>(c.tokens)},
            std::vector<int64_t>{0, static_cast<int64_t>(c.tokens) / 3,
                                 static_cast<int64_t>(c.tokens)}}) {
        moe::Run run(2);
        const Drawn d(run, c);
        const std::string what = fmt::format("stage {}, {} tokens, {} slots, {} scopes",
                                             stage.index(), c.tokens, c.slots, scopes.size() - 1);
        Routing routing = d.routing(scopes);
        weigh(run, routing, stage);
        expect_near(routing.weights, weigh_twin(values(d.s), d, scopes, stage), kTwinF32, what);

        const std::vector<double> r = drawn(c.tokens * c.slots, 14);
        const Tensor dw = run.saved.alloc(DType::f32, {routing.tokens(), routing.slots()}),
                     ds = run.saved.alloc_zeroed(DType::f32, {d.s.rows(), d.s.cols()});
        fill(dw, r);
        const std::vector<double> want = dual_gradient(values(d.s), [&](const DualVector& at) {
          return inner(weigh_twin(at, d, scopes, stage), r);
        });
        weigh_backward_acc(run, ds, dw, routing, stage);
        const bool alone =
            c.slots == 1 && constant_when_alone(stage) && !renormalises_after_drop(stage);
        if (alone || std::holds_alternative<UnitWeight>(stage) ||
            (std::holds_alternative<TokenSoftmax>(stage) && c.tokens == 1))
          EXPECT_LE(norm(values(ds)), 1e-6) << what << ": the weights are constant";
        else expect_near(ds, want, kTwinF32, what + " backward");

        std::vector<double> twice = values(ds);
        for (double& x : twice) x *= 2;
        weigh_backward_acc(run, ds, dw, routing, stage);
        EXPECT_EQ(values(ds), twice) << what << " does not accumulate";
      }
}

TEST(Weigh, TheScaleGetsTheGradientOfEveryWeightItIsIn) {
  moe::Run run(2);
  const Drawn d(run, {12, 8, 3, 0.6});
  const std::vector<double> r = drawn(36, 14);
  const Tensor dw = run.saved.alloc(DType::f32, {12, 3});
  fill(dw, r);
  Param scale;
  scale.value = d.scale;
  scale.grad = draw(run.saved, DType::f32, {8}, 16);
  const std::vector<double> before = values(scale.grad);
  const auto score = [&](size_t pair) {
    return static_cast<double>(d.s.row<float>(static_cast<int64_t>(pair / 3))[d.expert(pair)]);
  };
  for (const bool shares : {false, true}) {
    std::vector<double> want = before;
    for (size_t pair = 0; pair < 36; ++pair) {
      double sum = 0;
      for (size_t i = pair / 3 * 3; i < pair / 3 * 3 + 3; ++i) sum += d.taken(i) ? score(i) : 0;
      if (d.taken(pair)) want[d.expert(pair)] += r[pair] * score(pair) / (shares ? sum : 1);
    }
    fill(scale.grad, before);
    weigh_scale_backward(run, scale, dw, d.routing(),
                         shares ? WeighStage(ScaledScores{}) : WeighStage(OnePlusScaled{}));
    expect_near(scale.grad.reshape({1, 8}), want, kTwinF32, "the scale's gradient");
  }
}

TEST(Weigh, NoBoundsAreOneScope) {
  moe::Run run(1);
  const Drawn d(run, {9, 4, 4, 0.4});
  Routing none = d.routing(), one = d.routing({0, 9});
  weigh(run, none, TokenSoftmax{});
  weigh(run, one, TokenSoftmax{});
  EXPECT_TRUE(same_bits(none.weights, one.weights));
}

TEST(Weigh, TokenSoftmaxAddsUpToOneForEachExpertAndScope) {
  moe::Run run(1);
  const Drawn d(run, {12, 4, 4, 0.7});
  const std::vector<int64_t> scopes = {0, 5, 5, 12};
  Routing routing = d.routing(scopes);
  weigh(run, routing, TokenSoftmax{});
  for (size_t scope : {size_t{0}, size_t{2}})
    for (size_t e = 0; e < 4; ++e) {
      double sum = 0;
      for (int64_t n = scopes[scope]; n < scopes[scope + 1]; ++n)
        for (size_t i = 0; i < 4; ++i)
          if (d.expert(static_cast<size_t>(n) * 4 + i) == e)
            sum += routing.weights.row<float>(n)[i];
      EXPECT_NEAR(sum, 1, 1e-6) << "expert " << e << " of scope " << scope;
    }
}

TEST(Weigh, ATokenThatNobodyTookWeighsNothing) {
  moe::Run run(1);
  const Drawn d(run, {3, 4, 4, 0});
  for (const WeighStage& stage : kStages) {
    const Tensor dw = draw(run.saved, DType::f32, {3, 4}, 1),
                 ds = run.saved.alloc_zeroed(DType::f32, {3, 4});
    Routing routing = d.routing();
    weigh(run, routing, stage);
    weigh_backward_acc(run, ds, dw, routing, stage);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(routing.weights.as<float>()[i], 0) << stage.index();
      EXPECT_EQ(ds.as<float>()[i], 0) << stage.index();
    }
  }
}

// Tied scores weigh the same, and what renormalises gives an unchosen score exactly no gradient.
TEST(Weigh, TiesShareEquallyAndTheUnchosenGetNothing) {
  moe::Run run(1);
  float scores[] = {0.25f, 0.25f, 0.25f, 0.25f};
  const Tensor dw = draw(run.saved, DType::f32, {1, 2}, 3);
  Routing routing{.experts = 4, .scores = Tensor(scores, DType::f32, {1, 4})};
  select_forward(run, routing, {}, TopK{2});
  for (const WeighStage& stage :
       {WeighStage{ChosenScores{Renormalise::before_drop}}, WeighStage{ChosenSoftmax{}}}) {
    const Tensor ds = run.saved.alloc_zeroed(DType::f32, {1, 4});
    weigh(run, routing, stage);
    EXPECT_EQ(routing.weights.as<float>()[0], 0.5f);
    EXPECT_EQ(routing.weights.as<float>()[1], 0.5f);
    weigh_backward_acc(run, ds, dw, routing, stage);
    EXPECT_NE(ds.as<float>()[0], 0);
    EXPECT_FLOAT_EQ(ds.as<float>()[0], -ds.as<float>()[1]);
    EXPECT_EQ(ds.as<float>()[2], 0);
    EXPECT_EQ(ds.as<float>()[3], 0);
  }
}

// ---- near the best ------------------------------------------------------------------------------
// m = 2: 1.97 is near (0.015), 1.9 is not (0.05); of what is left 1.97, 1.9 is not near either.
TEST(WeighNear, OfTwoChoicesEachAmongThoseNearTheBest) {
  moe::Run run(1);
  float scores[] = {2, 1.97f, 1.9f, -3, -1, -1.01f, -1.5f, -1.0f};
  Routing r{.experts = 4, .scores = Tensor(scores, DType::f32, {2, 4})};
  select_forward(run, r, {}, NearBestChoice{});
  weigh(run, r, NearSoftmax{});
  const float* w = r.weights.as<float>();
  EXPECT_NEAR(w[0], 1 / (1 + std::exp(-0.03)), 1e-6);
  EXPECT_EQ(w[1], 1);
  // Below 0 the distance is a share of the score that is farther away.
  EXPECT_NEAR(w[2], 1 / (2 + std::exp(-0.01)), 1e-6);
  EXPECT_NEAR(w[3], 1 / (1 + std::exp(-0.01)), 1e-6);
}

// Under a key choices follow the softmax, and three in four of those that are not the best weigh a
// third; the gradient is that of the whole weight.
TEST(WeighNear, DrawnChoicesAreWeaker) {
  moe::Run run(2);
  const int64_t tokens = 20000;
  const Tensor s = run.saved.alloc(DType::f32, {tokens, 3});
  for (int64_t n = 0; n < tokens; ++n) {
    float* row = s.row<float>(n);
    row[0] = 0.5f, row[1] = 1, row[2] = -4;
  }
  Routing r{.experts = 3, .key = RngKey::from_seed(9), .scores = s};
  select_forward(run, r, {}, NearBestChoice{.k = 1, .eps = 0.25f});
  weigh(run, r, NearSoftmax{0.25f});
  const double p = 1 / (1 + std::exp(0.5));
  double others = 0, weak = 0;
  for (int64_t n = 0; n < tokens; ++n) {
    const int32_t e = r.choice.as<int32_t>()[n];
    const double w = static_cast<double>(r.weights.as<float>()[n]);
    ASSERT_NE(e, 2);
    if (e == 1) {
      ASSERT_NEAR(w, 1 - p, 1e-6);
      continue;
    }
    ++others;
    weak += std::abs(w - p / 3) < 1e-6;
    if (std::abs(w - p / 3) >= 1e-6) ASSERT_NEAR(w, p, 1e-6);
  }
  const double n = static_cast<double>(tokens);
  EXPECT_NEAR(others / n, p, 4 * std::sqrt(p * (1 - p) / n));
  EXPECT_NEAR(weak / others, 0.75, 4 * std::sqrt(0.75 * 0.25 / others));

  const Tensor dw = run.saved.alloc(DType::f32, {tokens, 1}),
               ds = run.saved.alloc_zeroed(DType::f32, {tokens, 3});
  std::fill_n(dw.as<float>(), tokens, 1.0f);
  weigh_backward_acc(run, ds, dw, r, NearSoftmax{0.25f});
  for (int64_t i : {int64_t{0}, tokens - 1}) {
    const bool second = r.choice.as<int32_t>()[i] == 0;
    EXPECT_NEAR(ds.row<float>(i)[0], (second ? 1 : -1) * p * (1 - p), 1e-6);
    EXPECT_EQ(ds.row<float>(i)[2], 0);
  }
}

// ---- after the drops ----------------------------------------------------------------------------
TEST(WeighKept, ForwardAndBackwardMatchTheTwin) {
  moe::Run run(2);
  const size_t tokens = 20, k = 3;
  const Tensor w = draw(run.saved, DType::f32, {20, 3}, 4),
               kept = run.saved.alloc(DType::i32, {20, 3}),
               y = run.saved.alloc(DType::f32, {20, 3}), dw = run.saved.alloc(DType::f32, {20, 3});
  for (size_t i = 0; i < tokens * k; ++i) {
    w.as<float>()[i] = std::abs(w.as<float>()[i]);
    // token 5 lost everything
    kept.as<int32_t>()[i] = i / k != 5 && uniform(RngKey::from_seed(6), i) < 0.6;
  }
  const auto twin = [&](const auto& in) {
    auto out = in;
    for (size_t n = 0; n < tokens; ++n) {
      auto sum = in[0] * 0.0;
      for (size_t i = n * k; i < (n + 1) * k; ++i)
        if (kept.as<int32_t>()[i] != 0) sum += in[i];
      for (size_t i = n * k; i < (n + 1) * k; ++i)
        out[i] = kept.as<int32_t>()[i] != 0 ? in[i] / sum : in[i] * 0.0;
    }
    return out;
  };
  fill(y, values(w));
  ops::weigh_kept_forward(run, y, kept);
  expect_near(y, twin(values(w)), kTwinF32, "weights over the kept");
  EXPECT_EQ(y.row<float>(5)[0], 0);

  const std::vector<double> r = drawn(tokens * k, 7);
  fill(dw, r);
  ops::weigh_kept_backward(run, dw, w, kept);
  expect_near(dw,
              dual_gradient(values(w), [&](const DualVector& at) { return inner(twin(at), r); }),
              kTwinF32, "dw before the drops");
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(dw.row<float>(5)[i], 0) << "a token without kept pairs";
}

TEST(WeighKept, TheOneThatIsLeftWeighsOne) {
  moe::Run run(1);
  float w[] = {0.5f, 0.25f};
  int32_t kept[] = {0, 1};
  ops::weigh_kept_forward(run, Tensor(w, DType::f32, {1, 2}), Tensor(kept, DType::i32, {1, 2}));
  EXPECT_EQ(w[0], 0);
  EXPECT_EQ(w[1], 1);
}

// ---- golden -------------------------------------------------------------------------------------
void expect_weights(std::vector<float> s, int64_t k, Tensor bias, const WeighStage& stage,
                    const std::vector<double>& want) {
  moe::Run run(1);
  Routing routing{.experts = 4, .bias = bias, .scores = Tensor(s.data(), DType::f32, {4, 4})};
  select_forward(run, routing, {}, TopK{k});
  weigh(run, routing, stage);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(routing.weights.as<float>()[i], want[i], 1e-6) << "pair " << i;
}

const std::vector<float> kLogits = {2, 1,  0, -1, 1.5f, 1.5f, 0.5f, 0,
                                    3, -1, 2, 0,  0.2f, 0.1f, 0,    2.2f};
const std::vector<double> kRenormalised = {.731059, .268941, .5,      .5,
                                           .731059, .268941, .880797, .119203};

std::vector<float> probabilities() {
  std::vector<float> p = kLogits;
  for (size_t n = 0; n < 16; n += 4) {
    double sum = 0;
    for (size_t e = n; e < n + 4; ++e) sum += std::exp(static_cast<double>(kLogits[e]));
    for (size_t e = n; e < n + 4; ++e)
      p[e] = static_cast<float>(std::exp(static_cast<double>(kLogits[e])) / sum);
  }
  return p;
}

TEST(WeighGolden, RawRenormalisedAndSoftmaxOfTheChosen) {
  expect_weights(probabilities(), 2, {}, ChosenScores{},
                 {.643914, .236883, .385950, .385950, .696387, .256187, .730676, .098886});
  expect_weights(probabilities(), 2, {}, ChosenScores{Renormalise::before_drop}, kRenormalised);
  expect_weights(kLogits, 2, {}, ChosenSoftmax{}, kRenormalised);
}

// The bias moves the choice and never the weight.
TEST(WeighGolden, DeepSeekV3) {
  std::vector<float> s = kLogits;
  for (float& x : s) x = 1 / (1 + std::exp(-x));
  float bias[] = {-0.2f, 0, 0.1f, 0};
  expect_weights(s, 2, Tensor(bias, DType::f32, {4}), ChosenScores{Renormalise::before_drop, 2.5f},
                 {1.133877, 1.366123, 1.419367, 1.080633, 1.201062, 1.298938, 1.607302, .892698});
}

// ---- all of them --------------------------------------------------------------------------------
TEST(Weigh, IsTheSameForAnyThreads) {
  moe::Run one(1), two(2);
  const Drawn d(one, {301, 16, 16, 0.3});
  const std::vector<int64_t> scopes = {0, 7, 100, 301};
  for (const WeighStage& stage : kStages) {
    Routing a = d.routing(scopes), b = a;
    weigh(one, a, stage);
    weigh(two, b, stage);
    EXPECT_TRUE(same_bits(a.weights, b.weights)) << stage.index();
  }
  Routing a = d.routing(scopes), b = a;
  weigh(one, a, ChosenScores{});
  weigh(one, b, ChosenScores{});
  ops::weigh_kept_forward(one, a.weights, d.selected);
  ops::weigh_kept_forward(two, b.weights, d.selected);
  EXPECT_TRUE(same_bits(a.weights, b.weights));
}

TEST(Weigh, WhatAStageSaysOfItself) {
  const bool constant[] = {false, true, true, true, false, true, false, true, false, false, true},
             after[] = {false, false, true, false, false, false, false, false, false, false, false};
  static_assert(std::size(constant) == std::size(kStages) &&
                std::size(after) == std::size(kStages));
  for (size_t i = 0; i < std::size(kStages); ++i) {
    EXPECT_EQ(constant_when_alone(kStages[i]), constant[i]) << i;
    EXPECT_EQ(renormalises_after_drop(kStages[i]), after[i]) << i;
  }
}

}  // namespace
}  // namespace moe::test::weigh_test
