// Scalar twins of the row-wise ops of ops.h: norms, rope, embedding, expert activation, gather and
// sum of rows, cross-entropy, dropout, AdamW. Each is the formula and nothing else, on dense
// row-major std::vector<T>; forwards run on double and on Dual<double>, backwards are written by
// hand in double. An empty vector means "absent", as an empty Tensor does. Sizes are deduced from
// the vectors where the width of a row says enough.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "core/rng.h"
#include "ops/ops.h"
#include "support/dual.h"
#include "support/twin_act.h"

namespace moe::test::twin {

using Vector = std::vector<double>;

// ---- norms --------------------------------------------------------------------------------------

// y = x / sqrt(mean(x^2) + eps) * weight.  x, y [N,cols]; weight [cols]
template <class T>
std::vector<T> rms_norm_forward(const std::vector<T>& x, const std::vector<T>& weight, double eps) {
  using std::sqrt;
  const size_t cols = weight.size();
  std::vector<T> y(x.size());
  for (size_t r = 0; r < x.size(); r += cols) {
    T mean(0.0);
    for (size_t c = 0; c < cols; ++c) mean += x[r + c] * x[r + c];
    mean = mean / T(static_cast<double>(cols));
    const T rstd = T(1.0) / sqrt(mean + T(eps));
    for (size_t c = 0; c < cols; ++c) y[r + c] = x[r + c] * rstd * weight[c];
  }
  return y;
}

struct NormGrad {
  Vector dx;              // [N,cols]
  Vector dweight, dbias;  // [cols]
};

// With n = x rstd, g = dy weight:  dx = rstd (g - n mean(g n)), dweight = sum_rows dy n
inline NormGrad rms_norm_backward(const Vector& dy, const Vector& x, const Vector& weight,
                                  double eps) {
  const size_t cols = weight.size();
  NormGrad out{Vector(x.size()), Vector(cols), {}};
  for (size_t r = 0; r < x.size(); r += cols) {
    double squares = 0, along = 0;
    for (size_t c = 0; c < cols; ++c) squares += x[r + c] * x[r + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (size_t c = 0; c < cols; ++c)
      along += dy[r + c] * weight[c] * x[r + c] * rstd / static_cast<double>(cols);
    for (size_t c = 0; c < cols; ++c) {
      out.dx[r + c] = rstd * (dy[r + c] * weight[c] - x[r + c] * rstd * along);
      out.dweight[c] += dy[r + c] * x[r + c] * rstd;
    }
  }
  return out;
}

// y = (x - mean) / sqrt(var + eps) * weight + bias, var = mean((x - mean)^2).  x, y [N,cols];
// weight [cols]; bias [cols] or absent
template <class T>
std::vector<T> layer_norm_forward(const std::vector<T>& x, const std::vector<T>& weight,
                                  const std::vector<T>& bias, double eps) {
  using std::sqrt;
  const size_t cols = weight.size();
  const T width(static_cast<double>(cols));
  std::vector<T> y(x.size());
  for (size_t r = 0; r < x.size(); r += cols) {
    T mean(0.0), var(0.0);
    for (size_t c = 0; c < cols; ++c) mean += x[r + c] / width;
    for (size_t c = 0; c < cols; ++c) var += (x[r + c] - mean) * (x[r + c] - mean) / width;
    const T rstd = T(1.0) / sqrt(var + T(eps));
    for (size_t c = 0; c < cols; ++c)
      y[r + c] = (x[r + c] - mean) * rstd * weight[c] + (bias.empty() ? T(0.0) : bias[c]);
  }
  return y;
}

// With n = (x - mean) rstd, g = dy weight:  dx = rstd (g - mean(g) - n mean(g n)), dweight =
// sum_rows dy n, dbias = sum_rows dy
inline NormGrad layer_norm_backward(const Vector& dy, const Vector& x, const Vector& weight,
                                    double eps) {
  const size_t cols = weight.size();
  const double width = static_cast<double>(cols);
  NormGrad out{Vector(x.size()), Vector(cols), Vector(cols)};
  for (size_t r = 0; r < x.size(); r += cols) {
    double mean = 0, var = 0, mean_g = 0, mean_gn = 0;
    for (size_t c = 0; c < cols; ++c) mean += x[r + c] / width;
    for (size_t c = 0; c < cols; ++c) var += (x[r + c] - mean) * (x[r + c] - mean) / width;
    const double rstd = 1 / std::sqrt(var + eps);
    for (size_t c = 0; c < cols; ++c) {
      mean_g += dy[r + c] * weight[c] / width;
      mean_gn += dy[r + c] * weight[c] * (x[r + c] - mean) * rstd / width;
    }
    for (size_t c = 0; c < cols; ++c) {
      const double n = (x[r + c] - mean) * rstd;
      out.dx[r + c] = rstd * (dy[r + c] * weight[c] - mean_g - n * mean_gn);
      out.dweight[c] += dy[r + c] * n;
      out.dbias[c] += dy[r + c];
    }
  }
  return out;
}

// ---- rope, embedding, dropout -------------------------------------------------------------------

// Turns the pair (c, c + R/2), c < R/2, of each head by positions[n] frequency[c] and multiplies it
// by `factor`, the other way when `inverse`; the rest of a head stays.  x [N, heads*C], R twice the
// frequencies; its backward is its inverse.
template <class T>
std::vector<T> rope(std::vector<T> x, const std::vector<int32_t>& positions, int64_t heads,
                    const std::vector<double>& frequency, double factor, bool inverse) {
  const int64_t half = static_cast<int64_t>(frequency.size()),
                head_width = static_cast<int64_t>(x.size() / positions.size()) / heads;
  for (size_t n = 0; n < positions.size(); ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < half; ++c) {
        const double angle = (inverse ? -1 : 1) * positions[n] * frequency[static_cast<size_t>(c)];
        T& low = x[static_cast<size_t>((static_cast<int64_t>(n) * heads + h) * head_width + c)];
        T& high =
            x[static_cast<size_t>((static_cast<int64_t>(n) * heads + h) * head_width + c + half)];
        const T a = low, b = high;
        low = a * T(factor * std::cos(angle)) - b * T(factor * std::sin(angle));
        high = b * T(factor * std::cos(angle)) + a * T(factor * std::sin(angle));
      }
    }
  }
  return x;
}

