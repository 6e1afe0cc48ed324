// Rotary frequencies against transformers' (tools/golden/rope.py), which works them out in f32.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"

namespace moe {
namespace {

using Kind = RopeScaling::Kind;

RopeScaling scaling_of(const Json& p, double factor) {
  RopeScaling s;
  const std::string kind = p.at("rope_type");
  s.kind = kind == "linear"   ? Kind::linear
           : kind == "llama3" ? Kind::llama3
           : kind == "yarn"   ? Kind::yarn
                              : Kind::none;
  s.factor = p.value("factor", 1.0f);
  s.original_context = p.value("original_max_position_embeddings", int64_t{0});
  s.low_freq_factor = p.value("low_freq_factor", s.low_freq_factor);
  s.high_freq_factor = p.value("high_freq_factor", s.high_freq_factor);
  s.beta_fast = p.value("beta_fast", s.beta_fast);
  s.beta_slow = p.value("beta_slow", s.beta_slow);
  s.truncate = p.value("truncate", s.truncate);
  s.attention_factor = static_cast<float>(factor);
  return s;
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  const Json file = read_json(MOE_TEST_DATA "/golden/rope.json");
  EXPECT_GE(file.at("cases").size(), 11u);
  for (const Json& c : file.at("cases")) {
    const RopeScaling scaling = scaling_of(c.at("parameters"), c.at("factor"));
    validate(scaling);
    const ops::RopeFrequencies table = rope_frequencies(c.at("head_width"), c.at("theta"), scaling);
    const auto want = c.at("frequencies").get<std::vector<double>>();
    ASSERT_EQ(table.frequency.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(table.frequency[i], want[i], 2e-6 * want[i]) << c.at("parameters") << " at " << i;
    EXPECT_FLOAT_EQ(static_cast<float>(table.factor),
                    scaling.kind == Kind::yarn ? c.at("factor").get<float>() : 1.0f);
  }
}

TEST(Rope, AShareOfPairsTurnsAndTheOthersStand) {
  const ops::RopeFrequencies plain = rope_frequencies(32, 1e6f, {}),
                             part = rope_frequencies(
                                 32, 1e6f,
                                 {.kind = Kind::proportional, .factor = 2, .share = 0.3f});
  for (size_t c = 0; c < 16; ++c)
    EXPECT_EQ(part.frequency[c], c < 4 ? plain.frequency[c] / 2 : 0) << c;  // 0.3 * 32 / 2 = 4.8
  EXPECT_EQ(part.factor, 1);
  for (const float share : {0.0f, -1.0f, 1.5f})
    EXPECT_THROW(validate({.kind = Kind::proportional, .share = share}), Error);
}

// The plain case is the formula itself, whose bits every model so far depends on.
TEST(Rope, PlainFrequenciesArePowersOfTheta) {
  for (int64_t width : {2, 6, 64, 128}) {
    const ops::RopeFrequencies table = rope_frequencies(width, 12345.678f, {});
    EXPECT_EQ(table.factor, 1);
    for (int64_t c = 0; c < width / 2; ++c)
      EXPECT_EQ(table.frequency[static_cast<size_t>(c)],
                std::pow(static_cast<double>(12345.678f),
                         -2.0 * static_cast<double>(c) / static_cast<double>(width)));
  }
}

TEST(Rope, ScalingsWithoutMeaningAreRefused) {
  const RopeScaling yarn{.kind = Kind::yarn, .factor = 4, .original_context = 128};
  const RopeScaling llama3{.kind = Kind::llama3, .factor = 4, .original_context = 128};
  EXPECT_NO_THROW(validate(yarn));
  EXPECT_NO_THROW(validate(llama3));
  EXPECT_NO_THROW(validate(RopeScaling{.factor = -1})) << "no scaling";
  const auto refused = [](RopeScaling s, auto&& spoil) {
    spoil(s);
    EXPECT_THROW(validate(s), Error);
  };
  for (float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                    std::numeric_limits<float>::infinity()}) {
    refused({.kind = Kind::linear}, [&](RopeScaling& s) { s.factor = bad; });
    refused(llama3, [&](RopeScaling& s) { s.high_freq_factor = bad; });
    refused(yarn, [&](RopeScaling& s) { s.attention_factor = bad; });
    refused(yarn, [&](RopeScaling& s) { s.beta_fast = bad; });
  }
  refused(yarn, [](RopeScaling& s) { s.original_context = 0; });
  refused(llama3, [](RopeScaling& s) { s.original_context = 0; });
  refused(llama3, [](RopeScaling& s) { s.low_freq_factor = 4; });
  refused(yarn, [](RopeScaling& s) { s.beta_slow = 33; });
}

}  // namespace
}  // namespace moe
