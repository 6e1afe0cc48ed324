// Products with a matrix that has a low-rank term against those with the matrix that has it merged:
// forward, to the rows and to the halves, of matrices and banks, in all types; and that a row's
// bits are its own.
#include <fmt/format.h>

#include <numeric>

#include "ops/banks.h"
#include "ops/ops.h"
#include "support/check.h"
#include "tensor/quant.h"

namespace moe::test::low_rank_test {
namespace {

using Offsets = std::vector<int64_t>;

struct Shape {
  int64_t experts, out, in, rank;  // experts 0: a matrix
  Offsets offsets;
  bool shared = false;               // one pair of halves for all experts
  std::vector<int64_t> picked = {};  // the experts that have a pair; empty: all

  int64_t pairs() const {
    if (experts == 0 || shared) return 1;
    return picked.empty() ? experts : static_cast<int64_t>(picked.size());
  }
  // Which pair the expert has, or -1.
  int64_t pair_of(int64_t e) const {
    const auto at = std::find(picked.begin(), picked.end(), e);
    if (!picked.empty() && at == picked.end()) return -1;
    return pairs() == 1 ? 0 : picked.empty() ? e : at - picked.begin();
  }
};

// A matrix of this type with a drawn term, and the same with it merged, in f32.
struct Hung {
  Arena arena;
  Param w, a, b, merged;
  LowRankTerm term;

