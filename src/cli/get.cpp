// What ready-made models there are, and fetching them by name.
#include "hub/fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/words.h"
#include "hub/hub_cache.h"
#include "hub/ollama_store.h"

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

Json reply_of(const HubModel& model) {
  return {{"name", model.name},
          {"kind", model.kind},
          {"bytes", model.bytes},
          {"path", model.path},
          {"whole", model.whole}};
}

void print_hub_models(const std::vector<HubModel>& models) {
  const std::string cache = hub_cache();
  if (models.empty()) {
    fmt::print(
        "\n`hf download OWNER/NAME` puts a model of Hugging Face's into {}; OWNER/NAME is then a "
        "MODEL too\n",
        cache.empty() ? "its cache" : cache);
    return;
  }
  size_t width = 0;
  for (const HubModel& model : models) width = std::max(width, model.name.size());
  fmt::print("\nin Hugging Face's cache, {}:\n{:<{}} {:>9}  {}\n", cache, "name", width, "size",
             "what");
  for (const HubModel& model : models)
    fmt::print("{:<{}} {:>9}  {}{}\n", model.name, width,
               human_bytes(static_cast<double>(model.bytes)), model.kind,
               model.whole ? "" : ", a part of it");
}

void list_models(bool json) {
  const std::vector<HubModel> of_hub = models_in_hub_cache();
  if (json) {
    Json all = Json::array(), cached = Json::array();
    for (const KnownModel& model : known_models()) all.push_back(reply_of(model));
    for (const HubModel& model : of_hub) cached.push_back(reply_of(model));
    return print_json({{"folder", model_cache()},
                       {"models", all},
                       {"hub", {{"folder", hub_cache()}, {"models", cached}}}});
  }
  fmt::print("{:<10} {:>9}  {:<10}  {}\n", "name", "size", "here", "what");
  for (const KnownModel& model : known_models())
    fmt::print("{:<10} {:>9}  {:<10}  {} ({})\n", model.name,
               human_bytes(static_cast<double>(model.bytes)), is_cached(model) ? "yes" : "no",
               model.what, model.licence);
  fmt::print("moe get NAME fetches one into {}, moe get --remove NAME removes it\n", model_cache());
  print_hub_models(of_hub);
}

// The oldest repositories have no owner in their name.
bool is_of_others(const std::string& name) {
  const std::vector<std::string> own = known_model_names();
  if (std::find(own.begin(), own.end(), name) != own.end()) return false;
  if (name.find('/') != name.npos || name.starts_with(kOllamaPrefix)) return true;
  const std::optional<HubName> hub = parse_hub_name(name);
  std::error_code ignored;
  return hub && std::filesystem::is_directory(hub_place(*hub), ignored);
}

// OWNER/NAME and ollama:NAME are looked up, and other programs fetch and remove them.
int show_other(const std::string& name, const Flags& f) {
  const std::optional<HubName> hub =
      name.starts_with(kOllamaPrefix) ? std::nullopt : parse_hub_name(name);
  if (f.remove)
    fail_usage("{} was fetched by another program, which removes it too{}", name,
               hub ? fmt::format(": hf cache rm model/{}", hub->repository) : "");
  const std::string path = find_model(name);
  if (std::error_code ignored; !std::filesystem::exists(path, ignored)) {
    if (!hub) fail("{}: there is no such file", name);
    fail(
        "{} is not in Hugging Face's cache, and moe get fetches only what it lists; `{}` fetches "
        "it, and {} is then a MODEL",
        name, fetch_command(*hub), name);
  }
  if (f.json) print_json({{"name", name}, {"path", path}, {"here", true}});
  else fmt::print("{}\n", path);
  return 0;
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
  if (is_of_others(f.name)) return show_other(f.name, f);
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
           "the model to fetch; its path is printed. Without a name: what there is, what is here, "
           "and which models are in Hugging Face's cache")
      .positional()
      .values(known_model_names());
  list.add("list", f->list, "what there is, and what is here");
  list.add("remove", f->remove, "remove the model NAME again");
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  app.footer(
      "A model is fetched once, by pip from Python's package index, into "
      "${MOE_CACHE:-~/.cache/moe.cpp}. Its name then works wherever a MODEL does; a file or folder "
      "of that name comes first. So does OWNER/NAME (@REVISION, or :Q4_K_M of .gguf files) of what "
      "`hf download`, transformers or llama.cpp's -hf left in Hugging Face's cache, and "
      "ollama:NAME[:TAG] of what Ollama has pulled. Nothing of these is fetched here.");
  return [f] { return run_get(*f); };
}

}  // namespace moe::cli
