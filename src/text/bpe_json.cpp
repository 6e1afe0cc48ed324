// tokenizer.json, read. What would change the ids and is not honoured is refused by its name, never
// passed over.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base64.h"
#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/charsmap.h"
#include "text/pattern.h"

namespace moe {
namespace {

constexpr size_t kMaxAdded = 1 << 16;
constexpr size_t kMaxAddedBytes = 256;
constexpr size_t kMaxPatterns = 16;
constexpr size_t kMaxReplaced = 64;
constexpr int64_t kMaxStripped = 64;

bool is_there(const Json& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}

std::string type_of(const Json& part) {
  return part.is_object() && part.contains("type") && part["type"].is_string()
             ? part["type"].get<std::string>()
             : "?";
}

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

// The vocabulary is over bytes where the decoder says so: spaces are then written in the byte
// alphabet, else with the mark.
bool is_over_characters(const Json& file) {
  if (!is_there(file, "decoder")) fail("it has no decoder");
  if (const std::string type = type_of(file["decoder"]);
      type != "ByteLevel" && type != "Sequence" && type != "Metaspace")
    fail("its decoder is {}", printable(type));
  return type_of(file["decoder"]) != "ByteLevel";
}

std::string string_of(const Json& step, const std::string& where) {
  const JsonReader reader(step, where);
  const JsonReader pattern = reader.object("pattern");
  if (!pattern.has("String")) fail("its {} has no String", type_of(step));
  auto what = pattern.get<std::string>("String");
  if (what.empty() || what.size() > kMaxReplaced)
    fail("its {} looks for {} bytes; 1 to {} are supported", type_of(step), what.size(),
         kMaxReplaced);
  return what;
}

std::string content_of(const Json& step, const char* key, const std::string& where) {
  auto content = JsonReader(step, where).get<std::string>(key);
  if (content.size() > kMaxReplaced)
    fail("its {} writes {} bytes; at most {} are supported", type_of(step), content.size(),
         kMaxReplaced);
  return content;
}

// Two and more spaces: the regular expression with which files replace them.
bool replaces_spaces(const Json& step) {
  const Json pattern = step.value("pattern", Json());
  return pattern.is_object() && pattern.value("Regex", Json()) == " {2,}";
}

NormalizerStep read_charsmap(const Json& step, const std::string& where) {
  std::string map = from_base64(JsonReader(step, where).get<std::string>("precompiled_charsmap"));
  (void)Charsmap(map);
  return {NormalizerStep::Kind::precompiled, std::move(map), ""};
}

void read_normalizer(const Json& file, BpeParts& parts, const std::string& where) {
  if (!is_there(file, "normalizer")) return;
  const std::vector<Json> steps = steps_of(file["normalizer"], "normalizers");
  if (steps.size() > kMaxPatterns) fail("its normalizer has {} steps", steps.size());
  for (const Json& step : steps) {
    using Kind = NormalizerStep::Kind;
    const std::string type = type_of(step);
    if (type == "NFC") parts.normalizer.push_back({Kind::nfc, "", ""});
    else if (type == "Prepend")
      parts.normalizer.push_back({Kind::prepend, "", content_of(step, "prepend", where)});
    else if (type == "NFKC") parts.normalizer.push_back({Kind::nfkc, "", ""});
    else if (type == "Replace" && replaces_spaces(step))
      parts.normalizer.push_back({Kind::squeeze, "", content_of(step, "content", where)});
    else if (type == "Replace")
      parts.normalizer.push_back(
          {Kind::replace, string_of(step, where), content_of(step, "content", where)});
    else if (type == "Precompiled") parts.normalizer.push_back(read_charsmap(step, where));
    else if (type == "Strip") {
      const JsonReader strip(step, where);
      if (strip.get<bool>("strip_left", true))
        parts.normalizer.push_back({Kind::strip_left, "", ""});
      if (strip.get<bool>("strip_right", true))
        parts.normalizer.push_back({Kind::strip_right, "", ""});
    } else fail("its normalizer is {}", printable(type));
  }
}

Metaspace read_metaspace(const Json& step, const std::string& where) {
  const JsonReader reader(step, where);
  if (reader.get<std::string>("replacement", std::string(kSpaceMark)) != kSpaceMark)
    fail("its Metaspace writes no U+2581 for a space");
  Metaspace metaspace;
  metaspace.split = reader.get<bool>("split", true);
  if (reader.has("prepend_scheme")) {
    using Prepend = Metaspace::Prepend;
    const std::vector<Prepend> schemes = {Prepend::always, Prepend::first, Prepend::never};
    metaspace.prepend = schemes[reader.get_one_of("prepend_scheme", {"always", "first", "never"})];
  } else if (!reader.get<bool>("add_prefix_space", true)) {
    metaspace.prepend = Metaspace::Prepend::never;  // as files before the scheme say it
  }
  return metaspace;
}

// Gemma's files cut a text at spaces when the normalizer has left none.
bool cuts_where_nothing_is(const Json& step, const std::vector<NormalizerStep>& normalizer,
                           const std::string& where) {
  const JsonReader split(step, where);
  const JsonReader pattern = split.object("pattern");
  return pattern.has("String") && pattern.get<std::string>("String") == " " &&
         !split.get<bool>("invert", false) && !normalizer.empty() &&
         normalizer.back() ==
             NormalizerStep{NormalizerStep::Kind::replace, " ", std::string(kSpaceMark)};
}

void read_metaspace_step(const Json& file, const BpeParts& parts, Characters& form,
                         const std::string& where) {
  if (!is_there(file, "pre_tokenizer")) return;
  std::vector<Json> steps = steps_of(file["pre_tokenizer"], "pretokenizers");
  if (steps.size() == 1 && type_of(steps[0]) == "Split" &&
      cuts_where_nothing_is(steps[0], parts.normalizer, where))
    return;
  form.splits_at_space = steps.size() == 2 && type_of(steps[0]) == "WhitespaceSplit";
  if (form.splits_at_space) steps.erase(steps.begin());
  if (steps.size() != 1 || type_of(steps[0]) != "Metaspace")
    fail("its pre_tokenizer is {}", printable(steps.empty() ? "empty" : type_of(steps[0])));
  form.metaspace = read_metaspace(steps[0], where);
}

// Replace U+2581 by a space, ByteFallback, Fuse, Strip; or Metaspace, which is the same but for
// where it strips.
void read_decoder(const Json& file, BpeParts& parts, const std::string& where) {
  if (!parts.characters) return;
  if (type_of(file["decoder"]) == "Metaspace") {
    parts.characters->strip_first =
        read_metaspace(file["decoder"], where).prepend != Metaspace::Prepend::never;
    return;
  }
  const std::vector<Json> steps = steps_of(file["decoder"], "decoders");
  const std::vector<std::string> known = {"Replace", "ByteFallback", "Fuse", "Strip"};
  if (steps.size() < 3 || steps.size() > known.size())
    fail("its decoder has {} steps", steps.size());
  for (size_t i = 0; i < steps.size(); ++i)
    if (type_of(steps[i]) != known[i])
      fail("step {} of its decoder is {}", i + 1, printable(type_of(steps[i])));
  if (string_of(steps[0], where) != kSpaceMark || content_of(steps[0], "content", where) != " ")
    fail("its decoder writes no space for U+2581");
  if (steps.size() < known.size()) return;
  const JsonReader strip(steps[3], where);
  if (strip.get<std::string>("content") != " " ||
      strip.get_in<int64_t>("stop", 0, kMaxStripped, 0) != 0)
    fail("its decoder strips more than spaces in front");
  parts.characters->strip = static_cast<int>(strip.get_in<int64_t>("start", 0, kMaxStripped, 0));
}

// Byte-level steps must come last: they turn the text into the alphabet.
void read_pre_tokenizer(const Json& file, BpeParts& parts, const std::string& where) {
  if (parts.characters) return read_metaspace_step(file, parts, *parts.characters, where);
  if (!is_there(file, "pre_tokenizer")) fail("it has no pre_tokenizer");
  bool byte_level = false;
  for (const Json& step : steps_of(file["pre_tokenizer"], "pretokenizers")) {
    const std::string type = type_of(step);
    if (byte_level) fail("its pre_tokenizer goes on after ByteLevel");
    if (type == "Split") parts.patterns.push_back(split_pattern(step, where));
    else if (type == "Digits")
      parts.patterns.emplace_back(
          JsonReader(step, where).get<bool>("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    else if (type == "ByteLevel") {
      const JsonReader level(step, where);
      if (level.get<bool>("add_prefix_space", true)) fail("it puts a space in front of the text");
      if (level.get<bool>("use_regex", true)) parts.patterns.emplace_back(kGpt2Pattern);
      byte_level = true;
    } else fail("its pre_tokenizer is {}", printable(type));
  }
  if (!byte_level) fail("its pre_tokenizer is not ByteLevel");
  if (parts.patterns.size() > kMaxPatterns)
    fail("its pre_tokenizer has {} patterns", parts.patterns.size());
}

void read_vocab(const Json& vocab, BpeParts& parts) {
  int64_t top = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() >= static_cast<double>(kMaxVocab))
      fail("the id of {} is no number from 0 to {}", printable(token), kMaxVocab - 1);
    top = std::max(top, id.get<int64_t>());
  }
  parts.pieces.resize(static_cast<size_t>(top + 1));
  parts.in_vocab.resize(static_cast<size_t>(top + 1));
  if (parts.characters) parts.characters->words.resize(static_cast<size_t>(top + 1));
  std::vector<bool> taken(static_cast<size_t>(top + 1));
  for (const auto& [token, value] : vocab.items()) {
    const auto id = value.get<size_t>();
    if (token.empty()) fail("a token is empty");
    if (taken[id]) fail("two tokens have the id {}", id);
    taken[id] = true;
    if (parts.characters) {
      parts.characters->words[id] = token;
      parts.pieces[id] = word_bytes(token);
      continue;
    }
    const std::optional<std::string> bytes = from_alphabet(token);
    parts.in_vocab[id] = bytes.has_value();
    parts.pieces[id] = bytes.value_or(token);
  }
  if (parts.characters) return;
  for (size_t b = 0; b < 256; ++b) {
    const auto place = vocab.find(byte_alphabet()[b]);
    parts.byte_ids[b] = place == vocab.end() ? -1 : place->get<int32_t>();
  }
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_pair(const Json& merge, size_t i) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0], merge[1]};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  fail("merge {} is not two tokens", i);
}

