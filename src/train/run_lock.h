// Keeps two runs out of one folder. It is to be had before the checkpoint is read, or a run that
// ends meanwhile leaves another one behind.
#pragma once

#include <string>

namespace moe {

class RunLock {
 public:
  // The folder is there. Fails when another run holds it; a file system that knows no locks has
  // none. A process that ends lets go.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace moe
