// The processes that train or run one model together, as one of them sees them. A process alone is
// a group too, and then every operation is the identity: code that works on a group says so once
// and asks nowhere how many there are.
//
// All operations are collective: every process of the group calls the same ones in the same order
// with arguments of the same size, also where it has nothing to add. All of them get the same bits,
// and the same again in another run of as many processes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device_kind.h"
#include "core/error.h"

namespace moe::comm {

// A process is gone or does not answer: nothing that waits for it can be done any more.
class LostError : public Error {
 public:
  using Error::Error;
};

// Brings bytes from process to process: all that MPI, or any other way between processes, has to
// give.
class Link {
 public:
  virtual ~Link() = default;
  // Process p gets send[p] of this one, and receive[p] is filled with what p sends here, whose size
  // is known; with p this process too. Both have an entry for every process, empty ones included,
  // and share no memory. What was sent may be written over as soon as this returns. Two processes
  // that have nothing for each other need not both be here. Where a process is gone, by a failure
  // of its own or with its machine, this throws LostError and names it instead of waiting for it.
  void exchange(std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

  // Of all exchanges so far: bytes that went to other processes, and seconds, those of waiting for
  // others included: in which this process did nothing else, and hidden behind what it did.
  struct Traffic {
    int64_t sent = 0;
    double seconds = 0;
    double hidden = 0;
  };
  const Traffic& traffic() const { return traffic_; }

  // Of the seconds counted so far so many were no waiting.
  virtual void hide(double seconds) {
    traffic_.seconds -= seconds;
    traffic_.hidden += seconds;
  }

 protected:
  virtual int own_rank() const = 0;
  // What exchange() promises.
  virtual void bring(std::span<const std::span<const std::byte>> send,
                     std::span<const std::span<std::byte>> receive) = 0;

 private:
  Traffic traffic_;
};

// Exchanges of a link that are made in order while this process does something else, but no other
// exchange.
class Behind {
 public:
  // Begins with the first `allowed` of them. They and what they send and receive must stay as long
  // as this does.
  Behind(Link&, std::span<const std::function<void()>> exchanges, size_t allowed);
  // Begins no other one, and waits for the one under way.
  ~Behind();
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;
  // The first so many may be made now.
  void allow(size_t count);
  // Until so many are over; throws what one of them threw.
  void wait_for(size_t count);

 private:
  void run();
  Link& link_;
  std::span<const std::function<void()>> exchanges_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t allowed_, over_ = 0;
  bool stopped_ = false;
  std::exception_ptr failure_;
  double took_ = 0, waited_ = 0;  // seconds: of exchanges, and of wait_for
  std::thread thread_;
};

struct Group {
  int rank = 0;          // of this process, from 0
  int size = 1;          // processes
  Link* link = nullptr;  // outlives the group; absent for a process alone

  bool is_first() const { return rank == 0; }
  // x[i] = the sum of all processes' x[i], added in the order of ranks in x's own type.
  void sum(std::span<double> x) const;
  void sum(std::span<float> x) const;
  void sum(std::span<int64_t> x) const;
  // The two halves of a sum. After the first only this process's share of x, which core/threads.h
  // partitions, is the sum, and what else is in x has no meaning; the second brings every process's
  // share to all.
  void sum_shares(std::span<float> x) const;
  void gather_shares(std::span<float> x) const;
  // Whether x is true anywhere: for a decision that all must take alike though they may see
  // different things, as a signal or a clock.
  bool any(bool x) const;
  double largest(double x) const;
  // The first process's x.
  double of_first(double x) const;
  // Every process's text, in the order of ranks.
  std::vector<std::string> gather(const std::string& mine) const;
};

// Some of a group's processes as a group of their own, in which this one is.
class Part {
 public:
  // `members`: their ranks in `whole`, in rising order, this process's among them.
  Part(const Group& whole, std::vector<int> members);
  const Group& group() const { return group_; }

 private:
  std::unique_ptr<Link> link_;  // null for one member
  Group group_;
};

// A failure that every process of the group knows of: all of them throw it.
class SharedError : public Error {
 public:
  using Error::Error;
};

// Does `exchange`; a failure of the link then says `what` was under way.
void during(const std::function<std::string()>& what, const std::function<void()>& exchange);

// Does `work`, in which no process waits for another, and fails in all of them with the first one's
// words where it failed in any. Collective.
void together(const Group&, const std::function<void()>& work);
// The same without asking, for work that fails in all of them or in none.
void alike(const Group&, const std::function<void()>& work);

// Fails in all processes where one has other facts than the first: by name, as messages say them.
// `facts` have the same names everywhere. Collective.
using Facts = std::vector<std::pair<std::string, std::string>>;
void check_same(const Group&, const Facts& facts);

// Fails (usage) for several processes with a device, which none of them shares out.
void need_one_process(const Group&, DeviceKind);

}  // namespace moe::comm
