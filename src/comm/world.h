// The processes that mpirun started, as a group. Only the command line joins one; everything below
// it is given a Group.
#pragma once

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
  // Ends all processes at once, this one with `code`.
  [[noreturn]] void abandon(int code);

 private:
  class MpiLink;
  Group group_;
  int threads_ = 0, on_this_machine_ = 1;
  std::unique_ptr<MpiLink> link_;
};

}  // namespace moe::comm
