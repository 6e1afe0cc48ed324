// The products against their scalar twins, the twins against dual numbers, the law of rows in bits,
// and the cache and packing underneath.
#include <fmt/format.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/primitives.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/dual.h"
#include "support/twins_matmul.h"

namespace moe::test::matmul_test {
namespace {

using Offsets = std::vector<int64_t>;
using Op = void (*)(moe::Run&, Tensor, ops::GatheredRows, Param&, std::span<const int64_t>);

Offsets offsets_of(const std::vector<int64_t>& rows) {
  Offsets offsets{0};
  for (int64_t r : rows) offsets.push_back(offsets.back() + r);
  return offsets;
}

// rows of each group, widths. Empty groups, single rows, tails of every kind, odd widths, more than
// one block of 256 and of 512, more rows than dw packs ahead at once.
struct Case {
  std::vector<int64_t> rows;
  int64_t out, in;
};
const std::vector<Case> kCases = {
    {{1}, 8, 384},           {{7}, 3, 5},
    {{0, 3, 0, 1}, 3, 5},    {{16, 15, 17, 0, 2}, 24, 40},
    {{40, 0, 9}, 64, 96},    {{300}, 33, 65},
    {{257, 1, 31}, 70, 100}, {{1, 1, 1, 1, 1, 1, 1, 1}, 48, 64},
    {{520, 30}, 16, 8},      {{600}, 130, 7},
    {{33, 1100}, 20, 17},    {{5, 250}, 256, 129},
    {{600}, 8, 100},         {{1100}, 17, 130},
    {{20, 0, 1300}, 2, 600},
};

std::string label(const Case& c, DType dtype, const char* op) {
  std::string rows;
  for (int64_t r : c.rows) rows += std::to_string(r) + " ";
  return std::string(op) + " " + std::string(name_of(dtype)) + " rows " + rows + "out " +
         std::to_string(c.out) + " in " + std::to_string(c.in);
}

std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// A matrix whose rows lie `gap` elements further apart than they are wide; the gap holds a canary.
Tensor draw_view(Arena& arena, DType dtype, int64_t rows, int64_t cols, int64_t gap,
                 uint64_t seed) {
  return draw(arena, dtype, {rows, cols + gap}, seed).slice_cols(gap / 2, gap / 2 + cols);
}

class Products : public testing::TestWithParam<std::tuple<DType, int, int64_t>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  int64_t gap = std::get<2>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(Products, ForwardIsTheTwin) {
  for (const Case& c : kCases) {
    const Offsets offsets = offsets_of(c.rows);
    Param w = draw_param(memory, {static_cast<int64_t>(c.rows.size()), c.out, c.in}, 2);
    const Tensor x = draw_view(memory, dtype, offsets.back(), c.in, gap, 1);
    const auto want = matmul_forward_twin(values(x), values(w.value), offsets, c.out, c.in);
    const Tensor y = draw_view(memory, dtype, offsets.back(), c.out, gap, 3);
    ops::matmul_forward(run, y, x, w, offsets);
    expect_near(y, want, tolerance(dtype), label(c, dtype, "forward"));
    const Tensor wide = draw_view(memory, DType::f32, offsets.back(), c.out, gap, 3);
    ops::matmul_forward(run, wide, x, w, offsets);
    expect_near(wide, want, tolerance(dtype), label(c, dtype, "forward to f32"));
    const Tensor precise = draw_view(memory, DType::f32, offsets.back(), c.out, gap, 3),
                 x32 = memory.alloc(DType::f32, {x.rows(), x.cols()});
    ops::matmul_forward_f32(run, precise, x, w, offsets);
    ops::cast(run, x32, x);
    ops::matmul_forward(run, wide, x32, w, offsets);
    EXPECT_TRUE(same_bits(precise, wide)) << label(c, dtype, "forward in f32");
  }
}

TEST_P(Products, DxIsTheTwin) {
  for (const Case& c : kCases) {
    const Offsets offsets = offsets_of(c.rows);
    Param w = draw_param(memory, {static_cast<int64_t>(c.rows.size()), c.out, c.in}, 2);
    const Tensor dy = draw_view(memory, dtype, offsets.back(), c.out, gap, 1);
    const auto want = matmul_dx_twin(values(dy), values(w.value), offsets, c.out, c.in);
    for (DType to : {dtype, DType::f32}) {
      const Tensor dx = draw_view(memory, to, offsets.back(), c.in, gap, 3);
      const auto before = values(dx);
      ops::matmul_dx_acc(run, dx, dy, w, offsets);
      expect_near(dx, plus(want, before), tolerance(dtype), label(c, dtype, "dx_acc"));
      ops::matmul_dx(run, dx, dy, w, offsets);
      expect_near(dx, want, tolerance(dtype), label(c, dtype, "dx"));
    }
  }
}

TEST_P(Products, DwIsTheTwin) {
  for (const Case& c : kCases) {
    const Offsets offsets = offsets_of(c.rows);
    Param w = draw_param(memory, {static_cast<int64_t>(c.rows.size()), c.out, c.in}, 2);
    const Tensor dy = draw_view(memory, dtype, offsets.back(), c.out, gap, 1),
                 x = draw_view(memory, dtype, offsets.back(), c.in, gap, 5);
    const auto want = matmul_dw_twin(values(dy), values(x), offsets, c.out, c.in);
    ops::matmul_dw(run, w, dy, x, offsets);
    expect_near(w.grad, want, tolerance(dtype), label(c, dtype, "dw"));
    Param mixed = draw_param(memory, {static_cast<int64_t>(c.rows.size()), c.out, c.in}, 2),
          precise = draw_param(memory, {static_cast<int64_t>(c.rows.size()), c.out, c.in}, 2);
    const Tensor dy32 = memory.alloc(DType::f32, {dy.rows(), dy.cols()}),
                 x32 = memory.alloc(DType::f32, {x.rows(), x.cols()});
    ops::cast(run, dy32, dy);
    ops::cast(run, x32, x);
    ops::matmul_dw(run, mixed, dy32, x, offsets);
    ops::matmul_dw(run, precise, dy32, x32, offsets);
    EXPECT_TRUE(same_bits(mixed.grad, precise.grad)) << label(c, dtype, "dw in f32");
    const auto once = values(w.grad);
    ops::matmul_dw(run, w, dy, x, offsets);
    expect_near(w.grad, plus(once, once), kTwinF32, label(c, dtype, "dw added twice"));
    const Tensor twice = w.grad;
    w.grad = memory.alloc_zeroed(DType::f32, {static_cast<int64_t>(c.rows.size()), c.out, c.in});
    ops::matmul_dw(run, w, dy, x, offsets);
    ops::matmul_dw(run, w, dy, x, offsets);
    EXPECT_TRUE(same_bits(twice, w.grad)) << label(c, dtype, "dw again");
  }
}

// Rows gathered by a list, and matrices given together, are the same products in the same order:
// not a bit differs.
TEST_P(Products, ListedRowsAreTheirCopiesAndFactorsAreSingleCalls) {
  for (const Case& c : kCases) {
    const Offsets offsets = offsets_of(c.rows);
    const int64_t rows = offsets.back(), tokens = rows / 2 + 1;
    std::vector<int32_t> list(rows);
    for (int64_t r = 0; r < rows; ++r)
      list[r] = static_cast<int32_t>(uniform_index(RngKey::from_seed(6), r, tokens));
    const auto experts = static_cast<int64_t>(c.rows.size());
    const auto bank = [&](uint64_t seed) {
      return draw_param(memory, {experts, c.out, c.in}, seed);
    };
    const auto pick = [&](int64_t cols, uint64_t seed) {  // some tokens, and their copies
      const Tensor all = draw_view(memory, dtype, tokens, cols, gap, seed),
                   copy = memory.alloc(dtype, {rows, cols});
      ops::gather_rows(run, copy, all, list);
      return std::pair{ops::GatheredRows(all, list), copy};
    };
    Param a = bank(2), b = bank(3), a_alone = bank(2), b_alone = bank(3);
    const auto [x, x_copy] = pick(c.in, 1);
    const auto matrix = [&](int64_t cols) { return memory.alloc(dtype, {rows, cols}); };
    const Tensor ya = matrix(c.out), yb = matrix(c.out), ya_alone = matrix(c.out),
                 yb_alone = matrix(c.out);
    ops::matmul_forward(run, {{a, ya}, {b, yb}}, x, offsets);
    ops::matmul_forward(run, ya_alone, x_copy, a_alone, offsets);
    ops::matmul_forward(run, yb_alone, x_copy, b_alone, offsets);
    EXPECT_TRUE(same_bits(ya, ya_alone) && same_bits(yb, yb_alone)) << label(c, dtype, "forward");

    const Tensor dx = matrix(c.in), dx_alone = matrix(c.in);
    ops::matmul_dx(run, dx, {{a, ya}, {b, yb}}, offsets);
    ops::matmul_dx(run, dx_alone, ya, a_alone, offsets);
    ops::matmul_dx_acc(run, dx_alone, yb, b_alone, offsets);
    EXPECT_TRUE(same_bits(dx, dx_alone)) << label(c, dtype, "dx");
    const auto [dy, dy_copy] = pick(c.out, 9);
    ops::matmul_dx(run, dx, dy, a, offsets);
    ops::matmul_dx(run, dx_alone, dy_copy, a_alone, offsets);
    EXPECT_TRUE(same_bits(dx, dx_alone)) << label(c, dtype, "dx of listed rows");

    // How many outputs a product of dw has depends on how many there are in all, so these are the
    // same sums but not the same bits.
    ops::matmul_dw(run, {{a, ya}, {b, yb}}, x, offsets);
    ops::matmul_dw(run, a_alone, ya, x_copy, offsets);
    ops::matmul_dw(run, b_alone, yb, x_copy, offsets);
    expect_near(a.grad, values(a_alone.grad), 1e-6, label(c, dtype, "dw a"));
    expect_near(b.grad, values(b_alone.grad), 1e-6, label(c, dtype, "dw b"));
    ops::matmul_dw(run, a, dy, x, offsets);
    ops::matmul_dw(run, a_alone, dy_copy, x_copy, offsets);
    expect_near(a.grad, values(a_alone.grad), 1e-6, label(c, dtype, "dw of listed rows"));
  }
}

TEST_P(Products, NothingBetweenTheRowsIsWritten) {
  const int64_t rows = 37, out = 24, in = 40;
  Param w = draw_param(memory, {out, in}, 2);
  const Tensor whole = draw(memory, dtype, {rows, out + 6}, 3),
               x = draw(memory, dtype, {rows, in}, 1);
  const auto before = values(whole);
  ops::matmul_forward(run, whole.slice_cols(3, 3 + out), x, w, Offsets{0, rows});
  const auto after = values(whole);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c : {int64_t{0}, int64_t{1}, int64_t{2}, out + 3, out + 4, out + 5})
      ASSERT_EQ(after[r * (out + 6) + c], before[r * (out + 6) + c]);
}

std::string products_name(const testing::TestParamInfo<Products::ParamType>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_threads" +
         std::to_string(std::get<1>(info.param)) + (std::get<2>(info.param) != 0 ? "_views" : "");
}
INSTANTIATE_TEST_SUITE_P(All, Products,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 2, 3), testing::Values(0, 6)),
                         products_name);

