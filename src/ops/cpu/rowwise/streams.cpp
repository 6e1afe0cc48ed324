// Residual streams beside one another (ops.h). Rows of h are S streams of D numbers. Sums over
// streams run in their order, whatever the threads.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/streams.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void CollapseRows(Tensor x, Tensor h, Tensor w, int64_t begin, int64_t end) {
  const DF32 d;
  const int64_t width = x.cols(), streams = h.cols() / width;
  for (int64_t n = begin; n < end; ++n) {
    const float *from = h.row<float>(n), *weight = w.row<float>(n);
    float* to = x.row<float>(n);
    ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
      VF32 sum = hn::Mul(hn::Set(d, weight[0]), Load(d, from + c, part));
      for (int64_t s = 1; s < streams; ++s)
        sum = hn::MulAdd(hn::Set(d, weight[s]), Load(d, from + s * width + c, part), sum);
      Store(sum, d, to + c, part);
    });
  }
}

void CollapseRowsBackward(Tensor dh, Tensor dw, Tensor dx, Tensor h, Tensor w, int64_t begin,
                          int64_t end) {
  const DF32 d;
  const int64_t width = dx.cols(), streams = h.cols() / width;
  for (int64_t n = begin; n < end; ++n)
    for (int64_t s = 0; s < streams; ++s) {
      const float *from = h.row<float>(n) + s * width, *grad = dx.row<float>(n);
      float* to = dh.row<float>(n) + s * width;
      const VF32 weight = hn::Set(d, w.row<float>(n)[s]);
      dw.row<float>(n)[s] = SumColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
        const VF32 g = Load(d, grad + c, part);
        Store(hn::MulAdd(weight, g, Load(d, to + c, part)), d, to + c, part);
        return hn::Mul(g, Load(d, from + c, part));
      });
    }
}

void SpreadRows(Tensor out, Tensor h, Tensor y, Tensor w, bool mixes, int64_t begin, int64_t end) {
  const DF32 d;
  const int64_t width = y.cols(), streams = h.cols() / width;
  for (int64_t n = begin; n < end; ++n) {
    const float *from = h.row<float>(n), *given = y.row<float>(n),
                *post = w.row<float>(n) + streams, *comb = post + streams;
    for (int64_t k = 0; k < streams; ++k) {
      float* to = out.row<float>(n) + k * width;
      ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
        VF32 sum = hn::Mul(hn::Set(d, post[k]), Load(d, given + c, part));
        if (!mixes) sum = hn::Add(sum, Load(d, from + k * width + c, part));
        for (int64_t j = 0; mixes && j < streams; ++j)
          sum = hn::MulAdd(hn::Set(d, comb[j * streams + k]), Load(d, from + j * width + c, part),
                           sum);
        Store(sum, d, to + c, part);
      });
    }
  }
}

// <dout_k, what>, of a row's streams.
HWY_INLINE float StreamDot(DF32 d, const float* dout, const float* what, int64_t width) {
  return SumColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(Load(d, dout + c, part), Load(d, what + c, part));
  });
}

