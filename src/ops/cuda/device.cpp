// The CUDA device: its memory, its one stream, and what goes between it and the CPU.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "ops/cuda/graphs/launches.h"
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
    check(cudaMallocHost(&room, kBroughtRoom), "page-locked memory");
    brought_ = static_cast<char*>(room);
    check(cudaMallocHost(&room, kListRoom), "page-locked memory");
    lists_here_ = static_cast<char*>(room);
    lists_there_ = static_cast<char*>(take(kListRoom));
    launches_ = cuda::launches_on(stream_, properties_.major >= 9);
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
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()),
            "a copy to the device");
      return await();
    }
    if (room_used_ + bytes > kRoom) await(), room_used_ = 0;
    char* staged = room_ + room_used_;
    room_used_ += (bytes + 63) / 64 * 64;
    std::memcpy(staged, from, bytes);
    check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream()),
          "a copy to the device");
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    const bool staged = room_used_ + bytes <= kRoom;
    void* there = staged ? room_ + room_used_ : to;
    check(cudaMemcpyAsync(there, from, bytes, cudaMemcpyDeviceToHost, stream()),
          "a copy from the device");
    wait();
    if (staged) std::memcpy(to, there, bytes);
  }
  const void* bring(const void* from, size_t bytes) override {
    if (brought_used_ + bytes > kBroughtRoom) return nullptr;
    char* to = brought_ + brought_used_;
    brought_used_ += (bytes + 63) / 64 * 64;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()),
          "a copy from the device");
    return to;
  }
  void forget_brought() noexcept override { brought_used_ = 0; }
  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()),
          "a copy on the device");
  }
  void fill(void* to, int byte, size_t bytes) override {
    check(cudaMemsetAsync(to, byte, bytes, stream()), "a fill of memory");
  }
  void wait() override {
    await();
    room_used_ = 0;
    lists_.clear();
    lists_used_ = 0;
    if (launches_) launches_->begin_again();
  }
  void repeat(bool on) override {
    if (launches_) launches_->repeat(on);
  }
  Arena& scratch() override { return *scratch_; }

  // For work that is asked for behind all kernels so far.
  cudaStream_t stream() {
    if (launches_) launches_->start_held();
    return stream_;
  }
  void start(const cuda::Launch& launch) {
    launches_->add(launch);
    written_ = nullptr;
  }
  void note_written(const void* p) { written_ = p; }
  bool written_last(const void* p) const { return p == written_; }
  const void* listed(const void* list, size_t bytes) {
    for (const List& known : lists_)
      if (known.bytes == bytes && std::memcmp(lists_here_ + known.at, list, bytes) == 0)
        return lists_there_ + known.at;
    if (lists_.size() == kMostLists || lists_used_ + bytes > kListRoom) {
      void* there = scratch_->alloc_bytes(bytes);
      upload(there, list, bytes);
      return there;
    }
    const List made{lists_used_, bytes};
    lists_used_ += (bytes + 255) / 256 * 256;
    lists_.push_back(made);
    std::memcpy(lists_here_ + made.at, list, bytes);
    check(cudaMemcpyAsync(lists_there_ + made.at, lists_here_ + made.at, bytes,
                          cudaMemcpyHostToDevice, stream()),
          "a copy to the device");
    return lists_there_ + made.at;
  }
  const cudaDeviceProp& properties() const { return properties_; }

 private:
  // Lists stay where they are: an op may be about to read them.
  void await() { check(cudaStreamSynchronize(stream()), "the work of the device"); }

  struct List {
    size_t at, bytes;
  };
  static constexpr size_t kRoom = size_t{64} << 20, kListRoom = size_t{4} << 20,
                          kBroughtRoom = size_t{4} << 20, kMostLists = 64;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::map<const char*, size_t> ranges_;
  size_t taken_ = 0;
  char* room_ = nullptr;
  size_t room_used_ = 0;
  char* brought_ = nullptr;
  size_t brought_used_ = 0;
  // Lists that were brought since somebody waited, here and there at the same place.
  char *lists_here_ = nullptr, *lists_there_ = nullptr;
  std::vector<List> lists_;
  size_t lists_used_ = 0;
  const void* written_ = nullptr;  // by the last launch
  std::unique_ptr<cuda::Launches> launches_;
  std::unique_ptr<Arena> scratch_;
};

Cuda& of(const Run& run) { return static_cast<Cuda&>(*run.device); }

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
void start(Run& run, const Launch& launch) { of(run).start(launch); }
void note_written(Run& run, const void* p) { of(run).note_written(p); }
bool written_last(const Run& run, const void* p) { return of(run).written_last(p); }
const void* listed(Run& run, const void* list, size_t bytes) { return of(run).listed(list, bytes); }
int multiprocessors(const Run& run) { return of(run).properties().multiProcessorCount; }
int compute_capability(const Run& run) {
  return 10 * of(run).properties().major + of(run).properties().minor;
}
// Devices of 8.0 and 9.0 have more than their kin.
size_t most_shared(const Run& run) {
  const int capability = compute_capability(run);
  return size_t{capability >= 90 && capability < 120 ? 227u : capability == 80 ? 163u : 99u} << 10;
}

}  // namespace cuda
}  // namespace moe::ops
