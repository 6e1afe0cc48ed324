// Two models on one text, against the definitions worked out in double from the logits of a
// session.
#include "evaluate/compare.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "evaluate/score.h"
#include "infer/session.h"
#include "support/files.h"
#include "support/shouting.h"
#include "support/tiny_model.h"
#include "text/tokenizer.h"

namespace moe::test::compare_test {
namespace {

constexpr int64_t kWindow = 12;

ModelConfig sharp(bool moe = true) {
  ModelConfig config = plain_config();
  config.init.std = 0.3f;  // predictions far from even
  if (!moe) config.routing = default_options(find_recipe("dense"), 1, 1, 0);
  return config;
}

std::vector<int32_t> drawn(int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i)
    ids.push_back(
        static_cast<int32_t>(uniform_index(RngKey::from_seed(5), static_cast<uint64_t>(i), 256)));
  return ids;
}

// A copy whose weights are moved a little, as rounding would.
std::unique_ptr<Model> nudged(const Model& model, float by) {
  auto out = std::make_unique<Model>(model.config());
  const RngKey key = RngKey::from_seed(9);
  uint64_t at = 0;
  for (size_t p = 0; p < model.params().size(); ++p) {
    Param& to = *out->params()[p];
    for (int64_t i = 0; i < to.value.numel(); ++i) {
      const double u = static_cast<double>(uniform_index(key, at++, 1000)) / 1000 - 0.5;
      to.value.as<float>()[i] =
          model.params()[p]->value.as<float>()[i] * (1 + by * static_cast<float>(u));
    }
    to.touched();
  }
  return out;
}

struct Fixture {
  std::unique_ptr<Model> before, after;
  moe::Run run{2}, other{1};
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  std::vector<int32_t> ids = drawn(5 * kWindow + 3);
  CompareOptions options{.window = kWindow};

  Fixture() : before(fresh(sharp(), 7)), after(nudged(*before, 0.5f)) {}
  Comparison compare() {
    return moe::compare({*before, run}, {*after, other}, *tokenizer, ids, options);
  }
};

// Log-probabilities [window - 1][V] of a window, token by token.
std::vector<std::vector<double>> log_probabilities(Model& model, std::span<const int32_t> ids) {
  moe::Run run(1);
  Session session(model, run, std::ssize(ids));
  std::vector<std::vector<double>> out;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::span<const float> logits = session.prefill(ids.subspan(i, 1));
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    out.emplace_back();
    for (const float x : logits) out.back().push_back(double{x} - std::log(sum));
  }
  return out;
}

TEST(Compare, EachSideIsWhatScoreSays) {
  Fixture f;
  const Comparison c = f.compare();
  const Score before = score(*f.before, f.run, *f.tokenizer, f.ids, {.window = kWindow}),
              after = score(*f.after, f.run, *f.tokenizer, f.ids, {.window = kWindow});
  EXPECT_EQ(c.windows, 5);
  EXPECT_EQ(c.tokens, before.tokens);
  for (const auto& [got, want] : {std::pair(c.before, before), std::pair(c.after, after)}) {
    EXPECT_DOUBLE_EQ(got.nats_per_token, want.nats_per_token);
    EXPECT_DOUBLE_EQ(got.perplexity, want.perplexity);
    EXPECT_DOUBLE_EQ(got.bits_per_byte, want.bits_per_byte);
  }
  EXPECT_NE(c.before.nats_per_token, c.after.nats_per_token);
}

