// Rows of a table by id: embeddings and learned positions. Backward shares the columns among
// threads, each walking all rows in order, so the sum of an id that occurs often has the same bits
// for any number of threads.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"
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

// Rows of dy whose id is below 0 belong to no row of grad.
void EmbeddingColumnsBackward(Tensor grad, Tensor dy, const int32_t* ids, int64_t begin,
                              int64_t end) {
  const DF32 d;
  for (int64_t r = 0; r < dy.rows(); ++r) {
    if (ids[r] < 0) continue;
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
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(EmbeddingRows);
HWY_EXPORT(EmbeddingColumnsBackward);

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

// Which of the table's rows apart stands for each id, or -1.
std::vector<int32_t> places_of(const OwnRows& own, std::span<const int32_t> ids) {
  std::vector<int32_t> places;
  places.reserve(ids.size());
  for (const int32_t id : ids) places.push_back(static_cast<int32_t>(own.place_of(id)));
  return places;
}

// The rows of y whose ids have one apart.
void own_forward(Tensor y, const OwnRows& own, std::span<const int32_t> ids) {
  for (size_t r = 0; r < ids.size(); ++r)
    if (const int64_t place = own.place_of(ids[r]); place >= 0)
      std::copy_n(own.rows->value.row<float>(place), y.cols(),
                  y.row<float>(static_cast<int64_t>(r)));
}

void add_to_rows(Run& run, Tensor grad, Tensor dy, std::span<const int32_t> ids) {
  constexpr int64_t kLine = 16;  // floats of a cache line: no two threads write to one
  const int64_t cols = dy.cols(), lines = (cols + kLine - 1) / kLine;
  const int64_t grain =
      std::max<int64_t>(1, kGrainElements / (kLine * std::max<int64_t>(1, dy.rows())));
  parallel_for(run.threads, lines, grain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(EmbeddingColumnsBackward)
    (grad, dy, ids.data(), begin * kLine, std::min(end * kLine, cols));
  });
}

void forward(Run& run, Tensor y, const Param& table, std::span<const int32_t> ids, bool accumulate,
             const char* op) {
  choose_isa();
  check_embedding(run, op, y, table, ids, accumulate);
  if (!is_float(table.value)) {
    decoded_rows(run, y, table.value, ids, accumulate);
  } else {
    parallel_for(run.threads, y.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(EmbeddingRows)(y, table.value, ids.data(), accumulate, begin, end);
    });
  }
  if (table.own_rows != nullptr) own_forward(y, *table.own_rows, ids);
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
  Param* own = table.own_rows != nullptr ? table.own_rows->rows : nullptr;
  const bool own_learn = own != nullptr && !own->grad.empty();
  if (table.grad.empty() && !own_learn) return;
  check_embedding_backward(run, table, dy, ids);
  std::vector<int32_t> rest;  // ids, -1 where a row stands apart
  if (own != nullptr) {
    const std::vector<int32_t> places = places_of(*table.own_rows, ids);
    if (own_learn) {
      settle_grad(run, *own);
      add_to_rows(run, own->grad, dy, places);
    }
    rest.assign(ids.begin(), ids.end());
    for (size_t n = 0; n < rest.size(); ++n)
      if (places[n] >= 0) rest[n] = -1;
    ids = rest;
  }
  if (table.grad.empty()) return;
  settle_grad(run, table);
  add_to_rows(run, table.grad, dy, ids);
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
