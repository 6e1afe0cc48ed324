// Address space for something large that is filled in part and later: memory is taken page by page when it is first written, in large pages where the system
// has them, and given back as a whole. mmap, because malloc's memory cannot be reserved without being promised.
#pragma once

#include <cstddef>

namespace moe {

class Pages {
 public:
  Pages() = default;
  // Zeros. Empty when the system refuses, which the caller has to look at.
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  bool empty() const { return data_ == nullptr; }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;  // aligned to a large page
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace moe
