// metrics.jsonl: one JSON object a step, appended as it happens (StepLines).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/json.h"
#include "train/alarms.h"
#include "train/trainer.h"

namespace moe {

// The line of one step, without the newline.
std::string metrics_line(const StepResult&, const std::optional<Evaluation>& eval,
                         std::span<const Alarm> alarms = {});
// "ce 1.234", of a step for a person; in words where it had no target.
std::string described_ce(double ce);
// Of preference pairs: "dpo", "margin" and "accuracy", each behind the prefix.
void add_figures(Json& line, const std::string& prefix, const PairFigures& pairs);
// The line of a step whose evaluation was taken later, without the newline. Fails where it is no
// JSON.
std::string with_evaluation(std::string_view line, const Evaluation&, const std::string& where);
// What a line says about the step, as far as alarms look at it; nothing when it is no such line.
std::optional<StepResult> parse_metrics_line(std::string_view line, const std::string& where);

// The evaluation that a line tells of, if any.
std::optional<BestEvaluation> parse_evaluation(std::string_view line, const std::string& where);

// Whether the last line of the file is that of this step, and tells of no evaluation.
bool ends_without_evaluation(const std::string& metrics, int64_t step);

}  // namespace moe
