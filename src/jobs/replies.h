// What verbs of the command print with --json and functions of the library hand out.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "evaluate/score.h"
#include "infer/generate.h"
#include "jobs/training.h"
#include "model/cost.h"

namespace moe {

Json generate_reply(const std::string& prompt, const Generated&);
// How fast it was read and written, in one line.
std::string describe_speed(const Generated&);

// How a text is scored by this model, once what was left open is decided.
struct ScorePlan {
  ScoreOptions options;
  EvalRouting routing = EvalRouting::dropless;
  std::string_view not_causal_because;  // empty: it is causal
};
// `asked`: its window may be 0, the default.
ScorePlan score_plan(const ScoreOptions& asked, const ModelConfig&);
Json score_reply(const Score&, const ScorePlan&);

Json inspect_reply(const ModelConfig&, const TrainingShape&, OptimizerKind = OptimizerKind::adamw);
Json train_reply(Training&, const TrainSummary&);

}  // namespace moe
