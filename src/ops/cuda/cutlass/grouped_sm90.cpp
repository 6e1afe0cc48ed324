// The entry points of the grouped products: checks, and who begins where. The kernels are in
// grouped_sm90_kernel.h.
#include "ops/cuda/gemm/grouped_sm90.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "ops/cuda/cutlass/grouped_sm90_parts.h"

namespace moe::ops::cuda {
namespace {

using sm90::kRows;
using sm90::Operand;
using sm90::Setup;

constexpr size_t kAligned = 256;

struct Device {
  bool hopper;
  int sms;
};

Device ask_device(int id) {
  int major = 0, minor = 0, sms = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, id) != cudaSuccess)
    return {false, 0};
  return {major == 9 && minor == 0, sms};
}

// Of the current device; all are asked once.
Device current_device() {
  static const std::vector<Device> devices = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    std::vector<Device> found;
    for (int id = 0; id < count; ++id) found.push_back(ask_device(id));
    return found;
  }();
  int id = 0;
  if (devices.empty() || cudaGetDevice(&id) != cudaSuccess) return {false, 0};
  return devices[static_cast<size_t>(id)];
}

// Hands out the parts of a workspace; without one it counts their bytes.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(size_t bytes) {
    void* part = base_ == nullptr ? nullptr : base_ + taken_;
    taken_ += (bytes + kAligned - 1) / kAligned * kAligned;
    return static_cast<T*>(part);
  }
  size_t taken() const { return taken_; }

 private:
  char* base_;
  size_t taken_ = 0;
};

sm90::Tables take_tables(Parts& parts, int64_t groups) {
  const auto e = static_cast<size_t>(groups);
  sm90::Tables t{};
  t.shapes = parts.take<int32_t>(3 * e * sizeof(int32_t));
  for (void*** pointers : {&t.a, &t.b, &t.d}) *pointers = parts.take<void*>(e * sizeof(void*));
  for (int64_t** distances : {&t.lda, &t.ldb, &t.ldd})
    *distances = parts.take<int64_t>(e * sizeof(int64_t));
  return t;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

void check(const Grouped& g) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (!grouped_fits(g.out, g.in))
    fail(
        "grouped products want a GPU of compute capability 9.0 and O and I in multiples of 8, not "
        "O = {}, I = {}",
        g.out, g.in);
  if (g.groups < 0 || g.groups > most || g.rows < 0 || g.out > most || g.in > most)
    fail("grouped products of {} groups, {} x {}, are too large", g.groups, g.out, g.in);
}

void check(const char* name, const void* base, int64_t distance, int64_t least, int64_t size) {
  if (aligned(base) && distance >= least && distance * size % 16 == 0) return;
  fail(
      "grouped product: {} wants an address and a distance of rows in multiples of 16 bytes, the "
      "distance at least {} numbers, not {}",
      name, least, distance);
}

Operand rows_of(const void* base, int64_t distance, int64_t size) {
  return {base, 0, distance * size, distance};
}
// One matrix [O, I] a group.
Operand matrices(const Grouped& g, const void* base, int64_t size) {
  return {base, g.out * g.in * size, 0, g.in};
}

// Fills the tables; what remains is the launch.
sm90::Launch prepare(cudaStream_t stream, const Grouped& g, Setup setup, bool accumulate,
                     void* workspace) {
  Parts parts(workspace);
  sm90::Tables tables = take_tables(parts, g.groups);
  tables.scratch = parts.take<void>(0);
  setup.offsets = g.offsets;
  setup.groups = static_cast<int>(g.groups);
  sm90::fill_tables(stream, setup, tables);
  return {stream, setup.groups, current_device().sms, accumulate, tables};
}

}  // namespace

void sm90::fail_launch(const char* why) { fail("a grouped product on the GPU failed: {}", why); }

bool grouped_fits(int64_t out, int64_t in) {
  return out > 0 && in > 0 && out % 8 == 0 && in % 8 == 0 && current_device().hopper;
}

size_t grouped_workspace(const Grouped& g) {
  const int groups = static_cast<int>(g.groups), sms = current_device().sms;
  Parts parts(nullptr);
  take_tables(parts, g.groups);
  parts.take<void>(std::max({sm90::forward_scratch(groups, sms), sm90::dx_scratch(groups, sms),
                             sm90::dw_scratch(groups, sms)}));
  return parts.taken();
}

void grouped_forward(cudaStream_t stream, const Grouped& g, void* y, bool y_f32, int64_t ldy,
                     const void* x, int64_t ldx, const void* w, bool accumulate, void* workspace) {
  check(g);
  if (g.groups == 0 || g.rows == 0) return;
  const int64_t size = y_f32 ? 4 : 2;
  check("y", y, ldy, g.out, size);
  check("x", x, ldx, g.in, 2);
  check("w", w, g.in, g.in, 2);
  Setup setup{};
  setup.m = kRows, setup.n = static_cast<int32_t>(g.out), setup.k = static_cast<int32_t>(g.in);
  setup.a = rows_of(x, ldx, 2), setup.b = matrices(g, w, 2), setup.d = rows_of(y, ldy, size);
  sm90::launch_forward(prepare(stream, g, setup, accumulate, workspace), y_f32);
}

void grouped_dx(cudaStream_t stream, const Grouped& g, void* dx, bool dx_f32, int64_t lddx,
                const void* dy, int64_t lddy, const void* w, bool accumulate, void* workspace) {
  check(g);
  if (g.groups == 0 || g.rows == 0) return;
  const int64_t size = dx_f32 ? 4 : 2;
  check("dx", dx, lddx, g.in, size);
  check("dy", dy, lddy, g.out, 2);
  check("w", w, g.in, g.in, 2);
  Setup setup{};
  setup.m = kRows, setup.n = static_cast<int32_t>(g.in), setup.k = static_cast<int32_t>(g.out);
  setup.a = rows_of(dy, lddy, 2), setup.b = matrices(g, w, 2), setup.d = rows_of(dx, lddx, size);
  sm90::launch_dx(prepare(stream, g, setup, accumulate, workspace), dx_f32);
}

void grouped_dw(cudaStream_t stream, const Grouped& g, float* dw, const void* dy, int64_t lddy,
                const void* x, int64_t ldx, bool accumulate, void* workspace) {
  check(g);
  if (g.groups == 0) return;
  check("dw", dw, g.in, g.in, 4);
  check("dy", dy, lddy, g.out, 2);
  check("x", x, ldx, g.in, 2);
  if (!accumulate)
    sm90::zero_empty(stream, dw, g.out * g.in, g.offsets, static_cast<int>(g.groups));
  if (g.rows == 0) return;
  Setup setup{};
  setup.m = static_cast<int32_t>(g.out), setup.n = static_cast<int32_t>(g.in), setup.k = kRows;
  setup.a = rows_of(dy, lddy, 2), setup.b = rows_of(x, ldx, 2), setup.d = matrices(g, dw, 4);
  sm90::launch_dw(prepare(stream, g, setup, accumulate, workspace));
}

}  // namespace moe::ops::cuda
