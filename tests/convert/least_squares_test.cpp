// The fits against what least squares must give: the gradient of the stated objective is zero, and
// exact relations are found again.
#include "convert/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/check.h"
#include "support/files.h"

namespace moe::least_squares_test {
namespace {

TEST(LeastSquares, InnerProductsAreSumsOverTokens) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    moe::Run run(2);
    Arena memory;
    const Tensor a = test::draw(memory, dtype, {333, 7}, 1),
                 b = test::draw(memory, DType::f32, {333, 5}, 2);
    const Tensor got = inner_products(run, memory, a, b);
    for (int64_t i = 0; i < 7; ++i)
      for (int64_t j = 0; j < 5; ++j) {
        double want = 0;
        for (int64_t n = 0; n < 333; ++n) want += test::get(a, n, i) * test::get(b, n, j);
        EXPECT_NEAR(test::get(got, i, j), want, 1e-3);
      }
  }
}

TEST(LeastSquares, SolvesTheRidgeSystem) {
  moe::Run run(2);
  Arena memory;
  const Tensor x = test::draw(memory, DType::f32, {90, 40}, 3);
  const Tensor gram = inner_products(run, memory, x, x);
  const Tensor rhs = test::draw(memory, DType::f32, {40, 3}, 4);
  const std::vector<double> before = test::values(rhs);
  std::vector<double> ridge(40);
  for (size_t i = 0; i < 40; ++i) ridge[i] = 1 + static_cast<double>(i);
  solve_ridge(run, rhs, gram, ridge);
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      double sum = ridge[static_cast<size_t>(i)] * test::get(rhs, i, c);
      for (int64_t j = 0; j < 40; ++j) sum += test::get(gram, i, j) * test::get(rhs, j, c);
      EXPECT_NEAR(sum, before[static_cast<size_t>(i * 3 + c)], 2e-4);
    }
}

TEST(LeastSquares, RefusesASystemThatIsNotPositiveDefinite) {
  moe::Run run(1);
  Arena memory;
  const Tensor gram = memory.alloc_zeroed(DType::f32, {3, 3}),
               rhs = memory.alloc_zeroed(DType::f32, {3, 1});
  EXPECT_NE(test::message_of([&] {
              solve_ridge(run, rhs, gram, std::vector<double>{1, -1, 1});
            }).find("not positive definite"),
            std::string::npos);
}

TEST(LeastSquares, FindsALinearRelationAgain) {
  moe::Run run(2);
  Arena memory;
  const Tensor x = test::draw(memory, DType::f32, {500, 12}, 5),
               w = test::draw(memory, DType::f32, {3, 12}, 6),
               b = test::draw(memory, DType::f32, {3}, 7);
  // a mean that the bias has to answer for
  for (int64_t n = 0; n < 500; ++n) x.row<float>(n)[2] += 4;
  const Tensor y = memory.alloc(DType::f32, {500, 3});
  for (int64_t n = 0; n < 500; ++n)
    for (int64_t k = 0; k < 3; ++k) {
      double sum = b.as<float>()[k];
      for (int64_t d = 0; d < 12; ++d) sum += test::get(x, n, d) * test::get(w, k, d);
      y.row<float>(n)[k] = static_cast<float>(sum);
    }
  const Tensor got = memory.alloc(DType::f32, {3, 12}), bias = memory.alloc(DType::f32, {3});
  LinearFit(run, x, 1e-9).fit(run, got, bias, y);
  for (int64_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(bias.as<float>()[k], b.as<float>()[k], 1e-3);
    for (int64_t d = 0; d < 12; ++d) EXPECT_NEAR(test::get(got, k, d), test::get(w, k, d), 1e-3);
  }
}

