// Mamba-2's state space, token after token. Rows of a head's state do not meet: row p changes by
// number p of the values alone. Vectors run along a row, whose sum is made the same way for one
// token as for many, so that a prompt in one piece gives the bits of one read token by token.
//
// Forward, S being the state before the token, D = e^(-e^a_log step) its decay:
//   S' = D S + step x B^T;  y = S' C + skip x
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/recurrent/state_space.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/recurrent/sequences.h"
#include "ops/cpu/recurrent/state_space.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void WidenRow(float* to, Tensor x, int64_t row) {
  const DF32 d;
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    const auto* from = x.row<decltype(kind)>(row);
    ForColumns(d, x.cols(), [&](int64_t c, auto part) HWY_ATTR {
      Store(Load(d, from + c, part), d, to + c, part);
    });
  });
}
void NarrowRow(Tensor y, int64_t row, const float* from) {
  const DF32 d;
  WithFloat(y.dtype, [&](auto kind) HWY_ATTR {
    auto* to = y.row<decltype(kind)>(row);
    ForColumns(d, y.cols(), [&](int64_t c, auto part) HWY_ATTR {
      Store(Load(d, from + c, part), d, to + c, part);
    });
  });
}

// One token in one head: `after` [P,C] from `before`, which may be it, and y = S' C where wanted.
void ScanToken(float* after, const float* before, float* y, const ScanStep& t) {
  const DF32 d;
  const VF32 decay = hn::Set(d, t.decay);
  for (int64_t p = 0; p < t.width; ++p) {
    const float *from = before + p * t.states, in = t.step * t.x[p];
    float* to = after + p * t.states;
    const VF32 scale = hn::Set(d, in);
    const float sum = SumColumns(d, t.states, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 next =
          hn::MulAdd(scale, Load(d, t.b + c, part), hn::Mul(decay, Load(d, from + c, part)));
      Store(next, d, to + c, part);
      return hn::Mul(next, Load(d, t.c + c, part));
    });
    if (y != nullptr) y[p] = sum + t.skip * t.x[p];
  }
}

// With G what the later tokens give the state behind this one, G' = G + dy C^T:
//   dC += S'^T dy;  dB += step G'^T x;  dx = step G' B + skip dy;  dskip = <dy, x>
//   dstep = <x, G' B>;  dlog_decay = D <G', S>;  G of the token before = D G'
void ScanTokenBackward(float* grad, const float* before, const float* after, const float* dy,
                       const ScanStep& t, const ScanGrads& g) {
  const DF32 d;
  const VF32 decay = hn::Set(d, t.decay);
  float dstep = 0, decayed = 0, dskip = 0;
  for (int64_t p = 0; p < t.width; ++p) {
    const float *was = before + p * t.states, *is = after + p * t.states;
    float* row = grad + p * t.states;
    const VF32 out = hn::Set(d, dy[p]), in = hn::Set(d, t.step * t.x[p]);
    const float of_b = SumColumns(d, t.states, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 whole = hn::MulAdd(out, Load(d, t.c + c, part), Load(d, row + c, part));
      Store(whole, d, row + c, part);
      Store(hn::MulAdd(out, Load(d, is + c, part), Load(d, g.dc + c, part)), d, g.dc + c, part);
      Store(hn::MulAdd(in, whole, Load(d, g.db + c, part)), d, g.db + c, part);
      return hn::Mul(whole, Load(d, t.b + c, part));
    });
    decayed += SumColumns(d, t.states, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 whole = Load(d, row + c, part);
      Store(hn::Mul(decay, whole), d, row + c, part);
      return hn::Mul(whole, Load(d, was + c, part));
    });
    g.dx[p] = t.step * of_b + t.skip * dy[p];
    dstep += t.x[p] * of_b;
    dskip += dy[p] * t.x[p];
  }
  *g.dstep = dstep;
  *g.dlog_decay = t.decay * decayed;
  *g.dskip = dskip;
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(WidenRow);
HWY_EXPORT(NarrowRow);
HWY_EXPORT(ScanToken);
HWY_EXPORT(ScanTokenBackward);

