#include "model/last_rows.h"

#include "ops/ops.h"

namespace moe {

RowsOfBatch::RowsOfBatch(const Pass& of)
    : only_read_(std::make_unique<bool[]>(of.only_read.size())) {}

void RowsOfBatch::add(const Pass& of, int64_t s, int64_t begin, int64_t end) {
  if (begin == end) return;
  const auto sequence = static_cast<size_t>(s);
  for (int64_t n = begin; n < end; ++n) {
    const auto row = static_cast<size_t>(n);
    rows_.push_back(static_cast<int32_t>(n));
    ids_.push_back(of.batch.ids[row]);
    positions_.push_back(of.batch.positions[row]);
  }
  if (!of.only_read.empty()) only_read_[slots_.size()] = of.only_read[sequence];
  slots_.push_back(of.batch.slots[sequence]);
  bounds_.push_back(count());
}

Pass RowsOfBatch::pass(const Pass& of) const {
  Pass some = of;
  some.batch = {ids_, positions_, bounds_, slots_};
  some.last_rows = {};
  if (!of.only_read.empty()) some.only_read = {only_read_.get(), slots_.size()};
  return some;
}

Tensor RowsOfBatch::of(Run& run, Arena& memory, Tensor x) const {
  if (rows_.back() - rows_.front() + 1 == count())
    return x.slice_rows(rows_.front(), rows_.back() + 1);
  const Tensor some = memory.alloc(x.dtype, {count(), x.cols()});
  ops::gather_rows(run, some, x, rows_);
  return some;
}

CutRows::CutRows(const Pass& pass) : before(pass), last(pass) {
  for (int64_t s = 0; s < pass.batch.sequences(); ++s) {
    const auto at = static_cast<size_t>(s);
    const int64_t begin = pass.batch.bounds[at], end = pass.batch.bounds[at + 1],
                  cut = end - pass.last_rows[at];
    before.add(pass, s, begin, cut);
    last.add(pass, s, cut, end);
  }
}

}  // namespace moe
