// Numbers of a run where the CPU can reach them.
#pragma once

#include <list>
#include <span>
#include <vector>

#include "tensor/run.h"

namespace moe {

// Of a run on the CPU, the tensors themselves; of one on a device, copies that come back when this
// goes out of scope, those that were asked for to be written. Waits for the device.
class OnHost {
 public:
  explicit OnHost(const Run& run) : device_(run.device) {}
  ~OnHost();
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  Tensor read(const Tensor& t) { return copied(t, false); }
  Tensor write(const Tensor& t) { return copied(t, true); }
  template <class T>
  std::span<const T> read(std::span<const T> list) {
    if (!is_away(list.data())) return list;
    auto* copy = static_cast<T*>(memory_.alloc_bytes(list.size_bytes()));
    device_->download(copy, list.data(), list.size_bytes());
    return {copy, list.size()};
  }

 private:
  bool is_away(const void* data) const {
    return data != nullptr && device_ != nullptr && device_->owns(data);
  }
  Tensor copied(const Tensor& t, bool back);

  Device* device_;
  Arena memory_{size_t{1} << 12};
  struct Written {
    Tensor there, here;
  };
  std::list<Written> written_;
};

// Numbers of a run that the CPU wants, but not at once: those of a device come together when
// somebody waits for it. One at a time.
class Later {
 public:
  explicit Later(const Run& run) : device_(run.device) {}
  ~Later() {
    if (device_ != nullptr) device_->forget_brought();
  }
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;

  // to [numbers of `from`, which has no gaps]: there after settle().
  void read(void* to, const Tensor& from);
  // Waits where there is something to wait for.
  void settle();

 private:
  struct Wanted {
    void* to;
    const void* brought;
    size_t bytes;
  };
  Device* device_;
  std::vector<Wanted> wanted_;
};

}  // namespace moe
