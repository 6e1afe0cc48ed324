// Mamba-1's selective scan, token after token. Channels do not meet but in the gradients of B and
// C. Vectors run along channels, and the sum over what a channel keeps goes from first to last
// within one lane, so that a prompt in one piece gives the bits of one read token by token.
//
// Forward, S being the state of a channel before the token, D = e^(r step) its decays, r =
// -e^a_log:
//   step = log(1 + e^(dt + dt_bias));  S' = D S + step x B;  y = <S', C> + skip x
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/recurrent/selective_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/recurrent/selective_scan.h"
#include "ops/cpu/recurrent/sequences.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x|, and log(1 + t) = 2 artanh(s), s = t / (2 +
// t) <= 1/3, whose series is cut behind s^15: to 2e-9 of it.
HWY_INLINE VF32 SelectedStep(DF32 d, VF32 x) {
  const VF32 t = ExpNormal(d, hn::Neg(hn::Abs(x)));
  const VF32 s = hn::Div(t, hn::Add(t, hn::Set(d, 2.0f))), q = hn::Mul(s, s);
  VF32 sum = hn::Set(d, 1.0f / 15);
  for (const float term : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
    sum = hn::MulAdd(sum, q, hn::Set(d, term));
  return hn::MulAdd(hn::Add(s, s), sum, hn::Max(x, hn::Zero(d)));
}

// rate [C,kSelectiveBlock] of a_log [W,C]; room [W,C]
void SelectedRates(float* rate, float* room, const float* a_log, int64_t channels, int64_t states) {
  const DF32 d;
  ForColumns(d, channels * states, [&](int64_t i, auto part) HWY_ATTR {
    Store(hn::Neg(Exp(d, Load(d, a_log + i, part))), d, room + i, part);
  });
  for (int64_t i = 0; i < channels; ++i)
    for (int64_t c = 0; c < states; ++c) rate[c * kSelectiveBlock + i] = room[i * states + c];
}

// `after` from `before`, which may be it, both [C,stride], and the block's columns of y where it is
// wanted.
void SelectToken(float* after, const float* before, int64_t stride, Tensor y,
                 const SelectedBlock& block, const SelectedToken& t) {
  const DF32 d;
  WithFloat(t.x.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const T *values = t.x.row<T>(t.row) + block.first, *made = t.dt.row<T>(t.row) + block.first;
    T* to = y.empty() ? nullptr : y.row<T>(t.row) + block.first;
    ForColumns(d, block.channels, [&](int64_t i, auto part) HWY_ATTR {
      const VF32 x = Load(d, values + i, part),
                 step = SelectedStep(
                     d, hn::Add(Load(d, made + i, part), Load(d, block.bias + i, part))),
                 in = hn::Mul(step, x);
      VF32 sum = hn::Mul(Load(d, block.skip + i, part), x);
      for (int64_t c = 0; c < block.states; ++c) {
        const VF32 rate = Load(d, block.rate + c * kSelectiveBlock + i, part),
                   decay = ExpNormal(d, hn::Mul(rate, step)),
                   next = hn::MulAdd(in, hn::Set(d, t.b[c]),
                                     hn::Mul(decay, Load(d, before + c * stride + i, part)));
        Store(next, d, after + c * stride + i, part);
        sum = hn::MulAdd(next, hn::Set(d, t.c[c]), sum);
      }
      if (to != nullptr) Store(sum, d, to + i, part);
    });
  });
}

