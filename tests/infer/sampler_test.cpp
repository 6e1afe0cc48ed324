// The sampler on logits worked by hand: each cut alone, the penalty, the draw's distribution, its
// determinism, and what it refuses.
#include "infer/sampler.h"

#include <cmath>
#include <map>
#include <set>

#include "support/files.h"

namespace moe::test::sampler_test {
namespace {

// Nothing cut, nothing penalised.
SamplerOptions plain(float temperature = 1) {
  SamplerOptions o;
  o.temperature = temperature;
  o.top_k = 0;
  o.top_p = 1;
  o.min_p = 0;
  return o;
}

// Logits whose softmax is `p`.
std::vector<float> logits_of(const std::vector<double>& p) {
  std::vector<float> out;
  for (double x : p) out.push_back(static_cast<float>(std::log(x)));
  return out;
}

std::map<int32_t, int> counts(const SamplerOptions& options, const std::vector<float>& logits,
                              int draws) {
  Sampler sampler(options);
  std::map<int32_t, int> out;
  for (int i = 0; i < draws; ++i) ++out[sampler.next(logits)];
  return out;
}

std::set<int32_t> support(const SamplerOptions& options, const std::vector<float>& logits) {
  std::set<int32_t> ids;
  for (const auto& [id, count] : counts(options, logits, 4000)) ids.insert(id);
  return ids;
}

const std::vector<double> kP = {0.05, 0.4, 0.1, 0.25, 0.2};

TEST(Sampler, ZeroTemperatureTakesTheMostLikelyAndTheLowerIdOfEquals) {
  Sampler sampler(plain(0));
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(sampler.next(std::vector<float>{-5, -7, -5}), 0);
  EXPECT_EQ(sampler.next(std::vector<float>{-INFINITY, -INFINITY, 0}), 2);
  SamplerOptions one = plain(2);
  one.top_k = 1;
  EXPECT_EQ(support(one, {1, 3, 2, 3, 3}), (std::set<int32_t>{1}));
}

TEST(Sampler, EachCutKeepsWhatItSays) {
  SamplerOptions o = plain();
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{0, 1, 2, 3, 4}));
  o.top_k = 3;
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1, 3, 4}));
  o.top_k = 99;
  EXPECT_EQ(support(o, logits_of(kP)).size(), 5u);

  o = plain();
  o.top_p = 0.5f;  // 0.4, 0.65: the token that passes the limit still belongs
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1, 3}));
  o.top_p = 0.66f;
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1, 3, 4}));
  o.top_p = 0.0001f;
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1}));

  o = plain();
  o.min_p = 0.3f;  // of 0.4: at least 0.12
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1, 3, 4}));
  o.min_p = 0.99f;
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1}));

  o = plain();
  o.top_k = 2;  // top-p then works on 0.4 / 0.65 = 0.615 and 0.385
  o.top_p = 0.6f;
  EXPECT_EQ(support(o, logits_of(kP)), (std::set<int32_t>{1}));
}

TEST(Sampler, TopKTakesTheLowerIdOfEquals) {
  SamplerOptions o = plain();
  o.top_k = 2;
  EXPECT_EQ(support(o, {0, 1, 1, 1}), (std::set<int32_t>{1, 2}));
}

// A binomial count lies within 5 standard deviations but once in two million draws of the
// experiment.
TEST(Sampler, DrawsFollowTheProbabilities) {
  constexpr int kDraws = 40000;
  for (const float temperature : {1.0f, 0.5f, 2.0f}) {
    double sum = 0;
    for (double p : kP) sum += std::pow(p, 1 / temperature);
    auto got = counts(plain(temperature), logits_of(kP), kDraws);
    for (size_t i = 0; i < kP.size(); ++i) {
      const double p = std::pow(kP[i], 1 / temperature) / sum;
      EXPECT_NEAR(got[static_cast<int32_t>(i)], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)))
          << "temperature " << temperature << ", token " << i;
    }
  }
}

// 59999 equal tokens that together outweigh the first by far: none of them may be lost to rounding.
TEST(Sampler, EveryTokenOfALargeVocabularyCanBeDrawn) {
  constexpr int kVocab = 60000, kDraws = 400;
  std::vector<float> logits(kVocab, -4.0f);  // e^-4 * 59999 = 1099 against 1
  logits[0] = 0;
  Sampler sampler(plain());
  int upper_half = 0;
  for (int i = 0; i < kDraws; ++i) upper_half += sampler.next(logits) >= kVocab / 2;
  EXPECT_NEAR(upper_half, kDraws / 2, 5 * std::sqrt(kDraws / 4.0));
}

TEST(Sampler, TheSameSeedDrawsTheSame) {
  const auto draw = [](uint64_t seed) {
    SamplerOptions o = plain();
    o.seed = seed;
    Sampler sampler(o);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(logits_of(kP)));
    return ids;
  };
  EXPECT_EQ(draw(3), draw(3));
  EXPECT_NE(draw(3), draw(4));
}

