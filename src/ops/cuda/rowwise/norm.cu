// RMS norm and layer norm, forward and backward: one pass over memory, rows staying in registers
// between their statistics and their use. The two differ by the mean that layer norm takes out
// (`centred`) and by its bias.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

// Steps of a row that a thread holds, forward and backward, where the sums of columns take
// registers too.
constexpr int kHeldForward = 4, kHeldBackward = 2;
constexpr unsigned kMostBackward = 512;  // threads

// What a column is multiplied by, or its bias: offset + numbers[c], or `absent` where there are
// none.  numbers [D] f32 or bf16
struct Columns {
  const void* numbers = nullptr;
  bool narrow = false;
  float offset = 0, absent = 0;

  Columns(const Tensor& t, float plus, float none)
      : numbers(t.data), narrow(t.dtype == DType::bf16), offset(plus), absent(none) {}

  __device__ void load(float* to, int64_t c, int64_t cols, bool steps) const {
    if (numbers == nullptr) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) to[i] = absent;
    } else if (narrow) {
      load_as<bf16>(to, c, cols, steps);
    } else {
      load_as<float>(to, c, cols, steps);
    }
  }

 private:
  template <class T>
  __device__ void load_as(float* to, int64_t c, int64_t cols, bool steps) const {
    Step<T> step;
    step.load(static_cast<const T*>(numbers), c, cols, steps);
#pragma unroll
    for (int i = 0; i < kStep; ++i) to[i] = offset + step[i];
  }
};

// mean = mean(x) where centred, else 0;  rstd = 1 / sqrt(mean((x - mean)^2) + eps), a second pass,
// which does not cancel;  y = (x - mean) rstd w + b
template <bool centred, class Y, class X>
__global__ void norm_rows(Rows<Y> y, float* mean, float* rstd, Rows<X> x, Columns w, Columns b,
                          float eps, int64_t rows, int64_t cols, bool steps) {
  __shared__ float shared[33];
  const OwnRow own(rows);
  const HeldRow<X, kHeldForward> held(x.row(own.r), cols, steps);
  float centre = 0;
  if constexpr (centred) {
    float sum = 0;
    held.each([&](const Step<X>& v, int64_t) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) sum += v[i];
    });
    centre = row_sum(sum, shared) / static_cast<float>(cols);
  }
  float squares = 0;
  held.each([&](const Step<X>& v, int64_t c) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float away = v[i] - centre;
      if (!centred || c + i < cols) squares += away * away;
    }
  });
  const float scale = 1.0f / sqrtf(row_sum(squares, shared) / static_cast<float>(cols) + eps);
  if (!own.live) return;
  if (threadIdx.x == 0) {
    rstd[own.r] = scale;
    if constexpr (centred) mean[own.r] = centre;
  }
  held.each([&](const Step<X>& v, int64_t c) {
    float weight[kStep], bias[kStep];
    w.load(weight, c, cols, steps);
    b.load(bias, c, cols, steps);
    Step<Y> out;
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float n = (v[i] - centre) * scale;
      out.set(i, centred ? n * weight[i] + bias[i] : n * weight[i]);
    }
    out.store(y.row(own.r), c, cols, steps);
  });
}

// Rows `strip` has: [strip * each, strip * each + each). Sums over them of a strip's columns go to
// dw and db [strips, D]; either may be null.
struct Strips {
  int64_t strips, each;
  float *dw, *db;
};

// A column's sums that a thread has made so far.
struct Sums {
  float dw[kStep], db[kStep];
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kStep; ++i) dw[i] = db[i] = 0;
  }
  __device__ void load(const Strips& s, int64_t strip, int64_t c, int64_t cols) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      dw[i] = s.dw != nullptr && c + i < cols ? s.dw[strip * cols + c + i] : 0;
      db[i] = s.db != nullptr && c + i < cols ? s.db[strip * cols + c + i] : 0;
    }
  }
  __device__ void store(const Strips& s, int64_t strip, int64_t c, int64_t cols) const {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (s.dw != nullptr && c + i < cols) s.dw[strip * cols + c + i] = dw[i];
      if (s.db != nullptr && c + i < cols) s.db[strip * cols + c + i] = db[i];
    }
  }
};

