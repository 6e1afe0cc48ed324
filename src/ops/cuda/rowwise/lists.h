// Lists that the CPU has are looked through before a kernel follows them: the same errors as those
// of ops/cpu. Lists on the device were made there and are taken as they are.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace moe::ops::cuda {

// Each of them is a row of x.
void need_rows(const Run&, const char* op, const char* list, std::span<const int32_t> rows,
               const Tensor& x);
// bounds [N+1] of y's rows rise within a list of `listed`.
void need_bounds(const Run&, const char* op, std::span<const int32_t> bounds, const Tensor& y,
                 size_t listed);
// Each is a column of `all`, and there is one for each column of `few`.
void need_columns(const Run&, const char* op, std::span<const int64_t> ids, const Tensor& few,
                  const Tensor& all);
// Each is a row of the table.
void need_ids(const Run&, const char* op, const Param& table, std::span<const int32_t> ids);
// Each is a column of the logits or ignored, with `elsewhere` perhaps in another part of the
// vocabulary; there is one for each row.
void need_targets(const Run&, const char* op, const Tensor& logits,
                  std::span<const int32_t> targets, bool elsewhere);
void need_weights(const char* op, std::span<const float> weights, std::span<const int32_t> targets);
// offsets [E+1] rise from 0 to the number of rows; those of one group are not read.
void need_offsets(const Run&, const char* op, std::span<const int64_t> offsets, const Tensor& bank,
                  const GatheredRows& rows);

}  // namespace moe::ops::cuda
