// tokenizer.json, read and written. What would change the ids and is not honoured is refused by its name, never passed over.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pattern.h"

namespace moe {
namespace {

constexpr size_t kMaxAdded = 1 << 16;
constexpr size_t kMaxAddedBytes = 256;
constexpr size_t kMaxPatterns = 16;

bool is_there(const Json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }

std::string type_of(const Json& part) { return part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "?"; }

// The steps of a part that may be one step or a Sequence of them under `list`.
std::vector<Json> steps_of(const Json& part, const char* list) {
  if (type_of(part) != "Sequence") return {part};
  if (!part.contains(list) || !part[list].is_array()) fail("a Sequence has no {}", list);
  return part[list].get<std::vector<Json>>();
}

std::string split_pattern(const Json& step, const std::string& where) {
  const JsonReader split(step, where);
  const auto behavior = split.get<std::string>("behavior", "?");
  if (behavior != "Isolated") fail("its Split has the behavior {}", printable(behavior));
  if (split.get<bool>("invert", false)) fail("its Split is inverted");
  const JsonReader pattern = split.object("pattern");
  if (!pattern.has("Regex")) fail("its Split has no Regex");
  return pattern.get<std::string>("Regex");
}

// Byte-level steps must come last: they turn the text into the alphabet.
void read_pre_tokenizer(const Json& file, BpeParts& parts, const std::string& where) {
  if (!is_there(file, "pre_tokenizer")) fail("it has no pre_tokenizer");
  bool byte_level = false;
  for (const Json& step : steps_of(file["pre_tokenizer"], "pretokenizers")) {
    const std::string type = type_of(step);
    if (byte_level) fail("its pre_tokenizer goes on after ByteLevel");
    if (type == "Split") parts.patterns.push_back(split_pattern(step, where));
    else if (type == "Digits") parts.patterns.emplace_back(JsonReader(step, where).get<bool>("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    else if (type == "ByteLevel") {
      const JsonReader level(step, where);
      if (level.get<bool>("add_prefix_space", true)) fail("it puts a space in front of the text");
      if (level.get<bool>("use_regex", true)) parts.patterns.emplace_back(kGpt2Pattern);
      byte_level = true;
    } else fail("its pre_tokenizer is {}", printable(type));
  }
  if (!byte_level) fail("its pre_tokenizer is not ByteLevel");
  if (parts.patterns.size() > kMaxPatterns) fail("its pre_tokenizer has {} patterns", parts.patterns.size());
}

void read_vocab(const Json& model, BpeParts& parts) {
  const Json& vocab = model["vocab"];
  int64_t top = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() >= static_cast<double>(kMaxVocab))
      fail("the id of {} is no number from 0 to {}", printable(token), kMaxVocab - 1);
    top = std::max(top, id.get<int64_t>());
  }
  parts.pieces.resize(static_cast<size_t>(top + 1));
  parts.in_vocab.resize(static_cast<size_t>(top + 1));
  std::vector<bool> taken(static_cast<size_t>(top + 1));
  for (const auto& [token, value] : vocab.items()) {
    const auto id = value.get<size_t>();
    if (token.empty()) fail("a token is empty");
    if (taken[id]) fail("two tokens have the id {}", id);
    taken[id] = true;
    const std::optional<std::string> bytes = from_alphabet(token);
    parts.in_vocab[id] = bytes.has_value();
    parts.pieces[id] = bytes.value_or(token);
  }
  for (int b = 0; b < 256; ++b) {
    if (!vocab.contains(byte_alphabet()[b])) fail("byte {} is no token", b);
    parts.byte_ids[b] = vocab[byte_alphabet()[b]].get<int32_t>();
  }
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_pair(const Json& merge, size_t i) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) return {merge[0], merge[1]};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) return {text.substr(0, space), text.substr(space + 1)};
  }
  fail("merge {} is not two tokens", i);
}

void read_merges(const Json& model, BpeParts& parts) {
  if (!is_there(model, "merges")) return;
  const Json& vocab = model["vocab"];
  const Json& merges = model["merges"];
  if (!merges.is_array()) fail("its merges are no list");
  if (merges.size() > static_cast<size_t>(kMaxVocab)) fail("it has {} merges; at most {} are supported", merges.size(), kMaxVocab);
  const auto id_of = [&](const std::string& token, size_t i) {
    const auto place = vocab.find(token);
    if (place == vocab.end()) fail("merge {} names {}, which is no token", i, printable(token));
    return place->get<int32_t>();
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = read_pair(merges[i], i);
    parts.merges.push_back({id_of(left, i), id_of(right, i), id_of(left + right, i)});
  }
}

