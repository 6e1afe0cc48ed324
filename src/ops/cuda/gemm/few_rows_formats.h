// Weights as few rows meet them: blocks of neighbouring numbers of a weight's row, and what the
// rows become for them. A warp has kOuts outputs, kLanes of its lanes some of them.
#pragma once

#include "ops/cuda/half.h"
#include "ops/cuda/rowwise/row.h"
#include "tensor/quant.h"

namespace moe::ops::cuda {

#if defined(__CUDACC__) || defined(MOE_CUDA_ON_CPU)

// A step of numbers in shared memory, which Step does not reach.
template <class T>
struct SharedStep {
  static constexpr int kPack = Pack<T>::kNumbers;
  Pack<T> pack[kStep / kPack];

  __device__ float operator[](int i) const { return to_f32(pack[i / kPack].x[i % kPack]); }
  __device__ void load(const void* from, int64_t step) {
#pragma unroll
    for (int p = 0; p < kStep / kPack; ++p)
      pack[p] = static_cast<const Pack<T>*>(from)[step * (kStep / kPack) + p];
  }
};

// Numbers as they are: W and X are f32 or bf16.
template <class W, class X>
struct FloatBlocks {
  static constexpr int kNumbers = kStep, kBytes = kStep * static_cast<int>(sizeof(W)),
                       kPart = 2048 / static_cast<int>(sizeof(W)), kOuts = 2, kLanes = kWarp,
                       kStages = 4, kMostWarps = 4, kBehind = 0;

  // x [I] in shared memory
  struct Row {
    static constexpr int kMade = kStep;  // numbers at a time
    X* x;
    __device__ Row(char* shared, int64_t) : x(reinterpret_cast<X*>(shared)) {}
    __host__ __device__ static int64_t size(int64_t in) {
      return in * static_cast<int64_t>(sizeof(X));
    }
    __device__ void make(const void* row, int64_t g) const {
      constexpr int kPacks = kStep / Pack<X>::kNumbers;
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        reinterpret_cast<Pack<X>*>(x)[g * kPacks + p] =
            static_cast<const Pack<X>*>(row)[g * kPacks + p];
    }
  };

  SharedStep<W> w;
  __device__ FloatBlocks(const char* row, int at) { w.load(row, at); }
  __device__ float times(const Row& row, int64_t at) const {
    SharedStep<X> x;
    x.load(row.x, at);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kStep; ++k) sum = fmaf(w[k], x[k], sum);
    return sum;
  }
};

// Unsigned bytes of a by signed bytes of b, added to sum.
__device__ inline int add_products_of_bytes(uint32_t a, int b, int sum) {
#ifdef MOE_CUDA_ON_CPU
  for (int i = 0; i < 32; i += 8)
    sum += static_cast<int>(a >> i & 255u) * static_cast<int8_t>(b >> i & 255);
  return sum;
#else
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
  return d;
#endif
}

// Two blocks of 32 weights with a scale d each, which begin at whole words together. Rows become
// bytes with a scale for each 16 numbers, as on a CPU, so that a block is eight products of four
// bytes:
//   d (s0 (sum q x - z sum x) + s1 (...)),  z what its numbers are counted from, s0 and s1 the
//   scales
// of the row's two halves. Numbers of q4_0 that stand in the upper halves of bytes are left there:
// 16 times as much, by a 16th of the row's scale.
template <DType format, class X>
struct ByteBlocks {
  static constexpr bool kNibbles = format == DType::q4_0;
  static constexpr int kNumbers = 64, kBytes = 2 * static_cast<int>(block_of(format).bytes),
                       kPart = kNibbles ? 2048 : 1024, kOuts = 4, kLanes = 16, kStages = 2,
                       kMostWarps = 8;
  // Between rows in shared memory, so that the two halves of a warp, whose rows are two apart, read
  // from different banks.
  static constexpr int kBehind = 32;
  static constexpr int kWords = kBytes / 4;