  Hung(const Shape& s, DType dtype) {
    const int64_t experts = std::max<int64_t>(1, s.experts), halves = s.pairs();
    w.name = "w";
    w.value =
        shaped(arena.alloc_bytes(static_cast<size_t>(experts * s.out * bytes_of(dtype, s.in))),
               dtype, s.experts, s.out, s.in);
    const Tensor drawn = draw(arena, DType::f32, {experts * s.out, s.in}, 1);
    quantise(w.value.data, drawn.as<float>(), dtype, drawn.numel());
    a.value = drawn_half(halves, s.rank, s.in, 2, s.experts > 0 && !s.shared);
    b.value = drawn_half(halves, s.out, s.rank, 3, s.experts > 0 && !s.shared);
    a.grad = arena.alloc_zeroed(DType::f32, {a.value.rows(), a.value.cols()});
    b.grad = arena.alloc_zeroed(DType::f32, {b.value.rows(), b.value.cols()});
    for (Param* half : {&a, &b}) half->grad = half->value, half->grad.data = zeroed(half->value);
    term = {&a, &b, 0.75f, s.picked};
    w.term = &term;
    merged.value = shaped(arena.alloc_bytes(static_cast<size_t>(experts * s.out * s.in) * 4),
                          DType::f32, s.experts, s.out, s.in);
    dequantise(merged.value.as<float>(), w.value.data, dtype, experts * s.out * s.in);
    for (int64_t r = 0; r < experts * s.out; ++r)
      for (int64_t i = 0; i < s.in; ++i)
        for (int64_t k = 0; k < s.rank; ++k) {
          const int64_t e = s.pair_of(r / s.out), o = e * s.out + r % s.out;
          if (e < 0) continue;
          merged.value.as<float>()[r * s.in + i] +=
              0.75f * b.value.as<float>()[o * s.rank + k] *
              a.value.as<float>()[(e * s.rank + k) * s.in + i];
        }
  }
  static Tensor shaped(void* data, DType dtype, int64_t experts, int64_t out, int64_t in) {
    return experts > 0 ? Tensor(data, dtype, {experts, out, in}) : Tensor(data, dtype, {out, in});
  }
  Tensor drawn_half(int64_t experts, int64_t rows, int64_t cols, uint64_t seed, bool bank) {
    const Tensor t = draw(arena, DType::f32, {experts * rows, cols}, seed, 0.4f);
    return bank ? t.reshape({experts, rows, cols}) : t;
  }
  void* zeroed(const Tensor& like) {
    void* data = arena.alloc_bytes(static_cast<size_t>(like.bytes()));
    std::memset(data, 0, static_cast<size_t>(like.bytes()));
    return data;
  }
};

const Shape kShapes[] = {{0, 96, 64, 4, {0, 37}},
                         {0, 40, 160, 1, {0, 3}},
                         {0, 64, 96, 40, {0, 300}},
                         {3, 48, 64, 4, {0, 5, 5, 90}},
                         {4, 64, 32, 8, {0, 1, 3, 4, 6}},
                         {3, 48, 64, 4, {0, 5, 40, 90}, true},
                         {4, 48, 64, 4, {0, 5, 40, 40, 90}, false, {1, 3}},
                         {4, 48, 64, 4, {0, 5, 40, 40, 90}, false, {3}},
                         {3, 64, 32, 8, {0, 900, 2000, 3000}, false, {0, 2}},
                         {4, 48, 64, 4, {0, 5, 40, 60, 90}, true, {1, 2}}};

// The one expert that has a pair gets no row.
const Shape kUnmet = {4, 48, 64, 4, {0, 5, 40, 40, 90}, false, {2}};

class LowRank : public testing::TestWithParam<DType> {};

TEST_P(LowRank, ProductsAreThoseOfTheMergedMatrix) {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.push_back(kUnmet);
  for (const Shape& s : shapes)
    for (const DType x_dtype : {DType::f32, DType::bf16})
      for (const bool widen : {false, true}) {
        SCOPED_TRACE(fmt::format("{} experts, {} x {}, {} rows, {}, widen {}", s.experts, s.out,
                                 s.in, s.offsets.back(), name_of(x_dtype), widen));
        Hung h(s, GetParam());
        moe::Run run(2);
        run.widen = widen;
        const int64_t rows = s.offsets.back();
        const Tensor x = draw(h.arena, x_dtype, {rows, s.in}, 5),
                     dy = draw(h.arena, x_dtype, {rows, s.out}, 6);
        const auto like = [&](int64_t cols, DType dtype) {
          return h.arena.alloc(dtype, {rows, cols});
        };
        // Rows that are rounded to bytes lose more than the type's own numbers.
        const double tolerance = x_dtype == DType::bf16               ? kTwinBf16
                                 : is_quantised(GetParam()) && !widen ? 2e-2
                                                                      : kTwinF32;
        for (const DType y_dtype : {DType::f32, x_dtype}) {
          const Tensor y = like(s.out, y_dtype), want = like(s.out, DType::f32);
          ops::matmul_forward(run, y, x, h.w, s.offsets);
          ops::matmul_forward(run, want, x, h.merged, s.offsets);
          expect_near(y, values(want), tolerance, "y");
          const Tensor dx = like(s.in, y_dtype), dwant = like(s.in, DType::f32);
          ops::matmul_dx(run, dx, dy, h.w, s.offsets);
          ops::matmul_dx(run, dwant, dy, h.merged, s.offsets);
          expect_near(dx, values(dwant), x_dtype == DType::bf16 ? kTwinBf16 : kTwinF32, "dx");
          ops::matmul_dx_acc(run, dx, dy, h.w, s.offsets);
          ops::matmul_dx_acc(run, dwant, dy, h.merged, s.offsets);
          expect_near(dx, values(dwant), x_dtype == DType::bf16 ? kTwinBf16 : kTwinF32, "dx more");
        }
      }
}

TEST_P(LowRank, WithoutATermOfItsOwnAWeightBesideOneIsUntouched) {
  const Shape s = kShapes[0];
  Hung h(s, GetParam()), plain(s, GetParam());
  plain.w.term = nullptr;
  moe::Run run(2);
  const Tensor x = draw(h.arena, DType::f32, {37, s.in}, 5),
               y = h.arena.alloc(DType::f32, {37, s.out}),
               beside = h.arena.alloc(DType::f32, {37, s.out}),
               alone = h.arena.alloc(DType::f32, {37, s.out});
  ops::matmul_forward(run, {{h.w, y}, {plain.w, beside}}, x, s.offsets);
  ops::matmul_forward(run, alone, x, plain.w, s.offsets);
  EXPECT_TRUE(same_bits(beside, alone));
  EXPECT_FALSE(same_bits(y, alone));
  ops::matmul_forward_banks(run,
                            std::vector<ops::BankOperands>{{{{h.w, beside}}, x, s.offsets},
                                                           {{{plain.w, alone}}, x, s.offsets}});
  EXPECT_TRUE(same_bits(beside, y));
}

// dw = dy^T x of the whole matrix gives da = s b^T dw and db = s dw a^T; the matrix gets none.
TEST_P(LowRank, TheHalvesGetTheirGradients) {
  for (const Shape& s : kShapes)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} experts, {} x {}, {}", s.experts, s.out, s.in, name_of(dtype)));
      Hung h(s, GetParam());
      moe::Run run(2);
      const int64_t rows = s.offsets.back();
      const Tensor x = draw(h.arena, dtype, {rows, s.in}, 5),
                   dy = draw(h.arena, dtype, {rows, s.out}, 6);
      for (int repeat = 0; repeat < 2; ++repeat) ops::matmul_dw(run, h.w, dy, x, s.offsets);
      EXPECT_TRUE(h.w.grad.empty());
      std::vector<double> da(static_cast<size_t>(h.a.value.numel())),
          db(static_cast<size_t>(h.b.value.numel()));
      const auto xs = values(x), dys = values(dy), as = values(h.a.value), bs = values(h.b.value);
      for (size_t e = 0; e + 1 < s.offsets.size(); ++e)
        for (int64_t r = s.offsets[e]; r < s.offsets[e + 1]; ++r) {
          const auto at = [](const std::vector<double>& m, int64_t i) {
            return m[static_cast<size_t>(i)];
          };
          const int64_t half = s.pair_of(static_cast<int64_t>(e));
          if (half < 0) continue;
          for (int64_t k = 0; k < s.rank; ++k) {
            double t = 0, u = 0;
            for (int64_t i = 0; i < s.in; ++i)
              t += at(xs, r * s.in + i) * at(as, (half * s.rank + k) * s.in + i);
            for (int64_t o = 0; o < s.out; ++o)
              u += at(dys, r * s.out + o) * at(bs, (half * s.out + o) * s.rank + k);
            for (int64_t o = 0; o < s.out; ++o)
              db[static_cast<size_t>((half * s.out + o) * s.rank + k)] +=
                  2 * 0.75 * t * at(dys, r * s.out + o);
            for (int64_t i = 0; i < s.in; ++i)
              da[static_cast<size_t>((half * s.rank + k) * s.in + i)] +=
                  2 * 0.75 * u * at(xs, r * s.in + i);
          }
        }
      const double tolerance = dtype == DType::bf16 ? kTwinBf16 : kTwinF32;
      expect_near(h.a.grad, da, tolerance, "da");
      expect_near(h.b.grad, db, tolerance, "db");
    }
}