void read_merges(const Json& model, BpeParts& parts) {
  if (!is_there(model, "merges")) return;
  const Json& vocab = model["vocab"];
  const Json& merges = model["merges"];
  if (!merges.is_array()) fail("its merges are no list");
  if (merges.size() > static_cast<size_t>(kMaxVocab))
    fail("it has {} merges; at most {} are supported", merges.size(), kMaxVocab);
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

void read_unknown(const JsonReader& model, const Json& vocab, BpeParts& parts) {
  const bool byte_fallback = model.get<bool>("byte_fallback", false);
  if (parts.characters) parts.characters->byte_fallback = byte_fallback;
  else if (byte_fallback) fail("it falls back to bytes over bytes");
  parts.fuse_unk = model.get<bool>("fuse_unk", false);
  const auto unk = model.get<std::string>("unk_token", "");
  if (unk.empty()) return;
  if (!vocab.contains(unk)) fail("its unk_token {} is no token", printable(unk, 40));
  parts.unk = vocab[unk].get<int32_t>();
}

// Gives the ids of the words.
const Json& read_model(const Json& file, BpeParts& parts, const std::string& where) {
  const JsonReader model = JsonReader(file, where).object("model");
  if (const auto type = model.get<std::string>("type", "BPE"); type != "BPE")
    fail("its model is {}; supported are BPE and Unigram", printable(type));
  if (model.has("dropout") && model.get<double>("dropout") != 0) fail("it has dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.get<std::string>(key, "").empty()) fail("it has a {}", key);
  model.object("vocab");
  parts.ignore_merges = model.get<bool>("ignore_merges", false);
  const Json& vocab = file["model"]["vocab"];
  read_vocab(vocab, parts);
  read_unknown(model, vocab, parts);
  read_merges(file["model"], parts);
  return vocab;
}

void read_added(const Json& file, const Json& vocab, BpeParts& parts, const std::string& where) {
  if (!is_there(file, "added_tokens")) return;
  const std::vector<JsonReader> tokens = JsonReader(file, where).objects("added_tokens");
  if (tokens.size() > kMaxAdded)
    fail("it has {} added tokens; at most {} are supported", tokens.size(), kMaxAdded);
  std::set<std::string> known;
  for (const JsonReader& token : tokens) {
    const auto content = token.get<std::string>("content");
    const auto id = static_cast<int32_t>(token.get_in<int64_t>("id", 0, kMaxVocab - 1));
    const std::string name = printable(content, 40);
    if (content.empty() || content.size() > kMaxAddedBytes)
      fail("an added token has {} bytes; 1 to {} are supported", content.size(), kMaxAddedBytes);
    if (!known.insert(content).second) fail("the added token {} occurs twice", name);
    if (token.get<bool>("single_word", false)) fail("the added token {} has single_word", name);
    if (static_cast<size_t>(id) >= parts.pieces.size())
      parts.pieces.resize(static_cast<size_t>(id) + 1);
    const auto in_vocab = vocab.find(content);
    if (in_vocab != vocab.end() ? in_vocab->get<int32_t>() != id
                                : !parts.pieces[static_cast<size_t>(id)].empty())
      fail("the added token {} has the id {}, which the vocabulary has otherwise", name, id);
    // "é" in the vocabulary is the byte E9, but in a text it is two bytes: one id cannot be both.
    if (!parts.characters && in_vocab != vocab.end() &&
        parts.pieces[static_cast<size_t>(id)] != content)
      fail("the added token {} stands for other bytes in the vocabulary", name);
    parts.pieces[static_cast<size_t>(id)] = parts.characters ? word_bytes(content) : content;
    AddedToken added{id, content, token.get<bool>("special", false),
                     token.get<bool>("lstrip", false), token.get<bool>("rstrip", false)};
    (token.get<bool>("normalized", true) ? parts.added_late : parts.added)
        .push_back(std::move(added));
  }
  parts.in_vocab.resize(parts.pieces.size());
  if (parts.characters) parts.characters->words.resize(parts.pieces.size());
}

std::optional<int32_t> added_id(const BpeParts& parts, std::string_view content) {
  for (const std::vector<AddedToken>* tokens : {&parts.added, &parts.added_late})
    for (const AddedToken& token : *tokens)
      if (token.content == content) return token.id;
  return std::nullopt;
}

// The token put in front of a text by a template.
void read_post_processor(const Json& file, BpeParts& parts) {
  if (!is_there(file, "post_processor")) return;
  for (const Json& step : steps_of(file["post_processor"], "processors")) {
    const std::string type = type_of(step);
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing") fail("its post_processor is {}", printable(type));
    const Json single = step.value("single", Json::array());
    if (!single.is_array()) fail("its post_processor has no list for a single text");
    bool text_seen = false;
    for (const Json& part : single) {
      if (!part.is_object() || part.contains("SpecialToken") == part.contains("Sequence"))
        fail("a part of its post_processor is neither token nor text");
      if (part.contains("Sequence")) {
        text_seen = true;
        continue;
      }
      const Json& token = part["SpecialToken"];
      const std::string name = token.is_object() && token.contains("id") && token["id"].is_string()
                                   ? token["id"].get<std::string>()
                                   : "?";
      if (text_seen)
        fail("its post_processor puts {} behind a text, which a model could not continue",
             printable(name, 40));
      if (parts.special.add_bos)
        fail("its post_processor puts more than one token in front of a text");
      parts.special.bos = added_id(parts, name);
      if (!parts.special.bos)
        fail("its post_processor puts {} in front of a text, which is no added token",
             printable(name, 40));
      parts.special.add_bos = true;
    }
  }
}

void find_end(BpeParts& parts) {
  for (const std::string_view name : kEndNames) {
    parts.special.eos = added_id(parts, name);
    if (parts.special.eos) return;
  }
}

}  // namespace

namespace {

// The same of a Unigram, whose vocabulary is a list of words and scores.
Json read_unigram(const Json& file, BpeParts& parts, const std::string& where) {
  if (!parts.characters) fail("it is a Unigram over bytes");
  const JsonReader reader = JsonReader(file, where).object("model");
  const Json none;
  const Json& list = reader.has("vocab") ? file["model"]["vocab"] : none;
  if (!list.is_array() || list.empty() || list.size() > static_cast<size_t>(kMaxVocab))
    fail("its vocab is no list of 1 to {} words", kMaxVocab);
  std::vector<double> scores;
  Json vocab = Json::object();
  for (const Json& entry : list) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      fail("word {} of its vocab is no word with a score", vocab.size());
    if (!vocab.emplace(entry[0].get<std::string>(), vocab.size()).second)
      fail("two tokens are {}", printable(entry[0].get<std::string>(), 40));
    scores.push_back(entry[1].get<double>());
  }
  if (reader.has("unk_id")) {
    const auto unk = reader.get_in<int64_t>("unk_id", 0, std::ssize(scores) - 1);
    parts.unk = static_cast<int32_t>(unk);
  }
  parts.characters->byte_fallback = reader.get<bool>("byte_fallback", false);
  parts.characters->scores = std::move(scores);
  read_vocab(vocab, parts);
  return vocab;
}

// What write_bpe says beside the form that `tokenizers` knows (kOwnForm): the text is normalised
// and cut as SentencePiece itself does it.
void read_own_form(const Json& model, BpeParts& parts, const std::string& where) {
  if (!is_there(model, kOwnForm)) return;
  const JsonReader own = JsonReader(model, where).object(kOwnForm);
  std::string map;
  for (NormalizerStep& step : parts.normalizer)
    if (step.kind == NormalizerStep::Kind::precompiled) map = std::move(step.what);
  parts.normalizer = {{NormalizerStep::Kind::sentencepiece, std::move(map), "",
                       own.get<bool>("trims", false), own.get<bool>("prepends", false)}};
  Characters& form = *parts.characters;
  form.metaspace.reset();
  if (!form.scores) return;
  const auto not_looked_for = [&](size_t id) { (*form.scores)[id] = std::nan(""); };
  for (const std::vector<AddedToken>* tokens : {&parts.added, &parts.added_late})
    for (const AddedToken& token : *tokens) not_looked_for(static_cast<size_t>(token.id));
  for (size_t id = 0; id < form.words.size(); ++id)
    if (form.byte_fallback && is_byte_token(form.words[id])) not_looked_for(id);
}

}  // namespace

BpeParts read_bpe(const Json& file, std::string_view text, const std::string& where) {
  BpeParts parts;
  for (const char* key : {"truncation", "padding"})
    if (is_there(file, key)) fail("it has a {}", key);
  if (is_over_characters(file)) parts.characters.emplace();
  Json made;  // the ids, where the file does not have them so
  const bool unigram = is_there(file, "model") && type_of(file["model"]) == "Unigram";
  const Json& vocab =
      unigram ? made = read_unigram(file, parts, where) : read_model(file, parts, where);
  read_normalizer(file, parts, where);
  read_decoder(file, parts, where);
  read_pre_tokenizer(file, parts, where);
  read_added(file, vocab, parts, where);
  read_post_processor(file, parts);
  if (parts.characters) {
    if (parts.characters->scores)
      parts.characters->scores->resize(parts.pieces.size(), std::nan(""));
    read_own_form(file["model"], parts, where);
  }
  find_end(parts);
  parts.json = text;
  return parts;
}

}  // namespace moe
