// Attention in f32 over keys and values of any dtype; attend.h says in which order it sums.
#include "ops/cuda/attention/plain_parts.h"

namespace moe::ops::cuda {
namespace {

// What a thread keeps of a stretch: its own rows' maximum, its part of the sum of their weights,
// and of their outputs.
template <int kMine, int kChunks>
struct Sums {
  float m[kMine], l[kMine], o[kChunks][kMine][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kMine; ++i) m[i] = -INFINITY, l[i] = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kMine; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) o[c][i][j] = 0;
  }
};

template <int kOwn, int kChunks>
struct PlainShared {
  static constexpr int kThreads = Owners<kOwn>::kThreads, kMine = Owners<kOwn>::kMine;
  float *own, *block, *weights;
  float4* joined;  // [kChunks][kMine][threads]

  __device__ PlainShared(void* memory, int width)
      : own(static_cast<float*>(memory)),
        block(own + kOwn * own_pitch(width)),
        weights(block + kBlockFloats),
        joined(reinterpret_cast<float4*>(weights + kOwn * kPitch)) {}
  static size_t bytes(int width) {
    return sizeof(float) * (static_cast<size_t>(kOwn * (own_pitch(width) + kPitch) + kBlockFloats) +
                            size_t{4} * kChunks * kMine * kThreads);
  }
};

// block[c, key] of numbers [from, from + 64) of the keys.
template <class T, int kThreads>
__device__ void stage_keys(float* block, const Attend& a, const Tile& tile, int head, int first,
                           int from) {
  const auto seen = [&](int key) {
    return first + key >= tile.oldest && first + key <= tile.newest;
  };
  if constexpr (!std::is_same_v<T, q8>) {
    if (a.kv.turned) {
      const int64_t line = key_row(a, tile, first) / kKeyBlock * a.kv_heads * a.width +
                           int64_t{head} * a.width + from;
      stage_rows<kThreads>(block, [&](float(&x)[kStep], int c, int key) {
        if (from + c >= a.width) return clear(x);
        load_eight<T>(x, a.kv.k, (line + c) * kKeyBlock, key, kOthers, a.kv.k_steps);
#pragma unroll
        for (int k = 0; k < kStep; ++k)
          if (!seen(key + k)) x[k] = 0;
      });
      return;
    }
  }
  stage_turned<kThreads>(block, [&](float(&x)[kStep], int key, int c) {
    if (!seen(key)) return clear(x);
    load_eight<T>(x, a.kv.k + key_row(a, tile, first + key) * a.kv.k_row, int64_t{head} * a.width,
                  from + c, a.width, a.kv.k_steps);
  });
}

// block[key, c] of the values.
template <class T, int kThreads>
__device__ void stage_values(float* block, const Attend& a, const Tile& tile, int head, int first,
                             int from) {
  stage_rows<kThreads>(block, [&](float(&x)[kStep], int key, int c) {
    if (first + key < tile.oldest || first + key > tile.newest) return clear(x);
    load_eight<T>(x, a.kv.v + key_row(a, tile, first + key) * a.kv.v_row,
                  int64_t{head} * a.value_width, from + c, a.value_width, a.kv.v_steps);
  });
}

// Weights of a block of keys: its scores s become e^(s - m) and lie in `weights`, what was summed
// so far is scaled to the new maximum.
template <int kMine, int kChunks>
__device__ void weigh(Sums<kMine, kChunks>& sums, float (&s)[kMine][4], const Seen (&seen)[kMine],
                      int position, float scale2, float* weights) {
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = seen[i](position + j) ? s[i][j] : -INFINITY;
      most = fmaxf(most, s[i][j]);
    }
    for (int by = 8; by > 0; by /= 2) most = fmaxf(most, __shfl_xor_sync(kFull, most, by));
    most = fmaxf(most, sums.m[i]);
    const float old = weight_of(sums.m[i], most, scale2);
    sums.m[i] = most;
    float4 p;
    p.x = weight_of(s[i][0], most, scale2);
    p.y = weight_of(s[i][1], most, scale2);
    p.z = weight_of(s[i][2], most, scale2);
    p.w = weight_of(s[i][3], most, scale2);
    sums.l[i] = sums.l[i] * old + ((p.x + p.y) + (p.z + p.w));
    *reinterpret_cast<float4*>(weights + i * kPitch) = p;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.o[c][i][j] *= old;
  }
}

