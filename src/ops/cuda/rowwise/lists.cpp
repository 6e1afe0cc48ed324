#include "ops/cuda/rowwise/lists.h"

#include <algorithm>

#include "core/error.h"
#include "ops/cpu/check.h"

namespace moe::ops::cuda {
namespace {

template <class T>
bool can_be_read(const Run& run, std::span<const T> list) {
  return !list.empty() && !run.device->owns(list.data());
}

}  // namespace

void need_rows(const Run& run, const char* op, const char* list, std::span<const int32_t> rows,
               const Tensor& x) {
  if (!can_be_read(run, rows)) return;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] < 0 || rows[i] >= x.rows())
      fail("{}: {}[{}] = {} is not a row of x {}", op, list, i, rows[i], describe(x));
}

void need_bounds(const Run& run, const char* op, std::span<const int32_t> bounds, const Tensor& y,
                 size_t listed) {
  if (static_cast<int64_t>(bounds.size()) != y.rows() + 1)
    fail("{}: {} bounds for y {}; needs one more than rows", op, bounds.size(), describe(y));
  if (!can_be_read(run, bounds)) return;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int32_t from = bounds[n], to = bounds[n + 1];
    if (from < 0 || to < from || static_cast<size_t>(to) > listed)
      fail("{}: bounds [{}, {}) of y's row {} do not lie in the list of {} rows", op, from, to, n,
           listed);
  }
}

void need_columns(const Run& run, const char* op, std::span<const int64_t> ids, const Tensor& few,
                  const Tensor& all) {
  need(!few.empty() && !all.empty() && few.dtype == all.dtype && few.rows() == all.rows() &&
           few.cols() == static_cast<int64_t>(ids.size()),
       op, "x and y of one dtype and as many rows, with an id for each column",
       {{"few", few}, {"all", all}});
  if (!can_be_read(run, ids)) return;
  for (const int64_t id : ids)
    if (id < 0 || id >= all.cols()) fail("{}: {} is no column of {}", op, id, describe(all));
}

void need_ids(const Run& run, const char* op, const Param& table, std::span<const int32_t> ids) {
  if (!can_be_read(run, ids)) return;
  const int64_t rows = table.value.rows();
  for (size_t n = 0; n < ids.size(); ++n)
    if (ids[n] < 0 || ids[n] >= rows)
      fail("{}: id {} at position {} is not a row of {} {}", op, ids[n], n, table.name,
           describe(table.value));
}

void need_targets(const Run& run, const char* op, const Tensor& logits,
                  std::span<const int32_t> targets, bool elsewhere) {
  if (static_cast<int64_t>(targets.size()) != logits.rows())
    fail("{}: {} targets for logits {}", op, targets.size(), describe(logits));
  if (!can_be_read(run, targets)) return;
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kIgnoreTarget || (elsewhere && targets[n] == kTargetElsewhere)) continue;
    if (targets[n] < 0 || targets[n] >= logits.cols())
      fail("{}: target {} of row {} is not a column of logits {}", op, targets[n], n,
           describe(logits));
  }
}

void need_weights(const char* op, std::span<const float> weights,
                  std::span<const int32_t> targets) {
  if (!weights.empty() && weights.size() != targets.size())
    fail("{}: {} weights for {} targets", op, weights.size(), targets.size());
}

void need_offsets(const Run& run, const char* op, std::span<const int64_t> offsets,
                  const Tensor& bank, const GatheredRows& rows) {
  bool fits = offsets.size() == static_cast<size_t>(bank.rows()) + 1;
  if (fits && offsets.size() > 2 && can_be_read(run, offsets))
    fits = offsets.front() == 0 && offsets.back() == rows.rows() &&
           std::is_sorted(offsets.begin(), offsets.end());
  need(fits, op, "offsets [E + 1] that rise from 0 to the number of rows",
       {{"rows", rows.x}, {"bank", bank}});
}

}  // namespace moe::ops::cuda
