// Keys and values to their places in a cache, rounded to its dtype; attention.cpp reads them.
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "ops/cpu/attention/store.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/spans.h"
#include "tensor/quant.h"

namespace moe::ops {

void check_stored(const Tensor& cache, const Tensor& x, std::span<const int64_t> row, bool readable,
                  bool heads) {
  constexpr const char* op = "store_keys";
  const bool turned = cache.rank == 3, by_heads = heads && cache.rank == 4;
  need(!cache.empty() && (cache.rank == 2 || turned || by_heads) && !x.empty() && x.rank == 2 &&
           is_float(x) && x.rows() == std::ssize(row),
       op, "a matrix or blocks of keys, and x f32 or bf16 with a row for each that is named",
       {{"cache", cache}, {"x", x}});
  need(is_float(cache) || cache.dtype == DType::f16 || (cache.dtype == DType::q8_0 && !turned), op,
       "a cache of f32, bf16, f16 or, of keys as rows, q8_0", {{"cache", cache}});
  const int64_t cols = turned     ? cache.shape[1]
                       : by_heads ? cache.shape[1] * cache.cols()
                                  : cache.cols();
  need(x.cols() == cols && (cache.rank == 2 || (cache.shape[2] == kKeyBlock && cache.dense())), op,
       "x as wide as the cache, and blocks of 64 keys without gaps", {{"cache", cache}, {"x", x}});
  const int64_t rows = cache.rank == 2 ? cache.rows() : cache.shape[0] * kKeyBlock;
  for (size_t i = 0; readable && i < row.size(); ++i)
    if (row[i] < 0 || row[i] >= rows)
      fail("{}: row[{}] = {} is not a row of {}", op, i, row[i], describe(cache));
}

namespace cpu {
namespace {

constexpr int64_t kWorthThread = int64_t{1} << 14;  // numbers

// `cols` numbers of a row, rounded to another dtype. `wide` holds them in f32.
void convert_row(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t cols,
                 float* wide) {
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<size_t>(bytes_of(to_dtype, cols)));
    return;
  }
  if (from_dtype != DType::f32) dequantise(wide, from, from_dtype, cols);
  quantise(to, from_dtype == DType::f32 ? static_cast<const float*>(from) : wide, to_dtype, cols);
}

// Rows of `from` to rows `row` of `to`, a matrix or blocks by heads.
void store_rows(Run& run, const Tensor& to, std::span<const int64_t> row, const Tensor& from) {
  const int64_t cols = from.cols(), width = to.cols(), heads = cols / width,
                from_bytes = width * static_cast<int64_t>(size_of(from.dtype));
  parallel_for(
      run.threads, static_cast<int64_t>(row.size()), std::max<int64_t>(1, kWorthThread / cols),
      [&](int64_t begin, int64_t end, int thread) {
        Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
        const ArenaScope scope(scratch);
        float* wide = scratch.alloc(DType::f32, {width}).as<float>();
        for (int64_t n = begin; n < end; ++n) {
          const int64_t at = row[static_cast<size_t>(n)],
                        line =
                            to.rank == 2 ? at : at / kKeyBlock * heads * kKeyBlock + at % kKeyBlock;
          for (int64_t h = 0; h < heads; ++h)
            convert_row(static_cast<char*>(to.data) + (line + h * kKeyBlock) * to.row_bytes,
                        to.dtype,
                        static_cast<const char*>(from.data) + n * from.row_bytes + h * from_bytes,
                        from.dtype, width, wide);
        }
      });
}

// to[c, at + i] = from[i, c]
template <class Word>
void transpose_into(Word* to, const Word* from, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t i = 0; i < rows; ++i) to[c * kKeyBlock + i] = from[i * cols + c];
}

// Keys to columns `row` of the transposed blocks of `to`. Threads share out the width, so that none
// writes where another does.
void store_transposed(Run& run, const Tensor& to, std::span<const int64_t> row,
                      const Tensor& from) {
  const int64_t cols = from.cols(), count = static_cast<int64_t>(row.size()),
                size = static_cast<int64_t>(size_of(to.dtype)),
                from_size = static_cast<int64_t>(size_of(from.dtype));
  parallel_for(
      run.threads, cols, std::max<int64_t>(1, kWorthThread / count),
      [&](int64_t begin, int64_t end, int thread) {
        Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
        const ArenaScope scope(scratch);
        const int64_t mine = end - begin;
        float* wide = scratch.alloc(DType::f32, {mine}).as<float>();
        auto* rows =
            static_cast<char*>(scratch.alloc_bytes(static_cast<size_t>(kKeyBlock * mine * size)));
        for (int64_t n = 0, run_end = 0; n < count; n = run_end) {
          // rows that follow each other in one block are turned together
          const int64_t at = row[static_cast<size_t>(n)];
          for (run_end = n;
               run_end < count && row[static_cast<size_t>(run_end)] == at + run_end - n &&
               at % kKeyBlock + run_end - n < kKeyBlock;
               ++run_end)
            convert_row(
                rows + (run_end - n) * mine * size, to.dtype,
                static_cast<const char*>(from.data) + run_end * from.row_bytes + begin * from_size,
                from.dtype, mine, wide);
          char* block = static_cast<char*>(to.data) +
                        ((at / kKeyBlock * cols + begin) * kKeyBlock + at % kKeyBlock) * size;
          if (size == 2)
            transpose_into(reinterpret_cast<uint16_t*>(block),
                           reinterpret_cast<const uint16_t*>(rows), run_end - n, mine);
          else
            transpose_into(reinterpret_cast<uint32_t*>(block),
                           reinterpret_cast<const uint32_t*>(rows), run_end - n, mine);
        }
      });
}

}  // namespace

void store_keys(Run& run, Tensor cache, Tensor x, std::span<const int64_t> row) {
  if (row.empty()) return;
  check_stored(cache, x, row, true, true);
  if (cache.rank == 3) store_transposed(run, cache, row, x);
  else store_rows(run, cache, row, x);
}

}  // namespace cpu
}  // namespace moe::ops