// With g = dy w and n = (x - mean) rstd:  dx = rstd (g - n mean(g n)), less mean(g) within where
// centred;  dw += dy n;  db += dy
template <bool centred, class DX, class DY, class X>
__global__ void __launch_bounds__(kMostBackward)
    norm_rows_backward(Rows<DX> dx, Strips strips, Rows<DY> dy, Rows<X> x, Columns w,
                       const float* mean, const float* rstd, int64_t rows, int64_t cols,
                       bool steps) {
  constexpr int kHeld = kHeldBackward;
  __shared__ float shared[33];
  const int64_t strip = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  Sums sums[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) sums[k].clear();
  for (int64_t k = 0; k < strips.each; ++k) {
    // all lanes of a warp go on together; beyond the last row they add nothing
    const bool live = strip < strips.strips && strip * strips.each + k < rows;
    const int64_t r = live ? strip * strips.each + k : rows - 1;
    const HeldRow<X, kHeld> of_x(x.row(r), cols, steps);
    const HeldRow<DY, kHeld> of_dy(dy.row(r), cols, steps);
    const float scale = rstd[r], centre = centred ? mean[r] : 0.0f;
    float sum_g = 0, sum_gn = 0;
    const auto look = [&](const Step<X>& v, const Step<DY>& grad, int64_t c) {
      float weight[kStep];
      w.load(weight, c, cols, steps);
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float g = grad[i] * weight[i];
        sum_g += g;
        sum_gn += g * ((v[i] - centre) * scale);
      }
    };
    const auto finish = [&](const Step<X>& v, const Step<DY>& grad, int64_t c, float mean_g,
                            float mean_gn, Sums& add) {
      float weight[kStep];
      w.load(weight, c, cols, steps);
      Step<DX> out;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float n = (v[i] - centre) * scale;
        add.dw[i] += grad[i] * n;
        if constexpr (centred) add.db[i] += grad[i];
        out.set(i, scale * (grad[i] * weight[i] - mean_g - n * mean_gn));
      }
      out.store(dx.row(r), c, cols, steps);
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (of_x.column(h) < cols) look(of_x.held[h], of_dy.held[h], of_x.column(h));
    Step<X> more_x;
    Step<DY> more_dy;
    for (int64_t c = of_x.column(kHeld); c < cols; c += int64_t{blockDim.x} * kStep) {
      more_x.load(x.row(r), c, cols, steps);
      more_dy.load(dy.row(r), c, cols, steps);
      look(more_x, more_dy, c);
    }
    const float mean_gn = row_sum(sum_gn, shared) / static_cast<float>(cols),
                mean_g = centred ? row_sum(sum_g, shared) / static_cast<float>(cols) : 0.0f;
    if (!live) continue;
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (of_x.column(h) < cols)
        finish(of_x.held[h], of_dy.held[h], of_x.column(h), mean_g, mean_gn, sums[h]);
    for (int64_t c = of_x.column(kHeld); c < cols; c += int64_t{blockDim.x} * kStep) {
      more_x.load(x.row(r), c, cols, steps);
      more_dy.load(dy.row(r), c, cols, steps);
      Sums more;
      if (k == 0) more.clear();
      else more.load(strips, strip, c, cols);
      finish(more_x, more_dy, c, mean_g, mean_gn, more);
      more.store(strips, strip, c, cols);
    }
  }
  if (strip >= strips.strips) return;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t c = HeldRow<X, kHeld>::column(h);
    if (c < cols) sums[h].store(strips, strip, c, cols);
  }
}

bool fits_steps(std::initializer_list<Tensor> all, const Tensor& w, const Tensor& b) {
  return rows_in_steps(all) && (w.empty() || in_steps({w})) && (b.empty() || in_steps({b}));
}

