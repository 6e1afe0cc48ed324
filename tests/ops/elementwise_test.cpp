// cast, add, zero, dropout and rope against their twins, bit for bit where the op is exact, and for
// any number of threads.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::elementwise_test {
namespace {

TEST(Cast, EveryPairOfTypesIsExact) {
  for (int64_t cols : kWidths)
    for (DType from : kFloats)
      for (DType to : kFloats)
        for (bool dense : {false, true}) {
          moe::Run run(2);
          Arena arena;
          const Fenced x(arena, from, 67, cols, 1), y(arena, to, 67, cols);
          const Tensor in = dense ? copy_of(arena, x.view) : x.view,
                       out = dense ? arena.alloc(to, {67, cols}) : y.view;
          ops::cast(run, out, in);
          for (int64_t r = 0; r < 67; ++r)
            for (int64_t c = 0; c < cols; ++c)
              ASSERT_EQ(get(out, r, c),
                        to == DType::bf16 ? to_f32(to_bf16(get(in, r, c))) : get(in, r, c));
          EXPECT_TRUE(x.intact() && y.intact());
        }
}

TEST(Add, EveryTripleOfTypesIsExactAndMayBeInPlace) {
  for (int64_t cols : kWidths)
    for (DType of_a : kFloats)
      for (DType of_b : kFloats)
        for (DType of_y : kFloats) {
          moe::Run run(2);
          Arena arena;
          const Fenced a(arena, of_a, 67, cols, 1), b(arena, of_b, 67, cols, 2),
              y(arena, of_y, 67, cols);
          const auto left = values(a.view), right = values(b.view);
          const auto check = [&](const Tensor& sum) {
            size_t i = 0;
            for (int64_t r = 0; r < 67; ++r)
              for (int64_t c = 0; c < cols; ++c, ++i) {
                const float want = static_cast<float>(left[i]) + static_cast<float>(right[i]);
                ASSERT_EQ(get(sum, r, c), of_y == DType::bf16 ? to_f32(to_bf16(want)) : want);
              }
          };
          ops::add(run, y.view, a.view, b.view);
          check(y.view);
          if (of_y == of_a) {
            const Tensor in_place = copy_of(arena, a.view);
            ops::add(run, in_place, in_place, b.view);
            check(in_place);
          }
          if (of_y == of_b) {
            ops::add(run, b.view, a.view, b.view);
            check(b.view);
          }
          EXPECT_TRUE(a.intact() && b.intact() && y.intact());
        }
}

// One rounding of a x + b z, after that of b z.
TEST(AddScaled, EveryTripleOfTypesIsItsFormulaAndMayBeInPlace) {
  constexpr float kA = 0.75f, kB = -1.3f;
  for (int64_t cols : kWidths)
    for (DType of_x : kFloats)
      for (DType of_z : kFloats)
        for (DType of_y : kFloats) {
          moe::Run run(2);
          Arena arena;
          const Fenced x(arena, of_x, 67, cols, 1), z(arena, of_z, 67, cols, 2),
              y(arena, of_y, 67, cols);
          const auto left = values(x.view), right = values(z.view);
          const auto check = [&](const Tensor& sum) {
            size_t i = 0;
            for (int64_t r = 0; r < 67; ++r)
              for (int64_t c = 0; c < cols; ++c, ++i) {
                const float want =
                    std::fma(kA, static_cast<float>(left[i]), kB * static_cast<float>(right[i]));
                ASSERT_NEAR(get(sum, r, c), want,
                            (of_y == DType::bf16 ? 4e-3 : 1e-6) * (1 + std::abs(want)));
              }
          };
          ops::add_scaled(run, y.view, x.view, z.view, kA, kB);
          check(y.view);
          if (of_y == of_x) {
            const Tensor in_place = copy_of(arena, x.view);
            ops::add_scaled(run, in_place, in_place, z.view, kA, kB);
            check(in_place);
          }
          if (of_y == of_z) {
            ops::add_scaled(run, z.view, x.view, z.view, kA, kB);
            check(z.view);
          }
          EXPECT_TRUE(x.intact() && z.intact() && y.intact());
        }
}

// With duals of double, whose tanh is the library's.
TEST(SoftCap, AgreesWithItsFormulaAndMayBeInPlace) {
  constexpr float kCap = 3;
  moe::Run run(2);
  const Tensor x = draw(run.saved, DType::f32, {5, 37}, 1);
  for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] *= 4;
  x.as<float>()[0] = 1e30f;
  x.as<float>()[1] = -1e30f;
  const std::vector<double> dy = drawn(static_cast<size_t>(x.numel()), 2);
  const auto capped = [&](const DualVector& at) {
    DualVector y;
    for (const auto& v : at) y.push_back(Dual(3.0) * tanh(v / Dual(3.0)));
    return y;
  };
  std::vector<double> want_dx =
      dual_gradient(values(x), [&](const DualVector& at) { return inner(capped(at), dy); });
  want_dx[0] = want_dx[1] = 0;
  std::vector<double> want;
  for (const double v : values(x)) want.push_back(3 * std::tanh(v / 3));
  Tensor y = x;
  ops::soft_cap_forward(run, y, x, kCap);
  expect_near(y, want, kTwinF32, "capped");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor dx = run.saved.alloc(dtype, {5, 37});
    fill(dx, dy);
    ops::soft_cap_backward(run, dx, dx, y, kCap);
    expect_near(dx, want_dx, dtype == DType::f32 ? 1e-5 : 1e-2, "its gradient");
  }
}