struct ScanParams {
  const Param &a_log, &dt_bias, &skip;
};

void check_scan(const char* op, const Tensor& y, const Tensor& xbc, const Tensor& dt,
                const ScanParams& p, const StateHeads& h, std::span<const int64_t> bounds) {
  const bool divides = h.groups > 0 && h.heads % h.groups == 0;
  need(divides && !xbc.empty() && !y.empty() && is_float(xbc) && y.dtype == xbc.dtype &&
           y.rows() == xbc.rows() && y.cols() == h.heads * h.width &&
           xbc.cols() == y.cols() + 2 * h.groups * h.states,
       op, "y [N,H*P] and xbc [N,H*P+2*G*C] of one dtype, f32 or bf16", {{"y", y}, {"xbc", xbc}});
  need(!dt.empty() && dt.dtype == DType::f32 && dt.rows() == y.rows() && dt.cols() == h.heads, op,
       "dt [N,H] f32", {{"dt", dt}, {"y", y}});
  for (const Param* param : {&p.a_log, &p.dt_bias, &p.skip})
    need(param->value.dtype == DType::f32 && param->value.numel() == h.heads, op,
         "a_log, dt_bias and skip [H] f32", {{"param", param->value}});
  need_bounds(op, bounds, "y", y);
}

// Tokens [begin, begin + count) of one head, in memory of a thread's.
class ScanHead {
 public:
  ScanHead(Arena& memory, Tensor xbc, Tensor dt, const ScanParams& p, const StateHeads& h,
           int64_t head, int64_t begin, int64_t count)
      : heads_(h), skip_(p.skip.value.as<float>()[head]) {
    const auto room = [&](int64_t n) { return memory.alloc(DType::f32, {n}).as<float>(); };
    x_ = room(count * h.width);
    b_ = room(count * h.states);
    c_ = room(count * h.states);
    step_ = room(count);
    decay_ = room(count);
    const float rate = -std::exp(p.a_log.value.as<float>()[head]),
                bias = p.dt_bias.value.as<float>()[head];
    const Tensor x = values(xbc, h, head), b = inputs(xbc, h, head), c = outputs(xbc, h, head);
    for (int64_t n = 0; n < count; ++n) {
      widen_row(x_ + n * h.width, x, begin + n);
      widen_row(b_ + n * h.states, b, begin + n);
      widen_row(c_ + n * h.states, c, begin + n);
      step_[n] = softplus(dt.row<float>(begin + n)[head] + bias);
      decay_[n] = std::exp(rate * step_[n]);
    }
  }
  ScanStep token(int64_t n) const {
    return {heads_.width,
            heads_.states,
            x_ + n * heads_.width,
            b_ + n * heads_.states,
            c_ + n * heads_.states,
            step_[n],
            decay_[n],
            skip_};
  }

  static Tensor values(Tensor xbc, const StateHeads& h, int64_t head) {
    return xbc.slice_cols(head * h.width, (head + 1) * h.width);
  }
  static Tensor of_group(Tensor xbc, const StateHeads& h, int64_t at) {
    const int64_t first = h.heads * h.width + at * h.states;
    return xbc.slice_cols(first, first + h.states);
  }
  static Tensor inputs(Tensor xbc, const StateHeads& h, int64_t head) {
    return of_group(xbc, h, head * h.groups / h.heads);
  }
  static Tensor outputs(Tensor xbc, const StateHeads& h, int64_t head) {
    return of_group(xbc, h, h.groups + head * h.groups / h.heads);
  }

 private:
  StateHeads heads_;
  float skip_;
  float *x_, *b_, *c_, *step_, *decay_;
};

void copy_state(float* to, const float* from, int64_t numbers) {
  std::memcpy(to, from, static_cast<size_t>(numbers) * sizeof(float));
}