// ---- products in f32 ----------------------------------------------------------------------------
// What routers compute: long sums with a narrow matrix. A GPU makes these of products in bf16, by
// parts, and in pieces that need not be whole.

struct Long {
  int64_t rows, out, in;
};
const std::vector<Long> kLong = {{264, 8, 2632}, {600, 16, 264}, {1160, 24, 512}, {1800, 8, 256}};

std::string label(const Long& c, const char* op) {
  return fmt::format("{} rows {} out {} in {}", op, c.rows, c.out, c.in);
}

// Rows that lie apart, but such that vectors of 16 bytes fit them.
Tensor draw_apart(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  return draw_view(arena, dtype, rows, cols, 16, seed);
}

TEST(LongProducts, AreAsExactAsF32) {
  for (const Long& c : kLong) {
    Arena memory;
    moe::Run run(2);
    const Offsets all{0, c.rows};
    Param w = draw_param(memory, {c.out, c.in}, 2);
    const Tensor x = draw_apart(memory, DType::bf16, c.rows, c.in, 1),
                 y = draw_apart(memory, DType::f32, c.rows, c.out, 3),
                 dy = draw_apart(memory, DType::f32, c.rows, c.out, 4);
    const auto want = matmul_forward_twin(values(x), values(w.value), all, c.out, c.in),
               want_dw = matmul_dw_twin(values(dy), values(x), all, c.out, c.in),
               want_dx = matmul_dx_twin(values(dy), values(w.value), all, c.out, c.in);
    ops::matmul_forward_f32(run, y, x, w, all);
    expect_near(y, want, 1e-6, label(c, "forward"));

    w.grad = draw(memory, DType::f32, {c.out, c.in}, 5);
    w.grad_is_zero = true;
    ops::matmul_dw(run, w, dy, x, all);
    expect_near(w.grad, want_dw, 1e-6, label(c, "dw"));
    ops::matmul_dw(run, w, dy, x, all);
    expect_near(w.grad, plus(want_dw, want_dw), 1e-6, label(c, "dw added"));

    const Tensor dx = draw_apart(memory, DType::f32, c.rows, c.in, 6);
    const auto before = values(dx);
    ops::matmul_dx_acc(run, dx, dy, w, all);
    expect_near(dx, plus(want_dx, before), 3e-7, label(c, "dx added"));
    ops::matmul_dx(run, dx, dy, w, all);
    expect_near(dx, want_dx, 3e-7, label(c, "dx"));
  }
}