template <bool centred>
void forward(Run& run, Tensor y, float* mean, Tensor rstd, Tensor x, const Tensor& w,
             const Tensor& b, float eps, float offset) {
  const RowShape shape(x.cols(), kHeldForward);
  const bool steps = fits_steps({x, y}, w, b);
  with_float(y.dtype, [&](auto of_y) {
    with_float(x.dtype, [&](auto of_x) {
      using Y = decltype(of_y);
      using X = decltype(of_x);
      launch(run, norm_rows<centred, Y, X>, shape.blocks(x.rows()), shape.block(), 0, Rows<Y>(y),
             mean, rstd.as<float>(), Rows<X>(x), Columns(w, offset, 1), Columns(b, 0, 0), eps,
             x.rows(), x.cols(), steps);
    });
  });
}

// Threads that a GPU keeps busy with this, and no more: each strip costs a row of sums. The same on
// every device, so that sums are too.
constexpr int64_t kStripThreads = 65536;

template <bool centred>
void backward(Run& run, Tensor dx, Param& weight, Param* bias, Tensor dy, Tensor x,
              const float* mean, Tensor rstd, float offset) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (rows == 0) return;
  const RowShape shape(cols, kHeldBackward, kMostBackward);
  const int64_t each = std::max<int64_t>(1, blocks_for(rows * shape.threads, kStripThreads)),
                count = (rows + each - 1) / each;
  const Tensor none, db = bias != nullptr ? bias->grad : none;
  Scratch scratch(run);
  const auto parts = [&](const Tensor& grad) {
    return grad.empty() ? nullptr : scratch.alloc(DType::f32, {count, cols}).template as<float>();
  };
  const Strips strips{count, each, parts(weight.grad), parts(db)};
  const bool steps = fits_steps({dx, dy, x}, weight.value, none);
  with_float(dx.dtype, [&](auto of_dx) {
    with_float(dy.dtype, [&](auto of_dy) {
      with_float(x.dtype, [&](auto of_x) {
        using DX = decltype(of_dx);
        using DY = decltype(of_dy);
        using X = decltype(of_x);
        launch(run, norm_rows_backward<centred, DX, DY, X>, shape.blocks(count), shape.block(), 0,
               Rows<DX>(dx), strips, Rows<DY>(dy), Rows<X>(x), Columns(weight.value, offset, 1),
               mean, rstd.as<float>(), rows, cols, steps);
      });
    });
  });
  if (strips.dw != nullptr)
    add_parts(run, weight.grad.as<float>(), strips.dw, 1, count, cols, take_zero(weight));
  if (strips.db != nullptr)
    add_parts(run, db.as<float>(), strips.db, 1, count, cols, take_zero(*bias));
}

}  // namespace

void rms_norm_forward(Run& run, Tensor y, Tensor rstd, Tensor x, const Param& weight, float eps,
                      float offset) {
  check_rms_norm_forward(y, rstd, x, weight);
  forward<false>(run, y, nullptr, rstd, x, weight.value, {}, eps, offset);
}

void rms_norm_backward(Run& run, Tensor dx, Param& weight, Tensor dy, Tensor x, Tensor rstd,
                       float offset) {
  check_rms_norm_backward(dx, weight, dy, x, rstd);
  backward<false>(run, dx, weight, nullptr, dy, x, nullptr, rstd, offset);
}

void layer_norm_forward(Run& run, Tensor y, Tensor mean, Tensor rstd, Tensor x, const Param& weight,
                        const Param& bias, float eps) {
  check_layer_norm_forward(y, mean, rstd, x, weight, bias);
  forward<true>(run, y, mean.as<float>(), rstd, x, weight.value, bias.value, eps, 0);
}

void layer_norm_backward(Run& run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         Tensor mean, Tensor rstd) {
  check_layer_norm_backward(dx, weight, bias, dy, x, mean, rstd);
  backward<true>(run, dx, weight, &bias, dy, x, mean.as<float>(), rstd, 0);
}

}  // namespace moe::ops::cuda
