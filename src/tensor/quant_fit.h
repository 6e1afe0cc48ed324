// How the quantisers look for the scales of a few numbers: weighted least squares over a fan of
// candidate steps, for each the integers it rounds to and the scale (and offset) that fit them
// best; the best fit is kept. As ggml's reference does it (github ggml-org/ggml,
// src/ggml-quants.c). Sums run in eight lanes, so that the compiler can use vectors.
#pragma once

#include "tensor/quant_parts.h"

namespace moe {

// Sum of term(i), i < kCount, lane by lane.
template <class T, int kCount, class F>
T sum_over(F&& term) {
  constexpr int kLanes = 8;
  static_assert(kCount % kLanes == 0);
  T lane[kLanes] = {};
  for (int i = 0; i < kCount; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

// What the errors of a block's numbers count when the importance of their columns is known:
// importance sqrt(s x^2 + x_i^2), x^2 the block's mean square: large numbers count more, as in
// ggml. weight [kCount], x [kCount], importance [kCount]
template <int kCount>
void weigh(float* weight, const float* x, const float* importance, float s) {
  const float typical =
      s * sum_over<float, kCount>([&](int i) { return x[i] * x[i]; }) / static_cast<float>(kCount);
  for (int i = 0; i < kCount; ++i) weight[i] = importance[i] * std::sqrt(typical + x[i] * x[i]);
}

// What they count where nothing is known of the columns: the root of the mean square + |x_i|.
template <int kCount>
void weigh_by_size(float* weight, const float* x) {
  const float typical =
      std::sqrt(sum_over<float, kCount>([&](int i) { return x[i] * x[i]; }) / kCount);
  for (int i = 0; i < kCount; ++i) weight[i] = typical + std::abs(x[i]);
}

// x ~ scale q - offset, offset >= 0.
struct Line {
  float scale = 0, offset = 0;
};

// How a format with an offset looks for its lines: q in 0..top; candidate steps are the range over
// `first`, first + pace, ..., as many as `candidates`.
struct TwoBits {
  static constexpr float top = 3, first = 2, pace = 0.1f;
  static constexpr int candidates = 21;
};
struct FourBits {
  static constexpr float top = 15, first = 14, pace = 0.1f;
  static constexpr int candidates = 21;
};
struct FiveBits {
  static constexpr float top = 31, first = 30.5f, pace = 0.1f;
  static constexpr int candidates = 16;
};
// The same, looked for closer and wider where it is known what the numbers are worth.
template <class Fan>
struct Closely {
  static constexpr float top = Fan::top, first = top - 1, pace = 0.05f;
  static constexpr int candidates = 41;
};

// The line over kCount numbers.  x, weight [kCount]. The range begins at the best line's own
// offset: an improvement moves where the next candidates start.
template <class Fan, int kCount>
Line fit_line(const float* x, const float* weight) {
  constexpr float kTop = Fan::top;
  float low = 0, high = x[0];
  for (int i = 0; i < kCount; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  Line best{(high - low) / kTop, -low};
  if (finite_ratio(kTop, high - low) == 0) return {0, -low};
  float q[kCount];
  const float w = sum_over<float, kCount>([&](int i) { return weight[i]; });
  const float wx = sum_over<float, kCount>([&](int i) { return weight[i] * x[i]; });
  const auto round_in_steps = [&](float steps) {
    const float inverse = steps / (high + best.offset);
    for (int i = 0; i < kCount; ++i)
      q[i] = clamped(nearest_even(inverse * (x[i] + best.offset)), 0, kTop);
  };
  const auto error_of = [&](const Line& line) {
    return sum_over<float, kCount>([&](int i) {
      const float off = line.scale * q[i] - line.offset - x[i];
      return weight[i] * off * off;
    });
  };
  round_in_steps(kTop);
  float best_error = error_of(best);
  for (int candidate = 0; candidate < Fan::candidates; ++candidate) {
    round_in_steps(Fan::first + Fan::pace * static_cast<float>(candidate));
    const float wq = sum_over<float, kCount>([&](int i) { return weight[i] * q[i]; });
    const float wqq = sum_over<float, kCount>([&](int i) { return weight[i] * q[i] * q[i]; });
    const float wqx = sum_over<float, kCount>([&](int i) { return weight[i] * q[i] * x[i]; });
    const float determinant = w * wqq - wq * wq;
    if (!(determinant > 0)) continue;
    Line line{(w * wqx - wx * wq) / determinant, (wq * wqx - wqq * wx) / determinant};
    if (line.offset < 0) line = {wqx / wqq, 0};
    const float error = error_of(line);
    if (error < best_error) {
      best_error = error;
      best = line;
    }
  }
  return best;
}

// The scale for q in -kReach..kReach - 1 over kCount numbers.  x, weight [kCount]. The largest
// number may fall on either side of step -kReach. Where it dwarfs the others all candidates fit
// alike: sums are in double, and a gain of the size of rounding does not count.
template <int kReach, int kCount>
float fit_scale(const float* x, const float* weight) {
  constexpr double kNotable = 1 + 1e-7;
  float largest = 0, with_sign = 0;
  for (int i = 0; i < kCount; ++i)
    if (std::abs(x[i]) > largest) {
      largest = std::abs(x[i]);
      with_sign = x[i];
    }
  if (largest < 1e-15f) return 0;
  double weighted[kCount];
  for (int i = 0; i < kCount; ++i) weighted[i] = static_cast<double>(weight[i]) * x[i];
  double best_scale = 0, best_gain = 0;
  const auto consider = [&](int candidate) {
    const float inverse = -(kReach + 0.1f * static_cast<float>(candidate)) / with_sign;
    double q[kCount];
    for (int i = 0; i < kCount; ++i)
      q[i] = clamped(nearest_even(inverse * x[i]), -kReach, kReach - 1);
    const double wqx = sum_over<double, kCount>([&](int i) { return weighted[i] * q[i]; });
    const double wqq =
        sum_over<double, kCount>([&](int i) { return double{weight[i]} * q[i] * q[i]; });
    // The squared error falls by wqx^2 / wqq against that of a scale of 0.
    if (!(wqq > 0 && wqx * wqx > best_gain * wqq * kNotable)) return;
    best_scale = wqx / wqq;
    best_gain = best_scale * wqx;
  };
  consider(0);
  for (int candidate = 1; candidate <= 9; ++candidate) {
    consider(-candidate);
    consider(candidate);
  }
  return static_cast<float>(best_scale);
}

// The same for numbers that are none below zero and q in 0..top: scales that are scaled in turn.
template <int kCount>
float fit_positive(const float* x, const float* weight, float top) {
  float largest = 0;
  for (int i = 0; i < kCount; ++i) largest = x[i] > largest ? x[i] : largest;
  if (largest < 1e-15f) return 0;
  float best_scale = largest / top, best_gain = 0;
  for (int candidate = -9; candidate <= 9; ++candidate) {
    const float inverse = (top + 0.1f * static_cast<float>(candidate)) / largest;
    float wqx = 0, wqq = 0;
    for (int i = 0; i < kCount; ++i) {
      const float q = clamped(nearest_even(inverse * x[i]), 0, top);
      wqx += weight[i] * q * x[i];
      wqq += weight[i] * q * q;
    }
    if (!(wqq > 0 && wqx * wqx > best_gain * wqq)) continue;
    best_scale = wqx / wqq;
    best_gain = best_scale * wqx;
  }
  return best_scale;
}

}  // namespace moe
