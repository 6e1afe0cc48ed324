// Products with quantised weights: the choice of the kernel, rows of x as records, and the kernels
// of machines without integer dot products of bytes (quant_vnni.cpp has those). There a block of
// weights is unpacked into the cache once for all rows, and bytes are widened to 16 bits, whose
// products and sums are exact. Loops over plain arrays are for the compiler to vectorise.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/cpu/quant/quant_panels.h"
#include "ops/cpu/simd-inl.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// ---- rows ---------------------------------------------------------------------------------------

using DRow = hn::CappedTag<float, 16>;
using DSum = hn::Rebind<int32_t, DRow>;

constexpr int64_t kTogether = 8;  // blocks whose scales are taken together: a division of vectors
                                  // takes little longer than one of numbers
constexpr int32_t kInfinityBits =
    0x7F800000;  // of floats that are not negative the order of the bits is the order of the
                 // numbers, and NaNs come beyond it

// The halves' largest magnitudes, as bits, to what the bytes are multiplied by and were divided by.
// NaN where a number is not finite.
HWY_INLINE void TakeScales(float* HWY_RESTRICT scale, float* HWY_RESTRICT inverse,
                           const int32_t* HWY_RESTRICT top) {
  const DRow d;
  const DSum di;
  constexpr float kLeast = 1e-36f;  // below it 127 / amax may be infinite
  for (size_t i = 0; i < 2 * kTogether; i += hn::Lanes(d)) {
    const auto bits = hn::Load(di, top + i);
    const auto amax = hn::BitCast(d, bits), full = hn::Set(d, 127.0f);
    const auto some = hn::Gt(amax, hn::Set(d, kLeast));
    const auto finite = hn::RebindMask(d, hn::Lt(bits, hn::Set(di, kInfinityBits)));
    hn::Store(hn::IfThenElse(finite, hn::IfThenElseZero(some, hn::Div(amax, full)),
                             hn::Set(d, std::numeric_limits<float>::quiet_NaN())),
              d, scale + i);
    hn::Store(hn::IfThenElseZero(some, hn::Div(full, amax)), d, inverse + i);
  }
}

