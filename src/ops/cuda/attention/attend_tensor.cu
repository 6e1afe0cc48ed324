// Attention over keys and values of bf16 on tensor cores: queries and weights are rounded to bf16,
// sums are f32; attend.h says in which order they are taken. Blocks of 64 rows by 64 numbers come
// to shared memory in the order in which they are needed, first those of a block of keys and then
// of its values, some of them on their way at a time.
#include "ops/cuda/attention/attend.h"
#include "ops/cuda/attention/tensor_cores.h"

namespace moe::ops::cuda {
namespace {

constexpr int kStageBytes = 64 * kLine;
constexpr int kMostChunks = 8;  // of values
constexpr int kColWarps = 4;    // warps that share 64 keys, or 64 numbers of a value, 16 each

// Warps stand in kRowWarps rows of kColWarps; each has kTiles tiles of 16 own rows and 16 of the 64
// others. A thread's numbers of a tile are its rows g and g + 8 (tensor_cores.h), of two columns in
// each of two tiles [16,8].
template <int kTilesOf, int kRowWarpsOf, int kChunksOf>
struct Form {
  // Blocks that a multiprocessor is to have at a time, as far as their outputs fit in registers.
  static constexpr int kBlocks = kChunksOf > 4   ? 1
                                 : kChunksOf > 2 ? 2 / kRowWarpsOf
                                                 : 4 / kRowWarpsOf;
  static constexpr int kTiles = kTilesOf, kRowWarps = kRowWarpsOf, kChunks = kChunksOf,
                       kOwn = 16 * kTiles * kRowWarps, kThreads = kWarp * kColWarps * kRowWarps,
                       kRows = 2 * kTiles;  // of a thread
  // Blocks of numbers that are on their way: where columns are few, those of heads of 128 for a
  // whole stretch.
  static constexpr int kStages = kOwn == kFewOwn && kChunks <= 2 ? 8 : 4;
};

// Where a thread stands.
struct Stand {
  int g, t, col_warp, row;  // row: of its first tile

  template <class F>
  __device__ static Stand of() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp,
              warp = static_cast<int>(threadIdx.x) / kWarp;
    return {lane / 4, lane % 4, warp % kColWarps, warp / kColWarps * 16 * F::kTiles};
  }
  // The thread's i-th own row, and the two columns of tile n from which its numbers are.
  __device__ int own(int i) const { return row + 16 * (i / 2) + 8 * (i % 2) + g; }
  __device__ int col(int n) const { return 16 * col_warp + 8 * n + 2 * t; }
};

template <class F>
struct Shared {
  char *own, *stages, *weights;
  float* parts;    // [own, 4]: of each warp that has a row's keys
  float4* joined;  // [kChunks][kTiles][2][threads], where one block walks several stretches

  __device__ Shared(void* memory, int width)
      : own(static_cast<char*>(memory)),
        stages(own + own_bytes(width)),
        weights(stages + F::kStages * kStageBytes),
        parts(reinterpret_cast<float*>(weights + F::kOwn * kLine)),
        joined(reinterpret_cast<float4*>(parts + F::kOwn * kColWarps)) {}
  __host__ __device__ static int own_bytes(int width) {
    return (width + kChunk - 1) / kChunk * F::kOwn * kLine;
  }
  static size_t bytes(int width, bool joins) {
    return static_cast<size_t>(own_bytes(width) + F::kStages * kStageBytes + F::kOwn * kLine) +
           sizeof(float) * F::kOwn * kColWarps +
           (joins ? sizeof(float4) * F::kChunks * F::kTiles * 2 * F::kThreads : 0);
  }
};

// Brings the blocks that a tile needs, one after another.
template <class F>
class Feed {
 public:
  __device__ Feed(const Attend& a, const Tile& tile, char* stages)
      : a_(a), tile_(tile), stages_(stages) {
    first_ = first_position(tile);
    end_ = end_position(tile);
    key_chunks_ = (a.width + kChunk - 1) / kChunk;
    chunks_ = key_chunks_ + (a.value_width + kChunk - 1) / kChunk;
    if (first_ < end_) row_ = key_row(a, tile, first_);
    for (int i = 0; i < F::kStages - 1; ++i) bring();
  }
  // The next block, where all threads may read it until they ask for one more.
  __device__ const char* next() {
    await_copies<F::kStages - 2>();
    __syncthreads();
    bring();
    const char* stage = stages_ + read_ * kStageBytes;
    read_ = (read_ + 1) % F::kStages;
    return stage;
  }
  // [first, end) in whole blocks of keys.
  __device__ static int first_position(const Tile& tile) {
    const int of_stretch = tile.first_stretch * kStretch, oldest = tile.oldest / kSide * kSide;
    return of_stretch > oldest ? of_stretch : oldest;
  }
  __device__ static int end_position(const Tile& tile) {
    const int of_stretch = tile.end_stretch * kStretch,
              newest = tile.newest / kSide * kSide + kSide;
    return of_stretch < newest ? of_stretch : newest;
  }

