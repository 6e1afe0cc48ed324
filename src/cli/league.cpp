// Routing recipes trained on the same batches with the same active work, and what their papers
// claim beside what came of it.
#include "jobs/league.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/data/league_claims.h"
#include "analyze/texts/league_text.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"

namespace moe::cli {
namespace {

struct Flags {
  LeagueOptions options;
  bool json = false;
  Given given;
};

// The columns that a terminal has room for.
void print_table(const League& league) {
  fmt::print("  {:<22}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}\n", "arm", "loss", "+/-", "over",
             "times", "MaxVio", "dead", "dropped");
  for (const LeagueRow& row : league.rows) {
    if (row.losses.empty()) {
      fmt::print("  {:<22} diverged at every rate\n", row.arm.name);
      continue;
    }
    const auto shown = [](bool is, const std::string& text) {
      return is ? text : std::string("-");
    };
    const bool routed = row.routing.has_value();
    fmt::print(
        "  {:<22}{:>9.4f}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{}{}\n", row.arm.name, row.loss,
        shown(row.losses.size() > 1, fmt::format("{:.4f}", row.range)),
        shown(row.loss_change.has_value(), fmt::format("{:+.4f}", row.loss_change.value_or(0))),
        shown(row.run_times.has_value(), fmt::format("{:.2f}", row.run_times.value_or(0))),
        shown(routed, fmt::format("{:.2f}", row.max_vio)),
        routed ? fmt::format("{}/{}", row.routing->dead, row.routing->experts) : "-",
        shown(routed, fmt::format("{:.1f}%", 100 * row.dropped)),
        row.at_end ? "  best rate at the end" : "",
        row.arm.not_causal.empty() ? "" : "  not causal");
  }
}

void print_league(const League& league, const std::string& out) {
  fmt::print(
      "held-out nats a byte, of the dense twin after {} of {} tokens\n"
      "over: above the twin's; times: a run's time over one of the twin\n\n",
      counted(league.match.steps, "step"), league.match.step_tokens);
  print_table(league);
  fmt::print("\n");
  for (const std::string& line : league_findings(league)) fmt::print("{}\n", wrapped(line, 0));
  fmt::print("\n");
  for (const Verdict& v : judge(league)) {
    fmt::print("  {}\n", wrapped(fmt::format("{}: {}: {} ({}; {})", v.claim->arm, v.claim->claim,
                                             name_of(v.outcome), v.figure, v.claim->source),
                                 4));
  }
  fmt::print("\n");
  for (const std::string& line : league_troubles(league)) fmt::print("{}\n", wrapped(line, 0));
  fmt::print("the page is {0}/league.html, its table {0}/league.md\n", out);
}

int run_league_verb(const Flags& f) {
  LeagueWatch watch;
  watch.watch = on_screen();
  watch_interrupts();
  watch.on_begin = [](const LeagueKey& key, int64_t run, int64_t runs) {
    tell("run {} of at least {}: {} at {:g}, seed {}\n", run, std::max(run, runs), key.arm, key.lr,
         key.seed);
  };
  watch.on_done = [](const LeagueRun& run) {
    if (run.diverged.empty())
      tell("{} at {:g}, seed {}: {:.4f} nats a byte in {}\n", run.arm, run.lr, run.seed, run.loss,
           human_seconds(run.seconds));
    else
      tell("{} at {:g}, seed {} diverged: {}\n", run.arm, run.lr, run.seed, in_flags(run.diverged));
  };
  const League league = run_league(f.options, f.given, watch);
  if (f.json) print_json(to_json(league));
  else if (!league.rows.empty()) print_league(league, f.options.out);
  if (league.done) return 0;
  tell("interrupted; `moe league --out {}` goes on\n", f.options.out);
  return kInterrupted;
}

}  // namespace

Action add_league(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->options);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_league_verb(*f); };
}

}  // namespace moe::cli
