#include "ops/cuda/graphs/launches.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace moe::ops::cuda {
namespace {

// Kernels of a graph: as many as the step has started before, so that the device has work soon and
// while the next are noted down.
constexpr size_t kFewest = 8, kMost = 128;
// Shapes that are kept of each graph of a step.
constexpr size_t kShapes = 4;

void launch_now(cudaStream_t stream, const Launch& launch, bool overlapped) {
  cudaLaunchConfig_t how{};
  how.gridDim = launch.blocks;
  how.blockDim = launch.threads;
  how.dynamicSmemBytes = launch.shared;
  how.stream = stream;
  cudaLaunchAttribute ahead{};
  ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  ahead.val.programmaticStreamSerializationAllowed = 1;
  if (overlapped) how.attrs = &ahead, how.numAttrs = 1;
  check(cudaLaunchKernelExC(&how, launch.kernel, const_cast<void**>(launch.arguments.data())),
        "a launch");
}

// Launches one after another, with copies of their arguments.
class Noted {
 public:
  struct One {
    const void* kernel;
    dim3 blocks, threads;
    size_t shared;
    size_t first, end;  // its arguments in `at_`
    size_t from, to;    // their bytes
  };

  size_t size() const { return all_.size(); }
  const One& operator[](size_t i) const { return all_[i]; }
  void clear() {
    all_.clear(), at_.clear();
    used_ = 0;
  }
  void add(const Launch& launch) {
    One one{launch.kernel, launch.blocks, launch.threads, launch.shared,
            at_.size(),    at_.size(),    used_,          used_};
    for (size_t i = 0; i < launch.sizes.size(); ++i) {
      used_ = (used_ + kAlign - 1) / kAlign * kAlign;
      if (used_ + launch.sizes[i] > bytes_.size()) bytes_.resize(2 * (used_ + launch.sizes[i]));
      std::memcpy(bytes_.data() + used_, launch.arguments[i], launch.sizes[i]);
      at_.push_back(used_);
      used_ += launch.sizes[i];
    }
    // what lies between arguments is compared as well
    const size_t to = (used_ + kAlign - 1) / kAlign * kAlign;
    if (to > bytes_.size()) bytes_.resize(2 * to);
    used_ = to;
    one.end = at_.size(), one.to = used_;
    all_.push_back(one);
  }
  bool has_shape_of(const Noted& other) const {
    return std::ranges::equal(all_, other.all_, [](const One& a, const One& b) {
      return a.kernel == b.kernel && a.to - a.from == b.to - b.from;
    });
  }
  bool same(const Noted& other, size_t i) const {
    const One &a = all_[i], &b = other.all_[i];
    const auto equal = [](dim3 x, dim3 y) { return x.x == y.x && x.y == y.y && x.z == y.z; };
    return equal(a.blocks, b.blocks) && equal(a.threads, b.threads) && a.shared == b.shared &&
           std::memcmp(bytes_.data() + a.from, other.bytes_.data() + b.from, a.to - a.from) == 0;
  }
  // What CUDA wants to know of one; `places` holds its arguments.
  cudaKernelNodeParams parameters(size_t i, std::vector<void*>& places) {
    const One& one = all_[i];
    places.clear();
    for (size_t a = one.first; a < one.end; ++a) places.push_back(bytes_.data() + at_[a]);
    cudaKernelNodeParams params{};
    params.func = const_cast<void*>(one.kernel);
    params.gridDim = one.blocks;
    params.blockDim = one.threads;
    params.sharedMemBytes = static_cast<unsigned>(one.shared);
    params.kernelParams = places.data();
    return params;
  }

