// Weights as files hold them: every type against its f32 twin, experts in pieces, copies made an
// expert at a time within a budget, and the law of rows over the products of few rows and of many.
#include <fmt/format.h>

#include <array>
#include <numeric>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/memory.h"
#include "ops/cpu/gemm/f32_product.h"
#include "ops/cpu/gemm/packed.h"
#include "ops/cpu/gemm/row_product.h"
#include "ops/cpu/quant/quant_product.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "support/check.h"
#include "tensor/quant.h"

namespace moe::test::weights_test {
namespace {

using Offsets = std::vector<int64_t>;

constexpr DType kTypes[] = {DType::f32,  DType::bf16, DType::f16,  DType::q8_0,
                            DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                            DType::q4_k, DType::q6_k, DType::q2_0};

// A bank in a file's type, and the same numbers as f32 in memory.
struct Twins {
  Param weight, master;
};
Twins draw_twins(Arena& arena, DType dtype, int64_t experts, int64_t out, int64_t in,
                 uint64_t seed = 7) {
  Twins t;
  const Tensor drawn = draw(arena, DType::f32, {experts, out, in}, seed);
  t.weight.name = "experts.up.weight";
  t.weight.value =
      Tensor(arena.alloc_bytes(static_cast<size_t>(experts * out * bytes_of(dtype, in))), dtype,
             {experts, out, in});
  t.master.value = arena.alloc(DType::f32, {experts, out, in});
  quantise(t.weight.value.data, drawn.as<float>(), dtype, drawn.numel());
  dequantise(t.master.value.as<float>(), t.weight.value.data, dtype, drawn.numel());
  return t;
}

// All bytes of a product's output. Forward: x [R, in] -> [R, out].
std::vector<char> product(moe::Run& run, Param& w, DType x_dtype, const Offsets& offsets,
                          bool forward, DType out_dtype = DType::f32, uint64_t seed = 3) {
  Arena arena;
  const int64_t rows = offsets.back(), out = w.value.shape[1], in = w.value.shape[2];
  const Tensor x = draw(arena, x_dtype, {rows, forward ? in : out}, seed),
               y = arena.alloc_zeroed(out_dtype, {rows, forward ? out : in});
  if (forward) ops::matmul_forward(run, y, x, w, offsets);
  else ops::matmul_dx(run, y, x, w, offsets);
  return {static_cast<char*>(y.data), static_cast<char*>(y.data) + y.bytes()};
}

// Of the copies of experts, bytes.
int64_t taken(Param& w) { return ops::copies_taken(std::array{&w}); }
void limit(Param& w, std::optional<int64_t> bytes) { ops::limit_copies(std::array{&w}, bytes); }

class Weights : public testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  DType dtype = std::get<0>(GetParam()), x_dtype = std::get<1>(GetParam());
  Arena arena;
  moe::Run run{2};