TEST(LongProducts, OfListedRowsAreThoseOfTheirCopies) {
  constexpr int64_t kRows = 300, kOut = 8, kIn = 1032;
  Arena memory;
  moe::Run run(2);
  const Tensor tokens = draw(memory, DType::bf16, {70, kIn}, 1),
               copy = memory.alloc(DType::bf16, {kRows, kIn}),
               dy = draw(memory, DType::f32, {kRows, kOut}, 3),
               y = memory.alloc(DType::f32, {kRows, kOut}),
               y_copy = memory.alloc(DType::f32, {kRows, kOut});
  std::vector<int32_t> list(kRows);
  for (int64_t r = 0; r < kRows; ++r) list[r] = static_cast<int32_t>(r * 37 % 70);
  ops::gather_rows(run, copy, tokens, list);
  Param w = draw_param(memory, {1, kOut, kIn}, 2), w_copy = draw_param(memory, {1, kOut, kIn}, 2);
  ops::matmul_forward_f32(run, y, {tokens, list}, w, Offsets{0, kRows});
  ops::matmul_forward_f32(run, y_copy, copy, w, Offsets{0, kRows});
  EXPECT_TRUE(same_bits(y, y_copy));
  ops::matmul_dw(run, w, dy, {tokens, list}, Offsets{0, kRows});
  ops::matmul_dw(run, w_copy, dy, copy, Offsets{0, kRows});
  EXPECT_TRUE(same_bits(w.grad, w_copy.grad));
}

