// The packed copies of a weight: where they lie, when they are packed, and how an optimizer
// refreshes them block by block while it writes the master.
#pragma once

#include <array>
#include <cstdint>

#include "core/threads.h"
#include "ops/cpu/gemm/primitives.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::ops {

// The sizes of w, [E, O, I] or [O, I].
struct Bank {
  int64_t experts, out, in;
};
Bank bank_of(const Param& w);

struct WholeCopy;  // packed.h

// Bytes from one expert's copy to the next.
int64_t packed_expert_bytes(const Bank& bank, DType dtype, bool forward);

// All experts of a weight that is trained, one after another, for products in `dtype`; packed now,
// under a lock, if the copy's version is behind. `forward`: w(k, n) = value(n, k), K = I, N = O.
// Otherwise w(k, n) = value(k, n), K = O, N = I.
const char* packed_bank(Run& run, Param& w, const Bank& bank, DType dtype, bool forward);

// Packs the copies that a weight has, block by block: rows of one expert, as many as all layouts
// take whole. A block is read once, from the cache where an optimizer has just written it, and
// serves every copy.
class Repacker {
 public:
  enum class Which {
    in_use,  // copies that are current: whoever changes the master keeps them so
    behind,  // those that are not: others may be reading the current ones
  };
  Repacker(const Param& param, Which which);

  bool idle() const { return count_ == 0; }
  int64_t blocks() const { return bank_.experts * blocks_each_; }
  int64_t block_elements() const { return block_rows_ * bank_.in; }
  Span rows(int64_t block) const;  // of the whole matrix [E*O, I]
  // Any block on any thread, once its rows are written. `fetch_next`: the next block's rows, which
  // this thread packs next, are brought into the cache. After its last block a thread calls
  // finish_streams().
  void pack(int64_t block, bool fetch_next) const;
  void done(const Param& param) const;  // the copies are of param's version

 private:
  struct Copy {
    DType dtype;
    bool forward;
    WholeCopy* whole;
    int64_t expert_bytes;
    const PackLayout* layout;
    bool stream;
  };
  Bank bank_{};
  const float* value_ = nullptr;
  int64_t block_rows_ = 1, blocks_each_ = 0;
  std::array<Copy, 4> copies_{};
  int count_ = 0;
};

}  // namespace moe::ops