void SpreadRowsBackward(Tensor dh, Tensor dy, Tensor dw, Tensor dout, Tensor h, Tensor y, Tensor w,
                        bool mixes, int64_t begin, int64_t end) {
  const DF32 d;
  const int64_t width = y.cols(), streams = h.cols() / width;
  for (int64_t n = begin; n < end; ++n) {
    const float *grad = dout.row<float>(n), *post = w.row<float>(n) + streams,
                *comb = post + streams;
    float *dpost = dw.row<float>(n) + streams, *dcomb = dpost + streams;
    ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
      VF32 sum = hn::Mul(hn::Set(d, post[0]), Load(d, grad + c, part));
      for (int64_t k = 1; k < streams; ++k)
        sum = hn::MulAdd(hn::Set(d, post[k]), Load(d, grad + k * width + c, part), sum);
      Store(sum, d, dy.row<float>(n) + c, part);
    });
    for (int64_t k = 0; k < streams; ++k)
      dpost[k] = StreamDot(d, grad + k * width, y.row<float>(n), width);
    for (int64_t j = 0; j < streams; ++j) {
      float* to = dh.row<float>(n) + j * width;
      ForColumns(d, width, [&](int64_t c, auto part) HWY_ATTR {
        VF32 sum = hn::Zero(d);
        if (!mixes) sum = Load(d, grad + j * width + c, part);
        for (int64_t k = 0; mixes && k < streams; ++k)
          sum = hn::MulAdd(hn::Set(d, comb[j * streams + k]), Load(d, grad + k * width + c, part),
                           sum);
        Store(sum, d, to + c, part);
      });
      for (int64_t k = 0; mixes && k < streams; ++k)
        dcomb[j * streams + k] = StreamDot(d, grad + k * width, h.row<float>(n) + j * width, width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(CollapseRows);
HWY_EXPORT(CollapseRowsBackward);
HWY_EXPORT(SpreadRows);
HWY_EXPORT(SpreadRowsBackward);

// Of one token: c is divided by the sums (+ eps) of its columns, or of its rows. `before`, where it
// is given, is what stood there, and becomes its gradient from that of what comes out.
class Stochastic {
 public:
  Stochastic(int64_t streams, double eps) : s_(static_cast<size_t>(streams)), eps_(eps) {}

  void divide(std::vector<double>& c, bool columns) const {
    for (size_t i = 0; i < s_; ++i) {
      double sum = eps_;
      for (size_t k = 0; k < s_; ++k) sum += c[at(i, k, columns)];
      for (size_t k = 0; k < s_; ++k) c[at(i, k, columns)] /= sum;
    }
  }
  // dx_i = (dy_i - sum_j dy_j y_j) / (sum + eps), y = x / (sum + eps)
  void divide_backward(std::vector<double>& d, const std::vector<double>& x, bool columns) const {
    for (size_t i = 0; i < s_; ++i) {
      double sum = eps_, inner = 0;
      for (size_t k = 0; k < s_; ++k) sum += x[at(i, k, columns)];
      for (size_t k = 0; k < s_; ++k) inner += d[at(i, k, columns)] * x[at(i, k, columns)] / sum;
      for (size_t k = 0; k < s_; ++k) {
        double& one = d[at(i, k, columns)];
        one = (one - inner) / sum;
      }
    }
  }

 private:
  size_t at(size_t i, size_t k, bool columns) const { return columns ? k * s_ + i : i * s_ + k; }

  size_t s_;
  double eps_;
};

// The weights of tokens, one token at a time, in double.
class TokenWeights {
 public:
  TokenWeights(const Param& base, const Param& scale, const HyperShape& shape)
      : base_(base.value.as<float>()),
        scale_(scale.value.as<float>()),
        parts_(scale.value.numel()),
        s_(shape.streams),
        shape_(shape),
        stochastic_(shape.streams, static_cast<double>(shape.eps)) {}

  // w, z [W]
  void forward(float* w, const float* z) {
    const double eps = static_cast<double>(shape_.eps);
    for (int64_t i = 0; i < s_; ++i) w[i] = static_cast<float>(sigmoid(at(z, 0, i)) + eps);
    if (parts_ == 1) return;
    const double more = parts_ == 2 ? eps : 0;
    for (int64_t i = 0; i < s_; ++i)
      w[s_ + i] = static_cast<float>(magnitude() * sigmoid(at(z, 1, s_ + i)) + more);
    if (parts_ == 2) return;
    mix(z);
    for (int64_t i = 0; i < s_ * s_; ++i)
      w[2 * s_ + i] = static_cast<float>(seen_.back()[static_cast<size_t>(i)]);
  }

  // du [W], the gradient of scale z + base
  void backward(double* du, const float* dw, const float* z) {
    const auto slope = [&](int64_t part, int64_t i) {
      const double s = sigmoid(at(z, part, i));
      return s * (1 - s);
    };
    for (int64_t i = 0; i < s_; ++i) du[i] = static_cast<double>(dw[i]) * slope(0, i);
    for (int64_t i = s_; parts_ > 1 && i < 2 * s_; ++i)
      du[i] = magnitude() * static_cast<double>(dw[i]) * slope(1, i);
    if (parts_ < 3) return;
    mix(z);
    std::vector<double> d(dw + 2 * s_, dw + (2 + s_) * s_);
    for (size_t step = seen_.size() - 1; step > 0; --step)
      stochastic_.divide_backward(d, seen_[step - 1], step % 2 == 1);
    for (int64_t i = 0; i < s_; ++i) {  // of the softmax of a row
      const auto first = static_cast<size_t>(i * s_);
      double inner = 0;
      for (size_t k = 0; k < static_cast<size_t>(s_); ++k)
        inner += d[first + k] * softmax_[first + k];
      for (size_t k = 0; k < static_cast<size_t>(s_); ++k)
        du[2 * s_ + i * s_ + static_cast<int64_t>(k)] =
            softmax_[first + k] * (d[first + k] - inner);
    }
  }

 private:
  double magnitude() const { return static_cast<double>(shape_.magnitude); }
  double at(const float* z, int64_t part, int64_t i) const {
    return static_cast<double>(scale_[part]) * static_cast<double>(z[i]) +
           static_cast<double>(base_[i]);
  }
  // seen_: the softmax of rows and eps, then what each division leaves of it: by columns, and by
  // rows and by columns again in each further round.
  void mix(const float* z) {
    softmax_.assign(static_cast<size_t>(s_ * s_), 0);
    for (int64_t i = 0; i < s_; ++i) {
      const int64_t first = (2 + i) * s_;
      double most = -INFINITY, sum = 0;
      for (int64_t k = 0; k < s_; ++k) most = std::max(most, at(z, 2, first + k));
      for (int64_t k = 0; k < s_; ++k)
        sum += softmax_[static_cast<size_t>(i * s_ + k)] = std::exp(at(z, 2, first + k) - most);
      for (int64_t k = 0; k < s_; ++k) softmax_[static_cast<size_t>(i * s_ + k)] /= sum;
    }
    seen_.assign(1, softmax_);
    for (double& one : seen_[0]) one += static_cast<double>(shape_.eps);
    for (int64_t step = 1; step < 2 * shape_.rounds; ++step) {
      seen_.push_back(seen_.back());
      stochastic_.divide(seen_.back(), step % 2 == 1);
    }
  }

  const float *base_, *scale_;
  int64_t parts_, s_;
  HyperShape shape_;
  Stochastic stochastic_;
  std::vector<double> softmax_;
  std::vector<std::vector<double>> seen_;
};

constexpr int64_t kWeighedTokens = 16;  // that are worth a thread

}  // namespace

void hyper_weights_forward(Run& run, Tensor w, Tensor z, const Param& base, const Param& scale,
                           const HyperShape& shape) {
  check_hyper_weights("hyper_weights_forward", w, z, base, scale, shape);
  parallel_for(run.threads, z.rows(), kWeighedTokens, [&](int64_t begin, int64_t end, int) {
    TokenWeights token(base, scale, shape);
    for (int64_t n = begin; n < end; ++n) token.forward(w.row<float>(n), z.row<float>(n));
  });
}

void hyper_weights_backward(Run& run, Tensor dz, Param& base, Param& scale, Tensor dw, Tensor z,
                            const HyperShape& shape) {
  check_hyper_weights("hyper_weights_backward", dw, z, base, scale, shape);
  check_hyper_weights("hyper_weights_backward", dz, z, base, scale, shape);
  const int64_t weights = z.cols(), parts = scale.value.numel();
  const auto part_of = [&](int64_t i) { return std::min(i / shape.streams, int64_t{2}); };
  parallel_for(run.threads, z.rows(), kWeighedTokens, [&](int64_t begin, int64_t end, int) {
    TokenWeights token(base, scale, shape);
    std::vector<double> du(static_cast<size_t>(weights));
    for (int64_t n = begin; n < end; ++n) {
      token.backward(du.data(), dw.row<float>(n), z.row<float>(n));
      for (int64_t i = 0; i < weights; ++i)
        dz.row<float>(n)[i] = static_cast<float>(du[static_cast<size_t>(i)]);
    }
  });
  std::vector<double> dbase(static_cast<size_t>(weights)), dscale(static_cast<size_t>(parts));
  for (int64_t n = 0; n < z.rows(); ++n)
    for (int64_t i = 0; i < weights; ++i) {
      float& du = dz.row<float>(n)[i];
      dbase[static_cast<size_t>(i)] += static_cast<double>(du);
      dscale[static_cast<size_t>(part_of(i))] +=
          static_cast<double>(du) * static_cast<double>(z.row<float>(n)[i]);
      du *= scale.value.as<float>()[part_of(i)];
    }
  const auto add = [](Param& param, const std::vector<double>& sums) {
    if (param.grad.empty()) return;
    for (size_t i = 0; i < sums.size(); ++i)
      param.grad.as<float>()[i] += static_cast<float>(sums[i]);
  };
  add(base, dbase);
  add(scale, dscale);
}

void collapse_streams_forward(Run& run, Tensor x, Tensor h, Tensor w) {
  choose_isa();
  check_streams("collapse_streams_forward", h, x, w, false);
  parallel_for(run.threads, h.rows(), row_grain(h.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(CollapseRows)(x, h, w, begin, end);
  });
}

void collapse_streams_backward_acc(Run& run, Tensor dh, Tensor dw, Tensor dx, Tensor h, Tensor w) {
  choose_isa();
  check_streams("collapse_streams_backward_acc", h, dx, w, false);
  check_streams("collapse_streams_backward_acc", dh, dx, dw, false);
  parallel_for(run.threads, h.rows(), row_grain(2 * h.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(CollapseRowsBackward)(dh, dw, dx, h, w, begin, end);
               });
}

void spread_streams_forward(Run& run, Tensor out, Tensor h, Tensor y, Tensor w, bool mixes) {
  choose_isa();
  check_streams("spread_streams_forward", h, y, w, true, mixes);
  check_streams("spread_streams_forward", out, y, w, true, mixes);
  parallel_for(run.threads, h.rows(), row_grain(2 * h.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(SpreadRows)(out, h, y, w, mixes, begin, end);
               });
}

void spread_streams_backward(Run& run, Tensor dh, Tensor dy, Tensor dw, Tensor dout, Tensor h,
                             Tensor y, Tensor w, bool mixes) {
  choose_isa();
  check_streams("spread_streams_backward", h, y, w, true, mixes);
  check_streams("spread_streams_backward", dout, y, w, true, mixes);
  check_streams("spread_streams_backward", dh, dy, dw, true, mixes);
  parallel_for(run.threads, h.rows(), row_grain(4 * h.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(SpreadRowsBackward)
                 (dh, dy, dw, dout, h, y, w, mixes, begin, end);
               });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
