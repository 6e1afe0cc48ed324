#include "hub/hub_cache.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "formats/gguf_types.h"
#include "hub/adapter.h"
#include "hub/foreign.h"
#include "hub/hub.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestWord = 96;  // of an owner or a repository, by huggingface_hub
constexpr size_t kLongestRef = 256;  // a file of refs/ holds 40 digits
constexpr size_t kShownFiles = 8;
constexpr int kDeepestFolder = 3;  // below a snapshot; some repositories have one for each type
constexpr std::string_view kFolderPrefix = "models--", kMain = "main";

// What lies beside models as .gguf, as llama.cpp's -hf tells it apart: towers for pictures, means
// of activations, heads that guess tokens.
constexpr std::string_view kBesideModels[] = {"mmproj",  "imatrix", "mtp-",
                                              "eagle3-", "dflash-", "dspark-"};

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
char in_lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);  // what a link leads to
}
bool is_folder_there(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
int64_t bytes_of_file(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

bool is_repository_word(std::string_view word) {
  return is_plain_name(word) && word.find("--") == word.npos;  // "--" stands for the '/' on disk
}
// A branch may have folders, as "refs/pr/1".
bool is_revision(std::string_view text) {
  for (;;) {
    const size_t slash = text.find('/');
    if (!is_plain_name(text.substr(0, slash))) return false;
    if (slash == text.npos) return true;
    text.remove_prefix(slash + 1);
  }
}

std::string home_for_tilde(const std::string& path) {
  const char* const home = std::getenv("HOME");
  return path.starts_with("~/") && home != nullptr ? home + path.substr(1) : path;
}

// ---- revisions ----------------------------------------------------------------------------------

std::string read_commit(const std::string& ref) {
  std::string text = read_text(ref, kLongestRef);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  if (!is_hex(text))
    fail("{}: it should hold the name of a commit and holds \"{}\"; remove it and fetch anew", ref,
         printable(text, 60));
  return text;
}

std::vector<std::string> snapshots_in(const std::string& place) {
  std::vector<std::string> commits;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(place + "/snapshots", error))
    if (std::string name = entry.path().filename().string();
        is_hex(name) && is_folder_there(entry.path().string()))
      commits.push_back(std::move(name));
  std::sort(commits.begin(), commits.end());
  return commits;
}

std::optional<std::string> commit_of(const HubName& name, const std::string& place) {
  const std::string revision = name.revision.empty() ? std::string(kMain) : name.revision;
  if (const std::string ref = place + "/refs/" + revision; is_file(ref)) return read_commit(ref);
  if (is_hex(revision)) return revision;
  if (!name.revision.empty()) return std::nullopt;
  const std::vector<std::string> commits = snapshots_in(place);  // fetched by a commit's name
  return commits.size() == 1 ? std::optional(commits[0]) : std::nullopt;
}

// The snapshots, each with what stands behind the repository's name for it.
std::map<std::string, std::string> said_revisions(const std::string& place) {
  std::map<std::string, std::string> said;
  for (const std::string& commit : snapshots_in(place)) said[commit] = "@" + commit;
  const std::string refs = place + "/refs";
  if (said.size() == 1 && !is_file(refs + "/" + std::string(kMain))) said.begin()->second = "";
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(refs, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const std::string revision = it->path().lexically_relative(refs).string();
    if (!is_file(it->path().string()) || !is_revision(revision)) continue;
    try {
      const std::string commit = read_commit(it->path().string());
      const auto found = said.find(commit);
      if (found == said.end()) continue;
      if (revision == kMain) found->second = "";
      else if (found->second == "@" + commit) found->second = "@" + revision;
    } catch (const Error&) {  // it names nothing then
    }
  }
  return said;
}

// ---- .gguf files --------------------------------------------------------------------------------

struct CachedGguf {
  std::string path;   // of the first of its files
  std::string label;  // below the snapshot, without the end of the name that all have
  int64_t parts = 1;
};

// As gguf::part_name makes it; label and parts of what is no part stay what they are.
void read_part(const std::string& name, std::string& label, int64_t& parts) {
  constexpr size_t kDigits = 5;
  const size_t ending = gguf::part_name("", 0, 1).size();
  if (name.size() <= ending) return;
  const char *const end = name.data() + name.size() - std::string_view(".gguf").size(),
                    *const begin = name.data() + name.size() - ending + 1;
  int64_t part = 0, of = 0;
  std::from_chars(begin, begin + kDigits, part);
  std::from_chars(end - kDigits, end, of);
  const std::string stem = name.substr(0, name.size() - ending);
  if (part < 1 || part > of || name != gguf::part_name(stem, part - 1, of)) return;
  label = stem;
  parts = of;
}

// Also those of which only a part is here.
std::vector<CachedGguf> gguf_files(const std::string& snapshot) {
  constexpr std::string_view kEnd = ".gguf";
  std::map<std::string, CachedGguf> found;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(snapshot, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it.depth() >= kDeepestFolder) it.disable_recursion_pending();
    const std::string name = it->path().lexically_relative(snapshot).string(),
                      last = it->path().filename().string();
    const auto stands_in_it = [&](std::string_view word) { return last.find(word) != last.npos; };
    if (!name.ends_with(kEnd) || is_folder_there(it->path().string()) ||
        std::any_of(std::begin(kBesideModels), std::end(kBesideModels), stands_in_it))
      continue;
    CachedGguf file{"", name.substr(0, name.size() - kEnd.size()), 1};
    read_part(name, file.label, file.parts);
    file.path =
        snapshot + "/" + (file.parts > 1 ? gguf::part_name(file.label, 0, file.parts) : name);
    found.emplace(file.path, file);
  }
  std::vector<CachedGguf> files;
  for (const auto& [path, file] : found) files.push_back(file);
  return files;
}

