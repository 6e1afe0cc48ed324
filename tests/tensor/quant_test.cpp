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

namespace moe::quant_test {
namespace {

constexpr DType kAll[] = {DType::f32,    DType::bf16, DType::f16,  DType::q8_0,  DType::q4_0,
                          DType::q4_1,   DType::q5_0, DType::q5_1, DType::q4_k,  DType::q5_k,
                          DType::q6_k,   DType::q3_k, DType::q2_k, DType::mxfp4, DType::iq4_nl,
                          DType::iq4_xs, DType::q2_0};
constexpr DType kOnlyRead[] = {DType::iq1_s, DType::iq1_m,   DType::iq2_xxs, DType::iq2_xs,
                               DType::iq2_s, DType::iq3_xxs, DType::iq3_s,   DType::tq1_0,
                               DType::tq2_0, DType::q1_0};

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
std::vector<uint8_t> quantised(const std::vector<float>& x, DType to,
                               const float* importance = nullptr) {
  std::vector<uint8_t> out(static_cast<size_t>(bytes_of(to, static_cast<int64_t>(x.size()))));
  quantise(out.data(), x.data(), to, static_cast<int64_t>(x.size()), importance);
  return out;
}
std::vector<float> dequantised(const std::vector<uint8_t>& bytes, DType from) {
  const BlockFormat format = block_of(from);
  std::vector<float> out(bytes.size() / static_cast<size_t>(format.bytes) *
                         static_cast<size_t>(format.elements));
  dequantise(out.data(), bytes.data(), from, static_cast<int64_t>(out.size()));
  return out;
}
std::vector<float> round_trip(const std::vector<float>& x, DType through,
                              const float* importance = nullptr) {
  return dequantised(quantised(x, through, importance), through);
}

double rms(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return std::sqrt(sum / static_cast<double>(x.size()));
}
// The same, the squares weighed.
double rms(const std::vector<float>& x, const std::vector<float>& y,
           const std::vector<float>& weight) {
  double sum = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += weight[i] * (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    all += weight[i];
  }
  return std::sqrt(sum / all);
}
// From 1 to 63, in no order.
std::vector<float> made_importance(size_t n) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const auto step = static_cast<float>(i * 37 % 64);
    out[i] = 1 + step * step / 64;
  }
  return out;
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
  EXPECT_EQ(golden().at("blocks").size(), 24u);
}

constexpr const char* kRows[] = {"normal", "weights",   "outlier", "negative", "offset",
                                 "ties",   "some zero", "large",   "heavy"};
struct Reference {
  DType dtype;
  double error[std::size(kRows)];
};

// Where several scales fit alike, one row may come out a little better or worse; all together may
// not.
void expect_as_good(const Reference& reference, double one, double all,
                    const std::vector<float>* importance) {
  double mean = 0;
  for (size_t i = 0; i < std::size(kRows); ++i) {
    const std::vector<float> x = golden_row(kRows[i]);
    const double error =
        importance == nullptr
            ? rms(x, round_trip(x, reference.dtype))
            : rms(x, round_trip(x, reference.dtype, importance->data()), *importance);
    EXPECT_LE(error, one * reference.error[i]) << name_of(reference.dtype) << " " << kRows[i];
    mean += error / reference.error[i] / std::size(kRows);
  }
  EXPECT_LE(mean, all) << name_of(reference.dtype);
}

// Errors of the reference quantisers of libggml-base (llama-cpp-python 0.3.36) on the same rows, by
// gguf's dequantize.
TEST(Quant, TheKFormatsAreAsGoodAsTheReference) {
  const Reference references[] = {
      {DType::q4_k,
       {0.0769343, 0.0015086, 0.0275361, 0.0436379, 0.0870836, 0.0166388, 0.0593753, 1889.55,
        1.18829}},
      {DType::q6_k,
       {0.0195021, 0.000346644, 0.0207562, 0.0182638, 0.0399444, 0.00292436, 0.0143054, 479.132,
        0.398066}},
      {DType::q3_k,
       {0.161673, 0.0029491, 0.0207562, 0.150871, 0.103461, 0.0435764, 0.125508, 4012.99, 1.39874}},
      {DType::q2_k,
       {0.306133, 0.00596241, 0.0385201, 0.184285, 0.270981, 0.0720432, 0.224906, 9013.99,
        2.07798}}};
  // q2_k and q3_k weigh errors otherwise than the reference, most rows to their advantage.
  for (const Reference& reference : references)
    expect_as_good(reference, reference.dtype == DType::q2_k ? 1.04 : 1.01, 1.001, nullptr);
}