// y[n] = table[ids[n]].  table [V,cols]; y [N,cols]
template <class T>
std::vector<T> embedding_forward(const std::vector<T>& table, const std::vector<int32_t>& ids,
                                 size_t cols) {
  std::vector<T> y;
  for (int32_t id : ids)
    for (size_t c = 0; c < cols; ++c) y.push_back(table[static_cast<size_t>(id) * cols + c]);
  return y;
}

// dtable[ids[n]] += dy[n].  dtable [V,cols]; dy [N,cols]
inline Vector embedding_backward(const Vector& dy, const std::vector<int32_t>& ids,
                                 size_t vocabulary, size_t cols) {
  Vector dtable(vocabulary * cols);
  for (size_t n = 0; n < ids.size(); ++n)
    for (size_t c = 0; c < cols; ++c)
      dtable[static_cast<size_t>(ids[n]) * cols + c] += dy[n * cols + c];
  return dtable;
}

// Whether element i survives: word i mod 4 of Philox at counter i / 4, its upper 24 bits as a
// number in [0, 1), is not below p.
inline bool dropout_keeps(size_t i, float p, RngKey key) {
  return (philox(key, i / 4)[i % 4] >> 8) * 0x1p-24 >= static_cast<double>(p);
}

// y_i = x_i / (1 - p) where kept, else 0; y = x for p = 0 or an empty key. Its own backward.  x, y
// [N,D]
template <class T>
std::vector<T> dropout(std::vector<T> x, float p, RngKey key) {
  if (p == 0 || key.empty()) return x;
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = dropout_keeps(i, p, key) ? x[i] / T(1.0 - static_cast<double>(p)) : T(0.0);
  return x;
}

// ---- expert hidden layer ------------------------------------------------------------------------

inline double activate_slope(double x, ops::Act act) {
  const double k = std::sqrt(2 / std::numbers::pi);
  switch (act) {
    case ops::Act::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case ops::Act::sigmoid: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 - s);
    }
    case ops::Act::gelu:
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    case ops::Act::gelu_tanh: {
      const double t = std::tanh(k * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    }
    case ops::Act::relu: return x > 0 ? 1 : 0;
    case ops::Act::relu2: return x > 0 ? 2 * x : 0;
    case ops::Act::swiglu_oai: {
      const double s = 1 / (1 + std::exp(-1.702 * x));
      return x > 7 ? 0 : s * (1 + 1.702 * x * (1 - s));
    }
    case ops::Act::swiglu_10: {
      const double s = 1 / (1 + std::exp(-x));
      return x > 10 ? 0 : s * (1 + x * (1 - s));
    }
  }
  return 0;
}

