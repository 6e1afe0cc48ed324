#include "ops/cpu/gemm/packed.h"

#include <algorithm>

#include "core/memory.h"
#include "ops/memory.h"

namespace moe::ops {

bool CopyBudget::has_room(int64_t bytes) {
  int64_t unset = kHalfOfWhatIsFree;
  if (limit_ == unset) limit_.compare_exchange_strong(unset, used_ + MemoryLimits{}.for_copies());
  return used_ + bytes <= limit_;
}

int64_t ExpertCopies::bytes() {
  if (!std::atomic_ref(begun).load(std::memory_order_acquire)) return 0;
  int64_t copies = 0;
  for (int64_t e = 0; e < std::ssize(version); ++e) copies += version_of(e) != 0 ? 1 : 0;
  return copies * expert_bytes;
}

char* ExpertCopies::place_of(int64_t expert, int64_t experts, int64_t bytes_each) {
  if (!begun) {
    expert_bytes = bytes_each;
    version.assign(static_cast<size_t>(experts), 0);
    room = Pages(static_cast<size_t>(experts * bytes_each));
    if (room.empty()) return nullptr;
    std::atomic_ref(begun).store(true, std::memory_order_release);
  }
  return room.data() + expert * bytes_each;
}

PackedWeight::Copies& PackedWeight::of(DType dtype, bool forward) {
  const size_t type = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
  return copies[type][forward ? 1 : 0];
}

int64_t PackedWeight::expert_bytes() {
  int64_t bytes = blocks.bytes() + neurons.bytes();
  for (auto& both : copies)
    for (Copies& each : both) bytes += each.experts.bytes();
  return bytes;
}

std::mutex& packing_lock() {
  static std::mutex mutex;
  return mutex;
}

PackedWeight& packed_weight(const Param& w) {
  Derived::Content* kept = w.derived.get();
  return static_cast<PackedWeight&>(
      kept != nullptr ? *kept : w.derived.keep(std::make_unique<PackedWeight>()));
}

void limit_copies(std::span<Param* const> params, std::optional<int64_t> bytes) {
  if (params.empty()) return;
  const std::shared_ptr<CopyBudget> first = packed_weight(*params[0]).budget;
  if (first && std::all_of(params.begin(), params.end(),
                           [&](const Param* w) { return packed_weight(*w).budget == first; }))
    return first->set_limit(bytes);
  const auto budget = std::make_shared<CopyBudget>(bytes);
  for (const Param* w : params) {
    PackedWeight& weight = packed_weight(*w);
    const int64_t there = weight.expert_bytes();
    if (weight.budget) weight.budget->add(-there);
    budget->add(there);
    weight.budget = budget;
  }
}

int64_t copies_taken(std::span<Param* const> params) {
  int64_t bytes = 0;
  for (const Param* w : params)  // on a device another backend keeps its own there
    if (auto* kept = dynamic_cast<PackedWeight*>(w->derived.get())) bytes += kept->expert_bytes();
  return bytes;
}

}  // namespace moe::ops
