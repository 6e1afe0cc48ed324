// Rotary frequencies against transformers' (tools/golden/rope.py), which works them out in f32.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/error.h"
#include "core/json.h"

namespace moe::rope_test {
namespace {

using Kind = RopeScaling::Kind;

RopeScaling scaling_of(const Json& p, double factor) {
  RopeScaling s;
  const std::string kind = p.at("rope_type");
  s.kind = kind == "linear"     ? Kind::linear
           : kind == "llama3"   ? Kind::llama3
           : kind == "yarn"     ? Kind::yarn
           : kind == "longrope" ? Kind::longrope
                                : Kind::none;
  s.short_factors = p.value("short_factor", std::vector<float>{});
  s.long_factors = p.value("long_factor", std::vector<float>{});
  s.factor = p.value("factor", 1.0f);
  s.original_context = p.value("original_max_position_embeddings", int64_t{0});
  s.low_freq_factor = p.value("low_freq_factor", s.low_freq_factor);
  s.high_freq_factor = p.value("high_freq_factor", s.high_freq_factor);
  s.beta_fast = p.value("beta_fast", s.beta_fast);
  s.beta_slow = p.value("beta_slow", s.beta_slow);
  s.truncate = p.value("truncate", s.truncate);
  s.attention_factor = s.long_attention_factor = static_cast<float>(factor);
  return s;
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  const Json file = read_json(MOE_TEST_DATA "/golden/rope.json");
  EXPECT_GE(file.at("cases").size(), 12u);
  for (const Json& c : file.at("cases")) {
    const RopeScaling scaling = scaling_of(c.at("parameters"), c.at("factor"));
    validate(scaling);
    const ops::RopeFrequencies table = rope_frequencies(c.at("head_width"), c.at("theta"), scaling);
    const auto expect_frequencies = [&](const ops::RopeFrequencies& got, const char* key) {
      const auto want = c.at(key).get<std::vector<double>>();
      ASSERT_EQ(got.frequency.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got.frequency[i], want[i], 2e-6 * want[i]) << c.at("parameters") << " at " << i;
    };
    expect_frequencies(table, "frequencies");
    const bool scores_grow = scaling.kind == Kind::yarn || scaling.kind == Kind::longrope;
    EXPECT_FLOAT_EQ(static_cast<float>(table.factor),
                    scores_grow ? c.at("factor").get<float>() : 1.0f);
    if (scaling.kind == Kind::longrope)
      expect_frequencies(rope_frequencies(c.at("head_width"), c.at("theta"), scaling, true),
                         "long_frequencies");
  }
}

// Llama 4's: equal factors leave nothing to blend.
TEST(Rope, Llama3MayJump) {
  RopeScaling jump{.kind = Kind::llama3, .factor = 16, .original_context = 64};
  jump.high_freq_factor = jump.low_freq_factor = 1;
  EXPECT_NO_THROW(validate(jump));
  const ops::RopeFrequencies plain = rope_frequencies(32, 1e4f, {}),
                             got = rope_frequencies(32, 1e4f, jump);
  int stretched = 0;
  for (size_t c = 0; c < 16; ++c) {
    const bool is_long = 2 * std::numbers::pi / plain.frequency[c] > 64;
    EXPECT_EQ(got.frequency[c], is_long ? plain.frequency[c] / 16 : plain.frequency[c]) << c;
    stretched += is_long ? 1 : 0;
  }
  EXPECT_EQ(stretched, 11);  // 2 pi 10000^(c / 16) is 63 at c = 4 and 112 at 5
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

RopeScaling longrope() {
  return {.kind = Kind::longrope,
          .original_context = 64,
          .attention_factor = 1.25f,
          .long_attention_factor = 1.5f,
          .short_factors = {1, 1.5f},
          .long_factors = {2, 5}};
}

TEST(Rope, LongTextsStretchFromTheirFirstTokenOn) {
  EXPECT_FALSE(stretches(longrope(), 64));
  EXPECT_TRUE(stretches(longrope(), 65));
  EXPECT_FALSE(stretches({.kind = Kind::yarn, .original_context = 64}, 65));
  const ops::RopeFrequencies usual = rope_frequencies(4, 10000, longrope()),
                             longer = rope_frequencies(4, 10000, longrope(), true);
  EXPECT_EQ(usual.factor, 1.25);
  EXPECT_EQ(longer.factor, 1.5);
  moe::Run run(1);
  const std::vector<int32_t> ids(7), positions = {0, 1, 2, 0, 1, 5, 6};
  const std::vector<int64_t> bounds = {0, 3, 5, 7};
  const Batch batch{ids, positions, bounds};
  const ops::CosSinTable mixed =
      cos_sin_of(run, run.saved, batch, usual, longer, {false, true, false});
  const ops::CosSinTable tables[] = {cos_sin_of(run, run.saved, batch, usual, longer, {0, 0, 0}),
                                     cos_sin_of(run, run.saved, batch, usual, longer, {1, 1, 1})};
  for (int64_t n = 0; n < 7; ++n) {
    const ops::CosSinTable& want = tables[n == 3 || n == 4];
    for (int64_t c = 0; c < 4; ++c)
      EXPECT_EQ(mixed.table.row<float>(mixed.slot.as<int32_t>()[n])[c],
                want.table.row<float>(want.slot.as<int32_t>()[n])[c])
          << n;
  }
}

TEST(Rope, QueriesGrowAtEveryContextBehindThem) {
  moe::Run run(1);
  const ops::RopeFrequencies usual = rope_frequencies(4, 10000, {});
  const std::vector<int32_t> ids(6), positions = {9, 10, 19, 20, 35, 9};
  const std::vector<int64_t> bounds = {0, 6};
  const Batch batch{ids, positions, bounds};
  const ops::CosSinTable plain = ops::cos_sin_table(run, run.saved, positions, usual),
                         grown = grown_cos_sin(run, run.saved, batch, usual, {0.5f, 10});
  const double steps[] = {0, 1, 1, 2, 3, 0};
  for (int64_t n = 0; n < 6; ++n)
    for (int64_t c = 0; c < 4; ++c) {
      const float was = plain.table.row<float>(plain.slot.as<int32_t>()[n])[c];
      EXPECT_FLOAT_EQ(grown.table.row<float>(grown.slot.as<int32_t>()[n])[c],
                      was * static_cast<float>(1 + 0.5 * std::log(1 + steps[n])))
          << n;
    }
}

// Of a table that turns nothing the factors alone are left.
TEST(Rope, WhatStandsStillGrowsAsAWhole) {
  moe::Run run(1);
  const std::vector<int32_t> ids(3), positions = {9, 10, 35};
  const std::vector<int64_t> bounds = {0, 3};
  const ops::CosSinTable grown =
      grown_cos_sin(run, run.saved, {ids, positions, bounds}, still_frequencies(6), {0.5f, 10});
  const double steps[] = {0, 1, 3};
  for (int64_t n = 0; n < 3; ++n) {
    const float* row = grown.table.row<float>(grown.slot.as<int32_t>()[n]);
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_FLOAT_EQ(row[c], static_cast<float>(1 + 0.5 * std::log(1 + steps[n]))) << n;
      EXPECT_EQ(row[3 + c], 0) << n;
    }
  }
}

// Where queries of layers in which nothing turns grow alone, positions are counted from 1.
TEST(Rope, WhatGrowsWhereNothingTurnsCountsFromOne) {
  moe::Run run(1);
  const std::vector<int32_t> ids(3), positions = {8, 9, 34};
  const std::vector<int64_t> bounds = {0, 3};
  const QueryGrowth growth{.beta = 0.5f, .context = 10, .where_still = true};
  const ops::CosSinTable grown =
      grown_cos_sin(run, run.saved, {ids, positions, bounds}, still_frequencies(6), growth);
  const double steps[] = {0, 1, 3};
  for (int64_t n = 0; n < 3; ++n)
    EXPECT_FLOAT_EQ(grown.table.row<float>(grown.slot.as<int32_t>()[n])[0],
                    static_cast<float>(1 + 0.5 * std::log(1 + steps[n])))
        << n;
  ModelConfig c;
  c.nope_layers = {0};
  c.query_growth = growth;
  EXPECT_NO_THROW(validate(c));
  EXPECT_TRUE(c.attention(0).queries_grow);
  EXPECT_FALSE(c.attention(1).queries_grow);
  c.positions = Positions::learned;
  EXPECT_THROW(validate(c), Error);
}

TEST(Rope, QueriesThatCannotGrowAreRefused) {
  ModelConfig c;
  c.query_growth = {0.1f, 16};
  EXPECT_NO_THROW(validate(c));
  const auto refused = [&](auto change) {
    ModelConfig other = c;
    change(other);
    EXPECT_THROW(validate(other), Error);
  };
  refused([](ModelConfig& m) { m.query_growth.context = 0; });
  refused([](ModelConfig& m) { m.query_growth.beta = 0; });
  refused([](ModelConfig& m) { m.rotary_width = 2; });
  refused([](ModelConfig& m) { m.nope_layers = {0}; });
  refused([](ModelConfig& m) { m.positions = Positions::learned; });
  const auto latents = [](ModelConfig& m) {
    m.latent = {.width = 8, .query_width = 8, .value_width = 4};
    m.head_width = 12;
    m.rotary_width = 4;
  };
  latents(c);
  EXPECT_NO_THROW(validate(c));
  refused([](ModelConfig& m) { m.head_width = 13; });
  refused([](ModelConfig& m) { m.nope_layers = {0}; });
  refused([](ModelConfig& m) { m.sparse = {.top = 4, .heads = 2, .width = 4}; });
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

// Within the context, where alone they are computed here.
TEST(Rope, DynamicFrequenciesArePlain) {
  const RopeScaling dynamic{.kind = Kind::dynamic, .factor = 6};
  const ops::RopeFrequencies table = rope_frequencies(64, 500, dynamic),
                             plain = rope_frequencies(64, 500, {});
  EXPECT_EQ(table.frequency, plain.frequency);
  EXPECT_EQ(table.factor, 1);
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
    refused({.kind = Kind::dynamic}, [&](RopeScaling& s) { s.factor = bad; });
    refused(llama3, [&](RopeScaling& s) { s.high_freq_factor = bad; });
    refused(yarn, [&](RopeScaling& s) { s.attention_factor = bad; });
    refused(yarn, [&](RopeScaling& s) { s.beta_fast = bad; });
  }
  refused(yarn, [](RopeScaling& s) { s.original_context = 0; });
  refused(llama3, [](RopeScaling& s) { s.original_context = 0; });
  refused(llama3, [](RopeScaling& s) { s.low_freq_factor = 4.5f; });
  refused(llama3, [](RopeScaling& s) { s.low_freq_factor = 0; });
  refused(yarn, [](RopeScaling& s) { s.beta_slow = 33; });
  EXPECT_NO_THROW(validate(longrope()));
  refused(longrope(), [](RopeScaling& s) { s.long_factors.pop_back(); });
  refused(longrope(), [](RopeScaling& s) { s.short_factors[1] = 0; });
  refused(longrope(), [](RopeScaling& s) { s.original_context = 0; });
  refused(longrope(), [](RopeScaling& s) { s.long_attention_factor = -1; });
  refused(yarn, [](RopeScaling& s) { s.short_factors = {1}; });
}

}  // namespace
}  // namespace moe::rope_test