// The same of ggml_quantize_chunk with made_importance(): roots of the mean squares, weighed by it.
TEST(Quant, ImportanceIsHeededAsWellAsByTheReference) {
  const Reference references[] = {
      {DType::q4_0,
       {0.0841694, 0.00160541, 0.0198996, 0.0828196, 0.0952074, 0.0176885, 0.0663025, 2052.67,
        1.40838}},
      {DType::q4_1,
       {0.0712516, 0.00141684, 0.019343, 0.0404485, 0.0799231, 0.015352, 0.054521, 1662.52,
        1.07803}},
      {DType::q5_0,
       {0.0412198, 0.000819085, 0.0198975, 0.0420577, 0.0772325, 0.00595585, 0.0292653, 991.866,
        1.04553}},
      {DType::q5_1,
       {0.0354321, 0.00066542, 0.0193296, 0.0190189, 0.0420004, 0.00527557, 0.0263553, 810.992,
        0.565487}},
      {DType::iq4_nl,
       {0.0740867, 0.00150843, 0.214853, 0.0806715, 0.0952441, 0.0198353, 0.0621049, 1868.87,
        1.32994}},
      {DType::q2_k,
       {0.266686, 0.00498489, 0.0281351, 0.155965, 0.21913, 0.0642903, 0.194174, 6529.42, 2.0497}},
      {DType::q3_k,
       {0.150156, 0.00273819, 0.0206638, 0.143104, 0.09704, 0.0360329, 0.110325, 3541.83, 1.47518}},
      {DType::q4_k,
       {0.0733492, 0.00146154, 0.0231745, 0.0416958, 0.0813911, 0.0154141, 0.0537061, 1686.96,
        1.18521}},
      {DType::q5_k,
       {0.0374297, 0.000728277, 0.0219425, 0.0208941, 0.0440196, 0.00583528, 0.0272573, 841.363,
        0.624542}},
      {DType::q6_k,
       {0.017298, 0.000315069, 0.0206638, 0.0179615, 0.0391035, 0.00187489, 0.0127105, 455.564,
        0.429626}}};
  const std::vector<float> importance = made_importance(256);
  for (const Reference& reference : references) expect_as_good(reference, 1.02, 1.003, &importance);
}

// Columns that count get the better of those that do not; where all count alike the error is that
// of the format.
TEST(Quant, ImportantColumnsComeNearer) {
  const std::vector<float> x = drawn(64 * 256, 6), importance = made_importance(x.size()),
                           alike(x.size(), 1.0f);
  for (DType dtype : kAll) {
    const bool heeds = is_quantised(dtype) && dtype != DType::q8_0 && dtype != DType::mxfp4;
    const double with = rms(x, round_trip(x, dtype, importance.data()), importance),
                 without = rms(x, round_trip(x, dtype), importance);
    if (heeds) EXPECT_LT(with, 0.995 * without) << name_of(dtype);
    else EXPECT_EQ(with, without) << name_of(dtype);
    EXPECT_LE(rms(x, round_trip(x, dtype, alike.data())), 1.001 * rms(x, round_trip(x, dtype)))
        << name_of(dtype);
  }
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
      {DType::f32, {0, 0}},          {DType::f16, {1e-5, 5e-4}},     {DType::bf16, {1e-4, 4e-3}},
      {DType::q8_0, {4e-3, 7e-3}},   {DType::q4_0, {0.08, 0.1}},     {DType::q4_1, {0.07, 0.09}},
      {DType::q5_0, {0.035, 0.055}}, {DType::q5_1, {0.03, 0.045}},   {DType::q4_k, {0.05, 0.08}},
      {DType::q5_k, {0.025, 0.04}},  {DType::q6_k, {0.01, 0.02}},    {DType::mxfp4, {0.1, 0.13}},
      {DType::iq4_nl, {0.07, 0.08}}, {DType::iq4_xs, {0.07, 0.085}}, {DType::q3_k, {0.12, 0.17}},
      {DType::q2_k, {0.2, 0.3}},     {DType::q2_0, {0.3, 0.4}}};
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

// A half, then four numbers a byte, the first in the lowest bits: -d, 0, d and 2d.
TEST(Quant, TwoBitsAreWhereTheFormatHasThem) {
  std::vector<uint8_t> block(18, 0x55);  // ones: zeros
  block[0] = 0x00, block[1] = 0x38;      // 0.5
  block[2] = 0xE4;                       // 0, 1, 2, 3
  block[3] = 0x1B;                       // 3, 2, 1, 0
  block[17] = 0xC5;                      // 1, 1, 0, 3
  std::vector<float> want(64);
  const float first[] = {-0.5f, 0, 0.5f, 1, 1, 0.5f, 0, -0.5f};
  std::copy(std::begin(first), std::end(first), want.begin());
  want[62] = -0.5f, want[63] = 1;
  EXPECT_EQ(dequantised(block, DType::q2_0), want);
  EXPECT_EQ(quantised(want, DType::q2_0), block);
  block[1] = 0xB8;  // -0.5
  for (float& x : want) x = -x;
  EXPECT_EQ(dequantised(block, DType::q2_0), want);
  EXPECT_EQ(quantised(want, DType::q2_0), block);
}

