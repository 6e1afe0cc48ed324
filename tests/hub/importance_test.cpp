// What errors are weighed by: of matrices that met many rows, few or none.
#include "hub/importance.h"

#include "hub/configs.h"
#include "hub/gguf/gguf_model.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::test::importance_test {
namespace {

// A tensor of a small model as its GGUF has it.
struct Case {
  Model model{small_olmoe()};
  std::vector<FileTensor> tensors;

  Case() : tensors(gguf_target(model, *make_tokenizer("bytes")).tensors) {}
  const FileTensor& named(std::string_view name) const {
    return *std::ranges::find(tensors, name, &FileTensor::name);
  }
  // Every column of every expert the same, from so many rows each.
  static ColumnSums alike(const FileTensor& tensor, std::vector<float> rows, float square) {
    const auto [matrices, cols] = matrices_of(tensor);
    ColumnSums sums{{}, std::move(rows)};
    for (int64_t m = 0; m < matrices; ++m)
      for (int64_t i = 0; i < cols; ++i)
        sums.squares.push_back(square * sums.rows[static_cast<size_t>(m)]);
    return sums;
  }
};

TEST(Importance, OfAMatrixIsTheMeanSquareOfItsColumns) {
  const Case c;
  const FileTensor& tensor = c.named("blk.0.attn_q.weight");
  const int64_t cols = matrices_of(tensor).cols;
  ColumnSums sums = Case::alike(tensor, {1000}, 2);
  sums.squares[3] = 9000;
  const std::vector<float> weights = column_weights(sums, tensor);
  ASSERT_EQ(std::ssize(weights), cols);
  EXPECT_NEAR(weights[0], 2, 1e-5);
  EXPECT_NEAR(weights[3], 9, 1e-5) << "what all matrices have together is this one's own";
}

// An expert that met nothing is weighed as the others of its layer are together, one that met
// little between that and its own.
TEST(Importance, ExpertsWithFewRowsTakeOnThatOfTheOthers) {
  const Case c;
  const FileTensor& up = c.named("blk.0.ffn_up_exps.weight");
  const auto [experts, cols] = matrices_of(up);
  ASSERT_GE(experts, 3);
  std::vector<float> rows(static_cast<size_t>(experts), 1000);
  rows[1] = 0;
  rows[2] = kPriorRows;
  ColumnSums sums = Case::alike(up, rows, 1);
  // Column 5 is large for all that met rows but the third.
  const auto at = [cols = cols](int64_t e, int64_t i) { return static_cast<size_t>(e * cols + i); };
  for (int64_t e = 0; e < experts; ++e)
    if (e != 2) sums.squares[at(e, 5)] *= 50;
  const std::vector<float> weights = column_weights(sums, up);
  const float together = (50 * 1000 * static_cast<float>(experts - 2) + kPriorRows) /
                         (1000 * static_cast<float>(experts - 2) + kPriorRows);
  EXPECT_NEAR(weights[at(0, 5)], 50, 0.1);
  EXPECT_NEAR(weights[at(1, 5)], together, 1e-3);
  EXPECT_NEAR(weights[at(2, 5)], (1 + together) / 2, 1e-3);
  EXPECT_NEAR(weights[at(1, 4)], 1, 1e-5);
}

// The columns of down are an expert's own neurons: what they are in other experts says nothing.
TEST(Importance, ColumnsOfDownAreTheExpertsOwn) {
  const Case c;
  const FileTensor& down = c.named("blk.0.ffn_down_exps.weight");
  const auto [experts, cols] = matrices_of(down);
  std::vector<float> rows(static_cast<size_t>(experts), 1000);
  rows[1] = 0;
  ColumnSums sums = Case::alike(down, rows, 1);
  for (int64_t e = 0; e < experts; ++e) sums.squares[static_cast<size_t>(e * cols + 5)] *= 50;
  const std::vector<float> weights = column_weights(sums, down);
  EXPECT_NEAR(weights[5], 50, 0.5);
  EXPECT_EQ(weights[static_cast<size_t>(cols + 5)], weights[static_cast<size_t>(cols + 4)]);
}

// No weight is zero, so that no scale is chosen by nothing.
TEST(Importance, NoColumnCountsNothing) {
  const Case c;
  const FileTensor& tensor = c.named("blk.0.attn_q.weight");
  ColumnSums sums = Case::alike(tensor, {100}, 0);
  for (const float w : column_weights(sums, tensor)) EXPECT_EQ(w, 1);
  sums.squares[7] = 1e6;
  const std::vector<float> weights = column_weights(sums, tensor);
  for (const float w : weights) EXPECT_GT(w, 0);
  EXPECT_LT(weights[0], 1e-3f * weights[7]);
}

// The older form of llama.cpp has one count for all the experts of a layer.
TEST(Importance, OneCountStandsForAllExperts) {
  const Case c;
  const FileTensor& up = c.named("blk.0.ffn_up_exps.weight");
  const auto [experts, cols] = matrices_of(up);
  ColumnSums apart = Case::alike(up, std::vector<float>(static_cast<size_t>(experts), 100), 1);
  apart.squares[static_cast<size_t>(cols + 5)] *= 50;
  const ColumnSums together{apart.squares, {100}};
  EXPECT_NO_THROW(check_fits(together, up, "old.dat"));
  EXPECT_EQ(column_weights(together, up), column_weights(apart, up));
  Importance importance;
  importance.tensors["blk.0.ffn_up_exps.weight"] = together;
  EXPECT_TRUE(rows_of_experts(importance, c.tensors).empty()) << "it does not tell them apart";
}

TEST(Importance, OfAnotherModelIsRefused) {
  const Case c;
  const FileTensor& tensor = c.named("blk.0.ffn_up_exps.weight");
  EXPECT_FAILS(check_fits({{1, 2, 3}, {1}}, tensor, "a.gguf"),
               "a.gguf: the importance of \"blk.0.ffn_up_exps.weight\"");
}

TEST(Importance, RowsOfExperts) {
  const Case c;
  Importance importance;
  const FileTensor& up = c.named("blk.1.ffn_up_exps.weight");
  std::vector<float> rows;
  for (int64_t e = 0; e < matrices_of(up).matrices; ++e) rows.push_back(static_cast<float>(e));
  for (const char* name : {"blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"})
    importance.tensors[name] = Case::alike(c.named(name), rows, 1);
  importance.tensors["blk.0.attn_q.weight"] = Case::alike(c.named("blk.0.attn_q.weight"), {5}, 1);
  const std::vector<LayerRows> layers = rows_of_experts(importance, c.tensors);
  ASSERT_EQ(layers.size(), 1u);
  EXPECT_EQ(layers[0].layer, 1);
  EXPECT_EQ(layers[0].rows, std::vector<int64_t>(rows.begin(), rows.end()));
}

}  // namespace
}  // namespace moe::test::importance_test
