// Keeps two runs out of one folder. It is to be had before the checkpoint is read, or a run that
// ends meanwhile leaves another one behind. All processes of a run hold it together, so that it
// stays the run's when one of them is lost, or is stopped and never lets go.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

namespace moe {

class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // For a run, by its first process; the folder is there. Its metrics.jsonl is locked too, once
  // there is one: where machines share a file system, one may see the locks of another on files
  // alone. Fails when another run holds it; a file system that knows no locks has none. What is
  // held already stays so. A process that ends lets go.
  void take(const std::string& folder);
  // By another process of the run that has taken it; the folder may be on another machine.
  void join(const std::string& folder);

 private:
  // By these kinds of lock, one after the other; false where there is nothing to open.
  bool hold(const std::string& path, std::initializer_list<int> kinds);

  std::map<std::string, int> held_;  // path, descriptor
};

}  // namespace moe
