// The auxiliary losses against formulas written again from the papers (support/loss_twin.h), their
// gradients against dual numbers through those formulas; the worked example; and what the losses
// promise: 1 (or 0) for an even load, micro-batches that add up to one batch, the same bits for any
// number of threads.
#include "moe/losses/aux_loss.h"

#include <algorithm>

#include "ops/routing.h"
#include "support/loss_twin.h"
#include "tensor/on_host.h"

namespace moe::test::aux_loss_test {
namespace {

using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;
using Shares = BalanceLoss::Shares;
constexpr Scope kScopes[] = {
    {Scope::Kind::micro_batch}, {Scope::Kind::sequence}, {Scope::Kind::group, 5}};

std::vector<RoutingShape> shapes() {
  return {
      {.name = "softmax", .lengths = {7, 1, 9}, .experts = 6, .k = 2},
      {.name = "sigmoid", .lengths = {4, 12}, .experts = 8, .k = 3, .sigmoid = true},
      {.name = "one token", .lengths = {1}, .experts = 6, .k = 2},
      {.name = "K = E", .lengths = {3, 5}, .experts = 4, .k = 4},
      {.name = "K = 1", .lengths = {10}, .experts = 6, .k = 1},
      {.name = "an idle expert", .lengths = {5, 6}, .experts = 6, .k = 2, .idle = true},
      {.name = "experts choose",
       .lengths = {6, 5},
       .experts = 6,
       .k = 6,
       .gaps = true,
       .no_noise = true},
      {.name = "no noise", .lengths = {6, 5}, .experts = 6, .k = 2, .no_noise = true},
      {.name = "counts of the step",
       .lengths = {9, 4},
       .experts = 6,
       .k = 2,
       .step_counts = {3, 0, 11, 4, 5, 1}},
  };
}

// ---- every loss, value and gradient -------------------------------------------------------------
struct Case {
  std::string name;
  AuxLosses losses;
  RoutingLosses coef;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&](std::string name, AuxLosses losses) {
    out.push_back({std::move(name), losses, {0.7f, 0, 0.7f, 0.7f, 0.7f, 0.7f}});
  };
  for (Counts counts : {Counts::first_choice, Counts::all_choices, Counts::unbiased_choices})
    for (Probs probs : {Probs::scores, Probs::chosen_weights, Probs::normalised_scores})
      for (const Scope& scope : kScopes)
        for (Shares shares : {Shares::own, Shares::running, Shares::step}) {
          if (shares != Shares::own && scope.kind != Scope::Kind::micro_batch) continue;
          AuxLosses losses;
          losses.balance = BalanceLoss{counts, probs, scope, shares};
          add("balance " + std::to_string(static_cast<int>(counts)) +
                  std::to_string(static_cast<int>(probs)) +
                  std::to_string(static_cast<int>(scope.kind)) +
                  std::to_string(static_cast<int>(shares)),
              losses);
        }
  for (const Scope& scope : kScopes) {
    AuxLosses device, communication;
    device.device = DeviceLoss{2, 1, scope};
    communication.communication = DeviceLoss{2, 3, scope};
    add("device", device);
    add("communication", communication);
  }
  AuxLosses importance, load;
  importance.importance = true;
  load.load = true;
  add("importance", importance);
  add("load", load);
  return out;
}

template <class T>
T loss_of(const LossTwin<T>& twin, const AuxLosses& losses) {
  if (losses.balance) return twin.balance(*losses.balance);
  if (losses.device) return twin.device(*losses.device, false);
  if (losses.communication) return twin.device(*losses.communication, true);
  return losses.importance ? twin.importance() : twin.load();
}

float z_loss(moe::Run& run, Tensor lse, Tensor z) {
  ops::softmax_forward(run, {}, lse, z);
  const Tensor value = run.saved.alloc(DType::f32, {1});
  z_loss_forward(run, value, lse);
  return *value.as<float>();
}

RoutingLosses values_of(moe::Run& run, const Routing& in, const Pass& pass,
                        const AuxLosses& losses) {
  const Tensor values = run.saved.alloc_zeroed(DType::f32, {kRoutingLosses});
  aux_losses_forward(run, values, in, pass, losses);
  OnHost host(run);
  return losses_of(host.read(values).as<float>());
}

double total(const RoutingLosses& l) {
  double sum = 0;
  each_loss(l, [&](const char*, float x) { sum += static_cast<double>(x); });
  return sum;
}

struct Gradients {
  Tensor ds, dlogits, dclean, dsigma, dw;
  Gradients(Arena& a, const Routing& in)
      : ds(zeros(a, in.scores)),
        dlogits(zeros(a, in.logits)),
        dclean(zeros(a, in.logits)),
        dsigma(zeros(a, in.logits)),
        dw(zeros(a, in.weights)) {}
  static Tensor zeros(Arena& a, const Tensor& like) {
    return a.alloc_zeroed(DType::f32, {like.rows(), like.cols()});
  }
  void add(moe::Run& run, const Routing& in, const Pass& pass, const AuxLosses& losses,
           const RoutingLosses& coef) {
    aux_losses_backward_acc(run, ds, dw, dlogits, dclean, dsigma, in, pass, losses, coef);
  }
  std::vector<Tensor> all() const { return {ds, dlogits, dclean, dsigma, dw}; }
};

TEST(AuxLosses, ValuesAndGradientsAreThoseOfTheFormulas) {
  int64_t gradients = 0;
  for (const RoutingShape& shape : shapes())
    for (const Case& c : cases()) {
      if (shape.gaps && c.losses.balance && c.losses.balance->counts == Counts::unbiased_choices)
        continue;  // there is no K where experts choose
      const auto routing = make_routing(shape, 40);
      const std::string what = shape.name + ", " + c.name;
      moe::Run run(2);
      const double want = loss_of(LossTwin<double>(*routing), c.losses);
      EXPECT_NEAR(total(values_of(run, routing->in, routing->pass, c.losses)), want,
                  1e-6 * std::max(1.0, want))
          << what;

      Gradients got(run.saved, routing->in);
      got.add(run, routing->in, routing->pass, c.losses, c.coef);
      got.add(run, routing->in, routing->pass, c.losses, c.coef);  // twice: they are added
      LossTwin<Dual<double>> twin(*routing);
      std::vector<Dual<double>>* inputs[] = {&twin.scores, &twin.noisy, &twin.clean, &twin.sigma,
                                             &twin.weights};
      for (size_t i = 0; i < 5; ++i) {
        std::vector<double> gradient;
        for (Dual<double>& x : *inputs[i]) {
          x.d = 1;
          gradient.push_back(2 * 0.7f * loss_of(twin, c.losses).d);
          x.d = 0;
        }
        const std::vector<double> found = values(got.all()[i]);
        gradient.resize(found.size());  // no clean logits, no noise: nothing may be written there
        // A constant loss (all experts chosen by all, probabilities that add up to 1) has a
        // gradient of rounding errors.
        const bool constant = norm(gradient) < 1e-13;
        if (constant) EXPECT_LE(norm(found), 1e-13) << what << ", input " << i;
        else EXPECT_LE(relative_error(found, gradient), kTwinF32) << what << ", input " << i;
        gradients += !constant;
      }
    }
  EXPECT_GT(gradients, 440);
}

TEST(AuxLosses, LoadReachesNoisyLogitsCleanLogitsAndNoise) {
  const auto routing = make_routing(shapes()[0], 40);
  moe::Run run(1);
  AuxLosses losses;
  losses.load = true;
  Gradients got(run.saved, routing->in);
  got.add(run, routing->in, routing->pass, losses, {.load = 1});
  for (const Tensor& t : {got.dlogits, got.dclean, got.dsigma}) EXPECT_GT(norm(values(t)), 1e-3);
  EXPECT_EQ(norm(values(got.ds)) + norm(values(got.dw)), 0);
}

TEST(AuxLosses, LoadWithTiesAndWithoutNoiseStaysFinite) {
  for (bool silent : {false, true}) {
    const auto routing = make_routing(shapes()[0], 41);
    for (int64_t i = 0; i < routing->in.logits.numel(); ++i) {
      routing->in.logits.as<float>()[i] = std::round(routing->in.logits.as<float>()[i]);
      if (silent)
        routing->in.sigma.as<float>()[i] = 0,
        routing->in.clean.as<float>()[i] = routing->in.logits.as<float>()[i];
    }
    moe::Run run(1);
    AuxLosses losses;
    losses.load = true;
    const float value = values_of(run, routing->in, routing->pass, losses).load;
    if (silent) EXPECT_TRUE(std::isfinite(value));
    else EXPECT_NEAR(value, LossTwin<double>(*routing).load(), 1e-6);
    Gradients got(run.saved, routing->in);
    got.add(run, routing->in, routing->pass, losses, {.load = 1});
    for (const Tensor& t : {got.dlogits, got.dclean, got.dsigma})
      for (double x : values(t)) EXPECT_TRUE(silent ? x == 0 : std::isfinite(x));
  }
}

// ---- the z-loss ---------------------------------------------------------------------------------
TEST(ZLoss, IsItsFormula) {
  for (int64_t tokens : {1, 9}) {
    moe::Run run(2);
    const Tensor z = draw(run.saved, DType::f32, {tokens, 5}, 8, 3),
                 lse = run.saved.alloc(DType::f32, {tokens}), dz = Gradients::zeros(run.saved, z);
    const auto loss = [&](const std::vector<Dual<double>>& x) {
      Dual<double> sum = 0;
      for (int64_t n = 0; n < tokens; ++n) {
        Dual<double> mass = 0;
        for (int64_t e = 0; e < 5; ++e) mass += exp(x[static_cast<size_t>(n * 5 + e)]);
        sum += log(mass) * log(mass) / Dual<double>(static_cast<double>(tokens));
      }
      return sum;
    };
    std::vector<Dual<double>> x;
    for (double v : values(z)) x.push_back(v);
    EXPECT_NEAR(z_loss(run, lse, z), loss(x).v, 1e-5 * loss(x).v);
    z_loss_backward_acc(run, dz, lse, z, 0.25f);
    z_loss_backward_acc(run, dz, lse, z, 0.25f);
    std::vector<double> want;
    for (Dual<double>& v : x) {
      v.d = 1;
      want.push_back(0.5 * loss(x).d);
      v.d = 0;
    }
    expect_near(dz, want, kTwinF32, "dz");
  }
}

// ---- the worked example -------------------------------------------------------------------------
// recipes.md E: logits, their softmax, the two largest; weights as a softmax over the two.
struct Worked {
  float z[16] = {2, 1, 0, -1, 1.5f, 1.5f, 0.5f, 0, 3, -1, 2, 0, 0.2f, 0.1f, 0, 2.2f};
  float s[16] = {}, w[8] = {};
  int32_t choice[8] = {0, 1, 0, 1, 0, 2, 3, 0}, selected[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  Routing in;
  Worked() {
    for (int64_t n = 0; n < 4; ++n) {
      double sum = 0, chosen = 0;
      for (int64_t e = 0; e < 4; ++e) sum += std::exp(z[4 * n + e]);
      for (int64_t e = 0; e < 4; ++e)
        s[4 * n + e] = static_cast<float>(std::exp(z[4 * n + e]) / sum);
      for (int64_t i = 0; i < 2; ++i) chosen += s[4 * n + choice[2 * n + i]];
      for (int64_t i = 0; i < 2; ++i)
        w[2 * n + i] = static_cast<float>(s[4 * n + choice[2 * n + i]] / chosen);
    }
    in.scores = Tensor(s, DType::f32, {4, 4});
    in.weights = Tensor(w, DType::f32, {4, 2});
    in.choice = Tensor(choice, DType::i32, {4, 2});
    in.selected = Tensor(selected, DType::i32, {4, 2});
    in.logits = Tensor(z, DType::f32, {4, 4});
    in.experts = 4;
  }
};

TEST(AuxLosses, WorkedExample) {
  moe::Run run(1);
  const Worked worked;
  const auto balance = [&](Counts counts, Probs probs) {
    AuxLosses losses;
    losses.balance = BalanceLoss{counts, probs, {}, Shares::own};
    return values_of(run, worked.in, {}, losses).balance;
  };
  EXPECT_NEAR(balance(Counts::all_choices, Probs::scores), 1.275060, 1e-6);  // Megatron, MegaBlocks
  // flaxformer, transformers: uniform is K
  EXPECT_NEAR(balance(Counts::all_choices, Probs::scores), 2.550119 / 2, 1e-6);
  EXPECT_NEAR(balance(Counts::first_choice, Probs::scores), 1.589734, 1e-6);  // Switch
  // nanoMoE: uniform is K
  EXPECT_NEAR(balance(Counts::all_choices, Probs::chosen_weights), 2.753225 / 2, 1e-6);
  EXPECT_NEAR(balance(Counts::unbiased_choices, Probs::normalised_scores), 1.275060, 1e-6);
  AuxLosses shazeer;
  shazeer.importance = shazeer.load = true;
  const RoutingLosses values = values_of(run, worked.in, {}, shazeer);
  EXPECT_NEAR(values.load, 0.375, 1e-6);  // counts 4 2 1 1
  double variance = 0;
  // the mean weights
  for (double p : {.520330, .192235, .067235, .220199}) variance += (p - 0.25) * (p - 0.25) / 4;
  EXPECT_NEAR(values.importance, variance / 0.0625, 1e-5);
  const Tensor lse = run.saved.alloc(DType::f32, {4}), counts = run.saved.alloc(DType::i32, {4});
  EXPECT_NEAR(z_loss(run, lse, worked.in.logits), 7.397051, 1e-5);
  ops::count_pairs(run, counts, worked.in.choice, worked.in.selected, worked.in.choice.cols());
  EXPECT_EQ(std::vector<int32_t>(counts.as<int32_t>(), counts.as<int32_t>() + 4),
            (std::vector<int32_t>{4, 2, 1, 1}));
}

// ---- what they promise --------------------------------------------------------------------------
TEST(AuxLosses, AreOneForAnEvenLoad) {
  for (bool sigmoid : {false, true}) {
    moe::Run run(1);
    Worked even;
    const int32_t choice[] = {0, 2, 1, 3, 2, 1, 3, 0};
    std::copy_n(choice, 8, even.choice);
    std::fill_n(even.s, 16, sigmoid ? 0.5f : 0.25f);
    std::fill_n(even.w, 8, 0.5f);
    for (Counts counts : {Counts::first_choice, Counts::all_choices})
      for (Probs probs : {Probs::scores, Probs::chosen_weights, Probs::normalised_scores}) {
        if (sigmoid && probs == Probs::scores) continue;  // sigmoids are no probabilities
        AuxLosses losses;
        losses.balance = BalanceLoss{counts, probs, {}, Shares::own};
        EXPECT_FLOAT_EQ(values_of(run, even.in, {}, losses).balance, 1);
      }
    AuxLosses losses;
    losses.device = DeviceLoss{2, 1, {}};
    losses.communication = DeviceLoss{2, 2, {}};  // every token has an expert on both
    losses.importance = losses.load = true;
    const RoutingLosses values = values_of(run, even.in, {}, losses);
    EXPECT_FLOAT_EQ(values.device, 1);
    EXPECT_FLOAT_EQ(values.communication, 1);
    EXPECT_EQ(values.importance, 0);
    EXPECT_EQ(values.load, 0);
  }
}

TEST(AuxLosses, KnownCountsMakeMicroBatchesAddUpToOneBatch) {
  for (Counts counts : {Counts::first_choice, Counts::all_choices, Counts::unbiased_choices})
    for (Probs probs : {Probs::scores, Probs::chosen_weights, Probs::normalised_scores}) {
      const auto whole =
          make_routing({.name = "", .lengths = {24}, .experts = 6, .k = 2, .sigmoid = true}, 50);
      moe::Run run(1);
      AuxLosses one, part;
      one.balance = BalanceLoss{counts, probs, {}, Shares::own};
      part.balance = BalanceLoss{counts, probs, {}, Shares::step};
      const float value = values_of(run, whole->in, {}, one).balance;
      Gradients want(run.saved, whole->in);
      want.add(run, whole->in, {}, one, {.balance = 0.7f});

      std::vector<Routing> parts;
      std::vector<int64_t> step(6, 0);
      const Tensor found = run.saved.alloc(DType::i32, {6});
      for (int64_t m = 0; m < 3; ++m) {
        Routing in = whole->in;
        for (Tensor* t : {&in.scores, &in.weights, &in.choice, &in.selected, &in.logits})
          *t = t->slice_rows(8 * m, 8 * m + 8);
        count_for_balance(run, found, in, *part.balance);
        for (size_t e = 0; e < 6; ++e) step[e] += found.as<int32_t>()[e];
        parts.push_back(in);
      }
      count_for_balance(run, found, whole->in, *one.balance);
      EXPECT_EQ(step, std::vector<int64_t>(found.as<int32_t>(), found.as<int32_t>() + 6));
      const Pass known{.step_counts = std::span(&step, 1)};
      double sum = 0;
      for (size_t m = 0; m < 3; ++m) {
        sum += values_of(run, parts[m], known, part).balance / 3.0;
        Gradients got(run.saved, parts[m]);
        got.add(run, parts[m], known, part, {.balance = 0.7f / 3});
        const Tensor all = probs == Probs::chosen_weights ? want.dw : want.ds,
                     mine = probs == Probs::chosen_weights ? got.dw : got.ds;
        const auto begin = static_cast<int64_t>(8 * m);
        expect_near(mine, values(all.slice_rows(begin, begin + 8)), 1e-6, "micro-batch");
      }
      EXPECT_NEAR(sum, value, 1e-6);
    }
}

TEST(AuxLosses, HaveTheSameBitsForAnyThreads) {
  const auto routing = make_routing(
      {.name = "", .lengths = {300, 5, 700}, .experts = 16, .k = 3, .sigmoid = true}, 60);
  for (const Scope& scope : kScopes)
    for (Probs probs : {Probs::scores, Probs::chosen_weights, Probs::normalised_scores}) {
      AuxLosses losses;
      losses.balance = BalanceLoss{Counts::unbiased_choices, probs, scope, Shares::own};
      losses.device = losses.communication = DeviceLoss{4, 2, scope};
      losses.importance = losses.load = true;
      moe::Run one(1);
      const RoutingLosses want = values_of(one, routing->in, routing->pass, losses),
                          coef{1, 1, 1, 1, 1, 1};
      const LossTwin<double> twin(*routing);
      EXPECT_NEAR(want.balance, twin.balance(*losses.balance), 1e-6);
      EXPECT_NEAR(want.device, twin.device(*losses.device, false), 1e-6);
      EXPECT_NEAR(want.communication, twin.device(*losses.communication, true), 1e-6);
      EXPECT_NEAR(want.importance, twin.importance(), 1e-6);
      EXPECT_NEAR(want.load, twin.load(), 1e-6);
      Gradients want_gradients(one.saved, routing->in);
      want_gradients.add(one, routing->in, routing->pass, losses, coef);
      const Tensor want_lse = one.saved.alloc(DType::f32, {routing->in.logits.rows()});
      const float want_z = z_loss(one, want_lse, routing->in.logits);
      for (int threads : {2, 3}) {
        moe::Run run(threads);
        EXPECT_EQ(std::memcmp(&want,
                              std::initializer_list<RoutingLosses>{
                                  values_of(run, routing->in, routing->pass, losses)}
                                  .begin(),
                              sizeof want),
                  0)
            << threads;
        Gradients got(run.saved, routing->in);
        got.add(run, routing->in, routing->pass, losses, coef);
        for (size_t i = 0; i < 5; ++i)
          EXPECT_TRUE(same_bits(got.all()[i], want_gradients.all()[i]))
              << threads << " threads, gradient " << i;
        const Tensor lse = run.saved.alloc(DType::f32, {routing->in.logits.rows()});
        EXPECT_EQ(z_loss(run, lse, routing->in.logits), want_z);
        EXPECT_TRUE(same_bits(lse, want_lse));
      }
    }
}

}  // namespace
}  // namespace moe::test::aux_loss_test
