// A convolution of each channel over the last few tokens of its sequence, and what follows it.
// Vectors run along the channels; a row reads the J-1 rows before it, so that rows are shared out
// among threads.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/recurrent/short_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/recurrent/sequences.h"
#include "ops/cpu/recurrent/short_conv.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// s[n,c] = bias[c] + sum_j w[j,c] x[n - (J-1) + j, c], j rising. first: the row where n's sequence
// begins. state [J-1,C] f32 or null: what is before it.
template <class T, class F>
void ConvRow(Tensor x, const ConvWeight& w, int64_t n, int64_t first, const float* state, F&& f) {
  const DF32 d;
  const int64_t cols = x.cols(), taps = w.taps;
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    VF32 sum = w.bias != nullptr ? Load(d, w.bias + c, part) : hn::Zero(d);
    for (int64_t j = 0; j < taps; ++j) {
      const int64_t row = n - (taps - 1) + j;
      const VF32 weight = Load(d, w.by_tap + j * cols + c, part);
      if (row >= first) sum = hn::MulAdd(weight, Load(d, x.row<T>(row) + c, part), sum);
      else if (state != nullptr)
        sum = hn::MulAdd(weight, Load(d, state + (row - first + taps - 1) * cols + c, part), sum);
    }
    f(c, part, sum);
  });
}

void ConvRows(Tensor y, Tensor x, const ConvWeight& w, const int64_t* first,
              const float* const* state, ConvAct act, int64_t begin, int64_t end) {
  const DF32 d;
  const bool silu = act == ConvAct::silu;
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t n = begin; n < end; ++n) {
      T* to = y.row<T>(n);
      ConvRow<T>(x, w, n, first[n], state[n], [&](int64_t c, auto part, VF32 s) HWY_ATTR {
        Store(silu ? hn::Mul(s, Sigmoid(d, s)) : s, d, to + c, part);
      });
    }
  });
}

// ds = dy act'(s), f32
void ConvSlopes(Tensor ds, Tensor dy, Tensor x, const ConvWeight& w, const int64_t* first,
                ConvAct act, int64_t begin, int64_t end) {
  const DF32 d;
  const bool silu = act == ConvAct::silu;
  const VF32 one = hn::Set(d, 1.0f);
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t n = begin; n < end; ++n) {
      const T* from = dy.row<T>(n);
      float* to = ds.row<float>(n);
      ConvRow<T>(x, w, n, first[n], nullptr, [&](int64_t c, auto part, VF32 s) HWY_ATTR {
        const VF32 sigmoid = Sigmoid(d, s);
        const VF32 slope = silu ? hn::Mul(sigmoid, hn::MulAdd(s, hn::Sub(one, sigmoid), one)) : one;
        Store(hn::Mul(Load(d, from + c, part), slope), d, to + c, part);
      });
    }
  });
}

// dx[n,c] = sum_j w[j,c] ds[n + (J-1) - j, c], within the sequence, which ends at last[n]
void ConvRowsBackward(Tensor dx, Tensor ds, const ConvWeight& w, const int64_t* last, int64_t begin,
                      int64_t end) {
  const DF32 d;
  const int64_t cols = dx.cols(), taps = w.taps;
  WithFloat(dx.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t n = begin; n < end; ++n) {
      T* to = dx.row<T>(n);
      ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
        VF32 sum = hn::Zero(d);
        for (int64_t j = 0; j < taps && n + taps - 1 - j >= 0; ++j) {
          const int64_t row = n + taps - 1 - j;
          if (row < last[n])
            sum = hn::MulAdd(Load(d, w.by_tap + j * cols + c, part),
                             Load(d, ds.row<float>(row) + c, part), sum);
        }
        Store(sum, d, to + c, part);
      });
    }
  });
}

// dw[j,c] += sum_n ds[n,c] x[n - (J-1) + j, c], rows in order; channels [begin,end)
void ConvWeights(float* dw, Tensor ds, Tensor x, int64_t taps, const int64_t* first, int64_t begin,
                 int64_t end) {
  const DF32 d;
  const int64_t cols = x.cols();
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t n = 0; n < x.rows(); ++n)
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t row = n - (taps - 1) + j;
        if (row < first[n]) continue;
        const T* from = x.row<T>(row) + begin;
        const float* grad = ds.row<float>(n) + begin;
        float* to = dw + j * cols + begin;
        ForColumns(d, end - begin, [&](int64_t c, auto part) HWY_ATTR {
          Store(hn::MulAdd(Load(d, grad + c, part), Load(d, from + c, part), Load(d, to + c, part)),
                d, to + c, part);
        });
      }
  });
}