  // The least a packed copy can take.
  int64_t least_copy(const Param& w) const {
    if (is_quantised(dtype)) return w.value.bytes();
    const bool halves = (x_dtype == DType::bf16 && ops::has_bf16_products()) ||
                        (dtype != DType::f32 && ops::has_f32_products(dtype));
    return w.value.numel() * (halves ? 2 : 4);
  }
  // A width the type can have, about this.
  int64_t width(int64_t about) const {
    return (about + block_of(dtype).elements - 1) / block_of(dtype).elements *
           block_of(dtype).elements;
  }
  static std::vector<double> numbers(const std::vector<char>& bytes) {
    const auto* x = reinterpret_cast<const float*>(bytes.data());
    return std::vector<double>(x, x + bytes.size() / sizeof(float));
  }
  // Whether blocks of another number of rows leave their bits: multiplied in tiles they do not.
  bool promises_bits(bool forward) const {
    return forward && is_quantised(dtype) ? !ops::quantised_products_in_tiles()
                                          : ops::products_keep_row_bits(x_dtype);
  }
  // Whether a sum over `in` is cut as that of the twin is, which oneDNN may multiply.
  bool sums_as_its_twin(int64_t in) const {
    const bool in_f32 = x_dtype == DType::f32 || !ops::has_bf16_products();
    return !in_f32 || ops::sum_stretch(in, dtype) == ops::sum_stretch(in, DType::f32);
  }
  // What a forward product over `in` must equal: the twin's bits, its numbers where sums are cut
  // otherwise, or of a quantised weight, whose products round x to bytes, those within a percent.
  void expect_forward(const std::vector<char>& got, const std::vector<char>& want, int64_t in,
                      const std::string& what) const {
    if (is_quantised(dtype)) expect_near(numbers(got), numbers(want), 1e-2, what);
    else if (sums_as_its_twin(in)) EXPECT_EQ(got, want) << what;
    else expect_near(numbers(got), numbers(want), 1e-6, what);
  }
};

TEST_P(Weights, AreTheirF32Twins) {
  for (const auto& [out, about] :
       std::vector<std::pair<int64_t, int64_t>>{{24, 40}, {70, 99}, {130, 256}, {20, 701}})
    for (const Offsets& offsets :
         {Offsets{0, 1, 1, 3}, Offsets{0, 40, 57, 57}, Offsets{0, 0, 61, 62}}) {
      const int64_t in = width(about);
      Twins t = draw_twins(arena, dtype, 3, out, in);
      for (bool forward : {true, false}) {
        const std::vector<char> want = product(run, t.master, x_dtype, offsets, forward),
                                got = product(run, t.weight, x_dtype, offsets, forward);
        if (forward)
          expect_forward(got, want, in, std::to_string(out) + " x " + std::to_string(in));
        else EXPECT_EQ(got, want) << out << " x " << in;
        EXPECT_EQ(product(run, t.weight, x_dtype, offsets, forward), got)
            << "from the copies of the call before";
        if (x_dtype == DType::bf16 && !(forward && (is_quantised(dtype) || !sums_as_its_twin(in))))
          EXPECT_EQ(product(run, t.weight, x_dtype, offsets, forward, DType::bf16),
                    product(run, t.master, x_dtype, offsets, forward, DType::bf16));
      }
    }
}

TEST_P(Weights, LieInPiecesAndAtAnyAddress) {
  const Offsets offsets{0, 2, 2, 21};
  Twins t = draw_twins(arena, dtype, 3, 48, width(66));
  Param apart;
  std::vector<const void*> places(3);
  const auto bytes = static_cast<size_t>(t.weight.value.bytes() / 3);
  for (int64_t e : {2, 0, 1}) {  // in another order than the experts', at odd distances
    auto* copy =
        static_cast<char*>(arena.alloc_bytes(bytes + 64)) + (dtype == DType::f32 ? 4 : 2) * (e + 1);
    std::memcpy(copy, t.weight.expert(e).data, bytes);
    places[static_cast<size_t>(e)] = copy;
  }
  apart.bind(t.weight.value, places);
  for (bool forward : {true, false})
    EXPECT_EQ(product(run, apart, x_dtype, offsets, forward),
              product(run, t.weight, x_dtype, offsets, forward));
}

TEST_P(Weights, KeepTheirBitsBeyondTheBudget) {
  const Offsets few{0, 1, 2, 4}, many{0, 100, 117, 120};
  Twins t = draw_twins(arena, dtype, 3, 70, width(64));
  for (const Offsets& offsets : {few, many})
    for (bool forward : {true, false}) {
      Param unlimited;
      unlimited.bind(t.weight.value);
      const std::vector<char> want = product(run, unlimited, x_dtype, offsets, forward);
      EXPECT_EQ(taken(unlimited), 0) << "experts that were met once";
      product(run, unlimited, x_dtype, offsets, forward);
      const int64_t all = taken(unlimited), each = all / 3;
      ASSERT_EQ(each * 3, all);
      if (!forward && is_quantised(dtype)) {
        ASSERT_EQ(all, 0) << "what a gradient needs of a quantised weight is not kept";
        continue;
      }
      ASSERT_GE(each, least_copy(t.weight) / 3);
      for (const int64_t fit : {0, 1, 2}) {
        Param w;
        w.bind(t.weight.value);
        limit(w, fit * each + each - 1);
        const size_t held = run.scratch.mark().used;
        for (const char* time : {"the first time", "the second time", "the third time"}) {
          const std::vector<char> got = product(run, w, x_dtype, offsets, forward);
          if (promises_bits(forward)) EXPECT_EQ(got, want) << fit << " copies, " << time;
          else
            expect_near(numbers(got), numbers(want), 1e-5, fmt::format("{} copies, {}", fit, time));
        }
        EXPECT_EQ(taken(w), fit * each);
        EXPECT_EQ(run.scratch.mark().used, held);
      }
    }
}

// From the second call on; the only matrix of its kind at once.
TEST_P(Weights, AreKeptWhereRowsMeetThemAgain) {
  Twins t = draw_twins(arena, dtype, 4, 64, width(64));
  t.weight.bind(t.weight.value);
  product(run, t.weight, x_dtype, {0, 0, 3, 3, 3}, true);
  EXPECT_EQ(taken(t.weight), 0);
  product(run, t.weight, x_dtype, {0, 0, 3, 3, 3}, true);
  const int64_t each = taken(t.weight);
  EXPECT_GE(each, least_copy(t.weight) / 4);
  EXPECT_LE(each, t.weight.value.bytes() / 4 * 2);
  product(run, t.weight, x_dtype, {0, 0, 7, 7, 7}, true);
  EXPECT_EQ(taken(t.weight), each);
  for (const int64_t kept : {1, 3}) {
    product(run, t.weight, x_dtype, {0, 2, 7, 7, 9}, true);
    EXPECT_EQ(taken(t.weight), kept * each);
  }
  for (const int64_t kept : {3, is_quantised(dtype) ? 3 : 4}) {
    product(run, t.weight, x_dtype, {0, 2, 2, 2, 2}, false);
    EXPECT_EQ(taken(t.weight), kept * each);
  }
  Twins one = draw_twins(arena, dtype, 1, 64, width(64));
  one.weight.bind(one.weight.value);
  product(run, one.weight, x_dtype, {0, 3}, true);
  EXPECT_EQ(taken(one.weight), each);
}

// Weights that are limited together share the room, whichever comes first, and a limit that is
// moved holds from then on.
TEST_P(Weights, ShareALimit) {
  Twins a = draw_twins(arena, dtype, 2, 32, width(64)),
        b = draw_twins(arena, dtype, 2, 32, width(64), 8);
  for (Param* w : {&a.weight, &b.weight}) w->bind(w->value);
  const std::array both{&a.weight, &b.weight};
  const Offsets one{0, 2, 2}, all{0, 2, 4};
  for (Param* w : both) product(run, *w, x_dtype, all, true);  // none of them is new any more
  EXPECT_EQ(ops::copies_taken(both), 0);
  product(run, a.weight, x_dtype, one, true);
  const int64_t each = taken(a.weight);
  ops::limit_copies(both, 2 * each);  // what is there counts
  product(run, b.weight, x_dtype, all, true);
  EXPECT_EQ(taken(a.weight), each);
  EXPECT_EQ(taken(b.weight), each);
  ops::limit_copies(both, 3 * each);
  product(run, a.weight, x_dtype, all, true);
  product(run, b.weight, x_dtype, all, true);
  EXPECT_EQ(ops::copies_taken(both), 3 * each);
  limit(b.weight, 4 * each);  // of both
  product(run, b.weight, x_dtype, all, true);
  EXPECT_EQ(ops::copies_taken(both), 4 * each);
  Twins c = draw_twins(arena, dtype, 1, 32, width(64), 9);
  c.weight.bind(c.weight.value);
  // without a, which holds on to its own
  ops::limit_copies(std::array{&b.weight, &c.weight}, 3 * each);
  product(run, c.weight, x_dtype, {0, 2}, true);
  EXPECT_EQ(taken(c.weight), each);
}

// Nobody said how much: half of what is free when the first copy is made.
TEST(WeightsOfFiles, TakeHalfOfWhatIsFreeAtMost) {
  Arena arena;
  moe::Run run(1);
  Twins t = draw_twins(arena, DType::f32, 1, 32, 64);
  t.weight.bind(t.weight.value);
  limit(t.weight, {});
  const int64_t free = available_memory();
  product(run, t.weight, DType::f32, {0, 2}, true);
  EXPECT_GT(taken(t.weight), 0);
  EXPECT_TRUE(ops::packed_weight(t.weight).budget->may_have_room(free / 4));
  EXPECT_FALSE(ops::packed_weight(t.weight).budget->may_have_room(free));
}

TEST_P(Weights, ArePackedAnewWhenTheirVersionMoves) {
  Twins t = draw_twins(arena, dtype, 2, 32, width(64));
  t.weight.bind(t.weight.value);
  const Offsets offsets{0, 2, 5};
  product(run, t.weight, x_dtype, offsets, true);
  const std::vector<char> before = product(run, t.weight, x_dtype, offsets, true);
  const int64_t used = taken(t.weight);
  Twins other = draw_twins(arena, dtype, 2, 32, width(64), 8);
  std::memcpy(t.weight.value.data, other.weight.value.data,
              static_cast<size_t>(t.weight.value.bytes()));
  t.weight.touched();
  const std::vector<char> after = product(run, t.weight, x_dtype, offsets, true);
  EXPECT_NE(after, before);
  EXPECT_EQ(after, product(run, other.weight, x_dtype, offsets, true));
  EXPECT_EQ(taken(t.weight), used);
}

// Threads that run one model at the same time, each with a Run of its own: whoever meets an expert
// that was met before packs it, once, and all get the same bits.
TEST_P(Weights, ArePackedOnceByThreadsThatMeet) {
  const Offsets offsets{0, 3, 7, 30};
  Twins t = draw_twins(arena, dtype, 3, 70, width(64));
  for (const bool whole : {false, true}) {
    const Tensor value = whole ? t.master.value : t.weight.value;
    const auto multiply = [&](Param& w) {
      moe::Run own(1);
      product(own, w, x_dtype, offsets, true);
      return product(own, w, x_dtype, offsets, true);
    };
    Param alone;
    if (whole) alone.value = value;
    else alone.bind(value);
    const std::vector<char> want = multiply(alone);
    for (int round = 0; round < 8; ++round) {
      Param w;
      if (whole) w.value = value;
      else w.bind(value);
      std::vector<std::vector<char>> got(4);
      std::vector<std::thread> threads;
      for (auto& bytes : got) threads.emplace_back([&] { bytes = multiply(w); });
      for (std::thread& thread : threads) thread.join();
      for (const auto& bytes : got)
        EXPECT_EQ(bytes, want) << (whole ? "packed whole, round " : "packed by expert, round ")
                               << round;
      EXPECT_EQ(taken(w), taken(alone)) << "a copy is taken once";
    }
  }
}

// Rows of all counts and threads have the bits of the longest run's; one to four rows go another
// way than more do. Quantised weights that many rows meet in tiles give these rows bits of their
// own.
TEST_P(Weights, KeepTheLawOfRows) {
  if (!is_quantised(dtype) && !promises_bits(true)) GTEST_SKIP() << "products promise no bits here";
  const int64_t out = 130, most = 300;
  for (const int64_t about : {384, 640, 1184}) {
    if (is_quantised(dtype) && about > 384) continue;
    const int64_t in = width(about);
    Twins t = draw_twins(arena, dtype, 1, out, in);
    const Tensor x = draw(arena, x_dtype, {most, in}, 3);
    for (DType y_dtype : {DType::f32, x_dtype}) {
      const Tensor all = arena.alloc(y_dtype, {most, out}),
                   some = arena.alloc(y_dtype, {most, out}),
                   few = arena.alloc(y_dtype, {ops::kFewestTiledRows - 1, out});
      ops::matmul_forward(run, all, x, t.weight, Offsets{0, most});
      ops::matmul_forward(run, few, x.slice_rows(0, few.rows()), t.weight, Offsets{0, few.rows()});
      EXPECT_TRUE(!promises_bits(true) ||
                  std::memcmp(few.data, all.data, static_cast<size_t>(few.bytes())) == 0);
      for (int threads : {1, 2})
        for (const int64_t rows : {1, 2, 3, 4, 5, 17, 64, 299}) {
          moe::Run other(threads);
          const Tensor y = some.slice_rows(0, rows);
          ops::matmul_forward(other, y, x.slice_rows(0, rows), t.weight, Offsets{0, rows});
          const Tensor& want = rows <= few.rows() ? few : all;
          EXPECT_EQ(std::memcmp(y.data, want.data, static_cast<size_t>(y.bytes())), 0)
              << rows << " rows of " << in << ", " << threads << " threads";
        }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Weights,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::Values(DType::f32, DType::bf16)),
                         [](const auto& which) {
                           return std::string(name_of(std::get<0>(which.param))) + "_rows_" +
                                  std::string(name_of(std::get<1>(which.param)));
                         });

// Factors of different types in one call, some of them quantised, as files mix them.
TEST(WeightsOfFiles, MixTypesInOneCall) {
  Arena arena;
  moe::Run run(2);
  const Offsets offsets{0, 1, 1, 3, 20};
  Twins gate = draw_twins(arena, DType::q8_0, 4, 72, 256),
        up = draw_twins(arena, DType::q6_k, 4, 40, 256),
        third = draw_twins(arena, DType::bf16, 4, 24, 256);
  const Tensor x = draw(arena, DType::f32, {5, 256}, 5);
  std::vector<int32_t> token(20);
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<int32_t>(i * 3 % 5);
  std::vector<Tensor> together, alone;
  for (const int64_t out : {72, 40, 24}) {
    together.push_back(arena.alloc(DType::f32, {20, out}));
    alone.push_back(arena.alloc(DType::f32, {20, out}));
  }
  ops::matmul_forward(
      run, {{gate.weight, together[0]}, {third.weight, together[2]}, {up.weight, together[1]}},
      {x, token}, offsets);
  size_t i = 0;
  for (Param* w : {&gate.weight, &up.weight, &third.weight}) {
    const Tensor spread = arena.alloc(DType::f32, {20, 256});
    ops::gather_rows(run, spread, x, token);
    ops::matmul_forward(run, alone[i], spread, *w, offsets);
    EXPECT_EQ(values(together[i]), values(alone[i])) << i;
    ++i;
  }
}

// Rows of a group are gathered by a list, and operands share them, whichever way the product goes.
TEST(WeightsOfFewRows, ArePickedAndShared) {
  Arena arena;
  moe::Run run(2);
  const int64_t experts = 5, in = 512;
  Twins gate = draw_twins(arena, DType::bf16, experts, 200, in),
        up = draw_twins(arena, DType::bf16, experts, 136, in);
  for (DType x_dtype : {DType::f32, DType::bf16}) {
    const Tensor x = draw(arena, x_dtype, {4, in}, 5);
    const std::vector<int32_t> token = {3, 1, 0, 2, 1};
    const Offsets offsets{0, 1, 1, 3, 4, 5};
    const Tensor y1 = arena.alloc(DType::f32, {5, 200}),
                 y2 = arena.alloc(DType::f32, {5, 150}).slice_cols(7, 143);
    ops::matmul_forward(run, {{gate.weight, y1}, {up.weight, y2}}, {x, token}, offsets);
    for (auto& [twins, y] : {std::pair<Twins*, Tensor>{&gate, y1}, {&up, y2}})
      for (size_t e = 0; e < experts; ++e)
        for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
          std::vector<double> want(static_cast<size_t>(y.cols()));
          for (int64_t n = 0; n < y.cols(); ++n)
            for (int64_t k = 0; k < in; ++k)
              want[static_cast<size_t>(n)] +=
                  static_cast<double>(get(x, token[static_cast<size_t>(r)], k)) *
                  get(twins->master.value.at(static_cast<int64_t>(e)), n, k);
          expect_near(values(y.slice_rows(r, r + 1)), want, 1e-5, "row " + std::to_string(r));
        }
  }
}

TEST(WeightsOfFewRows, HaveAProductOfTheirOwn) {
  if (!ops::has_f32_products(DType::f16)) GTEST_SKIP() << "no AVX2 here";
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t inner : {64, 384, 576, 768, 1024, 1536, 2048, 4096})
      EXPECT_GT(ops::sum_stretch(inner, dtype), 0) << inner << " " << name_of(dtype);
}

