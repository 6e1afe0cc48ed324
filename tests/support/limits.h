// A limit on this process's address space while a test runs, so that memory is refused without
// being used up.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace moe::test {

#ifdef MOE_SANITIZED
constexpr bool kLimitsWork = false;  // the sanitizer ends the process where memory is refused
#else
constexpr bool kLimitsWork = true;
#endif

class AddressLimit {
 public:
  // `more`: bytes beyond what is mapped now.
  explicit AddressLimit(int64_t more) {
    getrlimit(RLIMIT_AS, &before_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit lowered{static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + more),
                         before_.rlim_max};
    setrlimit(RLIMIT_AS, &lowered);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace moe::test
