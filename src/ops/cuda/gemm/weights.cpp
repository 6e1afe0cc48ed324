#include "ops/cuda/gemm/weights.h"

#include "ops/cuda/gemm/dequantise.h"

namespace moe::ops::cuda {
namespace {

// One copy: a parameter meets products of one dtype in nearly all runs.
struct DeviceCopy final : Derived::Content {
  explicit DeviceCopy(Device* device) : memory(0, device) {}
  Arena memory;
  Tensor value;
  uint64_t version = 0;
};

}  // namespace

Tensor kept_copy(const Param& w) {
  const auto* kept = dynamic_cast<DeviceCopy*>(w.derived.get());
  const bool is_there = kept != nullptr && !kept->value.empty() && kept->version == w.version;
  return is_there && kept->value.dtype == DType::bf16 ? kept->value : Tensor{};
}

void settle_copy(const Param& w) {
  dynamic_cast<DeviceCopy&>(*w.derived.get()).version = w.version;
}

Tensor weights_as(Run& run, const Param& w, DType dtype) {
  if (w.value.dtype == dtype) return w.value;
  auto* kept = dynamic_cast<DeviceCopy*>(w.derived.get());
  if (kept == nullptr)
    kept = dynamic_cast<DeviceCopy*>(&w.derived.keep(std::make_unique<DeviceCopy>(run.device)));
  if (kept == nullptr) {  // what the CPU keeps stands there
    const_cast<Param&>(w).derived = Derived();
    return weights_as(run, w, dtype);
  }
  if (kept->value.empty() || kept->value.dtype != dtype) {
    kept->memory.rewind({});
    kept->value = w.value;
    kept->value.dtype = dtype;
    kept->value.row_bytes = bytes_of(dtype, w.value.cols());
    kept->value.data = kept->memory.alloc_bytes(static_cast<size_t>(kept->value.bytes()));
    kept->version = 0;
  }
  if (kept->version == w.version) return kept->value;
  dequantise_to(run, kept->value, w.value);
  kept->version = w.version;
  return kept->value;
}

}  // namespace moe::ops::cuda
