// The block formats against the gguf package's bytes and numbers (tools/golden/quant.py), the K
// formats against the error of ggml's own quantisers, and what hostile or extreme blocks do.
#include "tensor/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/rng.h"

namespace moe {
namespace {

constexpr DType kAll[] = {DType::f32,  DType::bf16,  DType::f16,   DType::q8_0, DType::q4_0,
                          DType::q4_1, DType::q5_0,  DType::q5_1,  DType::q4_k, DType::q5_k,
                          DType::q6_k, DType::mxfp4, DType::iq4_nl};
constexpr DType kOnlyRead[] = {DType::iq4_xs, DType::q3_k, DType::q2_k};

std::vector<uint8_t> from_hex(const std::string& text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<uint8_t> out(text.size() / 2);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<uint8_t>(digit(text[2 * i]) * 16 + digit(text[2 * i + 1]));
  return out;
}
std::vector<float> floats(const std::string& text) {
  const std::vector<uint8_t> bytes = from_hex(text);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
std::vector<uint8_t> quantised(const std::vector<float>& x, DType to) {
  std::vector<uint8_t> out(static_cast<size_t>(bytes_of(to, static_cast<int64_t>(x.size()))));
  quantise(out.data(), x.data(), to, static_cast<int64_t>(x.size()));
  return out;
}
std::vector<float> dequantised(const std::vector<uint8_t>& bytes, DType from) {
  const BlockFormat format = block_of(from);
  std::vector<float> out(bytes.size() / static_cast<size_t>(format.bytes) *
                         static_cast<size_t>(format.elements));
  dequantise(out.data(), bytes.data(), from, static_cast<int64_t>(out.size()));
  return out;
}
std::vector<float> round_trip(const std::vector<float>& x, DType through) {
  return dequantised(quantised(x, through), through);
}

double rms(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

std::vector<float> drawn(int64_t n, uint64_t seed, float scale = 1) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * normal(RngKey::from_seed(seed), i);
  return x;
}

const Json& golden() {
  static const Json file = read_json(MOE_TEST_DATA "/golden/quant.json");
  return file;
}
std::vector<float> golden_row(const std::string& name) {
  for (const Json& row : golden().at("rows"))
    if (row.at("name") == name) return floats(row.at("x"));
  ADD_FAILURE() << "no row " << name;
  return {};
}

TEST(Quant, MakesTheBytesOfTheReference) {
  size_t count = 0;
  for (const Json& entry : golden().at("quantised")) {
    const DType dtype = dtype_named(entry.at("dtype").get<std::string>()).value();
    EXPECT_EQ(quantised(golden_row(entry.at("row")), dtype), from_hex(entry.at("bytes")))
        << entry.at("dtype") << " of row " << entry.at("row");
    ++count;
  }
  EXPECT_EQ(count, 8 * golden().at("rows").size());
}

TEST(Quant, ReadsTheNumbersOfTheReference) {
  for (const Json& entry : golden().at("blocks")) {
    const std::vector<float> got = dequantised(
        from_hex(entry.at("bytes")), dtype_named(entry.at("dtype").get<std::string>()).value());
    const std::vector<float> want = floats(entry.at("x"));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
          << entry.at("dtype") << " at " << i;
  }
  EXPECT_EQ(golden().at("blocks").size(), 15u);
}

// Errors of quantize_row_q4_K_ref and quantize_row_q6_K_ref of libggml-base (llama-cpp-python
// 0.3.36) on the same rows, by gguf's dequantize.
TEST(Quant, TheKFormatsAreAsGoodAsTheReference) {
  struct Case {
    const char* row;
    double q4_k, q6_k;
  };
  const Case cases[] = {{"normal", 0.0769343, 0.0195021},    {"weights", 0.0015086, 0.000346644},
                        {"outlier", 0.0275361, 0.0207562},   {"negative", 0.0436379, 0.0182638},
                        {"offset", 0.0870836, 0.0399444},    {"ties", 0.0166388, 0.00292436},
                        {"some zero", 0.0593753, 0.0143054}, {"large", 1889.55, 479.132},
                        {"heavy", 1.18829, 0.398066}};
  // Where several scales fit alike, one row may come out a little better or worse; all together may
  // not.
  double q4_k = 0, q6_k = 0;
  for (const Case& c : cases) {
    const std::vector<float> x = golden_row(c.row);
    const double four = rms(x, round_trip(x, DType::q4_k)) / c.q4_k,
                 six = rms(x, round_trip(x, DType::q6_k)) / c.q6_k;
    EXPECT_LE(four, 1.01) << c.row;
    EXPECT_LE(six, 1.01) << c.row;
    q4_k += four / std::size(cases);
    q6_k += six / std::size(cases);
  }
  EXPECT_LE(q4_k, 1.001);
  EXPECT_LE(q6_k, 1.001);
}

// A fifth bit halves the steps: so it does the error, where what is left over is not the scales'
// own six bits.
TEST(Quant, AFifthBitHalvesTheErrorOfTheFourth) {
  for (const char* row :
       {"normal", "weights", "negative", "offset", "ties", "some zero", "large"}) {
    const std::vector<float> x = golden_row(row);
    const double ratio = rms(x, round_trip(x, DType::q5_k)) / rms(x, round_trip(x, DType::q4_k));
    EXPECT_GT(ratio, 0.35) << row;
    EXPECT_LT(ratio, 0.62) << row;
  }
}

// Of normal numbers: half a step of each format, and the smaller the more bits.
TEST(Quant, ErrorsAreThoseOfTheFormats) {
  const std::vector<float> x = drawn(64 * 256, 5);
  const std::map<DType, std::pair<double, double>> bounds = {
      {DType::f32, {0, 0}},          {DType::f16, {1e-5, 5e-4}},   {DType::bf16, {1e-4, 4e-3}},
      {DType::q8_0, {4e-3, 7e-3}},   {DType::q4_0, {0.08, 0.1}},   {DType::q4_1, {0.07, 0.09}},
      {DType::q5_0, {0.035, 0.055}}, {DType::q5_1, {0.03, 0.045}}, {DType::q4_k, {0.05, 0.08}},
      {DType::q5_k, {0.025, 0.04}},  {DType::q6_k, {0.01, 0.02}},  {DType::mxfp4, {0.1, 0.13}},
      {DType::iq4_nl, {0.07, 0.08}}};
  for (const auto& [dtype, bound] : bounds) {
    const double error = rms(x, round_trip(x, dtype));
    EXPECT_GE(error, bound.first) << name_of(dtype);
    EXPECT_LE(error, bound.second) << name_of(dtype);
  }
}

// Numbers that a format can hold come back as they were, and quantising what was dequantised
// changes nothing for the formats whose scale is the largest number.
TEST(Quant, WhatFitsIsKept) {
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 0.25f * static_cast<float>(static_cast<int>(i % 16) - 8);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1})
    EXPECT_EQ(round_trip(x, dtype), x) << name_of(dtype);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 0.5f * static_cast<float>(static_cast<int>(i % 32) - 16);
  for (DType dtype : {DType::q5_0, DType::q5_1})
    EXPECT_EQ(round_trip(x, dtype), x) << name_of(dtype);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 0.125f * static_cast<float>(static_cast<int>(i % 32 * 8) - 121);
  for (size_t i = 0; i < x.size(); i += 32) x[i] = -0.125f * 127;
  EXPECT_EQ(round_trip(x, DType::q8_0), x);
}

TEST(Quant, ZerosStayZero) {
  const std::vector<float> zeros(256, 0.0f);
  for (DType dtype : kAll) {
    for (float y : round_trip(zeros, dtype)) ASSERT_EQ(y, 0.0f) << name_of(dtype);
  }
}

// A scale too small for a half: the block is zero, not garbage. Offsets stay as far as a half holds
// them. MXFP4's scales are no halves.
TEST(Quant, VanishingScalesGiveZeros) {
  for (float scale : {1e-12f, 1e-30f, 1e-38f, 1e-41f, 1e-45f}) {
    for (DType dtype : kAll) {
      if (!is_quantised(dtype) || dtype == DType::mxfp4) continue;
      for (float y : round_trip(drawn(256, 3, scale), dtype))
        ASSERT_EQ(y, 0.0f) << name_of(dtype) << " at " << scale;
    }
  }
}

// One number a thousand times the others: it survives within its step, and the other groups of a K
// block are not harmed by more than the scales' own steps.
TEST(Quant, AnOutlierSurvives) {
  std::vector<float> x = drawn(256, 9);
  x[77] = 1000;
  for (DType dtype : kAll) {
    const std::vector<float> y = round_trip(x, dtype);
    EXPECT_NEAR(y[77], 1000, dtype == DType::mxfp4 ? 250 : 35) << name_of(dtype);
    for (float v : y) ASSERT_TRUE(std::isfinite(v)) << name_of(dtype);
  }
}

// Any bytes are blocks. Those whose scale is not finite give what is not finite; nothing traps (the
// sanitizers' build runs this too).
TEST(Quant, AnyBytesCanBeRead) {
  std::vector<DType> all(std::begin(kAll), std::end(kAll));
  all.insert(all.end(), std::begin(kOnlyRead), std::end(kOnlyRead));
  for (DType dtype : all) {
    const BlockFormat format = block_of(dtype);
    const int64_t blocks = 512;
    std::vector<uint8_t> bytes(static_cast<size_t>(blocks * format.bytes));
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<uint8_t>(
          philox(RngKey::from_seed(11).fold(static_cast<uint64_t>(dtype)), i)[0] >> 13);
    EXPECT_EQ(dequantised(bytes, dtype).size(), static_cast<size_t>(blocks * format.elements));
    std::fill(bytes.begin(), bytes.end(), uint8_t{0xFF});
    if (dtype == DType::mxfp4) continue;  // numbers, as in ggml: the largest exponent is none here
    if (dtype == DType::q6_k) std::fill(bytes.begin(), bytes.end(), uint8_t{0x7F});
    for (float x : dequantised(bytes, dtype)) ASSERT_FALSE(std::isfinite(x)) << name_of(dtype);
  }
}

// The caller refuses these; here they may become anything but a crash.
TEST(Quant, NumbersThatAreNotFiniteDoNotTrap) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN(),
              most = std::numeric_limits<float>::max();
  for (DType dtype : kAll) {
    for (float bad : {infinity, -infinity, nan, most, -most}) {
      std::vector<float> x = drawn(512, 4);
      x[40] = bad;
      x[300] = -bad;
      for (size_t i = 256; i < 288; ++i) x[i] = bad;
      EXPECT_EQ(round_trip(x, dtype).size(), x.size());
    }
  }
}