// oneDNN's AMX products may choose blocks of 48, 32 or 16 columns for weights of few columns,
// though it chose 64 where the stretch was looked for.
TEST(WeightsOfFewRows, AreNotReadInBlocksOfOtherWidths) {
  constexpr int64_t kInner = 384, kColumns = 192;
  for (DType dtype : {DType::f32, DType::bf16}) {
    if (ops::has_f32_products(dtype)) continue;  // there is no layout but the engine's own
    const int64_t pair = dtype == DType::bf16 ? 2 : 1;
    const auto layout = [&](int64_t width) {
      const int64_t block = 16 * pair;
      return ops::PackLayout{.inner = kInner,
                             .cols = kColumns,
                             .k_block = block,
                             .n_block = width,
                             .k_stride = block * width,
                             .n_stride = kInner * width,
                             .pair = pair,
                             .bytes = static_cast<size_t>(kInner * kColumns) * size_of(dtype)};
    };
    EXPECT_EQ(ops::row_stretch(layout(64), dtype), ops::sum_stretch(kInner, dtype));
    for (const int64_t width : {16, 32, 48})
      EXPECT_EQ(ops::row_stretch(layout(width), dtype), 0) << width << " " << name_of(dtype);
  }
}

TEST(WeightsOfFewRows, AreTheSumsForAnyWidth) {
  Arena arena;
  moe::Run run(2);
  constexpr int64_t kInner = 128;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const int64_t out : {1, 16, 17, 32, 48, 63, 64, 65, 80, 96, 112, 144, 160, 176}) {
      Twins t = draw_twins(arena, dtype, 1, out, kInner);
      const Tensor x = draw(arena, dtype, {2, kInner}, 5), y = arena.alloc(DType::f32, {2, out});
      ops::matmul_forward(run, y, x, t.weight, Offsets{0, 2});
      std::vector<double> want;
      for (int64_t r = 0; r < 2; ++r)
        for (int64_t n = 0; n < out; ++n) {
          want.push_back(0);
          for (int64_t k = 0; k < kInner; ++k)
            want.back() += static_cast<double>(get(x, r, k)) * get(t.master.value.at(0), n, k);
        }
      expect_near(values(y), want, 1e-5, fmt::format("{} columns of {}", out, name_of(dtype)));
    }
}

