// What needs no model at hand: training one, and the recipes.
#include <CLI/App.hpp>
#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "api/call.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe::api {
namespace {

// Flags and numbers stand in one object. What is called like a flag goes to `options`, what nearly is was mistyped; the rest is the input, whose reader refuses
// names that it does not know.
void part(const CLI::App& app, const Json& from, Json& options, Json& input) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) flags.push_back(option->get_single_name());
  for (const auto& [key, value] : from.items()) {
    std::string flag = key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool is_flag = std::find(flags.begin(), flags.end(), flag) != flags.end();
    if (!is_flag && nearest(flag, flags)) fail_usage("input: \"{}\" is not known here{}", printable(key), suggestion(flag, flags));
    (is_flag ? options : input)[key] = value;
  }
}

std::string work_route(const std::string& text) {
  const Json from = parse_json(text, "input");
  if (!from.is_object()) fail_usage("input: an object is needed, as in {{\"recipe\": \"mixtral\", \"logits\": [[2, 1, 0, -1]]}}");
  cli::RouteFlags flags;
  CLI::App app;
  app.set_help_flag();  // before part() asks for the names
  cli::add_route_options(app, flags);
  Json options = Json::object(), input = Json::object();
  part(app, from, options, input);
  apply_options(app, std::move(options), "input");
  return cli::route_reply(flags, input, "input");
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
    *json = given(cli::recipes_reply());
  });
}

moe_status moe_train(const char* options, moe_on_step on_step, void* user, char** json) {
  return guarded([&] {
    if (json != nullptr) *json = nullptr;
    cli::TrainFlags flags;
    CLI::App app;
    cli::add_training_options(app, flags);
    apply_options(app, options);
    cli::Training training(app, flags);
    std::atomic<bool> stop{false};
    TrainCallbacks callbacks;
    if (on_step != nullptr) callbacks.on_metrics = [&](const std::string& line) { stop = on_step(user, line.c_str()) != 0; };
    if (!training.is_done() && training.must_fit()) training.fit(0, stop);
    const TrainSummary summary = training.is_done() ? training.done() : training.run(callbacks, stop);
    if (json != nullptr) *json = given(cli::train_reply(training, summary).dump(-1, ' ', false, Json::error_handler_t::replace));
  });
}
}
