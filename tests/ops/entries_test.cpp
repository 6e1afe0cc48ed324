// Entries that stand for several tokens: how they are made and how they are attended to, each
// against its scalar twin, whose gradients are those of dual numbers.
#include <fmt/format.h>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"

namespace moe::test::entries_test {
namespace {

using std::exp, std::log;

const std::vector<int64_t> kBounds = {0, 7, 8, 13};
std::vector<int32_t> positions_of(const std::vector<int64_t>& bounds) {
  std::vector<int32_t> positions;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (int64_t p = 0; p < bounds[s + 1] - bounds[s]; ++p)
      positions.push_back(static_cast<int32_t>(p));
  return positions;
}

// ---- making them --------------------------------------------------------------------------------

struct PoolShape {
  int64_t tokens, parts, width;
};

// x, z [N,P*C], bias [M,P*C]
template <class T>
std::vector<T> twin_pool(const std::vector<T>& x, const std::vector<T>& z,
                         const std::vector<T>& bias, const PoolShape& shape) {
  const int64_t all = shape.parts * shape.width;
  std::vector<T> y;
  for (size_t s = 0; s + 1 < kBounds.size(); ++s)
    for (int64_t first = kBounds[s]; first + shape.tokens <= kBounds[s + 1]; first += shape.tokens)
      for (int64_t c = 0; c < shape.width; ++c) {
        T total(0.0), sum(0.0);
        const auto take = [&](int64_t n, int64_t place, int64_t at) {
          const T e = exp(z[static_cast<size_t>(n * all + at)] +
                          bias[static_cast<size_t>(place * all + at)]);
          total += e;
          sum += e * x[static_cast<size_t>(n * all + at)];
        };
        for (int64_t j = 0; j < shape.tokens; ++j) {
          if (shape.parts == 2 && first > kBounds[s]) take(first - shape.tokens + j, j, c);
          take(first + j, j, c + (shape.parts - 1) * shape.width);
        }
        y.push_back(sum / total);
      }
  return y;
}

class Pool : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
};

TEST_P(Pool, MatchesItsTwin) {
  const std::vector<int32_t> positions = positions_of(kBounds);
  for (const PoolShape shape : {PoolShape{3, 1, 70}, {2, 2, 5}, {1, 2, 3}, {4, 1, 9}}) {
    const std::string what =
        fmt::format("{} tokens, {} parts, {}", shape.tokens, shape.parts, shape.width);
    Arena memory;
    const int64_t all = shape.parts * shape.width;
    const Tensor x = draw(memory, dtype, {13, all}, 1), z = draw(memory, dtype, {13, all}, 2);
    Param bias = draw_param(memory, {shape.tokens, all}, 3);
    const auto of_x = values(x), of_z = values(z), of_bias = values(bias.value);
    const std::vector<double> want = twin_pool(of_x, of_z, of_bias, shape);
    const int64_t count = std::ssize(want) / shape.width;
    const Tensor y = memory.alloc(dtype, {count, shape.width}),
                 dy = draw(memory, dtype, {count, shape.width}, 4),
                 dx = memory.alloc(dtype, {13, all}), dz = memory.alloc(dtype, {13, all});
    ops::pool_tokens_forward(run, y, x, z, bias, shape.parts, kBounds, positions, {});
    expect_near(y, want, tolerance(dtype), what);
    ops::pool_tokens_backward(run, dx, dz, bias, dy, x, z, shape.parts, kBounds, positions);
    const auto r = values(dy);
    const auto gradient = [&](const std::vector<double>& at, auto&& with) {
      return dual_gradient(at, [&](const DualVector& v) { return inner(with(v), r); });
    };
    expect_near(dx,
                gradient(of_x,
                         [&](const DualVector& v) {
                           return twin_pool(v, constants(of_z), constants(of_bias), shape);
                         }),
                tolerance(dtype), what + ", dx");
    if (shape.parts * shape.tokens == 1) continue;
    expect_near(dz,
                gradient(of_z,
                         [&](const DualVector& v) {
                           return twin_pool(constants(of_x), v, constants(of_bias), shape);
                         }),
                tolerance(dtype), what + ", dz");
    expect_near(bias.grad,
                gradient(of_bias,
                         [&](const DualVector& v) {
                           return twin_pool(constants(of_x), constants(of_z), v, shape);
                         }),
                tolerance(dtype), what + ", dbias");
  }
}

// What comes piece by piece has the bits of what comes at once, in whatever threads.
TEST_P(Pool, PiecesKeepTheBits) {
  constexpr int64_t kTokens = 23, kWidth = 33;
  for (const int64_t parts : {1, 2})
    for (const int64_t tokens : {1, 3, 8})
      for (const int64_t piece : {1, 2, 5, 8}) {
        Arena memory;
        const int64_t all = parts * kWidth;
        const Tensor x = draw(memory, dtype, {kTokens, all}, 1),
                     z = draw(memory, dtype, {kTokens, all}, 2);
        const Param bias = draw_param(memory, {tokens, all}, 3);
        const Tensor y = memory.alloc(dtype, {kTokens / tokens, kWidth}),
                     got = memory.alloc(dtype, {kTokens / tokens, kWidth});
        const std::vector<int64_t> whole = {0, kTokens};
        std::vector<float> state(static_cast<size_t>(parts * tokens * 2 * all));
        moe::Run one(1);
        ops::pool_tokens_forward(one, y, x, z, bias, parts, whole, positions_of(whole), {});
        int64_t made = 0;
        for (int64_t at = 0; at < kTokens; at += piece) {
          const int64_t end = std::min(kTokens, at + piece), more = end / tokens - at / tokens;
          std::vector<int32_t> positions;
          for (int64_t p = at; p < end; ++p) positions.push_back(static_cast<int32_t>(p));
          float* const states[] = {state.data()};
          ops::pool_tokens_forward(run, more > 0 ? got.slice_rows(made, made + more) : Tensor{},
                                   x.slice_rows(at, end), z.slice_rows(at, end), bias, parts,
                                   std::vector<int64_t>{0, end - at}, positions, states);
          made += more;
        }
        EXPECT_TRUE(same_bits(got, y)) << parts << " parts of " << tokens << ", by " << piece;
      }
}

INSTANTIATE_TEST_SUITE_P(All, Pool,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

// ---- attending to them --------------------------------------------------------------------------

constexpr int64_t kRows = 6, kHeads = 3, kWidth = 5, kEntries = 70;
constexpr double kScale = 0.4;

// Of what was attended to before, an entry of its own for each head, and those that are listed.
template <class T>
std::vector<T> twin_attend(const std::vector<T>& q, const std::vector<T>& entries,
                           const std::vector<double>& o, const std::vector<double>& lse,
                           const Tensor& kept, std::vector<T>* sums = nullptr) {
  std::vector<T> out;
  for (size_t n = 0; n < kRows; ++n)
    for (size_t h = 0; h < kHeads; ++h) {
      std::vector<T> weights = {T(std::exp(lse[n * kHeads + h]))};
      T total = weights[0];
      for (int64_t i = 0; i < kept.cols() && kept.row<int32_t>(static_cast<int64_t>(n))[i] >= 0;
           ++i) {
        const auto row = static_cast<size_t>(kept.row<int32_t>(static_cast<int64_t>(n))[i]);
        T dot(0.0);
        for (size_t c = 0; c < kWidth; ++c)
          dot += q[(n * kHeads + h) * kWidth + c] * entries[row * kWidth + c];
        weights.push_back(exp(T(kScale) * dot));
        total += weights.back();
      }
      if (sums) sums->push_back(log(total));
      for (size_t c = 0; c < kWidth; ++c) {
        T sum = weights[0] * T(o[(n * kHeads + h) * kWidth + c]);
        for (size_t i = 1; i < weights.size(); ++i) {
          const auto row = static_cast<size_t>(kept.row<int32_t>(static_cast<int64_t>(n))[i - 1]);
          sum += weights[i] * entries[row * kWidth + c];
        }
        out.push_back(sum / total);
      }
    }
  return out;
}

// One query sees none, one sees all, others some.
Tensor some_kept(Arena& memory) {
  const Tensor kept = memory.alloc(DType::i32, {kRows, kEntries});
  for (int64_t n = 0; n < kRows; ++n)
    for (int64_t i = 0; i < kEntries; ++i)
      kept.row<int32_t>(n)[i] =
          n == 5 || (n > 0 && i < 3 * n) ? static_cast<int32_t>(n == 5 ? i : i * n) : -1;
  return kept;
}

class Attend : public Pool {};

TEST_P(Attend, MatchesItsTwin) {
  Arena memory;
  const Tensor q = draw(memory, dtype, {kRows, kHeads * kWidth}, 1),
               entries = draw(memory, dtype, {kEntries, kWidth}, 2),
               o = draw(memory, dtype, {kRows, kHeads * kWidth}, 3),
               lse = draw(memory, DType::f32, {kRows, kHeads}, 4), kept = some_kept(memory),
               dout = draw(memory, dtype, {kRows, kHeads * kWidth}, 5),
               dq = draw(memory, dtype, {kRows, kHeads * kWidth}, 6),
               dentries = memory.alloc(dtype, {kEntries, kWidth});
  const auto of_q = values(q), of_e = values(entries), of_o = values(o), of_lse = values(lse),
             r = values(dout);
  std::vector<double> sums, want_dq = values(dq);
  const std::vector<double> want = twin_attend(of_q, of_e, of_o, of_lse, kept, &sums);
  ops::attend_entries_acc(run, o, lse, q, entries, kept, kHeads, static_cast<float>(kScale));
  expect_near(o, want, tolerance(dtype), "o");
  expect_near(lse, sums, kTwinF32, "lse");
  ops::attend_entries_backward_acc(run, dq, dentries, dout, q, entries, o, lse, kept, kHeads,
                                   static_cast<float>(kScale));
  const std::vector<double> added = dual_gradient(of_q, [&](const DualVector& v) {
    return inner(twin_attend(v, constants(of_e), of_o, of_lse, kept), r);
  });
  for (size_t i = 0; i < added.size(); ++i) want_dq[i] += added[i];
  expect_near(dq, want_dq, tolerance(dtype), "dq");
  expect_near(dentries,
              dual_gradient(of_e,
                            [&](const DualVector& v) {
                              return inner(twin_attend(constants(of_q), v, of_o, of_lse, kept), r);
                            }),
              tolerance(dtype), "dentries");
}

TEST_P(Attend, ARowIsItsOwn) {
  Arena memory;
  const Tensor q = draw(memory, dtype, {kRows, kHeads * kWidth}, 1),
               entries = draw(memory, dtype, {kEntries, kWidth}, 2),
               o = draw(memory, dtype, {kRows, kHeads * kWidth}, 3),
               lse = draw(memory, DType::f32, {kRows, kHeads}, 4), kept = some_kept(memory);
  const Tensor alone = memory.copy(o), of_alone = memory.copy(lse);
  ops::attend_entries_acc(run, o, lse, q, entries, kept, kHeads, 0.5f);
  moe::Run one(1);
  for (int64_t n = 0; n < kRows; ++n)
    ops::attend_entries_acc(one, alone.slice_rows(n, n + 1), of_alone.slice_rows(n, n + 1),
                            q.slice_rows(n, n + 1), entries, kept.slice_rows(n, n + 1), kHeads,
                            0.5f);
  EXPECT_TRUE(same_bits(o, alone));
  EXPECT_TRUE(same_bits(lse, of_alone));
}

INSTANTIATE_TEST_SUITE_P(All, Attend,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(EntriesOf, WhatDoesNotFitIsNamed) {
  Arena memory;
  moe::Run run(1);
  const Tensor q = draw(memory, DType::f32, {2, 6}, 1),
               entries = draw(memory, DType::f32, {4, 3}, 2),
               lse = draw(memory, DType::f32, {2, 2}, 3), kept = memory.alloc(DType::i32, {2, 1});
  kept.row<int32_t>(0)[0] = 4;
  kept.row<int32_t>(1)[0] = -1;
  EXPECT_THROW(ops::attend_entries_acc(run, q, lse, q, entries, kept, 2, 1), Error);
  kept.row<int32_t>(0)[0] = 3;
  EXPECT_THROW(ops::attend_entries_acc(run, q, lse, q, entries, kept, 3, 1), Error);
  const Tensor x = draw(memory, DType::f32, {2, 4}, 1), y = memory.alloc(DType::f32, {1, 4});
  const Param bias = draw_param(memory, {2, 4}, 3);
  EXPECT_THROW(ops::pool_tokens_forward(run, y, x, x, bias, 1, std::vector<int64_t>{0, 2},
                                        std::vector<int32_t>{1, 2}, {}),
               Error)
      << "what stood before is not known";
}

}  // namespace
}  // namespace moe::test::entries_test
