// Rows of a cache against plain loops: quantise() says what a row becomes, and every number that is
// not written stays.
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "tensor/quant.h"

namespace moe::test::store_keys_test {
namespace {

constexpr int64_t kRows = 192, kWidth = 96;

std::vector<char> bytes_in(const Tensor& t) {
  const char* data = static_cast<const char*>(t.data);
  return {data, data + t.bytes()};
}

class StoreKeys : public testing::TestWithParam<std::tuple<DType, DType, bool>> {};

// What the cache holds afterwards.  x [N,W], a matrix or blocks of keys
std::vector<char> stored(const Tensor& cache, const Tensor& x, const std::vector<int64_t>& row) {
  std::vector<char> all = bytes_in(cache), line(static_cast<size_t>(bytes_of(cache.dtype, kWidth)));
  std::vector<float> wide(static_cast<size_t>(kWidth));
  const bool turned = cache.rank == 3;
  for (int64_t n = 0; n < x.rows(); ++n) {
    for (int64_t c = 0; c < kWidth; ++c) wide[static_cast<size_t>(c)] = get(x, n, c);
    quantise(line.data(), wide.data(), cache.dtype, kWidth);
    const int64_t to = row[static_cast<size_t>(n)];
    if (!turned) {
      std::memcpy(all.data() + to * cache.row_bytes, line.data(), line.size());
      continue;
    }
    const auto size = static_cast<int64_t>(size_of(cache.dtype));
    for (int64_t c = 0; c < kWidth; ++c)
      std::memcpy(all.data() + ((to / 64 * kWidth + c) * 64 + to % 64) * size,
                  line.data() + c * size, static_cast<size_t>(size));
  }
  return all;
}

TEST_P(StoreKeys, WritesWhatQuantiseMakesAndNothingElse) {
  const auto [dtype, cached, turned] = GetParam();
  if (turned && is_quantised(cached)) GTEST_SKIP() << "blocks of numbers run along a row";
  Arena memory;
  std::vector<int64_t> many;
  for (int64_t n = 0; n < 70; ++n) many.push_back(n < 40 ? 50 + n : (n * 7 + 1) % 50);
  for (const std::vector<int64_t>& row : {std::vector<int64_t>{63}, {191, 0, 64}, many}) {
    const Tensor x =
        draw(memory, dtype, {std::ssize(row), kWidth + 5}, 3).slice_cols(3, kWidth + 3);
    // what blocks of bytes have to stand: a row of zeros, one of numbers that differ by far
    for (int64_t c = 0; c < kWidth; ++c) {
      set(x, 0, c, c < 32 ? 0.0f : c < 64 ? std::ldexp(get(x, 0, c), -30) : get(x, 0, c));
      if (c % 9 == 0) set(x, x.rows() - 1, c, std::ldexp(get(x, x.rows() - 1, c), 9));
    }
    const Tensor cache = turned ? memory.alloc(cached, {kRows / 64, kWidth, 64})
                                : memory.alloc(cached, {kRows, kWidth});
    std::memset(cache.data, 0x5A, static_cast<size_t>(cache.bytes()));
    const std::vector<char> want = stored(cache, x, row);
    moe::Run run(2);
    ops::store_keys(run, cache, x, row);
    EXPECT_EQ(bytes_in(cache), want) << row.size() << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(dtypes, StoreKeys,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16, DType::f16,
                                                          DType::q8_0),
                                          testing::Bool()));

// By heads a row is written in pieces of one head each.
TEST(StoreKeysByHeads, AreTheRowsOfEachHead) {
  constexpr int64_t kHeads = 3, kOne = kWidth / kHeads;
  for (const DType cached : {DType::f32, DType::bf16, DType::f16, DType::q8_0})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Arena memory;
      moe::Run run(2);
      const std::vector<int64_t> row{191, 0, 64, 65, 7};
      const Tensor x =
          draw(memory, dtype, {std::ssize(row), kWidth + 5}, 3).slice_cols(3, kWidth + 3);
      const Tensor rows = memory.alloc(cached, {kRows, kWidth}),
                   cache = memory.alloc(cached, {kRows / 64, kHeads, 64, kOne});
      for (const Tensor& t : {rows, cache})
        std::memset(t.data, 0x5A, static_cast<size_t>(t.bytes()));
      ops::store_keys(run, rows, x, row);
      ops::store_keys(run, cache, x, row);
      for (int64_t n = 0; n < kRows; ++n)
        for (int64_t h = 0; h < kHeads; ++h)
          EXPECT_EQ(std::memcmp(static_cast<const char*>(rows.data) + n * rows.row_bytes +
                                    h * cache.row_bytes,
                                static_cast<const char*>(cache.data) +
                                    ((n / 64 * kHeads + h) * 64 + n % 64) * cache.row_bytes,
                                static_cast<size_t>(cache.row_bytes)),
                    0)
              << name_of(cached) << ", row " << n << ", head " << h;
    }
}

TEST(StoreKeysOf, WhatDoesNotFitIsRefused) {
  Arena memory;
  moe::Run run(1);
  const auto cache = [&](DType dtype, int64_t cols) { return memory.alloc(dtype, {64, cols}); };
  const Tensor x = draw(memory, DType::f32, {2, 32}, 1);
  const std::vector<int64_t> two = {1, 2}, three = {1, 2, 3}, outside = {1, 64};
  EXPECT_NO_THROW(ops::store_keys(run, cache(DType::f32, 32), x, two));
  EXPECT_THROW(ops::store_keys(run, cache(DType::f32, 33), x, two), Error);
  EXPECT_THROW(ops::store_keys(run, cache(DType::q4_0, 32), x, two), Error);
  EXPECT_THROW(ops::store_keys(run, cache(DType::f32, 32), x, three), Error);
  EXPECT_THROW(ops::store_keys(run, cache(DType::f32, 32), x, outside), Error);
  EXPECT_THROW(ops::store_keys(run, memory.alloc(DType::f32, {1, 32, 32}), x, two), Error);
}

}  // namespace
}  // namespace moe::test::store_keys_test
