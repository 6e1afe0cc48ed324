// gather_rows and sum_rows against their twins, and as each other's adjoint; rows that are weighed;
// columns that are put, taken and dropped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::rows_test {
namespace {

// 67 tokens with 0 to 4 rows each, rows in a shuffled order: the index lists of a routing.
struct Lists {
  std::vector<int32_t>
      bounds = {0},
      row, token;  // [N+1], [R], [R]: row[bounds[n]..bounds[n+1]) belong to n, token[row] = n
  Lists() {
    constexpr int32_t kTokens = 67;
    for (int32_t n = 0; n < kTokens; ++n) bounds.push_back(bounds.back() + n % 5);
    const int32_t rows = bounds.back();
    for (int32_t r = 0; r < rows; ++r) row.push_back(r * 37 % rows);  // rows = 132 has no factor 37
    token.resize(row.size());
    for (int32_t n = 0; n < kTokens; ++n)
      for (int32_t i = bounds[static_cast<size_t>(n)]; i < bounds[static_cast<size_t>(n) + 1]; ++i)
        token[static_cast<size_t>(row[static_cast<size_t>(i)])] = n;
  }
  int64_t tokens() const { return static_cast<int64_t>(bounds.size()) - 1; }
  int64_t rows() const { return static_cast<int64_t>(row.size()); }
};

TEST(Rows, TwinSumIsTheBackwardOfTwinGather) {
  const Lists lists;
  const auto x = drawn(67 * 3, 1), dy = drawn(static_cast<size_t>(lists.rows()) * 3, 2);
  const auto dx = twin::sum_rows(dy, lists.bounds, lists.row, 3);
  expect_near(dx,
              dual_gradient(x,
                            [&](const DualVector& at) {
                              return inner(twin::gather_rows(at, lists.token, 3), dy);
                            }),
              kTwinDual, "dx");
}

TEST(Rows, GatherCopiesBits) {
  const Lists lists;
  for (int64_t cols : kWidths)
    for (DType dtype : kFloats) {
      moe::Run run(2);
      Arena arena;
      const Fenced x(arena, dtype, lists.tokens(), cols, 1), y(arena, dtype, lists.rows(), cols);
      ops::gather_rows(run, y.view, x.view, lists.token);
      EXPECT_EQ(values(y.view),
                twin::gather_rows(values(x.view), lists.token, static_cast<size_t>(cols)));
      EXPECT_TRUE(x.intact() && y.intact());
    }
}

TEST(Rows, SumAgreesWithTwinAndAccumulates) {
  const Lists lists;
  for (int64_t cols : kWidths)
    for (DType of_x : kFloats)
      for (DType of_y : kFloats) {
        const std::string what = label("sum_rows", {of_x, of_y}, cols);
        moe::Run run(2);
        Arena arena;
        const Fenced x(arena, of_x, lists.rows(), cols, 1), y(arena, of_y, lists.tokens(), cols);
        ops::sum_rows(run, y.view, x.view, lists.bounds, lists.row);
        auto want =
            twin::sum_rows(values(x.view), lists.bounds, lists.row, static_cast<size_t>(cols));
        expect_near(y.view, want, tolerance(of_y), what);
        for (int64_t c = 0; c < cols; ++c)
          EXPECT_EQ(get(y.view, 0, c), 0) << "a token without rows";
        const auto first = values(y.view);
        for (size_t i = 0; i < want.size(); ++i) want[i] += first[i];
        ops::sum_rows_acc(run, y.view, x.view, lists.bounds, lists.row);
        expect_near(y.view, want, tolerance(of_y), what + " accumulated");
        EXPECT_TRUE(x.intact() && y.intact()) << what;
      }
}

TEST(Rows, EachIsTheAdjointOfTheOther) {
  const Lists lists;
  moe::Run run(2);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {lists.tokens(), 65}, 1),
               r = draw(arena, DType::f32, {lists.rows(), 65}, 2);
  const Tensor gathered = arena.alloc(DType::f32, {lists.rows(), 65}),
               summed = arena.alloc(DType::f32, {lists.tokens(), 65});
  ops::gather_rows(run, gathered, x, lists.token);
  ops::sum_rows(run, summed, r, lists.bounds, lists.row);
  const double left = inner(values(gathered), values(r)), right = inner(values(x), values(summed));
  EXPECT_GT(std::abs(left), 1);
  EXPECT_NEAR(left, right, 1e-5 * norm(values(gathered)) * norm(values(r)));
}

