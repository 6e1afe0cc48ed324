// A moe_layer: one MoE layer over arrays that its caller keeps (include/moe/moe.h).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/arrays.h"
#include "api/call.h"
#include "api/options.h"
#include "moe/layer.h"

struct moe_layer {
  explicit moe_layer(const moe::api::LayerOptions& options);

  moe::ModelConfig config;
  int threads;
  moe::RoutingSpec train, eval;
  moe::MoeLayer layer;
  std::vector<moe::Param*> params;  // those of the router and of the experts
  std::mutex busy;                  // held during a call

  int64_t experts() const { return config.routing.experts; }
  int64_t width() const { return config.width; }
  int64_t expert_width() const { return config.expert_width; }
};

namespace moe::api {

// As arrays name it: "router.weight", "experts.gate.weight".
std::string_view array_name(const Param&);
// "experts.gate.weight" and "experts.up.weight" as one array [E,2F,D], the gate's rows first.
constexpr std::string_view kGateUp = "experts.gate_up.weight";

// A Run, with the memory that earlier calls left, for as long as this lives.
class BorrowedRun {
 public:
  BorrowedRun(int threads, DType compute);
  ~BorrowedRun();
  BorrowedRun(const BorrowedRun&) = delete;
  BorrowedRun& operator=(const BorrowedRun&) = delete;
  Run& operator*() { return *run_; }

 private:
  std::unique_ptr<Run> run_;
};

// A function that works on arrays: body(layer, run, arrays), one call of a layer at a time.
template <class Body>
moe_status called(moe_layer* layer, const moe_array* arrays, size_t count, const char* function,
                  Body&& body) {
  return guarded([&] {
    moe_layer& l = need(layer, function);
    const std::lock_guard lock(l.busy);
    Arrays given_arrays(arrays, count, function);
    BorrowedRun run(l.threads, DType::f32);
    body(l, *run, given_arrays);
  });
}

// Binds the parameters' gradients to the arrays that are called "grad." and their names, for as
// long as this lives; what no product wrote is zeros in the end.
class BoundGrads {
 public:
  BoundGrads(Arrays& arrays, std::span<Param* const> params);
  ~BoundGrads();
  BoundGrads(const BoundGrads&) = delete;
  BoundGrads& operator=(const BoundGrads&) = delete;
  void settle(Run& run);

 private:
  std::span<Param* const> params_;
};

}  // namespace moe::api