TEST(Clip, HoldsWithinItsLimitAndMayBeInPlace) {
  constexpr float kLimit = 0.5f;  // which bf16 has
  for (const int64_t cols : kWidths)
    for (const DType dtype : kFloats) {
      const std::string what = label("clip", {dtype}, cols);
      moe::Run run(2);
      Arena arena;
      const Fenced x(arena, dtype, 67, cols, 1), y(arena, dtype, 67, cols),
          dy(arena, dtype, 67, cols, 2), dx(arena, dtype, 67, cols);
      set(x.view, 0, 0, kLimit);  // within
      std::vector<double> want, want_dx;
      const std::vector<double> in = values(x.view), g = values(dy.view);
      for (size_t i = 0; i < in.size(); ++i) {
        const bool within = std::abs(in[i]) <= 0.5;
        want.push_back(within ? in[i] : in[i] > 0 ? 0.5 : -0.5);
        want_dx.push_back(within ? g[i] : 0);
      }
      ops::clip_forward(run, y.view, x.view, kLimit);
      EXPECT_EQ(values(y.view), want) << what;
      ops::clip_backward(run, dx.view, dy.view, x.view, kLimit);
      EXPECT_EQ(values(dx.view), want_dx) << what;
      ops::clip_backward(run, dy.view, dy.view, x.view, kLimit);
      EXPECT_EQ(values(dy.view), want_dx) << what << ", in place";
      ops::clip_forward(run, x.view, x.view, kLimit);
      EXPECT_EQ(values(x.view), want) << what << ", in place";
      EXPECT_TRUE(x.intact() && y.intact() && dy.intact() && dx.intact()) << what;
      EXPECT_THROW(ops::clip_forward(run, y.view, x.view, 0), Error);
    }
}

TEST(Zero, WritesTheViewAndNothingElse) {
  for (int64_t cols : kWidths)
    for (DType dtype : kFloats) {
      moe::Run run(2);
      Arena arena;
      const Fenced y(arena, dtype, 67, cols, 1);
      ops::zero(run, y.view);
      EXPECT_EQ(norm(values(y.view)), 0);
      EXPECT_TRUE(y.intact());
    }
  moe::Run run(2);
  Arena arena;
  const Tensor long_row = draw(arena, DType::f32, {100003}, 1);
  ops::zero(run, long_row);
  EXPECT_EQ(norm(values(long_row)), 0);
}

TEST(Elementwise, SameForAnyThreads) {
  Arena arena;
  const Tensor a = draw(arena, DType::f32, {41, 1003}, 1),
               b = draw(arena, DType::bf16, {41, 1003}, 2);
  const RngKey key = RngKey::from_seed(3);
  expect_same_for_any_threads(
      [&](moe::Run& run) {
        const Tensor y = arena.alloc(DType::f32, {41, 1003});
        ops::add(run, y, a, b);
        ops::add_scaled(run, y, y, b, 0.3f, 1.7f);
        ops::dropout(run, y, y, 0.3f, key);
        return y;
      },
      "add, add_scaled and dropout");
}

