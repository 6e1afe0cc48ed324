// The processes that mpirun started, as a group. Only the command line joins one; everything below
// it is given a Group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace moe::comm {

class World {
 public:
  // Joins the processes that mpirun (or srun) started with this one; alone where nobody did. Fails
  // where this program came without its MPI module.
  World();
  // Waits for all others. Not after a failure that the others do not know of: abandon() is for
  // that.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Group& group() const { return group_; }
  // Cores for this process: those it may run on, shared evenly with the processes that may run on
  // the same ones.
  int threads() const { return threads_; }
  // As many as were asked for; 0: all of them.
  int threads_of(int asked) const { return asked == 0 ? threads_ : asked; }
  // Processes on this machine, this one included.
  int on_this_machine() const { return on_this_machine_; }
  // "process 1 of 4 (HOST)"; empty for a process alone.
  std::string name() const;
  // Whether no launcher says that this is another process than the first: for what goes wrong
  // before they have joined.
  static bool is_first_of_launch();
  // Whether those left may heal() the world when one is lost: Open MPI 5 or later under
  // `mpirun --with-ft ulfm`.
  bool can_heal() const;
  // After a LostError: waits for the others that are left, joins them anew, and makes a group of
  // the first usable(left) of them. The rest stand by (is_spare()). Every process that is left
  // calls it; groups made before are of no use any more. Fails where those left are fewer than
  // half, or half of them without the first; LostError where one is lost meanwhile.
  void heal(const std::function<int(int left)>& usable);
  // Whether this process is in no group: it has nothing to do but wait_as_spare().
  bool is_spare() const { return spare_; }
  // Until the others are done; LostError where they lose another one.
  void wait_as_spare();
  // Ends all processes at once, this one with `code`.
  [[noreturn]] void abandon(int code);

 private:
  class MpiLink;
  // Learns on which machines and cores the others are; the first `usable` are the group.
  void meet(int usable);
  Group group_;
  bool spare_ = false, left_ = false;
  int met_ = 1;             // processes that the last meet() was of, spares included
  bool was_first_ = false;  // whether this one was the first of them
  int threads_ = 0, on_this_machine_ = 1;
  std::unique_ptr<MpiLink> link_;
};

}  // namespace moe::comm