TEST(Rows, SumFollowsTheGivenOrder) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = arena.alloc(DType::f32, {3, 1}), y = arena.alloc(DType::f32, {2, 1});
  fill(x, {0x1p24, 1, -0x1p24});
  const std::vector<int32_t> bounds = {0, 3, 6}, row = {0, 1, 2, 0, 2, 1};
  ops::sum_rows(run, y, x, bounds, row);
  EXPECT_EQ(get(y, 0, 0), 0);  // the 1 is lost beside 2^24
  EXPECT_EQ(get(y, 1, 0), 1);
}

TEST(Rows, LawOfRows) {
  for (DType dtype : kFloats) {
    Arena arena;
    const Tensor pool = draw(arena, dtype, {300, 385}, 1);
    expect_law_of_rows(
        [&](moe::Run& run, std::span<const int32_t> which) {
          const int64_t n = static_cast<int64_t>(which.size());
          std::vector<int32_t> bounds = {0}, row;
          for (int32_t id : which) {
            for (int32_t k = 0; k < 3; ++k) row.push_back((id + 31 * k) % 300);
            bounds.push_back(static_cast<int32_t>(row.size()));
          }
          const Tensor y = run.saved.alloc(dtype, {n, 385});
          ops::sum_rows(run, y, pool, bounds, row);
          return y;
        },
        label("sum_rows", {dtype}, 385));
  }
}

TEST(Rows, TwinOfWeighedRowsGoesBack) {
  const auto x = drawn(5 * 3, 1), w = drawn(5, 2), dy = drawn(5 * 3, 3);
  const twin::WeighedRows<double> d = twin::weigh_rows_backward(dy, x, w, 3);
  expect_near(d.dx,
              dual_gradient(x,
                            [&](const DualVector& at) {
                              return inner(twin::weigh_rows(at, constants(w), 3), dy);
                            }),
              kTwinDual, "dx");
  expect_near(d.dweight,
              dual_gradient(w,
                            [&](const DualVector& at) {
                              return inner(twin::weigh_rows(constants(x), at, 3), dy);
                            }),
              kTwinDual, "dweight");
}

// With a list and without one.
TEST(Rows, WeighedRowsAgreeWithTheTwin) {
  const Lists lists;
  for (const int64_t cols : kWidths)
    for (const DType dtype : kFloats)
      for (const bool listed : {true, false}) {
        const std::string what = label("weigh_rows", {dtype}, cols);
        const int64_t rows = lists.rows();
        const auto width = static_cast<size_t>(cols);
        moe::Run run(2);
        Arena arena;
        const Fenced x(arena, dtype, listed ? lists.tokens() : rows, cols, 1),
            y(arena, dtype, rows, cols), dy(arena, dtype, rows, cols, 2),
            dx(arena, dtype, rows, cols);
        const Tensor weight = draw(arena, DType::f32, {rows}, 3),
                     dweight = arena.alloc(DType::f32, {rows});
        const ops::GatheredRows given =
            listed ? ops::GatheredRows(x.view, lists.token) : ops::GatheredRows(x.view);
        const auto in =
            listed ? twin::gather_rows(values(x.view), lists.token, width) : values(x.view);
        ops::weigh_rows_forward(run, y.view, given, weight);
        expect_near(y.view, twin::weigh_rows(in, values(weight), width), tolerance(dtype), what);
        const auto want = twin::weigh_rows_backward(values(dy.view), in, values(weight), width);
        ops::weigh_rows_backward(run, dx.view, dweight, dy.view, given, weight);
        expect_near(dx.view, want.dx, tolerance(dtype), what + " dx");
        expect_near(dweight, want.dweight, tolerance(DType::f32), what + " dweight");
        const auto apart = values(dx.view);
        ops::weigh_rows_backward(run, dy.view, {}, dy.view, given, weight);
        EXPECT_EQ(values(dy.view), apart) << what << ", in place";
        EXPECT_TRUE(x.intact() && y.intact() && dy.intact() && dx.intact()) << what;
        EXPECT_THROW(ops::weigh_rows_forward(run, y.view, given, arena.alloc(DType::f32, {3})),
                     Error);
      }
}

