// Forward-mode differentiation: a number and its derivative along one direction. Scalar twins are
// templated on their number type; run with Dual<double> they give exact directional derivatives,
// against which a hand-written backward is checked.
#pragma once

#include <cmath>
#include <numbers>

namespace moe::test {

template <class T>
struct Dual {
  T v{};  // value
  T d{};  // derivative
  Dual() = default;
  Dual(T value) : v(value) {}  // NOLINT: constants mix freely with duals in formulas
  Dual(T value, T derivative) : v(value), d(derivative) {}
  friend Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
  friend Dual operator-(Dual a, Dual b) { return {a.v - b.v, a.d - b.d}; }
  friend Dual operator-(Dual a) { return {-a.v, -a.d}; }
  friend Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.d * b.v + a.v * b.d}; }
  friend Dual operator/(Dual a, Dual b) {
    return {a.v / b.v, (a.d * b.v - a.v * b.d) / (b.v * b.v)};
  }
  Dual& operator+=(Dual b) { return *this = *this + b; }
  Dual& operator-=(Dual b) { return *this = *this - b; }
  Dual& operator*=(Dual b) { return *this = *this * b; }
  Dual& operator/=(Dual b) { return *this = *this / b; }
  friend bool operator<(Dual a, Dual b) { return a.v < b.v; }
  friend bool operator>(Dual a, Dual b) { return a.v > b.v; }
};

template <class T>
Dual<T> exp(Dual<T> a) {
  return {std::exp(a.v), a.d * std::exp(a.v)};
}
template <class T>
Dual<T> log(Dual<T> a) {
  return {std::log(a.v), a.d / a.v};
}
template <class T>
Dual<T> sqrt(Dual<T> a) {
  return {std::sqrt(a.v), a.d / (2 * std::sqrt(a.v))};
}
template <class T>
Dual<T> sin(Dual<T> a) {
  return {std::sin(a.v), a.d * std::cos(a.v)};
}
template <class T>
Dual<T> cos(Dual<T> a) {
  return {std::cos(a.v), -a.d * std::sin(a.v)};
}
template <class T>
Dual<T> tanh(Dual<T> a) {
  return {std::tanh(a.v), a.d * (1 - std::tanh(a.v) * std::tanh(a.v))};
}
template <class T>
Dual<T> erf(Dual<T> a) {
  return {std::erf(a.v), a.d * 2 * std::exp(-a.v * a.v) / std::sqrt(std::numbers::pi_v<T>)};
}

inline double value_of(double x) { return x; }
inline double value_of(Dual<double> x) { return x.v; }

}  // namespace moe::test
