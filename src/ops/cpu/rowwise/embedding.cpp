// Rows of a table by id: embeddings and learned positions. Backward shares the columns among
// threads, each walking all rows in order, so the sum of an id that occurs often has the same bits
// for any number of threads.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/error.h"
#include "ops/cpu/check.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/ops.h"
#include "tensor/quant.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void EmbeddingRows(Tensor y, Tensor table, const int32_t* ids, bool accumulate, int64_t begin,
                   int64_t end) {
  const DF32 d;
  WithFloat(table.dtype, [&](auto of_table) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      float* to = y.row<float>(r);
      const auto* from = table.row<decltype(of_table)>(ids[r]);
      ForColumns(d, y.cols(), [&](int64_t c, auto part) HWY_ATTR {
        const VF32 v = Load(d, from + c, part);
        Store(accumulate ? hn::Add(Load(d, to + c, part), v) : v, d, to + c, part);
      });
    }
  });
}

void EmbeddingColumnsBackward(Tensor grad, Tensor dy, const int32_t* ids, int64_t begin,
                              int64_t end) {
  const DF32 d;
  for (int64_t r = 0; r < dy.rows(); ++r) {
    float* to = grad.row<float>(ids[r]) + begin;
    const float* from = dy.row<float>(r) + begin;
    ForColumns(d, end - begin, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Add(Load(d, to + c, part), Load(d, from + c, part)), d, to + c, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(EmbeddingRows);
HWY_EXPORT(EmbeddingColumnsBackward);

void need_ids(const char* op, const Param& table, std::span<const int32_t> ids) {
  const int64_t rows = table.value.rows();
  for (size_t n = 0; n < ids.size(); ++n) {
    if (ids[n] < 0 || ids[n] >= rows)
      fail("{}: id {} at position {} is not a row of {} {}", op, ids[n], n, table.name,
           describe(table.value));
  }
}

// Rows of a table whose numbers lie in blocks, or in halves.
void decoded_rows(Run& run, Tensor y, const Tensor& table, std::span<const int32_t> ids,
                  bool accumulate) {
  const int64_t cols = y.cols();
  parallel_for(run.threads, y.rows(), row_grain(cols), [&](int64_t begin, int64_t end, int thread) {
    Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
    const ArenaScope scope(scratch);
    float* row = accumulate ? scratch.alloc(DType::f32, {cols}).as<float>() : nullptr;
    for (int64_t r = begin; r < end; ++r) {
      float* to = y.row<float>(r);
      const void* from =
          static_cast<const char*>(table.data) + ids[static_cast<size_t>(r)] * table.row_bytes;
      dequantise(accumulate ? row : to, from, table.dtype, cols);
      for (int64_t c = 0; accumulate && c < cols; ++c) to[c] += row[c];
    }
  });
}

void forward(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids, bool accumulate,
             const char* op) {
  choose_isa();
  need(!y.empty() && y.dtype == DType::f32 && y.rows() == static_cast<int64_t>(ids.size()), op,
       "y [N,D] f32 with an id for each row", {{"y", y}});
  need(table.present() && table.value.dtype != DType::i32 && table.value.cols() == y.cols(), op,
       "table [V,D] of floats or blocks", {{"y", y}, {"table", table.value}});
  need(table.value.cols() % block_of(table.value.dtype).elements == 0, op, "rows of whole blocks",
       {{"table", table.value}});
  need_ids(op, table, ids);
  if (!is_float(table.value)) return decoded_rows(run, y, table.value, ids, accumulate);
  parallel_for(run.threads, y.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(EmbeddingRows)(y, table.value, ids.data(), accumulate, begin, end);
  });
}

}  // namespace

void embedding_forward(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids) {
  forward(run, y, table, ids, false, "embedding_forward");
}

void embedding_forward_acc(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids) {
  forward(run, y, table, ids, true, "embedding_forward_acc");
}

void embedding_backward(Run& run, Param& table, Tensor dy, std::span<const int32_t> ids) {
  choose_isa();
  if (table.grad.empty()) return;
  settle_grad(run, table);
  const char* op = "embedding_backward";
  need(!dy.empty() && dy.dtype == DType::f32 && dy.rows() == static_cast<int64_t>(ids.size()), op,
       "dy [N,D] f32 with an id for each row", {{"dy", dy}});
  need(same_matrix(table.value, table.grad) && table.grad.dtype == DType::f32 &&
           table.grad.cols() == dy.cols(),
       op, "a gradient [V,D] f32", {{"dy", dy}, {"grad", table.grad}, {"table", table.value}});
  need_ids(op, table, ids);
  constexpr int64_t kLine = 16;  // floats of a cache line: no two threads write to one
  const int64_t cols = dy.cols(), lines = (cols + kLine - 1) / kLine;
  const int64_t grain =
      std::max<int64_t>(1, kGrainElements / (kLine * std::max<int64_t>(1, dy.rows())));
  parallel_for(run.threads, lines, grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(EmbeddingColumnsBackward)
    (table.grad, dy, ids.data(), begin * kLine, std::min(end * kLine, cols));
  });
}

}  // namespace moe::ops
#endif  // HWY_ONCE
