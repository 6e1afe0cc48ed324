// The CUDA device: its memory, its one stream, and what goes between it and the CPU.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "core/error.h"
#include "core/memory.h"
#include "ops/cuda/kernel.h"
#include "ops/devices.h"
#include "tensor/arena.h"

namespace moe::ops {
namespace {

using cuda::check;

class Cuda final : public Device {
 public:
  Cuda() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      fail("there is no CUDA device here, or no driver for it; nvidia-smi shows what there is");
    check(cudaGetDeviceProperties(&properties_, 0), "the properties of the device");
    check(cudaStreamCreate(&stream_), "a stream");
    void* room = nullptr;
    check(cudaMallocHost(&room, kRoom), "page-locked memory");
    room_ = static_cast<char*>(room);
    scratch_ = std::make_unique<Arena>(size_t{32} << 20, this);
  }

  std::string name() const override { return properties_.name; }
  size_t available() const override {
    size_t free = 0, all = 0;
    check(cudaMemGetInfo(&free, &all), "the free memory");
    return free;
  }
  void* take(size_t bytes) override {
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(message(
          "out of memory on {}: {} MiB more were needed, {} MiB are in use and {} MiB free; use "
          "shorter texts or a smaller model, and in training a smaller @batch or @recompute",
          name(), bytes >> 20, taken_ >> 20, available() >> 20));
    }
    check(error, "memory of the device");
    taken_ += bytes;
    ranges_[static_cast<const char*>(p)] = bytes;
    return p;
  }
  void give(void* p) noexcept override {
    const auto range = ranges_.find(static_cast<const char*>(p));
    if (range == ranges_.end()) return;
    taken_ -= range->second;
    ranges_.erase(range);
    cudaFree(p);
  }
  bool owns(const void* place) const override {
    const auto* p = static_cast<const char*>(place);
    auto range = ranges_.upper_bound(p);
    if (range == ranges_.begin()) return false;
    --range;
    return p < range->first + range->second;
  }

  // Small things wait in page-locked memory, so that nobody waits for them.
  void upload(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    if (bytes > kRoom / 4) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
            "a copy to the device");
      return wait();
    }
    if (room_used_ + bytes > kRoom) {
      wait();
      room_used_ = 0;
    }
    char* staged = room_ + room_used_;
    room_used_ += (bytes + 63) / 64 * 64;
    std::memcpy(staged, from, bytes);
    check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream_),
          "a copy to the device");
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "a copy from the device");
    wait();
  }
  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
          "a copy on the device");
  }
  void fill(void* to, int byte, size_t bytes) override {
    check(cudaMemsetAsync(to, byte, bytes, stream_), "a fill of memory");
  }
  void wait() override { check(cudaStreamSynchronize(stream_), "the work of the device"); }
  Arena& scratch() override { return *scratch_; }

  cudaStream_t stream() const { return stream_; }
  const cudaDeviceProp& properties() const { return properties_; }

 private:
  static constexpr size_t kRoom = size_t{64} << 20;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::map<const char*, size_t> ranges_;
  size_t taken_ = 0;
  char* room_ = nullptr;
  size_t room_used_ = 0;
  std::unique_ptr<Arena> scratch_;
};

const Cuda& of(const Run& run) { return static_cast<const Cuda&>(*run.device); }

}  // namespace

// Never taken down: what holds its memory may outlive any order of destructors.
Device& cuda_device() {
  static Cuda* device = new Cuda;
  return *device;
}

namespace cuda {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail("CUDA failed at {}: {}", what, cudaGetErrorString(error));
}
cudaStream_t stream_of(const Run& run) { return of(run).stream(); }
int multiprocessors(const Run& run) { return of(run).properties().multiProcessorCount; }
int compute_capability(const Run& run) {
  return 10 * of(run).properties().major + of(run).properties().minor;
}

}  // namespace cuda
}  // namespace moe::ops
