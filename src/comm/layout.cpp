#include "comm/layout.h"

#include <algorithm>

namespace moe::comm {

Layout::Layout(const Group& all, int64_t expert_parallel) : Layout(all) {
  if (expert_parallel < 1)
    fail_usage("@expert_parallel is {}; it must be at least 1", expert_parallel);
  if (all.size % expert_parallel != 0)
    fail_usage(
        "@expert_parallel {} does not divide the {} processes there are; start a multiple of it "
        "(mpirun -n {}), or give a divisor of {}",
        expert_parallel, all.size, expert_parallel, all.size);
  if (expert_parallel == 1) return;
  const int spread = static_cast<int>(expert_parallel), first = all.rank / spread * spread;
  std::vector<int> same_copy, same_experts;
  for (int p = first; p < first + spread; ++p) same_copy.push_back(p);
  for (int p = all.rank % spread; p < all.size; p += spread) same_experts.push_back(p);
  expert_part_ = std::make_shared<const Part>(all, std::move(same_copy));
  copy_part_ = std::make_shared<const Part>(all, std::move(same_experts));
  experts_ = expert_part_->group();
  copies_ = copy_part_->group();
}

Span Layout::moved_by(int p, int64_t numbers, int64_t experts) const {
  if (experts == 0) return partition(numbers, p, all_.size);
  const int64_t one = numbers / experts;
  const Span held = partition(experts, p % experts_.size, experts_.size),
             moved = partition((held.end - held.begin) * one, p / experts_.size,
                               all_.size / experts_.size);
  return {held.begin * one + moved.begin, held.begin * one + moved.end};
}

Remnant remnant(int left, int64_t micro_batches, int64_t expert_parallel) {
  for (int p = left; p >= expert_parallel; --p)
    if (micro_batches % p == 0 && p % expert_parallel == 0) return {p, expert_parallel};
  int p = std::min<int64_t>(left, expert_parallel);
  while (micro_batches % p != 0) --p;
  return {p, p};
}

}  // namespace moe::comm