 private:
  static constexpr int kSide = static_cast<int>(kKeyBlock);
  static constexpr int kPieces = kSide * kLine / 16;

  __device__ void bring() {
    if (first_ < end_) {
      char* stage = stages_ + write_ * kStageBytes;
      if (chunk_ < key_chunks_ && a_.kv.turned) bring_turned(stage);
      else bring_rows(stage);
      if (++chunk_ == chunks_) {
        chunk_ = 0;
        first_ += kSide;
        if (first_ < end_) row_ = key_row(a_, tile_, first_);
      }
    }
    write_ = (write_ + 1) % F::kStages;
    close_copies();
  }
  // Lines are keys, or values: of those that nobody sees zeros.
  __device__ void bring_rows(char* stage) {
    const bool keys = chunk_ < key_chunks_;
    const int width = keys ? a_.width : a_.value_width,
              from = (keys ? chunk_ : chunk_ - key_chunks_) * kChunk;
    const int64_t step = keys ? a_.kv.k_row : a_.kv.v_row;
    const char* base = (keys ? a_.kv.k : a_.kv.v) + row_ * step +
                       (int64_t{static_cast<int>(blockIdx.y)} * width + from) * 2;
#pragma unroll
    for (int n = 0; n < kPieces / F::kThreads; ++n) {
      const int i = n * F::kThreads + static_cast<int>(threadIdx.x);
      const int r = i / 8, piece = i % 8, position = first_ + r;
      const bool any =
          position >= tile_.oldest && position <= tile_.newest && from + 8 * piece < width;
      copy_piece(stage + place_of(r, piece), any ? base + r * step + piece * 16 : base_of(keys),
                 any);
    }
  }
  // Lines are numbers of 64 keys.
  __device__ void bring_turned(char* stage) {
    const int from = chunk_ * kChunk;
    const char* base = a_.kv.k + (row_ / kSide * a_.kv_heads * a_.width +
                                  int64_t{static_cast<int>(blockIdx.y)} * a_.width + from) *
                                     kLine;
#pragma unroll
    for (int n = 0; n < kPieces / F::kThreads; ++n) {
      const int i = n * F::kThreads + static_cast<int>(threadIdx.x);
      const int c = i / 8, piece = i % 8;
      const bool any = from + c < a_.width;
      copy_piece(stage + place_of(c, piece), any ? base + c * kLine + piece * 16 : a_.kv.k, any);
    }
  }
  __device__ const char* base_of(bool keys) const { return keys ? a_.kv.k : a_.kv.v; }

  const Attend& a_;
  const Tile& tile_;
  char* stages_;
  int first_, end_, key_chunks_, chunks_, chunk_ = 0, read_ = 0, write_ = 0;
  int64_t row_ = 0;  // of the key at first_
};

// What a thread keeps of a stretch, of its own rows: maxima, its parts of the sums of weights, and
// of the outputs.
template <class F>
struct Sums {
  float m[F::kRows], l[F::kRows], o[F::kChunks][F::kTiles][2][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < F::kRows; ++i) m[i] = -INFINITY, l[i] = 0;
#pragma unroll
    for (int c = 0; c < F::kChunks; ++c)
#pragma unroll
      for (int i = 0; i < 4 * F::kRows; ++i) o[c][i / 8][i / 4 % 2][i % 4] = 0;
  }
};

