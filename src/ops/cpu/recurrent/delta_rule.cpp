// The gated delta rule, token after token. Columns of a state do not meet: column j of S changes by
// column j of the values alone. So vectors run along columns, a strip of two vectors of them (16 KB
// where C is 128) stays in the first cache while it takes a chunk of tokens, and a head's strips
// share the chunk's queries and keys. Sums over the rows of S run upwards in two interleaved parts,
// for one token as for many, so that a prompt in one piece gives the bits of one read token by
// token.
//
// Forward, with a = S^T k, b = S^T q of the state before the token and D its decay:
//   d = strength (v - D a);  o = D b + d <k, q>;  S = D S + k d^T
// Where each channel, a row of S, has its own decay (Kimi Delta Attention), D k and D q ask the
// state in place of k and q, which gives D a and D b at once; only the last term has D by rows.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/recurrent/delta_rule.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/recurrent/delta_rule.h"
#include "ops/cpu/recurrent/sequences.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// Two vectors of a row's numbers, of which `count` are there; the others are 0.
struct Pair {
  VF32 low, high;
};
template <class T>
HWY_INLINE Pair LoadPair(const T* p, int64_t count) {
  const DF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto part = [&](const T* at, int64_t n) HWY_ATTR {
    return n >= lanes ? LoadF32(d, at)
                      : (n > 0 ? LoadF32N(d, at, static_cast<size_t>(n)) : hn::Zero(d));
  };
  return {part(p, count), part(p + lanes, count - lanes)};
}
template <class T>
HWY_INLINE void StorePair(Pair v, T* p, int64_t count) {
  const DF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (count >= lanes) StoreF32(v.low, d, p);
  else StoreF32N(v.low, d, p, static_cast<size_t>(count));
  if (count >= 2 * lanes) StoreF32(v.high, d, p + lanes);
  else if (count > lanes) StoreF32N(v.high, d, p + lanes, static_cast<size_t>(count - lanes));
}
// scale a + b
HWY_INLINE Pair MulAdd(float scale, Pair a, Pair b) {
  const VF32 s = hn::Set(DF32(), scale);
  return {hn::MulAdd(s, a.low, b.low), hn::MulAdd(s, a.high, b.high)};
}
HWY_INLINE Pair Mul(float scale, Pair a) {
  const VF32 s = hn::Set(DF32(), scale);
  return {hn::Mul(s, a.low), hn::Mul(s, a.high)};
}
HWY_INLINE Pair Add(Pair a, Pair b) { return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)}; }
HWY_INLINE Pair ZeroPair() { return {hn::Zero(DF32()), hn::Zero(DF32())}; }
HWY_INLINE float SumProducts(Pair a, Pair b) {
  const DF32 d;
  return SumLanesFixed(d, hn::MulAdd(a.low, b.low, hn::Mul(a.high, b.high)));
}

// A strip of a state: row i at s + i * Stride().
HWY_INLINE int64_t Stride() { return 2 * static_cast<int64_t>(hn::Lanes(DF32())); }
HWY_INLINE Pair Row(const float* s, int64_t i) { return LoadPair(s + i * Stride(), Stride()); }
HWY_INLINE void SetRow(float* s, int64_t i, Pair v) { StorePair(v, s + i * Stride(), Stride()); }

void LoadStrip(float* strip, const float* state, int64_t rows, int64_t width, int64_t first,
               int64_t count) {
  for (int64_t i = 0; i < rows; ++i) SetRow(strip, i, LoadPair(state + i * width + first, count));
}
void StoreStrip(float* state, const float* strip, int64_t rows, int64_t width, int64_t first,
                int64_t count) {
  for (int64_t i = 0; i < rows; ++i) StorePair(Row(strip, i), state + i * width + first, count);
}