// hidden = weight act(gate) beside(up), or weight act(up) when gate is absent.  hidden, gate, up
// [R,cols]; weight [R] or absent (= 1)
template <class T>
std::vector<T> ffn_act_forward(const std::vector<T>& gate, const std::vector<T>& up,
                               const std::vector<T>& weight, size_t cols, ops::Act act) {
  std::vector<T> hidden(up.size());
  for (size_t i = 0; i < up.size(); ++i) {
    const T h = gate.empty() ? activate(up[i], act) : activate(gate[i], act) * beside(up[i], act);
    hidden[i] = weight.empty() ? h : weight[i / cols] * h;
  }
  return hidden;
}

struct FfnActGrad {
  Vector dgate, dup;  // [R,cols]; dgate empty without a gate
  Vector dweight;     // [R], empty without a weight
};

inline FfnActGrad ffn_act_backward(const Vector& dhidden, const Vector& gate, const Vector& up,
                                   const Vector& weight, size_t cols, ops::Act act) {
  FfnActGrad out{Vector(gate.size()), Vector(up.size()), Vector(weight.size())};
  for (size_t i = 0; i < up.size(); ++i) {
    const double w = weight.empty() ? 1 : weight[i / cols];
    if (gate.empty()) {
      out.dup[i] = dhidden[i] * w * activate_slope(up[i], act);
      if (!weight.empty()) out.dweight[i / cols] += dhidden[i] * activate(up[i], act);
    } else {
      const double a = activate(gate[i], act), b = beside(up[i], act),
                   slope = limit_of(act) > 0 && std::fabs(up[i]) > limit_of(act) ? 0 : 1;
      out.dup[i] = dhidden[i] * w * a * slope;
      out.dgate[i] = dhidden[i] * w * b * activate_slope(gate[i], act);
      if (!weight.empty()) out.dweight[i / cols] += dhidden[i] * a * b;
    }
  }
  return out;
}

// ---- dispatch and combine -----------------------------------------------------------------------

// y[r] = x[token[r]].  x [N,cols]; y [R,cols]
template <class T>
std::vector<T> gather_rows(const std::vector<T>& x, const std::vector<int32_t>& token,
                           size_t cols) {
  return embedding_forward(x, token, cols);
}

// y[n] = sum of x[row[i]] for i in [bounds[n], bounds[n+1]).  x [R,cols]; y [N,cols]
template <class T>
std::vector<T> sum_rows(const std::vector<T>& x, const std::vector<int32_t>& bounds,
                        const std::vector<int32_t>& row, size_t cols) {
  std::vector<T> y((bounds.size() - 1) * cols, T(0.0));
  for (size_t n = 0; n + 1 < bounds.size(); ++n)
    for (int32_t i = bounds[n]; i < bounds[n + 1]; ++i)
      for (size_t c = 0; c < cols; ++c)
        y[n * cols + c] += x[static_cast<size_t>(row[static_cast<size_t>(i)]) * cols + c];
  return y;
}

// y[r] = weight[r] x[r].  x, y [R,cols]; weight [R]
template <class T>
std::vector<T> weigh_rows(const std::vector<T>& x, const std::vector<T>& weight, size_t cols) {
  std::vector<T> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(weight[i / cols] * x[i]);
  return y;
}

template <class T>
struct WeighedRows {
  std::vector<T> dx, dweight;  // [R,cols], [R]
};

template <class T>
WeighedRows<T> weigh_rows_backward(const std::vector<T>& dy, const std::vector<T>& x,
                                   const std::vector<T>& weight, size_t cols) {
  WeighedRows<T> d{weigh_rows(dy, weight, cols), std::vector<T>(weight.size(), T(0.0))};
  for (size_t i = 0; i < x.size(); ++i) d.dweight[i / cols] += dy[i] * x[i];
  return d;
}

// ---- loss ---------------------------------------------------------------------------------------

template <class T>
struct CrossEntropy {
  std::vector<T> nll, lse;  // [N]
};