// db[c] += sum_n ds[n,c], rows in order; channels [begin,end)
void ConvBias(float* db, Tensor ds, int64_t begin, int64_t end) {
  const DF32 d;
  for (int64_t n = 0; n < ds.rows(); ++n) {
    const float* grad = ds.row<float>(n) + begin;
    float* to = db + begin;
    ForColumns(d, end - begin, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Add(Load(d, to + c, part), Load(d, grad + c, part)), d, to + c, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(ConvRows);
HWY_EXPORT(ConvSlopes);
HWY_EXPORT(ConvRowsBackward);
HWY_EXPORT(ConvWeights);
HWY_EXPORT(ConvBias);

void check(const char* op, const Tensor& y, const Tensor& x, const Param& weight, const Param& bias,
           std::span<const int64_t> bounds) {
  need(same_matrix(x, y) && is_float(x) && x.dtype == y.dtype, op,
       "x and y of one shape and dtype, f32 or bf16", {{"y", y}, {"x", x}});
  const Tensor& w = weight.value;
  need(!w.empty() && w.rank == 2 && w.rows() == x.cols() && w.cols() >= 1 &&
           w.dtype == DType::f32 && w.dense(),
       op, "weight [C,J] f32", {{"weight", w}, {"x", x}});
  need(bias.value.empty() || is_vector(bias.value, x.cols()), op, "bias [C] f32, or none",
       {{"bias", bias.value}, {"x", x}});
  need_bounds(op, bounds, "x", x);
}

// Its taps in scratch.
ConvWeight laid_by_tap(Run& run, const Tensor& w, const Tensor& bias) {
  const int64_t cols = w.rows(), taps = w.cols();
  auto* out = run.scratch.alloc(DType::f32, {taps, cols}).as<float>();
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t j = 0; j < taps; ++j) out[j * cols + c] = w.row<float>(c)[j];
  return {out, bias.empty() ? nullptr : bias.as<float>(), taps};
}

// Of each row, where its sequence begins and ends, and what is before it.
struct Places {
  std::vector<int64_t> first, last;
  std::vector<const float*> state;

  Places(std::span<const int64_t> bounds, std::span<float* const> states) {
    for (size_t s = 0; s + 1 < bounds.size(); ++s)
      for (int64_t n = bounds[s]; n < bounds[s + 1]; ++n) {
        first.push_back(bounds[s]);
        last.push_back(bounds[s + 1]);
        state.push_back(states.empty() ? nullptr : states[s]);
      }
  }
};

// The last `kept` rows of what was there and of rows [begin,end) of x.
void move_on(float* state, Tensor x, int64_t kept, int64_t begin, int64_t end) {
  const int64_t cols = x.cols(), stay = std::max<int64_t>(0, kept - (end - begin));
  std::memmove(state, state + (kept - stay) * cols,
               static_cast<size_t>(stay * cols) * sizeof(float));
  for (int64_t i = stay; i < kept; ++i) {
    const int64_t row = end - kept + i;
    for (int64_t c = 0; c < cols; ++c)
      state[i * cols + c] =
          x.dtype == DType::f32 ? x.row<float>(row)[c] : to_f32(x.row<bf16>(row)[c]);
  }
}

// f(first channel, last one), in pieces that no two threads share a cache line of
template <class F>
void each_channels(Run& run, int64_t cols, int64_t rows, F&& f) {
  constexpr int64_t kLine = 16;
  parallel_for(
      run.threads, (cols + kLine - 1) / kLine, row_grain(rows * kLine),
      [&](int64_t begin, int64_t end, int) { f(begin * kLine, std::min(cols, end * kLine)); });
}

}  // namespace

void short_conv_forward(Run& run, Tensor y, Tensor x, const Param& weight, const Param& bias,
                        std::span<const int64_t> bounds, std::span<float* const> state,
                        ConvAct act) {
  choose_isa();
  check("short_conv_forward", y, x, weight, bias, bounds);
  need(state.empty() || state.size() + 1 == bounds.size(), "short_conv_forward",
       "a state for each sequence, or none", {{"x", x}});
  const ArenaScope scope(run.scratch);
  const ConvWeight w = laid_by_tap(run, weight.value, bias.value);
  const Places places(bounds, state);
  parallel_for(run.threads, x.rows(), row_grain(x.cols() * w.taps),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(ConvRows)
                 (y, x, w, places.first.data(), places.state.data(), act, begin, end);
               });
  for (size_t s = 0; s < state.size(); ++s)
    move_on(state[s], x, w.taps - 1, bounds[s], bounds[s + 1]);
}

void short_conv_backward(Run& run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         std::span<const int64_t> bounds, ConvAct act) {
  choose_isa();
  check("short_conv_backward", dy, x, weight, bias, bounds);
  check("short_conv_backward", dx, x, weight, bias, bounds);
  const ArenaScope scope(run.scratch);
  const ConvWeight w = laid_by_tap(run, weight.value, bias.value);
  const int64_t taps = w.taps, cols = x.cols();
  const Places places(bounds, {});
  Tensor ds = run.scratch.alloc(DType::f32, {x.rows(), cols});
  parallel_for(run.threads, x.rows(), row_grain(cols * taps), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ConvSlopes)(ds, dy, x, w, places.first.data(), act, begin, end);
  });
  parallel_for(run.threads, x.rows(), row_grain(cols * taps), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ConvRowsBackward)(dx, ds, w, places.last.data(), begin, end);
  });
  if (!bias.grad.empty()) {
    settle_grad(run, bias);
    each_channels(run, cols, x.rows(), [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(ConvBias)(bias.grad.as<float>(), ds, begin, end);
    });
  }
  if (weight.grad.empty()) return;
  settle_grad(run, weight);
  Tensor dw = run.scratch.alloc_zeroed(DType::f32, {taps, cols});
  each_channels(run, cols, x.rows(), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ConvWeights)
    (dw.as<float>(), ds, x, taps, places.first.data(), begin, end);
  });
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t j = 0; j < taps; ++j) weight.grad.row<float>(c)[j] += dw.row<float>(j)[c];
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