// In f32 sums of products that are far from zero there is nothing left of what sets tokens apart.
TEST(LeastSquares, TokensMayBeAllAlikeOrNearlySo) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t tokens : {1, 2, 500}) {
      moe::Run run(2);
      Arena memory;
      const Tensor one = test::draw(memory, dtype, {1, 24}, 1);
      const Tensor x = memory.alloc(dtype, {tokens, 24}), y = memory.alloc(DType::f32, {tokens, 2});
      for (int64_t n = 0; n < tokens; ++n) {
        std::memcpy(x.at(n).data, one.data, static_cast<size_t>(one.row_bytes));
        for (int64_t k = 0; k < 2; ++k) y.row<float>(n)[k] = 3.0f + static_cast<float>(k);
      }
      const Tensor w = memory.alloc(DType::f32, {2, 24}), bias = memory.alloc(DType::f32, {2});
      LinearFit(run, x, 1e-2).fit(run, w, bias, y);
      for (int64_t k = 0; k < 2; ++k) {
        double sum = bias.as<float>()[k];
        for (int64_t d = 0; d < 24; ++d) sum += test::get(w, k, d) * test::get(x, 0, d);
        EXPECT_NEAR(sum, 3.0 + static_cast<double>(k), 1e-3) << tokens;
      }
    }
  // y is what little there is of column 3
  moe::Run run(2);
  Arena memory;
  const Tensor x = test::draw(memory, DType::f32, {500, 12}, 5),
               y = memory.alloc(DType::f32, {500, 1});
  for (int64_t n = 0; n < 500; ++n)
    for (int64_t d = 0; d < 12; ++d) {
      x.row<float>(n)[d] = 1000 + x.row<float>(n)[d] / 64;
      if (d == 3) y.row<float>(n)[0] = 64 * (x.row<float>(n)[d] - 1000);
    }
  const Tensor w = memory.alloc(DType::f32, {1, 12}), bias = memory.alloc(DType::f32, {1});
  LinearFit(run, x, 1e-6).fit(run, w, bias, y);
  for (int64_t d = 0; d < 12; ++d) EXPECT_NEAR(test::get(w, 0, d), d == 3 ? 64 : 0, 0.2);
}

// d/dw of the objective: sum_n (w x_n + b - y_n) x_n^T + ridge * mean(diag C) * N * w = 0, and the
// residuals' mean is 0.
TEST(LeastSquares, IsStationaryWithARidge) {
  moe::Run run(2);
  Arena memory;
  const int64_t tokens = 400;
  const Tensor x = test::draw(memory, DType::f32, {tokens, 10}, 8),
               y = test::draw(memory, DType::f32, {tokens, 2}, 9);
  const Tensor w = memory.alloc(DType::f32, {2, 10}), bias = memory.alloc(DType::f32, {2});
  const double ridge = 0.3;
  LinearFit(run, x, ridge).fit(run, w, bias, y);
  double spread = 0;
  for (int64_t d = 0; d < 10; ++d) {
    double sum = 0, square = 0;
    for (int64_t n = 0; n < tokens; ++n)
      sum += test::get(x, n, d), square += test::get(x, n, d) * test::get(x, n, d);
    spread += (square - sum * sum / tokens) / 10;
  }
  for (int64_t k = 0; k < 2; ++k) {
    std::vector<double> slope(10, 0);
    double mean = 0;
    for (int64_t n = 0; n < tokens; ++n) {
      double r = bias.as<float>()[k] - test::get(y, n, k);
      for (int64_t d = 0; d < 10; ++d) r += test::get(w, k, d) * test::get(x, n, d);
      mean += r;
      for (int64_t d = 0; d < 10; ++d) slope[static_cast<size_t>(d)] += r * test::get(x, n, d);
    }
    EXPECT_NEAR(mean, 0, 1e-2);
    for (int64_t d = 0; d < 10; ++d)
      EXPECT_NEAR(slope[static_cast<size_t>(d)] + ridge * spread * test::get(w, k, d), 0, 1e-2);
  }
}

}  // namespace
}  // namespace moe::least_squares_test
