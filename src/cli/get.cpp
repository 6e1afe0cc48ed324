// What ready-made models there are, and fetching them by name.
#include "hub/fetch.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string name;
  bool list = false, remove = false, json = false;
  Given given;
};

Json reply_of(const KnownModel& model) {
  return {{"name", model.name},       {"what", model.what},
          {"licence", model.licence}, {"download_bytes", model.wheel_bytes},
          {"bytes", model.bytes},     {"path", cached_path(model)},
          {"here", is_cached(model)}};
}

void list_models(bool json) {
  if (json) {
    Json all = Json::array();
    for (const KnownModel& model : known_models()) all.push_back(reply_of(model));
    return print_json({{"folder", model_cache()}, {"models", all}});
  }
  fmt::print("{:<10} {:>9}  {:<10}  {}\n", "name", "size", "here", "what");
  for (const KnownModel& model : known_models())
    fmt::print("{:<10} {:>9}  {:<10}  {} ({})\n", model.name,
               human_bytes(static_cast<double>(model.bytes)), is_cached(model) ? "yes" : "no",
               model.what, model.licence);
  fmt::print("moe get NAME fetches one into {}, moe get --remove NAME removes it\n", model_cache());
}

int run_get(const Flags& f) {
  if (f.list && (f.remove || !f.name.empty()))
    fail_usage("--list shows what there is and takes nothing beside it");
  if (f.remove && f.name.empty())
    fail_usage("--remove needs a name, as in moe get --remove {}", known_models()[0].name);
  if (f.name.empty()) {
    list_models(f.json);
    return 0;
  }
  const KnownModel& model = known_model(f.name);
  if (f.remove) remove_model(model, on_screen());
  else fetch_model(model, on_screen());
  if (f.json) print_json(reply_of(model));
  else if (!f.remove) fmt::print("{}\n", cached_path(model));
  return 0;
}

}  // namespace

Action add_get(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("NAME", f->name,
           "the model to fetch; its path is printed. Without a name: what there is, and what is "
           "here")
      .positional()
      .values(known_model_names());
  list.add("list", f->list, "what there is, and what is here");
  list.add("remove", f->remove, "remove the model NAME again");
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  app.footer(
      "A model is fetched once, by pip from Python's package index, into "
      "${MOE_CACHE:-~/.cache/moe.cpp}. Its name then works wherever a MODEL does; a file or\n"
      "folder of that name comes first.");
  return [f] { return run_get(*f); };
}

}  // namespace moe::cli