// One block of 64 keys, from position `first` on.
template <class T, int kOwn, int kChunks>
__device__ void meet_keys(Sums<Owners<kOwn>::kMine, kChunks>& sums, const Attend& a,
                          const Tile& tile, const PlainShared<kOwn, kChunks>& shared,
                          const Seen (&seen)[Owners<kOwn>::kMine], int first) {
  constexpr int kThreads = Owners<kOwn>::kThreads, kMine = Owners<kOwn>::kMine;
  const int x = static_cast<int>(threadIdx.x) % 16,
            mine = static_cast<int>(threadIdx.x) / 16 * kMine, head = static_cast<int>(blockIdx.y),
            pitch = own_pitch(a.width);
  float s[kMine][4] = {};
  for (int from = 0; from < a.width; from += kChunk) {
    __syncthreads();
    stage_keys<T, kThreads>(shared.block, a, tile, head, first, from);
    __syncthreads();
    add_products<kMine>(s, shared.own + mine * pitch + from, pitch, shared.block, x);
  }
  weigh(sums, s, seen, first + 4 * x, a.scale2, shared.weights + mine * kPitch + 4 * x);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c * kChunk >= a.value_width) break;
    __syncthreads();
    stage_values<T, kThreads>(shared.block, a, tile, head, first, c * kChunk);
    __syncthreads();
    add_products<kMine>(sums.o[c], shared.weights + mine * kPitch, kPitch, shared.block, x);
  }
}

// Calls f(i, c, x) with each of a thread's outputs.
template <int kMine, int kChunks, class F>
__device__ void for_outputs(int value_width, F&& f) {
  const int x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
  for (int i = 0; i < kMine; ++i)
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int at = c * kChunk + 4 * x + j; at < value_width) f(i, at, c, j);
}

// Leaves what a tile's one stretch gave for join_stretches().
template <int kMine, int kChunks>
__device__ void leave(const Sums<kMine, kChunks>& sums, const Attend& a, const Tile& tile,
                      int column) {
  const int head = static_cast<int>(blockIdx.y);
  const auto record = [&](int i) {
    return a.left + a.record_of(tile.left + column + i - tile.begin, head);
  };
  for_outputs<kMine, kChunks>(a.value_width, [&](int i, int at, int c, int j) {
    if (column + i < tile.end) record(i)[at] = sums.o[c][i][j];
  });
  if (threadIdx.x % 16 != 0) return;
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    if (column + i < tile.end) {
      record(i)[a.value_width] = sums.m[i];
      record(i)[a.value_width + 1] = sums.l[i];
    }
}

// Writes o = O / L and lse.
template <int kMine, int kChunks>
__device__ void finish(const Attend& a, const Tile& tile, int column, const float (&most)[kMine],
                       const float (&total)[kMine], const float4* joined, int threads) {
  const int head = static_cast<int>(blockIdx.y);
  const auto head_of = [&](int i) { return head * a.group + (column + i) % a.group; };
  const auto query_of = [&](int i) { return tile.query + (column + i) / a.group; };
  for_outputs<kMine, kChunks>(a.value_width, [&](int i, int at, int c, int j) {
    if (column + i >= tile.end) return;
    const float* four =
        reinterpret_cast<const float*>(joined + (c * kMine + i) * threads + threadIdx.x);
    store_number(a.o + query_of(i) * a.o_row, int64_t{head_of(i)} * a.value_width + at, a.halves,
                 four[j] / total[i]);
  });
  if (a.lse == nullptr || threadIdx.x % 16 != 0) return;
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    if (column + i < tile.end)
      a.lse[query_of(i) * a.lse_row + head_of(i)] = most[i] * a.scale + logf(total[i]);
}