// 16 numbers to bytes; what it returns sums to the sum of the bytes.
template <class T>
HWY_INLINE hn::Vec<DSum> QuantiseHalf(int8_t* HWY_RESTRICT q, const T* HWY_RESTRICT x,
                                      float inverse, bool finite) {
  const DRow d;
  const hn::Rebind<int8_t, DRow> bytes;
  auto sum = hn::Zero(DSum());
  if (!finite) {
    std::memset(q, 0, 16);
    return sum;
  }
  for (size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto rounded = hn::NearestInt(hn::Mul(LoadF32(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(hn::DemoteTo(bytes, rounded), bytes, q + i);
    sum = hn::Add(sum, rounded);
  }
  return sum;
}

// At most kTogether blocks.
template <class T>
HWY_INLINE void QuantiseBlocks(QuantRecord* HWY_RESTRICT out, const T* HWY_RESTRICT x,
                               int64_t blocks) {
  const DRow d;
  const DSum di;
  alignas(64) int32_t top[2 * kTogether] = {};
  alignas(64) float scale[2 * kTogether], inverse[2 * kTogether];
  for (int64_t h = 0; h < 2 * blocks; ++h) {
    auto most = hn::Zero(di);
    for (size_t i = 0; i < 16; i += hn::Lanes(d))
      most =
          hn::Max(most, hn::And(hn::BitCast(di, LoadF32(d, x + 16 * h + static_cast<int64_t>(i))),
                                hn::Set(di, 0x7FFFFFFF)));
    top[h] = hn::GetLane(hn::MaxOfLanes(di, most));
  }
  TakeScales(scale, inverse, top);
  for (int64_t b = 0; b < blocks; ++b) {
    QuantRecord& to = out[b];
    const auto first = QuantiseHalf(to.q, x + 32 * b, inverse[2 * b], top[2 * b] < kInfinityBits);
    const auto second = QuantiseHalf(to.q + 16, x + 32 * b + 16, inverse[2 * b + 1],
                                     top[2 * b + 1] < kInfinityBits);
    // Both sums in one: each fits into 16 bits.
    const int32_t both = hn::GetLane(hn::SumOfLanes(di, hn::Add(first, hn::ShiftLeft<16>(second))));
    const int32_t sum = static_cast<int16_t>(both & 0xFFFF), rest = (both - sum) / 65536;
    to.scale[0] = scale[2 * b];
    to.scale[1] = scale[2 * b + 1];
    to.minus_sum[0] = -sum;
    to.minus_sum[1] = -rest;
    to.scaled_sum =
        std::fma(to.scale[1], static_cast<float>(rest), to.scale[0] * static_cast<float>(sum));
  }
}

template <class T>
HWY_INLINE void QuantiseRow(QuantRecord* out, const T* x, int64_t blocks) {
  for (int64_t b = 0; b < blocks; b += kTogether)
    QuantiseBlocks(out + b, x + b * kQuantBlock, std::min(kTogether, blocks - b));
}

void QuantiseRows(QuantRecord* out, const Source& x, int64_t in, Span rows) {
  const int64_t blocks = in / kQuantBlock, stride = record_stride(in);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = (x.row != nullptr ? x.row[r] : r) * x.stride;
    if (x.dtype == DType::bf16)
      QuantiseRow(out + r * stride, static_cast<const bf16*>(x.data) + at, blocks);
    else QuantiseRow(out + r * stride, static_cast<const float*>(x.data) + at, blocks);
  }
}

// ---- products -----------------------------------------------------------------------------------

constexpr int64_t kLanes = kQuantColumns;
constexpr int64_t kTileRows = 16;

// A block of all columns, ready for any number of rows.
struct alignas(64) Unpacked {
  // of each step's four bytes, the first and third, the second and fourth
  int16_t even[8 * 32], odd[8 * 32];
  // scales, `second` of the second half where that has its own; mins likewise, with their sign
  float first[kLanes], second[kLanes], min[kLanes], second_min[kLanes];
};

HWY_INLINE void UnpackBytes(uint8_t* HWY_RESTRICT q, const uint8_t* HWY_RESTRICT bits,
                            DType dtype) {
  if (dtype == DType::q8_0) {
    std::memcpy(q, bits, 512);
    return;
  }
  for (int i = 0; i < 256; ++i) q[i] = bits[i] & 15;
  for (int i = 0; i < 256; ++i) q[256 + i] = static_cast<uint8_t>(bits[i] >> 4);
  const PanelFormat format = panel_format(dtype);
  if (format.table != nullptr) {
    const std::array<uint8_t, 16> table = table_bits(format);
    for (int i = 0; i < 512; ++i) q[i] = table[q[i]];
    return;
  }
  const bool one = format.block_bytes == 320, two = format.block_bytes == 384;
  for (int s = 0; (one || two) && s < 8; ++s) {
    const uint8_t* upper = bits + 256 + (two ? s / 4 * 64 : 0);
    const int shift = two ? 2 * (s % 4) : s, mask = two ? 3 : 1;
    for (int i = 0; i < 64; ++i)
      q[s * 64 + i] = static_cast<uint8_t>(q[s * 64 + i] | (upper[i] >> shift & mask) << 4);
  }
}

#if HWY_TARGET <= HWY_AVX2
HWY_INLINE void WidenHalves(float* HWY_RESTRICT out, const uint8_t* halves) {
  const hn::CappedTag<float, kLanes> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  for (size_t n = 0; n < kLanes; n += hn::Lanes(d))
    hn::Store(
        hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(halves) + n)), d,
        out + n);
}
#else
HWY_INLINE void WidenHalves(float* HWY_RESTRICT out, const uint8_t* halves) {
  for (int64_t n = 0; n < kLanes; ++n) {
    uint16_t h;
    std::memcpy(&h, halves + 2 * n, 2);
    out[n] = f16_to_f32(h);
  }
}
#endif