TEST(Dropout, AgreesWithTwinInEveryLayout) {
  const RngKey key = RngKey::from_seed(7);
  for (int64_t cols : kWidths)
    for (DType of_x : kFloats)
      for (DType of_y : kFloats)
        for (bool dense : {false, true}) {
          moe::Run run(2);
          Arena arena;
          const Fenced x(arena, of_x, 67, cols, 1), y(arena, of_y, 67, cols);
          const Tensor in = dense ? copy_of(arena, x.view) : x.view,
                       out = dense ? arena.alloc(of_y, {67, cols}) : y.view;
          ops::dropout(run, out, in, 0.25f, key);
          const auto want = twin::dropout(values(in), 0.25f, key);
          expect_near(out, want, tolerance(of_y), label("dropout", {of_x, of_y}, cols));
          const auto got = values(out);
          for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i] == 0, want[i] == 0) << i;
          EXPECT_TRUE(x.intact() && y.intact());
        }
}

TEST(Dropout, KeepsTheRightShareAndItsOwnBackward) {
  moe::Run run(2);
  Arena arena;
  const Tensor ones = arena.alloc(DType::f32, {400, 250}),
               mask = arena.alloc(DType::f32, {400, 250});
  for (int64_t r = 0; r < 400; ++r)
    for (int64_t c = 0; c < 250; ++c) set(ones, r, c, 1);
  const RngKey key = RngKey::from_seed(11);
  ops::dropout(run, mask, ones, 0.2f, key);
  double kept = 0;
  for (double v : values(mask)) kept += v != 0;
  EXPECT_NEAR(kept / 1e5, 0.8, 5 * std::sqrt(0.8 * 0.2 / 1e5));
  // Forward is multiplication by the mask, so backward with the same key is the same
  // multiplication.
  const Tensor x = draw(arena, DType::f32, {400, 250}, 1), y = arena.alloc(DType::f32, {400, 250});
  ops::dropout(run, y, x, 0.2f, key);
  for (int64_t r = 0; r < 400; ++r)
    for (int64_t c = 0; c < 250; ++c) ASSERT_EQ(get(y, r, c), get(x, r, c) * get(mask, r, c));
}

TEST(Dropout, TwinIsItsOwnBackward) {
  const RngKey key = RngKey::from_seed(5);
  const auto x = drawn(40, 1), dy = drawn(40, 2);
  expect_near(twin::dropout(dy, 0.5f, key),
              dual_gradient(
                  x, [&](const DualVector& at) { return inner(twin::dropout(at, 0.5f, key), dy); }),
              kTwinDual, "dx");
}

TEST(Dropout, NothingHappensWithoutAKeyOrAProbability) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {5, 65}, 1), y = arena.alloc(DType::f32, {5, 65});
  ops::dropout(run, y, x, 0.5f, RngKey());
  EXPECT_TRUE(same_bits(x, y));
  ops::dropout(run, x, x, 0, RngKey::from_seed(1));
  EXPECT_TRUE(same_bits(x, y));
  EXPECT_THROW(ops::dropout(run, y, x, 1, RngKey::from_seed(1)), Error);
}

struct RopeCase {
  int64_t heads, width, rotary;  // so many of the width turn
};

ops::RopeFrequencies rope_table(int64_t width, double factor = 1) {
  ops::RopeFrequencies table{{}, factor};
  for (int64_t c = 0; c < width / 2; ++c)
    table.frequency.push_back(
        std::pow(10000.0, -2.0 * static_cast<double>(c) / static_cast<double>(width)));
  return table;
}

TEST(Rope, AgreesWithTwinAndTurnsBack) {
  for (const auto& [heads, width, rotary] :
       {RopeCase{1, 2, 2}, RopeCase{3, 6, 6}, RopeCase{2, 64, 64}, RopeCase{3, 66, 66},
        RopeCase{1, 128, 128}, RopeCase{3, 7, 2}, RopeCase{2, 64, 32}, RopeCase{3, 66, 50}})
    for (DType dtype : kFloats)
      for (bool inverse : {false, true}) {
        const ops::RopeFrequencies table = rope_table(rotary, heads == 3 ? 1.25 : 1);
        const std::string what = label(inverse ? "rope back" : "rope", {dtype}, width);
        moe::Run run(2);
        Arena arena;
        std::vector<int32_t> positions;
        for (int32_t n = 0; n < 67; ++n)
          positions.push_back(n % 9 == 0 ? 100000 + n
                                         : n % 31);  // repeated, unsorted, and far ones
        const Fenced x(arena, dtype, 67, heads * width, 1);
        const auto before = values(x.view);
        const ops::CosSinTable cos_sin = ops::cos_sin_table(run, arena, positions, table);
        ops::rope_acc(run, {x.view}, width, cos_sin, inverse);
        expect_near(x.view,
                    twin::rope(before, positions, heads, table.frequency, table.factor, inverse),
                    tolerance(dtype), what);
        EXPECT_GT(relative_error(values(x.view), before), 0.1) << what;
        ops::rope_acc(run, {x.view}, width, cos_sin, !inverse);
        auto twice = before;
        for (size_t i = 0; i < twice.size(); ++i)
          if (static_cast<int64_t>(i) % width < rotary) twice[i] *= table.factor * table.factor;
        expect_near(x.view, twice, tolerance(dtype), what + " and back");
        EXPECT_TRUE(x.intact()) << what;
      }
}

