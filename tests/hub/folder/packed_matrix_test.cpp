#include "hub/folder/packed_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "core/nearest.h"
#include "tensor/quant.h"

namespace moe::test::packed_matrix_test {
namespace {

constexpr int64_t kRows = 3, kGroup = 64, kCols = 2 * kGroup;

// What the file has; every number of its bits appears.
uint8_t code(const PackedMatrix& m, int64_t row, int64_t col) {
  const int64_t number = (row * 7 + col * 5) % (int64_t{1} << m.bits);
  return static_cast<uint8_t>(number + static_cast<int64_t>(m.least));
}

// Groups of 64 columns whose scales are 2^-3 (1 + i / 16), which f16 has, and one zero point.
PackedMatrix grouped(int bits, float least, float zero) {
  PackedMatrix m{.rows = kRows, .cols = kCols, .wide = DType::bf16, .bits = bits, .least = least};
  m.grid.row_step = kCols / kGroup;
  m.grid.group_step = 1;
  for (int64_t i = 0; i < kRows * m.grid.row_step; ++i)
    m.grid.scale.push_back(0.125f * (1 + static_cast<float>(i) / 16));
  m.grid.zero.assign(m.grid.scale.size(), zero);
  for (int64_t c = 0; c < kCols; ++c) m.grid.group.push_back(c / kGroup);
  for (size_t i = 0; i < m.q.size(); ++i)
    m.q[i] = least < 0 ? static_cast<int8_t>(i) : static_cast<float>(i);
  m.read = [m](uint8_t* codes, int64_t row, int64_t col, int64_t n) {
    for (int64_t i = 0; i < n; ++i) codes[i] = code(m, row, col + i);
  };
  return m;
}

std::vector<float> unpacked(const PackedMatrix& m, DType as) {
  std::unique_ptr<std::byte[]> memory;
  const Tensor t = unpack(m, as, [&](int64_t bytes) {
    memory = std::make_unique<std::byte[]>(static_cast<size_t>(bytes));
    return memory.get();
  });
  EXPECT_EQ(t.dtype, as);
  EXPECT_EQ(t.rows(), m.rows / m.row_parts);
  EXPECT_EQ(t.cols(), m.cols * m.row_parts);
  std::vector<float> out(static_cast<size_t>(t.numel()));
  dequantise(out.data(), t.data, as, t.numel());
  return out;
}

double meant(const PackedMatrix& m, int64_t row, int64_t col) {
  const size_t at = m.grid.at(m.grid.first(row), col);
  return (static_cast<double>(m.q[code(m, row, col)]) - m.grid.zero[at]) * m.grid.scale[at];
}

void expect_exact(const PackedMatrix& m, DType as) {
  const std::vector<float> got = unpacked(m, as);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kCols; ++c)
      EXPECT_EQ(got[static_cast<size_t>(r * kCols + c)], static_cast<float>(meant(m, r, c)))
          << r << " " << c;
}

TEST(PackedMatrix, SymmetricNumbersAreHeldExactly) {
  EXPECT_EQ(least_type(grouped(4, 0, 8)), DType::q4_0);
  EXPECT_EQ(least_type(grouped(8, 0, 128)), DType::q8_0);
  EXPECT_EQ(least_type(grouped(8, -128, 0)), DType::q8_0);
  expect_exact(grouped(4, 0, 8), DType::q4_0);
  expect_exact(grouped(8, 0, 128), DType::q8_0);
  expect_exact(grouped(8, -128, 0), DType::q8_0);
  expect_exact(grouped(4, 0, 8), DType::q4_1);  // where another matrix of the bank needs it
}

// Zero point times scale has more bits than f16. Of all scales and zero points these are rounded by
// most of a step: 15 * 1096 / 1024 = 16 + 56 / 1024 lies in the middle between two multiples of
// 2^-6.
TEST(PackedMatrix, OtherZeroPointsOfFourBitsAreRoundedOnce) {
  PackedMatrix m = grouped(4, 0, 15);
  constexpr float kScale = 1096.0f / 1024;
  m.grid.scale.assign(m.grid.scale.size(), kScale);
  ASSERT_EQ(least_type(m), DType::q4_1);
  const std::vector<float> got = unpacked(m, DType::q4_1);
  double furthest = 0;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kCols; ++c)
      furthest = std::max(
          furthest, std::abs(got[static_cast<size_t>(r * kCols + c)] - meant(m, r, c)) / kScale);
  EXPECT_GT(furthest, 0.0072);
  EXPECT_LT(furthest, 15.0 / 2048);
}