// What a token does to a strip: d, and the state's a and b before it.
struct Step {
  Pair a, b, d;
};
template <class T>
HWY_INLINE Step Look(const float* s, const float* k, const float* q, int64_t rows, float decay,
                     float strength, const T* v, int64_t count) {
  Pair a[2] = {ZeroPair(), ZeroPair()}, b[2] = {ZeroPair(), ZeroPair()};
  for (int64_t i = 0; i + 1 < rows; i += 2)
    for (int64_t p = 0; p < 2; ++p) {
      const Pair row = Row(s, i + p);
      a[p] = MulAdd(k[i + p], row, a[p]);
      b[p] = MulAdd(q[i + p], row, b[p]);
    }
  if (rows % 2 != 0) {
    const Pair row = Row(s, rows - 1);
    a[0] = MulAdd(k[rows - 1], row, a[0]);
    b[0] = MulAdd(q[rows - 1], row, b[0]);
  }
  const Pair sum = Add(a[0], a[1]);
  return {sum, Add(b[0], b[1]), Mul(strength, MulAdd(-decay, sum, LoadPair(v, count)))};
}
// The decay of row i at token n.
template <bool kChannels>
HWY_INLINE float DecayOf(const DeltaTokens& t, int64_t n, int64_t i) {
  return kChannels ? t.channel_decay[n * t.rows + i] : t.decay[n];
}
template <bool kChannels>
HWY_INLINE void Change(float* s, const DeltaTokens& t, int64_t n, Pair d) {
  const float* k = t.k + n * t.rows;
  for (int64_t i = 0; i < t.rows; ++i)
    SetRow(s, i, MulAdd(k[i], d, Mul(DecayOf<kChannels>(t, n, i), Row(s, i))));
}
template <class T>
HWY_INLINE Step LookAt(const float* s, const DeltaTokens& t, int64_t n, const T* v, int64_t count) {
  return Look(s, t.seen_k + n * t.rows, t.seen_q + n * t.rows, t.rows, t.decay[n], t.strength[n], v,
              count);
}

int64_t StripWidth() { return Stride(); }

template <bool kChannels>
void ForwardTokens(float* strip, const DeltaTokens& t, Tensor o, Tensor v, int64_t first,
                   int64_t count) {
  WithFloat(v.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    for (int64_t n = 0; n < t.count; ++n) {
      const Step step = LookAt(strip, t, n, v.row<T>(t.first + n) + first, count);
      StorePair(MulAdd(t.decay[n], step.b, Mul(t.kq[n], step.d)), o.row<T>(t.first + n) + first,
                count);
      Change<kChannels>(strip, t, n, step.d);
    }
  });
}
// Of one head the columns [first, first + count) of a chunk.
void ForwardStrip(float* strip, const DeltaTokens& t, Tensor o, Tensor v, int64_t first,
                  int64_t count) {
  if (t.channel_decay) ForwardTokens<true>(strip, t, o, v, first, count);
  else ForwardTokens<false>(strip, t, o, v, first, count);
}

// decay = e^log_decay;  seen_k = decay k;  seen_q = decay q
void SeeDecayed(float* decay, float* seen_k, float* seen_q, const float* log_decay, const float* k,
                const float* q, int64_t n) {
  const DF32 d;
  ForColumns(d, n, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 by = Exp(d, Load(d, log_decay + c, part));
    Store(by, d, decay + c, part);
    Store(hn::Mul(by, Load(d, k + c, part)), d, seen_k + c, part);
    Store(hn::Mul(by, Load(d, q + c, part)), d, seen_q + c, part);
  });
}

// y = x / sqrt(|x|^2 + 1e-6), times factor; returns what x was multiplied by.
float Normalise(float* y, Tensor x, int64_t row, float factor) {
  const DF32 d;
  float scale = 0;
  WithFloat(x.dtype, [&](auto kind) HWY_ATTR {
    const auto* from = x.row<decltype(kind)>(row);
    const float squares = SumColumns(d, x.cols(), [&](int64_t c, auto part) HWY_ATTR {
      const VF32 v = Load(d, from + c, part);
      return hn::Mul(v, v);
    });
    scale = factor / std::sqrt(squares + 1e-6f);
    ForColumns(d, x.cols(), [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Mul(Load(d, from + c, part), hn::Set(d, scale)), d, y + c, part);
    });
  });
  return scale;
}

float Dot(const float* a, const float* b, int64_t n) {
  const DF32 d;
  return SumColumns(d, n, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(Load(d, a + c, part), Load(d, b + c, part));
  });
}

