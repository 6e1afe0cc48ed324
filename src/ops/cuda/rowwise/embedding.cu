// Rows of a table by id: embeddings and learned positions. Backward first lists the tokens of each
// id in their order; then one group of threads adds all rows of an id, so that no two add to the
// same memory and sums do not depend on how threads come along.
#include "ops/cuda/block_formats.h"
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;

// How rows of a table are read: numbers of T, or blocks of a format, of which a step is a part.
template <class T>
struct Numbers {
  __device__ static void read(float* to, const char* row, int64_t c, int64_t cols, bool steps) {
    const T* from = reinterpret_cast<const T*>(row) + c;
    if (steps) return load_step(to, from);
#pragma unroll
    for (int i = 0; i < kStep; ++i) to[i] = c + i < cols ? to_f32(from[i]) : 0;
  }
};
template <DType format>
struct Blocks {
  __device__ static void read(float* to, const char* row, int64_t c, int64_t, bool) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) to[i] = number_at<format>(row, c + i);
  }
};

// Rows that stand in the place of some of a table's (OwnRows).  ids [T] ascending; rows [T,D]
struct Apart {
  const int64_t* ids = nullptr;
  int count = 0;
  Rows<float> rows;

  // Which of them stands for row `id`, or -1.
  __device__ int place_of(int64_t id) const {
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ids[middle] < id) low = middle + 1;
      else high = middle;
    }
    return low < count && ids[low] == id ? low : -1;
  }
};

Apart apart_of(Run& run, const Param& table, bool gradients) {
  if (table.own_rows == nullptr) return {};
  const OwnRows& own = *table.own_rows;
  return {on_device(run, std::span<const int64_t>(own.ids)), static_cast<int>(own.ids.size()),
          gradients ? own.rows->grad : own.rows->value};
}

// y[n] = (y[n] +) table[ids[n]]
template <class Reader>
__global__ void look_up(Rows<float> y, const char* table, int64_t row_bytes, const int32_t* ids,
                        Apart apart, bool accumulate, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const int32_t id = ids[own.r];
  const int place = apart.place_of(id);
  for_steps(cols, [&](int64_t c) {
    float v[kStep];
    if (place >= 0)
      Numbers<float>::read(v, reinterpret_cast<const char*>(apart.rows.row(place)), c, cols, steps);
    else Reader::read(v, table + id * row_bytes, c, cols, steps);
    if (accumulate) {
      Step<float> before;
      before.load(y.row(own.r), c, cols, steps);
#pragma unroll
      for (int i = 0; i < kStep; ++i) v[i] += before[i];
    }
    Step<float>(v).store(y.row(own.r), c, cols, steps);
  });
}

void forward(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids, bool accumulate,
             const char* op) {
  const Tensor& value = table.value;
  check_embedding(run, op, y, table, ids, accumulate);
  check_device_type(op, value);
  Scratch scratch(run);
  const Apart apart = apart_of(run, table, false);
  const int32_t* list = on_device(run, ids);
  const bool steps = rows_in_steps({y}) && (is_quantised(value.dtype) || rows_in_steps({value})) &&
                     (apart.count == 0 || rows_in_steps({table.own_rows->rows->value}));
  const RowShape shape(y.cols(), 1);
  const auto read_by = [&](auto reader) {
    launch(run, look_up<decltype(reader)>, shape.blocks(y.rows()), shape.block(), 0, Rows<float>(y),
           static_cast<const char*>(value.data), value.row_bytes, list, apart, accumulate, y.rows(),
           y.cols(), steps);
  };
  if (value.dtype == DType::f32) read_by(Numbers<float>());
  else if (value.dtype == DType::bf16) read_by(Numbers<bf16>());
  else if (value.dtype == DType::f16) read_by(Numbers<f16>());
  else with_blocks(value.dtype, [&](auto format) { read_by(Blocks<decltype(format)::value>()); });
}

// ---- backward -----------------------------------------------------------------------------------
// The tokens of each row that gets a gradient: those of row k are order[start[k] ..) for count[k]
// of them. Rows of the table come first, those apart after them. Where a row's tokens stand among
// those of others hangs on how threads come along, their order does not.
struct Chains {
  int32_t *key, *place;     // [N] a token's row, -1: none; its place among the row's tokens
  int32_t *order, *sorted;  // [N] as they came, and in order
  int32_t *count, *start;   // [rows]
  int32_t* used;            // [1]
};

struct Targets {
  int64_t table_rows;
  bool table, apart;  // which of them learn
};