// What the three numbers of each head and the projection of the step get. dlog_decay, dstep, dskip
// [N,H] f32 as the scan gave them; ddt may be dstep's memory.
//   dstep += -e^a_log dlog_decay;  ddt = dstep sigmoid(dt + dt_bias)
void finish_scan(Run& run, Tensor ddt, Param& a_log, Param& dt_bias, Param& skip, Tensor dlog_decay,
                 Tensor dstep, Tensor dskip, Tensor dt) {
  for (Param* param : {&a_log, &dt_bias, &skip})
    if (!param->grad.empty()) settle_grad(run, *param);
  parallel_for(run.threads, dt.cols(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t h = begin; h < end; ++h) {
      const double rate = -std::exp(static_cast<double>(a_log.value.as<float>()[h]));
      const float bias = dt_bias.value.as<float>()[h];
      double of_rate = 0, of_bias = 0, of_skip = 0;
      for (int64_t n = 0; n < dt.rows(); ++n) {
        const float in = dt.row<float>(n)[h] + bias;
        const double ddecay = dlog_decay.row<float>(n)[h],
                     step = dstep.row<float>(n)[h] + rate * ddecay,
                     grad = step / (1 + std::exp(-static_cast<double>(in)));
        of_rate += ddecay * rate * softplus(in);
        of_bias += grad;
        of_skip += dskip.row<float>(n)[h];
        ddt.row<float>(n)[h] = static_cast<float>(grad);
      }
      const auto add = [&](Param& param, double sum) {
        if (!param.grad.empty()) param.grad.as<float>()[h] += static_cast<float>(sum);
      };
      add(a_log, of_rate);
      add(dt_bias, of_bias);
      add(skip, of_skip);
    }
  });
}

}  // namespace

void state_space_forward(Run& run, Tensor y, Tensor chunks, Tensor xbc, Tensor dt,
                         const Param& a_log, const Param& dt_bias, const Param& skip,
                         const StateHeads& heads, std::span<const int64_t> bounds,
                         std::span<float* const> state) {
  const ScanParams params{a_log, dt_bias, skip};
  choose_isa();
  const char* op = "state_space_forward";
  check_scan(op, y, xbc, dt, params, heads, bounds);
  const int64_t size = heads.width * heads.states;
  need(state.empty() || state.size() + 1 == bounds.size(), op, "a state for each sequence, or none",
       {{"y", y}});
  need(chunks.empty() || (chunks.dtype == DType::f32 && chunks.rows() == delta_chunks(bounds) &&
                          chunks.cols() == heads.heads * size),
       op, "chunks [delta_chunks,H*P*C] f32", {{"chunks", chunks}});
  each_part(run, heads.heads, bounds, [&](size_t s, int64_t head, Arena& memory) {
    float* own = state.empty() ? memory.alloc_zeroed(DType::f32, {size}).as<float>()
                               : state[s] + head * size;
    float* out = memory.alloc(DType::f32, {heads.width}).as<float>();
    const Tensor to = ScanHead::values(y, heads, head);
    int64_t chunk = delta_chunks(bounds.first(s + 1));
    for (int64_t at = bounds[s]; at < bounds[s + 1]; at += kDeltaChunk, ++chunk) {
      const ArenaScope scope(memory);
      const int64_t count = std::min(kDeltaChunk, bounds[s + 1] - at);
      const ScanHead tokens(memory, xbc, dt, params, heads, head, at, count);
      if (!chunks.empty()) copy_state(chunks.row<float>(chunk) + head * size, own, size);
      for (int64_t n = 0; n < count; ++n) {
        HWY_DYNAMIC_DISPATCH(ScanToken)(own, own, out, tokens.token(n));
        HWY_DYNAMIC_DISPATCH(NarrowRow)(to, at + n, out);
      }
    }
  });
}

