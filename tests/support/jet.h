// A number and its derivatives along W directions at once: what Dual is for one. Costs little more
// than Dual for each direction less, so that every entry of every gradient of a model can be had
// from a scalar twin.
#pragma once

#include <array>
#include <cmath>
#include <numbers>

namespace moe::test {

template <int W>
struct Jet {
  double v = 0;
  std::array<double, W> d{};
  Jet() = default;
  Jet(double value) : v(value) {}  // NOLINT: constants mix freely with jets in formulas

  // f(a) with f'(a) = slope
  static Jet chain(const Jet& a, double value, double slope) {
    Jet r(value);
    for (int i = 0; i < W; ++i) r.d[i] = slope * a.d[i];
    return r;
  }
  friend Jet operator-(const Jet& a) { return chain(a, -a.v, -1); }
  friend Jet operator*(const Jet& a, const Jet& b) {
    Jet r(a.v * b.v);
    for (int i = 0; i < W; ++i) r.d[i] = a.d[i] * b.v + a.v * b.d[i];
    return r;
  }
  friend Jet operator/(const Jet& a, const Jet& b) {
    const double inverse = 1 / b.v;
    Jet r(a.v * inverse);
    for (int i = 0; i < W; ++i) r.d[i] = (a.d[i] - r.v * b.d[i]) * inverse;
    return r;
  }
  Jet& operator+=(const Jet& b) {
    v += b.v;
    for (int i = 0; i < W; ++i) d[i] += b.d[i];
    return *this;
  }
  Jet& operator-=(const Jet& b) {
    v -= b.v;
    for (int i = 0; i < W; ++i) d[i] -= b.d[i];
    return *this;
  }
  friend Jet operator+(Jet a, const Jet& b) { return a += b; }
  friend Jet operator-(Jet a, const Jet& b) { return a -= b; }
  Jet& operator*=(const Jet& b) { return *this = *this * b; }
  Jet& operator/=(const Jet& b) { return *this = *this / b; }
};

template <int W>
Jet<W> exp(const Jet<W>& a) {
  const double y = std::exp(a.v);
  return Jet<W>::chain(a, y, y);
}
template <int W>
Jet<W> log(const Jet<W>& a) {
  return Jet<W>::chain(a, std::log(a.v), 1 / a.v);
}
template <int W>
Jet<W> sqrt(const Jet<W>& a) {
  const double y = std::sqrt(a.v);
  return Jet<W>::chain(a, y, 0.5 / y);
}
template <int W>
Jet<W> tanh(const Jet<W>& a) {
  const double y = std::tanh(a.v);
  return Jet<W>::chain(a, y, 1 - y * y);
}
template <int W>
Jet<W> erf(const Jet<W>& a) {
  return Jet<W>::chain(a, std::erf(a.v), 2 * std::exp(-a.v * a.v) / std::sqrt(std::numbers::pi));
}

template <int W>
double value_of(const Jet<W>& x) {
  return x.v;
}

}  // namespace moe::test
