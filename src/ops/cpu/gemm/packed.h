// The copies that products keep of a weight, in the layout and dtype they want: where they lie, of
// which version of the value they are, and how much memory those of weights that are only read may
// take together (ops/memory.h). A cache: what is dropped or behind is packed again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ops/cpu/gemm/pages.h"
#include "tensor/arena.h"
#include "tensor/param.h"

namespace moe::ops {

// What the copies of several weights may take together, of all threads that multiply with them.
// What does not fit is packed anew each time it is used.
class CopyBudget {
 public:
  explicit CopyBudget(std::optional<int64_t> limit) { set_limit(limit); }
  // Bytes; absent: half of what is free when the next copy is made.
  void set_limit(std::optional<int64_t> bytes) { limit_ = bytes.value_or(kHalfOfWhatIsFree); }
  // Whether there might be room; has_room() knows, for who holds the lock of packing.
  bool may_have_room(int64_t bytes) const {
    return limit_ == kHalfOfWhatIsFree || used_ + bytes <= limit_;
  }
  bool has_room(int64_t bytes);
  void add(int64_t bytes) { used_ += bytes; }

 private:
  static constexpr int64_t kHalfOfWhatIsFree = -1;
  std::atomic<int64_t> limit_, used_ = 0;
};

// Copies of single experts, each made when rows meet it, in room reserved for all of them.
// Threads write under a lock and look without one: `begun` tells that the rest stands, a version
// that the copy does; both are read and written as atomics (std::atomic_ref).
struct ExpertCopies {
  bool begun = false;
  Pages room;
  int64_t expert_bytes = 0;
  // [E] of the value that is packed; 0: never packed, and no memory taken
  std::vector<uint64_t> version;
  std::vector<uint8_t> met;  // [E] whether a call has met it; for who holds the lock

  // Of the value that an expert's copy was made of. What it tells of may be read afterwards.
  uint64_t version_of(int64_t expert) {
    if (!std::atomic_ref(begun).load(std::memory_order_acquire)) return 0;
    return std::atomic_ref(version[static_cast<size_t>(expert)]).load(std::memory_order_acquire);
  }
  int64_t bytes();  // of the copies that are there
  // Where an expert's copy is to lie, of so many experts with so many bytes each; null where the
  // system refuses. For who holds the lock.
  char* place_of(int64_t expert, int64_t experts, int64_t bytes_each);
};

// All experts of a weight, one after another. `version` is an atomic as in ExpertCopies.
struct WholeCopy {
  Arena memory{0};
  char* data = nullptr;
  uint64_t version = 0;  // 0: never packed
};

// What a weight keeps. One that is trained is packed as a whole, since every step packs it anew;
// one that is only read, an expert at a time.
struct PackedWeight final : Derived::Content {
  struct Copies {
    WholeCopy whole;
    ExpertCopies experts;
  };
  std::array<std::array<Copies, 2>, 3> copies;  // [f32, bf16, f16; backward, forward]
  ExpertCopies blocks;   // of a quantised value, for products with its blocks
  ExpertCopies neurons;  // of a `down` whose rows are picked one by one, with those of
                         // gate and up, as of one expert (kept/kept_copy.h)
  std::shared_ptr<CopyBudget> budget;  // of what is packed by expert; null: no limit

  // Packed as `dtype`. Forward w(k, n) = value(n, k), else w(k, n) = value(k, n).
  Copies& of(DType dtype, bool forward);
  // Of the copies of experts that are there, bytes.
  int64_t expert_bytes();
};
// Of who makes copies of experts.
std::mutex& packing_lock();
// Made when it is first asked for.
PackedWeight& packed_weight(const Param& w);

}  // namespace moe::ops
