// What training by many processes would take, layout by layout.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/words.h"
#include "jobs/cluster_plan.h"

namespace moe::cli {
namespace {

struct Flags {
  ClusterPlanJob job;
  bool json = false;
  Given given;
};

std::string time_of(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", 1e3 * seconds);
  return seconds < 1e4 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string layout_of(const LayoutPlan& l, int64_t processes) {
  if (l.expert_parallel == 1) return "all experts each";
  if (l.expert_parallel == processes) return fmt::format("experts over {}", processes);
  return fmt::format("experts over {}, {} copies", l.expert_parallel,
                     processes / l.expert_parallel);
}

void print_layouts(const ClusterPlan& plan) {
  fmt::print("  {:<28}{:>9}{:>10}{:>9}{:>9}{:>8}{:>11}{:>8}{:>10}{:>10}\n", "", "memory", "step",
             "compute", "waiting", "update", "gradients", "rows", "sent", "tokens/s");
  for (size_t i = 0; i < plan.layouts.size(); ++i) {
    const LayoutPlan& l = plan.layouts[i];
    const auto share = [&](double part) {
      return fmt::format("{:.1f}%", 100 * part / l.seconds());
    };
    fmt::print("{} {:<28}{:>9}{:>10}{:>9}{:>9}{:>8}{:>11}{:>8}{:>10}{:>10}\n",
               plan.best == i ? '*'
               : l.fits       ? ' '
                              : 'x',
               layout_of(l, plan.processes), human_bytes(static_cast<double>(l.memory.total())),
               time_of(l.seconds()), share(l.compute), share(l.waiting), share(l.update),
               share(l.gradients), share(l.rows), human_bytes(l.sent),
               human_count(plan.tokens_a_step() / l.seconds()));
  }
}

void print_plan(const ClusterPlan& plan, const ClusterPlanJob& job) {
  const ParamCount count = count_params(plan.config);
  fmt::print("{} parameters, {} active for a token; {} on {}, {} x {} tokens each, {}\n",
             human_count(static_cast<double>(count.total())),
             human_count(static_cast<double>(count.active())),
             counted(plan.micro_batches, "micro-batch"), counted(plan.processes, "process"),
             plan.shape.batch, plan.shape.context, name_of(plan.shape.dtype));
  fmt::print(
      "a process: {:.4g} GFLOP/s at its peak, {:.0f}% of it reached, reads {:.4g} GB/s, sends "
      "{:.4g} GB/s, {:.4g} us an exchange\n\n",
      plan.rates.flops / 1e9, 100 * plan.rates.reached, plan.rates.read / 1e9, plan.rates.network,
      plan.rates.latency);
  print_layouts(plan);
  if (std::any_of(plan.layouts.begin(), plan.layouts.end(), [](auto& l) { return !l.fits; }))
    fmt::print("x: takes more than --memory\n");
  if (!plan.best) {
    fmt::print("\nnone of them fits; more processes, --recompute or a smaller --batch take less\n");
    return;
  }
  const LayoutPlan& best = plan.layouts[*plan.best];
  fmt::print(
      "*: mpirun -n {} moe train --accumulate {}{} ...\n", plan.processes, plan.micro_batches,
      best.expert_parallel == 1 ? "" : fmt::format(" --expert-parallel {}", best.expert_parallel));
  if (job.tokens == 0) return;
  const double seconds = job.tokens / plan.tokens_a_step() * best.seconds(),
               hours = seconds / 3600 * static_cast<double>(plan.processes);
  fmt::print("{} tokens: {:.4g} days, {:.4g} hours of a process", human_count(job.tokens),
             seconds / 86400, hours);
  if (job.price > 0) fmt::print(", {:.4g} at {:.4g} an hour", hours * job.price, job.price);
  fmt::print("\n");
}

int run_plan(const Flags& f) {
  const ClusterPlan plan = plan_cluster(f.job);
  if (f.json) print_json(to_json(plan, f.job));
  else print_plan(plan, f.job);
  return 0;
}

}  // namespace

Action add_plan(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_plan(*f); };
}

}  // namespace moe::cli
