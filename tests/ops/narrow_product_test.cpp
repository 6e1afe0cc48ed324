// Products in f32 with matrices of few columns: against the twin for every tail of rows, columns
// and inner numbers and every type of weight, and the law of rows in bits, with lists and threads.
#include "ops/cpu/gemm/narrow_product.h"

#include <numeric>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/twins_matmul.h"
#include "tensor/quant.h"

namespace moe::test::narrow_product_test {
namespace {

std::vector<double> widened(const Tensor& w) {
  std::vector<float> numbers(static_cast<size_t>(w.numel()));
  dequantise(numbers.data(), w.data, w.dtype, w.numel());
  return {numbers.begin(), numbers.end()};
}

Param weight(Arena& arena, DType dtype, int64_t out, int64_t in) {
  const Tensor drawn = draw(arena, DType::f32, {out, in}, 2);
  Param w;
  w.value = dtype == DType::f32 ? drawn : arena.alloc(dtype, {out, in});
  if (dtype != DType::f32) quantise(w.value.data, drawn.as<float>(), dtype, drawn.numel());
  return w;
}

TEST(NarrowProduct, IsTheTwin) {
  moe::Run run(2);
  for (const DType of_x : {DType::f32, DType::bf16})
    for (const DType of_w : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t out : {1, 2, 3, 4, 5, 8, 31, 32})
        for (const int64_t in : {1, 7, 16, 33, 576})
          for (const int64_t rows : {1, 2, 3, 4, 7, 70}) {
            Arena memory;
            Param w = weight(memory, of_w, out, in);
            const Tensor x = draw(memory, of_x, {rows, in + 6}, 1).slice_cols(3, 3 + in);
            const Tensor y = draw(memory, DType::f32, {rows, out + 2}, 3);
            const std::vector<double> edge = values(y.slice_cols(out, out + 2));
            const std::vector<int64_t> all = {0, rows};
            ops::matmul_forward_f32(run, y.slice_cols(0, out), x, w, all);
            const std::string what = fmt::format("x {}, w {} [{}, {}], {} rows", name_of(of_x),
                                                 name_of(of_w), out, in, rows);
            expect_near(y.slice_cols(0, out),
                        matmul_forward_twin(values(x), widened(w.value), all, out, in), kTwinF32,
                        what);
            EXPECT_EQ(values(y.slice_cols(out, out + 2)), edge) << what;
          }
}

TEST(NarrowProduct, ARowsBitsAreItsOwn) {
  constexpr int64_t kRows = 301, kIn = 387;
  for (const DType of_x : {DType::f32, DType::bf16})
    for (const int64_t out : {3, 32}) {
      Arena memory;
      moe::Run one(1), three(3);
      Param w = weight(memory, DType::f32, out, kIn);
      const Tensor x = draw(memory, of_x, {kRows, kIn}, 1),
                   all = memory.alloc(DType::f32, {kRows, out});
      ops::matmul_forward_f32(one, all, x, w, std::vector<int64_t>{0, kRows});
      std::vector<int32_t> back(kRows);
      std::iota(back.rbegin(), back.rend(), 0);
      for (moe::Run* run : {&one, &three})
        for (const int64_t m : {1, 2, 3, 4, 5, 64, 301}) {
          const std::span<const int32_t> list(back.data(), static_cast<size_t>(m));
          const Tensor y = memory.alloc(DType::f32, {m, out});
          ops::matmul_forward_f32(*run, y, {x, list}, w, std::vector<int64_t>{0, m});
          for (int64_t r = 0; r < m; ++r)
            ASSERT_TRUE(same_bits(
                y.slice_rows(r, r + 1),
                all.slice_rows(list[static_cast<size_t>(r)], list[static_cast<size_t>(r)] + 1)));
        }
    }
}

TEST(NarrowProduct, NothingIsMultipliedOfNoRows) {
  moe::Run run(2);
  Arena memory;
  Param w = weight(memory, DType::f32, 3, 8);
  const Tensor x = draw(memory, DType::f32, {4, 8}, 1), y = memory.alloc(DType::f32, {0, 3});
  ops::matmul_forward_f32(run, y, x.slice_rows(0, 0), w, std::vector<int64_t>{0, 0});
  const std::vector<int32_t> list = {2};
  ops::matmul_forward_f32(run, y, {x, std::span(list).first(0)}, w, std::vector<int64_t>{0, 0});
}

TEST(NarrowProduct, RefusesWhatDoesNotFit) {
  moe::Run run(1);
  Arena memory;
  Param w = weight(memory, DType::f32, 3, 8);
  const Tensor x = draw(memory, DType::f32, {4, 8}, 1), y = memory.alloc(DType::f32, {4, 3});
  const std::vector<int64_t> all = {0, 4}, few = {0, 3};
  const std::vector<int32_t> beyond = {0, 1, 2, 4};
  EXPECT_THROW(ops::matmul_forward_f32(run, memory.alloc(DType::f32, {4, 2}), x, w, all), Error);
  EXPECT_THROW(ops::matmul_forward_f32(run, memory.alloc(DType::bf16, {4, 3}), x, w, all), Error);
  EXPECT_THROW(ops::matmul_forward_f32(run, y, draw(memory, DType::f32, {4, 7}, 1), w, all), Error);
  EXPECT_THROW(ops::matmul_forward_f32(run, y, x, w, few), Error);
  EXPECT_THROW(ops::matmul_forward_f32(run, y, {x, beyond}, w, all), Error);
}

}  // namespace
}  // namespace moe::test::narrow_product_test