// With y = x s, s = factor / sqrt(|x|^2 + 1e-6):  dx = s (dy - y <y, dy> / factor^2)
void NormaliseBackward(Tensor dx, int64_t row, const float* dy, const float* y, float scale,
                       float factor) {
  const DF32 d;
  const int64_t cols = dx.cols();
  const VF32 s = hn::Set(d, scale), along = hn::Set(d, Dot(y, dy, cols) / (factor * factor));
  WithFloat(dx.dtype, [&](auto kind) HWY_ATTR {
    auto* to = dx.row<decltype(kind)>(row);
    ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Mul(s, hn::NegMulAdd(Load(d, y + c, part), along, Load(d, dy + c, part))), d,
            to + c, part);
    });
  });
}

// Backward of a chunk in a strip; `grad` is dS behind it, and becomes dS before it. With S' = D S,
// u = S'^T k:
//   dS += q do^T;  dd = dS^T k;  dstrength = <dd, v - u>;  dv = strength dd;  du = -dv
//   dq = S'do + k <d, do>;  dk = dS d + S' du;  dS' = dS + k du^T
//   dlog_decay = D <dS', S>, of each row where it has its own;  dS = D dS'
// before [count,rows,Stride]: room for the states before each token, the first of them given.
template <bool kChannels>
void BackwardTokens(float* grad, float* before, const DeltaTokens& t, const DeltaGrads& g,
                    Tensor do_, Tensor v, int64_t first, int64_t count) {
  WithFloat(v.dtype, [&](auto kind) HWY_ATTR {
    using T = decltype(kind);
    const int64_t size = t.rows * Stride();
    const auto step_of = [&](int64_t n) HWY_ATTR {
      return LookAt(before + n * size, t, n, v.row<T>(t.first + n) + first, count);
    };
    for (int64_t n = 0; n + 1 < t.count; ++n) {
      float* next = before + (n + 1) * size;
      std::memcpy(next, before + n * size, static_cast<size_t>(size) * sizeof(float));
      Change<kChannels>(next, t, n, step_of(n).d);
    }
    for (int64_t n = t.count; n-- > 0;) {
      const float *k = t.k + n * t.rows, *q = t.q + n * t.rows, *s = before + n * size,
                  strength = t.strength[n];
      const Step step = step_of(n);
      const Pair dout = LoadPair(do_.row<T>(t.first + n) + first, count);
      Pair dd = ZeroPair();
      for (int64_t i = 0; i < t.rows; ++i) {
        const Pair row = MulAdd(q[i], dout, Row(grad, i));
        SetRow(grad, i, row);
        dd = MulAdd(k[i], row, dd);
      }
      const Pair missing =
          MulAdd(-t.decay[n], step.a, LoadPair(v.row<T>(t.first + n) + first, count));
      const Pair dv = Mul(strength, dd);
      StorePair(dv, g.dv.row<T>(t.first + n) + first, count);
      g.dstrength[n * g.strength_stride] += SumProducts(dd, missing);
      const float along = SumProducts(step.d, dout);
      Pair decayed = ZeroPair();
      for (int64_t i = 0; i < t.rows; ++i) {
        const Pair row = Row(s, i), change = Row(grad, i);
        const float decay = DecayOf<kChannels>(t, n, i);
        g.dq[n * t.rows + i] += decay * SumProducts(row, dout) + k[i] * along;
        g.dk[n * t.rows + i] += SumProducts(change, step.d) - decay * SumProducts(row, dv);
        const Pair inner = MulAdd(-k[i], dv, change);
        if constexpr (kChannels)
          g.dlog_decay[n * g.decay_stride + i] += decay * SumProducts(inner, row);
        else
          decayed = {hn::MulAdd(inner.low, row.low, decayed.low),
                     hn::MulAdd(inner.high, row.high, decayed.high)};
        SetRow(grad, i, Mul(decay, inner));
      }
      const DF32 d;
      if constexpr (!kChannels)
        g.dlog_decay[n * g.decay_stride] +=
            t.decay[n] * SumLanesFixed(d, hn::Add(decayed.low, decayed.high));
    }
  });
}
void BackwardStrip(float* grad, float* before, const DeltaTokens& t, const DeltaGrads& g,
                   Tensor do_, Tensor v, int64_t first, int64_t count) {
  if (t.channel_decay) BackwardTokens<true>(grad, before, t, g, do_, v, first, count);
  else BackwardTokens<false>(grad, before, t, g, do_, v, first, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(StripWidth);
HWY_EXPORT(LoadStrip);
HWY_EXPORT(StoreStrip);
HWY_EXPORT(ForwardStrip);
HWY_EXPORT(BackwardStrip);
HWY_EXPORT(Normalise);
HWY_EXPORT(NormaliseBackward);
HWY_EXPORT(SeeDecayed);
HWY_EXPORT(Dot);

void check(const char* op, const Tensor& o, const Tensor& qkv, const Tensor& log_decay,
           const Tensor& strength, const DeltaHeads& h, std::span<const int64_t> bounds) {
  const bool divides = h.key_heads > 0 && h.value_heads % h.key_heads == 0;
  need(divides && !qkv.empty() && !o.empty() && is_float(qkv) && o.dtype == qkv.dtype &&
           o.rows() == qkv.rows() && o.cols() == h.value_heads * h.value_width &&
           qkv.cols() == 2 * h.key_heads * h.key_width + o.cols(),
       op, "o [N,H*Cv] and qkv [N,2*G*C+H*Cv] of one dtype, f32 or bf16", {{"o", o}, {"qkv", qkv}});
  const auto of_heads = [&](const Tensor& t, int64_t each) {
    return !t.empty() && t.dtype == DType::f32 && t.rows() == o.rows() &&
           t.cols() == h.value_heads * each;
  };
  need(of_heads(log_decay, h.decays()) && of_heads(strength, 1), op,
       "log_decay [N,H], or [N,H*C] of channels, and strength [N,H] f32",
       {{"log_decay", log_decay}, {"strength", strength}, {"o", o}});
  need_bounds(op, bounds, "o", o);
}

int64_t chunks_of(int64_t tokens) { return (tokens + kDeltaChunk - 1) / kDeltaChunk; }

// The queries and keys of one key head of a sequence, normed, for tokens [begin,end).
class KeyHead {
 public:
  KeyHead(Arena& memory, Tensor qkv, const DeltaHeads& heads, int64_t head, int64_t begin,
          int64_t end)
      : rows_(heads.key_width), count_(end - begin), first_(begin) {
    const auto room = [&](int64_t n) { return memory.alloc(DType::f32, {n}).as<float>(); };
    for (float** x : {&k_, &q_}) *x = room(count_ * rows_);
    for (float** x : {&kq_, &k_scale_, &q_scale_}) *x = room(count_);
    const Tensor q = queries(qkv, heads, head), k = keys(qkv, heads, head);
    for (int64_t n = 0; n < count_; ++n) {
      float *to_q = q_ + n * rows_, *to_k = k_ + n * rows_;
      q_scale_[n] = HWY_DYNAMIC_DISPATCH(Normalise)(to_q, q, begin + n, factor());
      k_scale_[n] = HWY_DYNAMIC_DISPATCH(Normalise)(to_k, k, begin + n, 1);
      kq_[n] = HWY_DYNAMIC_DISPATCH(Dot)(to_k, to_q, rows_);
    }
  }

  static Tensor queries(Tensor qkv, const DeltaHeads& h, int64_t head) {
    return qkv.slice_cols(head * h.key_width, (head + 1) * h.key_width);
  }
  static Tensor keys(Tensor qkv, const DeltaHeads& h, int64_t head) {
    return queries(qkv, h, h.key_heads + head);
  }
  static Tensor values(Tensor qkv, const DeltaHeads& h, int64_t head) {
    const int64_t first = 2 * h.key_heads * h.key_width + head * h.value_width;
    return qkv.slice_cols(first, first + h.value_width);
  }

  float factor() const { return 1 / std::sqrt(static_cast<float>(rows_)); }
  // Tokens [at, at + count) of them for one value head, decays and strengths in `memory`.
  DeltaTokens tokens(Arena& memory, Tensor log_decay, Tensor strength, const DeltaHeads& h,
                     int64_t head, int64_t at, int64_t count) const {
    const auto room = [&](int64_t n) { return memory.alloc(DType::f32, {n}).as<float>(); };
    float *decay = room(count), *of = room(count);
    const float *k = k_ + at * rows_, *q = q_ + at * rows_;
    DeltaTokens tokens{count, first_ + at, rows_, k, q, kq_ + at, decay, of, nullptr, k, q};
    for (int64_t n = 0; n < count; ++n) {
      const float* own = log_decay.row<float>(first_ + at + n) + head * h.decays();
      decay[n] = h.by_channel ? 1 : std::exp(*own);
      of[n] = strength.row<float>(first_ + at + n)[head];
    }
    if (!h.by_channel) return tokens;
    float *channels = room(count * rows_), *seen_k = room(count * rows_),
          *seen_q = room(count * rows_);
    for (int64_t n = 0; n < count; ++n) {
      const int64_t row = n * rows_;
      HWY_DYNAMIC_DISPATCH(SeeDecayed)
      (channels + row, seen_k + row, seen_q + row,
       log_decay.row<float>(first_ + at + n) + head * rows_, k + row, q + row, rows_);
    }
    tokens.channel_decay = channels;
    tokens.seen_k = seen_k;
    tokens.seen_q = seen_q;
    return tokens;
  }
  void backward(Tensor dqkv, const DeltaHeads& h, int64_t head, const float* dq,
                const float* dk) const {
    for (int64_t n = 0; n < count_; ++n) {
      const int64_t at = n * rows_;
      HWY_DYNAMIC_DISPATCH(NormaliseBackward)
      (queries(dqkv, h, head), first_ + n, dq + at, q_ + at, q_scale_[n], factor());
      HWY_DYNAMIC_DISPATCH(NormaliseBackward)
      (keys(dqkv, h, head), first_ + n, dk + at, k_ + at, k_scale_[n], 1);
    }
  }

 private:
  int64_t rows_, count_, first_;
  float *k_, *q_, *kq_, *k_scale_, *q_scale_;
};

}  // namespace

}  // namespace moe::ops::cpu

