// What this machine can do, what the engine makes of it op by op, in whole training steps, and with
// a model: the bodies of `moe bench`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "evaluate/options.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"
#include "jobs/run_options.h"

namespace moe {

// Arithmetic in registers and reading from memory, on all threads.
struct Peak {
  int threads = 0;
  double f32 = 0, bf16 = 0, read = 0;  // FLOP/s, FLOP/s (0 without bf16 products), bytes/s
  double of(DType dtype) const { return dtype == DType::bf16 && bf16 > 0 ? bf16 : f32; }
};
Peak measure_peak(Run& run);
Json to_json(const Peak&);

// One kernel, the median of some calls.
struct OpTiming {
  std::string name;
  DType dtype = DType::f32;
  double seconds = 0;
  bool is_arithmetic = true;   // its limit is the arithmetic, else the reading of memory
  double rate = 0, share = 0;  // FLOP/s or bytes/s, and that in shares of its limit
};
// Told each when it is timed.
std::vector<OpTiming> bench_ops(
    int threads, const std::function<void(const OpTiming&, int threads)>& on_timed = {});
Json to_json(const OpTiming&);

// Whole training steps on random tokens.
struct BenchTrainJob {
  SetupOptions setup;
  MemoryOptions memory;
  int64_t warmup_steps = 2;  // before the timed ones
  BenchTrainJob() { setup.train.steps = 5; }
};
FieldList fields(BenchTrainJob&);
struct StepTimings {
  std::vector<double> ms, share;  // of each step; of the peak
  double tokens = 0;              // of a step
  double peak = 0;                // FLOP/s
  DType dtype = DType::f32;
  int threads = 0;
  double tokens_per_second() const;
};
StepTimings bench_train(BenchTrainJob, Given&, const Watch&);
Json to_json(const StepTimings&);

// An MoE layer by itself, forward and backward, without its losses.
struct BenchLayerJob {
  SetupOptions setup;
  int64_t tokens = 4096, repeats = 10;
};
FieldList fields(BenchLayerJob&);
struct LayerTimings {
  int64_t tokens = 0;
  std::vector<double> seconds;  // of each pass
  double flops = 0, peak = 0;   // of a pass, three times those of its forward; FLOP/s
  DType dtype = DType::f32;
};
LayerTimings bench_layer(BenchLayerJob);
Json to_json(const LayerTimings&);

// How fast a model reads a prompt and writes tokens, beside what this machine could do at most,
// measured in the same run.
struct BenchModelJob {
  std::string model;
  std::optional<DType> cache_dtype;
  SpeedOptions speed;
  std::vector<int64_t> prompts;  // lengths that are timed in turn; none: speed.prompt alone
  int64_t top_k_experts = 0;
  ComputeOptions compute;
  MemoryOptions memory;
};
// MODEL is optional here: the words peak, ops and train may stand in its place.
FieldList fields(BenchModelJob&);
// A prompt of one length, and the tokens that are written behind it.
struct LengthTimings {
  Speed speed;
  double flops_per_token = 0;  // of the prompt's, on average
  double weight_bytes = 0;     // that writing a token reads of weights
  double cache_bytes = 0;      // and on average of what stands before it

  double flops() const { return flops_per_token * speed.prompt_rate(); }
  double read() const { return (weight_bytes + cache_bytes) * speed.decode_rate(); }
};
struct ModelTimings {
  std::string model;
  DType dtype = DType::f32, cache_dtype = DType::f32;
  std::vector<LengthTimings> lengths;                // as they were asked for, at least one
  double load_seconds = 0, first_token_seconds = 0;  // the second since the start
  Peak peak;
  std::string_view products;  // the type that most are computed in
  double limit = 0;           // of them a second
  std::optional<HotSet> hot;  // where it is asked for, or the weights do not fit the memory
};
ModelTimings bench_model(const BenchModelJob&, const Watch&);
Json to_json(const ModelTimings&);

}  // namespace moe