// sum += own rows (from `row` on, of a block of 64 numbers) by the 16 columns of a warp.
template <class F, bool kOfCols>
__device__ inline void multiply_block(float (&sum)[F::kTiles][2][4], const char* own, int row,
                                      const char* block, int col) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t b[4];
    if constexpr (kOfCols) load_b_of_cols(b, block, col, k);
    else load_b_of_rows(b, block, col, k);
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i) {
      uint32_t a[4];
      load_a(a, own, row + 16 * i, k);
      multiply_add(sum[i][0], a, b[0], b[1]);
      multiply_add(sum[i][1], a, b[2], b[3]);
    }
  }
}

// A row's numbers of the warps that share its keys, for all of them.
template <class F, class Join>
__device__ void share_rows(float (&x)[F::kRows], float* parts, const Stand& at, Join&& join) {
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) {
    x[i] = join(x[i], __shfl_xor_sync(kFull, x[i], 1));
    x[i] = join(x[i], __shfl_xor_sync(kFull, x[i], 2));
    if (at.t == 0) parts[at.own(i) * kColWarps + at.col_warp] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) {
    const float4 all = *reinterpret_cast<const float4*>(parts + at.own(i) * kColWarps);
    x[i] = join(join(all.x, all.y), join(all.z, all.w));
  }
}

// Scores of a block of keys become weights, what was summed so far is scaled to the new maximum.
template <class F>
__device__ void weigh(Sums<F>& sums, float (&s)[F::kTiles][2][4], const Seen (&seen)[F::kRows],
                      const Shared<F>& shared, const Stand& at, int first, float scale2) {
  float most[F::kRows];
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) {
    most[i] = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& score = s[i / 2][j / 2][i % 2 * 2 + j % 2];
      if (!seen[i](first + at.col(j / 2) + j % 2)) score = -INFINITY;
      most[i] = fmaxf(most[i], score);
    }
  }
  share_rows<F>(most, shared.parts, at, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) {
    const float now = fmaxf(most[i], sums.m[i]), old = weight_of(sums.m[i], now, scale2);
    sums.m[i] = now;
    sums.l[i] *= old;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* two = &s[i / 2][n][i % 2 * 2];
      const float p = weight_of(two[0], now, scale2), q = weight_of(two[1], now, scale2);
      sums.l[i] += p + q;
      const int row = at.own(i), col = at.col(n);
      *reinterpret_cast<uint32_t*>(shared.weights + place_of(row, col / 8) + col % 8 * 2) =
          to_bf16(p).bits | uint32_t{to_bf16(q).bits} << 16;
    }
#pragma unroll
    for (int c = 0; c < F::kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.o[c][i / 2][j / 2][i % 2 * 2 + j % 2] *= old;
  }
}

// One block of 64 keys, from position `first` on.
template <class F>
__device__ void meet_keys(Sums<F>& sums, const Attend& a, Feed<F>& feed, const Shared<F>& shared,
                          const Seen (&seen)[F::kRows], const Stand& at, int first) {
  float s[F::kTiles][2][4] = {};
  const char* own = shared.own;
  for (int from = 0; from < a.width; from += kChunk, own += F::kOwn * kLine) {
    const char* keys = feed.next();
    if (a.kv.turned) multiply_block<F, false>(s, own, at.row, keys, 16 * at.col_warp);
    else multiply_block<F, true>(s, own, at.row, keys, 16 * at.col_warp);
  }
  weigh(sums, s, seen, shared, at, first, a.scale2);
#pragma unroll
  for (int c = 0; c < F::kChunks; ++c) {
    if (c * kChunk >= a.value_width) break;
    const char* values = feed.next();  // and then all weights are there
    multiply_block<F, false>(sums.o[c], shared.weights, at.row, values, 16 * at.col_warp);
  }
}

