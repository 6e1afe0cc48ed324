// Shared pieces of the tests: drawn tensors, and norm-wise comparison with the tolerances of
// DESIGN.md section 8 in one table.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/rng.h"
#include "core/threads.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::test {

// The one table of tolerances. A commit that widens one says why.
constexpr double kTwinDual = 1e-10;   // twin backward against dual numbers, relative to the norm
constexpr double kTwinF32 = 2e-5;     // production against twin, norm-wise per tensor
constexpr double kTwinBf16 = 2e-2;    // the same in bf16
constexpr double kGoldenLoss = 1e-4;  // cross-entropy of each golden step
constexpr double tolerance(DType dtype) { return dtype == DType::bf16 ? kTwinBf16 : kTwinF32; }

inline float get(const Tensor& t, int64_t row, int64_t col) {
  return t.dtype == DType::bf16 ? to_f32(t.row<bf16>(row)[col]) : t.row<float>(row)[col];
}
inline void set(const Tensor& t, int64_t row, int64_t col, float x) {
  if (t.dtype == DType::bf16) t.row<bf16>(row)[col] = to_bf16(x);
  else t.row<float>(row)[col] = x;
}

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> out;
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) out.push_back(get(t, r, c));
  return out;
}
inline void fill(const Tensor& t, const std::vector<double>& from) {
  ASSERT_EQ(t.numel(), static_cast<int64_t>(from.size()));
  size_t i = 0;
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) set(t, r, c, static_cast<float>(from[i++]));
}

// Standard normal times `scale`, the same for the same (seed, shape).
inline Tensor draw(Arena& arena, DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                   float scale = 1) {
  Tensor t = arena.alloc(dtype, shape);
  const RngKey key = RngKey::from_seed(seed);
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c)
      set(t, r, c, scale * normal(key, static_cast<uint64_t>(r * t.cols() + c)));
  return t;
}
inline Param draw_param(Arena& arena, std::initializer_list<int64_t> shape, uint64_t seed,
                        float scale = 1) {
  Param p;
  p.value = draw(arena, DType::f32, shape, seed, scale);
  p.grad = arena.alloc_zeroed(DType::f32, shape);
  return p;
}

inline double norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}
// ||got - want|| / ||want||
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return INFINITY;
  std::vector<double> difference(got.size());
  for (size_t i = 0; i < got.size(); ++i) difference[i] = got[i] - want[i];
  return norm(difference) / std::max(norm(want), 1e-30);
}
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_GT(norm(want), 0) << what << " is all zero, so it proves nothing";
  EXPECT_LE(relative_error(got, want), tolerance) << what;
}
inline void expect_near(const Tensor& got, const std::vector<double>& want, double tolerance,
                        const std::string& what) {
  expect_near(values(got), want, tolerance, what);
}

// Bitwise equality, for the law of rows and determinism.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols() || a.dtype != b.dtype) return false;
  for (int64_t r = 0; r < a.rows(); ++r)
    if (std::memcmp(static_cast<const char*>(a.data) + r * a.row_bytes,
                    static_cast<const char*>(b.data) + r * b.row_bytes,
                    static_cast<size_t>(a.cols()) * size_of(a.dtype)) != 0)
      return false;
  return true;
}

}  // namespace moe::test
