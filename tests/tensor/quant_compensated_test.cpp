// Rounding errors that later columns make good: what they cost on inputs whose columns go together,
// against rounding every number by itself.
#include "tensor/quant_compensated.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/rng.h"
#include "tensor/quant.h"
#include "tensor/quant_rounding.h"

namespace moe::quant_compensated_test {
namespace {

constexpr int64_t kRows = 11, kCols = 512;  // two blocks of the K formats
constexpr DType kTypes[] = {DType::q4_0,   DType::q4_1,   DType::q5_0, DType::q5_1,
                            DType::iq4_nl, DType::iq4_xs, DType::q4_k, DType::q5_k,
                            DType::q6_k,   DType::q3_k,   DType::q2_k, DType::q2_0};

std::vector<float> drawn(uint64_t seed, int64_t n, float scale) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    out[static_cast<size_t>(i)] = scale * normal(RngKey::from_seed(seed), static_cast<uint64_t>(i));
  return out;
}

// Inputs that walk: x_k = a x_(k-1) + sqrt(1 - a^2) noise, whose products are H[j,k] = a^|j-k|. The
// inverse is tridiagonal and U bidiagonal: an error in column j moves column j + 1 alone, by a.
constexpr double kTies = 0.9;
std::vector<float> walking_shares() {
  std::vector<float> shares(kCols * kCols);
  for (size_t j = 0; j + 1 < kCols; ++j) shares[j * kCols + j + 1] = -static_cast<float>(kTies);
  return shares;
}

// Sum over rows of (w - v) H (w - v)^T.
double cost(const std::vector<float>& w, const std::vector<float>& v) {
  double sum = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    // y_k = sum over j <= k of a^(k-j) e_j:  e H e^T = sum over k of e_k (2 y_k - e_k)
    double y = 0;
    for (int64_t k = 0; k < kCols; ++k) {
      const auto at = static_cast<size_t>(r * kCols + k);
      const double e = static_cast<double>(w[at]) - static_cast<double>(v[at]);
      y = kTies * y + e;
      sum += e * (2 * y - e);
    }
  }
  return sum;
}

struct Made {
  std::vector<char> blocks;
  std::vector<float> numbers;
};
Made made(std::vector<float> w, DType to, const std::vector<float>* shares, int64_t rows = kRows) {
  const std::vector<float> importance(kCols, 1.0f);
  Made out{std::vector<char>(static_cast<size_t>(rows * bytes_of(to, kCols))),
           std::vector<float>(static_cast<size_t>(rows * kCols))};
  if (shares == nullptr) {
    for (int64_t r = 0; r < rows; ++r)
      quantise(out.blocks.data() + r * bytes_of(to, kCols), w.data() + r * kCols, to, kCols,
               importance.data());
  } else {
    std::vector<float> copy = *shares;
    quantise_compensated(out.blocks.data(), Tensor(w.data(), DType::f32, {rows, kCols}), to,
                         importance.data(), Tensor(copy.data(), DType::f32, {kCols, kCols}));
  }
  dequantise(out.numbers.data(), out.blocks.data(), to, rows * kCols);
  return out;
}

TEST(QuantCompensated, ErrorsCostLessWhereColumnsGoTogether) {
  const std::vector<float> w = drawn(1, kRows * kCols, 0.1f), shares = walking_shares();
  for (DType to : kTypes) {
    const double alone = cost(w, made(w, to, nullptr).numbers),
                 good = cost(w, made(w, to, &shares).numbers);
    EXPECT_LT(good, 0.5 * alone) << name_of(to);
  }
}

TEST(QuantCompensated, WithoutSharesNumbersAreRoundedByThemselves) {
  const std::vector<float> w = drawn(2, kRows * kCols, 0.1f), none(kCols * kCols);
  for (DType to : kTypes) {
    const Made alone = made(w, to, nullptr), same = made(w, to, &none);
    int64_t differ = 0;  // ties, where the quotient is taken in another way
    for (size_t i = 0; i < w.size(); ++i) differ += alone.numbers[i] != same.numbers[i] ? 1 : 0;
    EXPECT_LE(differ, kRows * kCols / 1000) << name_of(to);
  }
}

TEST(QuantCompensated, ARowDoesNotHangOnOthers) {
  const std::vector<float> w = drawn(3, kRows * kCols, 0.1f), shares = walking_shares();
  for (DType to : kTypes) {
    const Made all = made(w, to, &shares);
    const int64_t bytes = bytes_of(to, kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> row(w.begin() + r * kCols, w.begin() + (r + 1) * kCols);
      const Made alone = made(row, to, &shares, 1);
      EXPECT_TRUE(
          std::equal(alone.blocks.begin(), alone.blocks.end(), all.blocks.begin() + r * bytes))
          << name_of(to) << " row " << r;
    }
  }
}

TEST(QuantCompensated, BlocksOfZerosStayZeros) {
  const std::vector<float> w(kRows * kCols), shares = walking_shares();
  for (DType to : kTypes)
    for (float x : made(w, to, &shares).numbers) ASSERT_EQ(x, 0) << name_of(to);
}

TEST(BlockGrid, NearestIsTheNearest) {
  const float step[] = {0.5f, -0.25f}, below[] = {1, -2};
  const BlockGrid grid{4, 2, 15, step, below};
  constexpr std::array<int8_t, 16> kLevels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
  const BlockGrid table{4, 4, 15, step, nullptr, &kLevels};
  for (const BlockGrid* g : {&grid, &table})
    for (int i = 0; i < 4; ++i)
      for (float x = -80; x < 80; x += 0.37f) {
        const float off = std::abs(g->value(i, g->nearest(i, x)) - x);
        for (int q = 0; q < 16; ++q) ASSERT_LE(off, std::abs(g->value(i, q) - x) + 1e-5f);
      }
}

}  // namespace
}  // namespace moe::quant_compensated_test