// Infinite where the twin is, no number where it has none, near it elsewhere.
void expect_like(const Tensor& got, const std::vector<double>& want, const std::string& what) {
  std::vector<double> finite, finite_want;
  const auto all = values(got);
  int64_t infinite = 0, wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isfinite(want[i])) {
      finite.push_back(all[i]);
      finite_want.push_back(want[i]);
      continue;
    }
    infinite += std::isinf(want[i]);
    wrong += std::isnan(want[i]) ? !std::isnan(all[i]) : all[i] != want[i];
  }
  EXPECT_GT(infinite, 0) << what;
  EXPECT_EQ(wrong, 0) << what;
  // 1.06e-6 on an H200: beside the largest number a sum of the others is cut off sooner.
  expect_near(finite, finite_want, 2e-6, what);
}

// The largest number too, which no part of it may exceed, and those below the normal ones.
TEST(LongProducts, KeepInfinitiesAndTheLargestNumbers) {
  constexpr int64_t kRows = 264, kOut = 8, kIn = 1032;
  constexpr float kMost = 3.40282347e38f;
  const Offsets all{0, kRows};
  Arena memory;
  moe::Run run(1);
  Param w = draw_param(memory, {kOut, kIn}, 2);
  const Tensor x = draw(memory, DType::bf16, {kRows, kIn}, 1),
               dy = draw(memory, DType::f32, {kRows, kOut}, 3),
               y = memory.alloc(DType::f32, {kRows, kOut}),
               dx = memory.alloc(DType::f32, {kRows, kIn});
  for (int64_t r = 0; r < kRows; ++r) set(x, r, 9, 0x1p-120f);
  set(w.value, 1, 9, kMost);
  set(w.value, 2, 11, 1e-40f);
  set(w.value, 0, 12, 1.0f);  // mid and lo are 0
  set(x, 3, 12, INFINITY);
  set(x, 70, 1031, -INFINITY);
  set(x, 200, 5, NAN);
  set(w.value, 5, 700, INFINITY);
  ops::matmul_forward_f32(run, y, x, w, all);
  expect_like(y, matmul_forward_twin(values(x), values(w.value), all, kOut, kIn), "forward");

  set(w.value, 1, 9, 1.0f);
  for (int64_t i = 0; i < kIn; ++i) set(x, 30, i, 0x1p-120f), set(w.value, 6, i, 0x1p-110f);
  set(dy, 30, 6, -kMost);
  set(dy, 40, 0, 1e-40f);
  set(dy, 50, 2, -INFINITY);
  set(dy, 60, 3, NAN);
  ops::matmul_dw(run, w, dy, x, all);
  expect_like(w.grad, matmul_dw_twin(values(dy), values(x), all, kOut, kIn), "dw");
  ops::matmul_dx(run, dx, dy, w, all);
  expect_like(dx, matmul_dx_twin(values(dy), values(w.value), all, kOut, kIn), "dx");
}

// ---- the law of rows ----------------------------------------------------------------------------

// Row i of a against row order[i] of b: in bits where the products promise it (brgemm kernels
// without tiles), else within 1e-5, and a few flipped last places in bf16.
void expect_same_rows(const Tensor& a, const Tensor& b, const std::vector<int64_t>& order,
                      const std::string& what) {
  for (int64_t i = 0; i < a.rows(); ++i) {
    const Tensor one = a.slice_rows(i, i + 1), other = b.slice_rows(order[i], order[i] + 1);
    if (ops::products_keep_row_bits(a.dtype))
      ASSERT_TRUE(same_bits(one, other)) << what << " row " << i;
    else
      ASSERT_LE(relative_error(values(one), values(other)), a.dtype == DType::bf16 ? 2e-3 : 1e-5)
          << what << " row " << i;
  }
}

class LawOfRows : public testing::TestWithParam<std::tuple<DType, bool>> {};

