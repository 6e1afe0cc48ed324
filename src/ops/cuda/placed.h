// Calls an op where its run does not have all that it is given: tensors are brought to the side on
// which it runs for the time of the call, and back. That is how an op without a kernel works on a
// GPU's tensors, and how a test gives a kernel tensors of the CPU.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/cuda/functions.h"

namespace moe::ops::cuda {

enum class Side { host, device };

class Placement {
 public:
  Placement(Run& run, Side side) : run_(run), side_(side), scope_(scratch()) {}
  ~Placement();
  // Brings back what may have been written. Not in the destructor: it may throw.
  void finish();

  Tensor at(const Tensor& t);
  GatheredRows at(const GatheredRows& rows);
  Param& at(Param& param);
  const Param& at(const Param& param) { return at(const_cast<Param&>(param)); }
  List<Operand> at(const List<Operand>& all);
  List<Tensor> at(const List<Tensor>& all);
  RoutingPlan at(const RoutingPlan& plan);
  KvView at(const KvView& kv);
  CosSinTable at(const CosSinTable& table) { return {at(table.table), at(table.slot)}; }
  Run& at(Run& run) { return run; }
  Arena& at(Arena& arena) { return arena; }
  template <class T>
  std::span<const T> at(std::span<const T> list) {
    if (side_ == Side::device || list.empty() || !run_.device->owns(list.data())) return list;
    auto* copy = static_cast<T*>(host_.alloc_bytes(list.size_bytes()));
    run_.device->download(copy, list.data(), list.size_bytes());
    return {copy, list.size()};
  }
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T>) T at(T value) {
    return value;
  }
  TokenShares at(const TokenShares& p) {
    return {p.of, at(p.s), at(p.w), at(p.choice), at(p.selected)};
  }
  std::span<double> at(std::span<double> sums) { return sums; }
  RngKey at(RngKey key) { return key; }
  const RopeFrequencies& at(const RopeFrequencies& table) { return table; }
  const DeltaHeads& at(const DeltaHeads& heads) { return heads; }
  const StateHeads& at(const StateHeads& heads) { return heads; }
  const HyperShape& at(const HyperShape& shape) { return shape; }
  const AdamW& at(const AdamW& how) { return how; }

  // What an op made, where whoever asked expects it: beside the tensors that it was given.
  void result(RoutingPlan& plan);
  void result(CosSinTable&) {}
  void result(double) {}

 private:
  struct Moved {
    Tensor original, copy;
  };
  // A parameter whose matrices lie elsewhere, as it was.
  struct MovedParam {
    Param* param;
    Tensor value, grad;  // of the copies
    Tensor old_value, old_grad;
    std::vector<const void*> places;
    bool bound;
  };
  bool is_there(const void* data) const {
    return run_.device->owns(data) == (side_ == Side::device);
  }
  Arena& scratch() { return run_.device->scratch(); }
  Arena& memory() { return side_ == Side::device ? scratch() : host_; }
  void move(const Tensor& to, const Tensor& from);

  Run& run_;
  Side side_;
  Arena host_{size_t{1} << 16};
  ArenaScope scope_;
  std::vector<Moved> moved_;
  std::vector<std::unique_ptr<MovedParam>> params_;
  std::vector<std::unique_ptr<std::vector<Tensor>>> tensors_;
  std::vector<std::unique_ptr<std::vector<Operand>>> operands_;
};

// f(run, all...) on that side. Whatever throws leaves the parameters as they were.
template <class F, class... A>
auto placed(Side side, F&& f, Run& run, A&&... all) {
  Placement here(run, side);
  Run& there = side == Side::host ? run.on_cpu() : run;
  if constexpr (std::is_void_v<decltype(f(there, here.at(std::forward<A>(all))...))>) {
    f(there, here.at(std::forward<A>(all))...);
    here.finish();
  } else {
    auto made = f(there, here.at(std::forward<A>(all))...);
    here.result(made);
    here.finish();
    return made;
  }
}

}  // namespace moe::ops::cuda
