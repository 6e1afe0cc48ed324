#include "tensor/quant.h"

#include "core/error.h"
#include "tensor/quant_fit.h"
#include "tensor/quant_grid.h"
#include "tensor/quant_k.h"
#include "tensor/quant_rounding.h"
#include "tensor/quant_table.h"
#include "tensor/quant_ternary.h"
#include "tensor/quant_two.h"

namespace moe {
namespace {

// ---- formats of 32: byte j of the nibbles holds numbers j (low) and j + 16 (high) ---------------
// x = d q, q a signed byte.  d [half], q [32]
void read_q8_0(float* out, const uint8_t* block) {
  int8_t q[kBlock];
  std::memcpy(q, block + 2, sizeof q);
  scale_run<kBlock>(out, q, load_half(block));
}

void write_q8_0(uint8_t* block, const float* x) {
  float largest = 0;
  for (int j = 0; j < kBlock; ++j) largest = std::abs(x[j]) > largest ? std::abs(x[j]) : largest;
  const float d = largest / 127, inverse = finite_ratio(1, d);
  store_half(block, d);
  for (int j = 0; j < kBlock; ++j)
    block[2 + j] = static_cast<uint8_t>(nearest_away(clamped(x[j] * inverse, -127, 127)));
}

// x = d (q - 8).  d [half], nibbles [16]
void read_q4_0(float* out, const uint8_t* block) {
  int8_t q[kBlock];
  unpack_nibbles(q, block + 2, 8);
  scale_run<kBlock>(out, q, load_half(block));
}

// x = d q + m.  d, m [half], nibbles [16]
void read_q4_1(float* out, const uint8_t* block) {
  int8_t q[kBlock];
  unpack_nibbles(q, block + 4, 0);
  scale_run<kBlock>(out, q, load_half(block), load_half(block + 2));
}

// The fifth bits of 32 numbers, little end first, come before the nibbles.
void unpack_five(int8_t* q, const uint8_t* at, int offset) {
  constexpr uint8_t kBit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  int8_t upper[kBlock];
  for (int i = 0; i < 4; ++i) {
    const uint8_t eight = at[i];
    for (int j = 0; j < 8; ++j) upper[8 * i + j] = (eight & kBit[j]) != 0 ? 16 : 0;
  }
  unpack_nibbles(q, at + 4, offset);
  for (int j = 0; j < kBlock; ++j) q[j] = static_cast<int8_t>(q[j] + upper[j]);
}
void write_five(uint8_t* at, const int* q) {
  uint32_t fifth = 0;
  for (int j = 0; j < kBlock; ++j) fifth |= static_cast<uint32_t>(q[j] >> 4) << j;
  for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(fifth >> 8 * i);
  for (int j = 0; j < kHalf; ++j)
    at[4 + j] = static_cast<uint8_t>((q[j] & 15) | (q[j + kHalf] & 15) << 4);
}

// x = d (q - 16).  d [half], fifth bits [4], nibbles [16]
void read_q5_0(float* out, const uint8_t* block) {
  int8_t q[kBlock];
  unpack_five(q, block + 2, 16);
  scale_run<kBlock>(out, q, load_half(block));
}

// x = d q + m.  d, m [half], fifth bits [4], nibbles [16]
void read_q5_1(float* out, const uint8_t* block) {
  int8_t q[kBlock];
  unpack_five(q, block + 4, 0);
  scale_run<kBlock>(out, q, load_half(block), load_half(block + 2));
}

// The first number of largest magnitude.
float largest_in(const float* x) {
  float largest = 0, with_sign = 0;
  for (int j = 0; j < kBlock; ++j)
    if (std::abs(x[j]) > largest) {
      largest = std::abs(x[j]);
      with_sign = x[j];
    }
  return with_sign;
}

// The step of which all numbers are multiples in the range of q, as they are where they have been
// of such a block, whose largest number need not be the lowest step where its scale was fitted. 0:
// there is none, or no number but 0.
template <int kLevels>
float step_of_multiples(int* q, const float* x) {
  const float largest = largest_in(x);
  for (int most = kLevels / 2; largest != 0 && most > 0; --most) {
    const float d = f16_to_f32(f32_to_f16(largest / static_cast<float>(-most)));
    bool fits = d != 0 && std::isfinite(d);
    for (int j = 0; fits && j < kBlock; ++j) {
      const float step = nearest_even(x[j] / d);
      fits = step >= -kLevels / 2 && step < kLevels / 2 && step * d == x[j];
      if (fits) q[j] = static_cast<int>(step) + kLevels / 2;
    }
    if (fits) return d;
  }
  return 0;
}

// The largest number becomes the lowest step, -kLevels/2, which is the step without a counterpart;
// but numbers that have been of such a block stay what they are.
template <int kLevels>
float around_zero(int* q, const float* x) {
  if (const float kept = step_of_multiples<kLevels>(q, x); kept != 0) return kept;
  const float d = largest_in(x) / (-kLevels / 2), inverse = finite_ratio(1, d);
  for (int j = 0; j < kBlock; ++j)
    q[j] = static_cast<int>(clamped(x[j] * inverse + (kLevels / 2 + 0.5f), 0, kLevels - 1));
  return d;
}

// The smallest number becomes step 0, the largest the last.
struct Span {
  float d, m;
};
template <int kLevels>
Span between_ends(int* q, const float* x) {
  float low = x[0], high = x[0];
  for (int j = 0; j < kBlock; ++j) {
    low = x[j] < low ? x[j] : low;
    high = x[j] > high ? x[j] : high;
  }
  const float d = (high - low) / (kLevels - 1), inverse = finite_ratio(1, d);
  for (int j = 0; j < kBlock; ++j)
    q[j] = static_cast<int>(clamped((x[j] - low) * inverse + 0.5f, 0, kLevels - 1));
  return {d, low};
}

// The same where the importance of the columns is known: the scale, or scale and offset, that fits
// best, and the numbers in the steps that a reader will see.  importance [32]
template <int kLevels>
float fitted_scale(int* q, const float* x, const float* importance) {
  float weight[kBlock];
  weigh<kBlock>(weight, x, importance, 1);
  const float d = f16_to_f32(f32_to_f16(fit_scale<kLevels / 2, kBlock>(x, weight)));
  for (int j = 0; j < kBlock; ++j)
    q[j] = static_cast<int>(clamped(nearest_even(x[j] / d), -kLevels / 2, kLevels / 2 - 1)) +
           kLevels / 2;
  return d;
}
template <class Fan>
Span fitted_line(int* q, const float* x, const float* importance) {
  float weight[kBlock];
  weigh<kBlock>(weight, x, importance, 1);
  const Line line = fit_line<Closely<Fan>, kBlock>(x, weight);
  const Span stored{f16_to_f32(f32_to_f16(line.scale)), f16_to_f32(f32_to_f16(-line.offset))};
  for (int j = 0; j < kBlock; ++j)
    q[j] = static_cast<int>(clamped(nearest_even((x[j] - stored.m) / stored.d), 0, Fan::top));
  return stored;
}

// The integers that a rounding chooses, in the steps that a reader will see.
template <int kLevels>
void round_about_zero(int* q, const float* x, float d, BlockRounding& rounding) {
  const float below = d * (kLevels / 2);
  rounding.round(q, x, {kBlock, kBlock, kLevels - 1, &d, &below});
}
template <int kLevels>
void round_on_line(int* q, const float* x, const uint8_t* block, BlockRounding& rounding) {
  const float d = load_half(block), below = -load_half(block + 2);
  rounding.round(q, x, {kBlock, kBlock, kLevels - 1, &d, &below});
}

// d, and at a line's m too, before the integers as `pack` lays them.
using Pack = void(uint8_t*, const int*);
template <int kLevels, Pack pack>
void write_about_zero(uint8_t* block, const float* x, const float* importance,
                      BlockRounding* rounding) {
  int q[kBlock];
  store_half(block, importance == nullptr ? around_zero<kLevels>(q, x)
                                          : fitted_scale<kLevels>(q, x, importance));
  if (rounding != nullptr) round_about_zero<kLevels>(q, x, load_half(block), *rounding);
  pack(block + 2, q);
}
template <class Fan, Pack pack>
void write_on_line(uint8_t* block, const float* x, const float* importance,
                   BlockRounding* rounding) {
  constexpr int kLevels = static_cast<int>(Fan::top) + 1;
  int q[kBlock];
  const Span span =
      importance == nullptr ? between_ends<kLevels>(q, x) : fitted_line<Fan>(q, x, importance);
  store_half(block, span.d);
  store_half(block + 2, span.m);
  if (rounding != nullptr) round_on_line<kLevels>(q, x, block, *rounding);
  pack(block + 4, q);
}

// ---- rows ---------------------------------------------------------------------------------------
template <class F>
void read_blocks(float* out, const void* in, DType from, int64_t n, F&& read) {
  const BlockFormat format = block_of(from);
  const auto* block = static_cast<const uint8_t*>(in);
  for (int64_t i = 0; i < n; i += format.elements, block += format.bytes) read(out + i, block);
}
template <class F>
void write_blocks(void* out, const float* in, DType to, int64_t n, F&& write) {
  const BlockFormat format = block_of(to);
  auto* block = static_cast<uint8_t*>(out);
  for (int64_t i = 0; i < n; i += format.elements, block += format.bytes) write(block, in + i);
}

void need_blocks(DType dtype, int64_t n) {
  if (n < 0 || n % block_of(dtype).elements != 0)
    fail("{} numbers are not whole blocks of {}, which have {}", n, name_of(dtype),
         block_of(dtype).elements);
}

}  // namespace

bool can_make(DType dtype) {
  return holds_weights(dtype) && grid_format(dtype) == nullptr && !is_ternary(dtype);
}

void dequantise(float* out, const void* in, DType from, int64_t n) {
  need_blocks(from, n);
  switch (from) {
    case DType::f32: std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::bf16:
      return read_blocks(out, in, from, n, [](float* x, const uint8_t* at) {
        bf16 narrow;
        std::memcpy(&narrow, at, sizeof narrow);
        *x = to_f32(narrow);
      });
    case DType::f16:
      return read_blocks(out, in, from, n, [](float* x, const uint8_t* at) { *x = load_half(at); });
    case DType::q8_0: return read_blocks(out, in, from, n, read_q8_0);
    case DType::q4_0: return read_blocks(out, in, from, n, read_q4_0);
    case DType::q4_1: return read_blocks(out, in, from, n, read_q4_1);
    case DType::q5_0: return read_blocks(out, in, from, n, read_q5_0);
    case DType::q5_1: return read_blocks(out, in, from, n, read_q5_1);
    case DType::q4_k: return read_blocks(out, in, from, n, read_q4_k);
    case DType::q5_k: return read_blocks(out, in, from, n, read_q5_k);
    case DType::q6_k: return read_blocks(out, in, from, n, read_q6_k);
    case DType::mxfp4: return read_blocks(out, in, from, n, read_mxfp4);
    case DType::iq4_nl: return read_blocks(out, in, from, n, read_iq4_nl);
    case DType::iq4_xs: return read_blocks(out, in, from, n, read_iq4_xs);
    case DType::q3_k: return read_blocks(out, in, from, n, read_q3_k);
    case DType::q2_k: return read_blocks(out, in, from, n, read_q2_k);
    case DType::q2_0: return read_blocks(out, in, from, n, read_q2_0);
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq3_xxs:
    case DType::iq3_s:
      return read_blocks(out, in, from, n,
                         [from](float* x, const uint8_t* at) { read_grid(x, from, at); });
    case DType::tq1_0:
    case DType::tq2_0:
    case DType::q1_0:
      return read_blocks(out, in, from, n,
                         [from](float* x, const uint8_t* at) { read_ternary(x, from, at); });
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3: break;
  }
  fail("numbers of {} cannot be read as f32", name_of(from));
}

void quantise(void* out, const float* in, DType to, int64_t n, const float* importance,
              BlockRounding* rounding) {
  need_blocks(to, n);
  // For the types whose scales hang on what the columns are worth.
  const auto weighed = [&](auto&& write) {
    write_blocks(out, in, to, n, [&](uint8_t* block, const float* x) {
      write(block, x, importance == nullptr ? nullptr : importance + (x - in), rounding);
    });
  };
  switch (to) {
    case DType::f32: std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::bf16:
      return write_blocks(out, in, to, n, [](uint8_t* at, const float* x) {
        const bf16 narrow = to_bf16(*x);
        std::memcpy(at, &narrow, sizeof narrow);
      });
    case DType::f16:
      return write_blocks(out, in, to, n, [](uint8_t* at, const float* x) { store_half(at, *x); });
    case DType::q8_0: return write_blocks(out, in, to, n, write_q8_0);
    case DType::mxfp4: return write_blocks(out, in, to, n, write_mxfp4);
    case DType::q4_0: return weighed(write_about_zero<16, write_nibbles>);
    case DType::q4_1: return weighed(write_on_line<FourBits, write_nibbles>);
    case DType::q5_0: return weighed(write_about_zero<32, write_five>);
    case DType::q5_1: return weighed(write_on_line<FiveBits, write_five>);
    case DType::q4_k: return weighed(write_q4_k);
    case DType::q5_k: return weighed(write_q5_k);
    case DType::q6_k: return weighed(write_q6_k);
    case DType::q3_k: return weighed(write_q3_k);
    case DType::q2_k: return weighed(write_q2_k);
    case DType::q2_0: return weighed(write_q2_0);
    case DType::iq4_nl: return weighed(write_iq4_nl);
    case DType::iq4_xs: return weighed(write_iq4_xs);
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq3_xxs:
    case DType::iq3_s:
    case DType::tq1_0:
    case DType::tq2_0:
    case DType::q1_0: fail("{} is read, not made", name_of(to));
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3: break;
  }
  fail("numbers cannot be made {}, which holds no weights", name_of(to));
}

}  // namespace moe