TEST_P(LowRank, ARowIsItsOwn) {
  if (!ops::products_keep_row_bits(DType::f32)) GTEST_SKIP() << "products here keep a row to 1e-5";
  for (const Shape& s : {kShapes[0], kShapes[3], kShapes[6]}) {
    Hung h(s, GetParam());
    moe::Run one(1), two(2);
    const int64_t rows = s.offsets.back();
    const Tensor x = draw(h.arena, DType::f32, {rows, s.in}, 5),
                 y = h.arena.alloc(DType::f32, {rows, s.out}),
                 alone = h.arena.alloc(DType::f32, {rows, s.out});
    ops::matmul_forward(two, y, x, h.w, s.offsets);
    for (size_t e = 0; e + 1 < s.offsets.size(); ++e)
      for (int64_t r = s.offsets[e]; r < s.offsets[e + 1]; ++r) {
        Offsets single(s.offsets.size(), 0);
        for (size_t i = e + 1; i < single.size(); ++i) single[i] = 1;
        ops::matmul_forward(one, alone.slice_rows(r, r + 1), x.slice_rows(r, r + 1), h.w, single);
      }
    if (is_quantised(GetParam()) && ops::quantised_products_in_tiles())
      expect_near(y, {alone.as<float>(), alone.as<float>() + alone.numel()}, 1e-2, "rows alone");
    else EXPECT_TRUE(same_bits(y, alone)) << s.experts;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowRank,
                         testing::Values(DType::f32, DType::bf16, DType::q8_0, DType::q4_1),
                         [](const auto& item) { return std::string(name_of(item.param)); });

}  // namespace
}  // namespace moe::test::low_rank_test
