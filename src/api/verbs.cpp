// What needs no model at hand: training one, and the recipes.
#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "api/call.h"
#include "api/options.h"
#include "core/json.h"
#include "core/nearest.h"
#include "jobs/recipes.h"
#include "jobs/replies.h"
#include "jobs/route.h"

namespace moe::api {
namespace {

// Options and numbers stand in one object. What is called like an option goes to `options`, what
// nearly is was mistyped; the rest is the input, whose reader refuses names that it does not know.
void part(const FieldList& list, const Json& from, Json& options, Json& input) {
  const std::vector<std::string> names = names_of(list);
  for (const auto& [key, value] : from.items()) {
    const bool is_option = list.find(key) != nullptr;
    if (!is_option && nearest(key, names))
      fail_usage("input: \"{}\" is not known here{}", printable(key), suggestion(key, names));
    (is_option ? options : input)[key] = value;
  }
}

std::string work_route(const std::string& text) {
  const Json from = parse_json(text, "input");
  if (!from.is_object())
    fail_usage(
        "input: an object is needed, as in {{\"recipe\": \"mixtral\", \"logits\": [[2, 1, 0, "
        "-1]]}}");
  RouteOptions asked;
  FieldList list = fields(asked);
  Json options = Json::object(), input = Json::object();
  part(list, from, options, input);
  read_caller_options(std::move(list), std::move(options), "input");
  return route_reply(asked, input, "input");
}

}  // namespace
}  // namespace moe::api

using namespace moe;
using namespace moe::api;

extern "C" {

moe_status moe_route(const char* input, char** json) {
  return guarded([&] {
    need(json, "moe_route: json") = nullptr;
    *json = given(work_route(need_string(input, "moe_route: input")));
  });
}

moe_status moe_recipes(char** json) {
  return guarded([&] {
    need(json, "moe_recipes: json") = nullptr;
    *json = given(recipes_reply());
  });
}

moe_status moe_options(const char* function, char** json) {
  return guarded([&] {
    need(json, "moe_options: json") = nullptr;
    *json = given(describe_options(need_string(function, "moe_options: function")).dump());
  });
}

moe_status moe_train(const char* options, moe_on_step on_step, void* user, char** json) {
  return guarded([&] {
    if (json != nullptr) *json = nullptr;
    RunOptions asked;
    const Given by_caller = read_caller_options(fields(asked), options);
    Training training(asked, by_caller);
    std::atomic<bool> stop{false};
    TrainCallbacks callbacks;
    if (on_step != nullptr)
      callbacks.on_metrics = [&](const std::string& line) {
        stop = on_step(user, line.c_str()) != 0;
      };
    if (!training.is_done() && training.must_fit()) training.fit(0, stop);
    const TrainSummary summary =
        training.is_done() ? training.done() : training.run(callbacks, stop);
    if (json != nullptr) *json = given(one_line_json(train_reply(training, summary)));
  });
}
}
