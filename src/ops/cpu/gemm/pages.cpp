#include "ops/cpu/gemm/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace moe::ops {
namespace {

constexpr int kLargeOrder = 9;  // 2 MiB in pages of 4 KiB, as an exponent of 2
constexpr int64_t kLargePage = int64_t{2} << 20;

// What lies free in large pages now: /proc/buddyinfo counts free blocks of 2^0, 2^1, ... pages for
// each zone of memory. 0 where there is no such file.
int64_t free_large_bytes() {
  std::ifstream file("/proc/buddyinfo");
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(std::min(line.find("zone") + 4, line.size())));
    std::string zone;
    words >> zone;
    int64_t blocks = 0;
    for (int order = 0; words >> blocks; ++order)
      if (order >= kLargeOrder) bytes += blocks * (kLargePage << (order - kLargeOrder));
  }
  return bytes;
}

// How much may still be asked for: a part of what was free at first, because others take memory too
// and the smallest zones are not for us.
std::atomic<int64_t>& large_bytes_left() {
  static std::atomic<int64_t> left(free_large_bytes() / 4 * 3);
  return left;
}

bool take_large(int64_t bytes) {
  if (large_bytes_left().fetch_sub(bytes) >= bytes) return true;
  large_bytes_left().fetch_add(bytes);
  return false;
}

}  // namespace

// After Pages(), so that what throws in here is followed by the destructor.
Pages::Pages(size_t bytes) : Pages() {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return;
  data_ = static_cast<char*>(p);
  bytes_ = bytes;
  large_ = take_large(static_cast<int64_t>(bytes));
  if (large_) madvise(p, bytes, MADV_HUGEPAGE);  // a hint
}

Pages::~Pages() {
  if (data_ == nullptr) return;
  munmap(data_, bytes_);
  if (large_) large_bytes_left().fetch_add(static_cast<int64_t>(bytes_));
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      large_(std::exchange(other.large_, false)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(large_, other.large_);
  return *this;
}

}  // namespace moe::ops
