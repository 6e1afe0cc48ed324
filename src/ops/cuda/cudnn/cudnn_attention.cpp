// Attention by cuDNN (cudnn_attention.h). Its graphs are described with cudnn-frontend and built
// once for a shape; running one is a look-up and a few launches. The backward is the deterministic
// one, which on Hopper writes the gradient of the scores, [H,T,T] in bf16, to memory and sums dq
// from there: it goes over the batch in parts that keep this below kScoresLimit.
#include "ops/cuda/cudnn/cudnn_attention.h"

#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "ops/cuda/cudnn/lse_order.h"

// Of cudnn-frontend, only an engine of other operations calls NVRTC: weak, its functions need not
// be linked. The graphs are never written as JSON.
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace moe::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using TensorRef = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr int64_t kScoresLimit = int64_t{1} << 29;  // bytes; see gradient_part()
constexpr size_t kAlign = 256;
constexpr int64_t kBf16 = 2;  // bytes

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };
using Pointers = std::unordered_map<int64_t, void*>;

// What one graph works on: whole sequences, or some heads of one. Rows keep the batch's width.
struct Part {
  int64_t sequences, heads, kv_heads;
};

struct Plan {
  fe::graph::Graph graph;
  size_t workspace = 0;  // bytes
};

// Who built a plan asks for: device, backward, part, shape.
using Key = std::tuple<int, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t, float>;

// cuDNN's handles and built plans. A handle belongs to a device and carries the stream of the call
// that uses it, so whoever touches one holds the mutex.
struct Library {
  std::mutex mutex;
  std::map<int, cudnnHandle_t> handles;  // by device
  std::map<Key, std::unique_ptr<Plan>> plans;
};

// Never destroyed: when the process ends, CUDA may have been taken down before it.
Library& library() {
  static auto* one = new Library;
  return *one;
}

void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) fail("{}: CUDA says {}", what, cudaGetErrorString(status));
}

void check_cudnn(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char last[512] = "";
  cudnnGetLastErrorString(last, sizeof last);
  fail("{}: cuDNN says {} {}", what, cudnnGetErrorString(status), last);
}

void check_graph(fe::error_t status, std::string_view what, const FlashShape& s, bool backward) {
  if (status.is_good()) return;
  fail(
      "cuDNN {} cannot {} the {} of attention over {} sequences of {} tokens with {} query and {} "
      "key heads, {} and {} wide, window {}: {}",
      cudnnGetVersion(), what, backward ? "backward" : "forward", s.sequences, s.length, s.heads,
      s.kv_heads, s.key_width, s.value_width, s.window, status.get_message());
}

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "no device for attention");
  return device;
}

// The caller holds the mutex.
cudnnHandle_t handle_of(Library& lib, int device) {
  cudnnHandle_t& handle = lib.handles[device];
  if (handle == nullptr) check_cudnn(cudnnCreate(&handle), "cannot start cuDNN");
  return handle;
}

