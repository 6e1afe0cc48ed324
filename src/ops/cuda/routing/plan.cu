// The plan of rows: pairs of a token and a choice sorted by expert, those of an expert in the order
// in which they come. A warp ranks its pairs among each other; what the warps and blocks before
// have of each expert tells where its rows begin. Everything is whole numbers: the plan is that of
// the CPU.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 1024;
constexpr int kSteps = 4;                   // pairs of a lane
constexpr int kWarpPairs = kSteps * kWarp;  // of a warp, neighbours
constexpr int kMostCounts = 12000;          // in shared memory, of all of a block's warps
constexpr int64_t kMostPairs = int64_t{1} << 31;

struct PlanInput {
  Rows<int32_t> choice, kept;
  Rows<float> w;
  int64_t tokens, pairs;  // fewer than 2^31: the plan numbers them
  int k, experts;
  int warps;  // of a block that have pairs

  __device__ int token(int64_t p) const {
    return static_cast<int>(static_cast<uint32_t>(p) / static_cast<uint32_t>(k));
  }
  // The first pair of a lane; the others follow a warp's width apart.
  __device__ int64_t first(int warp, int lane) const {
    return (int64_t{blockIdx.x} * warps + warp) * kWarpPairs + lane;
  }
  // The experts of a lane's pairs, -1 where one is no row.
  __device__ void experts_from(int* expert, int64_t first) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t p = first + s * kWarp;
      expert[s] = -1;
      if (p >= pairs) continue;
      const int n = token(p), i = static_cast<int>(p - int64_t{n} * k);
      if (kept.empty() || kept.row(n)[i] != 0) expert[s] = choice.row(n)[i];
    }
  }
};

// counts [blocks, E+1]: rows of each expert; last, all of them.
__global__ void count_kernel(int32_t* counts, PlanInput in) {
  begin_in_turn();
  int32_t* mine = static_cast<int32_t*>(dynamic_shared());
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int e = static_cast<int>(threadIdx.x); e <= in.experts; e += kThreads) mine[e] = 0;
  int expert[kSteps];
  if (warp < in.warps) in.experts_from(expert, in.first(warp, lane));
  __syncthreads();
  if (warp < in.warps) {
    int all = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      all += __popc(__ballot_sync(kFull, expert[s] >= 0));
      if (expert[s] >= 0) atomicAdd(&mine[expert[s]], 1);
    }
    if (lane == 0) atomicAdd(&mine[in.experts], all);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e <= in.experts; e += kThreads)
    counts[int64_t{blockIdx.x} * (in.experts + 1) + e] = mine[e];
}

// counts [blocks, columns] become what the blocks before have; totals [columns], and `all` is the
// last of them. A lane has a column, a warp some of the blocks.
__global__ void __launch_bounds__(kMostThreads)
    scan_kernel(int32_t* counts, int32_t* totals, int32_t* all, int blocks, int columns) {
  begin_in_turn();
  constexpr int kTile = 8;  // read together
  __shared__ int32_t sums[kWarp][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane,
            each = (blocks + kWarp - 1) / kWarp;
  const int from = std::min(blocks, warp * each),
            to = column < columns ? std::min(blocks, from + each) : from;
  int32_t* mine = counts + column;
  int32_t count[kTile], sum = 0;
  const auto read_tile = [&](int b) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) count[i] = b + i < to ? mine[int64_t{b + i} * columns] : 0;
  };
  for (int b = from; b < to; b += kTile) {
    read_tile(b);
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += count[i];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  int32_t at = 0;
  for (int w = 0; w < warp; ++w) at += sums[w][lane];
  if (warp == kWarp - 1 && column < columns) {
    totals[column] = at + sum;
    if (column == columns - 1) *all = at + sum;
  }
  for (int b = from; b < to; b += kTile) {
    read_tile(b);
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (b + i < to) mine[int64_t{b + i} * columns] = at;
      at += count[i];
    }
  }
}