void state_space_backward(Run& run, Tensor dxbc, Tensor ddt, Param& a_log, Param& dt_bias,
                          Param& skip, Tensor dy, Tensor chunks, Tensor xbc, Tensor dt,
                          const StateHeads& heads, std::span<const int64_t> bounds) {
  choose_isa();
  const ScanParams params{a_log, dt_bias, skip};
  const char* op = "state_space_backward";
  check_scan(op, dy, xbc, dt, params, heads, bounds);
  check_scan(op, dy, dxbc, ddt, params, heads, bounds);
  const int64_t width = heads.width, cols = heads.states, size = width * cols,
                group = heads.heads / heads.groups;
  need(!chunks.empty() && chunks.rows() == delta_chunks(bounds) &&
           chunks.cols() == heads.heads * size,
       op, "chunks as forward gave them", {{"chunks", chunks}});
  const ArenaScope whole(run.scratch);
  Tensor dlog_decay = run.scratch.alloc(DType::f32, {dt.rows(), heads.heads}),
         dskip = run.scratch.alloc(DType::f32, {dt.rows(), heads.heads});
  // heads of a group have its B and C, so their gradients are one job's
  each_part(run, heads.groups, bounds, [&](size_t s, int64_t g, Arena& memory) {
    const int64_t begin = bounds[s], length = bounds[s + 1] - begin,
                  first_chunk = delta_chunks(bounds.first(s + 1)),
                  last_chunk = delta_chunks(bounds.first(s + 2));
    if (length == 0) return;
    const auto zeros = [&](int64_t n) { return memory.alloc_zeroed(DType::f32, {n}).as<float>(); };
    float *db = zeros(length * cols), *dc = zeros(length * cols), *grad = zeros(size),
          *states = zeros((kDeltaChunk + 1) * size), *dx = zeros(width), *dout = zeros(width);
    for (int64_t head = g * group; head < (g + 1) * group; ++head) {
      const Tensor out = ScanHead::values(dy, heads, head),
                   in = ScanHead::values(dxbc, heads, head);
      std::memset(grad, 0, static_cast<size_t>(size) * sizeof(float));
      for (int64_t chunk = last_chunk; chunk-- > first_chunk;) {
        const ArenaScope scope(memory);
        const int64_t at = (chunk - first_chunk) * kDeltaChunk,
                      count = std::min(kDeltaChunk, length - at);
        const ScanHead tokens(memory, xbc, dt, params, heads, head, begin + at, count);
        copy_state(states, chunks.row<float>(chunk) + head * size, size);
        for (int64_t n = 0; n < count; ++n) HWY_DYNAMIC_DISPATCH(ScanToken)
        (states + (n + 1) * size, states + n * size, nullptr, tokens.token(n));
        for (int64_t n = count; n-- > 0;) {
          const int64_t row = begin + at + n;
          widen_row(dout, out, row);
          HWY_DYNAMIC_DISPATCH(ScanTokenBackward)
          (grad, states + n * size, states + (n + 1) * size, dout, tokens.token(n),
           {dx, db + (at + n) * cols, dc + (at + n) * cols, ddt.row<float>(row) + head,
            dlog_decay.row<float>(row) + head, dskip.row<float>(row) + head});
          HWY_DYNAMIC_DISPATCH(NarrowRow)(in, row, dx);
        }
      }
    }
    for (int64_t n = 0; n < length; ++n) {
      HWY_DYNAMIC_DISPATCH(NarrowRow)
      (ScanHead::of_group(dxbc, heads, g), begin + n, db + n * cols);
      HWY_DYNAMIC_DISPATCH(NarrowRow)
      (ScanHead::of_group(dxbc, heads, heads.groups + g), begin + n, dc + n * cols);
    }
  });
  finish_scan(run, ddt, a_log, dt_bias, skip, dlog_decay, ddt, dskip, dt);
}

void widen_row(float* to, const Tensor& x, int64_t row) {
  HWY_DYNAMIC_DISPATCH(WidenRow)(to, x, row);
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
