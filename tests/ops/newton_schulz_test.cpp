// Newton-Schulz against its formula in double.
#include <array>
#include <cmath>

#include "ops/ops.h"
#include "support/files.h"
#include "support/rowwise.h"

namespace moe::newton_schulz_test {
namespace {

using namespace test;

constexpr std::array<ops::NewtonSchulz, 3> kSteps{
    ops::NewtonSchulz{3.4445f, -4.7750f, 2.0315f}, {2.5f, -3.0f, 1.1f}, {1.875f, -1.25f, 0.375f}};

// a b, or a b^T.  a [M,K]; b [K,N] or [N,K]
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, size_t rows,
                            size_t inner, size_t cols, bool turned) {
  std::vector<double> y(rows * cols);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j)
      for (size_t k = 0; k < inner; ++k)
        y[i * cols + j] += a[i * inner + k] * (turned ? b[j * inner + k] : b[k * cols + j]);
  return y;
}

// X = a X + (b G + c G^2) X, G = X X^T.  x [rows,cols]
std::vector<double> expected(std::vector<double> x, size_t rows, size_t cols) {
  double squares = 0;
  for (double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares) + 1e-7;
  for (const ops::NewtonSchulz& of : kSteps) {
    const std::vector<double> gram = product(x, x, rows, cols, rows, true);
    std::vector<double> p = product(gram, gram, rows, rows, rows, false);
    for (size_t i = 0; i < p.size(); ++i)
      p[i] = static_cast<double>(of.b) * gram[i] + static_cast<double>(of.c) * p[i];
    const std::vector<double> y = product(p, x, rows, rows, cols, false);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(of.a) * x[i] + y[i];
  }
  return x;
}

const std::vector<std::array<int64_t, 3>> kShapes = {
    {1, 1, 1},    {2, 3, 40},   {3, 40, 3},  {5, 24, 40},  {4, 100, 66},
    {1, 65, 129}, {2, 129, 65}, {2, 64, 64}, {1, 40, 300}, {1, 300, 40}};

TEST(NewtonSchulz, IsItsFormula) {
  for (const auto& [experts, rows, cols] : kShapes)
    for (int threads : {1, 2, 3}) {
      Arena arena;
      moe::Run run(threads);
      const Tensor x = draw(arena, DType::f32, {experts, rows, cols}, 1);
      for (int64_t e = 0; e < experts; ++e) {
        const Tensor one = arena.alloc(DType::f32, {rows, cols});
        fill(one, values(x.at(e)));
        ops::newton_schulz(run, {one}, kSteps);
        const std::vector<double> want =
            expected(values(x.at(e)), static_cast<size_t>(rows), static_cast<size_t>(cols));
        EXPECT_LE(relative_error(values(one), want), 1e-5) << rows << " x " << cols;
      }
    }
}

// Of bf16 only operands are rounded, the result is not; where no processor multiplies bf16 nothing
// is.
TEST(NewtonSchulz, OperandsMayBeOfBf16) {
  for (const auto& [experts, rows, cols] : kShapes) {
    if (rows < 24) continue;
    Arena arena;
    moe::Run run(2, DType::bf16);
    const Tensor x = draw(arena, DType::f32, {rows, cols}, 1);
    const std::vector<double> want =
        expected(values(x), static_cast<size_t>(rows), static_cast<size_t>(cols));
    ops::newton_schulz(run, {x}, kSteps);
    EXPECT_LE(relative_error(values(x), want), 4e-2) << rows << " x " << cols;
    if (ops::has_bf16_products())
      EXPECT_GT(relative_error(values(x), want), 1e-5) << "this was not bf16";
  }
}

// Together with others a matrix is one thread's, alone it is all threads'.
TEST(NewtonSchulz, LawOfRowsForMatrices) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& [experts, rows, cols] : kShapes)
      for (int threads : {1, 2, 3}) {
        Arena arena;
        moe::Run run(threads, dtype), other(2, dtype);
        const Tensor all = draw(arena, DType::f32, {experts, rows, cols}, 1);
        std::vector<Tensor> alone;
        for (int64_t e = 0; e < experts; ++e) {
          alone.push_back(arena.alloc(DType::f32, {rows, cols}));
          fill(alone.back(), values(all.at(e)));
          ops::newton_schulz(other, {alone.back()}, kSteps);
        }
        const Tensor small = draw(arena, DType::f32, {4, 6}, 1),
                     large = draw(arena, DType::f32, {150, 140}, 1);
        ops::newton_schulz(run, {small, all, large}, kSteps);
        for (int64_t e = 0; e < experts; ++e)
          EXPECT_TRUE(same_bits(all.at(e), alone[static_cast<size_t>(e)]))
              << e << " of " << experts << ": " << rows << " x " << cols;
      }
}

TEST(NewtonSchulz, AMatrixOfZerosStaysOne) {
  Arena arena;
  moe::Run run(2);
  const Tensor x = draw(arena, DType::f32, {2, 8, 12}, 1);
  fill(x.at(1), std::vector<double>(96, 0));
  ops::newton_schulz(run, {x}, kSteps);
  EXPECT_GT(norm(values(x.at(0))), 1);
  EXPECT_EQ(norm(values(x.at(1))), 0);
}

TEST(NewtonSchulz, RefusesWhatItCannotTake) {
  Arena arena;
  moe::Run run(1);
  const Tensor half = arena.alloc(DType::bf16, {8, 8}), x = draw(arena, DType::f32, {8, 8}, 1),
               vector = arena.alloc(DType::f32, {8});
  EXPECT_FAILS(ops::newton_schulz(run, {half}, kSteps), "x [O, I] or [E, O, I] f32");
  EXPECT_FAILS(ops::newton_schulz(run, {vector}, kSteps), "x [O, I] or [E, O, I] f32");
  EXPECT_FAILS(ops::newton_schulz(run, {x}, {}), "a step or more");
}

TEST(NewtonSchulz, RefusesGaps) {
  Arena arena;
  moe::Run run(1);
  const Tensor x = draw(arena, DType::f32, {8, 8}, 1);
  EXPECT_FAILS(ops::newton_schulz(run, {x.slice_cols(0, 4)}, kSteps), "without gaps");
}

}  // namespace
}  // namespace moe::newton_schulz_test
