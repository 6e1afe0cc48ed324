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
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, int byte, size_t bytes) = 0;
  // Until all that was asked for is done; throws what went wrong with it.
  virtual void wait() = 0;

  // For the time of one op.
  virtual Arena& scratch() = 0;
};

}  // namespace moe
