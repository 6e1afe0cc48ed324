// Embedding forward, its accumulating form, and backward, against their twins.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"
#include "tensor/quant.h"

namespace moe::test::embedding_test {
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
                      DType::q4_k, DType::q6_k, DType::q2_0}) {
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

// Rows apart stand in the place of the table's own, and get the gradient that those would.
TEST(Embedding, RowsApartStandForTheTablesOwn) {
  const auto ids = drawn_ids(500, 11);
  const int64_t cols = 256;
  for (DType dtype : {DType::f32, DType::bf16, DType::q8_0}) {
    SCOPED_TRACE(name_of(dtype));
    moe::Run run(2);
    Arena arena;
    const Tensor drawn_table = draw(arena, DType::f32, {11, cols}, 1),
                 dy = draw(arena, DType::f32, {500, cols}, 4);
    Param table, rows = draw_param(arena, {3, cols}, 2), whole = draw_param(arena, {11, cols}, 3);
    table.value = arena.alloc(dtype, {11, cols});
    for (int64_t r = 0; r < 11; ++r) {
      char* at = static_cast<char*>(table.value.data) + r * table.value.row_bytes;
      quantise(at, drawn_table.row<float>(r), dtype, cols);
      dequantise(whole.value.row<float>(r), at, dtype, cols);
    }
    const OwnRows own{&rows, {0, 7, 10}};
    for (int64_t t = 0; t < 3; ++t)
      std::copy_n(rows.value.row<float>(t), cols,
                  whole.value.row<float>(own.ids[static_cast<size_t>(t)]));
    table.own_rows = &own;
    const Tensor got = arena.alloc(DType::f32, {500, cols}),
                 want = arena.alloc(DType::f32, {500, cols});
    ops::embedding_forward(run, got, table, ids);
    ops::embedding_forward(run, want, whole, ids);
    EXPECT_TRUE(same_bits(got, want));
    EXPECT_THROW(ops::embedding_forward_acc(run, got, table, ids), Error);
    for (const bool trained : {false, true}) {
      for (Param* p : {&rows, &whole}) p->grad_is_zero = true;
      if (trained) {
        table.grad = arena.alloc(DType::f32, {11, cols});
        table.grad_is_zero = true;
      }
      ops::embedding_backward(run, table, dy, ids);
      ops::embedding_backward(run, whole, dy, ids);
      for (int64_t r = 0; r < 11; ++r) {
        const int64_t place = own.place_of(r);
        const Tensor wanted = whole.grad.slice_rows(r, r + 1);
        if (place >= 0) EXPECT_TRUE(same_bits(rows.grad.slice_rows(place, place + 1), wanted)) << r;
        if (!trained) continue;
        const Tensor left = table.grad.slice_rows(r, r + 1);
        if (place >= 0) EXPECT_EQ(norm(values(left)), 0) << r;
        else EXPECT_TRUE(same_bits(left, wanted)) << r;
      }
    }
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
}  // namespace moe::test::embedding_test
