// Attention over any keys: how a call is cut into tiles, and what its kernels are given.
// attention.cpp cuts; attend_plain.cu multiplies in f32, attend_tensor.cu on tensor cores.
//
// A column is a query of one head; the columns of a sequence and key/value head are its queries'
// heads, query after query, so that all heads that share keys read them once. A block of threads
// owns some columns and walks the keys in blocks of 64 counted from position 0 with a running
// maximum m; stretches of kStretch positions each begin anew and are joined in their order:
//   M' = max(M, m);  O = O e^(M - M') + o e^(m - M'), and L, l likewise;  in the end O / L.
// So one block walks all stretches or each has a block of its own, which leaves (m, l, o) for
// join_stretches(): a column's numbers, and their bits, hang on its query and keys only.
#pragma once

#include <cstdint>

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

constexpr int kStretch = 2 * static_cast<int>(kKeyBlock);
constexpr int kFewOwn = 16, kSomeOwn = 32, kManyOwn = 64;  // columns of a block
constexpr int kChunk = 64;  // numbers of a head that are multiplied at a time
constexpr int kMostWidth = 9 * kChunk;

// Columns [begin, end) of a sequence, and the keys that some of them see.
struct Tile {
  int64_t query;      // the row of the sequence's first query
  int64_t first_row;  // of its keys; -1: they have a table
  int64_t left;       // >= 0: where records of what its one stretch gave begin
  int32_t table;      // where its table begins
  int32_t begin, end;
  int32_t oldest, newest;  // positions of keys
  int32_t first_stretch, end_stretch;
  int32_t pad = 0;
};

// Columns of a tile whose stretches had blocks of their own: records left + s * columns + j.
struct Joined {
  int64_t query, left;
  int32_t begin, columns, stretches, pad = 0;
};

struct KvPlace {
  const char *k, *v;
  int64_t k_row, v_row;   // bytes between rows
  bool turned;            // keys are [rows / 64, G*C, 64]
  bool k_steps, v_steps;  // heads are whole pieces of 8 numbers that begin at multiples of 16 bytes
};

// A call. Lists lie on the device.
struct Attend {
  const Tile* tiles;
  const int32_t* positions;  // [N]
  const int32_t* tables;
  KvPlace kv;
  const char* q;                  // [N, H*C] f32 or bf16
  char* o;                        // [N, H*Cv] of the same dtype
  float* lse;                     // [N, H] or absent
  float* left;                    // records of `record` floats: o [Cv], m, l
  int64_t q_row, o_row, lse_row;  // bytes; floats
  int record;
  int group, kv_heads, width, value_width, window;
  bool halves;                // q and o are bf16
  float sign, scale, scale2;  // of the scores: its sign, its magnitude, that over ln 2

  __host__ __device__ int64_t record_of(int64_t column, int kv_head) const {
    return (column * kv_heads + kv_head) * record;
  }
};

// ---- host side ----------------------------------------------------------------------------------

// `tiles` of `own` columns.
void attend_plain(Run&, const Attend&, DType kv, int own, int64_t tiles);
// The same on tensor cores.
void attend_tensor(Run&, const Attend&, int own, int64_t tiles);
// Whether these have a kernel for it, and the shared memory that it takes.
bool attends_on_tensor_cores(const Attend&, DType kv);
size_t tensor_shared(int own, int width, int value_width);
// joined [count], each of at most `own` columns.
void join_stretches(Run&, const Attend&, const Joined* joined, int64_t count, int own);
// Whether attend_plain() has blocks of many columns for heads so wide.
bool attends_many_plain(const Run&, int width, int value_width);

// ---- device side --------------------------------------------------------------------------------

#if defined(__CUDACC__) || defined(MOE_CUDA_ON_CPU)

__device__ inline float load_number(const char* row, int64_t c, bool half) {
  return half ? to_f32(reinterpret_cast<const bf16*>(row)[c])
              : reinterpret_cast<const float*>(row)[c];
}
__device__ inline void store_number(char* row, int64_t c, bool half, float x) {
  if (half) store(reinterpret_cast<bf16*>(row) + c, x);
  else store(reinterpret_cast<float*>(row) + c, x);
}

// The row of the key at a position.
__device__ inline int64_t key_row(const Attend& a, const Tile& tile, int position) {
  if (tile.first_row >= 0) return tile.first_row + position;
  constexpr int kBlock = static_cast<int>(kKeyBlock);
  return int64_t{a.tables[tile.table + position / kBlock]} * kBlock + position % kBlock;
}

// The keys that a column sees; a column behind the tile's last sees none.
struct Seen {
  int first, last;
  __device__ bool operator()(int position) const { return position >= first && position <= last; }
};
__device__ inline Seen seen_by(const Attend& a, const Tile& tile, int column) {
  if (column >= tile.end) return {0, -1};
  const int last = a.positions[tile.query + column / a.group];
  return {a.window > 0 && last >= a.window ? last - a.window + 1 : 0, last};
}

// e^(scale (x - m)), and 0 of a score that is none.
__device__ inline float weight_of(float x, float m, float scale2) {
  return x == -INFINITY ? 0.0f : exp2f((x - m) * scale2);
}
// What a stretch gave joins those before it: O = O old + o add.
struct Joint {
  float old, add;
};
__device__ inline Joint join(float& most, float& total, float m, float l, float scale2) {
  const float now = fmaxf(most, m);
  const Joint by{weight_of(most, now, scale2), weight_of(m, now, scale2)};
  most = now;
  total = fmaf(l, by.add, total * by.old);
  return by;
}
__device__ inline float joined(float so_far, float o, const Joint& by) {
  return fmaf(o, by.add, so_far * by.old);
}

#endif

}  // namespace moe::ops::cuda