std::vector<std::string> paths_of(const CachedGguf& file) {
  if (file.parts == 1) return {file.path};
  const std::string stem =
      file.path.substr(0, file.path.size() - gguf::part_name("", 0, file.parts).size());
  std::vector<std::string> paths;
  for (int64_t i = 0; i < file.parts; ++i) paths.push_back(gguf::part_name(stem, i, file.parts));
  return paths;
}

// In either case, and whole: Q4_K is no word of "model-Q4_K_M", nor Q4_0 of "IQ4_0".
bool has_type(const CachedGguf& file, std::string_view type) {
  const std::string& text = file.label;
  const auto same = [](char a, char b) { return in_lower_case(a) == in_lower_case(b); };
  for (auto from = text.begin();;) {
    const auto at = std::search(from, text.end(), type.begin(), type.end(), same);
    if (at == text.end()) return false;
    const auto end = at + static_cast<std::ptrdiff_t>(type.size());
    if ((at == text.begin() || !is_letter_or_digit(at[-1])) &&
        (end == text.end() || !(is_letter_or_digit(*end) || *end == '_')))
      return true;
    from = at + 1;
  }
}

// What stands behind ':' for the file: its type where no other has that in its name.
std::string type_among(const CachedGguf& file, const std::vector<CachedGguf>& all) {
  const std::string name = file.label.substr(file.label.rfind('/') + 1),
                    last = name.substr(name.find_last_of("-.") + 1);
  const auto has_it = [&](const CachedGguf& other) { return has_type(other, last); };
  return is_plain_name(last) && std::count_if(all.begin(), all.end(), has_it) == 1 ? last : name;
}

std::string shown(const HubName& name, const std::vector<CachedGguf>& chosen,
                  const std::vector<CachedGguf>& all) {
  std::vector<std::string> names;
  for (const CachedGguf& file : chosen)
    if (names.size() < kShownFiles)
      names.push_back(as_text({name.repository, name.revision, printable(type_among(file, all))}));
  return fmt::format("{}{}", fmt::join(names, ", "), names.size() < chosen.size() ? ", ..." : "");
}

const CachedGguf& the_one(const HubName& name, const std::vector<CachedGguf>& all) {
  std::vector<CachedGguf> chosen;
  const CachedGguf* last = nullptr;
  for (const CachedGguf& file : all) {
    if (!name.type.empty() && !has_type(file, name.type)) continue;
    chosen.push_back(file);
    last = &file;
  }
  if (chosen.size() > 1)
    fail("{}: {} .gguf files are meant; say which: {}", as_text(name), chosen.size(),
         shown(name, chosen, all));
  if (chosen.empty() && !all.empty())
    fail("{}: no .gguf file that is here has {} in its name (here are {}); `{}` fetches it",
         as_text(name), name.type, shown(name, all, all), fetch_command(name));
  if (chosen.empty())
    fail("{}: {} holds {}; `{}` fetches the rest", as_text(name), hub_place(name),
         name.type.empty() ? "neither config.json nor a .gguf file" : "no .gguf file",
         fetch_command(name));
  return *last;
}

