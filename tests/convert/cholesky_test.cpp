// Systems of every size around a block's, against what they are: A x = b, L y = b.
#include "convert/cholesky.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/gradient.h"

namespace moe::cholesky_test {
namespace {

std::vector<double> drawn(int64_t count, uint64_t seed) {
  return test::drawn(static_cast<size_t>(count), seed, 0.3);
}

// m m^T + I of a drawn m [n,n]
std::vector<double> positive(int64_t n) {
  const std::vector<double> m = drawn(n * n, 1);
  std::vector<double> a(m.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = i == j ? 1 : 0;
      for (int64_t k = 0; k < n; ++k)
        sum += m[static_cast<size_t>(i * n + k)] * m[static_cast<size_t>(j * n + k)];
      a[static_cast<size_t>(i * n + j)] = sum;
    }
  return a;
}

TEST(Cholesky, SolvesSystemsOfAnySize) {
  for (const int64_t n : {1, 5, 95, 96, 97, 200, 301})
    for (const int64_t k : {1, 7}) {
      const std::vector<double> a = positive(n), b = drawn(n * k, 2);
      std::vector<double> x = b, alone = b;
      const Cholesky factor(2, a, n);
      ASSERT_TRUE(factor.succeeded()) << n;
      factor.solve(x, k);
      Cholesky(1, a, n).solve(alone, k);
      EXPECT_EQ(x, alone) << "threads change no bit";
      for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < k; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < n; ++j)
            sum += a[static_cast<size_t>(i * n + j)] * x[static_cast<size_t>(j * k + c)];
          ASSERT_NEAR(sum, b[static_cast<size_t>(i * k + c)], 1e-10) << n << " " << i;
        }
    }
}

TEST(Cholesky, ReadsTheLowerHalfAlone) {
  const int64_t n = 150;
  const std::vector<double> a = positive(n);
  std::vector<double> half = a, x = drawn(n, 3), y = x;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j)
      half[static_cast<size_t>(i * n + j)] = std::numeric_limits<double>::quiet_NaN();
  Cholesky(2, a, n).solve(x, 1);
  Cholesky(2, half, n).solve(y, 1);
  EXPECT_EQ(x, y);
}

// L^-1 of the identity, twice: (L^-1)^T L^-1 is the inverse of A.
TEST(Cholesky, SolvesTheLowerHalf) {
  const int64_t n = 130;
  const std::vector<double> a = positive(n);
  std::vector<double> inverse(a.size());
  for (int64_t i = 0; i < n; ++i) inverse[static_cast<size_t>(i * n + i)] = 1;
  std::vector<double> whole = inverse;
  const Cholesky factor(2, a, n);
  factor.solve_lower(inverse, n);
  factor.solve(whole, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k)
        sum += inverse[static_cast<size_t>(k * n + i)] * inverse[static_cast<size_t>(k * n + j)];
      ASSERT_NEAR(sum, whole[static_cast<size_t>(i * n + j)], 1e-11);
      if (j > i) ASSERT_EQ(inverse[static_cast<size_t>(i * n + j)], 0);
    }
}

TEST(Cholesky, SaysWhereThereIsNoFactor) {
  for (const int64_t n : {1, 100, 200}) {
    std::vector<double> a = positive(n);
    a.back() = -1;
    EXPECT_FALSE(Cholesky(2, a, n).succeeded()) << n;
    a.back() = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(Cholesky(2, a, n).succeeded()) << n;
    a = positive(n);
    a[static_cast<size_t>((n - 1) * n)] = std::nan("");
    EXPECT_FALSE(Cholesky(2, a, n).succeeded()) << n;
  }
}

}  // namespace
}  // namespace moe::cholesky_test
