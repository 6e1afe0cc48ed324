// A forward of which somebody reads only each sequence's last rows (Pass::last_rows), cut at the
// last block: those rows go through it as ever, and of the others it makes what later tokens ask
// of them, keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moe/pass.h"
#include "tensor/arena.h"
#include "tensor/run.h"

namespace moe {

// Some rows of a batch as a batch of their own.
class RowsOfBatch {
 public:
  explicit RowsOfBatch(const Pass& of);
  // Rows [begin, end) of sequence s; sequences in order, and none whose range is empty.
  void add(const Pass& of, int64_t s, int64_t begin, int64_t end);

  bool empty() const { return rows_.empty(); }
  int64_t count() const { return static_cast<int64_t>(rows_.size()); }
  // The same pass of these rows, which live here; whoever runs it prepares it (Model::prepare).
  Pass pass(const Pass& of) const;
  // Theirs of x [N,*]: a view where they lie side by side, else a copy in `memory`.
  Tensor of(Run&, Arena& memory, Tensor x) const;

 private:
  std::vector<int32_t> rows_, ids_, positions_, slots_;
  std::vector<int64_t> bounds_ = {0};
  std::unique_ptr<bool[]> only_read_;  // room for all sequences of the batch
};

// The batch of a pass, in the rows before each sequence's last ones and those.
struct CutRows {
  RowsOfBatch before, last;
  explicit CutRows(const Pass&);
};

}  // namespace moe
