#include "jobs/score.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/among.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/nearest.h"

namespace moe::cli {
namespace {

struct Flags {
  ScoreJob job;
  bool json = false;
  Given given;
};

void print_replayed(const ScoreReply::Replayed& r) {
  const RecordInfo& info = r.info;
  fmt::print(
      "replayed {} (recipe {}, {}, {}): the model itself would have routed {:.2f}% of the tokens "
      "so in every layer\n",
      r.file, printable(info.recipe, 40), printable(info.routing, 40), printable(info.dtype, 40),
      100 * r.alike());
  fmt::print("layer  choices it would have made   by chance\n");
  for (const Agreement::Layer& l : r.agreement.layers)
    fmt::print("{:5}  {:24.2f}%   {:8.2f}%\n", l.layer, 100 * l.share(), 100 * l.chance());
}

int run_score(const Flags& f, const comm::World& world) {
  if (f.job.score.per_token && !f.json) fail_usage("--per-token prints an array and needs --json");
  ScoreJob job = f.job;
  job.compute.threads = world.threads_of(job.compute.threads);
  share_memory(job.memory.limits, world);
  Watch watch = on_screen();
  // Where several work together they stop together.
  if (world.group().size > 1)
    watch.stopped = [&] {
      if (world.group().any(watch_interrupts())) throw comm::SharedError("interrupted");
      return false;
    };
  const ScoreReply reply = score_model(job, watch, world.group());
  if (f.json) {
    print_json(to_json(reply));
    return 0;
  }
  const Score& s = reply.score;
  fmt::print(
      "{} tokens in {} of {}: {:.4f} nats per token, perplexity {:.3f}, {:.4f} bits per "
      "byte\n",
      s.tokens, counted(s.windows, "window"), reply.plan.options.window, s.nats_per_token,
      s.perplexity, s.bits_per_byte);
  if (reply.replayed) print_replayed(*reply.replayed);
  if (!reply.record.empty())
    fmt::print("the choices of {} layers for {} tokens are in {}\n", reply.moe_layers,
               reply.read_tokens, reply.record);
  return 0;
}

}  // namespace

Action add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->job.model);
  list.add(fields(f->job));
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_among([&](const comm::World& world) { return run_score(*f, world); }); };
}

}  // namespace moe::cli