struct PlanOutput {
  int32_t *token, *bounds, *row, *pair;
  float* weight;
  int64_t* offsets;
};
// What is known before: rows of each expert and of all in the blocks before, [blocks, E+1], and in
// all blocks, [E+1]. Null where one block has all pairs.
struct PlanBefore {
  const int32_t *begin, *totals;
};

// A lane's pairs among those of its warp: how many of the same expert and how many rows come before
// each. counts [E] of the warp, 0 at first. Returns the warp's rows.
__device__ inline int rank_pairs(int* rank, int* place, const int* expert, int32_t* counts,
                                 int lane) {
  const unsigned lower = (1u << lane) - 1;
  int all = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const unsigned rows = __ballot_sync(kFull, expert[s] >= 0);
    rank[s] = 0;
    place[s] = all + __popc(rows & lower);
    all += __popc(rows);
    if (rows == 0) continue;
    const unsigned same = __match_any_sync(kFull, expert[s]);
    if (expert[s] >= 0) rank[s] = counts[expert[s]] + __popc(same & lower);
    __syncwarp();
    if (expert[s] >= 0 && same >> lane == 1) counts[expert[s]] = rank[s] + 1;  // the last of them
    __syncwarp();
  }
  return all;
}

// The sum of x over the threads before, of a block of whole warps; `shared` [32].
__device__ inline int32_t sum_before(int32_t x, int32_t* shared, int warp, int lane) {
  int32_t sum = x;
#pragma unroll
  for (int by = 1; by < kWarp; by *= 2) {
    const int32_t lower = __shfl_up_sync(kFull, sum, static_cast<unsigned>(by));
    if (lane >= by) sum += lower;
  }
  if (lane == kWarp - 1) shared[warp] = sum;
  __syncthreads();
  sum -= x;
  for (int w = 0; w < warp; ++w) sum += shared[w];
  return sum;
}

// counts [warps, E] become the row where each warp's pairs of an expert begin; the first block
// writes the offsets. A thread has neighbouring experts.
__device__ inline void begin_rows(int32_t* counts, int32_t* shared, int64_t* offsets,
                                  const PlanBefore& before, const PlanInput& in) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int experts = in.experts, each = (experts + threads - 1) / threads;
  const int from = std::min(experts, thread * each), to = std::min(experts, from + each);
  const bool alone = before.begin == nullptr;
  int32_t sum = 0;
  for (int e = from; e < to; ++e) {
    if (!alone) sum += before.totals[e];
    for (int w = 0; alone && w < in.warps; ++w) sum += counts[w * experts + e];
  }
  int32_t at = sum_before(sum, shared, thread / kWarp, thread % kWarp);
  for (int e = from; e < to; ++e) {
    if (blockIdx.x == 0) offsets[e] = at;
    int32_t row = at;
    if (!alone) row += before.begin[int64_t{blockIdx.x} * (experts + 1) + e];
    for (int w = 0; w < in.warps; ++w) {
      const int32_t count = counts[w * experts + e];
      counts[w * experts + e] = row;
      row += count;
    }
    at = alone ? row : at + before.totals[e];
  }
  if (blockIdx.x == 0 && from < to && to == experts) offsets[experts] = at;
}

