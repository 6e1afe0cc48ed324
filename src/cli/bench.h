// What the parts of `moe bench` share: the machine's peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/forward_memory.h"
#include "evaluate/options.h"
#include "infer/options.h"

namespace moe::cli {

constexpr double kPeakSeconds = 0.5;  // that a peak is measured for

struct Peak {
  double f32, bf16, read;  // FLOP/s, FLOP/s (0 without bf16 products), bytes/s
  double of(DType dtype) const { return dtype == DType::bf16 && bf16 > 0 ? bf16 : f32; }
};
Peak measure_peak(Run& run);

struct BenchModelFlags {
  std::string model;
  std::optional<DType> cache_dtype;
  SpeedOptions speed;
  int64_t top_k_experts = 0;
  ComputeOptions compute;
  MemoryOptions memory;
  bool json = false;
};
// MODEL is optional here: the words peak, ops and train may stand in its place.
FieldList fields(BenchModelFlags&);
int run_bench_model(const BenchModelFlags& flags);

}  // namespace moe::cli