  // Pieces of 16 bytes: first those that begin the unit of 64 numbers u, for all u, then those
  // behind; scale and zero [I/64, 4]. zero: what z takes from the sum of products.
  struct Row {
    static constexpr int kMade = 16;
    int4* piece;
    float* scale;
    int* zero;
    int64_t units;
    __device__ Row(char* shared, int64_t in)
        : piece(reinterpret_cast<int4*>(shared)),
          scale(reinterpret_cast<float*>(shared + in)),
          zero(reinterpret_cast<int*>(scale + in / kMade)),
          units(in / kNumbers) {}
    __host__ __device__ static int64_t size(int64_t in) { return in + in / kMade * 8; }
    __device__ void make(const void* row, int64_t g) const {
      const X* from = static_cast<const X*>(row) + g * kMade;
      float x[kMade], most = 0;
      load_step(x, from);
      load_step(x + kStep, from + kStep);
#pragma unroll
      for (int i = 0; i < kMade; ++i) most = fmaxf(most, fabsf(x[i]));
      const float inverse = most > 0 ? 127 / most : 0.0f;
      int total = 0, four[kMade / 4] = {};
#pragma unroll
      for (int i = 0; i < kMade; ++i) {
        const int byte = __float2int_rn(x[i] * inverse);
        total += byte;
        four[i / 4] |= (byte & 255) << i % 4 * 8;
      }
      const bool upper = kNibbles && g % 2 != 0;
      piece[g % 4 * units + g / 4] = make_int4(four[0], four[1], four[2], four[3]);
      scale[g] = upper ? most / 127 / 16 : most / 127;
      zero[g] = !kNibbles ? 0 : upper ? -128 * total : -8 * total;
    }
  };

  float d[2];
  uint32_t q[kWords - 1];  // without the scales
  __device__ ByteBlocks(const char* row, int unit) {
    const auto* word = reinterpret_cast<const uint32_t*>(row) + unit * kWords;
    uint32_t w[kWords];
    constexpr int kHalf = kWords / 2;  // the second block begins in the middle of this one
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = word[i];
    d[0] = to_f32(f16{static_cast<uint16_t>(w[0] & 0xFFFFu)});
    d[1] = to_f32(f16{static_cast<uint16_t>(w[kHalf] >> 16)});
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      q[i] = __funnelshift_r(w[i], w[i + 1], 16);
      q[kHalf + i] = w[kHalf + 1 + i];
    }
  }
  __device__ float times(const Row& row, int64_t unit) const {
    const float4 scale = reinterpret_cast<const float4*>(row.scale)[unit];
    const int4 zero = kNibbles ? reinterpret_cast<const int4*>(row.zero)[unit] : int4{};
    const int4 *x = row.piece + unit, a = x[0], b = x[row.units], c = x[2 * row.units],
               e = x[3 * row.units];
    const float first = scale.x * lower(0, a, zero.x) + scale.y * upper(0, b, zero.y),
                second = scale.z * lower(1, c, zero.z) + scale.w * upper(1, e, zero.w);
    return d[0] * first + d[1] * second;
  }

 private:
  // The products of 16 numbers of a block: those that stand in the lower halves of its bytes, or in
  // its first bytes, and the others.
  __device__ float lower(int block, const int4& x, int sum) const {
    const uint32_t* w = q + block * (kWords / 2);
    constexpr uint32_t kBits = 0x0F0F0F0Fu;
    if constexpr (kNibbles)
      return of_bytes(w[0] & kBits, w[1] & kBits, w[2] & kBits, w[3] & kBits, x, sum);
    else return of_signed(w, x);
  }
  __device__ float upper(int block, const int4& x, int sum) const {
    const uint32_t* w = q + block * (kWords / 2);
    constexpr uint32_t kBits = 0xF0F0F0F0u;
    if constexpr (kNibbles)
      return of_bytes(w[0] & kBits, w[1] & kBits, w[2] & kBits, w[3] & kBits, x, sum);
    else return of_signed(w + 4, x);
  }
  __device__ static float of_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t e, const int4& x,
                                   int sum) {
    sum = add_products_of_bytes(b, x.y, add_products_of_bytes(a, x.x, sum));
    sum = add_products_of_bytes(e, x.w, add_products_of_bytes(c, x.z, sum));
    return static_cast<float>(sum);
  }
  __device__ static float of_signed(const uint32_t* w, const int4& x) {
    int sum = __dp4a(static_cast<int>(w[0]), x.x, 0);
    sum = __dp4a(static_cast<int>(w[1]), x.y, sum);
    sum = __dp4a(static_cast<int>(w[2]), x.z, sum);
    return static_cast<float>(__dp4a(static_cast<int>(w[3]), x.w, sum));
  }
};

#endif

}  // namespace moe::ops::cuda
