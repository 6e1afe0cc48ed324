// metrics.jsonl: one JSON object a step, appended as it happens (StepLines).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/alarms.h"
#include "train/trainer.h"

namespace moe {

// The line of one step, without the newline.
std::string metrics_line(const StepResult&, std::optional<double> eval_ce,
                         std::span<const Alarm> alarms = {});
// What a line says about the step, as far as alarms look at it; nothing when it is no such line.
std::optional<StepResult> parse_metrics_line(std::string_view line, const std::string& where);

// The evaluation that a line tells of, if any.
std::optional<BestEvaluation> parse_evaluation(std::string_view line, const std::string& where);

}  // namespace moe
