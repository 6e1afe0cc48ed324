// What kernels and the functions that launch them share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ops/check.h"
#include "ops/cuda/functions.h"
#include "tensor/run.h"

namespace moe::ops::cuda {

constexpr unsigned kFull = 0xFFFFFFFFu;  // all lanes of a warp
constexpr int kWarp = 32;

// ---- host side ----------------------------------------------------------------------------------

// Throws what CUDA says, with what was asked for.
void check(cudaError_t error, const char* what);
// The one stream of the run's device: ops run in the order in which they are asked for.
cudaStream_t stream_of(const Run&);
int multiprocessors(const Run&);
// Of the device, times ten: 80, 90.
int compute_capability(const Run&);
// Bytes of shared memory that a block may have.
size_t most_shared(const Run&);

// kernel<<<blocks, threads, shared>>>(arguments), with what each argument takes.
struct Launch {
  const void* kernel;
  dim3 blocks, threads;
  size_t shared;
  std::span<void* const> arguments;
  std::span<const size_t> sizes;
};
void start(Run&, const Launch&);

// kernel<<<blocks, threads, shared bytes>>>(all...). Nothing happens where there are no blocks. The
// kernel may begin before those before it have ended (wait_for_before).
template <class... P, class... A>
void launch(Run& run, void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared, A&&... all) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
#ifdef MOE_CUDA_ON_CPU
  cudaLaunchConfig_t how{};
  how.gridDim = blocks;
  how.blockDim = threads;
  how.dynamicSmemBytes = shared;
  how.stream = stream_of(run);
  check(cudaLaunchKernelEx(&how, kernel, static_cast<P>(std::forward<A>(all))...), "a launch");
#else
  std::tuple<std::remove_cv_t<P>...> values(static_cast<P>(std::forward<A>(all))...);
  std::apply(
      [&](auto&... value) {
        void* const places[] = {&value...};
        constexpr size_t sizes[] = {sizeof(value)...};
        start(run, {reinterpret_cast<const void*>(kernel), blocks, threads, shared, places, sizes});
      },
      values);
#endif
}
// Where a launch takes more shared memory than it may without asking: all that a block may have,
// since a launch that was noted down before may need more than this one.
template <class... P>
void allow_shared(const Run& run, void (*kernel)(P...), size_t bytes) {
  if (bytes > size_t{48} << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(most_shared(run))),
          "shared memory");
}

// Whether the last launch wrote what begins at `p`, which may then not be read ahead of its end:
// for that who launched it has called note_written().
bool written_last(const Run&, const void* p);
void note_written(Run&, const void* p);

// Blocks of `size` that hold n.
inline unsigned blocks_for(int64_t n, int64_t size) {
  return static_cast<unsigned>((n + size - 1) / size);
}
// A grid that walks over n things in steps of its own size, `size` a block: no more blocks than
// keep the device busy.
inline unsigned walking_blocks(const Run& run, int64_t n, int64_t size) {
  const int64_t most = int64_t{multiprocessors(run)} * 16, need = (n + size - 1) / size;
  return static_cast<unsigned>(need < most ? need : most);
}

// f(T{}) with the type of float numbers that a dtype names.
template <class F>
void with_float(DType dtype, F&& f) {
  if (dtype == DType::bf16) f(bf16{});
  else f(float{});
}

// A list as kernels read it, for the time of an op: where it lies on the device already, else a
// copy there. The same list is brought once for all ops until somebody waits for the device.
const void* listed(Run&, const void* list, size_t bytes);
template <class T>
const T* on_device(Run& run, std::span<const T> list) {
  if (list.empty() || run.device->owns(list.data())) return list.data();
  return static_cast<const T*>(listed(run, list.data(), list.size_bytes()));
}
// Rewinds the device's scratch when an op returns: what is launched later comes later.
class Scratch {
 public:
  explicit Scratch(Run& run) : scope_(run.device->scratch()), arena_(run.device->scratch()) {}
  Tensor alloc(DType dtype, std::initializer_list<int64_t> shape) {
    return arena_.alloc(dtype, shape);
  }
  void* bytes(size_t count) { return arena_.alloc_bytes(count); }

 private:
  ArenaScope scope_;
  Arena& arena_;
};

// ---- what kernels take --------------------------------------------------------------------------

