// A league made of runs with chosen losses, for tests of what is worked out of them.
#pragma once

#include <string>
#include <vector>

#include "analyze/data/league.h"

namespace moe::test {

inline LeagueRun made_run(const std::string& arm, double lr, uint64_t seed, double loss) {
  LeagueRun run{.arm = arm, .lr = lr, .seed = seed, .steps = 100};
  run.loss = loss;
  run.seconds = 10;
  run.curve = {{25, loss + 0.6}, {50, loss + 0.2}, {75, loss + 0.1}, {100, loss}};
  if (arm != kTwin) run.routing = LeagueRouting{.max_vio = 0.5, .effective_experts = 0.9};
  return run;
}

// The best rate with worse ones on both sides, and other seeds at it.
inline std::vector<LeagueRun> made_runs(const std::string& arm, const std::vector<double>& losses) {
  std::vector<LeagueRun> runs = {made_run(arm, 0.001, 1, losses[0] + 0.3),
                                 made_run(arm, 0.004, 1, losses[0] + 0.2)};
  for (size_t i = 0; i < losses.size(); ++i) runs.push_back(made_run(arm, 0.002, i + 1, losses[i]));
  return runs;
}

inline LeagueArm made_arm(const std::string& name) {
  LeagueArm arm{.name = name, .recipe = name, .source = "", .title = "", .not_causal = ""};
  arm.expert_width = 64;
  arm.steps = 100;
  arm.clock = name == kTwin ? LeagueClock{100, 100, 1} : LeagueClock{125, 100, 1.25};
  if (name != kTwin) arm.experts = 8, arm.top_k = 2;
  return arm;
}

inline League made_league(const std::vector<LeagueRun>& runs,
                          const std::vector<std::string>& names) {
  LeagueMatch match;
  match.shape = "2 layers";
  match.steps = 100;
  match.step_tokens = 64;
  std::vector<LeagueArm> arms;
  for (const std::string& name : names) arms.push_back(made_arm(name));
  League league = make_league(match, arms, runs, 1);
  league.done = true;
  return league;
}

// Of arms with these losses, by seed.
inline League made_league(const std::vector<std::pair<std::string, std::vector<double>>>& losses) {
  std::vector<LeagueRun> runs;
  std::vector<std::string> names;
  for (const auto& [arm, by_seed] : losses) {
    names.push_back(arm);
    for (LeagueRun& run : made_runs(arm, by_seed)) runs.push_back(run);
  }
  return made_league(runs, names);
}

}  // namespace moe::test