__global__ void count_tokens(Chains chains, const int32_t* ids, Apart apart, Targets targets,
                             int64_t tokens) {
  begin_in_turn();
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens) return;
  const int32_t id = ids[n];
  const int place = apart.place_of(id);
  int32_t key = targets.table ? id : -1;
  if (place >= 0) key = targets.apart ? static_cast<int32_t>(targets.table_rows) + place : -1;
  chains.key[n] = key;
  if (key >= 0) chains.place[n] = atomicAdd(&chains.count[key], 1);
}
__global__ void place_chains(Chains chains, int64_t tokens) {
  begin_in_turn();
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens || chains.key[n] < 0 || chains.place[n] != 0) return;
  const int32_t key = chains.key[n];
  chains.start[key] = atomicAdd(chains.used, chains.count[key]);
}
__global__ void fill_chains(Chains chains, int64_t tokens) {
  begin_in_turn();
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens || chains.key[n] < 0) return;
  chains.order[chains.start[chains.key[n]] + chains.place[n]] = static_cast<int32_t>(n);
}
// A token's place is the number of earlier tokens of its row.
__global__ void sort_chains(Chains chains, int64_t tokens) {
  begin_in_turn();
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens || chains.key[n] < 0) return;
  const int32_t key = chains.key[n], start = chains.start[key], count = chains.count[key];
  int32_t place = 0;
#pragma unroll 4
  for (int32_t i = 0; i < count; ++i) place += chains.order[start + i] < n;
  chains.place[n] = place;
  chains.sorted[start + place] = static_cast<int32_t>(n);
}

// grad[k] += dy[n] for the tokens n of row k in order, by the threads of the first of them. `steps`
// is known when this is compiled, so that several rows are on their way at once.
template <bool steps>
__global__ void add_chains(Rows<float> table, Rows<float> apart, Chains chains, Rows<float> dy,
                           int64_t table_rows, int64_t tokens, int64_t cols) {
  begin_in_turn();
  const OwnRow own(tokens);
  if (!own.live || chains.key[own.r] < 0 || chains.place[own.r] != 0) return;
  const int32_t key = chains.key[own.r], count = chains.count[key];
  const int32_t* list = chains.sorted + chains.start[key];
  float* to = key < table_rows ? table.row(key) : apart.row(key - table_rows);
  for_steps(cols, [&](int64_t c) {
    Step<float> before;
    before.load(to, c, cols, steps);
    float sum[kStep];
#pragma unroll
    for (int k = 0; k < kStep; ++k) sum[k] = before[k];
#pragma unroll 8
    for (int32_t i = 0; i < count; ++i) {
      Step<float> v;
      v.load(dy.row(list[i]), c, cols, steps);
#pragma unroll
      for (int k = 0; k < kStep; ++k) sum[k] += v[k];
    }
    Step<float>(sum).store(to, c, cols, steps);
  });
}

Chains chains_in(Run& run, Scratch& scratch, int64_t tokens, int64_t rows) {
  const auto numbers = [&](int64_t count) {
    return scratch.alloc(DType::i32, {count}).as<int32_t>();
  };
  Chains chains{};
  chains.key = numbers(tokens);
  chains.place = numbers(tokens);
  chains.order = numbers(tokens);
  chains.sorted = numbers(tokens);
  chains.start = numbers(rows);
  chains.count = numbers(rows + 1);
  chains.used = chains.count + rows;
  run.device->fill(chains.count, 0, static_cast<size_t>(rows + 1) * sizeof(int32_t));
  return chains;
}

}  // namespace

void embedding_forward(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids) {
  forward(run, y, table, ids, false, "embedding_forward");
}

void embedding_forward_acc(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids) {
  forward(run, y, table, ids, true, "embedding_forward_acc");
}

void embedding_backward(Run& run, Param& table, Tensor dy, std::span<const int32_t> ids) {
  Param* own = table.own_rows != nullptr ? table.own_rows->rows : nullptr;
  const Targets targets{table.value.rows(), !table.grad.empty(),
                        own != nullptr && !own->grad.empty()};
  if (!targets.table && !targets.apart) return;
  check_embedding_backward(run, table, dy, ids);
  const int64_t tokens = static_cast<int64_t>(ids.size());
  bool steps = rows_in_steps({dy});
  for (Param* p : {targets.table ? &table : nullptr, targets.apart ? own : nullptr}) {
    if (p == nullptr) continue;
    settle_grad(run, *p);
    steps = steps && rows_in_steps({p->grad});
  }
  Scratch scratch(run);
  const Apart apart = apart_of(run, table, true);
  const Chains chains = chains_in(run, scratch, tokens, targets.table_rows + apart.count);
  const dim3 blocks(blocks_for(tokens, kThreads)), threads(kThreads);
  launch(run, count_tokens, blocks, threads, 0, chains, on_device(run, ids), apart, targets,
         tokens);
  launch(run, place_chains, blocks, threads, 0, chains, tokens);
  launch(run, fill_chains, blocks, threads, 0, chains, tokens);
  launch(run, sort_chains, blocks, threads, 0, chains, tokens);
  const RowShape shape(dy.cols(), 1);
  launch(run, steps ? add_chains<true> : add_chains<false>, shape.blocks(tokens), shape.block(), 0,
         Rows<float>(table.grad), apart.rows, chains, Rows<float>(dy), targets.table_rows, tokens,
         dy.cols());
}

}  // namespace moe::ops::cuda