// [S',heads,T,width] within rows of `row_heads` heads.
fe::graph::Tensor_attributes rows(const char* name, Uid uid, const FlashShape& s, const Part& part,
                                  int64_t heads, int64_t row_heads, int64_t width) {
  const int64_t row = row_heads * width;
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({part.sequences, heads, s.length, width})
      .set_stride({s.length * row, width, row, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

// lse as cuDNN keeps it, [S',H',T,1]. Before 9.26 its backward reads no other order.
fe::graph::Tensor_attributes stats(const FlashShape& s, const Part& part) {
  return fe::graph::Tensor_attributes()
      .set_name("stats")
      .set_uid(kStats)
      .set_dim({part.sequences, part.heads, s.length, 1})
      .set_stride({part.heads * s.length, s.length, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

// What forward and backward share: scale, and the band of keys that a query sees.
template <class Options>
Options masked(const char* name, const FlashShape& s) {
  Options options;
  options.set_name(name).set_attn_scale(s.scale);
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (s.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s.window));
  return options;
}

struct Inputs {
  TensorRef q, k, v;
};

Inputs inputs(fe::graph::Graph& graph, const FlashShape& s, const Part& part) {
  return {graph.tensor(rows("q", kQ, s, part, part.heads, s.heads, s.key_width)),
          graph.tensor(rows("k", kK, s, part, part.kv_heads, s.kv_heads, s.key_width)),
          graph.tensor(rows("v", kV, s, part, part.kv_heads, s.kv_heads, s.value_width))};
}

// Makes `given`, an output of the graph, what `wanted` describes.
void place(const TensorRef& given, const fe::graph::Tensor_attributes& wanted) {
  given->set_output(true).set_uid(wanted.get_uid()).set_data_type(wanted.get_data_type());
  given->set_dim(wanted.get_dim()).set_stride(wanted.get_stride());
}

void describe_forward(fe::graph::Graph& graph, const FlashShape& s, const Part& part) {
  const Inputs in = inputs(graph, s, part);
  auto options = masked<fe::graph::SDPA_attributes>("attention", s);
  options.set_generate_stats(true);
  const auto [o, lse] = graph.sdpa(in.q, in.k, in.v, options);
  place(o, rows("o", kO, s, part, part.heads, s.heads, s.value_width));
  place(lse, stats(s, part));
}

void describe_backward(fe::graph::Graph& graph, const FlashShape& s, const Part& part) {
  const Inputs in = inputs(graph, s, part);
  const auto of_value = [&](const char* name, Uid uid) {
    return graph.tensor(rows(name, uid, s, part, part.heads, s.heads, s.value_width));
  };
  const TensorRef o = of_value("o", kO), d_o = of_value("do", kDO);
  const TensorRef lse = graph.tensor(stats(s, part));
  auto options = masked<fe::graph::SDPA_backward_attributes>("attention_backward", s);
  options.set_deterministic_algorithm(true);
  const auto [dq, dk, dv] = graph.sdpa_backward(in.q, in.k, in.v, o, d_o, lse, options);
  place(dq, rows("dq", kDQ, s, part, part.heads, s.heads, s.key_width));
  place(dk, rows("dk", kDK, s, part, part.kv_heads, s.kv_heads, s.key_width));
  place(dv, rows("dv", kDV, s, part, part.kv_heads, s.kv_heads, s.value_width));
}

// A plan that is not built.
std::unique_ptr<Plan> described(const FlashShape& s, const Part& part, bool backward) {
  auto plan = std::make_unique<Plan>();
  plan->graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (backward) {
    describe_backward(plan->graph, s, part);
  } else {
    describe_forward(plan->graph, s, part);
  }
  return plan;
}

// Compiling takes some tenths of a second. Prompts are of any length, so the forward's kernels are
// compiled once for all numbers and lengths of sequences, where the device's engine knows how to;
// no backward does. The caller holds the mutex.
Plan& plan_for(Library& lib, const FlashShape& s, const Part& part, bool backward) {
  const int device = current_device();
  const auto key_of = [&](int64_t sequences, int64_t length) {
    return Key{device,     backward, sequences,   part.heads,    part.kv_heads, s.heads,
               s.kv_heads, length,   s.key_width, s.value_width, s.window,      s.scale};
  };
  std::unique_ptr<Plan>& known = lib.plans[key_of(part.sequences, s.length)];
  if (known != nullptr) return *known;
  const cudnnHandle_t handle = handle_of(lib, device);
  const std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A};
  std::unique_ptr<Plan> plan = described(s, part, backward);
  check_graph(plan->graph.build(handle, modes), "plan", s, backward);
  int64_t bytes = 0;
  check_graph(plan->graph.get_workspace_size(bytes), "size", s, backward);
  plan->workspace = static_cast<size_t>(bytes);
  known = std::move(plan);
  return *known;
}

// One plan for a window that hides nothing and for none.
FlashShape plain(FlashShape s) {
  if (s.window >= s.length) s.window = 0;
  return s;
}

Part whole(const FlashShape& s) { return {s.sequences, s.heads, s.kv_heads}; }

int64_t divisor_up_to(int64_t n, int64_t most) {
  int64_t d = std::clamp<int64_t>(most, 1, n);
  while (n % d != 0) --d;
  return d;
}

// As much of the batch as keeps the gradient of the scores, which cuDNN pads to 64 queries by 128
// keys, below the limit: whole sequences, else key heads of one sequence with their queries'.
Part gradient_part(const FlashShape& s) {
  const int64_t queries = (s.length + 63) / 64 * 64, keys = (s.length + 127) / 128 * 128;
  const int64_t group = s.heads / s.kv_heads;
  const int64_t groups = kScoresLimit / (group * queries * keys * kBf16);
  if (groups >= s.kv_heads) {
    return {divisor_up_to(s.sequences, groups / s.kv_heads), s.heads, s.kv_heads};
  }
  const int64_t kv_heads = divisor_up_to(s.kv_heads, groups);
  return {1, kv_heads * group, kv_heads};
}

// What the workspace begins with: lse as [S,H,T].
size_t stats_bytes(const FlashShape& s) {
  const size_t bytes = static_cast<size_t>(s.sequences * s.heads * s.length) * sizeof(float);
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

void* at(const void* base, int64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(base)) + bytes;  // cuDNN's are all void*
}

}  // namespace

bool flash_fits(const FlashShape& s) {
  const auto width_fits = [](int64_t width) { return width > 0 && width <= 128 && width % 8 == 0; };
  if (s.sequences < 1 || s.length < 2 || s.window < 0) return false;
  if (s.kv_heads < 1 || s.heads < 1 || s.heads % s.kv_heads != 0) return false;
  if (!width_fits(s.key_width) || !width_fits(s.value_width)) return false;
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  // 9.10.0 and 9.10.1 give wrong results; a deterministic backward on Blackwell came with 9.18.
  static const size_t version = cudnnGetVersion();
  return (major == 8 || major == 9) ? version >= 91002 : major == 10 && version >= 91800;
}

size_t flash_forward_workspace(const FlashShape& shape) {
  const FlashShape s = plain(shape);
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  return stats_bytes(s) + plan_for(lib, s, whole(s), false).workspace;
}

void flash_forward(cudaStream_t stream, const FlashShape& shape, void* o, float* lse, const void* q,
                   const void* k, const void* v, void* workspace) {
  const FlashShape s = plain(shape);
  auto* stats = static_cast<float*>(workspace);
  {
    Library& lib = library();
    const std::lock_guard lock(lib.mutex);
    Plan& plan = plan_for(lib, s, whole(s), false);
    const cudnnHandle_t handle = handle_of(lib, current_device());
    check_cudnn(cudnnSetStream(handle, stream), "attention's stream");
    Pointers pointers{{kQ, at(q, 0)}, {kK, at(k, 0)}, {kV, at(v, 0)}, {kO, o}, {kStats, stats}};
    void* scratch = at(workspace, static_cast<int64_t>(stats_bytes(s)));
    check_graph(plan.graph.execute(handle, pointers, scratch), "run", s, false);
  }
  check_cuda(lse_by_rows(stream, lse, stats, s.sequences, s.length, s.heads), "attention's lse");
}

size_t flash_backward_workspace(const FlashShape& shape) {
  const FlashShape s = plain(shape);
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  return stats_bytes(s) + plan_for(lib, s, gradient_part(s), true).workspace;
}

void flash_backward(cudaStream_t stream, const FlashShape& shape, void* dq, void* dk, void* dv,
                    const void* do_, const void* q, const void* k, const void* v, const void* o,
                    const float* lse, void* workspace) {
  const FlashShape s = plain(shape);
  const Part part = gradient_part(s);
  auto* stats = static_cast<float*>(workspace);
  check_cuda(lse_by_heads(stream, stats, lse, s.sequences, s.length, s.heads), "attention's lse");
  void* scratch = at(workspace, static_cast<int64_t>(stats_bytes(s)));
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  Plan& plan = plan_for(lib, s, part, true);
  const cudnnHandle_t handle = handle_of(lib, current_device());
  check_cudnn(cudnnSetStream(handle, stream), "attention's stream");
  for (int64_t b = 0; b < s.sequences; b += part.sequences) {
    for (int64_t g = 0; g < s.kv_heads; g += part.kv_heads) {
      const int64_t row = b * s.length, h = g / part.kv_heads * part.heads;
      const auto of_query = [&](const void* base, int64_t width) {
        return at(base, (row * s.heads + h) * width * kBf16);
      };
      const auto of_key = [&](const void* base, int64_t width) {
        return at(base, (row * s.kv_heads + g) * width * kBf16);
      };
      const int64_t c = s.key_width, cv = s.value_width;
      Pointers pointers{{kQ, of_query(q, c)},
                        {kK, of_key(k, c)},
                        {kV, of_key(v, cv)},
                        {kO, of_query(o, cv)},
                        {kDO, of_query(do_, cv)},
                        {kDQ, of_query(dq, c)},
                        {kDK, of_key(dk, c)},
                        {kDV, of_key(dv, cv)},
                        {kStats, stats + (b * s.heads + h) * s.length}};
      check_graph(plan.graph.execute(handle, pointers, scratch), "run", s, true);
    }
  }
}

}  // namespace moe::ops::cuda