HWY_INLINE void Unpack(Unpacked& out, const uint8_t* scales, const uint8_t* bits, DType dtype,
                       const float* d, const float* minus_dmin) {
  uint8_t q[512];
  UnpackBytes(q, bits, dtype);
  uint16_t pairs[256];
  std::memcpy(pairs, q, sizeof pairs);
  for (int i = 0; i < 256; ++i) out.even[i] = static_cast<int16_t>(pairs[i] & 0xFF);
  for (int i = 0; i < 256; ++i) out.odd[i] = static_cast<int16_t>(pairs[i] >> 8);
  const PanelFormat format = panel_format(dtype);
  if (format.scale == PanelScale::exponent) {
    for (int64_t n = 0; n < kLanes; ++n) out.first[n] = half_power(scales[n]);
    return;
  }
  if (!format.is_k()) {
    WidenHalves(out.first, scales);
    if (format.has_min) WidenHalves(out.min, scales + 32);
    return;
  }
  const bool is_signed = format.scale == PanelScale::signed_bytes;
  const auto widen = [&](float* HWY_RESTRICT to, const float* HWY_RESTRICT unit, int64_t row) {
    const uint8_t* from = scales + row * kLanes;
    for (int64_t n = 0; n < kLanes; ++n) {
      const int byte = is_signed ? static_cast<int8_t>(from[n]) : from[n];
      to[n] = unit[n] * static_cast<float>(byte);
    }
  };
  widen(out.first, d, 0);
  if (format.halves) widen(out.second, d, 1);
  if (format.has_min) widen(out.min, minus_dmin, format.halves ? 2 : 1);
  if (format.has_min && format.halves) widen(out.second_min, minus_dmin, 3);
}

// What mins are multiplied by where each half has its own.
HWY_INLINE float scaled_sum_of(const QuantRecord& x, int half) {
  return x.scale[half] * static_cast<float>(-x.minus_sum[half]);
}

// What the offset of the weights has put into the sum of a half, taken back.
HWY_INLINE int32_t start_of(const QuantRecord& x, int half, int offset_shift) {
  return offset_shift < 0 ? 0 : x.minus_sum[half] * (1 << offset_shift);
}

// acc += a block, by the law of quant_product.h; all 16 columns.
#if HWY_TARGET <= HWY_AVX2
using DI32 = hn::CappedTag<int32_t, kLanes>;
constexpr size_t kParts = kLanes / hn::MaxLanes(DI32());

HWY_INLINE void SumHalf(hn::Vec<DI32> (&sum)[kParts], const Unpacked& w, const QuantRecord& x,
                        int half, int offset_shift) {
  const DI32 d;
  const hn::Repartition<int16_t, DI32> d16;
  for (size_t p = 0; p < kParts; ++p) sum[p] = hn::Set(d, start_of(x, half, offset_shift));
  auto unused = hn::Zero(d);
  for (int s = 4 * half; s < 4 * half + 4; ++s) {
    int32_t four;
    std::memcpy(&four, x.q + 4 * s, 4);
    const auto bytes = hn::BitCast(d16, hn::Set(d, four));
    const auto even = hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)), odd = hn::ShiftRight<8>(bytes);
    for (size_t p = 0; p < kParts;
         ++p) {  // on x86 lane i of 32 bits gets the products of its own two halves
      const size_t at = static_cast<size_t>(s) * 32 + p * hn::Lanes(d16);
      sum[p] = hn::ReorderWidenMulAccumulate(d, hn::Load(d16, w.even + at), even, sum[p], unused);
      sum[p] = hn::ReorderWidenMulAccumulate(d, hn::Load(d16, w.odd + at), odd, sum[p], unused);
    }
  }
}

