// Embedding forward, its accumulating form, and backward, against their twins.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"
#include "tensor/quant.h"

namespace moe::test {
namespace {

std::vector<int32_t> drawn_ids(size_t count, uint64_t vocabulary) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(9), i, vocabulary)));
  return ids;
}

TEST(Embedding, TwinBackwardAgreesWithDual) {
  const std::vector<int32_t> ids = {2, 0, 2, 3};
  const auto table = drawn(5 * 3, 1), dy = drawn(4 * 3, 2);
  expect_near(twin::embedding_backward(dy, ids, 5, 3),
              dual_gradient(table,
                            [&](const DualVector& at) {
                              return inner(twin::embedding_forward(at, ids, 3), dy);
                            }),
              kTwinDual, "dtable");
}

TEST(Embedding, ForwardCopiesAndAccumulates) {
  const auto ids = drawn_ids(67, 11);
  for (int64_t cols : kWidths)
    for (DType dtype : kFloats) {
      moe::Run run(2);
      Arena arena;
      Param table;
      table.value = draw(arena, dtype, {11, cols}, 1);
      const Fenced y(arena, DType::f32, 67, cols, 2);
      auto want = twin::embedding_forward(values(table.value), ids, static_cast<size_t>(cols));
      auto sum = values(y.view);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += want[i];
      ops::embedding_forward_acc(run, y.view, table, ids);
      expect_near(y.view, sum, tolerance(DType::f32),
                  label("embedding_forward_acc", {dtype}, cols));
      ops::embedding_forward(run, y.view, table, ids);
      EXPECT_EQ(values(y.view), want);
      EXPECT_TRUE(y.intact());
    }
}

// A table in a file's own type: what dequantise() makes of its rows, in bits.
TEST(Embedding, ReadsTablesOfEveryType) {
  const auto ids = drawn_ids(67, 11);
  const int64_t cols = 512;
  for (DType dtype : {DType::f16, DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                      DType::q4_k, DType::q6_k}) {
    Arena arena;
    const Tensor numbers = draw(arena, DType::f32, {11, cols}, 1),
                 read = arena.alloc(DType::f32, {11, cols});
    Param table;
    table.value = arena.alloc(dtype, {11, cols});
    for (int64_t r = 0; r < 11; ++r) {
      char* at = static_cast<char*>(table.value.data) + r * table.value.row_bytes;
      quantise(at, numbers.row<float>(r), dtype, cols);
      dequantise(read.row<float>(r), at, dtype, cols);
    }
    for (int threads : {1, 2}) {
      moe::Run run(threads);
      const Fenced y(arena, DType::f32, 67, cols, 2);
      const auto want = twin::embedding_forward(values(read), ids, static_cast<size_t>(cols));
      auto sum = values(y.view);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += want[i];
      ops::embedding_forward_acc(run, y.view, table, ids);
      expect_near(y.view, sum, tolerance(DType::f32), std::string(name_of(dtype)));
      ops::embedding_forward(run, y.view, table, ids);
      EXPECT_EQ(values(y.view), want) << name_of(dtype);
      EXPECT_TRUE(y.intact());
    }
  }
}

TEST(Embedding, BackwardAddsRepeatedIdsForAnyThreads) {
  const auto ids = drawn_ids(500, 11);
  for (int64_t cols : kWidths) {
    Arena arena;
    const Fenced dy(arena, DType::f32, 500, cols, 1);
    expect_same_for_any_threads(
        [&](moe::Run& run) {
          Param table = draw_param(arena, {11, cols}, 2);
          fill(table.grad, values(table.value));  // += onto something
          ops::embedding_backward(run, table, dy.view, ids);
          auto want = twin::embedding_backward(values(dy.view), ids, 11, static_cast<size_t>(cols));
          const auto before = values(table.value);
          for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
          expect_near(table.grad, want, tolerance(DType::f32),
                      label("embedding_backward", {}, cols));
          return table.grad;
        },
        "embedding_backward");
  }
}

TEST(Embedding, LawOfRows) {
  Arena arena;
  const Param table = draw_param(arena, {300, 385}, 1);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const Tensor y = run.saved.alloc(DType::f32, {static_cast<int64_t>(which.size()), 385});
        ops::embedding_forward(run, y, table, which);
        return y;
      },
      "embedding");
}

TEST(Embedding, IdsOutsideTheTableAreNamedAndFrozenTablesSkipped) {
  moe::Run run(1);
  Arena arena;
  Param table = draw_param(arena, {4, 8}, 1);
  table.name = "embedding.weight";
  const Tensor y = arena.alloc(DType::f32, {2, 8});
  const std::vector<int32_t> high = {0, 4}, negative = {-1, 0}, fine = {0, 1};
  EXPECT_THROW(ops::embedding_forward(run, y, table, negative), Error);
  EXPECT_THROW(ops::embedding_backward(run, table, y, high), Error);
  try {
    ops::embedding_forward(run, y, table, high);
    FAIL() << "an id outside the table was taken";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("id 4 at position 1"), std::string::npos) << text;
    EXPECT_NE(text.find("embedding.weight"), std::string::npos) << text;
  }
  table.grad = Tensor();
  ops::embedding_backward(run, table, y, fine);
}

}  // namespace
}  // namespace moe::test