TEST(Rope, TwinInverseIsItsBackward) {
  const std::vector<int32_t> positions = {0, 5, 17};
  const auto x = drawn(3 * 2 * 6, 1), dy = drawn(3 * 2 * 6, 2);
  const ops::RopeFrequencies table = rope_table(6, 1.5);
  expect_near(
      twin::rope(dy, positions, 2, table.frequency, table.factor, true),
      dual_gradient(x,
                    [&](const DualVector& at) {
                      return inner(
                          twin::rope(at, positions, 2, table.frequency, table.factor, false), dy);
                    }),
      kTwinDual, "dx");
}

TEST(Rope, LawOfRows) {
  for (DType dtype : kFloats) {
    Arena arena;
    const Tensor pool = draw(arena, dtype, {300, 4 * 66}, 1);
    expect_law_of_rows(
        [&](moe::Run& run, std::span<const int32_t> which) {
          std::vector<int32_t> positions;
          for (int32_t row : which) positions.push_back(row * 7 % 113);
          const Tensor x = pick(run.saved, pool, which);
          ops::rope_acc(run, {x}, 66, ops::cos_sin_table(run, run.saved, positions, rope_table(66)),
                        false);
          return x;
        },
        label("rope", {dtype}, 66));
  }
}

TEST(Rope, SeveralTensorsTurnAsEachAlone) {
  moe::Run run(2);
  Arena arena;
  const std::vector<int32_t> positions = {70, 3, 3, 1000};
  const Tensor q = draw(arena, DType::f32, {4, 4 * 66}, 1),
               k = draw(arena, DType::bf16, {4, 66}, 2);
  const Tensor alone_q = draw(arena, DType::f32, {4, 4 * 66}, 1),
               alone_k = draw(arena, DType::bf16, {4, 66}, 2);
  const ops::CosSinTable cos_sin = ops::cos_sin_table(run, arena, positions, rope_table(66));
  ops::rope_acc(run, {q, k}, 66, cos_sin, false);
  ops::rope_acc(run, {alone_q}, 66, cos_sin, false);
  ops::rope_acc(run, {alone_k}, 66, cos_sin, false);
  EXPECT_TRUE(same_bits(q, alone_q));
  EXPECT_TRUE(same_bits(k, alone_k));
}

TEST(Elementwise, ShapesThatDoNotFitAreNamed) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), y = arena.alloc(DType::f32, {3, 7});
  EXPECT_THROW(ops::cast(run, y, x), Error);
  EXPECT_THROW(ops::add(run, x, x, y), Error);
  EXPECT_THROW(ops::add_scaled(run, x, x, y, 1, 1), Error);
  EXPECT_THROW(ops::dropout(run, y, x, 0.5f, RngKey::from_seed(1)), Error);
  const std::vector<int32_t> two = {0, 1}, three = {0, 1, 2};
  EXPECT_THROW(
      ops::rope_acc(run, {x}, 8, ops::cos_sin_table(run, arena, two, rope_table(8)), false), Error);
  EXPECT_THROW(
      ops::rope_acc(run, {x}, 6, ops::cos_sin_table(run, arena, three, rope_table(6)), false),
      Error);
  EXPECT_THROW(
      ops::rope_acc(run, {x}, 4, ops::cos_sin_table(run, arena, three, rope_table(6)), false),
      Error);
  const std::vector<int32_t> before = {0, -1, 2};
  EXPECT_THROW(ops::cos_sin_table(run, arena, before, rope_table(8)), Error);
  EXPECT_THROW(ops::cos_sin_table(run, arena, two, {}), Error);
  try {
    ops::add(run, x, x, y);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("b f32 [3, 7]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moe::test::elementwise_test
