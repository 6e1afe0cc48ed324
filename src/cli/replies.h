// What verbs share with the library (src/api): their options beside the model and the text, and what they print with --json. Each stands in the file of its
// verb.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/routing_options.h"
#include "cli/training.h"
#include "core/json.h"
#include "infer/generate.h"
#include "infer/score.h"
#include "model/cost.h"

namespace moe::cli {

struct GenerateFlags {
  GenerateOptions options;
  std::string routing, cache_dtype;
};
void add_generate_options(CLI::App& app, GenerateFlags& flags);
GenerateOptions generate_options(const GenerateFlags&);
Json generate_reply(const std::string& prompt, const Generated&);

struct ScoreFlags {
  ScoreOptions options{.window = 0};  // 0: the default
  std::string routing;
};
// What was left open is decided by the model.
struct ScorePlan {
  ScoreOptions options;
  EvalRouting routing = EvalRouting::dropless;
  std::string_view not_causal_because;  // empty: it is causal
};
void add_score_options(CLI::App& app, ScoreFlags& flags);
ScorePlan score_plan(const ScoreFlags&, const ModelConfig&);
Json score_reply(const Score&, const ScorePlan&);

Json inspect_reply(const ModelConfig&, const TrainingShape&);
std::string recipes_reply();

struct RouteFlags {
  RoutingFlags routing;
  std::string eval;
  uint64_t seed = 1;
  bool draw = false;
};
void add_route_options(CLI::App& app, RouteFlags& flags);
// Told each case as it is worked out.
using OnRouted = std::function<void(size_t index, const RoutingSpec&, const Json& input, const Json& reply)>;
// `file`: one input of moe/route.h, or {"cases": [inputs]}; `where` opens every message.
std::string route_reply(const RouteFlags&, Json& file, const std::string& where, const OnRouted& on_routed = {});

Json train_reply(Training&, const TrainSummary&);

}  // namespace moe::cli
