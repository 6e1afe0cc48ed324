// RMS norm and layer norm, forward and backward: one pass over memory, rows staying in registers
// between their statistics and their use. The two differ by the mean that layer norm takes out
// (`centred`) and by its bias.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

// Pieces of 16 bytes of a row that a thread holds forward; steps backward, where weights and the
// sums of columns take registers too.
constexpr int kHeldForward = 4, kHeldBackward = 2;
// Threads of a row backward; fewer where not `fast`, which takes more registers.
template <bool fast>
constexpr unsigned kMostBackward = fast ? 512 : 384;

// Kernels are compiled twice: `fast`, of rows in whole steps with weights of f32, so that loads
// have no conditions between them and are on their way at once, backward of rows that are held
// whole; else for anything.

// What a column is multiplied by, or its bias: offset + numbers[c], or `absent` where there are
// none.  numbers [D] f32 or bf16
struct Columns {
  const void* numbers = nullptr;
  bool narrow = false;
  float offset = 0, absent = 0;

  Columns(const Tensor& t, float plus, float none)
      : numbers(t.data), narrow(t.dtype == DType::bf16), offset(plus), absent(none) {}

  // Weights of few rows are not in a cache: those that follow each other fill it.
  __device__ void ask(int64_t cols) const {
    if (numbers == nullptr) return;
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    ask_ahead(numbers, cols * (narrow ? 2 : 4), thread, blockDim.x * blockDim.y);
  }

  // kNumbers from column c on.
  template <bool fast, int kNumbers>
  __device__ void load(float (&to)[kNumbers], int64_t c, int64_t cols, bool steps) const {
    if constexpr (fast) {
      Unit<float, kNumbers> unit;
      unit.load_fixed(static_cast<const float*>(numbers) + c);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) to[i] = offset + unit[i];
    } else if (numbers == nullptr) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) to[i] = absent;
    } else if (narrow) {
      load_as<bf16>(to, c, cols, steps);
    } else {
      load_as<float>(to, c, cols, steps);
    }
  }

 private:
  template <class T, int kNumbers>
  __device__ void load_as(float (&to)[kNumbers], int64_t c, int64_t cols, bool steps) const {
    Step<T, kNumbers> step;
    step.load(static_cast<const T*>(numbers), c, cols, steps);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) to[i] = offset + step[i];
  }
};

// mean = mean(x) where centred, else 0;  rstd = 1 / sqrt(mean((x - mean)^2) + eps), a second pass,
// which does not cancel;  y = (x - mean) rstd w + b
template <bool fast, bool centred, class Y, class X>
__global__ void norm_rows(Rows<Y> y, float* mean, float* rstd, Rows<X> x, Columns w, Columns b,
                          float eps, int64_t rows, int64_t cols, bool whole) {
  if (blockIdx.x == 0) w.ask(cols);
  begin_in_turn();
  constexpr int kNumbers = Pack<X>::kNumbers;
  using Piece = Step<X, kNumbers>;
  __shared__ float shared[33];
  const bool steps = fast || whole;
  const OwnRow own(rows);
  const HeldRow<X, kHeldForward, kNumbers> held(x.row(own.r), cols, steps);
  float centre = 0;
  if constexpr (centred) {
    float sum = 0;
    held.each([&](const Piece& v, int64_t) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) sum += v[i];
    });
    centre = row_sum(sum, shared) / static_cast<float>(cols);
  }
  float squares = 0;
  held.each([&](const Piece& v, int64_t c) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
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
  held.each([&](const Piece& v, int64_t c) {
    float weight[kNumbers], bias[kNumbers], out[kNumbers];
    w.load<fast>(weight, c, cols, steps);
    if constexpr (centred) b.load<fast>(bias, c, cols, steps);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const float n = (v[i] - centre) * scale;
      out[i] = centred ? n * weight[i] + bias[i] : n * weight[i];
    }
    Step<Y, kNumbers>(out).store(y.row(own.r), c, cols, steps);
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

// The sum of x over the threads of a row, for all of them. Rows take turns with two pieces of
// shared memory, so that one barrier a row is enough.
struct RowSums {
  float (*shared)[33];
  int turn = 0;

  __device__ float operator()(float x) {
    if (blockDim.x <= kWarp) return row_sum(x, nullptr);
    float* own = shared[turn];
    turn ^= 1;
    x = warp_sum(x);
    if (threadIdx.x % kWarp == 0) own[threadIdx.x / kWarp] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < blockDim.x / kWarp; ++w) sum += own[w];
    return sum;
  }
};

// Where numbers are narrow, 64 registers are enough, and more threads keep more memory on its way.
template <bool fast, bool centred, class DY, class X>
constexpr bool kNarrow =
    fast && !centred && sizeof(DY) == sizeof(bf16) && sizeof(X) == sizeof(bf16);

// What a row's adjoint needs of the whole row. With g = dy w and n = (x - mean) rstd:  dx = rstd (g
// - n mean(g n)), less mean(g) within where centred;  dw += dy n;  db += dy
template <bool centred>
struct OfRow {
  float scale, centre;
  float g = 0, gn = 0;  // sums, then means

  template <class X, class DY>
  __device__ void look(const Step<X>& v, const Step<DY>& grad, const float* weight) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float one = grad[i] * weight[i];
      g += one;
      gn += one * ((v[i] - centre) * scale);
    }
  }
  template <class DX, class X, class DY>
  __device__ Step<DX> finish(const Step<X>& v, const Step<DY>& grad, const float* weight,
                             Sums& add) const {
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float n = (v[i] - centre) * scale;
      add.dw[i] += grad[i] * n;
      if constexpr (centred) add.db[i] += grad[i];
      out[i] = scale * (grad[i] * weight[i] - g - n * gn);
    }
    return Step<DX>(out);
  }
};

