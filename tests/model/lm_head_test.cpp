// A head in few bits is cut and all rows meet its slices; one in f32 is not, but its rows are.
#include "model/lm_head.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/lm_head_chunks.h"
#include "support/rowwise.h"
#include "tensor/quant.h"

namespace moe::test::lm_head_test {
namespace {

constexpr int64_t kWidth = 256, kVocab = 20011;

// Loss and gradient of the same rows.
struct Learned {
  std::vector<double> nll, dx;
};

Learned learn(Param& weight, DType dtype, int64_t rows, float cap) {
  moe::Run run(2);
  run.widen = true;
  Arena arena;
  const Tensor x = draw(arena, dtype, {rows, kWidth}, 3), nll = arena.alloc(DType::f32, {rows}),
               dx = arena.alloc(DType::f32, {rows, kWidth});
  std::vector<int32_t> targets;
  std::vector<float> weights;  // of either sign, as preference pairs have them
  for (int64_t r = 0; r < rows; ++r) {
    targets.push_back(r % 7 == 3 ? ops::kIgnoreTarget : static_cast<int32_t>(r * 7919 % kVocab));
    weights.push_back(static_cast<float>(r % 5) - 1.5f);
  }
  const LmHead head{&weight, nullptr, cap};
  LmHeadSaved saved;
  lm_head_loss_forward(run, nll, {}, x, head, targets, {}, saved);
  EXPECT_EQ(saved.logits.empty(), rows * kVocab * 4 > kKeptLogitBytes);
  lm_head_loss_backward(run, dx, head, targets, 0.25f, saved, weights);
  return {values(nll), values(dx)};
}

TEST(LmHead, QuantisedOneLearnsWhatItsNumbersDo) {
  Arena arena;
  const Tensor narrow = arena.alloc(DType::q8_0, {kVocab, kWidth}),
               wide = draw(arena, DType::f32, {kVocab, kWidth}, 5);
  quantise(narrow.data, wide.as<float>(), DType::q8_0, wide.numel());
  dequantise(wide.as<float>(), narrow.data, DType::q8_0, wide.numel());
  Param quantised, plain;
  quantised.bind(narrow);
  plain.bind(wide);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t rows : {41, 853}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(rows));
      ASSERT_LT(logit_chunk_columns(rows, kWidth * static_cast<int64_t>(size_of(dtype))), kVocab);
      const float cap = rows == 41 ? 5.0f : 0.0f;
      const Learned got = learn(quantised, dtype, rows, cap), want = learn(plain, dtype, rows, cap);
      expect_near(got.nll, want.nll, tolerance(DType::f32), "nll");
      expect_near(got.dx, want.dx, tolerance(dtype), "dx");
      EXPECT_EQ(got.nll[3], 0) << "an ignored target";
    }
}

// A head some of whose rows stand apart is the one that has them in their places: the same loss,
// and those rows get the gradient that they would have there.
TEST(LmHead, RowsApartStandForItsOwn) {
  Arena arena;
  const Tensor narrow = arena.alloc(DType::q8_0, {kVocab, kWidth}),
               wide = draw(arena, DType::f32, {kVocab, kWidth}, 5),
               merged = arena.alloc(DType::f32, {kVocab, kWidth});
  quantise(narrow.data, wide.as<float>(), DType::q8_0, wide.numel());
  dequantise(wide.as<float>(), narrow.data, DType::q8_0, wide.numel());
  // few columns have a product of their own
  for (const auto& [count, rows] : {std::pair<int64_t, int64_t>{1, 41}, {3, 853}, {40, 41}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {} {}", count, name_of(dtype), rows));
      const int64_t step = logit_chunk_columns(rows, kWidth * static_cast<int64_t>(size_of(dtype)));
      // a target, both sides of where slices meet, the last one, and others
      const std::vector<int64_t> first = {7919, step - 1, step, kVocab - 1};
      std::set<int64_t> chosen(first.begin(), first.begin() + std::min<int64_t>(count, 4));
      for (int64_t i = 0; std::ssize(chosen) < count; ++i) chosen.insert(i * 6151 % kVocab);
      Param apart = draw_param(arena, {count, kWidth}, 8), full;
      const OwnRows own{&apart, {chosen.begin(), chosen.end()}};
      std::copy_n(wide.as<float>(), wide.numel(), merged.as<float>());
      for (int64_t t = 0; t < count; ++t)
        std::copy_n(apart.value.row<float>(t), kWidth,
                    merged.row<float>(own.ids[static_cast<size_t>(t)]));
      full.value = merged;
      full.grad = arena.alloc(DType::f32, {kVocab, kWidth});
      full.grad_is_zero = true;
      const float cap = rows == 41 ? 5.0f : 0.0f;
      const Learned want = learn(full, dtype, rows, cap);
      for (const Tensor& numbers : {narrow, wide}) {
        SCOPED_TRACE(name_of(numbers.dtype));
        Param head;
        head.bind(numbers);
        head.own_rows = &own;
        apart.grad_is_zero = true;
        const Learned got = learn(head, dtype, rows, cap);
        expect_near(got.nll, want.nll, tolerance(dtype), "nll");
        expect_near(got.dx, want.dx, tolerance(dtype), "dx");
        std::vector<double> grad;
        for (const int64_t id : own.ids)
          for (const double x : values(full.grad.slice_rows(id, id + 1))) grad.push_back(x);
        ASSERT_GT(norm(grad), 0);
        expect_near(apart.grad, grad, tolerance(dtype), "gradient of the rows");
      }
    }
}

}  // namespace
}  // namespace moe::test::lm_head_test
