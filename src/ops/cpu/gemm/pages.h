// Address space for something large that is filled in part and later: memory is taken page by page
// when it is first written, and given back as a whole. mmap, because malloc's memory cannot be
// reserved without being promised. Large pages, which make reading a tenth faster, are asked for
// only as far as the system has them ready: where it has to make room for them, filling takes
// several times as long.
#pragma once

#include <cstddef>

namespace moe::ops {

class Pages {
 public:
  Pages() = default;
  // Zeros. Empty when the system refuses, which the caller has to look at.
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  bool empty() const { return data_ == nullptr; }
  char* data() const { return data_; }  // aligned to a page

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  bool large_ = false;
};

}  // namespace moe::ops