TEST(Sampler, PenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplerOptions o = plain(0);
  o.repeat_penalty = 2;
  o.repeat_last = 2;
  Sampler sampler(o);
  const std::vector<float> logits = {3, 2, -1.5f, 1.2f};
  EXPECT_EQ(sampler.next(logits), 0);  // 3
  EXPECT_EQ(sampler.next(logits), 1);  // 0 counts 1.5
  EXPECT_EQ(sampler.next(logits), 0);  // 0: 1.5, 1: 1, 3: 1.2
  sampler.accept(3);                   // recent: 0, 3
  EXPECT_EQ(sampler.next(logits), 1);
  Sampler negative(o);
  negative.accept(1);
  EXPECT_EQ(negative.next(std::vector<float>{-1.5f, -1}), 0);  // -1 counts -2
  negative = Sampler(o);
  negative.accept(1);
  negative.accept(1);
  EXPECT_EQ(negative.next(std::vector<float>{-2.5f, -1}), 1) << "seen twice, penalised once";
}

TEST(Sampler, LetsNoEndComeBeforeThereAreEnoughTokens) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplerOptions o = plain(temperature);
    o.ends = {1, 7};
    o.min_tokens = 3;
    Sampler sampler(o);
    const std::vector<float> logits = {0, 50, 1};
    for (int i = 0; i < 3; ++i) EXPECT_NE(sampler.next(logits), 1) << i;
    EXPECT_EQ(sampler.next(logits), 1);
  }
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  for (const float bad : {NAN, INFINITY}) {
    Sampler sampler(plain());
    EXPECT_EQ(sampler.next(std::vector<float>{-INFINITY, 0}), 1);
    EXPECT_FAILS(sampler.next(std::vector<float>{0, 1, bad}), "token id 2");
  }
  Sampler sampler(plain());
  EXPECT_FAILS(sampler.next(std::vector<float>{-INFINITY, -INFINITY}), "-inf");
}

TEST(Sampler, RefusesOptionsOutsideTheirRangeByName) {
  const auto refused = [](auto change, const char* flag) {
    SamplerOptions o;
    change(o);
    try {
      Sampler sampler(o);
      ADD_FAILURE() << flag << " was let through";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage);
      EXPECT_PRED_FORMAT2(::testing::IsSubstring, flag, e.what());
    }
  };
  for (const float x : {-0.1f, NAN, INFINITY})
    refused([&](SamplerOptions& o) { o.temperature = x; }, "temperature");
  refused([](SamplerOptions& o) { o.top_k = -1; }, "top_k");
  for (const float x : {0.0f, -1.0f, 1.01f, NAN})
    refused([&](SamplerOptions& o) { o.top_p = x; }, "top_p");
  for (const float x : {-0.1f, 1.0f, NAN})
    refused([&](SamplerOptions& o) { o.min_p = x; }, "min_p");
  for (const float x : {0.0f, -1.0f, NAN, INFINITY})
    refused([&](SamplerOptions& o) { o.repeat_penalty = x; }, "repeat_penalty");
}

// Of long vocabularies sixteen places are looked at beside each other.
TEST(Sampler, TheMostLikelyIsTheFirstOfEqualsWhereverItStands) {
  for (size_t vocab = 1; vocab < 70; ++vocab)
    for (size_t at = 0; at < vocab; ++at) {
      std::vector<float> logits(vocab, -2);
      for (size_t i = at; i < vocab; i += 7) logits[i] = 3;
      EXPECT_EQ(Sampler(plain(0)).next(logits), static_cast<int32_t>(at)) << vocab;
      SamplerOptions biased = plain(0);
      biased.logit_bias = {{static_cast<int32_t>(at), -10}};
      const bool another = at + 7 < vocab;
      EXPECT_EQ(Sampler(biased).next(logits), static_cast<int32_t>(another                ? at + 7
                                                                   : at == 0 && vocab > 1 ? 1
                                                                                          : 0));
      std::vector<uint64_t> allowed(2, ~uint64_t{0});
      EXPECT_EQ(Sampler(plain(0)).next(logits, allowed), static_cast<int32_t>(at));
      allowed[at / 64] &= ~(uint64_t{1} << at % 64);
      if (another) EXPECT_EQ(Sampler(plain(0)).next(logits, allowed), static_cast<int32_t>(at + 7));
    }
  // vocabularies that are gone through in pieces
  for (const size_t vocab : {1024, 1025, 5000})
    for (size_t at = 0; at < vocab; at += 341) {
      std::vector<float> logits(vocab, -2);
      for (size_t i = at; i < vocab; i += 500) logits[i] = 3;
      EXPECT_EQ(Sampler(plain(0)).next(logits), static_cast<int32_t>(at)) << vocab;
    }
}

}  // namespace
}  // namespace moe::test::sampler_test
