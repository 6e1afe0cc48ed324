#include "text/tokenizer_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/bpe.h"

namespace moe {
namespace {

constexpr const char* kEnds = "eos_token_id";
constexpr int64_t kMostIds = int64_t{1} << 31;

// "<s>" or {"content": "<s>", ...}; the id of the token that is this text and nothing else.
std::optional<int32_t> named(const Tokenizer& tokenizer, const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  const Json& content =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (!content.is_string() || content.get_ref<const std::string&>().empty()) return std::nullopt;
  const std::vector<int32_t> ids = tokenizer.encode(content.get_ref<const std::string&>());
  return ids.size() == 1 ? std::optional(ids[0]) : std::nullopt;
}

// The end of a text that reading tokenizer.json finds by its name.
std::optional<int32_t> end_by_name(const Tokenizer& tokenizer) {
  const std::vector<int32_t> marks = tokenizer.marks();
  for (const std::string_view name : kEndNames)
    for (const int32_t id : marks)
      if (const std::string piece = tokenizer.piece(id); piece == name || piece == word_bytes(name))
        return id;
  return std::nullopt;
}

void add_ends(const Tokenizer& tokenizer, const std::string& path, std::vector<int32_t>& ends) {
  if (!std::filesystem::exists(path)) return;
  const Json file = read_json(path);
  const JsonReader reader(file, path);
  if (!reader.has(kEnds)) return;
  std::vector<int64_t> ids;
  if (file[kEnds].is_array()) ids = reader.get<std::vector<int64_t>>(kEnds);
  else ids.push_back(reader.get<int64_t>(kEnds));
  for (const int64_t id : ids) {
    if (id < 0 || id >= kMostIds) fail("{}: {} holds {}, which is no token", path, kEnds, id);
    // A model may have rows for more tokens than its tokenizer names: what it cannot write ends
    // nothing.
    if (id < tokenizer.vocab_size()) ends.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace

std::string read_tokenizer_config(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json",
                    template_path = folder + "/chat_template.jinja";
  std::string text = std::filesystem::exists(path) ? read_text(path) : "";
  const bool has_template = std::filesystem::exists(template_path);
  if (text.empty() && !has_template) return text;
  Json config = text.empty() ? Json::object() : parse_json(text, path);
  JsonReader(config, path);
  if (!has_template) return text;
  config["chat_template"] = read_text(template_path);
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void apply_folder(Tokenizer& tokenizer, const std::string& folder) {
  const std::string where = folder + "/tokenizer_config.json";
  const Json config =
      tokenizer.config_json().empty() ? Json::object() : parse_json(tokenizer.config_json(), where);
  const JsonReader reader(config, where);
  SpecialIds special = tokenizer.special();
  if (const auto bos = named(tokenizer, config, "bos_token")) special.bos = bos;
  if (reader.has("add_bos_token"))
    special.add_bos = reader.get<bool>("add_bos_token") && special.bos;
  const auto said = named(tokenizer, config, "eos_token");
  std::vector<int32_t> listed;
  add_ends(tokenizer, folder + "/generation_config.json", listed);
  add_ends(tokenizer, folder + "/config.json", listed);
  std::vector<int32_t> ends = special.ends;
  for (const std::optional<int32_t>& end : {special.eos, said})
    if (end) ends.push_back(*end);
  ends.insert(ends.end(), listed.begin(), listed.end());
  // The first one: as the files list them, before what is known by its name.
  if (!listed.empty()) special.eos = listed[0];
  if (!special.eos) special.eos = said;
  if (!special.eos && !ends.empty()) special.eos = ends[0];
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::erase_if(ends, [&](int32_t id) { return special.eos == id; });
  special.ends = std::move(ends);
  tokenizer.set_special(std::move(special));
}

std::string generation_json(const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special();
  const Json config = tokenizer.config_json().empty()
                          ? Json::object()
                          : parse_json(tokenizer.config_json(), "tokenizer_config.json");
  // What the other files say when they are read again.
  const std::optional<int32_t> said = named(tokenizer, config, "eos_token"),
                               by_name = end_by_name(tokenizer);
  std::vector<int32_t> ends = special.ends;
  if (special.eos) ends.insert(ends.begin(), *special.eos);
  if (ends.empty()) return "";
  const std::optional<int32_t> first = by_name ? by_name : said;
  if (first == ends[0] &&
      std::ranges::all_of(ends, [&](int32_t id) { return id == said || id == by_name; }))
    return "";
  const Json ids = ends.size() == 1 ? Json(ends[0]) : Json(ends);
  return Json{{kEnds, ids}}.dump(2) + "\n";
}

}  // namespace moe