// Own rows as bf16, in blocks of 64 numbers, zeros behind the heads' end and the last row.
template <class F>
__device__ void load_queries(char* own, const Attend& a, const Tile& tile) {
  const int chunks = (a.width + kChunk - 1) / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < chunks * F::kOwn * kChunk; i += F::kThreads) {
    const int c = i % (chunks * kChunk), r = i / (chunks * kChunk), column = tile.begin + r;
    bf16 x{};
    if (column < tile.end && c < a.width) {
      const int head = static_cast<int>(blockIdx.y) * a.group + column % a.group;
      x = to_bf16(a.sign * load_number(a.q + (tile.query + column / a.group) * a.q_row,
                                       int64_t{head} * a.width + c, a.halves));
    }
    *reinterpret_cast<bf16*>(own + c / kChunk * F::kOwn * kLine + place_of(r, c % kChunk / 8) +
                             c % 8 * 2) = x;
  }
}

// Calls f(i, c, n, j, at): number j of tile n of chunk c, of own row i, is number `at` of the
// value.
template <class F, class G>
__device__ void for_outputs(const Stand& stand, int value_width, G&& f) {
#pragma unroll
  for (int i = 0; i < F::kRows; ++i)
#pragma unroll
    for (int c = 0; c < F::kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int at = c * kChunk + stand.col(j / 2) + j % 2; at < value_width)
          f(i, c, j / 2, i % 2 * 2 + j % 2, at);
}

// Leaves what a tile's one stretch gave for join_stretches().
template <class F>
__device__ void leave(const Sums<F>& sums, const Attend& a, const Tile& tile, const Stand& at) {
  const int head = static_cast<int>(blockIdx.y);
  const auto record = [&](int i) { return a.left + a.record_of(tile.left + at.own(i), head); };
  const auto there = [&](int i) { return tile.begin + at.own(i) < tile.end; };
  for_outputs<F>(at, a.value_width, [&](int i, int c, int n, int j, int number) {
    if (there(i)) record(i)[number] = sums.o[c][i / 2][n][j];
  });
#pragma unroll
  for (int i = 0; i < F::kRows; ++i)
    if (at.t == 0 && at.col_warp == 0 && there(i)) {
      record(i)[a.value_width] = sums.m[i];
      record(i)[a.value_width + 1] = sums.l[i];
    }
}

// Writes o = O / L and lse.
template <class F>
__device__ void finish(const Attend& a, const Tile& tile, const Stand& at,
                       const float (&most)[F::kRows], const float (&total)[F::kRows],
                       const float4* joined) {
  const auto column = [&](int i) { return tile.begin + at.own(i); };
  const auto head = [&](int i) {
    return static_cast<int>(blockIdx.y) * a.group + column(i) % a.group;
  };
  const auto query = [&](int i) { return tile.query + column(i) / a.group; };
  for_outputs<F>(at, a.value_width, [&](int i, int c, int n, int j, int number) {
    if (column(i) >= tile.end) return;
    const auto* four = reinterpret_cast<const float*>(
        joined + ((c * F::kTiles + i / 2) * 2 + n) * F::kThreads + threadIdx.x);
    store_number(a.o + query(i) * a.o_row, int64_t{head(i)} * a.value_width + number, a.halves,
                 four[j] / total[i]);
  });
  if (a.lse == nullptr || at.t != 0 || at.col_warp != 0) return;
#pragma unroll
  for (int i = 0; i < F::kRows; ++i)
    if (column(i) < tile.end)
      a.lse[query(i) * a.lse_row + head(i)] = most[i] * a.scale + logf(total[i]);
}

// Joins a stretch to those before it.
template <class F>
__device__ void join_stretch(float (&most)[F::kRows], float (&total)[F::kRows], float4* so_far,
                             const Sums<F>& sums, bool is_first, float scale2) {
  Joint by[F::kRows];
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) by[i] = join(most[i], total[i], sums.m[i], sums.l[i], scale2);
#pragma unroll
  for (int c = 0; c < F::kChunks; ++c)
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float4& four = so_far[((c * F::kTiles + i) * 2 + n) * F::kThreads + threadIdx.x];
        if (is_first) four = make_float4(0, 0, 0, 0);
        four.x = joined(four.x, sums.o[c][i][n][0], by[2 * i]);
        four.y = joined(four.y, sums.o[c][i][n][1], by[2 * i]);
        four.z = joined(four.z, sums.o[c][i][n][2], by[2 * i + 1]);
        four.w = joined(four.w, sums.o[c][i][n][3], by[2 * i + 1]);
      }
}

