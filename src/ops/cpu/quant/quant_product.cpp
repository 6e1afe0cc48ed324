// Products with quantised weights: the choice of the kernel, and rows of x as records.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quant/quant_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/clock.h"
#include "ops/cpu/gemm/tile_product.h"
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
    to.minus_sum_128[0] = -sum * 128;
    to.minus_sum_128[1] = -rest * 128;
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

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(QuantiseRows);

// What a single row fetches ahead of itself. Intel's cores with AMX and Zen 3 (AVX2) get 5 to 15%
// more of the memory's rate so than with the panels behind; on Intel's with AVX-512 alone it gave
// nothing, on AMD's it was not tried.
int64_t own_ahead() {
  static const int64_t bytes = has_tiles() || !has_vnni() ? 2048 : 0;
  return bytes;
}

}  // namespace

bool has_vnni() {
#if defined(__x86_64__)
  return (usable_targets() & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool has_two_vector_units() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool has_avx2() { return (usable_targets() & HWY_AVX2) != 0; }

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
                       next,
                       own_ahead()};
  if (has_vnni()) quant_multiply_vnni(task, has_two_vector_units());
  else if (has_avx2()) quant_multiply_avx2(task);
  else quant_multiply_plain(task);
}

double measure_peak_int8(Run& run, double seconds) {
  constexpr int64_t kRounds = 1 << 16;
  if (!has_vnni() && !has_avx2()) return 0;
  const auto loop = has_vnni() ? vnni_loop : avx2_loop;
  std::vector<double> rates(static_cast<size_t>(run.threads), 0.0);
#pragma omp parallel num_threads(run.threads)
  {
    int32_t sink[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 5};
    loop(kRounds, sink);
#pragma omp barrier
    const auto start = Clock::now();
    int64_t done = 0;
    do done += loop(kRounds, sink);
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