TEST_P(LawOfRows, AnyNumberOfRowsAnyNeighboursAnyThreads) {
  const auto [dtype, forward] = GetParam();
  constexpr int64_t kRows = 300, kOut = 200, kIn = 328;
  Arena memory;
  moe::Run one(1), two(2), three(3);
  Param w = draw_param(memory, {1, kOut, kIn}, 2);
  const int64_t inner = forward ? kIn : kOut, cols = forward ? kOut : kIn;
  const Op op = forward ? Op(ops::matmul_forward) : Op(ops::matmul_dx);
  const Tensor x = draw(memory, dtype, {kRows, inner}, 1);
  std::vector<int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  const Tensor all = memory.alloc(dtype, {kRows, cols});
  op(one, all, x, w, Offsets{0, kRows});
  for (moe::Run* run : {&one, &two, &three}) {
    for (int64_t m = 1; m <= kRows; m += run == &three ? 7 : 1) {
      const ArenaScope scope(memory);
      const Tensor y = memory.alloc(dtype, {m, cols});
      op(*run, y, x.slice_rows(kRows - m, kRows), w, Offsets{0, m});
      std::vector<int64_t> last(m);
      std::iota(last.begin(), last.end(), kRows - m);
      expect_same_rows(y, all, last,
                       "M = " + std::to_string(m) + ", threads " + std::to_string(run->threads));
      if (HasFatalFailure()) return;
    }
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const ArenaScope scope(memory);
      for (int64_t i = kRows - 1; i > 0; --i)
        std::swap(order[i],
                  order[uniform_index(RngKey::from_seed(seed + 1), static_cast<uint64_t>(i),
                                      static_cast<uint64_t>(i) + 1)]);
      const Tensor mixed = memory.alloc(dtype, {kRows, inner}),
                   y = memory.alloc(dtype, {kRows, cols});
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t c = 0; c < inner; ++c) set(mixed, i, c, get(x, order[i], c));
      op(*run, y, mixed, w, Offsets{0, kRows});
      expect_same_rows(y, all, order, "shuffled");
      if (HasFatalFailure()) return;
    }
  }
}

// Also sums so long that oneDNN 3 would cut them among threads.
TEST_P(LawOfRows, HoldsForWideSums) {
  const auto [dtype, forward] = GetParam();
  constexpr int64_t kRows = 300, kNarrow = 72;
  for (const int64_t wide : {5000, 20480}) {
    Arena memory;
    moe::Run one(1), four(4);
    Param w =
        forward ? draw_param(memory, {kNarrow, wide}, 2) : draw_param(memory, {wide, kNarrow}, 2);
    const Op op = forward ? Op(ops::matmul_forward) : Op(ops::matmul_dx);
    const Tensor x = draw(memory, dtype, {kRows, wide}, 1),
                 all = memory.alloc(dtype, {kRows, kNarrow});
    op(one, all, x, w, Offsets{0, kRows});
    for (moe::Run* run : {&one, &four})
      for (int64_t m : {1, 2, 3, 8, 15, 16, 17, 32, 100, 299}) {
        const ArenaScope scope(memory);
        const Tensor y = memory.alloc(dtype, {m, kNarrow});
        op(*run, y, x.slice_rows(kRows - m, kRows), w, Offsets{0, m});
        std::vector<int64_t> last(m);
        std::iota(last.begin(), last.end(), kRows - m);
        expect_same_rows(y, all, last,
                         fmt::format("sums of {}, M = {}, threads {}", wide, m, run->threads));
        if (HasFatalFailure()) return;
      }
  }
}

TEST_P(LawOfRows, AGroupIsAloneAndAViewIsACopy) {
  const auto [dtype, forward] = GetParam();
  constexpr int64_t kOut = 72, kIn = 136;
  Arena memory;
  moe::Run run(2);
  const Offsets offsets{0, 5, 5, 290, 291};
  Param bank = draw_param(memory, {4, kOut, kIn}, 2);
  const int64_t inner = forward ? kIn : kOut, cols = forward ? kOut : kIn;
  const Op op = forward ? Op(ops::matmul_forward) : Op(ops::matmul_dx);
  const Tensor x = draw(memory, dtype, {291, inner}, 1), y = memory.alloc(dtype, {291, cols});
  op(run, y, x, bank, offsets);
  const Tensor spaced = draw(memory, dtype, {291, inner + 10}, 9).slice_cols(4, 4 + inner);
  for (int64_t r = 0; r < 291; ++r)
    for (int64_t c = 0; c < inner; ++c) set(spaced, r, c, get(x, r, c));
  for (size_t e = 0; e < 4; ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows == 0) continue;
    Param w;
    w.value = bank.value.at(static_cast<int64_t>(e));
    const Tensor alone = memory.alloc(dtype, {rows, cols}),
                 viewed = memory.alloc(dtype, {rows, cols});
    op(run, alone, x.slice_rows(offsets[e], offsets[e + 1]), w, Offsets{0, rows});
    op(run, viewed, spaced.slice_rows(offsets[e], offsets[e + 1]), w, Offsets{0, rows});
    std::vector<int64_t> at(rows);
    std::iota(at.begin(), at.end(), offsets[e]);
    expect_same_rows(alone, y, at, "alone");
    expect_same_rows(viewed, y, at, "a view");
  }
}

INSTANTIATE_TEST_SUITE_P(All, LawOfRows,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Bool()),
                         [](const auto& given) {
                           return std::string(name_of(std::get<0>(given.param))) +
                                  (std::get<1>(given.param) ? "_forward" : "_dx");
                         });

TEST(LawOfRowsHolds, WhereTheMachineHasAvx2OrNeon) {
  // The bitwise tests above must not be waived on a machine that can keep the promise.
  const std::string isa = ops::isa_name();
  EXPECT_EQ(ops::products_keep_row_bits(DType::f32), isa.starts_with("AVX") || isa == "NEON")
      << isa;
#if defined(__x86_64__)
  const char* cap = std::getenv("MOE_MAX_ISA");
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports knows no AMX
  const bool told = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0, amx_bf16 = (d >> 22 & 1) != 0,
             tiles = (cap == nullptr || *cap == 0) && ops::has_bf16_products() && told && amx_bf16;
  EXPECT_EQ(ops::products_keep_row_bits(DType::bf16), isa.starts_with("AVX") && !tiles) << isa;
#else
  EXPECT_EQ(ops::products_keep_row_bits(DType::bf16), isa == "NEON") << isa;
#endif
}

