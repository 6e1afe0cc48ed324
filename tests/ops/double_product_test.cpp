// Against sums of doubles, element by element, in every layout.
#include "ops/double_product.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/gradient.h"

namespace moe::double_product_test {
namespace {

using ops::Doubles;

std::vector<double> drawn(int64_t count, uint64_t seed) {
  return test::drawn(static_cast<size_t>(count), seed, 0.3);
}

double& at(const Doubles& m, int64_t i, int64_t j) { return m.data[i * m.row + j * m.col]; }

// A view of rows by cols in a larger matrix, either way round.
Doubles view(std::vector<double>& memory, int64_t rows, int64_t cols, bool turned) {
  const int64_t height = turned ? cols : rows, width = turned ? rows : cols;
  const Doubles whole{memory.data(), height + 1, width + 3, width + 3, 1};
  const Doubles part = whole.block(1, 2, height, width);
  return turned ? part.transposed() : part;
}

TEST(DoubleProduct, IsTheSumOfProducts) {
  for (const auto& [m, n, depth] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {6, 16, 8}, {7, 17, 5}, {13, 3, 96}, {40, 50, 33}, {5, 4, 0}})
    for (int layout = 0; layout < 8; ++layout) {
      const auto room = [](int64_t rows, int64_t cols) { return (rows + 4) * (cols + 4); };
      std::vector<double> am = drawn(room(m, depth), 1), bm = drawn(room(depth, n), 2),
                          cm = drawn(room(m, n), 3), want = cm, alone = cm;
      const Doubles a = view(am, m, depth, (layout & 1) != 0),
                    b = view(bm, depth, n, (layout & 2) != 0);
      const bool turned = (layout & 4) != 0;
      const Doubles expected = view(want, m, n, turned);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; k < depth; ++k) at(expected, i, j) -= at(a, i, k) * at(b, k, j);
      ops::subtract_product(3, view(cm, m, n, turned), a, b);
      ops::subtract_product(1, view(alone, m, n, turned), a, b);
      EXPECT_EQ(cm, alone) << "threads change no bit";
      for (size_t i = 0; i < cm.size(); ++i)
        ASSERT_NEAR(cm[i], want[i], 1e-13) << m << " " << n << " " << depth << " " << layout;
    }
}

TEST(DoubleProduct, LeavesOutWhatLiesAboveTheDiagonal) {
  const int64_t n = 75, depth = 20;
  std::vector<double> am = drawn(n * depth, 1), all(static_cast<size_t>(n * n)), lower = all;
  const Doubles a{am.data(), n, depth, depth, 1};
  const auto square = [n](std::vector<double>& m) { return Doubles{m.data(), n, n, n, 1}; };
  ops::subtract_product(2, square(all), a, a.transposed());
  ops::subtract_product(2, square(lower), a, a.transposed(), ops::Written::lower);
  int64_t untouched = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      if (j <= i) EXPECT_EQ(at(square(lower), i, j), at(square(all), i, j));
      untouched += at(square(lower), i, j) == 0 ? 1 : 0;
    }
  EXPECT_GT(untouched, n * n / 4);
}

}  // namespace
}  // namespace moe::double_product_test