TEST(Compare, FiguresAreTheirDefinitions) {
  Fixture f;
  const Comparison c = f.compare();
  std::vector<double> kl, changes;
  double squares = 0, same = 0, before_right = 0, after_right = 0;
  for (int64_t w = 0; w < 5; ++w) {
    const auto text =
        std::span<const int32_t>(f.ids).subspan(static_cast<size_t>(w * kWindow), kWindow);
    const auto p = log_probabilities(*f.before, text), q = log_probabilities(*f.after, text);
    double change = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const auto target = static_cast<size_t>(text[i + 1]);
      double sum = 0;
      for (size_t v = 0; v < p[i].size(); ++v) sum += std::exp(p[i][v]) * (p[i][v] - q[i][v]);
      kl.push_back(sum);
      change += p[i][target] - q[i][target];
      squares += std::pow(std::exp(q[i][target]) - std::exp(p[i][target]), 2);
      const auto top =
                     static_cast<size_t>(std::max_element(p[i].begin(), p[i].end()) - p[i].begin()),
                 other =
                     static_cast<size_t>(std::max_element(q[i].begin(), q[i].end()) - q[i].begin());
      same += top == other;
      before_right += top == target;
      after_right += other == target;
    }
    changes.push_back(change / static_cast<double>(p.size()));
  }
  const auto n = static_cast<double>(kl.size());
  std::sort(kl.begin(), kl.end());
  double mean = 0, spread = 0, change = 0;
  for (const double x : kl) mean += x / n;
  for (const double x : changes) change += x / 5;
  for (const double x : changes) spread += (x - change) * (x - change);
  EXPECT_GT(mean, 0.01);
  EXPECT_NEAR(c.kl, mean, 1e-5);
  EXPECT_NEAR(c.kl_median, kl[kl.size() / 2], 1e-5);
  EXPECT_NEAR(c.kl_high, kl[kl.size() * 99 / 100], 1e-5);
  EXPECT_NEAR(c.kl_most, kl.back(), 1e-5);
  EXPECT_DOUBLE_EQ(c.same_top, same / n);
  EXPECT_LT(c.same_top, 1);
  EXPECT_DOUBLE_EQ(c.before.right, before_right / n);
  EXPECT_DOUBLE_EQ(c.after.right, after_right / n);
  EXPECT_NEAR(c.rms_change, std::sqrt(squares / n), 1e-6);
  EXPECT_NEAR(c.after.nats_per_token - c.before.nats_per_token, change, 1e-5);
  ASSERT_TRUE(c.loss_error);
  EXPECT_NEAR(*c.loss_error, std::sqrt(spread / 4 / 5), 1e-6);
}

TEST(Compare, AModelIsNoDistanceFromItself) {
  Fixture f;
  const Comparison c =
      compare({*f.before, f.run}, {*f.before, f.run}, *f.tokenizer, f.ids, f.options);
  EXPECT_EQ(c.kl, 0);
  EXPECT_EQ(c.kl_most, 0);
  EXPECT_EQ(c.same_top, 1);
  EXPECT_EQ(c.rms_change, 0);
  EXPECT_EQ(c.loss_error, 0);
  EXPECT_EQ(c.drift, std::vector<double>(2, 0));
  EXPECT_EQ(c.same_choices, std::vector<double>(2, 1));
}

// One that predicts NaN, as a model whose weights overflowed does.
TEST(Compare, NoNumbersAreNoNearness) {
  Fixture f;
  for (Param* p : f.after->params()) {
    if (p->kind != ParamKind::final_norm) continue;
    std::fill_n(p->value.as<float>(), p->value.numel(), std::numeric_limits<float>::quiet_NaN());
    p->touched();
  }
  const Comparison c = f.compare();
  EXPECT_TRUE(std::isfinite(c.before.nats_per_token));
  for (const double x : {c.after.nats_per_token, c.kl, c.kl_median, c.kl_high, c.kl_most})
    EXPECT_TRUE(std::isnan(x)) << x;
}

// After each layer the state is what a pass tells of it; the mean over all tokens of |h' - h| /
// |h|.
TEST(Compare, DriftIsTheMeanRelativeDistanceOfStates) {
  Fixture f;
  f.options.windows = 1;
  const auto states = [&](Model& model) {
    moe::Run run(1);
    std::vector<std::vector<float>> out;
    const std::function<void(int64_t, const Tensor&)> look = [&](int64_t, const Tensor& h) {
      out.emplace_back(h.as<float>(), h.as<float>() + h.numel());
    };
    std::vector<int32_t> positions(kWindow);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int64_t> bounds = {0, kWindow};
    const RoutingSpec spec = eval_spec(model.config().routing);
    ModelSaved saved;
    model.forward(run,
                  {.batch = {std::span(f.ids).first(kWindow), positions, bounds},
                   .routing = &spec,
                   .on_block = &look},
                  saved);
    return out;
  };
  const auto was = states(*f.before), is = states(*f.after);
  const Comparison c = f.compare();
  EXPECT_FALSE(c.loss_error) << "one window has no spread";
  ASSERT_EQ(c.drift.size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    double mean = 0;
    for (size_t n = 0; n < kWindow; ++n) {
      double moved = 0, length = 0;
      for (size_t d = n * 32; d < (n + 1) * 32; ++d)
        moved += std::pow(double{is[l][d]} - was[l][d], 2),
            length += std::pow(double{was[l][d]}, 2);
      mean += std::sqrt(moved / length) / kWindow;
    }
    EXPECT_GT(mean, 0.01);
    EXPECT_NEAR(c.drift[l], mean, 1e-6);
  }
}