// A tensor's rows, `stride` numbers apart.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  Rows() = default;
  Rows(const Tensor& t)  // NOLINT: as a tensor is given
      : data(static_cast<T*>(t.data)),
        stride(t.empty() ? 0 : t.row_bytes / static_cast<int64_t>(sizeof(T))) {}
  __host__ __device__ T* row(int64_t r) const { return data + r * stride; }
  __host__ __device__ bool empty() const { return data == nullptr; }
};

// Numbers that a thread moves at once, 16 bytes at a time; memory has to be aligned to 16.
constexpr int kStep = 8;
template <class T>
struct alignas(16) Pack {
  static constexpr int kNumbers = static_cast<int>(16 / sizeof(T));
  T x[kNumbers];
};
// Whether all can be walked through in steps, from the first number to the last: no gaps.
inline bool in_steps(std::initializer_list<Tensor> all) {
  for (const Tensor& t : all)
    if (!t.dense() || t.numel() % kStep != 0 || reinterpret_cast<uintptr_t>(t.data) % 16 != 0)
      return false;
  return true;
}
// Whether each row can be: its columns and the distance between rows are whole steps.
inline bool rows_in_steps(std::initializer_list<Tensor> all) {
  for (const Tensor& t : all)
    if (t.cols() % kStep != 0 || t.row_bytes % 16 != 0 ||
        reinterpret_cast<uintptr_t>(t.data) % 16 != 0)
      return false;
  return true;
}

// ---- device side --------------------------------------------------------------------------------
// Of compilers that know kernels, or the tests' (tests/support/cuda_on_cpu).
#if defined(__CUDACC__) || defined(MOE_CUDA_ON_CPU)

// A kernel is launched while the one before it may still run. Behind wait_for_before() that one and
// all before it have ended: what they write is read, and anything written, only there; what was
// there before the last launch, as weights, may be read before. let_next_begin() does the same for
// whoever comes next; called behind the wait, so that never more than one kernel waits. Every
// thread of every kernel has to pass the wait. (PTX ISA, griddepcontrol; before 9.0 nothing begins
// ahead.)
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first statement of a kernel that reads nothing ahead.
__device__ inline void begin_in_turn() {
  wait_for_before();
  let_next_begin();
}

// Asks for bytes that do not change, as weights, while the kernels before still run. `thread` of
// `threads`.
__device__ inline void ask_ahead([[maybe_unused]] const void* p, int64_t bytes, unsigned thread,
                                 unsigned threads) {
  constexpr int64_t kLineBytes = 128;
  for (int64_t at = thread * kLineBytes; at < bytes; at += threads * kLineBytes) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p) + at));
#endif
  }
}

template <class T>
__device__ inline float load(const T* p) {
  return to_f32(*p);
}
__device__ inline void store(float* p, float x) { *p = x; }
__device__ inline void store(bf16* p, float x) { *p = to_bf16(x); }

template <class T>
__device__ inline void load_step(float* to, const T* from) {
#pragma unroll
  for (int p = 0; p < kStep / Pack<T>::kNumbers; ++p) {
    const Pack<T> pack = reinterpret_cast<const Pack<T>*>(from)[p];
#pragma unroll
    for (int i = 0; i < Pack<T>::kNumbers; ++i) to[p * Pack<T>::kNumbers + i] = to_f32(pack.x[i]);
  }
}
template <class T>
__device__ inline void store_step(T* to, const float* from) {
#pragma unroll
  for (int p = 0; p < kStep / Pack<T>::kNumbers; ++p) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::kNumbers; ++i) store(&pack.x[i], from[p * Pack<T>::kNumbers + i]);
    reinterpret_cast<Pack<T>*>(to)[p] = pack;
  }
}

__device__ inline float warp_sum(float x) {
  for (int by = kWarp / 2; by > 0; by /= 2) x += __shfl_xor_sync(kFull, x, by);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int by = kWarp / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(kFull, x, by));
  return x;
}
// Of a block of whole warps, for all its threads; `shared` [33] floats. Always in the same order.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += shared[w];
  return sum;
}
__device__ inline float block_max(float x, float* shared) {
  x = warp_max(x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  float most = shared[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) most = fmaxf(most, shared[w]);
  return most;
}

// The group that row r belongs to: the last e with offsets[e] <= r.  offsets [E+1]
__device__ inline int group_of(const int64_t* offsets, int groups, int64_t r) {
  int low = 0, high = groups - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= r) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Memory of the size that a launch gave, shared by a block.
__device__ inline void* dynamic_shared() {
#ifdef MOE_CUDA_ON_CPU
  return cuda_on_cpu::dynamic_shared();
#else
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#endif
}

#endif

}  // namespace moe::ops::cuda
