// What the parts of `moe bench` share: the machine's peak.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/memory.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "infer/speed.h"

namespace moe::cli {

constexpr double kPeakSeconds = 0.5;  // that a peak is measured for

struct Peak {
  double f32, bf16, read;  // FLOP/s, FLOP/s (0 without bf16 products), bytes/s
  double of(DType dtype) const { return dtype == DType::bf16 && bf16 > 0 ? bf16 : f32; }
};
Peak measure_peak(Run& run);

struct BenchModelFlags {
  std::string model, cache_dtype;
  SpeedOptions speed;
  int64_t top_k_experts = 0;
  ComputeFlags compute;
  MemoryFlags memory;
  bool json = false;
};
// MODEL is optional here: the words peak, ops and train may stand in its place.
void add_bench_model_options(CLI::App& app, BenchModelFlags& flags);
int run_bench_model(const BenchModelFlags& flags);

}  // namespace moe::cli