// Whether all keys of a tile were in the cache before this step, whose first is the first query's.
template <class F>
__device__ inline bool is_settled(const Attend& a, const Tile& tile) {
  return tile.first_row < 0 && Feed<F>::end_position(tile) <= a.positions[tile.query];
}

// A block is a tile and a key/value head.
template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) attend(Attend a) {
  const Tile tile = a.tiles[blockIdx.x];
  const Shared<F> shared(dynamic_shared(), a.width);
  const Stand at = Stand::of<F>();
  const bool settled = is_settled<F>(a, tile);
  if (!settled) begin_in_turn();
  Feed<F> feed(a, tile, shared.stages);
  if (settled) begin_in_turn();
  load_queries<F>(shared.own, a, tile);
  Seen seen[F::kRows];
  float most[F::kRows], total[F::kRows];
#pragma unroll
  for (int i = 0; i < F::kRows; ++i) {
    seen[i] = seen_by(a, tile, tile.begin + at.own(i));
    most[i] = -INFINITY;
    total[i] = 0;
  }
  Sums<F> sums;
  int first = Feed<F>::first_position(tile);
  const int end = Feed<F>::end_position(tile);
  for (int stretch = tile.first_stretch; stretch < tile.end_stretch; ++stretch) {
    sums.clear();
    for (; first < end && first < (stretch + 1) * kStretch; first += static_cast<int>(kKeyBlock))
      meet_keys<F>(sums, a, feed, shared, seen, at, first);
    share_rows<F>(sums.l, shared.parts, at, [](float p, float q) { return p + q; });
    if (tile.left >= 0) return leave<F>(sums, a, tile, at);
    join_stretch<F>(most, total, shared.joined, sums, stretch == tile.first_stretch, a.scale2);
  }
  finish<F>(a, tile, at, most, total, shared.joined);
}

// f(Form{}) of the form that has `own` columns and room for values of `width` numbers.
template <class F>
void with_form(int own, int width, F&& f) {
  const int chunks = (width + kChunk - 1) / kChunk;
  const auto with_chunks_of = [&](auto tiles, auto row_warps) {
    if (chunks <= 1) f(Form<tiles(), row_warps(), 1>{});
    else if (chunks <= 2) f(Form<tiles(), row_warps(), 2>{});
    else if (chunks <= 4) f(Form<tiles(), row_warps(), 4>{});
    else f(Form<tiles(), row_warps(), kMostChunks>{});
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  if (own == kFewOwn) with_chunks_of(One{}, One{});
  else if (own == kSomeOwn) with_chunks_of(Two{}, One{});
  else with_chunks_of(Two{}, Two{});
}

}  // namespace

bool attends_on_tensor_cores(const Attend& a, DType kv) {
  return kv == DType::bf16 && a.kv.k_steps && a.kv.v_steps && a.width % kStep == 0 &&
         a.value_width <= kMostChunks * kChunk;
}

size_t tensor_shared(int own, int width, int value_width) {
  size_t bytes = 0;
  with_form(own, value_width,
            [&](auto form) { bytes = Shared<decltype(form)>::bytes(width, true); });
  return bytes;
}

void attend_tensor(Run& run, const Attend& a, int own, int64_t tiles) {
  with_form(own, a.value_width, [&](auto form) {
    using F = decltype(form);
    const size_t bytes = Shared<F>::bytes(a.width, true);
    check(cudaFuncSetAttribute(attend<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "shared memory");
    launch(run, attend<F>, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(a.kv_heads)),
           dim3(F::kThreads), bytes, a);
  });
}

}  // namespace moe::ops::cuda
