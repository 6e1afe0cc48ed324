#include "tensor/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace moe {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

Pages::Pages(size_t bytes) {
  const size_t wanted = bytes + kLargePage;
  void* p = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return;
  mapped_ = p;
  mapped_bytes_ = wanted;
  data_ = static_cast<char*>(p) + (kLargePage - reinterpret_cast<uintptr_t>(p) % kLargePage) % kLargePage;
  madvise(data_, bytes, MADV_HUGEPAGE);  // a hint
}

Pages::~Pages() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), mapped_(std::exchange(other.mapped_, nullptr)), mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

}  // namespace moe
