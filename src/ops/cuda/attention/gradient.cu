#include "ops/cuda/attention/gradient.h"

#include "ops/cuda/attention/plain_parts.h"

namespace moe::ops::cuda {
namespace {

constexpr int kDeltaThreads = 256;

// delta[n,h] = <do[n,h], o[n,h]>, a warp each.
template <class A>
__global__ void delta_rows(Gradient g) {
  begin_in_turn();
  const int64_t heads = int64_t{g.group} * g.kv_heads,
                i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (i >= g.rows * heads) return;
  const int64_t at = i % heads * g.value_width;
  const A* o = reinterpret_cast<const A*>(g.o.data + i / heads * g.o.row) + at;
  const A* dout = reinterpret_cast<const A*>(g.dout.data + i / heads * g.dout.row) + at;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) % kWarp; c < g.value_width; c += kWarp)
    sum += load(o + c) * load(dout + c);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) g.delta[i] = sum;
}

// Which row and head a column is, of one key/value head.
struct Place {
  int64_t row, head;
};
__device__ inline Place column_at(const Gradient& g, const GradientTile& tile, int column) {
  return {tile.first_row + column / g.group,
          int64_t{static_cast<int>(blockIdx.y)} * g.group + column % g.group};
}
__device__ inline bool is_seen(const Gradient& g, int key, int column) {
  const int position = column / g.group;
  return key <= position && (g.window == 0 || key > position - g.window);
}

// Reads rows of the block of 64 others that begins with `first`, those before `end`, for
// stage_rows() and stage_turned(): numbers from `from` on of the head that place() names.
template <class A, class P>
struct Others {
  HeadRows rows;
  int first, end, from, width;
  P place;

  __device__ void operator()(float (&x)[kStep], int r, int c) const {
    if (first + r >= end) return clear(x);
    const Place at = place(first + r);
    load_eight<A>(x, rows.data + at.row * rows.row, at.head * width, from + c, width, rows.steps);
  }
};
template <class A, class P>
__device__ Others<A, P> others(const HeadRows& rows, int first, int end, int from, int width,
                               P place) {
  return {rows, first, end, from, width, place};
}

// What a block has in shared memory: two kinds of own rows, a block of others, and two matrices of
// own rows by 64 others.
template <int kOwn>
struct GradientShared {
  float *of_key, *of_value, *block, *weights, *changes, *lse, *delta;

  __device__ GradientShared(void* memory, const Gradient& g)
      : of_key(static_cast<float*>(memory)),
        of_value(of_key + kOwn * own_pitch(g.width)),
        block(of_value + kOwn * own_pitch(g.value_width)),
        weights(block + kBlockFloats),
        changes(weights + kOwn * kPitch),
        lse(changes + kOwn * kPitch),
        delta(lse + kOthers) {}
};

// s = <own, other> of keys and queries, t of values and gradients; place(other) names others.
template <class A, int kOwn, class P>
__device__ void scores(float (&s)[Owners<kOwn>::kMine][4], float (&t)[Owners<kOwn>::kMine][4],
                       const GradientShared<kOwn>& shared, const Gradient& g,
                       const HeadRows& of_key, const HeadRows& of_value, int first, int end,
                       P place) {
  constexpr int kThreads = Owners<kOwn>::kThreads, kMine = Owners<kOwn>::kMine;
  const int x = static_cast<int>(threadIdx.x) % 16,
            mine = static_cast<int>(threadIdx.x) / 16 * kMine;
  const auto multiply = [&](float(&sum)[kMine][4], const float* own, const HeadRows& rows,
                            int width) {
    const int pitch = own_pitch(width);
    for (int from = 0; from < width; from += kChunk) {
      __syncthreads();
      stage_turned<kThreads>(shared.block, others<A>(rows, first, end, from, width, place));
      __syncthreads();
      add_products<kMine>(sum, own + mine * pitch + from, pitch, shared.block, x);
    }
  };
  multiply(s, shared.of_key, of_key, g.width);
  multiply(t, shared.of_value, of_value, g.value_width);
}

