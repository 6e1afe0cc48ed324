#include "jobs/cluster_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/words.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "jobs/bench.h"
#include "jobs/presets.h"
#include "jobs/run_options.h"
#include "options/common.h"
#include "train/memory.h"

namespace moe {
namespace {

constexpr double kF32 = 4, kGiga = 1e9, kMicro = 1e-6;

// What the parts of a step depend on beside the layout.
struct Sizes {
  double processes, micro_batches, layers;  // MoE layers
  double tokens;                            // of a micro-batch
  double others, experts;                   // numbers: what each process has, and experts in all
  double params;                            // tensors that are summed on their own
  double activation;                        // bytes
  double moments;                           // bytes, of all numbers together
  FlopCount flops;                          // of a token's forward
  double passes;                            // forwards that training counts as
};

Sizes sizes_of(const ModelConfig& c, const ClusterPlan& plan) {
  const ParamCount count = count_params(c);
  const auto experts = static_cast<double>(count[Part::experts]);
  constexpr double kParamsOfALayer = 11;
  return {.processes = static_cast<double>(plan.processes),
          .micro_batches = static_cast<double>(plan.micro_batches),
          .layers = static_cast<double>(c.moe_layer_count()),
          .tokens = static_cast<double>(plan.shape.batch * plan.shape.context),
          .others = static_cast<double>(count.total()) - experts,
          .experts = experts,
          .params = kParamsOfALayer * static_cast<double>(c.layers) + 3,
          .activation = static_cast<double>(size_of(plan.shape.dtype)),
          .moments = static_cast<double>(training_memory(c, plan.shape, plan.optimizer).moments),
          .flops = count_flops(c, plan.shape.context),
          .passes = plan.shape.recompute ? 4.0 : 3.0};
}

LayoutPlan plan_layout(const ModelConfig& c, const ClusterPlan& plan, const Sizes& s,
                       int64_t expert_parallel, double imbalance) {
  const ProcessRates& rates = plan.rates;
  const auto spread = static_cast<double>(expert_parallel);
  const double rate = rates.flops * rates.reached, rounds = s.micro_batches / s.processes,
               network = rates.network * kGiga, latency = rates.latency * kMicro;
  LayoutPlan l{.expert_parallel = expert_parallel};
  TrainingShape shape = plan.shape;
  shape.spread = expert_parallel;
  l.memory = training_memory(c, shape, plan.optimizer);
  // Shared among the processes that hold a parameter, which in every layout comes to this.
  l.memory.moments = static_cast<int64_t>(s.moments / s.processes);
  l.fits = !rates.memory || l.memory.total() <= *rates.memory;
  l.compute = s.passes * s.flops.forward() * s.tokens * rounds / rate;
  if (expert_parallel > 1)
    l.waiting = imbalance * s.passes * s.flops.experts * s.tokens * rounds / rate;
  // AdamW reads four numbers and writes three; packing reads one and writes two copies.
  const double held = s.others + s.experts / spread;
  l.update =
      (7 * kF32 * (s.others + s.experts) / s.processes + (2 * kF32 + 2 * s.activation) * held) /
      rates.read;
  const ExchangeCount sent =
      count_exchange(c, shape, plan.processes, plan.micro_batches / plan.processes);
  l.sent = sent.gradients + sent.rows;
  if (plan.processes > 1) l.gradients = sent.gradients / network + 2 * s.params * latency;
  // Those that nothing hides: counts, weights, the first piece there and the last one back; in
  // backward these two and the weights' gradients.
  constexpr double kExchanges = 7;
  if (expert_parallel > 1) l.rows = sent.rows / network + kExchanges * s.layers * rounds * latency;
  return l;
}

void validate(const ClusterPlanJob& job) {
  if (job.model.empty() && job.preset.empty())
    fail_usage("moe plan needs a model, or @preset NAME in its place");
  if (!job.model.empty() && !job.preset.empty())
    fail_usage("a model and @preset both say what to plan for; give one of them");
  constexpr int64_t kMost = 1'000'000;
  if (job.processes < 1 || job.processes > kMost)
    fail_usage("@processes is {}; it must be 1 to {}", job.processes, kMost);
  if (job.micro_batches < 0 || job.micro_batches % job.processes != 0)
    fail_usage("@accumulate is {}, which {} processes cannot share evenly", job.micro_batches,
               job.processes);
  if (job.shape.batch < 1 || job.shape.context < 0)
    fail_usage("@batch and @context must be at least 1");
  const ProcessRates& r = job.rates;
  if (r.flops < 0 || r.read < 0 || r.network <= 0 || r.latency < 0 || r.reached <= 0 ||
      r.reached > 1)
    fail_usage(
        "@flops, @read and @latency must not be below 0, @network must be above it, and @reached "
        "up to 1");
  if (job.imbalance < 0 || job.tokens < 0 || job.price < 0)
    fail_usage("@imbalance, @tokens and @price must not be below 0");
}

// What was not said, this machine shows.
ProcessRates settled(ProcessRates rates, DType dtype) {
  if (rates.flops > 0 && rates.read > 0) return rates;
  Run run(thread_count(0));
  const Peak peak = measure_peak(run);
  if (rates.flops == 0) rates.flops = peak.of(dtype);
  if (rates.read == 0) rates.read = peak.read;
  return rates;
}

}  // namespace

FieldList fields(ClusterPlanJob& job) {
  FieldList list;
  list.add("MODEL", job.model, fmt::format("a model: {}; only its configuration is read", kModelIs))
      .positional();
  const std::vector<std::string> names = names_of(presets());
  list.add("preset", job.preset, fmt::format("or the model of a preset: {}", listed(names)))
      .values(names);
  list.add("processes", job.processes, "how many train together");
  list.add("accumulate", job.micro_batches,
           "micro-batches a step, of all processes together; 0: one each");
  list.add("batch", job.shape.batch, "rows a micro-batch");
  list.add("context", job.shape.context, "tokens a row; 0: the model's");
  list.add_named(
      "dtype", {"f32", "bf16"}, [&job] { return std::string(name_of(job.shape.dtype)); },
      [&job](const std::string& name) { job.shape.dtype = *dtype_named(name); },
      "of the activations and products");
  list.add("recompute", job.shape.recompute, "keep less, compute twice");
  add_optimizer(list, job.optimizer,
                "for the memory: adamw keeps two moments, muon one of the matrices of attention "
                "and FFNs; what muon computes and exchanges beside is in no second here");
  list.group("What a process and its network reach");
  list.add("flops", job.rates.flops,
           "FLOP/s of a process at its peak, as `moe bench peak` says it; 0: measured here");
  list.add("reached", job.rates.reached,
           "share of that which training steps reach, as `moe bench train` says it");
  list.add("read", job.rates.read,
           "bytes/s that a process reads from memory, as `moe bench peak` says it; 0: measured "
           "here");
  list.add("network", job.rates.network,
           "GB/s that a process sends while all of them do, as `moe bench network` says it; the "
           "default is a link of 1 Gbit/s");
  list.add("latency", job.rates.latency,
           "microseconds that an exchange with next to nothing in it takes, as `moe bench "
           "network` says it");
  list.add("imbalance", job.imbalance,
           "how many more rows than the mean the process with most gets, where experts are "
           "spread: 0.1 is a tenth more");
  list.add("memory", bytes_of(job.rates.memory, "memory"),
           "what a process may take, as in 64G; layouts that take more are marked");
  list.group("What it comes to");
  list.add("tokens", job.tokens, "tokens to train on");
  list.add("price", job.price, "of a process for an hour, in any currency");
  return list;
}

ClusterPlan plan_cluster(const ClusterPlanJob& job) {
  validate(job);
  ClusterPlan plan{
      .config = job.preset.empty() ? read_model_config(job.model) : preset_config(job.preset),
      .shape = job.shape,
      .optimizer = job.optimizer,
      .processes = job.processes,
      .micro_batches = job.micro_batches == 0 ? job.processes : job.micro_batches,
      .rates = settled(job.rates, job.shape.dtype)};
  const ModelConfig& c = plan.config;
  if (plan.shape.context == 0) plan.shape.context = c.context;
  const Sizes sizes = sizes_of(c, plan);
  const bool spreads = c.moe_layer_count() > 0 && !c.by_neuron();
  const int64_t most = spreads ? std::min(c.routing.experts, plan.processes) : 1;
  for (int64_t s = 1; s <= most; ++s)
    if (plan.processes % s == 0)
      plan.layouts.push_back(plan_layout(c, plan, sizes, s, job.imbalance));
  for (size_t i = 0; i < plan.layouts.size(); ++i)
    if (plan.layouts[i].fits &&
        (!plan.best || plan.layouts[i].seconds() < plan.layouts[*plan.best].seconds()))
      plan.best = i;
  return plan;
}

Json to_json(const ClusterPlan& plan, const ClusterPlanJob& job) {
  Json layouts = Json::array();
  for (const LayoutPlan& l : plan.layouts)
    layouts.push_back({{"expert_parallel", l.expert_parallel},
                       {"memory_bytes", l.memory.total()},
                       {"fits", l.fits},
                       {"step_seconds", l.seconds()},
                       {"compute_seconds", l.compute},
                       {"waiting_seconds", l.waiting},
                       {"update_seconds", l.update},
                       {"gradients_seconds", l.gradients},
                       {"rows_seconds", l.rows},
                       {"sent_bytes", l.sent},
                       {"tokens_per_second", plan.tokens_a_step() / l.seconds()}});
  Json reply = {{"processes", plan.processes},
                {"micro_batches", plan.micro_batches},
                {"tokens_a_step", plan.tokens_a_step()},
                {"flops_per_second", plan.rates.flops},
                {"reached", plan.rates.reached},
                {"read_bytes_per_second", plan.rates.read},
                {"network_bytes_per_second", plan.rates.network * kGiga},
                {"latency_seconds", plan.rates.latency * kMicro},
                {"layouts", std::move(layouts)}};
  if (plan.best) reply["best"] = *plan.best;
  if (job.tokens > 0) reply["tokens"] = job.tokens;
  return reply;
}

}  // namespace moe
