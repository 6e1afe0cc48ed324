#include <cuda_runtime.h>

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

dim3 gridDim, blockDim;
uint3 blockIdx, threadIdx;

#ifdef __x86_64__
// Goes on where `to` stands on its stack, having kept where this one stands. swapcontext() does the
// same and asks the system for the signals each time, which takes longer than most threads run.
extern "C" void cuda_on_cpu_switch(void** from, void* to);
asm(R"(
.text
.globl cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_on_cpu_switch, .-cuda_on_cpu_switch
)");
#endif

namespace cuda_on_cpu {
namespace {

constexpr size_t kStack = size_t{64} << 10;
constexpr size_t kAddresses = size_t{64} << 30;  // reserved, not taken
constexpr size_t kPage = 4096;

// Device memory: with CUDA_ON_CPU_GUARD set closed to the host but while a kernel or a copy runs,
// which takes time.
const bool guarded = std::getenv("CUDA_ON_CPU_GUARD") != nullptr;

class Memory {
 public:
  Memory()
      : base_(static_cast<char*>(mmap(nullptr, kAddresses, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  void* take(size_t bytes) {
    bytes = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    if (used_ + bytes > kAddresses) return nullptr;
    char* p = base_ + used_;
    used_ += bytes;
    sizes_[p] = bytes;
    mprotect(p, bytes, PROT_READ | PROT_WRITE);
    std::memset(p, 0xFF, bytes);
    if (guarded) mprotect(p, bytes, PROT_NONE);
    return p;
  }
  void give(void* p) {
    const auto it = sizes_.find(static_cast<char*>(p));
    if (it == sizes_.end()) return;
    madvise(p, it->second, MADV_DONTNEED);
    sizes_.erase(it);
  }
  void open(bool yes) {
    for (const auto& [p, bytes] : sizes_)
      mprotect(p, bytes, yes ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 private:
  char* base_;
  size_t used_ = 0;
  std::map<char*, size_t> sizes_;
};
Memory& memory() {
  static Memory all;
  return all;
}
struct Open {
  Open() {
    if (guarded) memory().open(true);
  }
  ~Open() {
    if (guarded) memory().open(false);
  }
};

#ifdef __x86_64__
class Context {
 public:
  // Stands at the beginning of f, which does not return.
  void start(char* stack, void (*f)()) {
    auto* top =
        reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + kStack) & ~uintptr_t{15});
    *--top = nullptr;  // as if f had been called from here
    *--top = reinterpret_cast<void*>(f);
    at_ = top - 6;  // registers, whatever they hold
  }
  void go_to(Context& other) { cuda_on_cpu_switch(&at_, other.at_); }

 private:
  void* at_ = nullptr;
};
#else
class Context {
 public:
  void start(char* stack, void (*f)()) {
    getcontext(&at_);
    at_.uc_stack = {stack, 0, kStack};
    at_.uc_link = nullptr;
    makecontext(&at_, f, 0);
  }
  void go_to(Context& other) { swapcontext(&at_, &other.at_); }

 private:
  ucontext_t at_{};
};
#endif

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  uint3 index;
  bool done = false;
};

constexpr size_t kSlot = 32;  // bytes that a lane gives at once

struct Warp {
  char slot[32][kSlot];
  unsigned votes = 0, result = 0, arrived = 0, size = 0;
  uint64_t turn = 0;
};

struct Block {
  Context scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  size_t count = 0, current = 0, arrived = 0, alive = 0;
  uint64_t turn = 0;
  const std::function<void()>* thread = nullptr;
  std::vector<char> shared;
} block;

void yield() {
  Fiber& self = *block.fibers[block.current];
  self.context.go_to(block.scheduler);
}

void enter() {
  (*block.thread)();
  Fiber& self = *block.fibers[block.current];
  self.done = true;
  --block.alive;
  --block.warps[block.current / 32].size;
  self.context.go_to(block.scheduler);  // for good
}

Warp& warp() { return block.warps[block.current / 32]; }

void barrier_of_warp() {
  Warp& w = warp();
  const uint64_t turn = w.turn;
  ++w.arrived;
  while (w.turn == turn) {
    if (w.arrived >= w.size) {
      w.arrived = 0;
      ++w.turn;
      w.result = std::exchange(w.votes, 0);
    } else {
      yield();
    }
  }
}

void run_block() {
  for (size_t i = 0; i < block.count; ++i) {
    Fiber& f = *block.fibers[i];
    f.done = false;
    f.index.x = static_cast<unsigned>(i) % blockDim.x;
    f.index.y = static_cast<unsigned>(i) / blockDim.x % blockDim.y;
    f.index.z = static_cast<unsigned>(i) / blockDim.x / blockDim.y;
    f.context.start(f.stack.get(), enter);
  }
  block.arrived = 0;
  block.alive = block.count;
  while (block.alive > 0)
    for (size_t i = 0; i < block.count; ++i) {
      Fiber& f = *block.fibers[i];
      if (f.done) continue;
      block.current = i;
      threadIdx = f.index;
      block.scheduler.go_to(f.context);
    }
}

}  // namespace

void barrier_of_block() {
  const uint64_t turn = block.turn;
  ++block.arrived;
  while (block.turn == turn) {
    if (block.arrived >= block.alive) {
      block.arrived = 0;
      ++block.turn;
    } else {
      yield();
    }
  }
}

void exchange(void* out, const void* in, size_t bytes, unsigned from) {
  if (bytes > kSlot) std::abort();
  const size_t lane = block.current % 32;
  std::memcpy(warp().slot[lane], in, bytes);
  barrier_of_warp();
  std::memcpy(out, warp().slot[from], bytes);
  barrier_of_warp();
}

void all_lanes(void* out, const void* in, size_t bytes) {
  if (bytes > kSlot) std::abort();
  std::memcpy(warp().slot[block.current % 32], in, bytes);
  barrier_of_warp();
  for (size_t lane = 0; lane < 32; ++lane)
    std::memcpy(static_cast<char*>(out) + lane * bytes, warp().slot[lane], bytes);
  barrier_of_warp();
}

unsigned ballot(bool vote) {
  if (vote) warp().votes |= 1u << (block.current % 32);
  barrier_of_warp();
  const unsigned result = warp().result;
  barrier_of_warp();
  return result;
}

void* dynamic_shared() { return block.shared.data(); }

void run(dim3 grid, dim3 threads, size_t shared, const std::function<void()>& thread) {
  const Open open;
  gridDim = grid;
  blockDim = threads;
  block.count = size_t{threads.x} * threads.y * threads.z;
  while (block.fibers.size() < block.count) block.fibers.push_back(std::make_unique<Fiber>());
  block.thread = &thread;
  block.shared.assign(shared + 16, '\xFF');
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        block.warps.assign((block.count + 31) / 32, {});
        for (size_t i = 0; i < block.count; ++i) ++block.warps[i / 32].size;
        run_block();
      }
}

}  // namespace cuda_on_cpu

// NOLINTBEGIN: CUDA's own names
using namespace cuda_on_cpu;

const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : e == cudaErrorMemoryAllocation ? "out of memory" : "error";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  std::strcpy(p->name, "CUDA's kernels on the CPU");
  p->major = 8;
  p->minor = 0;
  p->multiProcessorCount = 2;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = *all = size_t{4} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = memory().take(bytes);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  memory().give(p);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = std::malloc(bytes);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  const Open open;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  const Open open;
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  *s = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
// NOLINTEND