// sum[c] += weights block, of each chunk c of the others' heads.
template <class A, int kOwn, int kChunks, class P>
__device__ void spread(float (&sum)[kChunks][Owners<kOwn>::kMine][4], const float* weights,
                       float* block, const HeadRows& rows, int first, int end, int width, P place) {
  constexpr int kThreads = Owners<kOwn>::kThreads, kMine = Owners<kOwn>::kMine;
  const int x = static_cast<int>(threadIdx.x) % 16,
            mine = static_cast<int>(threadIdx.x) / 16 * kMine;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c * kChunk >= width) break;
    __syncthreads();
    stage_rows<kThreads>(block, others<A>(rows, first, end, c * kChunk, width, place));
    __syncthreads();
    add_products<kMine>(sum[c], weights + mine * kPitch, kPitch, block, x);
  }
}

template <class A, int kMine, int kChunks, class P>
__device__ void put_heads(const HeadRows& to, const float (&sum)[kChunks][kMine][4], int first,
                          int end, int width, P place) {
  const int x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (first + i >= end) continue;
    const Place at = place(first + i);
    A* head = reinterpret_cast<A*>(to.data + at.row * to.row) + at.head * width;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int number = c * kChunk + 4 * x + j; number < width)
          store(head + number, sum[c][i][j]);
  }
}

// Own rows of both kinds.
template <class A, int kOwn, class P>
__device__ void load_both(const GradientShared<kOwn>& shared, const Gradient& g,
                          const GradientTile& tile, const HeadRows& of_key,
                          const HeadRows& of_value, P place) {
  const auto take = [&](float* own, const HeadRows& rows, int width) {
    load_own<kOwn>(own, width, tile.end - tile.begin, std::is_same_v<A, bf16>, 1,
                   [&](int r, int64_t& head) {
                     const Place at = place(tile.begin + r);
                     head = at.head * width;
                     return rows.data + at.row * rows.row;
                   });
  };
  take(shared.of_key, of_key, g.width);
  take(shared.of_value, of_value, g.value_width);
}

// A block is a tile of columns and a key/value head.
template <class A, int kOwn, int kChunks>
__global__ void __launch_bounds__(Owners<kOwn>::kThreads)
    queries_gradient(Gradient g, const GradientTile* tiles) {
  begin_in_turn();
  constexpr int kMine = Owners<kOwn>::kMine;
  const GradientTile tile = tiles[blockIdx.x];
  const GradientShared<kOwn> shared(dynamic_shared(), g);
  const int x = static_cast<int>(threadIdx.x) % 16,
            mine = static_cast<int>(threadIdx.x) / 16 * kMine, column = tile.begin + mine;
  const auto own = [&](int at) { return column_at(g, tile, at); };
  const auto key = [&](int at) {
    return Place{tile.first_row + at, int64_t{static_cast<int>(blockIdx.y)}};
  };
  load_both<A, kOwn>(shared, g, tile, g.q, g.dout, own);
  float lse[kMine], delta[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const Place at = own(column + i < tile.end ? column + i : tile.begin);
    lse[i] = g.lse[at.row * g.lse_row + at.head];
    delta[i] = g.delta[at.row * g.group * g.kv_heads + at.head];
  }
  float dq[kChunks][kMine][4] = {};
  for (int first = tile.from / kOthers * kOthers; first < tile.to; first += kOthers) {
    float s[kMine][4] = {}, t[kMine][4] = {};
    scores<A, kOwn>(s, t, shared, g, g.k, g.v, first, tile.to, key);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = first + 4 * x + j;
        const bool seen = column + i < tile.end && at < tile.to && is_seen(g, at, column + i);
        shared.changes[(mine + i) * kPitch + 4 * x + j] =
            seen ? expf(s[i][j] * g.scale - lse[i]) * (t[i][j] - delta[i]) * g.scale : 0.0f;
      }
    spread<A, kOwn, kChunks>(dq, shared.changes, shared.block, g.k, first, tile.to, g.width, key);
  }
  put_heads<A, kMine, kChunks>(g.dq, dq, column, tile.end, g.width, own);
}