TEST(Rows, LawOfWeighedRows) {
  for (const DType dtype : kFloats) {
    Arena arena;
    const Tensor pool = draw(arena, dtype, {300, 385}, 1),
                 weights = draw(arena, DType::f32, {300, 1}, 2);
    expect_law_of_rows(
        [&](moe::Run& run, std::span<const int32_t> which) {
          const auto n = static_cast<int64_t>(which.size());
          const Tensor weight = pick(run.saved, weights, which).reshape({n}),
                       y = run.saved.alloc(dtype, {n, 385});
          ops::weigh_rows_forward(run, y, {pool, which}, weight);
          return y;
        },
        label("weigh_rows", {dtype}, 385));
    expect_law_of_rows(
        [&](moe::Run& run, std::span<const int32_t> which) {
          const auto n = static_cast<int64_t>(which.size());
          const Tensor weight = pick(run.saved, weights, which).reshape({n}),
                       dy = pick(run.saved, pool, which), dx = run.saved.alloc(dtype, {n, 385}),
                       dweight = run.saved.alloc(DType::f32, {n, 1});
          ops::weigh_rows_backward(run, dx, dweight.reshape({n}), dy, {pool, which}, weight);
          return dweight;
        },
        label("weigh_rows_backward", {dtype}, 385));
  }
}

TEST(Rows, ColumnsArePutAndTaken) {
  const std::vector<int64_t> ids = {5, 0, 16};
  for (DType dtype : kFloats) {
    moe::Run run(2);
    Arena arena;
    const Fenced all(arena, dtype, 67, 17, 1), few(arena, dtype, 67, 3);
    auto left = values(all.view);
    std::vector<double> taken;
    for (size_t r = 0; r < 67; ++r)
      for (const int64_t id : ids) {
        double& x = left[r * 17 + static_cast<size_t>(id)];
        taken.push_back(x);
        x = 0;
      }
    const auto before = values(all.view);
    ops::take_columns(run, few.view, all.view, ids);
    EXPECT_EQ(values(few.view), taken);
    EXPECT_EQ(values(all.view), left);
    if (dtype == DType::f32) {
      ops::put_columns(run, all.view, few.view, ids);
      EXPECT_EQ(values(all.view), before);
    }
    EXPECT_TRUE(all.intact() && few.intact());
    EXPECT_THROW(ops::take_columns(run, few.view, all.view, std::vector<int64_t>{0, 1, 17}), Error);
  }
}

TEST(Rows, AllColumnsButThoseKeptAreDropped) {
  const std::vector<std::vector<int32_t>> lists = {
      {0, 1, 2}, {14, 15, 16}, {0, 8, 16}, {1, 2, 15}, {5, 6, 12}};
  for (DType dtype : kFloats) {
    moe::Run run(2);
    Arena arena;
    const Fenced h(arena, dtype, 5, 17, 1);
    const Tensor kept = arena.alloc(DType::i32, {5, 3});
    auto want = values(h.view);
    for (size_t n = 0; n < 5; ++n) {
      std::copy_n(lists[n].begin(), 3, kept.row<int32_t>(static_cast<int64_t>(n)));
      for (size_t i = 0; i < 17; ++i)
        if (std::find(lists[n].begin(), lists[n].end(), i) == lists[n].end()) want[n * 17 + i] = 0;
    }
    ops::keep_columns(run, h.view, kept);
    EXPECT_EQ(values(h.view), want);
    EXPECT_TRUE(h.intact());
    kept.row<int32_t>(4)[1] = 12;
    EXPECT_THROW(ops::keep_columns(run, h.view, kept), Error) << "a list that does not rise";
    kept.row<int32_t>(4)[1] = 6;
    kept.row<int32_t>(4)[2] = 17;
    EXPECT_THROW(ops::keep_columns(run, h.view, kept), Error) << "a column that is not there";
  }
}

TEST(Rows, ListsThatDoNotFitAreNamed) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), y = arena.alloc(DType::f32, {2, 8});
  const std::vector<int32_t> high = {0, 3}, short_list = {0}, bounds = {0, 1, 2},
                             falling = {0, 2, 1}, beyond = {0, 1, 3}, row = {0, 2};
  EXPECT_THROW(ops::gather_rows(run, y, x, short_list), Error);
  EXPECT_THROW(ops::sum_rows(run, y, x, short_list, row), Error);
  EXPECT_THROW(ops::sum_rows(run, y, x, falling, row), Error);
  EXPECT_THROW(ops::sum_rows(run, y, x, beyond, row), Error);
  EXPECT_THROW(ops::sum_rows(run, y, x, bounds, high), Error);
  const Tensor weight = draw(arena, DType::f32, {2}, 2);
  EXPECT_THROW(ops::weigh_rows_forward(run, y, {x, high}, weight), Error);
  EXPECT_THROW(ops::weigh_rows_backward(run, y, {}, y, {x, high}, weight), Error);
  try {
    ops::gather_rows(run, y, x, high);
    FAIL() << "a token outside x was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("token[1] = 3 is not a row of x f32 [3, 8]"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace moe::test::rows_test