// ---- cache and packing --------------------------------------------------------------------------

// A sum in tiles is one chain, whatever rows stand beside it.
TEST(LawOfRowsHolds, InTiles) {
  if (!ops::has_tiles()) GTEST_SKIP() << "no AMX here";
  Arena memory;
  moe::Run run(2);
  for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{{64, 96}, {70, 2100}}) {
    Param w = draw_param(memory, {1, out, in}, 2);
    const Tensor x = draw(memory, DType::bf16, {300, in}, 1),
                 all = memory.alloc(DType::f32, {300, out});
    ops::matmul_forward(run, all, x, w, Offsets{0, 300});
    for (const int64_t rows : {5, 16, 17, 31, 47, 257}) {
      const Tensor some = memory.alloc(DType::f32, {rows, out});
      ops::matmul_forward(run, some, x.slice_rows(300 - rows, 300), w, Offsets{0, rows});
      EXPECT_TRUE(same_bits(some, all.slice_rows(300 - rows, 300)))
          << std::to_string(rows) + " rows";
    }
  }
}

TEST(ProductCache, OnePrimitiveRunsOnAllThreadsAtOnce) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    if (dtype == DType::bf16 && !ops::has_bf16_products()) continue;
    constexpr int64_t kRows = 48, kIn = 200, kOut = 144;
    constexpr int kThreads = 8;
    Arena memory;
    const Tensor w = draw(memory, DType::f32, {kIn, kOut}, 2);
    const ops::PackLayout& layout = ops::weights_layout(kIn, kOut, dtype);
    void* packed = memory.alloc_bytes(layout.bytes);
    for (int64_t b = 0; b < ops::row_blocks(layout); ++b)
      ops::pack_straight(packed, layout, dtype, {w.data, DType::f32, kOut}, kIn, b);
    std::vector<Tensor> x, got, want;
    std::vector<const ops::Product*> found(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      x.push_back(draw(memory, dtype, {kRows, kIn}, 10 + t));
      got.push_back(memory.alloc(dtype, {kRows, kOut}));
      want.push_back(memory.alloc(dtype, {kRows, kOut}));
    }
    std::vector<Arena> scratch(kThreads);
    // Threads of the standard library have OpenMP pools of their own, so they find and make
    // products at the same time too.
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        const ops::ThreadLimit limit(1);
        found[t] = &ops::find_product({kRows, kIn, kOut, dtype, dtype, dtype, false, 1});
        void* mine = scratch[t].alloc_bytes(found[t]->scratch_bytes());
        for (int i = 0; i < 200; ++i) found[t]->run(got[t].data, x[t].data, packed, mine);
      });
    for (std::thread& thread : threads) thread.join();
    for (int t = 0; t < kThreads; ++t) {
      EXPECT_EQ(found[t], found[0]);
      found[0]->run(want[t].data, x[t].data, packed,
                    scratch[0].alloc_bytes(found[0]->scratch_bytes()));
      EXPECT_TRUE(same_bits(got[t], want[t])) << t;
      expect_near(got[t], matmul_dx_twin(values(x[t]), values(w), Offsets{0, kRows}, kIn, kOut),
                  tolerance(dtype), "product");
    }
  }
}

TEST(Packing, FollowsTheVersion) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Arena memory;
    moe::Run run(2);
    const Offsets offsets{0, 9, 20};
    Param w = draw_param(memory, {2, 40, 56}, 2);
    const Tensor x = draw(memory, dtype, {20, 56}, 1), y = memory.alloc(DType::f32, {20, 40}),
                 dx = memory.alloc(DType::f32, {20, 56});
    const Tensor dy = draw(memory, dtype, {20, 40}, 7);
    ops::matmul_forward(run, y, x, w, offsets);
    ops::matmul_dx(run, dx, dy, w, offsets);
    const auto stale = values(y), stale_dx = values(dx);
    fill(w.value, values(draw(memory, DType::f32, {2, 40, 56}, 99)));
    ops::matmul_forward(run, y, x, w, offsets);
    EXPECT_EQ(values(y), stale) << "packed copies change only with the version";
    w.touched();
    ops::matmul_forward(run, y, x, w, offsets);
    ops::matmul_dx(run, dx, dy, w, offsets);
    expect_near(y, matmul_forward_twin(values(x), values(w.value), offsets, 40, 56),
                tolerance(dtype), "after touched()");
    expect_near(dx, matmul_dx_twin(values(dy), values(w.value), offsets, 40, 56), tolerance(dtype),
                "after touched()");
    EXPECT_NE(values(dx), stale_dx);
  }
}