// A block is a tile of keys and a key/value head.
template <class A, int kOwn, int kChunks>
__global__ void __launch_bounds__(Owners<kOwn>::kThreads)
    keys_gradient(Gradient g, const GradientTile* tiles) {
  begin_in_turn();
  constexpr int kMine = Owners<kOwn>::kMine;
  const GradientTile tile = tiles[blockIdx.x];
  const GradientShared<kOwn> shared(dynamic_shared(), g);
  const int x = static_cast<int>(threadIdx.x) % 16,
            mine = static_cast<int>(threadIdx.x) / 16 * kMine, key = tile.begin + mine;
  const auto own = [&](int at) {
    return Place{tile.first_row + at, int64_t{static_cast<int>(blockIdx.y)}};
  };
  const auto column = [&](int at) { return column_at(g, tile, at); };
  load_both<A, kOwn>(shared, g, tile, g.k, g.v, own);
  float dk[kChunks][kMine][4] = {}, dv[kChunks][kMine][4] = {};
  for (int first = tile.from; first < tile.to; first += kOthers) {
    float s[kMine][4] = {}, t[kMine][4] = {};
    __syncthreads();
    if (const int r = static_cast<int>(threadIdx.x); r < kOthers && first + r < tile.to) {
      const Place at = column(first + r);
      shared.lse[r] = g.lse[at.row * g.lse_row + at.head];
      shared.delta[r] = g.delta[at.row * g.group * g.kv_heads + at.head];
    }
    scores<A, kOwn>(s, t, shared, g, g.q, g.dout, first, tile.to, column);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * x + j;
        const bool seen =
            key + i < tile.end && first + at < tile.to && is_seen(g, key + i, first + at);
        const float p = seen ? expf(s[i][j] * g.scale - shared.lse[at]) : 0.0f;
        shared.weights[(mine + i) * kPitch + at] = p;
        shared.changes[(mine + i) * kPitch + at] =
            seen ? p * (t[i][j] - shared.delta[at]) * g.scale : 0.0f;
      }
    spread<A, kOwn, kChunks>(dv, shared.weights, shared.block, g.dout, first, tile.to,
                             g.value_width, column);
    spread<A, kOwn, kChunks>(dk, shared.changes, shared.block, g.q, first, tile.to, g.width,
                             column);
  }
  put_heads<A, kMine, kChunks>(g.dk, dk, key, tile.end, g.width, own);
  put_heads<A, kMine, kChunks>(g.dv, dv, key, tile.end, g.value_width, own);
}

// launches with the kernel that of(A{}, own, chunks) names.
template <class F>
void launch_gradient(Run& run, const Gradient& g, DType dtype, int own, int width,
                     std::span<const GradientTile> tiles, F&& of) {
  const ArenaScope scope(run.device->scratch());
  const GradientTile* there = on_device(run, tiles);
  const size_t bytes = gradient_shared(own, g.width, g.value_width);
  const dim3 blocks(static_cast<unsigned>(tiles.size()), static_cast<unsigned>(g.kv_heads));
  with_float(dtype, [&](auto of_a) {
    with_chunks(width, [&](auto chunks) {
      const auto start = [&](auto kernel, int threads) {
        allow_shared(run, kernel, bytes);
        launch(run, kernel, blocks, dim3(static_cast<unsigned>(threads)), bytes, g, there);
      };
      if constexpr (chunks() <= 2) {
        if (own == kManyOwn)
          return start(of(of_a, std::integral_constant<int, kManyOwn>{}, chunks),
                       Owners<kManyOwn>::kThreads);
      }
      start(of(of_a, std::integral_constant<int, kFewOwn>{}, chunks), Owners<kFewOwn>::kThreads);
    });
  });
}

}  // namespace

void take_delta(Run& run, const Gradient& g, DType dtype) {
  const int64_t warps = g.rows * g.group * g.kv_heads;
  with_float(dtype, [&](auto of_a) {
    launch(run, delta_rows<decltype(of_a)>, dim3(blocks_for(warps * kWarp, kDeltaThreads)),
           dim3(kDeltaThreads), 0, g);
  });
}

void gradient_of_queries(Run& run, const Gradient& g, DType dtype, int own,
                         std::span<const GradientTile> tiles) {
  launch_gradient(run, g, dtype, own, g.width, tiles, [](auto of_a, auto owned, auto chunks) {
    return queries_gradient<decltype(of_a), owned(), chunks()>;
  });
}

void gradient_of_keys(Run& run, const Gradient& g, DType dtype, int own,
                      std::span<const GradientTile> tiles) {
  launch_gradient(run, g, dtype, own, g.width > g.value_width ? g.width : g.value_width, tiles,
                  [](auto of_a, auto owned, auto chunks) {
                    return keys_gradient<decltype(of_a), owned(), chunks()>;
                  });
}

size_t gradient_shared(int own, int width, int value_width) {
  return sizeof(float) *
         static_cast<size_t>(own * (own_pitch(width) + own_pitch(value_width) + 2 * kPitch) +
                             kBlockFloats + 2 * kOthers);
}

}  // namespace moe::ops::cuda