// ---- folders ------------------------------------------------------------------------------------

// Repositories of .gguf files often have the config.json of what they were made from beside them.
bool opens_as_folder(const std::string& snapshot, const std::vector<CachedGguf>& files) {
  if (is_adapter(snapshot)) return true;
  return is_file(snapshot + "/config.json") &&
         (files.empty() || is_file(snapshot + "/model.safetensors") ||
          is_file(snapshot + "/model.safetensors.index.json"));
}

std::set<std::string> files_of_weights(const std::string& snapshot) {
  if (is_adapter(snapshot)) return {"adapter_model.safetensors"};
  const std::string single = "model.safetensors", index = snapshot + "/" + single + ".index.json";
  if (is_file(snapshot + "/" + single)) return {single};
  if (!is_file(index)) {
    // what else is there is for the reader to refuse
    const std::optional<std::string> other = foreign_weights(snapshot);
    return other && !other->ends_with(".safetensors") ? std::set<std::string>{} : std::set{single};
  }
  const Json json = read_json(index);
  const JsonReader reader(json, index), map = reader.object("weight_map");
  std::set<std::string> files;
  for (const std::string& tensor : map.keys()) files.insert(map.get<std::string>(tensor));
  return files;
}

std::vector<std::string> absent_files(const std::string& snapshot) {
  constexpr const char* kOfTokenizer[] = {"tokenizer.json", "tokenizer.model",
                                          "tokenizer_config.json", "vocab.json"};
  std::vector<std::string> absent;
  for (const std::string& file : files_of_weights(snapshot))
    if (!is_file(snapshot + "/" + file)) absent.push_back(file);
  const auto is_here = [&](const char* name) { return is_file(snapshot + "/" + name); };
  if (!is_adapter(snapshot) &&
      std::none_of(std::begin(kOfTokenizer), std::end(kOfTokenizer), is_here))
    absent.emplace_back(kOfTokenizer[0]);
  return absent;
}

std::vector<std::string> absent_files(const CachedGguf& file) {
  std::vector<std::string> absent;
  for (const std::string& path : paths_of(file))
    if (!is_file(path)) absent.push_back(fs::path(path).filename().string());
  return absent;
}

void refuse_absent(const HubName& name, const std::vector<std::string>& absent) {
  if (absent.empty()) return;
  fail("{}: it is not here as a whole, {}{} is missing; `{}` fetches the rest", as_text(name),
       printable(absent[0]),
       absent.size() > 1 ? fmt::format(", with {} more,", absent.size() - 1) : "",
       fetch_command(name));
}

// ---- all of them --------------------------------------------------------------------------------

std::optional<std::string> repository_in(const std::string& folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  std::string text = folder.substr(kFolderPrefix.size());
  if (const size_t at = text.find("--"); at != text.npos) text.replace(at, 2, "/");
  const std::optional<HubName> name = parse_hub_name(text);
  return name && name->repository == text ? std::optional(text) : std::nullopt;
}

// Nothing where its configuration is of a kind that is not read.
std::optional<HubModel> folder_model(const std::string& name, const std::string& snapshot) {
  HubModel model{name, snapshot, "adapter", 0, true};
  try {
    const ModelConfig config = read_model_config(snapshot);
    if (!is_adapter(snapshot)) model.kind = config.model_type;
    model.whole = absent_files(snapshot).empty();
    for (const std::string& file : files_of_weights(snapshot))
      model.bytes += bytes_of_file(snapshot + "/" + file);
  } catch (const Error&) {
    return std::nullopt;
  }
  return model;
}

