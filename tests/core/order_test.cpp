#include "core/order.h"

#include <gtest/gtest.h>

#include <span>

namespace moe::order_test {
namespace {

TEST(FallingOrder, IsByValueAndThenByPlace) {
  EXPECT_EQ(falling_order(std::vector<double>{1, 3, 2, 3, 0.5}),
            (std::vector<int64_t>{1, 3, 2, 0, 4}));
  EXPECT_EQ(falling_order(std::vector<int64_t>{7, 7, 7}), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(falling_order(std::vector<float>{}).empty());
}

TEST(FallingOrder, CountsFromTheBeginningOfAView) {
  const std::vector<double> all = {9, 1, 2, 8};
  EXPECT_EQ(falling_order<int32_t>(std::span(all).subspan(1, 2)), (std::vector<int32_t>{1, 0}));
}

TEST(Middle, OfAnEvenNumberIsTheMeanOfTwo) {
  EXPECT_EQ(middle_of({5}), 5);
  EXPECT_EQ(middle_of({9, 1, 4}), 4);
  EXPECT_EQ(middle_of({9, 1, 4, 2}), 3);
}

}  // namespace
}  // namespace moe::order_test