TEST(PackedMatrix, WhatNoBlockHoldsBecomesSixteenBits) {
  EXPECT_EQ(least_type(grouped(8, 0, 127)), DType::bf16);
  PackedMatrix floats = grouped(8, 0, 128);
  floats.bits = 0;
  EXPECT_EQ(least_type(floats), DType::bf16);
  PackedMatrix fine = grouped(4, 0, 8);
  fine.grid.scale[1] = 1e-8f;  // below the smallest f16
  EXPECT_EQ(least_type(fine), DType::bf16);
  PackedMatrix large = grouped(4, 0, 9);
  large.grid.scale[1] = 65504.0f / 2;  // nine times it is more than f16 has
  EXPECT_EQ(least_type(large), DType::bf16);
  large.grid.zero.assign(large.grid.zero.size(), 8);  // nor is that q4_1 where its bank is
  EXPECT_EQ(least_type(large), DType::bf16);
  for (const float outside : {-1.0f, 16.0f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(least_type(grouped(4, 0, outside)), DType::bf16) << outside;
  EXPECT_EQ(least_type(grouped(4, 0, 0)), DType::q4_1);
  EXPECT_EQ(least_type(grouped(4, 0, 15)), DType::q4_1);
  PackedMatrix out_of_order = grouped(4, 0, 8);
  std::swap(out_of_order.grid.group[3], out_of_order.grid.group[kGroup]);
  EXPECT_EQ(least_type(out_of_order), DType::bf16);
  PackedMatrix narrow = grouped(4, 0, 8);
  narrow.cols = 40;
  EXPECT_EQ(least_type(narrow), DType::bf16);
}

// A weight [2,6] whose numbers share scales by eights, counted from its first one on: pairs of them
// lie in one row and under one scale.
TEST(PackedMatrix, NumbersThatShareScalesAcrossRows) {
  PackedMatrix m{.rows = 6,
                 .cols = 2,
                 .row_parts = 3,
                 .grid = {.scale = {1, 100}, .zero = {0, 0}, .block_rows = 4, .row_step = 1},
                 .read = [](uint8_t* codes, int64_t row, int64_t col, int64_t n) {
                   for (int64_t i = 0; i < n; ++i)
                     codes[i] = static_cast<uint8_t>(2 * row + col + i);
                 }};
  m.grid.group = {0, 0};
  for (size_t i = 0; i < m.q.size(); ++i) m.q[i] = static_cast<float>(i);
  EXPECT_EQ(unpacked(m, DType::f16),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 800, 900, 1000, 1100}));
}

// As what is first too large for f32 stays so.
TEST(PackedMatrix, AFactorComesBehindTheRoundedProduct) {
  PackedMatrix m = grouped(8, -128, 0);
  m.q.fill(2);
  m.grid.scale.assign(m.grid.scale.size(), 0x1.8p127f);
  m.factor = 0x1p-127f;
  EXPECT_EQ(unpacked(m, DType::bf16)[0], std::numeric_limits<float>::infinity());
  m.grid.scale.assign(m.grid.scale.size(), 0x1.8p126f);
  EXPECT_EQ(unpacked(m, DType::bf16)[0], 1.5f);
  m.factor = 0.5f;
  m.grid.scale.assign(m.grid.scale.size(), 0.5f);
  EXPECT_EQ(least_type(m), DType::bf16);
}

TEST(PackedMatrix, ABankHasOneType) {
  EXPECT_EQ(common_type(DType::q4_0, DType::q4_0, DType::f16), DType::q4_0);
  EXPECT_EQ(common_type(DType::q4_0, DType::q4_1, DType::f16), DType::q4_1);
  EXPECT_EQ(common_type(DType::q4_1, DType::q4_0, DType::f16), DType::q4_1);
  EXPECT_EQ(common_type(DType::q4_0, DType::q8_0, DType::f16), DType::f16);
  EXPECT_EQ(common_type(DType::f16, DType::q8_0, DType::f16), DType::f16);
}

}  // namespace
}  // namespace moe::test::packed_matrix_test
