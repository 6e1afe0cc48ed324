// The scalar twins of linear attention: a convolution of channels and the gated delta rule (arXiv
// 2412.06464, equation 10), as their formulas say, for any number type.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/ops.h"
#include "support/twin_router.h"

namespace moe::test::twin {

// Rows of `cols` numbers each, and all numbers of such rows.
template <class T>
Matrix<T> matrix(const std::vector<T>& x, int64_t cols) {
  Matrix<T> rows;
  for (auto at = x.begin(); at != x.end(); at += cols) rows.emplace_back(at, at + cols);
  return rows;
}
template <class T>
std::vector<T> flat(const Matrix<T>& x) {
  std::vector<T> all;
  for (const auto& row : x) all.insert(all.end(), row.begin(), row.end());
  return all;
}

// silu, or nothing, of (bias[c] + sum_j w[c,j] x[n - (J-1) + j, c]) within each sequence.  x
// [N][C], w [C*J], bias [C] or none
template <class T>
Matrix<T> short_conv(const Matrix<T>& x, const std::vector<T>& w,
                     const std::vector<int64_t>& bounds, bool silu = true,
                     const std::vector<T>& bias = {}) {
  const size_t channels = x[0].size(), taps = w.size() / channels;
  Matrix<T> y(x.size(), std::vector<T>(channels));
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (int64_t n = bounds[s]; n < bounds[s + 1]; ++n)
      for (size_t c = 0; c < channels; ++c) {
        T sum = bias.empty() ? T{} : bias[c];
        for (size_t j = 0; j < taps; ++j) {
          const int64_t from = n - static_cast<int64_t>(taps - 1 - j);
          if (from >= bounds[s]) sum += w[c * taps + j] * x[static_cast<size_t>(from)][c];
        }
        y[static_cast<size_t>(n)][c] = silu ? sum * sigmoid(sum) : sum;
      }
  return y;
}

// o [N][H*Cv] of qkv [N][2*G*C+H*Cv], log_decay [N][H] or, of channels, [N][H*C], strength [N][H]
template <class T>
Matrix<T> delta_rule(const Matrix<T>& qkv, const Matrix<T>& log_decay, const Matrix<T>& strength,
                     const ops::DeltaHeads& heads, const std::vector<int64_t>& bounds) {
  using std::exp, std::sqrt;
  const auto keys = static_cast<size_t>(heads.key_heads),
             values = static_cast<size_t>(heads.value_heads),
             c = static_cast<size_t>(heads.key_width), cv = static_cast<size_t>(heads.value_width);
  const auto part = [&](size_t n, size_t first, size_t width) {
    const auto begin = qkv[n].begin() + static_cast<long>(first);
    return std::vector<T>(begin, begin + static_cast<long>(width));
  };
  const auto normed = [&](std::vector<T> x, double factor) {
    T squares = T(1e-6);
    for (const T& v : x) squares += v * v;
    for (T& v : x) v *= T(factor) / sqrt(squares);
    return x;
  };
  Matrix<T> o(qkv.size(), std::vector<T>(values * cv));
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (size_t h = 0; h < values; ++h) {
      Matrix<T> state(c, std::vector<T>(cv));
      const size_t of = h * keys / values;
      for (auto n = static_cast<size_t>(bounds[s]); n < static_cast<size_t>(bounds[s + 1]); ++n) {
        const auto q = normed(part(n, of * c, c), 1 / std::sqrt(static_cast<double>(c))),
                   k = normed(part(n, (keys + of) * c, c), 1),
                   v = part(n, 2 * keys * c + h * cv, cv);
        for (size_t i = 0; i < c; ++i)
          for (T& x : state[i]) x *= exp(log_decay[n][heads.by_channel ? h * c + i : h]);
        for (size_t j = 0; j < cv; ++j) {
          T known{};
          for (size_t i = 0; i < c; ++i) known += state[i][j] * k[i];
          for (size_t i = 0; i < c; ++i) {
            state[i][j] += k[i] * strength[n][h] * (v[j] - known);
            o[n][h * cv + j] += state[i][j] * q[i];
          }
        }
      }
    }
  return o;
}

// y [N][H*P] of xbc [N][H*P+2*G*C], dt [N][H], a_log, dt_bias and skip [H]: Mamba-2's state space
template <class T>
Matrix<T> state_space(const Matrix<T>& xbc, const Matrix<T>& dt, const std::vector<T>& a_log,
                      const std::vector<T>& dt_bias, const std::vector<T>& skip,
                      const ops::StateHeads& of, const std::vector<int64_t>& bounds) {
  using std::exp, std::log;
  const auto heads = static_cast<size_t>(of.heads), groups = static_cast<size_t>(of.groups),
             width = static_cast<size_t>(of.width), states = static_cast<size_t>(of.states);
  Matrix<T> y(xbc.size(), std::vector<T>(heads * width));
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (size_t h = 0; h < heads; ++h) {
      Matrix<T> state(width, std::vector<T>(states));
      const size_t b = heads * width + h * groups / heads * states, c = b + groups * states;
      for (auto n = static_cast<size_t>(bounds[s]); n < static_cast<size_t>(bounds[s + 1]); ++n) {
        const T step = log(T(1.0) + exp(dt[n][h] + dt_bias[h])), decay = exp(-exp(a_log[h]) * step);
        for (size_t p = 0; p < width; ++p) {
          const T x = xbc[n][h * width + p];
          T& out = y[n][h * width + p];
          out = skip[h] * x;
          for (size_t i = 0; i < states; ++i) {
            state[p][i] = decay * state[p][i] + step * x * xbc[n][b + i];
            out += state[p][i] * xbc[n][c + i];
          }
        }
      }
    }
  return y;
}

// a [N][H*C] of q, k, v [N][H*C]: lightning attention without a state, every token asking every one
// before it, a_n = sum_(m <= n) e^(-s (n - m)) <q_n, k_m> v_m of each head.
template <class T>
Matrix<T> lightning(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v, int64_t heads,
                    int64_t layer, int64_t layers, const std::vector<int64_t>& bounds) {
  const auto count = static_cast<size_t>(heads);
  const size_t width = q[0].size() / count;
  Matrix<T> a(q.size(), std::vector<T>(q[0].size()));
  for (size_t h = 0; h < count; ++h) {
    const double slope =
        std::pow(1 / std::pow(2.0, 8.0 / static_cast<double>(heads)), static_cast<double>(h + 1)) *
        (1 - static_cast<double>(layer) / (static_cast<double>(layers - 1) + 1e-5) + 1e-5);
    for (size_t s = 0; s + 1 < bounds.size(); ++s)
      for (auto n = static_cast<size_t>(bounds[s]); n < static_cast<size_t>(bounds[s + 1]); ++n)
        for (auto m = static_cast<size_t>(bounds[s]); m <= n; ++m) {
          T score{};
          for (size_t i = h * width; i < (h + 1) * width; ++i) score += q[n][i] * k[m][i];
          score *= T(std::exp(-slope * static_cast<double>(n - m)));
          for (size_t i = h * width; i < (h + 1) * width; ++i) a[n][i] += score * v[m][i];
        }
  }
  return a;
}

// y [N][I] of x, dt [N][I], bc [N][2*C], a_log [I*C], dt_bias and skip [I]: Mamba-1's selective
// scan
template <class T>
Matrix<T> selective_scan(const Matrix<T>& x, const Matrix<T>& dt, const Matrix<T>& bc,
                         const std::vector<T>& a_log, const std::vector<T>& dt_bias,
                         const std::vector<T>& skip, const std::vector<int64_t>& bounds) {
  using std::exp, std::log;
  const size_t channels = skip.size(), states = a_log.size() / channels;
  Matrix<T> y(x.size(), std::vector<T>(channels));
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (size_t i = 0; i < channels; ++i) {
      std::vector<T> state(states);
      for (auto n = static_cast<size_t>(bounds[s]); n < static_cast<size_t>(bounds[s + 1]); ++n) {
        const T step = log(T(1.0) + exp(dt[n][i] + dt_bias[i]));
        T& out = y[n][i];
        out = skip[i] * x[n][i];
        for (size_t c = 0; c < states; ++c) {
          state[c] = exp(-exp(a_log[i * states + c]) * step) * state[c] + step * x[n][i] * bc[n][c];
          out += state[c] * bc[n][states + c];
        }
      }
    }
  return y;
}

}  // namespace moe::test::twin