template <bool fast, bool centred, class DX, class DY, class X>
__global__ void __launch_bounds__(kMostBackward<fast>, kNarrow<fast, centred, DY, X> ? 2 : 1)
    norm_rows_backward(Rows<DX> dx, Strips strips, Rows<DY> dy, Rows<X> x, Columns w,
                       const float* mean, const float* rstd, int64_t rows, int64_t cols,
                       bool whole) {
  begin_in_turn();
  constexpr int kHeld = kHeldBackward;
  using HeldX = HeldRow<X, kHeld>;
  __shared__ float shared[2][33];
  RowSums row_total{shared};
  const bool steps = fast || whole;
  const int64_t strip = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  Sums sums[kHeld];
  // weights are held as far as registers go, others read again each time
  constexpr int kWeights = !fast ? 0 : kNarrow<fast, centred, DY, X> ? 1 : kHeld;
  float weights[kWeights + 1][kStep];
  const auto weight_of = [&](int h, int64_t c) {
    if (h < kWeights) return weights[h];
    w.load<fast>(weights[kWeights], c, cols, steps);
    return weights[kWeights];
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t c = HeldX::column(h);
    sums[h].clear();
    if (h < kWeights && c < cols) w.load<fast>(weights[h], c, cols, steps);
  }
  for (int64_t k = 0; k < strips.each; ++k) {
    // all lanes of a warp go on together; beyond the last row they add nothing
    const bool live = strip < strips.strips && strip * strips.each + k < rows;
    const int64_t r = live ? strip * strips.each + k : rows - 1;
    const HeldX of_x(x.row(r), cols, steps);
    const HeldRow<DY, kHeld> of_dy(dy.row(r), cols, steps);
    OfRow<centred> row{rstd[r], centred ? mean[r] : 0.0f};
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (const int64_t c = HeldX::column(h); c < cols)
        row.look(of_x.held[h], of_dy.held[h], weight_of(h, c));
    Step<X> more_x;
    Step<DY> more_dy;
    const auto read_more = [&](int64_t c) {
      more_x.load(x.row(r), c, cols, steps);
      more_dy.load(dy.row(r), c, cols, steps);
    };
    for (int64_t c = HeldX::column(kHeld); !fast && c < cols; c += int64_t{blockDim.x} * kStep) {
      read_more(c);
      row.look(more_x, more_dy, weight_of(kHeld, c));
    }
    row.gn = row_total(row.gn) / static_cast<float>(cols);
    row.g = centred ? row_total(row.g) / static_cast<float>(cols) : 0.0f;
    if (!live) continue;
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (const int64_t c = HeldX::column(h); c < cols)
        row.template finish<DX>(of_x.held[h], of_dy.held[h], weight_of(h, c), sums[h])
            .store(dx.row(r), c, cols, steps);
    for (int64_t c = HeldX::column(kHeld); !fast && c < cols; c += int64_t{blockDim.x} * kStep) {
      read_more(c);
      Sums more;
      if (k == 0) more.clear();
      else more.load(strips, strip, c, cols);
      row.template finish<DX>(more_x, more_dy, weight_of(kHeld, c), more)
          .store(dx.row(r), c, cols, steps);
      more.store(strips, strip, c, cols);
    }
  }
  if (strip >= strips.strips) return;
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (const int64_t c = HeldX::column(h); c < cols) sums[h].store(strips, strip, c, cols);
}

