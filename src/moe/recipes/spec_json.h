// Routing stages as JSON, for the recipe `custom`, for config.json and for `moe recipes --json`.
// One object; a stage is its name, or {"type": name, parameters}:
//   {"base": "mixtral", "noise": {"type": "learned", "floor": 0.01}, "score": "softmax",
//    "select": {"type": "grouped_top_k", "groups": 4, "keep": 2, "group_top": 2,
//               "bias": {"rate": 0.001}},
//    "weigh": {"type": "scores", "renormalise": "before_drop"}, "second": "all",
//    "capacity": {"type": "buffer", "factor": 1.25, "order": "token_major", "scope": "sequence"},
//    "capacity_eval": "dropless",
//    "losses": {"balance": {"counts": "all_choices", "probs": "scores", "scope": {"group": 512}},
//               "importance": true}}
// `base` names a recipe whose stages hold where the object says nothing; without it the missing
// ones are none, softmax, top_k, scores, all, dropless, no losses. That goes down to the
// parameters: a stage of the base's own type keeps those that the object does not name, and so does
// a loss. `false` switches a loss or a selection bias of the base off, `true` switches one on as it
// is by default. The names of members and parameters are those of the stages' own `kName` and
// `fields`; unknown ones are refused with the nearest known.
#pragma once

#include <string>

#include "core/json.h"
#include "moe/router.h"

namespace moe {

struct CustomStages {
  RoutingSpec train;
  CapacityStage eval_as_trained;
};

// `where` names the file in errors.
CustomStages stages_from_json(const Json&, const std::string& where);
CustomStages parse_stages(const std::string& text, const std::string& where);
// Complete: every stage with every parameter, no base. Reads back to the same.
Json to_json(const RoutingSpec& train, const CapacityStage& eval_as_trained);

}  // namespace moe
