// What the tests of row-wise ops share: views inside a fence, the law of rows, and equality for any
// number of threads.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/check.h"

namespace moe::test {

constexpr int64_t kWidths[] = {1, 7, 63, 65, 384};
constexpr DType kFloats[] = {DType::f32, DType::bf16};

// A matrix that is a slice of columns of a wider one, so that rows have gaps, with a known number
// all around it: a write beyond a row's end shows.
class Fenced {
 public:
  Fenced(Arena& arena, DType dtype, int64_t rows, int64_t cols)
      : whole_(arena.alloc(dtype, {rows, cols + 2 * kMargin})) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < whole_.cols(); ++c) set(whole_, r, c, kMark);
    view = whole_.slice_cols(kMargin, kMargin + cols);
  }
  Fenced(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed, float scale = 1)
      : Fenced(arena, dtype, rows, cols) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        set(view, r, c,
            scale * normal(RngKey::from_seed(seed), static_cast<uint64_t>(r * cols + c)));
  }
  bool intact() const {
    for (int64_t r = 0; r < whole_.rows(); ++r)
      for (int64_t c = 0; c < kMargin; ++c)
        if (get(whole_, r, c) != kMark || get(whole_, r, whole_.cols() - 1 - c) != kMark)
          return false;
    return true;
  }

  Tensor view;  // [rows, cols], over whole_

 private:
  static constexpr int64_t kMargin = 20;
  static constexpr float kMark = 768;  // exact in bf16
  Tensor whole_;                       // [rows, cols + 2 * kMargin], over the arena
};

// Rows `which` of `pool`, without gaps.
inline Tensor pick(Arena& arena, const Tensor& pool, std::span<const int32_t> which) {
  Tensor out = arena.alloc(pool.dtype, {static_cast<int64_t>(which.size()), pool.cols()});
  for (size_t i = 0; i < which.size(); ++i)
    std::memcpy(static_cast<char*>(out.data) + static_cast<int64_t>(i) * out.row_bytes,
                static_cast<const char*>(pool.data) + which[i] * pool.row_bytes,
                static_cast<size_t>(out.row_bytes));
  return out;
}

inline Tensor copy_of(Arena& arena, const Tensor& t) {
  std::vector<int32_t> all(static_cast<size_t>(t.rows()));
  std::iota(all.begin(), all.end(), 0);
  return pick(arena, t, all);
}

// The columns of all `parts` side by side, widened to f32 (which loses no bit): several outputs of
// an op as one.
inline Tensor join(Arena& arena, std::initializer_list<Tensor> parts) {
  int64_t cols = 0, first = 0;
  for (const Tensor& part : parts) cols += part.cols();
  const Tensor out = arena.alloc(DType::f32, {parts.begin()->rows(), cols});
  for (const Tensor& part : parts) {
    for (int64_t r = 0; r < part.rows(); ++r)
      for (int64_t c = 0; c < part.cols(); ++c) set(out, r, first + c, get(part, r, c));
    first += part.cols();
  }
  return out;
}

// The law of rows: f(run, which) computes the rows `which` of a pool of 300 and returns them
// [which, cols]. Each row is first computed alone on one thread; then N = 1..300 rows with shuffled
// neighbours, every fourth N on two threads, must give every one of them the same bits.
template <class F>
void expect_law_of_rows(F&& f, const std::string& what) {
  constexpr int32_t kPool = 300;
  Arena kept;
  Run alone(1), two(2);
  std::vector<Tensor> want;
  for (int32_t i = 0; i < kPool; ++i) {
    const ArenaScope scope(alone.saved);
    want.push_back(copy_of(kept, f(alone, std::span<const int32_t>(&i, 1))));
  }
  std::vector<int32_t> order(kPool);
  std::iota(order.begin(), order.end(), 0);
  for (int32_t n = 1; n <= kPool; ++n) {
    for (uint64_t i = kPool - 1; i > 0; --i)
      std::swap(order[i],
                order[uniform_index(RngKey::from_seed(static_cast<uint64_t>(n)), i, i + 1)]);
    Run& run = n % 4 == 0 ? two : alone;
    const ArenaScope scope(run.saved);
    const Tensor got = f(run, std::span<const int32_t>(order.data(), static_cast<size_t>(n)));
    ASSERT_EQ(got.rows(), n) << what;
    for (int32_t i = 0; i < n; ++i)
      ASSERT_TRUE(same_bits(got.slice_rows(i, i + 1),
                            want[static_cast<size_t>(order[static_cast<size_t>(i)])]))
          << what << ", N = " << n << ", row " << i;
  }
}

// f(run) must return the same bits on 1, 2 and 3 threads.
template <class F>
void expect_same_for_any_threads(F&& f, const std::string& what) {
  Run one(1);
  const Tensor want = f(one);
  for (int threads = 2; threads <= 3; ++threads) {
    Run run(threads);
    EXPECT_TRUE(same_bits(f(run), want)) << what << " on " << threads << " threads";
  }
}

inline std::string label(const char* op, std::initializer_list<DType> dtypes, int64_t cols) {
  std::string text = op;
  for (DType dtype : dtypes) text += fmt::format(" {}", name_of(dtype));
  return fmt::format("{} of width {}", text, cols);
}

}  // namespace moe::test