__global__ void __launch_bounds__(kMostThreads)
    place_kernel(PlanOutput out, PlanBefore before, PlanInput in) {
  begin_in_turn();
  __shared__ int32_t rows[kWarp], sums[kWarp];
  int32_t* counts = static_cast<int32_t*>(dynamic_shared());
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = in.first(warp, lane);
  int expert[kSteps], rank[kSteps], place[kSteps];
  float weight[kSteps];
  if (warp < in.warps) {
    in.experts_from(expert, first);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t p = first + s * kWarp;
      const int n = p < in.pairs ? in.token(p) : 0;
      if (p < in.pairs) weight[s] = in.w.row(n)[p - int64_t{n} * in.k];
    }
    int32_t* mine = counts + warp * in.experts;
    for (int e = lane; e < in.experts; e += kWarp) mine[e] = 0;
    __syncwarp();
    rows[warp] = rank_pairs(rank, place, expert, mine, lane);
  }
  __syncthreads();
  begin_rows(counts, sums, out.offsets, before, in);
  __syncthreads();
  if (warp >= in.warps) return;
  int32_t at = 0;
  if (before.begin != nullptr) at = before.begin[int64_t{blockIdx.x + 1} * (in.experts + 1) - 1];
  for (int w = 0; w < warp; ++w) at += rows[w];
  if (before.begin == nullptr && warp == in.warps - 1 && lane == 0)
    out.bounds[in.tokens] = at + rows[warp];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t p = first + s * kWarp;
    if (p >= in.pairs) return;
    const int n = in.token(p);
    if (p == int64_t{n} * in.k) out.bounds[n] = at + place[s];
    if (expert[s] < 0) continue;
    const int32_t r = counts[warp * in.experts + expert[s]] + rank[s];
    out.row[at + place[s]] = r;
    out.token[r] = n;
    out.pair[r] = static_cast<int32_t>(p);
    out.weight[r] = weight[s];
  }
}

__global__ void spread_kernel(Rows<float> dw, const float* dweight, const int32_t* bounds,
                              const int32_t* row, const int32_t* pair, int64_t tokens, int k) {
  begin_in_turn();
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens) return;
  for (int i = 0; i < k; ++i) dw.row(n)[i] = 0;
  for (int32_t i = bounds[n]; i < bounds[n + 1]; ++i) {
    const int32_t r = row[i];
    dw.row(n)[pair[r] - n * k] = dweight[r];
  }
}

// One block writes its counts, several add theirs.
__global__ void __launch_bounds__(kMostThreads)
    pairs_kernel(int32_t* counts, Rows<int32_t> choice, Rows<int32_t> selected, uint32_t pairs,
                 uint32_t columns, int experts, bool add) {
  begin_in_turn();
  int32_t* mine = static_cast<int32_t*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < experts; e += threads) mine[e] = 0;
  __syncthreads();
#pragma unroll 4
  for (uint32_t p = blockIdx.x * blockDim.x + threadIdx.x; p < pairs; p += gridDim.x * blockDim.x) {
    const uint32_t n = p / columns, i = p % columns;
    if (selected.empty() || selected.row(n)[i] != 0) atomicAdd(&mine[choice.row(n)[i]], 1);
  }
  __syncthreads();
  for (int e = thread; e < experts; e += threads) {
    if (!add) counts[e] = mine[e];
    else if (mine[e] != 0) atomicAdd(&counts[e], mine[e]);
  }
}

// The counts are written where one block makes them all, else added to.
void count(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns, bool add) {
  constexpr int64_t kEach = 4;  // pairs of a thread
  const int64_t pairs = choice.rows() * columns;
  need(pairs < kMostPairs, "count_pairs", "on a GPU fewer than 2^31 choices", {{"choice", choice}});
  unsigned blocks = 1, threads = kMostThreads;
  if (pairs > kEach * kMostThreads) {
    if (!add) zero(run, counts);
    threads = kThreads;
    blocks = walking_blocks(run, pairs, kEach * kThreads);
  }
  launch(run, pairs_kernel, dim3(blocks), dim3(threads),
         sizeof(int32_t) * static_cast<size_t>(counts.numel()), counts.as<int32_t>(),
         Rows<int32_t>(choice), Rows<int32_t>(selected), static_cast<uint32_t>(pairs),
         static_cast<uint32_t>(columns), static_cast<int>(counts.numel()), add || blocks > 1);
}

}  // namespace

