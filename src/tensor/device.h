// A processor with memory of its own, beside the CPU: where a Run's tensors lie and its ops run.
#pragma once

#include <cstddef>
#include <string>

namespace moe {

class Arena;

// Work is done in the order in which it is asked for; what is uploaded is there for what follows.
// For one thread at a time.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string name() const = 0;
  // Bytes that may still be taken.
  virtual size_t available() const = 0;
  // Throws OutOfMemory. 256-byte aligned, not cleared.
  virtual void* take(size_t bytes) = 0;
  virtual void give(void* memory) noexcept = 0;
  // Whether a place lies in its memory.
  virtual bool owns(const void* place) const = 0;

  // What may be overwritten as soon as it returns.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  // Waits until it is there.
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // The same without waiting: where it will be once somebody has waited, until forget_brought().
  // Null: there is no room.
  virtual const void* bring(const void* from, size_t bytes) = 0;
  virtual void forget_brought() noexcept = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, int byte, size_t bytes) = 0;
  // Until all that was asked for is done; throws what went wrong with it.
  virtual void wait() = 0;

  // For the time of one op.
  virtual Arena& scratch() = 0;
  // Whether what follows is expected to come again in the same shape, as the work of a token after
  // a token: then it may be held back until somebody waits, and started as a whole.
  virtual void repeat(bool) {}
};

// While it lives; null: no device.
class Repeated {
 public:
  Repeated(Device* device, bool repeats) : device_(repeats ? device : nullptr) {
    if (device_ != nullptr) device_->repeat(true);
  }
  // What goes wrong with what was held back is told by the next that waits.
  ~Repeated() {
    try {
      if (device_ != nullptr) device_->repeat(false);
    } catch (...) {
    }
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

 private:
  Device* device_;
};

}  // namespace moe
