// Scalar twins of the products and of bias: the formulas of ops.h, written plainly, for any number
// type. Matrices are row-major vectors.
#pragma once

#include <cstdint>
#include <vector>

namespace moe::test {

// y[r,o] = sum_i x[r,i] w[e(r),o,i].  y [R,O]; x [R,I]; w [E,O,I]; group e owns rows [offsets[e],
// offsets[e+1])
template <class T>
std::vector<T> matmul_forward_twin(const std::vector<T>& x, const std::vector<T>& w,
                                   const std::vector<int64_t>& offsets, int64_t out, int64_t in) {
  std::vector<T> y(static_cast<size_t>(offsets.back() * out), T(0));
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i)
          y[r * out + o] += x[r * in + i] * w[(static_cast<int64_t>(e) * out + o) * in + i];
  return y;
}

// dx[r,i] = sum_o dy[r,o] w[e(r),o,i]
template <class T>
std::vector<T> matmul_dx_twin(const std::vector<T>& dy, const std::vector<T>& w,
                              const std::vector<int64_t>& offsets, int64_t out, int64_t in) {
  std::vector<T> dx(static_cast<size_t>(offsets.back() * in), T(0));
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i)
          dx[r * in + i] += dy[r * out + o] * w[(static_cast<int64_t>(e) * out + o) * in + i];
  return dx;
}

// dw[e,o,i] = sum over e's rows of dy[r,o] x[r,i]
template <class T>
std::vector<T> matmul_dw_twin(const std::vector<T>& dy, const std::vector<T>& x,
                              const std::vector<int64_t>& offsets, int64_t out, int64_t in) {
  std::vector<T> dw((offsets.size() - 1) * static_cast<size_t>(out * in), T(0));
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i)
          dw[(static_cast<int64_t>(e) * out + o) * in + i] += dy[r * out + o] * x[r * in + i];
  return dw;
}

// y[r,o] = weight[r] b[e(r),o].  y [R,O]; b [E,O]; weight [R]
template <class T>
std::vector<T> bias_forward_twin(const std::vector<T>& b, const std::vector<T>& weight,
                                 const std::vector<int64_t>& offsets, int64_t out) {
  std::vector<T> y(static_cast<size_t>(offsets.back() * out), T(0));
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (int64_t o = 0; o < out; ++o)
        y[r * out + o] = weight[r] * b[static_cast<int64_t>(e) * out + o];
  return y;
}

template <class T>
struct BiasGradients {
  std::vector<T> bias;    // [E,O]
  std::vector<T> weight;  // [R]
};

// db[e,o] = sum over e's rows of weight[r] dy[r,o];  dweight[r] = sum_o dy[r,o] b[e(r),o]
template <class T>
BiasGradients<T> bias_backward_twin(const std::vector<T>& dy, const std::vector<T>& b,
                                    const std::vector<T>& weight,
                                    const std::vector<int64_t>& offsets, int64_t out) {
  BiasGradients<T> d{std::vector<T>(b.size(), T(0)), std::vector<T>(weight.size(), T(0))};
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (int64_t o = 0; o < out; ++o) {
        d.bias[static_cast<int64_t>(e) * out + o] += weight[r] * dy[r * out + o];
        d.weight[r] += dy[r * out + o] * b[static_cast<int64_t>(e) * out + o];
      }
  return d;
}

}  // namespace moe::test