void add_models(const std::string& repository, const std::string& place,
                std::vector<HubModel>& models) {
  for (const auto& [commit, said] : said_revisions(place)) {
    const std::string snapshot = place + "/snapshots/" + commit, name = repository + said;
    const std::vector<CachedGguf> files = gguf_files(snapshot);
    if (opens_as_folder(snapshot, files))
      if (std::optional<HubModel> model = folder_model(name, snapshot)) models.push_back(*model);
    for (const CachedGguf& file : files) {
      HubModel model{name + ":" + printable(type_among(file, files)), file.path, "gguf", 0,
                     absent_files(file).empty()};
      for (const std::string& path : paths_of(file)) model.bytes += bytes_of_file(path);
      models.push_back(model);
    }
  }
}

}  // namespace

bool is_plain_name(std::string_view text) {
  const auto may_end = [](char c) { return is_letter_or_digit(c) || c == '_'; };
  const auto may_stand = [&](char c) { return may_end(c) || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= kLongestWord && may_end(text.front()) &&
         may_end(text.back()) && std::all_of(text.begin(), text.end(), may_stand) &&
         text.find("..") == text.npos;
}

bool is_hex(std::string_view text) {
  constexpr size_t kLongestHash = 64;
  return !text.empty() && text.size() <= kLongestHash &&
         text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t colon = text.rfind(':'); colon != text.npos) {
    name.type = text.substr(colon + 1);
    if (!is_plain_name(name.type)) return std::nullopt;
    text = text.substr(0, colon);
  }
  if (const size_t at = text.find('@'); at != text.npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  name.repository = text;
  if (const size_t slash = text.find('/'); slash != text.npos) {
    if (!is_repository_word(text.substr(0, slash))) return std::nullopt;
    text.remove_prefix(slash + 1);
  }
  return is_repository_word(text) ? std::optional(name) : std::nullopt;
}

std::string as_text(const HubName& name) {
  return fmt::format("{}{}{}{}{}", name.repository, name.revision.empty() ? "" : "@", name.revision,
                     name.type.empty() ? "" : ":", name.type);
}

// As huggingface_hub and llama.cpp look for it, the first that is set.
std::string hub_cache() {
  constexpr struct {
    const char *variable, *below;
  } kPlaces[] = {{"HF_HUB_CACHE", ""},
                 {"HUGGINGFACE_HUB_CACHE", ""},
                 {"HF_HOME", "/hub"},
                 {"XDG_CACHE_HOME", "/huggingface/hub"},
                 {"HOME", "/.cache/huggingface/hub"}};
  for (const auto& place : kPlaces)
    if (const char* const value = std::getenv(place.variable); value != nullptr && *value != '\0')
      return home_for_tilde(value) + place.below;
  return "";
}

std::string hub_place(const HubName& name) {
  std::string folder = std::string(kFolderPrefix) + name.repository;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  return hub_cache() + "/" + folder;
}

std::string fetch_command(const HubName& name) {
  std::string command = "hf download " + name.repository;
  if (!name.revision.empty()) command += " --revision " + name.revision;
  if (!name.type.empty()) command += " --include '*" + name.type + "*'";
  return command;
}

std::optional<std::string> find_in_hub_cache(const HubName& name) {
  const std::string place = hub_place(name);
  if (hub_cache().empty() || !is_folder_there(place)) return std::nullopt;
  const std::optional<std::string> commit = commit_of(name, place);
  const std::string snapshot = place + "/snapshots/" + commit.value_or("");
  if (!commit || !is_folder_there(snapshot))
    fail("{}: {} holds nothing of its revision {}; `{}` fetches it", as_text(name), place,
         name.revision.empty() ? kMain : name.revision, fetch_command(name));
  const std::vector<CachedGguf> files = gguf_files(snapshot);
  if (name.type.empty() && opens_as_folder(snapshot, files)) return snapshot;
  const CachedGguf& file = the_one(name, files);
  refuse_absent(name, absent_files(file));
  return file.path;
}

void check_fetched(const HubName& name, const std::string& snapshot) {
  refuse_absent(name, absent_files(snapshot));
}

std::vector<HubModel> models_in_hub_cache() {
  std::vector<HubModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(hub_cache(), error))
    if (const auto repository = repository_in(entry.path().filename().string()))
      add_models(*repository, entry.path().string(), models);
  std::sort(models.begin(), models.end(),
            [](const HubModel& a, const HubModel& b) { return a.name < b.name; });
  return models;
}

}  // namespace moe
