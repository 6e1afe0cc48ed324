// Weights as few rows meet them: blocks of neighbouring numbers of a weight's row, and what the
// rows become for them.
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
                       kPart = 2048 / static_cast<int>(sizeof(W)), kOuts = 2, kBehind = 0;

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

// Blocks of 32 weights with a scale d. Rows become bytes with a scale for each 16 numbers, as on a
// CPU, so that a block is eight products of four bytes:
//   d (s0 (sum q x - z sum x) + s1 (...)),  z what its numbers are counted from, s0 and s1 the
//   scales
// of the row's two halves. A block begins at any even byte.
template <DType format, class X>
struct ByteBlocks {
  static constexpr int kNumbers = 32, kBytes = static_cast<int>(block_of(format).bytes),
                       kPart = format == DType::q8_0 ? 1024 : 2048, kOuts = 4,
                       kBehind = 16;  // bytes that the last block's words reach over its end
  static constexpr int kWords = (kBytes + 3) / 4, kFrom = format == DType::q4_0 ? 8 : 0;

  // q [I] bytes, scale and sum [I/16]
  struct Row {
    static constexpr int kMade = 16;
    int8_t* q;
    float* scale;
    int* sum;
    __device__ Row(char* shared, int64_t in)
        : q(reinterpret_cast<int8_t*>(shared)),
          scale(reinterpret_cast<float*>(q + in)),
          sum(reinterpret_cast<int*>(scale + in / kMade)) {}
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
      *reinterpret_cast<int4*>(q + g * kMade) = make_int4(four[0], four[1], four[2], four[3]);
      scale[g] = most / 127;
      sum[g] = total;
    }
  };

  float d;
  int q[8];  // 32 bytes
  __device__ ByteBlocks(const char* row, int at) {
    const int begin = at * kBytes;
    const bool odd = begin % 4 != 0;
    const auto* word = reinterpret_cast<const uint32_t*>(row + begin / 4 * 4);
    uint32_t w[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = word[i];
    d = to_f32(f16{static_cast<uint16_t>(odd ? w[0] >> 16 : w[0] & 0xFFFFu)});
#pragma unroll
    for (int i = 0; i + 1 < kWords; ++i) {
      const uint32_t four = odd ? w[i + 1] : __funnelshift_r(w[i], w[i + 1], 16);
      if constexpr (format == DType::q4_0) {
        q[i] = static_cast<int>(four & 0x0F0F0F0Fu);
        q[i + 4] = static_cast<int>(four >> 4 & 0x0F0F0F0Fu);
      } else {
        q[i] = static_cast<int>(four);
      }
    }
  }
  __device__ float times(const Row& row, int64_t at) const {
    const int4 low = reinterpret_cast<const int4*>(row.q)[2 * at],
               high = reinterpret_cast<const int4*>(row.q)[2 * at + 1];
    int a = -kFrom * row.sum[2 * at], b = -kFrom * row.sum[2 * at + 1];
    a = __dp4a(q[0], low.x, a), a = __dp4a(q[1], low.y, a);
    a = __dp4a(q[2], low.z, a), a = __dp4a(q[3], low.w, a);
    b = __dp4a(q[4], high.x, b), b = __dp4a(q[5], high.y, b);
    b = __dp4a(q[6], high.z, b), b = __dp4a(q[7], high.w, b);
    return d * (row.scale[2 * at] * static_cast<float>(a) +
                row.scale[2 * at + 1] * static_cast<float>(b));
  }
};

#endif

}  // namespace moe::ops::cuda