// A block is a tile and a key/value head.
template <class T, int kOwn, int kChunks>
__global__ void __launch_bounds__(Owners<kOwn>::kThreads) attend(Attend a) {
  begin_in_turn();
  constexpr int kThreads = Owners<kOwn>::kThreads, kMine = Owners<kOwn>::kMine;
  const Tile tile = a.tiles[blockIdx.x];
  const PlainShared<kOwn, kChunks> shared(dynamic_shared(), a.width);
  const int column = tile.begin + static_cast<int>(threadIdx.x) / 16 * kMine;
  load_own<kOwn>(
      shared.own, a.width, tile.end - tile.begin, a.halves, a.sign, [&](int r, int64_t& head) {
        head =
            int64_t{static_cast<int>(blockIdx.y) * a.group + (tile.begin + r) % a.group} * a.width;
        return a.q + (tile.query + (tile.begin + r) / a.group) * a.q_row;
      });
  Seen seen[kMine];
  float most[kMine], total[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    seen[i] = seen_by(a, tile, column + i);
    most[i] = -INFINITY;
    total[i] = 0;
  }
  Sums<kMine, kChunks> sums;
  for (int stretch = tile.first_stretch; stretch < tile.end_stretch; ++stretch) {
    sums.clear();
    for (int first = stretch * kStretch; first < (stretch + 1) * kStretch; first += kOthers)
      if (first + kOthers > tile.oldest && first <= tile.newest)
        meet_keys<T, kOwn, kChunks>(sums, a, tile, shared, seen, first);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      for (int by = 8; by > 0; by /= 2) sums.l[i] += __shfl_xor_sync(kFull, sums.l[i], by);
    if (tile.left >= 0) return leave(sums, a, tile, column);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const Joint by = join(most[i], total[i], sums.m[i], sums.l[i], a.scale2);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float4& so_far = shared.joined[(c * kMine + i) * kThreads + threadIdx.x];
        if (stretch == tile.first_stretch) so_far = make_float4(0, 0, 0, 0);
        so_far.x = joined(so_far.x, sums.o[c][i][0], by);
        so_far.y = joined(so_far.y, sums.o[c][i][1], by);
        so_far.z = joined(so_far.z, sums.o[c][i][2], by);
        so_far.w = joined(so_far.w, sums.o[c][i][3], by);
      }
    }
  }
  finish<kMine, kChunks>(a, tile, column, most, total, shared.joined, kThreads);
}

// A block is a column of a joined tile and a key/value head.
__global__ void join_records(Attend a, const Joined* all, int own) {
  const Joined tile = all[blockIdx.x / static_cast<unsigned>(own)];
  begin_in_turn();
  const int j = static_cast<int>(blockIdx.x) % own, head = static_cast<int>(blockIdx.y),
            column = tile.begin + j;
  if (j >= tile.columns) return;
  const int64_t query = tile.query + column / a.group;
  const int at = head * a.group + column % a.group;
  for (int c = static_cast<int>(threadIdx.x); c < a.value_width;
       c += static_cast<int>(blockDim.x)) {
    float most = -INFINITY, total = 0, o = 0;
#pragma unroll 4
    for (int s = 0; s < tile.stretches; ++s) {
      const float* record = a.left + a.record_of(tile.left + int64_t{s} * tile.columns + j, head);
      const Joint by =
          join(most, total, record[a.value_width], record[a.value_width + 1], a.scale2);
      o = joined(o, record[c], by);
    }
    store_number(a.o + query * a.o_row, int64_t{at} * a.value_width + c, a.halves, o / total);
    if (c == 0 && a.lse != nullptr) a.lse[query * a.lse_row + at] = most * a.scale + logf(total);
  }
}

template <class T, int kOwn, int kChunks>
void launch_plain(Run& run, const Attend& a, int64_t tiles) {
  const size_t bytes = PlainShared<kOwn, kChunks>::bytes(a.width);
  allow_shared(run, attend<T, kOwn, kChunks>, bytes);
  launch(run, attend<T, kOwn, kChunks>,
         dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads)),
         dim3(Owners<kOwn>::kThreads), bytes, a);
}

template <class T>
void launch_of(Run& run, const Attend& a, int own, int64_t tiles) {
  with_chunks(a.value_width, [&](auto chunks) {
    if constexpr (chunks() <= 2) {
      if (own == kManyOwn) return launch_plain<T, kManyOwn, chunks()>(run, a, tiles);
    }
    launch_plain<T, kFewOwn, chunks()>(run, a, tiles);
  });
}

}  // namespace

void attend_plain(Run& run, const Attend& a, DType kv, int own, int64_t tiles) {
  if (kv == DType::bf16) launch_of<bf16>(run, a, own, tiles);
  else if (kv == DType::f16) launch_of<f16>(run, a, own, tiles);
  else if (kv == DType::q8_0) launch_of<q8>(run, a, own, tiles);
  else launch_of<float>(run, a, own, tiles);
}

void join_stretches(Run& run, const Attend& a, const Joined* all, int64_t count, int own) {
  const int threads = a.value_width >= 128 ? 128 : (a.value_width + kWarp - 1) / kWarp * kWarp;
  launch(run, join_records,
         dim3(static_cast<unsigned>(count * own), static_cast<unsigned>(a.kv_heads)),
         dim3(static_cast<unsigned>(threads)), 0, a, all, own);
}

bool attends_many_plain(const Run& run, int width, int value_width) {
  return value_width <= 2 * kChunk && PlainShared<kManyOwn, 2>::bytes(width) <= most_shared(run);
}

}  // namespace moe::ops::cuda