bool is_f32(const Tensor& t) { return !t.empty() && t.dtype == DType::f32; }
bool fits_steps(std::initializer_list<Tensor> all, const Tensor& w, const Tensor& b) {
  return rows_in_steps(all) && (w.empty() || in_steps({w})) && (b.empty() || in_steps({b}));
}

template <bool centred>
void forward(Run& run, Tensor y, float* mean, Tensor rstd, Tensor x, const Tensor& w,
             const Tensor& b, float eps, float offset) {
  const bool steps = fits_steps({x, y}, w, b), fast = steps && is_f32(w) && (!centred || is_f32(b));
  with_float(y.dtype, [&](auto of_y) {
    with_float(x.dtype, [&](auto of_x) {
      using Y = decltype(of_y);
      using X = decltype(of_x);
      const RowShape shape(x.cols(), steps_for(x.rows(), kHeldForward * Pack<X>::kNumbers / kStep));
      launch(run, fast ? norm_rows<true, centred, Y, X> : norm_rows<false, centred, Y, X>,
             shape.blocks(x.rows()), shape.block(), 0, Rows<Y>(y), mean, rstd.as<float>(),
             Rows<X>(x), Columns(w, offset, 1), Columns(b, 0, 0), eps, x.rows(), x.cols(), steps);
    });
  });
}

template <bool centred>
void backward(Run& run, Tensor dx, Param& weight, Param* bias, Tensor dy, Tensor x,
              const float* mean, Tensor rstd, float offset) {
  const int64_t rows = x.rows(), cols = x.cols();
  if (rows == 0) return;
  const bool steps = fits_steps({dx, dy, x}, weight.value, {}),
             fast = steps && is_f32(weight.value) &&
                    cols <= int64_t{kMostBackward<true>} * kHeldBackward * kStep;
  const RowShape shape(cols, kHeldBackward, fast ? kMostBackward<true> : kMostBackward<false>);
  // Threads that a GPU keeps busy, as many as have registers, and no more: each strip costs a row
  // of sums. The same on every device, so that sums are too.
  const bool narrow = fast && !centred && dy.dtype == DType::bf16 && x.dtype == DType::bf16;
  const int64_t threads = narrow ? 131072 : 65536,
                each = std::max<int64_t>(1, blocks_for(rows * shape.threads, threads)),
                count = (rows + each - 1) / each;
  const Tensor none, db = bias != nullptr ? bias->grad : none;
  Scratch scratch(run);
  const auto parts = [&](const Tensor& grad) {
    return grad.empty() ? nullptr : scratch.alloc(DType::f32, {count, cols}).template as<float>();
  };
  const Strips strips{count, each, parts(weight.grad), parts(db)};
  with_float(dx.dtype, [&](auto of_dx) {
    with_float(dy.dtype, [&](auto of_dy) {
      with_float(x.dtype, [&](auto of_x) {
        using DX = decltype(of_dx);
        using DY = decltype(of_dy);
        using X = decltype(of_x);
        launch(run,
               fast ? norm_rows_backward<true, centred, DX, DY, X>
                    : norm_rows_backward<false, centred, DX, DY, X>,
               shape.blocks(count), shape.block(), 0, Rows<DX>(dx), strips, Rows<DY>(dy),
               Rows<X>(x), Columns(weight.value, offset, 1), mean, rstd.as<float>(), rows, cols,
               steps);
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
                        const Param& bias, float eps, float offset) {
  check_layer_norm_forward(y, mean, rstd, x, weight, bias);
  forward<true>(run, y, mean.as<float>(), rstd, x, weight.value, bias.value, eps, offset);
}

void layer_norm_backward(Run& run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         Tensor mean, Tensor rstd, float offset) {
  check_layer_norm_backward(dx, weight, bias, dy, x, mean, rstd);
  backward<true>(run, dx, weight, &bias, dy, x, mean.as<float>(), rstd, offset);
}

}  // namespace moe::ops::cuda