// The packed copy of w [K, N] by the definition of PackLayout.
std::vector<char> packed_twin(const Tensor& w, const ops::PackLayout& l, DType dtype) {
  std::vector<char> packed(l.bytes, 0);
  for (int64_t k = 0; k < w.rows(); ++k)
    for (int64_t n = 0; n < w.cols(); ++n) {
      const int64_t in_block = k % l.k_block;
      const int64_t at = k / l.k_block * l.k_stride + n / l.n_block * l.n_stride +
                         (in_block / l.pair * l.n_block + n % l.n_block) * l.pair +
                         in_block % l.pair;
      if (dtype == DType::bf16) reinterpret_cast<bf16*>(packed.data())[at] = to_bf16(get(w, k, n));
      else reinterpret_cast<float*>(packed.data())[at] = get(w, k, n);
    }
  return packed;
}

TEST(Packing, RoundsToNearestEvenAndPadsWithZeros) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    if (dtype == DType::bf16 && !ops::has_bf16_products()) continue;
    for (const auto& [inner, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {5, 3}, {64, 64}, {33, 70}, {95, 130}, {384, 8}, {129, 256}}) {
      Arena memory;
      const Tensor w = draw(memory, DType::f32, {inner, cols}, 4),
                   turned = memory.alloc(DType::f32, {cols, inner});
      // Ties to even both ways, a carry into the exponent, the largest number, a subnormal,
      // infinity, not a number.
      const float special[] = {1.00390625f, 1.01171875f, 1.99999988f, 3.40282347e38f,
                               1e-40f,      -INFINITY,   NAN};
      for (int64_t i = 0; i < 7; ++i) set(w, i % inner, (i * 5) % cols, special[i]);
      for (int64_t k = 0; k < inner; ++k)
        for (int64_t n = 0; n < cols; ++n) set(turned, n, k, get(w, k, n));
      const ops::PackLayout& layout = ops::weights_layout(inner, cols, dtype);
      void* straight = memory.alloc_bytes(layout.bytes);
      void* transposed = memory.alloc_bytes(layout.bytes);
      const std::vector<char> want = packed_twin(w, layout, dtype);
      for (bool stream : {false, true}) {
        if (stream && !ops::streams(layout)) continue;
        const ops::PackHints hints{w.data, inner * cols * 4, stream};
        std::memset(straight, 0xFF, layout.bytes);
        std::memset(transposed, 0xFF, layout.bytes);
        for (int64_t b = 0; b < ops::row_blocks(layout); ++b)
          ops::pack_straight(straight, layout, dtype, {w.data, DType::f32, cols}, inner, b, hints);
        for (int64_t b = 0; b < ops::column_blocks(layout); ++b)
          ops::pack_transposed(transposed, layout, dtype, {turned.data, DType::f32, inner}, b,
                               hints);
        ops::finish_streams();
        EXPECT_EQ(std::memcmp(straight, want.data(), layout.bytes), 0)
            << inner << " x " << cols << " stream " << stream;
        EXPECT_EQ(std::memcmp(transposed, want.data(), layout.bytes), 0)
            << inner << " x " << cols << " stream " << stream;
      }
    }
  }
}

TEST(Packing, TransposesActivationsOfEitherDtype) {
  Arena memory;
  for (DType from : {DType::f32, DType::bf16})
    for (DType to : {DType::f32, DType::bf16})
      for (const auto& [rows, cols, padded] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
               {1, 1, 32}, {7, 5, 32}, {33, 70, 64}, {64, 64, 64}, {100, 9, 128}}) {
        if (from == DType::f32 && to == DType::bf16) continue;  // nobody needs it
        const Tensor in = draw(memory, from, {rows, cols + 3}, 5).slice_cols(1, 1 + cols),
                     out = memory.alloc(to, {cols, padded});
        std::memset(out.data, 0xFF, static_cast<size_t>(out.bytes()));
        ops::transpose(out.data, to, {in.data, from, cols + 3}, rows, cols, padded,
                       memory.alloc_bytes(ops::transpose_scratch_bytes(cols)));
        for (int64_t c = 0; c < cols; ++c)
          for (int64_t r = 0; r < padded; ++r)
            ASSERT_EQ(get(out, c, r), r < rows ? get(in, r, c) : 0)
                << rows << " " << cols << " at " << r << " " << c;
      }
}

// ---- manners ------------------------------------------------------------------------------------

TEST(Manners, FrozenWeightsGetNoGradientAndNoRowsAreFine) {
  Arena memory;
  moe::Run run(2);
  Param w = draw_param(memory, {2, 8, 16}, 2);
  const Tensor grad = w.grad, x = draw(memory, DType::f32, {6, 16}, 1),
               dy = draw(memory, DType::f32, {6, 8}, 3);
  w.grad = Tensor();
  ops::matmul_dw(run, w, dy, x, Offsets{0, 4, 6});
  EXPECT_EQ(norm(values(grad)), 0);
  w.grad = grad;
  const Tensor none = memory.alloc(DType::f32, {0, 16}),
               none_out = memory.alloc(DType::f32, {0, 8});
  ops::matmul_forward(run, none_out, none, w, Offsets{0, 0, 0});
  ops::matmul_dx(run, none, none_out, w, Offsets{0, 0, 0});
  ops::matmul_dw(run, w, none_out, none, Offsets{0, 0, 0});
  EXPECT_EQ(norm(values(grad)), 0);
}

