// Products of few rows, as texts that are written token by token have them: one matrix and banks,
// several matrices at once, lists of rows, activations behind them, and weights of every kind that
// is read as it lies. Against sums in double of what the weights mean and of the rows, which become
// bytes where they meet weights of few bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "ops/banks.h"
#include "support/check.h"
#include "support/twins_rowwise.h"
#include "tensor/quant.h"

namespace moe::test::few_rows_test {
namespace {

constexpr int64_t kScaled = 16;  // numbers of a row that have one scale

struct Weights {
  Param param;
  std::vector<float> of;  // [E,O,I]
  int64_t out, in;

  Weights(Arena& memory, DType dtype, int64_t experts, int64_t out_, int64_t in_, uint64_t seed)
      : out(out_), in(in_) {
    const Tensor drawn = draw(memory, DType::f32, {experts * out, in}, seed, 0.1f);
    of.assign(drawn.as<float>(), drawn.as<float>() + drawn.numel());
    param.name = "w";
    param.value =
        experts == 1 ? memory.alloc(dtype, {out, in}) : memory.alloc(dtype, {experts, out, in});
    if (is_quantised(dtype)) {
      quantise(param.value.data, of.data(), dtype, drawn.numel());
      dequantise(of.data(), param.value.data, dtype, drawn.numel());
      return;
    }
    for (size_t i = 0; i < of.size(); ++i) {
      if (dtype == DType::bf16) {
        param.value.as<bf16>()[i] = to_bf16(of[i]);
        of[i] = to_f32(to_bf16(of[i]));
      } else {
        param.value.as<float>()[i] = of[i];
      }
    }
  }
};

// A row as the product sees it.
std::vector<double> seen(const Tensor& x, int64_t row, bool as_bytes) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < x.cols(); ++i) numbers.push_back(get(x, row, i));
  if (!as_bytes) return numbers;
  for (size_t first = 0; first < numbers.size(); first += kScaled) {
    float most = 0;
    for (size_t i = first; i < first + kScaled; ++i)
      most = std::max(most, std::fabs(static_cast<float>(numbers[i])));
    const float by = most > 0 ? 127 / most : 0;
    for (size_t i = first; i < first + kScaled; ++i)
      numbers[i] = std::nearbyint(static_cast<float>(numbers[i]) * by) * (most / 127);
  }
  return numbers;
}

// Row r of the list at expert e.
std::vector<double> product(const Weights& w, int64_t e, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(w.out));
  for (int64_t o = 0; o < w.out; ++o) {
    const float* of = w.of.data() + (e * w.out + o) * w.in;
    for (int64_t i = 0; i < w.in; ++i)
      y[static_cast<size_t>(o)] += of[i] * x[static_cast<size_t>(i)];
  }
  return y;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// bf16 results of sums in f32.
double tolerance_of(const Tensor& y) { return y.dtype == DType::bf16 ? 5e-3 : kTwinF32; }

struct Kind {
  DType w, x;
};
const std::array<Kind, 6> kKinds = {Kind{DType::f32, DType::f32}, {DType::bf16, DType::bf16},
                                    {DType::q8_0, DType::bf16},   {DType::q8_0, DType::f32},
                                    {DType::q4_0, DType::bf16},   {DType::q4_0, DType::f32}};

std::string name(const Kind& kind, int64_t rows, int64_t in) {
  return std::string(name_of(kind.w)) + " by " + std::string(name_of(kind.x)) + ", " +
         std::to_string(rows) + " rows of " + std::to_string(in);
}

// Queries, keys and values: three matrices of one row to five.
TEST(FewRows, ManyMatricesAreEachOnesProduct) {
  for (const Kind& kind : kKinds)
    for (const int64_t in : {256, 1024, 2304, 4352})
      for (const int64_t rows : {1, 2, 4, 5}) {
        if (rows > 4 && is_quantised(kind.w)) continue;  // a GPU multiplies those as they are
        moe::Run run(2, kind.x);
        Arena memory;
        std::array<Weights, 3> w = {Weights(memory, kind.w, 1, 9, in, 1),
                                    Weights(memory, kind.w, 1, 4, in, 2),
                                    Weights(memory, kind.w, 1, 1, in, 3)};
        const Tensor x = draw(memory, kind.x, {rows, in}, 4);
        std::array<Tensor, 3> y;
        for (size_t m = 0; m < 3; ++m) y[m] = memory.alloc(DType::f32, {rows, w[m].out});
        const std::array<int64_t, 2> all = {0, rows};
        ops::matmul_forward(run, {{w[0].param, y[0]}, {w[1].param, y[1]}, {w[2].param, y[2]}}, x,
                            all);
        for (size_t m = 0; m < 3; ++m) {
          std::vector<double> want;
          for (int64_t r = 0; r < rows; ++r)
            for (const double number : product(w[m], 0, seen(x, r, is_quantised(kind.w))))
              want.push_back(number);
          expect_near(y[m], want, tolerance_of(y[m]),
                      name(kind, rows, in) + ", matrix " + std::to_string(m));
        }
      }
}