void read_model(const Json& file, BpeParts& parts, const std::string& where) {
  const JsonReader model = JsonReader(file, where).object("model");
  if (const auto type = model.get<std::string>("type", "BPE"); type != "BPE") fail("its model is {}", printable(type));
  if (model.has("dropout") && model.get<double>("dropout") != 0) fail("it has dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.get<std::string>(key, "").empty()) fail("it has a {}", key);
  model.object("vocab");
  parts.ignore_merges = model.get<bool>("ignore_merges", false);
  read_vocab(file["model"], parts);
  read_merges(file["model"], parts);
}

void read_added(const Json& file, BpeParts& parts, const std::string& where) {
  if (!is_there(file, "added_tokens")) return;
  const std::vector<JsonReader> tokens = JsonReader(file, where).objects("added_tokens");
  if (tokens.size() > kMaxAdded) fail("it has {} added tokens; at most {} are supported", tokens.size(), kMaxAdded);
  const Json& vocab = file["model"]["vocab"];
  std::set<std::string> known;
  for (const JsonReader& token : tokens) {
    const auto content = token.get<std::string>("content");
    const auto id = static_cast<int32_t>(token.get_in<int64_t>("id", 0, kMaxVocab - 1));
    const std::string name = printable(content, 40);
    if (content.empty() || content.size() > kMaxAddedBytes) fail("an added token has {} bytes; 1 to {} are supported", content.size(), kMaxAddedBytes);
    if (!known.insert(content).second) fail("the added token {} occurs twice", name);
    for (const char* key : {"single_word", "lstrip", "rstrip"})
      if (token.get<bool>(key, false)) fail("the added token {} has {}", name, key);
    if (static_cast<size_t>(id) >= parts.pieces.size()) parts.pieces.resize(static_cast<size_t>(id) + 1);
    const auto in_vocab = vocab.find(content);
    if (in_vocab != vocab.end() ? in_vocab->get<int32_t>() != id : !parts.pieces[static_cast<size_t>(id)].empty())
      fail("the added token {} has the id {}, which the vocabulary has otherwise", name, id);
    // "é" in the vocabulary is the byte E9, but in a text it is two bytes: one id cannot be both.
    if (in_vocab != vocab.end() && parts.pieces[static_cast<size_t>(id)] != content) fail("the added token {} stands for other bytes in the vocabulary", name);
    parts.pieces[static_cast<size_t>(id)] = content;
    (token.get<bool>("normalized", true) ? parts.added_late : parts.added).push_back({id, content});
  }
}

std::optional<int32_t> added_id(const BpeParts& parts, std::string_view content) {
  for (const std::vector<AddedToken>* tokens : {&parts.added, &parts.added_late})
    for (const AddedToken& token : *tokens)
      if (token.content == content) return token.id;
  return std::nullopt;
}

// The token put in front of a text by a template; encode() itself adds none.
void read_post_processor(const Json& file, BpeParts& parts) {
  if (!is_there(file, "post_processor")) return;
  for (const Json& step : steps_of(file["post_processor"], "processors")) {
    const std::string type = type_of(step);
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing") fail("its post_processor is {}", printable(type));
    const Json single = step.value("single", Json::array());
    if (!single.is_array() || single.empty() || !single[0].is_object() || !single[0].contains("SpecialToken")) continue;
    const Json& token = single[0]["SpecialToken"];
    if (token.is_object() && token.contains("id") && token["id"].is_string()) parts.bos = added_id(parts, token["id"].get<std::string>());
  }
}

// The format has no word for the token that ends a text, so it is known by its name.
void find_end(BpeParts& parts) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "<|return|>", "<｜end▁of▁sentence｜>", "</s>"}) {
    parts.eos = added_id(parts, name);
    if (parts.eos) return;
  }
}

Json byte_level(bool prefix_space) { return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", true}}; }

}  // namespace

BpeParts read_bpe(const Json& file, std::string_view text, const std::string& where) {
  BpeParts parts;
  read_model(file, parts, where);
  for (const char* key : {"normalizer", "truncation", "padding"})
    if (is_there(file, key)) fail("it has a {}", key);
  if (!is_there(file, "decoder")) fail("it has no decoder");
  if (const std::string type = type_of(file["decoder"]); type != "ByteLevel") fail("its decoder is {}", printable(type));
  read_pre_tokenizer(file, parts, where);
  read_added(file, parts, where);
  read_post_processor(file, parts);
  find_end(parts);
  parts.json = text;
  return parts;
}

std::string write_bpe(const BpeParts& parts) {
  Json vocab = Json::object(), merges = Json::array(), added = Json::array();
  std::set<size_t> apart;  // ids of added tokens are listed only as such
  for (const AddedToken& token : parts.added) {
    apart.insert(static_cast<size_t>(token.id));
    added.push_back(
        {{"id", token.id}, {"content", token.content}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}, {"special", true}});
  }
  for (size_t id = 0; id < parts.pieces.size(); ++id)
    if (!apart.contains(id)) vocab[to_alphabet(parts.pieces[id])] = id;
  for (const Merge& m : parts.merges)
    merges.push_back(to_alphabet(parts.pieces[static_cast<size_t>(m.left)]) + " " + to_alphabet(parts.pieces[static_cast<size_t>(m.right)]));
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", vocab},
                      {"merges", merges}};
  const Json tokenizer = {{"version", "1.0"},          {"truncation", nullptr},       {"padding", nullptr},
                          {"added_tokens", added},     {"normalizer", nullptr},       {"pre_tokenizer", byte_level(false)},
                          {"post_processor", nullptr}, {"decoder", byte_level(true)}, {"model", model}};
  return tokenizer.dump(2) + "\n";
}

}  // namespace moe
