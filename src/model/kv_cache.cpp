#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/threads.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr int64_t kGrain = int64_t{1} << 14;  // numbers that are worth a thread

int64_t whole_blocks(int64_t rows) { return (rows + ops::kKeyBlock - 1) / ops::kKeyBlock; }

// `cols` numbers of a row, rounded to another dtype. `wide` holds them in f32.
void convert_row(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t cols, float* wide) {
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<size_t>(bytes_of(to_dtype, cols)));
    return;
  }
  if (from_dtype != DType::f32) dequantise(wide, from, from_dtype, cols);
  quantise(to, from_dtype == DType::f32 ? static_cast<const float*>(from) : wide, to_dtype, cols);
}

// Rows of `from` to rows `row` of `to`.
void store_rows(Run& run, const Tensor& to, const std::vector<int64_t>& row, const Tensor& from) {
  const int64_t cols = from.cols();
  parallel_for(run.threads, static_cast<int64_t>(row.size()), std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end, int thread) {
    Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
    const ArenaScope scope(scratch);
    float* wide = scratch.alloc(DType::f32, {cols}).as<float>();
    for (int64_t n = begin; n < end; ++n)
      convert_row(static_cast<char*>(to.data) + row[static_cast<size_t>(n)] * to.row_bytes, to.dtype, static_cast<const char*>(from.data) + n * from.row_bytes,
                  from.dtype, cols, wide);
  });
}

// to[c, at + i] = from[i, c]
template <class Word>
void transpose_into(Word* to, const Word* from, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t i = 0; i < rows; ++i) to[c * ops::kKeyBlock + i] = from[i * cols + c];
}

// Keys to columns `row` of the transposed blocks of `to`. Threads share out the width, so that none writes where another does.
void store_transposed(Run& run, const Tensor& to, const std::vector<int64_t>& row, const Tensor& from) {
  const int64_t cols = from.cols(), count = static_cast<int64_t>(row.size()), size = static_cast<int64_t>(size_of(to.dtype)),
                from_size = static_cast<int64_t>(size_of(from.dtype));
  parallel_for(run.threads, cols, std::max<int64_t>(1, kGrain / count), [&](int64_t begin, int64_t end, int thread) {
    Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
    const ArenaScope scope(scratch);
    const int64_t mine = end - begin;
    float* wide = scratch.alloc(DType::f32, {mine}).as<float>();
    auto* rows = static_cast<char*>(scratch.alloc_bytes(static_cast<size_t>(ops::kKeyBlock * mine * size)));
    for (int64_t n = 0, run_end = 0; n < count; n = run_end) {
      const int64_t at = row[static_cast<size_t>(n)];  // rows that follow each other in one block are turned together
      for (run_end = n; run_end < count && row[static_cast<size_t>(run_end)] == at + run_end - n && at % ops::kKeyBlock + run_end - n < ops::kKeyBlock;
           ++run_end)
        convert_row(rows + (run_end - n) * mine * size, to.dtype, static_cast<const char*>(from.data) + run_end * from.row_bytes + begin * from_size,
                    from.dtype, mine, wide);
      char* block = static_cast<char*>(to.data) + ((at / ops::kKeyBlock * cols + begin) * ops::kKeyBlock + at % ops::kKeyBlock) * size;
      if (size == 2) transpose_into(reinterpret_cast<uint16_t*>(block), reinterpret_cast<const uint16_t*>(rows), run_end - n, mine);
      else transpose_into(reinterpret_cast<uint32_t*>(block), reinterpret_cast<const uint32_t*>(rows), run_end - n, mine);
    }
  });
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, DType dtype, int64_t sequences, int64_t capacity) : capacity_(capacity) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::q8_0)
    fail_usage("keys and values cannot be kept in {}; take f32, bf16, f16 or q8_0", name_of(dtype));
  if (config.head_width % block_of(dtype).elements != 0)
    fail_usage("keys and values in {} are kept in blocks of {} numbers, but the model's heads have {}; take f16 or bf16", name_of(dtype),
               block_of(dtype).elements, config.head_width);
  const int64_t blocks = whole_blocks(capacity), rows = sequences * blocks * ops::kKeyBlock;
  for (int64_t i = 0; i < config.layers; ++i) {
    k_.push_back(is_quantised(dtype) ? memory_.alloc(dtype, {rows, config.kv_width()})
                                     : memory_.alloc(dtype, {sequences * blocks, config.kv_width(), ops::kKeyBlock}));
    v_.push_back(memory_.alloc(dtype, {rows, config.kv_width()}));
  }
  for (int64_t s = 0; s < sequences; ++s) first_row_.push_back(s * blocks * ops::kKeyBlock);
}

void KvCache::store(Run& run, int64_t layer, const Batch& batch, Tensor k, Tensor v) {
  const auto l = static_cast<size_t>(layer);
  std::vector<int64_t> row;
  row.reserve(batch.positions.size());
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t n = batch.bounds[static_cast<size_t>(s)]; n < batch.bounds[static_cast<size_t>(s) + 1]; ++n) {
      const int64_t position = batch.positions[static_cast<size_t>(n)];
      if (position >= capacity_) fail("the cache holds {} positions but a token stands at position {}; ask for a longer context", capacity_, position);
      row.push_back(first_row_[static_cast<size_t>(s)] + position);
    }
  if (row.empty()) return;
  if (k_[l].rank == 3) store_transposed(run, k_[l], row, k);
  else store_rows(run, k_[l], row, k);
  store_rows(run, v_[l], row, v);
}

ops::KvView KvCache::view(int64_t layer, const Batch& batch) const {
  const auto l = static_cast<size_t>(layer);
  return {k_[l], v_[l], batch.bounds, std::span(first_row_).first(static_cast<size_t>(batch.sequences()))};
}

}  // namespace moe