// With G what the later tokens give the state behind this one, [C,kSelectiveBlock] like the states,
// G' = G + dy C:
//   dC = sum dy S';  dB = sum step x G', over channels;  dx = step <G', B> + skip dy
//   dstep = x <G', B> + <r, D G' S>;  dr += step D G' S;  dskip += dy x;  G of the token before =
//   D G'
//   ddt = dstep / (1 + e^-(dt + dt_bias));  dbias += ddt
void SelectTokenBackward(float* grad, const float* before, const float* after, Tensor dy,
                         const SelectedBlock& block, const SelectedToken& t,
                         const SelectedGrads& g) {
  const DF32 d;
  static_assert(hn::MaxLanes(DF32()) <= kSelectedLanes);
  const int64_t states = block.states;
  for (int64_t i = 0; i < 2 * states; ++i) hn::StoreU(hn::Zero(d), d, g.sums + i * kSelectedLanes);
  WithFloat(t.x.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const int64_t first = block.first;
    const T *values = t.x.row<T>(t.row) + first, *made = t.dt.row<T>(t.row) + first,
            *outs = dy.row<T>(t.row) + first;
    T *dx = g.dx.row<T>(t.row) + first, *ddt = g.ddt.row<T>(t.row) + first;
    ForColumns(d, block.channels, [&](int64_t i, auto part) HWY_ATTR {
      const VF32 x = Load(d, values + i, part), out = Load(d, outs + i, part),
                 raw = hn::Add(Load(d, made + i, part), Load(d, block.bias + i, part)),
                 step = SelectedStep(d, raw), in = hn::Mul(step, x);
      VF32 of_in = hn::Zero(d), of_step = hn::Zero(d);
      for (int64_t c = 0; c < states; ++c) {
        const int64_t at = c * kSelectiveBlock + i;
        float *of_b = g.sums + c * kSelectedLanes, *of_c = g.sums + (states + c) * kSelectedLanes;
        const VF32 rate = Load(d, block.rate + at, part),
                   whole = hn::MulAdd(out, hn::Set(d, t.c[c]), Load(d, grad + at, part)),
                   passed = hn::Mul(ExpNormal(d, hn::Mul(rate, step)), whole),
                   of_log = hn::Mul(passed, Load(d, before + at, part));
        hn::StoreU(hn::MulAdd(in, whole, hn::LoadU(d, of_b)), d, of_b);
        hn::StoreU(hn::MulAdd(out, Load(d, after + at, part), hn::LoadU(d, of_c)), d, of_c);
        Store(passed, d, grad + at, part);
        Store(hn::MulAdd(step, of_log, Load(d, g.drate + at, part)), d, g.drate + at, part);
        of_in = hn::MulAdd(whole, hn::Set(d, t.b[c]), of_in);
        of_step = hn::MulAdd(rate, of_log, of_step);
      }
      const VF32 of_raw = hn::Mul(hn::MulAdd(x, of_in, of_step), Sigmoid(d, raw));
      Store(hn::MulAdd(step, of_in, hn::Mul(Load(d, block.skip + i, part), out)), d, dx + i, part);
      Store(of_raw, d, ddt + i, part);
      Store(hn::Add(Load(d, g.dbias + i, part), of_raw), d, g.dbias + i, part);
      Store(hn::MulAdd(out, x, Load(d, g.dskip + i, part)), d, g.dskip + i, part);
    });
  });
  for (int64_t i = 0; i < 2 * states; ++i)
    g.dbc[i] = SumLanesFixed(d, hn::LoadU(d, g.sums + i * kSelectedLanes));
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SelectedRates);
HWY_EXPORT(SelectToken);
HWY_EXPORT(SelectTokenBackward);

struct SelectiveInput {
  Tensor x, dt, bc;
  const Param &a_log, &dt_bias, &skip;

  int64_t channels() const { return x.cols(); }
  int64_t states() const { return a_log.value.cols(); }
  int64_t numbers() const { return channels() * states(); }  // of a state
};

void check_selective(const char* op, const Tensor& y, const SelectiveInput& in,
                     std::span<const int64_t> bounds) {
  const Tensor &x = in.x, &a = in.a_log.value;
  need(!x.empty() && is_float(x) && same_matrix(x, y) && same_matrix(x, in.dt) &&
           y.dtype == x.dtype && in.dt.dtype == x.dtype,
       op, "x, dt and y [N,I] of one dtype, f32 or bf16", {{"y", y}, {"x", x}, {"dt", in.dt}});
  need(!a.empty() && a.dtype == DType::f32 && a.rank == 2 && a.dense() && a.rows() == x.cols(), op,
       "a_log [I,C] f32", {{"a_log", a}, {"x", x}});
  need(!in.bc.empty() && in.bc.dtype == x.dtype && in.bc.rows() == x.rows() &&
           in.bc.cols() == 2 * a.cols(),
       op, "bc [N,2*C] of x's dtype", {{"bc", in.bc}, {"x", x}, {"a_log", a}});
  for (const Param* param : {&in.dt_bias, &in.skip})
    need(is_vector(param->value, x.cols()), op, "dt_bias and skip [I] f32",
         {{"param", param->value}, {"x", x}});
  need_bounds(op, bounds, "x", x);
}