TEST(Manners, RefuseWhatDoesNotFit) {
  Arena memory;
  moe::Run run(1);
  Param w = draw_param(memory, {2, 8, 16}, 2);
  w.name = "experts.up";
  const Tensor x = draw(memory, DType::f32, {6, 16}, 1), y = memory.alloc(DType::f32, {6, 8}),
               half = memory.alloc(DType::bf16, {6, 8});
  EXPECT_THROW(ops::matmul_forward(run, y, y, w, Offsets{0, 4, 6}), Error);
  EXPECT_THROW(ops::matmul_forward(run, half, x, w, Offsets{0, 4, 6}), Error);
  EXPECT_THROW(ops::matmul_forward(run, y, x, w, Offsets{0, 6}), Error);
  EXPECT_THROW(ops::matmul_forward(run, y, x, w, Offsets{0, 4, 5}), Error);
  EXPECT_THROW(ops::matmul_forward(run, y, x, w, Offsets{0, 7, 6}), Error);
  EXPECT_THROW(ops::matmul_dw(run, w, x, y, Offsets{0, 4, 6}), Error);
  const std::vector<int32_t> past = {0, 1, 2, 3, 4, 6};
  EXPECT_THROW(ops::matmul_forward(run, y, {x, past}, w, Offsets{0, 4, 6}), Error);
  EXPECT_THROW(ops::matmul_dw(run, w, y, {x, past}, Offsets{0, 4, 6}), Error);
  Param absent;
  EXPECT_THROW(ops::matmul_forward(run, y, x, absent, Offsets{0, 6}), Error);
  try {
    ops::matmul_forward(run, y, y, w, Offsets{0, 4, 6});
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("experts.up"), std::string::npos) << e.what();
  }
}

// ---- the twins ----------------------------------------------------------------------------------

std::vector<double> draw_doubles(size_t n, uint64_t seed) {
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = normal(RngKey::from_seed(seed), i);
  return out;
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST(Twins, BackwardIsTheDerivative) {
  const Offsets offsets{0, 3, 3, 8};
  const int64_t out = 5, in = 7;
  const auto x = draw_doubles(8 * 7, 1), w = draw_doubles(3 * 5 * 7, 2),
             dy = draw_doubles(8 * 5, 3), vx = draw_doubles(8 * 7, 4),
             vw = draw_doubles(3 * 5 * 7, 5);
  std::vector<Dual<double>> x_dual, w_dual;
  for (size_t i = 0; i < x.size(); ++i) x_dual.emplace_back(x[i], vx[i]);
  for (size_t i = 0; i < w.size(); ++i) w_dual.emplace_back(w[i], vw[i]);
  const auto derivative = [&](const std::vector<Dual<double>>& y) {
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i].d;
    return sum;
  };
  const std::vector<Dual<double>> x_still(x.begin(), x.end()), w_still(w.begin(), w.end());
  const double along_x = derivative(matmul_forward_twin(x_dual, w_still, offsets, out, in)),
               along_w = derivative(matmul_forward_twin(x_still, w_dual, offsets, out, in));
  EXPECT_NEAR(dot(matmul_dx_twin(dy, w, offsets, out, in), vx), along_x,
              kTwinDual * norm(vx) * norm(dy));
  EXPECT_NEAR(dot(matmul_dw_twin(dy, x, offsets, out, in), vw), along_w,
              kTwinDual * norm(vw) * norm(dy));
  EXPECT_GT(std::abs(along_x), 1e-3);
  EXPECT_GT(std::abs(along_w), 1e-3);
}

// Old numbers in a gradient that counts as zero leave no trace, neither in experts with rows nor in
// those without.
TEST(Dw, WritesWhereTheGradientCountsAsZero) {
  struct Bank {
    std::vector<int64_t> offsets;
    int64_t experts, out, in;
  };
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Bank& b : {Bank{{0, 0, 700, 703, 703}, 4, 40, 24}, {{0, 703}, 1, 9, 600}}) {
      moe::Run run(2);
      Arena arena;
      const Tensor dy = draw(arena, dtype, {703, b.out}, 1), x = draw(arena, dtype, {703, b.in}, 2);
      Param zeroed = draw_param(arena, {b.experts, b.out, b.in}, 3),
            stale = draw_param(arena, {b.experts, b.out, b.in}, 3);
      stale.grad = draw(arena, DType::f32, {b.experts, b.out, b.in}, 4);
      stale.grad_is_zero = true;
      ops::matmul_dw(run, zeroed, dy, x, b.offsets);
      ops::matmul_dw(run, stale, dy, x, b.offsets);
      EXPECT_FALSE(stale.grad_is_zero);
      EXPECT_EQ(values(stale.grad), values(zeroed.grad));
      EXPECT_GT(norm(values(stale.grad)), 0);
    }
}

}  // namespace
}  // namespace moe::test::matmul_test
