// Joining and splitting heads against their formulas, and their errors.
#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"

namespace moe::test::heads_test {
namespace {

class Heads : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

struct Case {
  int64_t rows, heads, shared, own;
};
constexpr Case kCases[] = {{1, 1, 1, 1}, {3, 4, 8, 16}, {65, 5, 33, 7}, {200, 2, 2, 130}};

TEST_P(Heads, AreJoinedAndSplit) {
  for (const auto& [rows, heads, shared_width, own_width] : kCases) {
    const int64_t width = shared_width + own_width;
    // Views of wider tensors: rows lie apart.
    const Tensor shared =
        draw(memory, dtype, {rows, shared_width + 3}, 1).slice_cols(2, 2 + shared_width);
    const Tensor own = draw(memory, dtype, {rows, heads * own_width}, 2);
    const Tensor y =
        draw(memory, dtype, {rows, heads * width + 5}, 3).slice_cols(4, 4 + heads * width);
    ops::join_heads(run, y, shared, own, heads);
    std::vector<double> want;
    const auto s = values(shared), o = values(own);
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < shared_width; ++c)
          want.push_back(s[static_cast<size_t>(n * shared_width + c)]);
        for (int64_t c = 0; c < own_width; ++c)
          want.push_back(o[static_cast<size_t>((n * heads + h) * own_width + c)]);
      }
    EXPECT_EQ(values(y), want);

    // The adjoint of that: what the heads have in common gets the sum over them.
    const Tensor dy = draw(memory, dtype, {rows, heads * width}, 4);
    const Tensor dshared = draw(memory, dtype, {rows, shared_width}, 5);
    const Tensor down = draw(memory, dtype, {rows, heads * own_width}, 6);
    ops::split_heads(run, dshared, down, dy, heads);
    const auto d = values(dy);
    std::vector<double> sums(static_cast<size_t>(rows * shared_width)), parts;
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = 0; c < width; ++c) {
          const double v = d[static_cast<size_t>((n * heads + h) * width + c)];
          if (c < shared_width) sums[static_cast<size_t>(n * shared_width + c)] += v;
          else parts.push_back(v);
        }
    expect_near(dshared, sums, tolerance(dtype), "dshared");
    EXPECT_EQ(values(down), parts);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Heads,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(HeadsErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Tensor shared = draw(memory, DType::f32, {2, 4}, 1),
               own = draw(memory, DType::f32, {2, 6}, 2),
               y = draw(memory, DType::f32, {2, 13}, 3);  // 2 heads of 4 + 3 are 14
  EXPECT_THROW(ops::join_heads(run, y, shared, own, 2), Error);
  EXPECT_THROW(ops::split_heads(run, shared, own, y, 2), Error);
}

}  // namespace
}  // namespace moe::test::heads_test