// A block of channels, and what is read of it, in memory of a thread's.
class Selected {
 public:
  Selected(Arena& memory, const SelectiveInput& in, int64_t block) : in_(in) {
    const auto room = [&](int64_t n) { return memory.alloc(DType::f32, {n}).as<float>(); };
    const int64_t first = block * kSelectiveBlock, states = in.states(),
                  channels = std::min(kSelectiveBlock, in.channels() - first);
    float* rate = room(states * kSelectiveBlock);
    {
      const ArenaScope scope(memory);
      HWY_DYNAMIC_DISPATCH(SelectedRates)
      (rate, room(channels * states), in.a_log.value.as<float>() + first * states, channels,
       states);
    }
    block_ = {first,
              channels,
              states,
              rate,
              in.dt_bias.value.as<float>() + first,
              in.skip.value.as<float>() + first};
    bc_ = room(kDeltaChunk * 2 * states);
  }

  // Tokens [begin, begin + count) are those of the calls that follow.
  void read(int64_t begin, int64_t count) {
    begin_ = begin;
    for (int64_t n = 0; n < count; ++n) widen_row(bc_ + n * 2 * block_.states, in_.bc, begin + n);
  }
  SelectedToken token(int64_t n) const {
    const float* b = bc_ + n * 2 * block_.states;
    return {in_.x, in_.dt, begin_ + n, b, b + block_.states};
  }
  const SelectedBlock& block() const { return block_; }

  // Its columns of what all channels keep, [C,I], to and from [C,stride].
  void keep(float* all, const float* from, int64_t stride) const {
    for (int64_t c = 0; c < block_.states; ++c)
      copy(all + c * in_.channels() + block_.first, from + c * stride);
  }
  void take(float* to, const float* all) const {
    for (int64_t c = 0; c < block_.states; ++c)
      copy(to + c * kSelectiveBlock, all + c * in_.channels() + block_.first);
  }

 private:
  void copy(float* to, const float* from) const {
    std::memcpy(to, from, static_cast<size_t>(block_.channels) * sizeof(float));
  }

  const SelectiveInput& in_;
  SelectedBlock block_{};
  int64_t begin_ = 0;
  float* bc_ = nullptr;  // [kDeltaChunk,2C]
};

// What the parameters of a block's channels get: dr/da_log = r.
void add_selected(Param& a_log, Param& dt_bias, Param& skip, const SelectedBlock& block,
                  const SelectedGrads& g) {
  for (int64_t i = 0; i < block.channels; ++i) {
    const int64_t channel = block.first + i;
    if (!dt_bias.grad.empty()) dt_bias.grad.as<float>()[channel] += g.dbias[i];
    if (!skip.grad.empty()) skip.grad.as<float>()[channel] += g.dskip[i];
    if (a_log.grad.empty()) continue;
    for (int64_t c = 0; c < block.states; ++c) {
      const int64_t at = c * kSelectiveBlock + i;
      a_log.grad.row<float>(channel)[c] += block.rate[at] * g.drate[at];
    }
  }
}

// dbc [N,2C] = the sum of what all blocks gave, [blocks,N*2C], in their order.
void sum_selected(Run& run, Tensor dbc, const float* parts, int64_t blocks) {
  const int64_t cols = dbc.cols(), all = dbc.numel();
  parallel_for(run.threads, dbc.rows(), row_grain(cols * blocks),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t n = begin; n < end; ++n)
                   for (int64_t c = 0; c < cols; ++c) {
                     float sum = 0;
                     for (int64_t b = 0; b < blocks; ++b) sum += parts[b * all + n * cols + c];
                     if (dbc.dtype == DType::f32) dbc.row<float>(n)[c] = sum;
                     else dbc.row<bf16>(n)[c] = to_bf16(sum);
                   }
               });
}

int64_t selective_blocks(int64_t channels) {
  return (channels + kSelectiveBlock - 1) / kSelectiveBlock;
}

}  // namespace