// Numbers of a block of q2_0 come back as they were, whichever of the four it has and whatever the
// columns count.
TEST(Quant, WhatTwoBitsHoldIsKept) {
  const std::vector<float> importance = made_importance(64);
  const uint16_t halves[] = {0x3800, 0xB955, 0x0001, 0x83FF, 0x0401, 0x7BFF, 0xFBFF, 0x2E67};
  for (const uint16_t half : halves)
    for (uint32_t codes = 1; codes < 16; ++codes)
      for (uint64_t seed = 0; seed < 5; ++seed) {
        std::vector<uint32_t> of;
        for (uint32_t q = 0; q < 4; ++q)
          if (codes >> q & 1) of.push_back(q);
        std::vector<uint8_t> block(18);
        std::memcpy(block.data(), &half, 2);
        for (size_t j = 0; j < 64; ++j) {
          // Some have but one number that is not like the others.
          const size_t which = seed == 0 ? (j == 41 ? of.size() - 1 : 0)
                                         : uniform_index(RngKey::from_seed(seed), j, of.size());
          block[2 + j / 4] = static_cast<uint8_t>(block[2 + j / 4] | of[which] << 2 * (j % 4));
        }
        const std::vector<float> x = dequantised(block, DType::q2_0);
        ASSERT_EQ(round_trip(x, DType::q2_0), x) << half << " " << codes;
        ASSERT_EQ(round_trip(x, DType::q2_0, importance.data()), x) << half << " " << codes;
      }
}

// ggml makes the largest magnitude the step and rounds.
// Blocks whose largest number is not the lowest step, as fitted scales leave them.
TEST(Quant, WhatHasBeenAboutZeroComesBack) {
  constexpr int kBlocks = 200, kOfBlock = 32;
  for (const auto& [type, reach] : {std::pair{DType::q4_0, 8}, std::pair{DType::q5_0, 16}}) {
    std::vector<float> numbers;
    for (int b = 0; b < kBlocks; ++b) {
      const RngKey key = RngKey::from_seed(7).fold(static_cast<uint64_t>(b));
      const int64_t most = 1 + b % reach;
      const float d = f16_to_f32(f32_to_f16((b % 3 == 0 ? -1.0f : 1.0f) *
                                            (0.001f + static_cast<float>(uniform(key, 99)))));
      for (uint64_t j = 0; j < kOfBlock; ++j) {
        const auto q = static_cast<int64_t>(uniform_index(key, j, 2 * most)) - most;
        numbers.push_back(static_cast<float>(q) * d);
      }
    }
    numbers.insert(numbers.end(), kOfBlock, 0.0f);
    const auto n = static_cast<int64_t>(numbers.size());
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(type, n)));
    std::vector<float> back(numbers.size());
    quantise(bytes.data(), numbers.data(), type, n);
    dequantise(back.data(), bytes.data(), type, n);
    EXPECT_EQ(back, numbers) << name_of(type);
  }
}

TEST(Quant, TwoBitsAreFitted) {
  const auto simple = [](const std::vector<float>& x) {
    std::vector<float> out(x.size());
    for (size_t b = 0; b < x.size(); b += 64) {
      float d = 0;
      for (size_t j = b; j < b + 64; ++j) d = std::max(d, std::abs(x[j]));
      d = f16_to_f32(f32_to_f16(d));
      for (size_t j = b; j < b + 64; ++j)
        out[j] = d * std::clamp(std::nearbyint(d > 0 ? x[j] / d : 0), -1.0f, 2.0f);
    }
    return out;
  };
  for (const std::string name : kRows) {
    if (name == "large") continue;  // that step is beyond a half
    const std::vector<float> x = golden_row(name);
    const double most = name == "outlier" ? 1 : 0.8;  // but for one number nothing is left
    EXPECT_LE(rms(x, round_trip(x, DType::q2_0)), most * rms(x, simple(x))) << name;
  }
  // No step of either sign does better, by more than the half's rounding.
  const std::vector<float> x = drawn(64, 12), importance = made_importance(64);
  const double got = rms(x, round_trip(x, DType::q2_0, importance.data()), importance);
  for (float d = -4; d < 4; d += 0.001f) {
    std::vector<float> y(64);
    for (size_t i = 0; i < 64; ++i) y[i] = d * std::clamp(std::nearbyint(x[i] / d), -1.0f, 2.0f);
    ASSERT_LE(got, (1 + 1e-5) * rms(x, y, importance)) << d;
  }
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

// A half, then a bit for each of 128 numbers, the lowest first: set is d, else -d.
TEST(Quant, OneBitIsASign) {
  std::vector<uint8_t> block(18);
  block[1] = 0x38;  // 0.5
  for (size_t i = 2; i < block.size(); ++i) block[i] = static_cast<uint8_t>(37 * i);
  const std::vector<float> x = dequantised(block, DType::q1_0);
  ASSERT_EQ(x.size(), 128u);
  for (size_t j = 0; j < x.size(); ++j)
    EXPECT_EQ(x[j], (37 * (2 + j / 8) >> j % 8 & 1) != 0 ? 0.5f : -0.5f) << j;
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
}  // namespace moe::quant_test
