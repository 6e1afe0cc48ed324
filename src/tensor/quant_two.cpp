#include "tensor/quant_two.h"

#include "tensor/quant_fit.h"
#include "tensor/quant_rounding.h"

namespace moe {
namespace {

// Numbers are -d, 0, d and 2d: those of the sign of d reach twice as far as the others.
constexpr float kLow = -1, kHigh = 2;

float half_of(float d) { return f16_to_f32(f32_to_f16(d)); }
float nearest_code(float x, float d) { return clamped(nearest_even(x / d), kLow, kHigh); }

// What numbers lose by the nearest codes of a step.  x, weight [64]
double error_of(const float* x, const float* weight, float d) {
  return sum_over<double, kTwoBlock>([&](int i) {
    const double off = double{x[i]} - double{d} * nearest_code(x[i], d);
    return weight[i] * off * off;
  });
}

// The step of the sign of `sign` that fits best of all there are. While it shrinks from infinity,
// codes change one by one: of number i from 0 to that of its sign where the step is 2 |x_i|, and,
// if it has the step's sign, from 1 to 2 where it is 2/3 |x_i|. Between two changes the best step
// is sum w q x / sum w q^2, and the error falls by the square of the first over the second.
// order [count]: numbers other than 0, the largest magnitude first
float best_step(const float* x, const float* weight, const int* order, int count, float sign) {
  double wqx = 0, wqq = 0, best_gain = 0, best = 0;
  int first = 0, second = 0;
  const auto next_second = [&] {
    while (second < count && !(x[order[second]] * sign > 0)) ++second;
  };
  next_second();
  while (first < count || second < count) {
    const bool leaves_zero = first < count && (second == count || 3 * std::abs(x[order[first]]) >=
                                                                      std::abs(x[order[second]]));
    const int i = order[leaves_zero ? first : second];
    const double w = weight[i];
    wqx += w * std::abs(x[i]);
    wqq += leaves_zero ? w : 3 * w;
    if (leaves_zero) {
      ++first;
    } else {
      ++second;
      next_second();
    }
    if (!(wqq > 0 && wqx * wqx > best_gain * wqq)) continue;
    best = wqx / wqq;
    best_gain = best * wqx;
  }
  return sign * static_cast<float>(best);
}

// The step as it is stored. Beside the best ones of both signs those that make the largest number
// a step or two are tried: one of them is exact where the numbers are of such a block, which the
// best one, a sum, need not be once it is a half (of 0 and 2d, 2d fits as well, but may overflow).
// x, weight [64]
float fit_step(const float* x, const float* weight) {
  float largest = 0;
  for (int i = 0; i < kTwoBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  if (!(largest > 0)) return 0;
  float best = 0;
  double least =
      sum_over<double, kTwoBlock>([&](int i) { return double{weight[i]} * x[i] * x[i]; });
  const auto try_step = [&](float step) {
    const float d = half_of(step);
    if (d == 0 || !std::isfinite(d)) return;
    const double error = error_of(x, weight, d);
    if (!(error < least)) return;
    least = error;
    best = d;
  };
  for (const float sign : {1.0f, -1.0f})
    for (const float step : {sign * largest / 2, sign * largest}) try_step(step);
  if (least == 0) return best;
  int order[kTwoBlock], count = 0;
  for (int i = 0; i < kTwoBlock; ++i)
    if (std::abs(x[i]) > 0) order[count++] = i;
  std::sort(order, order + count, [x](int a, int b) {
    return std::abs(x[a]) != std::abs(x[b]) ? std::abs(x[a]) > std::abs(x[b]) : a < b;
  });
  for (const float sign : {1.0f, -1.0f}) try_step(best_step(x, weight, order, count, sign));
  return best;
}

}  // namespace

// x = d (q - 1).  d [half], four numbers a byte [16], the first in the lowest bits
void read_q2_0(float* out, const uint8_t* block) {
  int8_t q[kTwoBlock];
  for (int j = 0; j < kTwoBlock / 4; ++j) {
    uint32_t four = block[2 + j];
    four = (four | four << 12) & 0x000F000Fu;
    four = (four | four << 6) & 0x03030303u;
    std::memcpy(q + 4 * j, &four, sizeof four);
  }
  for (int8_t& code : q) code = static_cast<int8_t>(code - 1);
  scale_run<kTwoBlock>(out, q, load_half(block));
}

// Where the importance of the columns is known it alone counts: with so few values, large numbers
// that count more on top of it, as in the other types, make the outputs worse.
void write_q2_0(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  float by_size[kTwoBlock];
  if (importance == nullptr) weigh_by_size<kTwoBlock>(by_size, x);
  const float d = fit_step(x, importance == nullptr ? by_size : importance);
  store_half(block, d);
  int q[kTwoBlock];
  if (rounding != nullptr) {
    rounding->round(q, x, {kTwoBlock, kTwoBlock, 3, &d, &d});
  } else {
    for (int j = 0; j < kTwoBlock; ++j)
      q[j] = d == 0 ? 1 : static_cast<int>(nearest_code(x[j], d)) + 1;
  }
  for (int j = 0; j < kTwoBlock / 4; ++j)
    block[2 + j] =
        static_cast<uint8_t>(q[4 * j] | q[4 * j + 1] << 2 | q[4 * j + 2] << 4 | q[4 * j + 3] << 6);
}

}  // namespace moe
