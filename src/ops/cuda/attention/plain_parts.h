// Products of a block's own rows with 64 others, in f32: the pieces of attend_plain.cu and
// attention_backward.cu. Threads stand in 16 columns x and kMine own rows each, from row y * kMine
// on; a thread's part of [own, 64] is its rows by columns 4x to 4x + 3.
#pragma once

#include "ops/cuda/attention/attend.h"
#include "ops/cuda/half.h"

namespace moe::ops::cuda {

constexpr int kOthers = 64;          // rows that are met at a time
constexpr int kPitch = kOthers + 4;  // floats between the rows of a block in shared memory
constexpr int kBlockFloats = kChunk * kPitch;

// How many threads own `kOwn` rows.
template <int kOwn>
struct Owners {
  static constexpr int kThreads = kOwn == kFewOwn ? 128 : 256;
  static constexpr int kMine = kOwn * 16 / kThreads;
};
// Floats between own rows of heads of `width` numbers, which are made up to whole chunks.
__host__ __device__ inline int own_pitch(int width) {
  return (width + kChunk - 1) / kChunk * kChunk + 4;
}

// sum[i][j] += sum_c own[i, c] block[c, 4x + j], 64 numbers c.  own: from the thread's first row on
template <int kMine>
__device__ inline void add_products(float (&sum)[kMine][4], const float* own, int pitch,
                                    const float* block, int x) {
#pragma unroll 4
  for (int c = 0; c < kChunk; c += 4) {
    float4 a[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) a[i] = *reinterpret_cast<const float4*>(own + i * pitch + c);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 b = *reinterpret_cast<const float4*>(block + (c + k) * kPitch + 4 * x);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float factor = k == 0 ? a[i].x : k == 1 ? a[i].y : k == 2 ? a[i].z : a[i].w;
        sum[i][0] += factor * b.x;
        sum[i][1] += factor * b.y;
        sum[i][2] += factor * b.z;
        sum[i][3] += factor * b.w;
      }
    }
  }
}

struct q8 {};  // numbers of q8_0: blocks of 32 with a scale

// Numbers [c, c + 8) of a head of `width` numbers that begins with number `head` of a row; zeros
// behind its end. `steps`: they can be read 16 bytes at a time.
template <class T>
__device__ inline void load_eight(float (&to)[kStep], const char* row, int64_t head, int c,
                                  int width, bool steps) {
  const T* from = reinterpret_cast<const T*>(row) + head + c;
  if (steps && c < width) return load_step(to, from);
#pragma unroll
  for (int k = 0; k < kStep; ++k) to[k] = c + k < width ? load(from + k) : 0.0f;
}
template <>
__device__ inline void load_eight<q8>(float (&to)[kStep], const char* row, int64_t head, int c,
                                      int width, bool) {
  constexpr int kNumbers = 32, kBytes = 34;
  const char* block = row + (head + c) / kNumbers * kBytes;
  const float d = c < width ? load(reinterpret_cast<const f16*>(block)) : 0.0f;
  const auto* pairs = reinterpret_cast<const uint16_t*>(block + 2 + c % kNumbers);
#pragma unroll
  for (int k = 0; k < kStep; k += 2) {
    const uint16_t two = c < width ? pairs[k / 2] : uint16_t{0};
    to[k] = d * static_cast<float>(static_cast<int8_t>(two & 0xFF));
    to[k + 1] = d * static_cast<float>(static_cast<int8_t>(two >> 8));
  }
}
__device__ inline void clear(float (&x)[kStep]) {
#pragma unroll
  for (int k = 0; k < kStep; ++k) x[k] = 0;
}
__device__ inline void put_eight(float* to, const float (&x)[kStep]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

// block[r, c] = number c of the chunk of row r.  read(x, r, c): the 8 numbers from c on
template <int kThreads, class F>
__device__ inline void stage_rows(float* block, F&& read) {
  for (int i = static_cast<int>(threadIdx.x); i < kOthers * kChunk / kStep; i += kThreads) {
    const int r = i / (kChunk / kStep), c = i % (kChunk / kStep) * kStep;
    float x[kStep];
    read(x, r, c);
    put_eight(block + r * kPitch + c, x);
  }
}
// block[c, r]: the same, turned.
template <int kThreads, class F>
__device__ inline void stage_turned(float* block, F&& read) {
  for (int i = static_cast<int>(threadIdx.x); i < kOthers * kChunk / kStep; i += kThreads) {
    const int r = i % kOthers, c = i / kOthers * kStep;
    float x[kStep];
    read(x, r, c);
#pragma unroll
    for (int k = 0; k < kStep; ++k) block[(c + k) * kPitch + r] = x[k];
  }
}

// Own rows of heads, `count` of them, as f32 with zeros behind them.  at(r): row r and, by
// reference, the number in it that the head begins with
template <int kOwn, class F>
__device__ inline void load_own(float* own, int width, int count, bool half, float factor, F&& at) {
  const int pitch = own_pitch(width);
  for (int i = static_cast<int>(threadIdx.x); i < kOwn * pitch; i += Owners<kOwn>::kThreads) {
    const int r = i / pitch, c = i % pitch;
    float x = 0;
    if (r < count && c < width) {
      int64_t head = 0;
      const char* row = at(r, head);
      x = factor * load_number(row, head + c, half);
    }
    own[i] = x;
  }
}

// f(which<int kChunks>) with the fewest chunks of 64 that hold a head of `width` numbers.
template <class F>
void with_chunks(int width, F&& f) {
  const int chunks = (width + kChunk - 1) / kChunk;
  if (chunks <= 1) f(std::integral_constant<int, 1>{});
  else if (chunks <= 2) f(std::integral_constant<int, 2>{});
  else if (chunks <= 4) f(std::integral_constant<int, 4>{});
  else f(std::integral_constant<int, 9>{});
}

}  // namespace moe::ops::cuda
