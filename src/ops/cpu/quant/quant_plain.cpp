// Products with quantised weights in plain C++, for machines that neither quant_vnni.cpp nor
// quant_avx2.cpp is for. A block of weights is unpacked into the cache once for all rows, and bytes
// are widened to 16 bits, whose products and sums are exact. Loops over plain arrays are for the
// compiler to vectorise. The law is in quant_product.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ops/cpu/quant/quant_panels.h"
#include "tensor/dtype.h"

namespace moe::ops {
namespace {

constexpr int64_t kLanes = kQuantColumns;
constexpr int64_t kTileRows = 16;

// A block of all columns, ready for any number of rows.
struct alignas(64) Unpacked {
  // of each step's four bytes, the first and third, the second and fourth
  int16_t even[8 * 32], odd[8 * 32];
  // scales, `second` of the second half where that has its own; mins likewise, with their sign
  float first[kLanes], second[kLanes], min[kLanes], second_min[kLanes];
};

// One or two more bits of all steps (`mask` is 1 or 3), raised to bit `at`.
void add_bits(uint8_t* __restrict q, const uint8_t* __restrict bits, int mask, int at) {
  for (int s = 0; s < 8; ++s) {
    const uint8_t* from = bits + (mask == 3 ? s / 4 * 64 : 0);
    const int shift = mask == 3 ? 2 * (s % 4) : s;
    for (int i = 0; i < 64; ++i)
      q[s * 64 + i] = static_cast<uint8_t>(q[s * 64 + i] | (from[i] >> shift & mask) << at);
  }
}

void unpack_bytes(uint8_t* __restrict q, const uint8_t* __restrict bits, const PanelFormat& f) {
  switch (f.bits) {
    case PanelBits::eight: std::memcpy(q, bits, 512); break;
    case PanelBits::two:
    case PanelBits::three:
      std::memset(q, 0, 512);
      add_bits(q, bits, 3, 0);
      if (f.bits == PanelBits::three) add_bits(q, bits + 128, 1, 2);
      break;
    default:
      for (int i = 0; i < 256; ++i) q[i] = bits[i] & 15;
      for (int i = 0; i < 256; ++i) q[256 + i] = static_cast<uint8_t>(bits[i] >> 4);
      if (f.bits == PanelBits::five) add_bits(q, bits + 256, 1, 4);
      if (f.bits == PanelBits::six) add_bits(q, bits + 256, 3, 4);
  }
  if (f.table == nullptr) return;
  const std::array<uint8_t, 16> table = table_bits(f);
  for (int i = 0; i < 512; ++i) q[i] = table[q[i]];
}

void widen_halves(float* __restrict out, const uint8_t* halves) {
  for (int64_t n = 0; n < kLanes; ++n) {
    uint16_t h;
    std::memcpy(&h, halves + 2 * n, 2);
    out[n] = f16_to_f32(h);
  }
}

void unpack(Unpacked& out, const uint8_t* scales, const uint8_t* bits, DType dtype, const float* d,
            const float* minus_dmin) {
  uint8_t q[512];
  const PanelFormat format = panel_format(dtype);
  unpack_bytes(q, bits, format);
  uint16_t pairs[256];
  std::memcpy(pairs, q, sizeof pairs);
  for (int i = 0; i < 256; ++i) out.even[i] = static_cast<int16_t>(pairs[i] & 0xFF);
  for (int i = 0; i < 256; ++i) out.odd[i] = static_cast<int16_t>(pairs[i] >> 8);
  if (format.scale == PanelScale::exponent) {
    for (int64_t n = 0; n < kLanes; ++n) out.first[n] = half_power(scales[n]);
    return;
  }
  if (!format.is_k()) {
    widen_halves(out.first, scales);
    if (format.has_min) widen_halves(out.min, scales + 32);
    return;
  }
  const bool is_signed = format.scale == PanelScale::signed_bytes;
  const auto widen = [&](float* __restrict to, const float* __restrict unit, int64_t row) {
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
float scaled_sum_of(const QuantRecord& x, int half) {
  return x.scale[half] * static_cast<float>(-x.minus_sum[half]);
}

// What the offset of the weights has put into the sum of a half, taken back.
int32_t start_of(const QuantRecord& x, int half, int offset_shift) {
  return offset_shift < 0 ? 0 : x.minus_sum[half] * (1 << offset_shift);
}

int32_t sum_half(const Unpacked& w, int64_t n, const QuantRecord& x, int half, int offset_shift) {
  int32_t sum = start_of(x, half, offset_shift);
  for (int64_t s = 4 * half; s < 4 * half + 4; ++s) {
    const int8_t* q = x.q + 4 * s;
    const int16_t *even = w.even + s * 32 + 2 * n, *odd = w.odd + s * 32 + 2 * n;
    sum += even[0] * q[0] + odd[0] * q[1] + even[1] * q[2] + odd[1] * q[3];
  }
  return sum;
}

// acc += a block, by the law of quant_product.h; all 16 columns.
void add_block(float* __restrict acc, const Unpacked& w, const QuantRecord& x, DType dtype) {
  const PanelFormat f = panel_format(dtype);
  for (int64_t n = 0; n < kLanes; ++n) {
    const float part = x.scale[0] * static_cast<float>(sum_half(w, n, x, 0, f.offset_shift)),
                rest = static_cast<float>(sum_half(w, n, x, 1, f.offset_shift));
    if (f.halves)
      acc[n] = std::fma(w.second[n], x.scale[1] * rest, std::fma(w.first[n], part, acc[n]));
    else acc[n] = std::fma(w.first[n], std::fma(x.scale[1], rest, part), acc[n]);
    if (f.has_min && f.halves)
      acc[n] = std::fma(w.second_min[n], scaled_sum_of(x, 1),
                        std::fma(w.min[n], scaled_sum_of(x, 0), acc[n]));
    else if (f.has_min) acc[n] = std::fma(w.min[n], x.scaled_sum, acc[n]);
  }
}

template <class T>
void store_columns(T* out, const float* acc, int64_t columns, bool add) {
  for (int64_t n = 0; n < columns; ++n) {
    const float v = add ? to_f32(out[n]) + acc[n] : acc[n];
    if constexpr (std::is_same_v<T, bf16>) out[n] = to_bf16(v);
    else out[n] = v;
  }
}

void multiply_tile(const QuantTask& task, Span rows, int64_t group, const uint8_t* panel) {
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
      widen_halves(d, chunk);
      for (float& x : d) x *= f.unit;
      widen_halves(minus_dmin, chunk + 32);
      for (float& x : minus_dmin) x = 0.0f - x;
    }
    for (int64_t b = 0; b < n; ++b) {
      unpack(w, scales + b * f.scale_bytes, bits + b * f.block_bytes(), task.dtype, d, minus_dmin);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t record = task.row != nullptr ? task.row[r] : r;
        add_block(acc[r - rows.begin], w, task.x[record * stride + begin + b], task.dtype);
      }
    }
    chunk += chunk_bytes(f, n);
  }
  const int64_t column = group * kLanes, columns = std::min(kLanes, task.out_cols - column);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = r * task.out.stride + column;
    if (task.out.dtype == DType::f32)
      store_columns(static_cast<float*>(task.out.data) + at, acc[r - rows.begin], columns,
                    task.out.add);
    else
      store_columns(static_cast<bf16*>(task.out.data) + at, acc[r - rows.begin], columns,
                    task.out.add);
  }
}

}  // namespace

void quant_multiply_plain(const QuantTask& task) {
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(task.dtype, task.in));
  const auto* panels = reinterpret_cast<const uint8_t*>(task.panels);
  for (int64_t g = task.groups.begin; g < task.groups.end; ++g)
    for (int64_t r = 0; r < task.rows; r += kTileRows)
      multiply_tile(task, {r, std::min(r + kTileRows, task.rows)}, g, panels + g * group_bytes);
}

}  // namespace moe::ops
