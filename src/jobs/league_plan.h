// What a league runs: how each recipe is matched to the dense twin, and which run is the next one,
// given those that are done. Plain functions; jobs/league.h carries them out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analyze/data/league.h"
#include "jobs/league_entry.h"

namespace moe {

// An arm, its routing complete: `wanted` is what `moe train` would be told.
struct MatchedArm {
  std::string name;
  WantedModel wanted;
  double time = 0;  // as in LeagueEntry
  TrainOptions train;
  std::vector<std::string> sets;  // names of `train` that are not the league's
};

// Gives an arm its experts. `shape`: the model without routing, whose dense_width W is what works
// for a token in every arm; an entry with a time brings what it sets of it, W too, and its active
// width may be another than W:
//   U units meet a token: K routed experts and the shared ones, counted in routed widths. K is the
//     recipe's default, but that U is the nearest power of two; a recipe that fixes K keeps it.
//   F = W / U for each, so K F + shared = W: top-1 and hash have one expert as wide as the twin,
//     experts that choose take K tokens' worth on average.
//   E = times U less the shared ones: all arms hold `times` FFNs of the twin.
// Usage errors that name the arm, where an entry's own numbers do not come to W or U does not
// divide it.
MatchedArm match_arm(const std::string& name, const LeagueEntry& entry, const WantedModel& shape,
                     int64_t times);
// `options` with what the arm sets of them.
TrainOptions own_training(const MatchedArm&, TrainOptions options);
// "width 192, optimizer muon": what an arm with a time sets of its model and training.
std::string own_settings(const MatchedArm&, const WantedModel& shape);

struct LeagueKey {
  std::string arm;
  double lr = 0;
  uint64_t seed = 1;
  auto operator<=>(const LeagueKey&) const = default;
};

struct LeagueRules {
  double lr = 0;  // the rate in the middle
  int64_t rates = 3, seeds = 3, finalists = 3;
  uint64_t first_seed = 1;
  std::map<std::string, double> middles = {};  // of arms that set their own

  // With the middle of this arm.
  LeagueRules of(const std::string& arm) const;
};
// Usage errors that name the field.
void validate(const LeagueRules&);

constexpr double kRateStep = 2;        // from one rate to the next
constexpr int64_t kMostMoreRates = 4;  // that are tried beyond those asked for, where the best is
                                       // at an end

// The next rate of an arm, given losses by rate (not finite: the run diverged): those around the
// middle, then one more on the side where the best is at the end, until worse ones stand on both
// sides or kMostMoreRates were tried. Nothing: the best is found, or no rate came to its end.
std::optional<double> next_rate(const LeagueRules&, const std::map<double, double>& losses);

// The next run: rates of each arm in order with the first seed; then the other seeds of the twin
// and of the best `finalists` others, at their best rates. `losses`: of the runs that are done, not
// finite where they diverged.
std::optional<LeagueKey> next_run(const LeagueRules&, const std::vector<std::string>& arms,
                                  const std::map<LeagueKey, double>& losses);
// The arms that some run to come is of, whatever it gives: those with a rate left, and once none
// has one those of the other seeds.
std::vector<std::string> arms_to_run(const LeagueRules&, const std::vector<std::string>& arms,
                                     const std::map<LeagueKey, double>& losses);
// How many runs a league has at least, given those that are done.
int64_t planned_runs(const LeagueRules&, const std::vector<std::string>& arms,
                     const std::map<LeagueKey, double>& losses);

}  // namespace moe
