#include "jobs/route.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "jobs/worked_routing.h"

namespace moe {
namespace {

RoutingSpec spec_of(WantedRouting flags, std::optional<EvalRouting> eval, const Json& input,
                    const std::string& where) {
  if (!chosen_recipe(flags).has_router())
    fail_usage("recipe '{}' has no router; name one that has (moe recipes lists them)",
               chosen_recipe(flags).name);
  const int64_t experts = route_experts(input, where);
  const int64_t zero = flags.zero_experts.value_or(0);
  if (flags.experts && experts > 0 && *flags.experts + zero != experts)
    fail_usage("@experts is {}, but {} speaks of {} experts; leave it out", *flags.experts, where,
               experts);
  if (experts > 0) flags.experts = experts - zero;
  const RoutingOptions options = routing_options(flags, 1);
  return eval ? eval_spec(options, *eval) : train_spec(options);
}

}  // namespace

FieldList fields(RouteOptions& o) {
  FieldList list = fields(o.routing);
  list.group("");
  list.add_choice(
      "eval", o.eval, eval_routing_names(),
      "the stages of an evaluation instead of training's: dropless, as-trained or threshold");
  list.add("draw", o.draw,
           "draw the recipe's noise and random choices; noise on inputs or logits needs \"x\"");
  list.add("seed", o.seed, "of what is drawn");
  return list;
}

std::string route_reply(const RouteOptions& f, Json& file, const std::string& where,
                        const OnRouted& on_routed) {
  if (!file.is_object())
    fail("{}: an object is needed, as in {{\"logits\": [[2, 1, 0, -1]]}}", where);
  const bool many = file.contains("cases");
  if (many) {
    JsonReader reader(file, where);
    reader.objects("cases");
    reader.refuse_unknown();
  }
  Json replies = Json::array();
  for (size_t i = 0; i < (many ? file["cases"].size() : 1); ++i) {
    Json& input = many ? file["cases"][i] : file;
    const std::string at = many ? fmt::format("{}: \"cases\"[{}]", where, i) : where;
    if (f.draw) input["draw"] = true;
    const RoutingSpec spec = spec_of(f.routing, f.eval, input, at);
    replies.push_back(route(spec, input, at, f.seed));
    if (on_routed) on_routed(i, spec, input, replies.back());
  }
  return many ? Json({{"cases", replies}}).dump() : replies.at(0).dump();
}

}  // namespace moe