// Weights and gradients in somebody else's memory, each expert's where it likes.
TEST(WeightsOfFiles, HaveTheirGradientsWhereTheyAreBound) {
  Arena arena;
  moe::Run run(2);
  constexpr int64_t kExperts = 3, kOut = 8, kIn = 16, kApart = 2 * kOut * kIn;
  Twins t = draw_twins(arena, DType::bf16, kExperts, kOut, kIn);
  const Offsets offsets{0, 40, 40, 43};
  const Tensor x = draw(arena, DType::f32, {43, kIn}, 1),
               dy = draw(arena, DType::f32, {43, kOut}, 2);
  ops::matmul_dw(run, t.weight, dy, x, offsets);  // frozen
  t.master.grad = arena.alloc_zeroed(DType::f32, {kExperts, kOut, kIn});
  ops::matmul_dw(run, t.master, dy, x, offsets);

  Tensor apart = arena.alloc(DType::f32, {kExperts, 2 * kOut, kIn});
  std::fill_n(apart.as<float>(), apart.numel(), 7.0f);
  std::vector<void*> places;
  for (int64_t e = 0; e < kExperts; ++e) places.push_back(apart.as<float>() + e * kApart);
  Tensor shape = t.master.grad;
  shape.data = apart.data;
  t.weight.bind_grad(shape, places);
  ops::matmul_dw(run, t.weight, dy, x, offsets);
  for (int64_t e = 0; e < kExperts; ++e) {
    EXPECT_TRUE(same_bits(t.weight.expert_grad(e), t.master.grad.at(e)))
        << "expert " + std::to_string(e);
    for (int64_t i = kOut * kIn; i < kApart; ++i)
      ASSERT_EQ(apart.as<float>()[e * kApart + i], 7.0f) << "between the gradients";
  }
  t.weight.bind_grad(shape, places);
  ops::settle_grad(run, t.weight);  // nothing added
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t i = 0; i < kOut * kIn; ++i) ASSERT_EQ(apart.as<float>()[e * kApart + i], 0.0f);
  shape.dtype = DType::bf16;
  t.weight.bind_grad(shape, places);
  EXPECT_THROW(ops::matmul_dw(run, t.weight, dy, x, offsets), Error) << "gradients are f32";
}

}  // namespace
}  // namespace moe::test::weights_test
