#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/threads.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr int64_t kGrain = int64_t{1} << 14;  // numbers that are worth a thread

// Row `to_row` of `to` = row `from_row` of `from`, in to's dtype. `wide` holds a row in f32.
void store_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row, float* wide) {
  char* at = static_cast<char*>(to.data) + to_row * to.row_bytes;
  const char* source = static_cast<const char*>(from.data) + from_row * from.row_bytes;
  if (to.dtype == from.dtype) {
    std::memcpy(at, source, static_cast<size_t>(to.row_bytes));
  } else if (from.dtype == DType::f32) {
    quantise(at, reinterpret_cast<const float*>(source), to.dtype, to.cols());
  } else {
    dequantise(wide, source, from.dtype, from.cols());
    quantise(at, wide, to.dtype, to.cols());
  }
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, DType dtype, int64_t sequences, int64_t capacity) : capacity_(capacity) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::q8_0)
    fail_usage("keys and values cannot be kept in {}; take f32, bf16, f16 or q8_0", name_of(dtype));
  if (config.head_width % block_of(dtype).elements != 0)
    fail_usage("keys and values in {} are kept in blocks of {} numbers, but the model's heads have {}; take f16 or bf16", name_of(dtype),
               block_of(dtype).elements, config.head_width);
  for (int64_t i = 0; i < config.layers; ++i) {
    k_.push_back(memory_.alloc(dtype, {sequences * capacity, config.kv_width()}));
    v_.push_back(memory_.alloc(dtype, {sequences * capacity, config.kv_width()}));
  }
  for (int64_t s = 0; s < sequences; ++s) first_row_.push_back(s * capacity);
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
  const int64_t cols = k.cols();
  parallel_for(run.threads, static_cast<int64_t>(row.size()), std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end, int thread) {
    Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
    const ArenaScope scope(scratch);
    float* wide = scratch.alloc(DType::f32, {cols}).as<float>();
    for (int64_t n = begin; n < end; ++n) {
      store_row(k_[l], row[static_cast<size_t>(n)], k, n, wide);
      store_row(v_[l], row[static_cast<size_t>(n)], v, n, wide);
    }
  });
}

ops::KvView KvCache::view(int64_t layer, const Batch& batch) const {
  const auto l = static_cast<size_t>(layer);
  return {k_[l], v_[l], batch.bounds, std::span(first_row_).first(static_cast<size_t>(batch.sequences()))};
}

}  // namespace moe
