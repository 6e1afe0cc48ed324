// The processes that train or run one model together, as one of them sees them. A process alone is
// a group too, and then every operation is the identity: code that works on a group says so once
// and asks nowhere how many there are.
//
// All operations are collective: every process of the group calls the same ones in the same order
// with arguments of the same size, also where it has nothing to add. All of them get the same bits,
// and the same again in another run of as many processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moe::comm {

// Brings bytes from process to process: all that MPI, or any other way between processes, has to
// give.
class Link {
 public:
  virtual ~Link() = default;
  // Process p gets send[p] of this one, and receive[p] is filled with what p sends here, whose size
  // is known; with p this process too. Both have an entry for every process, empty ones included,
  // and share no memory. What was sent may be written over as soon as this returns. Where a process
  // is gone, by a failure of its own or with its machine, this throws Error and names it instead of
  // waiting for it.
  virtual void exchange(std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive) = 0;
};

struct Group {
  int rank = 0;          // of this process, from 0
  int size = 1;          // processes
  Link* link = nullptr;  // outlives the group; absent for a process alone

  // x[i] = the sum of all processes' x[i], added in the order of ranks in x's own type.
  void sum(std::span<double> x) const;
  void sum(std::span<float> x) const;
  void sum(std::span<int64_t> x) const;
  // Whether x is true anywhere: for a decision that all must take alike though they may see
  // different things, as a signal or a clock.
  bool any(bool x) const;
  double largest(double x) const;
};

}  // namespace moe::comm
