// A league: routing recipes trained on the same batches with the same active work, and what came of
// each. Runs are what was measured; rows and verdicts are worked out of them here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace moe {

// The arm that all others are held against.
constexpr std::string_view kTwin = "dense";

// What routers did on the held-out text at the end of a run.
struct LeagueRouting {
  double max_vio = 0;             // mean over MoE layers, as LayerStats has it
  double effective_experts = 0;   // mean over MoE layers, as a share of E
  int64_t dead = 0, experts = 0;  // of all MoE layers together
  // mean over MoE layers: the largest share of a domain's tokens that one expert has, in even
  // shares; absent with one domain
  std::optional<double> domain;
  double vocabulary = 0;  // mean over MoE layers of vocabulary_input
};

// One training run, done.
struct LeagueRun {
  std::string arm;
  double lr = 0;
  uint64_t seed = 1;
  int64_t steps = 0;
  // why there is no loss: the text of what ended it; empty: it came to its end
  std::string diverged;
  double loss = 0;                                // held-out, nats a byte, after the last step
  double seconds = 0;                             // spent in steps
  std::vector<std::pair<int64_t, double>> curve;  // step, held-out nats a byte
  double dropped = 0;  // in training, mean over MoE layers and the last tenth of the steps
  double max_vio = 0;  // the same, of each step's own tokens
  std::optional<LeagueRouting> routing;  // absent: a dense model, or it diverged
};
// Its loss; of one that diverged it is infinite.
double loss_of(const LeagueRun&);
Json to_json(const LeagueRun&);
LeagueRun read_league_run(const Json&, const std::string& where);

// A step of an arm and one of the twin, in turns: medians, milliseconds; `times`: that of the ratio
// of two neighbours, which a slow minute hardly moves.
struct LeagueClock {
  double arm_ms = 0, twin_ms = 0, times = 0;
};

// An arm as it enters: its recipe, and how it is matched to the twin.
struct LeagueArm {
  std::string name, recipe, source, title;
  std::string not_causal;  // why the held-out loss is falsely low; empty: it is not
  int64_t experts = 1, top_k = 1, expert_width = 0;  // of dense: one, as wide as the twin's
  int64_t shared_experts = 0, shared_width = 0;
  int64_t parameters = 0, active_parameters = 0;
  std::optional<LeagueClock> clock;  // absent: not measured yet
  // The share of the twin's time that it trains for, and what of model and training it sets itself;
  // 0: it takes as many steps as the twin, and works as much for a token.
  double time = 0;
  std::string own = {};
  int64_t steps = 0;  // of a run; 0: not known before its clock
};

// What all arms have alike.
struct LeagueMatch {
  std::string shape;  // "4 layers of width 128, 4 heads, olmoe's parts"
  std::string text, held_out, tokenizer, schedule, machine;
  int64_t active_width = 0;  // of the FFN, for each token
  int64_t steps = 0, step_tokens = 0;
  int64_t rates = 0, seeds = 0, finalists = 0;
  double minutes = 0;  // that the twin's steps were fitted to; 0: the steps were chosen
};

// An arm with what its runs came to.
struct LeagueRow {
  LeagueArm arm;
  double lr = 0;                                 // the best
  bool at_end = false;                           // no worse rate was run on both sides of it
  int64_t diverged = 0;                          // runs
  std::vector<std::pair<double, double>> rates;  // rate, loss of the first seed; not finite: none
  std::vector<double> losses;                    // at the best rate, by seed
  double loss = 0;                               // their mean
  double range = 0;                              // largest less smallest; 0 of one seed
  double seconds = 0;                            // median over the seeds
  std::optional<double> over_twin;    // a step's time over the twin's, by the arm's clock
  std::optional<double> run_times;    // a run's time over one of the twin, by the same
  std::optional<double> loss_change;  // loss less the twin's
  // after what share of its steps it is as good as the twin in the end; absent: never
  std::optional<double> reaches_twin;
  double dropped = 0, max_vio = 0;                // means over the seeds
  std::optional<LeagueRouting> routing;           // the first seed's
  std::vector<std::pair<int64_t, double>> curve;  // mean over the seeds
};

struct League {
  LeagueMatch match;
  std::vector<LeagueRow> rows;       // by loss; arms without a run that came to its end are last
  std::vector<std::string> waiting;  // arms without a finished run
  int64_t runs = 0;                  // that are done
  bool done = false;
};

// `arms` in their order; runs of other arms, or of other steps than their arm's, are passed over.
// The first seed is that of the rates.
League make_league(LeagueMatch, const std::vector<LeagueArm>& arms,
                   const std::vector<LeagueRun>& runs, uint64_t first_seed);
const LeagueRow* find_row(const League&, std::string_view arm);

// After which share of the last step the curve first reaches `loss`, between its points along a
// line; nothing where it never does.
std::optional<double> share_to_reach(const std::vector<std::pair<int64_t, double>>& curve,
                                     double loss);

// How far two arms must lie apart to count: the larger range of their seeds, that of the league's
// where one of them has a single seed. Nothing where no arm has several.
std::optional<double> noise_of(const League&, const LeagueRow&, const LeagueRow&);

}  // namespace moe