 private:
  static constexpr size_t kAlign = 16;
  std::vector<One> all_;
  std::vector<size_t> at_;  // arguments' places in bytes_
  std::vector<char> bytes_;
  size_t used_ = 0;
};

// A chain of kernels that can be started as one.
class Graph {
 public:
  Graph(Noted&& noted, bool overlapped) : noted_(std::move(noted)) {
    check(cudaGraphCreate(&graph_, 0), "a graph");
    std::vector<void*> places;
    for (size_t i = 0; i < noted_.size(); ++i) {
      const cudaKernelNodeParams params = noted_.parameters(i, places);
      cudaGraphNode_t node = nullptr;
      check(cudaGraphAddKernelNode(&node, graph_, nullptr, 0, &params), "a kernel of a graph");
      if (i > 0) follow(nodes_.back(), node, overlapped);
      nodes_.push_back(node);
    }
    check(cudaGraphInstantiate(&ready_, graph_, 0), "a graph");
  }
  ~Graph() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  bool fits(const Noted& noted) const { return noted_.has_shape_of(noted); }
  // `noted`, which fits; it may be left with what was here before.
  void start(cudaStream_t stream, Noted& noted) {
    std::vector<void*> places;
    bool changed = false;
    for (size_t i = 0; i < noted.size(); ++i) {
      if (noted_.same(noted, i)) continue;
      const cudaKernelNodeParams params = noted.parameters(i, places);
      check(cudaGraphExecKernelNodeSetParams(ready_, nodes_[i], &params), "a kernel of a graph");
      changed = true;
    }
    if (changed) std::swap(noted_, noted);
    start(stream);
  }
  void start(cudaStream_t stream) { check(cudaGraphLaunch(ready_, stream), "a graph"); }

 private:
  void follow(cudaGraphNode_t before, cudaGraphNode_t node, bool overlapped) {
    cudaGraphEdgeData edge{};
    if (overlapped) {
      edge.from_port = cudaGraphKernelNodePortProgrammatic;
      edge.type = cudaGraphDependencyTypeProgrammatic;
    }
#if CUDART_VERSION >= 13000
    check(cudaGraphAddDependencies(graph_, &before, &node, &edge, 1), "the order of a graph");
#else
    check(cudaGraphAddDependencies_v2(graph_, &before, &node, &edge, 1), "the order of a graph");
#endif
  }

  Noted noted_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
  std::vector<cudaGraphNode_t> nodes_;
};

class LaunchesOn final : public Launches {
 public:
  LaunchesOn(cudaStream_t stream, bool overlapped) : stream_(stream), overlapped_(overlapped) {}

  void add(const Launch& launch) override {
    if (!repeated_) return launch_now(stream_, launch, overlapped_);
    held_.add(launch);
    if (held_.size() >= std::clamp(started_, kFewest, kMost)) start_held();
  }
  void repeat(bool on) override {
    start_held();
    repeated_ = on;
    begin_again();
  }
  void begin_again() override { next_ = started_ = 0; }
  void start_held() override {
    if (held_.size() == 0) return;
    started_ += held_.size();
    if (next_ == known_.size()) known_.emplace_back();
    std::vector<std::unique_ptr<Graph>>& shapes = known_[next_++];
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (!shapes[i]->fits(held_)) continue;
      std::rotate(shapes.begin(), shapes.begin() + static_cast<std::ptrdiff_t>(i),
                  shapes.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      shapes.front()->start(stream_, held_);
      return held_.clear();
    }
    if (shapes.size() == kShapes) shapes.pop_back();
    shapes.insert(shapes.begin(), std::make_unique<Graph>(std::move(held_), overlapped_));
    held_ = Noted();
    shapes.front()->start(stream_);
  }

 private:
  cudaStream_t stream_;
  bool overlapped_, repeated_ = false;
  Noted held_;
  size_t next_ = 0, started_ = 0;  // graph of the step, and kernels in those before it
  std::vector<std::vector<std::unique_ptr<Graph>>> known_;
};

}  // namespace

std::unique_ptr<Launches> launches_on(cudaStream_t stream, bool overlapped) {
  return std::make_unique<LaunchesOn>(stream, overlapped);
}

}  // namespace moe::ops::cuda