// A block depends on its own numbers alone, so rows can be made in any order and by any thread.
TEST(Quant, BlocksStandAlone) {
  const std::vector<float> x = drawn(4 * 256, 8);
  for (DType dtype : kAll) {
    const std::vector<uint8_t> all = quantised(x, dtype);
    std::vector<uint8_t> pieces;
    for (int64_t i = 3; i >= 0; --i) {
      const std::vector<uint8_t> one =
          quantised({x.begin() + 256 * i, x.begin() + 256 * (i + 1)}, dtype);
      pieces.insert(pieces.begin(), one.begin(), one.end());
    }
    EXPECT_EQ(all, pieces) << name_of(dtype);
  }
}

TEST(Quant, RefusesPartsOfBlocksAndWhatItCannotMake) {
  std::vector<float> x(256);
  std::vector<uint8_t> bytes(2048);
  EXPECT_THROW(quantise(bytes.data(), x.data(), DType::q8_0, 33), Error);
  EXPECT_THROW(dequantise(x.data(), bytes.data(), DType::q4_k, 32), Error);
  EXPECT_THROW(quantise(bytes.data(), x.data(), DType::i32, 256), Error);
  for (const DType dtype : kOnlyRead)
    EXPECT_THROW(quantise(bytes.data(), x.data(), dtype, 256), Error);
  EXPECT_THROW(dequantise(x.data(), bytes.data(), DType::i32, 4), Error);
}

}  // namespace
}  // namespace moe