// lse = log sum_v e^x_v (the maximum taken out as a constant), nll = lse - x_target, 0 for ignored
// targets.  logits [N,cols]; targets [N]
template <class T>
CrossEntropy<T> cross_entropy_forward(const std::vector<T>& logits,
                                      const std::vector<int32_t>& targets, size_t cols) {
  using std::exp, std::log;
  CrossEntropy<T> out;
  for (size_t n = 0; n < targets.size(); ++n) {
    const T* x = logits.data() + n * cols;
    double most = value_of(x[0]);
    for (size_t c = 1; c < cols; ++c) most = std::max(most, value_of(x[c]));
    T sum(0.0);
    for (size_t c = 0; c < cols; ++c) sum += exp(x[c] - T(most));
    out.lse.push_back(T(most) + log(sum));
    out.nll.push_back(targets[n] == ops::kIgnoreTarget ? T(0.0) : out.lse.back() - x[targets[n]]);
  }
  return out;
}

// dlogits = scale weights (e^(x - lse) - [v = target]), 0 for ignored rows.  [N,cols]; weights [N],
// empty: all 1
inline Vector cross_entropy_backward(const Vector& logits, const std::vector<int32_t>& targets,
                                     size_t cols, double scale,
                                     const std::vector<float>& weights = {}) {
  const CrossEntropy<double> forward = cross_entropy_forward(logits, targets, cols);
  Vector dlogits(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t n = i / cols;
    if (targets[n] == ops::kIgnoreTarget) continue;
    const double weight = weights.empty() ? 1 : static_cast<double>(weights[n]);
    dlogits[i] = scale * weight *
                 (std::exp(logits[i] - forward.lse[n]) -
                  (static_cast<int32_t>(i % cols) == targets[n] ? 1 : 0));
  }
  return dlogits;
}

// sum_v p_v (log p_v - log q_v) with p and q the softmaxes of a teacher's logits and of these, 0
// for ignored rows.  [N]
template <class T>
std::vector<T> divergence_forward(const Vector& teacher, const std::vector<T>& logits,
                                  const std::vector<int32_t>& targets, size_t cols) {
  const std::vector<double> of_teacher = cross_entropy_forward(teacher, targets, cols).lse;
  const std::vector<T> of_student = cross_entropy_forward(logits, targets, cols).lse;
  std::vector<T> kl(targets.size(), T(0.0));
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t n = i / cols;
    if (targets[n] == ops::kIgnoreTarget) continue;
    const double log_p = teacher[i] - of_teacher[n];
    kl[n] += T(std::exp(log_p)) * (T(log_p) - (logits[i] - of_student[n]));
  }
  return kl;
}

// dlogits = scale (q - (1 - share) [v = target] - share p), 0 for ignored rows.  [N,cols]
inline Vector divergence_backward(const Vector& teacher, const Vector& logits,
                                  const std::vector<int32_t>& targets, size_t cols, double scale,
                                  double share) {
  const std::vector<double> of_teacher = cross_entropy_forward(teacher, targets, cols).lse,
                            of_student = cross_entropy_forward(logits, targets, cols).lse;
  Vector dlogits(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t n = i / cols;
    if (targets[n] == ops::kIgnoreTarget) continue;
    const double hit = static_cast<int32_t>(i % cols) == targets[n] ? 1 : 0;
    dlogits[i] = scale * (std::exp(logits[i] - of_student[n]) - (1 - share) * hit -
                          share * std::exp(teacher[i] - of_teacher[n]));
  }
  return dlogits;
}

// ---- optimizer ----------------------------------------------------------------------------------

// One step of AdamW as PyTorch defines it; value, m and v are updated in place.  all one size
inline void adamw_step(Vector& value, Vector& m, Vector& v, const Vector& grad,
                       const ops::AdamW& opt) {
  const double b1 = opt.beta1, b2 = opt.beta2, step = static_cast<double>(opt.step);
  for (size_t i = 0; i < value.size(); ++i) {
    const double g = grad[i] * opt.grad_scale;
    value[i] *= 1 - static_cast<double>(opt.lr) * opt.weight_decay;
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    const double mhat = m[i] / (1 - std::pow(b1, step)), vhat = v[i] / (1 - std::pow(b2, step));
    value[i] -= opt.lr * mhat / (std::sqrt(vhat) + opt.eps);
  }
}

}  // namespace moe::test::twin
