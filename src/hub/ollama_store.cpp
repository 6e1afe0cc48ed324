#include "hub/ollama_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "hub/hub_cache.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxManifest = size_t{1} << 20;

struct OllamaName {
  std::vector<std::string> words;  // NAME, before it OWNER, before that HOST
  std::string tag = "latest";
};

std::optional<OllamaName> parse_ollama_name(std::string_view text) {
  OllamaName name;
  if (const size_t colon = text.find(':'); colon != text.npos) {
    name.tag = text.substr(colon + 1);
    text = text.substr(0, colon);
  }
  for (size_t slash = 0; slash != text.npos; text.remove_prefix(slash + 1)) {
    slash = text.find('/');
    name.words.emplace_back(text.substr(0, slash));
    if (slash == text.npos) break;
  }
  const bool plain = is_plain_name(name.tag) && name.words.size() <= 3 &&
                     std::all_of(name.words.begin(), name.words.end(), is_plain_name);
  return plain ? std::optional(name) : std::nullopt;
}

// Of the hosts that models were fetched from, the first that has it.
std::optional<std::string> find_manifest(const std::string& store, const OllamaName& name) {
  constexpr const char* kUsualOwner = "library";
  std::vector<std::string> below = name.words, hosts;
  if (below.size() == 3) {
    hosts.push_back(below[0]);
    below.erase(below.begin());
  }
  if (below.size() == 1) below.insert(below.begin(), kUsualOwner);
  std::error_code error;
  if (hosts.empty())
    for (const auto& entry : fs::directory_iterator(store + "/manifests", error))
      hosts.push_back(entry.path().filename().string());
  std::sort(hosts.begin(), hosts.end());
  for (const std::string& host : hosts) {
    const std::string path =
        fmt::format("{}/manifests/{}/{}/{}", store, host, fmt::join(below, "/"), name.tag);
    if (fs::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

// The hash of the layer that is the model, in hexadecimal digits.
std::string hash_of_model(const std::string& manifest) {
  constexpr std::string_view kModelLayer = ".image.model", kKind = "sha256:";
  const Json json = read_json(manifest, kMaxManifest);
  for (const JsonReader& layer : JsonReader(json, manifest).objects("layers")) {
    if (!layer.get<std::string>("mediaType").ends_with(kModelLayer)) continue;
    const auto digest = layer.get<std::string>("digest");
    if (!digest.starts_with(kKind) || !is_hex(digest.substr(kKind.size())))
      fail("{}: \"digest\" is \"{}\", no sha256", manifest, printable(digest));
    return digest.substr(kKind.size());
  }
  fail("{}: no layer of it is a model of text", manifest);
}

}  // namespace

std::string ollama_store() {
  if (const char* const named = std::getenv("OLLAMA_MODELS"); named != nullptr && *named != '\0')
    return named;
  const char* const home = std::getenv("HOME");
  const std::string own = std::string(home != nullptr ? home : "") + "/.ollama/models";
  std::error_code ignored;
  return fs::is_directory(own, ignored) ? own : "/usr/share/ollama/.ollama/models";
}

std::string find_in_ollama(const std::string& model) {
  const std::string text = model.substr(kOllamaPrefix.size()), store = ollama_store();
  const std::optional<OllamaName> name = parse_ollama_name(text);
  if (!name) fail("{}: this is no name of a model of Ollama's, such as ollama:qwen3:0.6b", model);
  const std::optional<std::string> manifest = find_manifest(store, *name);
  if (!manifest)
    fail("{}: there is no such model in Ollama's store ({}); `ollama pull {}` fetches it", model,
         store, text);
  std::string file = fmt::format("{}/blobs/sha256-{}", store, hash_of_model(*manifest));
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored))
    fail("{}: it is not here as a whole, {} is missing; `ollama pull {}` fetches the rest", model,
         file, text);
  return file;
}

}  // namespace moe