// Where every pair is a row (`kept` absent) nobody waits for the device; else how many there are
// has to be known.
RoutingPlan make_plan(Run& run, Tensor choice, Tensor kept, Tensor w, int64_t experts) {
  const int64_t tokens = choice.rows(), k = choice.cols(), pairs = tokens * k;
  need(experts < kMostCounts && pairs < kMostPairs, "make_plan",
       "on a GPU fewer than 12,000 experts and 2^31 choices", {{"choice", choice}});
  PlanInput in{choice, kept, w, tokens, pairs, static_cast<int>(k), static_cast<int>(experts), 0};
  // For a run whose memory is the CPU's the lists are brought there afterwards (Placement::result).
  Arena& memory = run.saved.device() != nullptr ? run.saved : run.device->scratch();
  const auto list = [&]<class T>(T, int64_t n) {
    return static_cast<T*>(memory.alloc_bytes(static_cast<size_t>(n) * sizeof(T)));
  };
  PlanOutput out{};
  out.offsets = list(int64_t{}, experts + 1);
  out.bounds = list(int32_t{}, tokens + 1);
  const auto make_lists = [&](int64_t rows) {
    for (int32_t** to : {&out.token, &out.row, &out.pair}) *to = list(int32_t{}, rows);
    out.weight = list(float{}, rows);
  };
  const auto count_rows = [&] {
    if (kept.empty()) return pairs;
    int32_t rows = 0;
    run.device->download(&rows, out.bounds + tokens, sizeof(rows));
    return int64_t{rows};
  };
  const auto place = [&](unsigned blocks, int threads, PlanBefore before) {
    launch(run, place_kernel, dim3(blocks), dim3(static_cast<unsigned>(threads)),
           sizeof(int32_t) * static_cast<size_t>(in.warps * in.experts), out, before, in);
    note_written(run, out.offsets);
  };
  const int64_t all_warps = std::max<int64_t>(1, blocks_for(pairs, kWarpPairs));
  int64_t rows = 0;
  Scratch scratch(run);
  if (all_warps <= kWarp && all_warps * experts <= kMostCounts) {
    // One block has all; the lists are as long as they can be.
    in.warps = static_cast<int>(all_warps);
    make_lists(pairs);
    place(1, std::max(in.warps * kWarp, kThreads), {nullptr, nullptr});
    rows = count_rows();
  } else {
    in.warps = std::clamp(kMostCounts / in.experts, 1, kThreads / kWarp);
    const unsigned blocks = blocks_for(pairs, int64_t{in.warps} * kWarpPairs);
    auto* counts = static_cast<int32_t*>(
        scratch.bytes(sizeof(int32_t) * (size_t{blocks} + 1) * (static_cast<size_t>(experts) + 1)));
    int32_t* totals = counts + int64_t{blocks} * (experts + 1);
    launch(run, count_kernel, dim3(blocks), dim3(kThreads),
           sizeof(int32_t) * (static_cast<size_t>(experts) + 1), counts, in);
    launch(run, scan_kernel, dim3(blocks_for(experts + 1, kWarp)), dim3(kMostThreads), 0, counts,
           totals, out.bounds + tokens, static_cast<int>(blocks), in.experts + 1);
    make_lists(rows = count_rows());
    place(blocks, kThreads, {counts, totals});
  }
  const auto size = static_cast<size_t>(rows);
  return {{out.token, size},
          {out.offsets, static_cast<size_t>(experts) + 1},
          {out.bounds, static_cast<size_t>(tokens) + 1},
          {out.row, size},
          {out.pair, size},
          Tensor(out.weight, DType::f32, {rows})};
}

void spread_rows(Run& run, Tensor dw, Tensor dweight, const RoutingPlan& plan) {
  const Scratch scratch(run);
  launch(run, spread_kernel, dim3(blocks_for(dw.rows(), kThreads)), dim3(kThreads), 0,
         Rows<float>(dw), static_cast<const float*>(dweight.as<float>()),
         on_device(run, plan.bounds), on_device(run, plan.row), on_device(run, plan.pair),
         dw.rows(), static_cast<int>(dw.cols()));
}

void count_pairs(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  count(run, counts, choice, selected, columns, false);
}

void count_pairs_acc(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  count(run, counts, choice, selected, columns, true);
}

}  // namespace moe::ops::cuda