void selective_scan_forward(Run& run, Tensor y, Tensor chunks, Tensor x, Tensor dt, Tensor bc,
                            const Param& a_log, const Param& dt_bias, const Param& skip,
                            std::span<const int64_t> bounds, std::span<float* const> state) {
  choose_isa();
  const char* op = "selective_scan_forward";
  const SelectiveInput in{x, dt, bc, a_log, dt_bias, skip};
  check_selective(op, y, in, bounds);
  need(state.empty() || state.size() + 1 == bounds.size(), op, "a state for each sequence, or none",
       {{"y", y}});
  need(chunks.empty() || (chunks.dtype == DType::f32 && chunks.rows() == delta_chunks(bounds) &&
                          chunks.cols() == in.numbers()),
       op, "chunks [delta_chunks,C*I] f32", {{"chunks", chunks}});
  each_part(run, selective_blocks(x.cols()), bounds, [&](size_t s, int64_t part, Arena& memory) {
    Selected tokens(memory, in, part);
    const SelectedBlock& block = tokens.block();
    const bool kept = !state.empty();
    const int64_t stride = kept ? x.cols() : kSelectiveBlock;
    float* own = kept ? state[s] + block.first
                      : memory.alloc_zeroed(DType::f32, {block.states * stride}).as<float>();
    int64_t chunk = delta_chunks(bounds.first(s + 1));
    for (int64_t at = bounds[s]; at < bounds[s + 1]; at += kDeltaChunk, ++chunk) {
      const int64_t count = std::min(kDeltaChunk, bounds[s + 1] - at);
      tokens.read(at, count);
      if (!chunks.empty()) tokens.keep(chunks.row<float>(chunk), own, stride);
      for (int64_t n = 0; n < count; ++n)
        HWY_DYNAMIC_DISPATCH(SelectToken)(own, own, stride, y, block, tokens.token(n));
    }
  });
}

void selective_scan_backward(Run& run, Tensor dx, Tensor ddt, Tensor dbc, Param& a_log,
                             Param& dt_bias, Param& skip, Tensor dy, Tensor chunks, Tensor x,
                             Tensor dt, Tensor bc, std::span<const int64_t> bounds) {
  choose_isa();
  const char* op = "selective_scan_backward";
  const SelectiveInput in{x, dt, bc, a_log, dt_bias, skip};
  check_selective(op, dy, in, bounds);
  check_selective(op, dy, {dx, ddt, dbc, a_log, dt_bias, skip}, bounds);
  need(!chunks.empty() && chunks.rows() == delta_chunks(bounds) && chunks.cols() == in.numbers(),
       op, "chunks as forward gave them", {{"chunks", chunks}});
  for (Param* param : {&a_log, &dt_bias, &skip})
    if (!param->grad.empty()) settle_grad(run, *param);
  const ArenaScope scope(run.scratch);
  const int64_t blocks = selective_blocks(x.cols()), both = 2 * in.states(), rows = x.rows(),
                size = in.states() * kSelectiveBlock, whole[] = {0, rows};
  float* parts = run.scratch.alloc(DType::f32, {blocks * rows * both}).as<float>();
  // A block goes through all sequences, so that its parameters' sums are one job's.
  each_part(run, blocks, whole, [&](size_t, int64_t part, Arena& memory) {
    const auto zeros = [&](int64_t n) { return memory.alloc_zeroed(DType::f32, {n}).as<float>(); };
    Selected tokens(memory, in, part);
    const SelectedBlock& block = tokens.block();
    float *grad = zeros(size), *states = zeros((kDeltaChunk + 1) * size);
    SelectedGrads to{dx,
                     ddt,
                     nullptr,
                     zeros(both * kSelectedLanes),
                     zeros(size),
                     zeros(kSelectiveBlock),
                     zeros(kSelectiveBlock)};
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const int64_t first_chunk = delta_chunks(bounds.first(s + 1));
      std::memset(grad, 0, static_cast<size_t>(size) * sizeof(float));
      for (int64_t chunk = delta_chunks(bounds.first(s + 2)); chunk-- > first_chunk;) {
        const int64_t at = bounds[s] + (chunk - first_chunk) * kDeltaChunk,
                      count = std::min(kDeltaChunk, bounds[s + 1] - at);
        tokens.read(at, count);
        tokens.take(states, chunks.row<float>(chunk));
        for (int64_t n = 0; n < count; ++n) HWY_DYNAMIC_DISPATCH(SelectToken)
        (states + (n + 1) * size, states + n * size, kSelectiveBlock, {}, block, tokens.token(n));
        for (int64_t n = count; n-- > 0;) {
          to.dbc = parts + (part * rows + at + n) * both;
          HWY_DYNAMIC_DISPATCH(SelectTokenBackward)
          (grad, states + n * size, states + (n + 1) * size, dy, block, tokens.token(n), to);
        }
      }
    }
    add_selected(a_log, dt_bias, skip, block, to);
  });
  sum_selected(run, dbc, parts, blocks);
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
