// An MoE layer by itself: router, dispatch, experts and combine, forward and back.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "evaluate/speed.h"
#include "jobs/bench.h"
#include "model/cost.h"
#include "ops/devices.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

constexpr int64_t kWarmup = 3;
constexpr double kLayerPeakSeconds = 0.2;

Tensor drawn(Run& run, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor y = run.saved.alloc(dtype, {rows, cols});
  OnHost host(run);
  const Tensor here = host.write(y);
  const RngKey key = RngKey::from_seed(seed);
  for (int64_t i = 0; i < here.numel(); ++i) {
    const float x = 2 * uniform(key, static_cast<uint64_t>(i)) - 1;
    if (dtype == DType::bf16) here.as<bf16>()[i] = to_bf16(x);
    else here.as<float>()[i] = x;
  }
  return y;
}

double ffn_flops(const ModelConfig& config) {
  const FlopCount all = count_flops(config, 1);
  return all.experts + all.shared + all.router;
}

}  // namespace

FieldList fields(BenchLayerJob& job) {
  FieldList list;
  list.add("tokens", job.tokens, "that the layer is given at once");
  list.add("repeats", job.repeats, "how often it is timed; the median counts");
  list.add(fields(job.setup.model));
  FieldList train = fields(job.setup.train);
  list.add(train.take({"dtype", "threads", "device", "seed"}));
  return list;
}

LayerTimings bench_layer(BenchLayerJob job) {
  TrainOptions& o = job.setup.train;
  if (job.tokens < 1 || job.repeats < 1)
    fail_usage("@tokens and @repeats are {} and {}; both must be 1 at least", job.tokens,
               job.repeats);
  job.setup.model.layers = 1;
  o = resolved(o);
  const ModelConfig config = make_config(job.setup.model, 256, job.tokens);
  if (config.moe_layer_count() == 0)
    fail_usage("recipe '{}' has no experts to be timed", config.routing.recipe);
  Model model(config);
  model.initialise(o.seed);
  Run run(o.threads, o.dtype, ops::device_of(o.device));
  const ModelsOn there(run.device, {&model});
  model.enable_grads();
  MoeLayer& layer = model.block(0).ffn;
  const RoutingSpec spec = train_spec(config.routing);
  std::vector<int32_t> ids(static_cast<size_t>(job.tokens));
  const std::vector<int64_t> bounds = {0, job.tokens};
  const Pass pass{.batch = {.ids = ids, .bounds = bounds}, .routing = &spec, .keep = Keep::all};
  const Tensor x = drawn(run, o.dtype, job.tokens, config.width, 1),
               dy = drawn(run, o.dtype, job.tokens, config.width, 2),
               y = run.saved.alloc(DType::f32, {job.tokens, config.width}),
               dx = run.saved.alloc(DType::f32, {job.tokens, config.width});
  LayerTimings done{.tokens = job.tokens,
                    .flops = 3 * static_cast<double>(job.tokens) * ffn_flops(config),
                    .peak = ops::measure_peak_flops(run, o.dtype, kLayerPeakSeconds),
                    .dtype = o.dtype};
  for (int64_t i = -kWarmup; i < job.repeats; ++i) {
    const ArenaScope scope(run.saved);
    if (run.device != nullptr) run.device->wait();
    const auto start = Clock::now();
    for (Param* param : model.params()) param->grad_is_zero = true;
    MoeLayer::Saved saved;
    layer.forward(run, y, x, {}, pass, saved);
    layer.backward(run, dx, {}, dy, x, pass, config.routing.coef, saved);
    if (run.device != nullptr) run.device->wait();
    if (i >= 0) done.seconds.push_back(seconds_since(start));
  }
  return done;
}

Json to_json(const LayerTimings& t) {
  const double s = median(t.seconds);
  return {{"seconds", s},
          {"tokens", t.tokens},
          {"flops_per_second", t.flops / s},
          {"share_of_peak", t.flops / s / t.peak},
          {"peak_flops", t.peak}};
}

}  // namespace moe
