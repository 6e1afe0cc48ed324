// metrics.jsonl of a training run as a chart can show it: thinned to a few hundred points, each the
// mean over an equal span of steps.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "analyze/data/report.h"

namespace moe {

// at most; at least half of it once a run has had that many steps
constexpr int64_t kHistoryPoints = 512;

// A last line that a kill cut short is passed over; any other broken line is an error that names
// it. Steps must not fall. Unknown keys are passed over, and rows without "ce" and "layers" give
// only what else they hold ("eval_ce", "alarms"). A point's ce is NaN where none of its steps had
// anything to predict.
TrainingHistory parse_history(std::istream&, const std::string& where);
// FOLDER/metrics.jsonl; nothing where there is none.
std::optional<TrainingHistory> read_history(const std::string& folder);

}  // namespace moe
