// Which process holds which experts. P processes hold P / S copies of them, each spread over S
// processes that follow each other in rank; everything else of a model each process has whole.
#pragma once

#include <memory>

#include "comm/group.h"
#include "core/threads.h"

namespace moe::comm {

class Layout {
 public:
  // Every process holds all experts.
  Layout(const Group& all = {}) : all_(all), copies_(all) {}
  // Usage error where P is no multiple of `expert_parallel`, which is S.
  Layout(const Group& all, int64_t expert_parallel);

  const Group& all() const { return all_; }
  // The processes that this one's copy of the experts lies on.
  const Group& experts() const { return experts_; }
  // Those that hold the same experts as this one.
  const Group& copies() const { return copies_; }
  bool is_spread() const { return experts_.size > 1; }
  // Of the numbers of a parameter those that process p moves, and keeps the moments of: every
  // process another span of them, which all together are all of it. `experts`: of a bank whose
  // experts are spread, as many; else 0.
  Span moved_by(int p, int64_t numbers, int64_t experts) const;
  // Whether this process is needed where a model is written or run by one copy: it is of the first.
  bool is_of_first_copy() const { return all_.rank < experts_.size; }

 private:
  std::shared_ptr<const Part> expert_part_, copy_part_;
  Group all_, experts_, copies_;
};

// Of `left` processes those that can go on where more were at work: as many as share out
// `micro_batches` evenly, with each copy of the experts spread over as many as before, or over all
// of them where they are fewer.
struct Remnant {
  int processes = 1;
  int64_t expert_parallel = 1;
};
Remnant remnant(int left, int64_t micro_batches, int64_t expert_parallel);

}  // namespace moe::comm
