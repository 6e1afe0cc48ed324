// The packed copies of a weight: where they lie, when they are packed, and how an optimizer refreshes them block by block while it writes the master.
#pragma once

#include <array>
#include <cstdint>

#include "core/threads.h"
#include "ops/cpu/primitives.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::ops {

// The sizes of w, [E, O, I] or [O, I].
struct Bank {
  int64_t experts, out, in;
};
Bank bank_of(const Param& w);

struct PackedBank {
  const char* data;
  int64_t expert_bytes;
};

// The copy for products in `dtype`, packed now if its version is behind. `forward`: w(k, n) = value(n, k), K = I, N = O. Otherwise w(k, n) = value(k, n), K =
// O, N = I.
PackedBank packed_bank(Run& run, Param& w, const Bank& bank, DType dtype, bool forward);

// Refreshes the copies that are current, so in use, while the master changes: first write rows(block), then pack(block), any block on any thread; done() at
// the end. Blocks are rows of one expert, as many as all layouts take whole.
class Repacker {
 public:
  explicit Repacker(const Param& param);

  bool idle() const { return copies_ == 0; }
  int64_t blocks() const { return bank_.experts * blocks_each_; }
  int64_t block_elements() const { return block_rows_ * bank_.in; }
  Span rows(int64_t block) const;  // of the whole matrix [E*O, I]
  void pack(int64_t block) const;
  void done(Param& param) const;  // the copies are of param's version

 private:
  struct Copy {
    DType dtype;
    bool forward;
    char* data;
    int64_t expert_bytes;
    const PackLayout* layout;
  };
  Bank bank_{};
  const float* value_ = nullptr;
  int64_t block_rows_ = 1, blocks_each_ = 0;
  std::array<Copy, 4> copies_list_{};
  int copies_ = 0;
};

}  // namespace moe::ops