HWY_INLINE void AddBlock(float* HWY_RESTRICT acc, const Unpacked& w, const QuantRecord& x,
                         DType dtype) {
  const PanelFormat f = panel_format(dtype);
  const hn::Rebind<float, DI32> df;
  hn::Vec<DI32> first[kParts], second[kParts];
  SumHalf(first, w, x, 0, f.offset_shift);
  SumHalf(second, w, x, 1, f.offset_shift);
  const auto x0 = hn::Set(df, x.scale[0]), x1 = hn::Set(df, x.scale[1]);
  for (size_t p = 0; p < kParts; ++p) {
    const size_t at = p * hn::Lanes(df);
    const auto part = hn::Mul(x0, hn::ConvertTo(df, first[p])), rest = hn::ConvertTo(df, second[p]),
               w0 = hn::Load(df, w.first + at);
    auto sum = hn::Load(df, acc + at);
    if (f.halves)
      sum = hn::MulAdd(hn::Load(df, w.second + at), hn::Mul(x1, rest), hn::MulAdd(w0, part, sum));
    else sum = hn::MulAdd(w0, hn::MulAdd(x1, rest, part), sum);
    if (f.has_min && f.halves) {
      sum = hn::MulAdd(hn::Load(df, w.min + at), hn::Set(df, scaled_sum_of(x, 0)), sum);
      sum = hn::MulAdd(hn::Load(df, w.second_min + at), hn::Set(df, scaled_sum_of(x, 1)), sum);
    } else if (f.has_min) {
      sum = hn::MulAdd(hn::Load(df, w.min + at), hn::Set(df, x.scaled_sum), sum);
    }
    hn::Store(sum, df, acc + at);
  }
}
#else
HWY_INLINE int32_t SumHalf(const Unpacked& w, int64_t n, const QuantRecord& x, int half,
                           int offset_shift) {
  int32_t sum = start_of(x, half, offset_shift);
  for (int64_t s = 4 * half; s < 4 * half + 4; ++s) {
    const int8_t* q = x.q + 4 * s;
    const int16_t *even = w.even + s * 32 + 2 * n, *odd = w.odd + s * 32 + 2 * n;
    sum += even[0] * q[0] + odd[0] * q[1] + even[1] * q[2] + odd[1] * q[3];
  }
  return sum;
}

HWY_INLINE void AddBlock(float* HWY_RESTRICT acc, const Unpacked& w, const QuantRecord& x,
                         DType dtype) {
  const PanelFormat f = panel_format(dtype);
  for (int64_t n = 0; n < kLanes; ++n) {
    const float part = x.scale[0] * static_cast<float>(SumHalf(w, n, x, 0, f.offset_shift)),
                rest = static_cast<float>(SumHalf(w, n, x, 1, f.offset_shift));
    if (f.halves)
      acc[n] = std::fma(w.second[n], x.scale[1] * rest, std::fma(w.first[n], part, acc[n]));
    else acc[n] = std::fma(w.first[n], std::fma(x.scale[1], rest, part), acc[n]);
    if (f.has_min && f.halves)
      acc[n] = std::fma(w.second_min[n], scaled_sum_of(x, 1),
                        std::fma(w.min[n], scaled_sum_of(x, 0), acc[n]));
    else if (f.has_min) acc[n] = std::fma(w.min[n], x.scaled_sum, acc[n]);
  }
}
#endif

template <class T>
HWY_INLINE void StoreColumns(T* out, const float* acc, int64_t columns, bool add) {
  for (int64_t n = 0; n < columns; ++n) {
    const float v = add ? to_f32(out[n]) + acc[n] : acc[n];
    if constexpr (std::is_same_v<T, bf16>) out[n] = to_bf16(v);
    else out[n] = v;
  }
}

