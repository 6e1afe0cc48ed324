// A league of routing recipes: the body of `moe league`. Every recipe is trained on the same
// batches with the same active work as a dense twin (jobs/league_plan.h); runs are folders that go
// on where they were stopped, and what came of them is a page, a table and JSON.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "analyze/data/league.h"
#include "core/watch.h"
#include "jobs/league_plan.h"
#include "jobs/run_options.h"

namespace moe {

struct LeagueOptions {
  SetupOptions setup;  // the model without routing, and how all are trained; minutes, or steps
  std::vector<std::string> data, eval_data;
  std::string out;
  std::vector<std::string> recipes;  // none: all that can be trained from drawn weights
  std::vector<std::string> entries;  // files, one a recipe of the user's
  int64_t times = 8;                 // FFNs of the twin that an arm holds
  int64_t rates = 3, seeds = 3, finalists = 3;
  bool keep_models = false;
  MemoryLimits memory;
};
FieldList fields(LeagueOptions&);

// What is under way, for whoever watches.
struct LeagueWatch {
  Watch watch;
  // told when a run begins or goes on: which one it is, and of how many at least
  std::function<void(const LeagueKey&, int64_t run, int64_t runs)> on_begin;
  std::function<void(const LeagueRun&)> on_done;
};

// Runs what is missing and writes OUT/league.html, league.md, league.json and league.svg after each
// run. Where `watch.stopped` it saves the run under way, writes them too and returns a league that
// is not `done`. `given`: what the caller set; usage errors name the field. An OUT that holds a
// league is gone on with: what is not given is what it was, what differs is refused, recipes and
// entries join those that are there.
League run_league(LeagueOptions, Given given, const LeagueWatch&);

}  // namespace moe