// Experts without rows, with one and with several; rows by a list; gate and up with an activation
// and the rows' weights, or up alone.
TEST(FewRows, BanksWithActivations) {
  constexpr int64_t kExperts = 35, kOut = 10, kTokens = 6;
  for (const Kind& kind : kKinds)
    for (const int64_t in : {256, 2304})
      for (const int64_t rows : {1, 7, 32})
        for (const bool gated : {true, false}) {
          moe::Run run(2, kind.x);
          Arena memory;
          Weights gate(memory, kind.w, kExperts, kOut, in, 1),
              up(memory, kind.w, kExperts, kOut, in, 2);
          const Tensor x = draw(memory, kind.x, {kTokens, in}, 3),
                       weight = draw(memory, DType::f32, {rows}, 4),
                       hidden = memory.alloc(kind.x, {rows, kOut}),
                       of_gate = memory.alloc(kind.x, {rows, kOut}),
                       of_up = memory.alloc(kind.x, {rows, kOut});
          std::vector<int64_t> offsets(kExperts + 1), expert;
          std::vector<int32_t> token;
          for (int64_t r = 0; r < rows; ++r) {
            expert.push_back(rows == 1 ? kExperts - 1 : r * r * kExperts / (rows * rows));
            token.push_back(static_cast<int32_t>(r * 5 % kTokens));
            for (int64_t e = expert.back(); e < kExperts; ++e)
              ++offsets[static_cast<size_t>(e) + 1];
          }
          ops::BankOperands bank = {
              {}, {x, token}, offsets, ops::BankHidden{hidden, weight, ops::Act::silu}};
          if (gated) bank.operands.push_back({gate.param, of_gate});
          bank.operands.push_back({up.param, of_up});
          ops::matmul_forward_banks(run, std::span(&bank, 1));
          std::vector<double> want_up, want;
          for (int64_t r = 0; r < rows; ++r) {
            const std::vector<double> row =
                seen(x, token[static_cast<size_t>(r)], is_quantised(kind.w));
            const int64_t e = expert[static_cast<size_t>(r)];
            const std::vector<double> u = product(up, e, row), g = product(gate, e, row);
            for (size_t o = 0; o < u.size(); ++o) {
              want_up.push_back(u[o]);
              want.push_back(weight.as<float>()[r] * (gated ? silu(g[o]) * u[o] : silu(u[o])));
            }
          }
          const std::string what = name(kind, rows, in) + (gated ? ", gated" : "");
          expect_near(of_up, want_up, tolerance_of(of_up), what + ": up");
          expect_near(hidden, want, tolerance_of(hidden), what + ": hidden");
        }
}

// What becomes of sums before they are written: each activation, with a gate and without one.
TEST(FewRows, HiddenNumbersOfEveryActivation) {
  using ops::Act;
  constexpr int64_t kRows = 3, kOut = 10, kIn = 256;
  moe::Run run(2);
  Arena memory;
  Weights gate(memory, DType::f32, 1, kOut, kIn, 1), up(memory, DType::f32, 1, kOut, kIn, 2);
  const Tensor x = draw(memory, DType::f32, {kRows, kIn}, 3),
               hidden = memory.alloc(DType::f32, {kRows, kOut}),
               of_gate = memory.alloc(DType::f32, {kRows, kOut}),
               of_up = memory.alloc(DType::f32, {kRows, kOut});
  const std::array<int64_t, 2> all = {0, kRows};
  std::vector<double> gates, ups;
  for (int64_t r = 0; r < kRows; ++r) {
    for (const double number : product(gate, 0, seen(x, r, false))) gates.push_back(number);
    for (const double number : product(up, 0, seen(x, r, false))) ups.push_back(number);
  }
  for (const Act act : {Act::silu, Act::gelu, Act::gelu_tanh, Act::relu, Act::swiglu_oai,
                        Act::sigmoid, Act::relu2, Act::swiglu_10})
    for (const bool gated : {true, false}) {
      ops::BankOperands bank = {{}, x, all, ops::BankHidden{hidden, {}, act}};
      if (gated) bank.operands.push_back({gate.param, of_gate});
      bank.operands.push_back({up.param, of_up});
      ops::matmul_forward_banks(run, std::span(&bank, 1));
      const std::vector<double> want = twin::ffn_act_forward(gated ? gates : std::vector<double>(),
                                                             ups, std::vector<double>(), kOut, act);
      expect_near(hidden, want, kTwinF32,
                  "activation " + std::to_string(static_cast<int>(act)) + (gated ? ", gated" : ""));
    }
}

// A router's weights stay f32 whatever its rows are.
TEST(FewRows, WideWeightsMeetNarrowRows) {
  moe::Run run(2, DType::bf16);
  Arena memory;
  Weights w(memory, DType::f32, 1, 7, 2304, 1);
  const Tensor x = draw(memory, DType::bf16, {3, 2304}, 2), y = memory.alloc(DType::f32, {3, 7});
  const std::array<int64_t, 2> all = {0, 3};
  ops::matmul_forward_f32(run, y, x, w.param, all);
  std::vector<double> want;
  for (int64_t r = 0; r < 3; ++r)
    for (const double number : product(w, 0, seen(x, r, false))) want.push_back(number);
  expect_near(y, want, tolerance_of(y), "f32 by bf16");
}

}  // namespace
}  // namespace moe::test::few_rows_test