// The same wherever the rule runs.
int64_t moe::ops::delta_chunks(std::span<const int64_t> bounds) {
  int64_t chunks = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    chunks += cpu::chunks_of(bounds[s + 1] - bounds[s]);
  return chunks;
}

namespace moe::ops::cpu {

void delta_rule_forward(Run& run, Tensor o, Tensor chunks, Tensor qkv, Tensor log_decay,
                        Tensor strength, const DeltaHeads& heads, std::span<const int64_t> bounds,
                        std::span<float* const> state) {
  choose_isa();
  check("delta_rule_forward", o, qkv, log_decay, strength, heads, bounds);
  const int64_t rows = heads.key_width, width = heads.value_width, size = rows * width,
                group = heads.value_heads / heads.key_heads;
  need(state.empty() || state.size() + 1 == bounds.size(), "delta_rule_forward",
       "a state for each sequence, or none", {{"o", o}});
  need(chunks.empty() || (chunks.dtype == DType::f32 && chunks.rows() == delta_chunks(bounds) &&
                          chunks.cols() == heads.value_heads * size),
       "delta_rule_forward", "chunks [delta_chunks,H*C*Cv] f32", {{"chunks", chunks}});
  const int64_t strip_width = HWY_DYNAMIC_DISPATCH(StripWidth)();
  each_part(run, heads.key_heads, bounds, [&](size_t s, int64_t g, Arena& memory) {
    float* own = state.empty() ? memory.alloc_zeroed(DType::f32, {group * size}).as<float>()
                               : state[s] + g * group * size;
    float* strip = memory.alloc(DType::f32, {rows * strip_width}).as<float>();
    int64_t chunk = delta_chunks(bounds.first(s + 1));
    for (int64_t at = bounds[s]; at < bounds[s + 1]; at += kDeltaChunk, ++chunk) {
      const ArenaScope scope(memory);
      const int64_t count = std::min(kDeltaChunk, bounds[s + 1] - at);
      const KeyHead keys(memory, qkv, heads, g, at, at + count);
      for (int64_t i = 0; i < group; ++i) {
        const int64_t head = g * group + i;
        float* matrix = own + i * size;
        if (!chunks.empty())
          std::memcpy(chunks.row<float>(chunk) + head * size, matrix,
                      static_cast<size_t>(size) * sizeof(float));
        const DeltaTokens tokens = keys.tokens(memory, log_decay, strength, heads, head, 0, count);
        for (int64_t first = 0; first < width; first += strip_width) {
          const int64_t cols = std::min(strip_width, width - first);
          HWY_DYNAMIC_DISPATCH(LoadStrip)(strip, matrix, rows, width, first, cols);
          HWY_DYNAMIC_DISPATCH(ForwardStrip)
          (strip, tokens, o.slice_cols(head * width, (head + 1) * width),
           KeyHead::values(qkv, heads, head), first, cols);
          HWY_DYNAMIC_DISPATCH(StoreStrip)(matrix, strip, rows, width, first, cols);
        }
      }
    }
  });
}

void delta_rule_backward(Run& run, Tensor dqkv, Tensor dlog_decay, Tensor dstrength, Tensor do_,
                         Tensor chunks, Tensor qkv, Tensor log_decay, Tensor strength,
                         const DeltaHeads& heads, std::span<const int64_t> bounds) {
  choose_isa();
  const char* op = "delta_rule_backward";
  check(op, do_, qkv, log_decay, strength, heads, bounds);
  check(op, do_, dqkv, dlog_decay, dstrength, heads, bounds);
  const int64_t rows = heads.key_width, width = heads.value_width, size = rows * width,
                group = heads.value_heads / heads.key_heads;
  need(!chunks.empty() && chunks.rows() == delta_chunks(bounds) &&
           chunks.cols() == heads.value_heads * size,
       op, "chunks as forward gave them", {{"chunks", chunks}});
  zero(run, dlog_decay);
  zero(run, dstrength);
  const int64_t strip_width = HWY_DYNAMIC_DISPATCH(StripWidth)(), strip_size = rows * strip_width;
  each_part(run, heads.key_heads, bounds, [&](size_t s, int64_t g, Arena& memory) {
    const int64_t begin = bounds[s], end = bounds[s + 1],
                  first_chunk = delta_chunks(bounds.first(s + 1));
    if (begin == end) return;
    const KeyHead keys(memory, qkv, heads, g, begin, end);
    const auto zeros = [&](int64_t n) { return memory.alloc_zeroed(DType::f32, {n}).as<float>(); };
    float *dq = zeros((end - begin) * rows), *dk = zeros((end - begin) * rows);
    float *grad = zeros(strip_size), *before = zeros(kDeltaChunk * strip_size);
    for (int64_t head = g * group; head < (g + 1) * group; ++head)
      for (int64_t first = 0; first < width; first += strip_width) {
        const int64_t cols = std::min(strip_width, width - first);
        std::memset(grad, 0, static_cast<size_t>(strip_size) * sizeof(float));
        for (int64_t c = chunks_of(end - begin); c-- > 0;) {
          const ArenaScope scope(memory);
          const int64_t at = c * kDeltaChunk, count = std::min(kDeltaChunk, end - begin - at);
          HWY_DYNAMIC_DISPATCH(LoadStrip)
          (before, chunks.row<float>(first_chunk + c) + head * size, rows, width, first, cols);
          const DeltaGrads grads{dq + at * rows,
                                 dk + at * rows,
                                 KeyHead::values(dqkv, heads, head),
                                 dlog_decay.row<float>(begin + at) + head * heads.decays(),
                                 dstrength.row<float>(begin + at) + head,
                                 heads.value_heads * heads.decays(),
                                 heads.value_heads};
          HWY_DYNAMIC_DISPATCH(BackwardStrip)
          (grad, before, keys.tokens(memory, log_decay, strength, heads, head, at, count), grads,
           do_.slice_cols(head * width, (head + 1) * width), KeyHead::values(qkv, heads, head),
           first, cols);
        }
      }
    keys.backward(dqkv, heads, g, dq, dk);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
