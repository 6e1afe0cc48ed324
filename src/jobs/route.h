// A routing recipe worked out on given numbers (jobs/worked_routing.h), with its options: the body
// of `moe route` and of moe_route().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/json.h"
#include "moe/recipes/wanted_routing.h"

namespace moe {

struct RouteOptions {
  WantedRouting routing;
  std::optional<EvalRouting> eval;  // absent: the stages of training
  uint64_t seed = 1;
  bool draw = false;
};
FieldList fields(RouteOptions&);

// Told each case as it is worked out.
using OnRouted =
    std::function<void(size_t index, const RoutingSpec&, const Json& input, const Json& reply)>;
// `file`: one input of jobs/worked_routing.h, or {"cases": [inputs]}; `where` opens every message.
std::string route_reply(const RouteOptions&, Json& file, const std::string& where,
                        const OnRouted& on_routed = {});

}  // namespace moe