TEST(Compare, CountsChoicesAndThoseThatStay) {
  Fixture f;
  const Comparison c = f.compare();
  for (const auto* load : {&c.before_load, &c.after_load}) {
    ASSERT_EQ(load->size(), 2u);
    for (const LayerChoices& l : *load)
      EXPECT_EQ(std::accumulate(l.counts.begin(), l.counts.end(), int64_t{0}), 5 * kWindow * 2);
  }
  std::vector<int64_t> counts(4);
  score(
      *f.after, f.run, *f.tokenizer, f.ids,
      {.window = kWindow, .on_routing = [&](int64_t, int64_t layer, const MoeLayer::Saved& saved) {
         if (layer == 1)
           for (size_t e = 0; e < 4; ++e)
             counts[e] += saved.plan.offsets[e + 1] - saved.plan.offsets[e];  // dropless
       }});
  EXPECT_EQ(c.after_load[1].layer, 1);
  EXPECT_EQ(c.after_load[1].counts, counts);
  ASSERT_EQ(c.same_choices.size(), 2u);
  for (const double share : c.same_choices) {
    EXPECT_GT(share, 0.5) << "two of four at random";
    EXPECT_LT(share, 1);
  }
}

// [MoE layers] the pairs of a token and an expert that were sent, over all windows.
std::vector<std::set<std::pair<int64_t, int32_t>>> sent_pairs(Model& model, Fixture& f) {
  std::vector<std::set<std::pair<int64_t, int32_t>>> sent(2);
  const auto note = [&](int64_t window, int64_t layer, const MoeLayer::Saved& saved) {
    const Tensor& choice = saved.router.choice;
    for (const int32_t pair : saved.plan.pair)
      sent[static_cast<size_t>(layer)].emplace(window * kWindow + pair / choice.cols(),
                                               choice.as<int32_t>()[pair]);
  };
  score(model, f.run, *f.tokenizer, f.ids, {.window = kWindow, .on_routing = note});
  return sent;
}

// A second expert that the recipe's threshold holds back is no choice, neither counted nor kept.
TEST(Compare, ASecondThatIsHeldBackIsNoChoice) {
  Fixture f;
  ModelConfig config = sharp();
  config.routing = default_options(find_recipe("st-moe"), 4, 2, 2);
  f.before = fresh(config);
  f.after = nudged(*f.before, 0.5f);
  const Comparison c = f.compare();
  const auto was = sent_pairs(*f.before, f), is = sent_pairs(*f.after, f);
  ASSERT_EQ(c.same_choices.size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    const std::vector<int64_t>& counts = c.before_load[l].counts;
    EXPECT_LT(was[l].size(), size_t{5 * kWindow * 2});
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), std::ssize(was[l]));
    const auto both = std::count_if(was[l].begin(), was[l].end(),
                                    [&](const auto& p) { return is[l].contains(p); });
    EXPECT_DOUBLE_EQ(c.same_choices[l],
                     static_cast<double>(both) / static_cast<double>(was[l].size()));
  }
}

// With one expert instead of two, those that it takes are among the two: half of the choices stay,
// in the first layer, whose input is the same.
TEST(Compare, FewerExpertsAreHalfTheChoices) {
  Fixture f;
  const Comparison c =
      compare({*f.before, f.run}, {*f.before, f.other, 1}, *f.tokenizer, f.ids, f.options);
  EXPECT_EQ(c.same_choices[0], 0.5);
  EXPECT_GT(c.kl, 0);
}

TEST(Compare, ModelsOfAnotherShapeHaveNoDriftAndNoSharedChoices) {
  Fixture f;
  ModelConfig config = sharp(false);
  f.before = fresh(config);
  Comparison c = f.compare();
  EXPECT_EQ(c.drift.size(), 2u) << "a dense model and one that routes have the same states";
  EXPECT_TRUE(c.same_choices.empty());
  EXPECT_TRUE(c.before_load.empty());
  EXPECT_EQ(c.after_load.size(), 2u);
  config.layers = 3;
  f.before = fresh(config);
  c = f.compare();
  EXPECT_TRUE(c.drift.empty());
  EXPECT_GT(c.kl, 0);
}

TEST(Compare, SaysWhichVocabulariesDoNotFit) {
  Fixture f;
  EXPECT_NO_THROW(check_same_vocabulary(*f.before, *f.tokenizer, *f.after, *f.tokenizer));
  ModelConfig config = sharp();
  config.vocab = 300;
  f.after = fresh(config);
  EXPECT_FAILS(check_same_vocabulary(*f.before, *f.tokenizer, *f.after, *f.tokenizer),
               "256 tokens, the other of 300");
  EXPECT_FAILS(f.compare(), "256 and 300");
  EXPECT_FAILS(check_same_vocabulary(*f.before, *f.tokenizer, *f.before, Shouting()),
               "token 97 is not the same text");
}

TEST(Compare, RefusesATextShorterThanAWindow) {
  Fixture f;
  f.ids.resize(kWindow - 1);
  EXPECT_FAILS(f.compare(), "11 tokens");
}

}  // namespace
}  // namespace moe::test::compare_test
