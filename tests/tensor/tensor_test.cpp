// Views: shapes, rows, slices of columns, and that none of them copies.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace moe::tensor_test {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() : numbers_(2 * 3 * 4) { std::iota(numbers_.begin(), numbers_.end(), 0.0f); }
  std::vector<float> numbers_;
  Tensor bank_{numbers_.data(), DType::f32, {2, 3, 4}};  // [2,3,4]
};

TEST_F(TensorTest, CountsItsNumbers) {
  EXPECT_EQ(bank_.rank, 3);
  EXPECT_EQ(bank_.rows(), 6);
  EXPECT_EQ(bank_.cols(), 4);
  EXPECT_EQ(bank_.numel(), 24);
  EXPECT_EQ(bank_.bytes(), 96);
  EXPECT_EQ(bank_.row_bytes, 16);
  EXPECT_TRUE(bank_.dense());
  EXPECT_EQ(bank_.row<float>(5)[3], 23.0f);
  EXPECT_EQ(describe(bank_), "f32 [2, 3, 4]");
}

TEST_F(TensorTest, EmptyMeansAbsent) {
  const Tensor none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(describe(none), "absent");
  EXPECT_EQ(describe(Tensor(nullptr, DType::bf16, {4, 8})), "bf16 [4, 8]");  // numbers may follow
  EXPECT_FALSE(bank_.empty());
}

TEST_F(TensorTest, EntryOfABank) {
  const Tensor expert = bank_.at(1);  // [3,4]
  EXPECT_EQ(expert.rank, 2);
  EXPECT_EQ(expert.shape[0], 3);
  EXPECT_EQ(expert.shape[1], 4);
  EXPECT_EQ(expert.as<float>(), numbers_.data() + 12);
  const Tensor row = expert.at(2);  // [4]
  EXPECT_EQ(row.rank, 1);
  EXPECT_EQ(row.rows(), 1);
  EXPECT_EQ(row.as<float>()[0], 20.0f);
}

TEST_F(TensorTest, AMatrixIsABankOfOne) {
  EXPECT_EQ(bank_.matrices(), 2);
  const Tensor second = bank_.matrix(1);  // [3,4]
  EXPECT_EQ(second.rank, 2);
  EXPECT_EQ(second.as<float>(), numbers_.data() + 12);
  EXPECT_EQ(second.matrices(), 1);
  for (const int64_t e : {0, 5}) {
    EXPECT_EQ(second.matrix(e).rank, 2) << e;
    EXPECT_EQ(second.matrix(e).as<float>(), second.as<float>()) << e;
  }
}

TEST_F(TensorTest, SlicesOfRowsAndColumns) {
  const Tensor rows = bank_.slice_rows(2, 5);  // [3,4]
  EXPECT_EQ(rows.rows(), 3);
  EXPECT_TRUE(rows.dense());
  EXPECT_EQ(rows.row<float>(0)[0], 8.0f);
  const Tensor cols = bank_.slice_cols(1, 3);  // [6,2]
  EXPECT_EQ(cols.cols(), 2);
  EXPECT_EQ(cols.numel(), 12);
  EXPECT_FALSE(cols.dense());
  EXPECT_EQ(cols.row<float>(4)[1], 18.0f);
  const Tensor both = cols.slice_rows(3, 6).slice_cols(1, 2);  // [3,1]
  EXPECT_EQ(both.row<float>(2)[0], 22.0f);
  EXPECT_EQ(bank_.slice_rows(6, 6).numel(), 0);
}

TEST_F(TensorTest, ReshapeKeepsTheNumbers) {
  const Tensor flat = bank_.reshape({4, 6});  // [4,6]
  EXPECT_EQ(flat.rows(), 4);
  EXPECT_EQ(flat.row_bytes, 24);
  EXPECT_EQ(flat.row<float>(1)[0], 6.0f);
}

TEST_F(TensorTest, WritesGoThrough) {
  bank_.at(0).row<float>(1)[2] = -1;
  EXPECT_EQ(numbers_[6], -1.0f);
}

}  // namespace
}  // namespace moe::tensor_test