void MultiplyTile(const QuantTask& task, Span rows, int64_t group, const uint8_t* panel) {
  const PanelFormat f = panel_format(task.dtype);
  const int64_t blocks = task.in / kQuantBlock, stride = record_stride(task.in);
  alignas(64) float acc[kTileRows][kLanes] = {};
  alignas(64) float d[kLanes] = {}, minus_dmin[kLanes] = {};
  Unpacked w;
  const uint8_t* chunk = panel;
  for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
    const int64_t n = std::min(kChunkBlocks, blocks - begin);
    const uint8_t *scales = chunk + (f.is_k() ? kSuperBytes : 0),
                  *bits = chunk + chunk_scale_bytes(f, n);
    if (f.is_k()) {
      WidenHalves(d, chunk);
      WidenHalves(minus_dmin, chunk + 32);
      for (float& x : minus_dmin) x = 0.0f - x;
    }
    for (int64_t b = 0; b < n; ++b) {
      Unpack(w, scales + b * f.scale_bytes, bits + b * f.block_bytes, task.dtype, d, minus_dmin);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t record = task.row != nullptr ? task.row[r] : r;
        AddBlock(acc[r - rows.begin], w, task.x[record * stride + begin + b], task.dtype);
      }
    }
    chunk += chunk_bytes(f, n);
  }
  const int64_t column = group * kLanes, columns = std::min(kLanes, task.out_cols - column);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = r * task.out.stride + column;
    if (task.out.dtype == DType::f32)
      StoreColumns(static_cast<float*>(task.out.data) + at, acc[r - rows.begin], columns,
                   task.out.add);
    else
      StoreColumns(static_cast<bf16*>(task.out.data) + at, acc[r - rows.begin], columns,
                   task.out.add);
  }
}

void MultiplyPlain(const QuantTask& task) {
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(task.dtype, task.in));
  const auto* panels = reinterpret_cast<const uint8_t*>(task.panels);
  for (int64_t g = task.groups.begin; g < task.groups.end; ++g)
    for (int64_t r = 0; r < task.rows; r += kTileRows)
      MultiplyTile(task, {r, std::min(r + kTileRows, task.rows)}, g, panels + g * group_bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(QuantiseRows);
HWY_EXPORT(MultiplyPlain);

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

bool has_vnni() {
  choose_isa();
#if defined(__x86_64__)
  static const bool has =
      (hwy::SupportedTargets() & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

size_t quant_rows_bytes(int64_t rows, int64_t in) {
  return static_cast<size_t>(rows * record_stride(in)) * sizeof(QuantRecord);
}

void quant_rows(void* quantised, Source x, int64_t in, Span rows) {
  choose_isa();
  HWY_DYNAMIC_DISPATCH(QuantiseRows)(static_cast<QuantRecord*>(quantised), x, in, rows);
}

void quant_multiply(const QuantOut& out, const void* quantised, const int32_t* row, int64_t rows,
                    const void* panels, DType dtype, int64_t out_cols, int64_t in, Span groups,
                    QuantNext next) {
  const QuantTask task{out,
                       static_cast<const QuantRecord*>(quantised),
                       row,
                       rows,
                       static_cast<const char*>(panels),
                       dtype,
                       out_cols,
                       in,
                       groups,
                       next};
  if (has_vnni()) quant_multiply_vnni(task);
  else HWY_DYNAMIC_DISPATCH(MultiplyPlain)(task);
}

// Without integer dot products of bytes: 0, there is no one instruction to compare with.
double measure_peak_int8(Run& run, double seconds) {
  constexpr int64_t kRounds = 1 << 16;
  if (!has_vnni()) return 0;
  std::vector<double> rates(static_cast<size_t>(run.threads), 0.0);
#pragma omp parallel num_threads(run.threads)
  {
    int32_t sink[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 5};
    vnni_loop(kRounds, sink);
#pragma omp barrier
    const auto start = Clock::now();
    int64_t done = 0;
    do done += vnni_loop(kRounds, sink);
    while (seconds_since(start) < seconds);
    rates[static_cast<size_t>(omp_get_thread_num())] =
        static_cast<double>(done) / seconds_since(start);
  }
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace moe::ops
#endif  // HWY_ONCE
