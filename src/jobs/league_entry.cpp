#include "jobs/league_entry.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "options/read.h"

namespace moe {
namespace {

// Of the fields of the routing those that say where experts stand.
FieldList take_places(FieldList& routing) {
  return routing.take({"moe_every", "dense_first", "moe_layers"});
}

}  // namespace

FieldList shape_fields(WantedModel& m) {
  FieldList all = fields(m), shape = all.in_group("Model");
  shape.add(take_places(all));
  return shape;
}

FieldList entry_fields(WantedModel& m) {
  FieldList routing = fields(m).in_group("Routing");
  take_places(routing);
  return routing;
}

// Losses are of windows of one length, and of the same seeds; where a run works is the league's.
FieldList own_training_fields(TrainOptions& o) {
  FieldList list = fields(o).in_group("Training");
  list.take({"context", "steps", "seed", "threads", "device", "expert_parallel", "replans"});
  return list;
}

LeagueEntry read_entry(const std::string& path) {
  LeagueEntry entry;
  FieldList list = entry_fields(entry.wanted);
  Given given;
  Json file = read_json(path);
  const bool timed = file.is_object() && file.contains("time");
  if (timed) {
    list.add("time", entry.time, "the share of the dense twin's time that the arm trains for");
    list.add(shape_fields(entry.wanted));
    list.add(own_training_fields(entry.train));
  } else if (file.is_object() && !file.contains("recipe") && !file.contains("stages")) {
    // A file of stages, as @stages takes it, is an entry too.
    file = Json{{"stages", std::move(file)}};
  }
  read_options(list, file, path, GivenBy::config, given);
  WantedRouting& routing = entry.wanted.routing;
  if (routing.recipe.empty()) routing.recipe = chosen_recipe(routing).name;
  if (!routing.stages.empty()) routing.stages = routing_options(routing, 1).stages;
  if (!timed) return entry;
  if (!(entry.time > 0 && entry.time <= 100))
    fail_usage("{}: \"time\" is {}; it must be above 0 and at most 100 times the dense twin's",
               path, entry.time);
  for (const FieldList& of_own : {shape_fields(entry.wanted), own_training_fields(entry.train)})
    for (const Field& field : of_own)
      if (given.has(field.name)) entry.sets.push_back(field.name);
  return entry;
}

}  // namespace moe
