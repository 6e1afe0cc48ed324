#include "text/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/bpe.h"
#include "text/ggml_vocab.h"
#include "text/pattern.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr int kByteValues = 256;

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return kByteValues; }
  std::string spec() const override { return "bytes"; }
  bool ids_are_bytes() const override { return true; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string piece(int32_t id) const override {
    if (id < 0 || id >= kByteValues) fail("token id {} is outside the byte tokenizer's 0..255", id);
    return std::string(1, static_cast<char>(id));
  }
  std::string to_json() const override;
};

// A byte-level BPE without merges: every byte stays a token of its own.
std::string ByteTokenizer::to_json() const {
  BpeParts parts;
  parts.patterns.emplace_back(kGpt2Pattern);
  for (int b = 0; b < kByteValues; ++b) parts.pieces.emplace_back(1, static_cast<char>(b));
  return write_bpe(parts);
}

// Whether every byte is its own token and nothing else is one, so that no text needs encoding.
bool is_bytes(const BpeParts& parts) {
  for (int b = 0; b < kByteValues; ++b)
    if (parts.byte_ids[b] != b) return false;
  return parts.pieces.size() == kByteValues && parts.merges.empty() && parts.added.empty() &&
         parts.added_late.empty() && !parts.characters && parts.normalizer.empty();
}

}  // namespace

std::vector<int64_t> Tokenizer::starts(std::string_view text) const {
  std::vector<int64_t> at;
  int64_t done = 0;
  for (const int32_t id : encode(text)) {
    at.push_back(done);
    done += static_cast<int64_t>(piece(id).size());
  }
  return at;
}

std::vector<int32_t> Tokenizer::encode_text(std::string_view text) const {
  std::vector<int32_t> ids = encode(text);
  if (special_.add_bos && special_.bos) ids.insert(ids.begin(), *special_.bos);
  return ids;
}

int32_t token_named(const Tokenizer& tokenizer, std::string_view name) {
  int32_t number = 0;
  if (const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
      error == std::errc{} && end == name.data() + name.size() && number >= 0)
    return number;
  const std::vector<int32_t> marks = tokenizer.marks();
  std::vector<std::string> mark_names;
  for (const int32_t id : marks) {
    mark_names.push_back(tokenizer.piece(id));
    if (mark_names.back() == name) return id;
  }
  std::vector<int32_t> found;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.piece(id) == name) found.push_back(id);
  if (found.size() == 1) return found.front();
  if (found.empty())
    fail_usage("the tokenizer has no token '{}'; give a token's text or its number{}",
               printable(name), suggestion(name, mark_names));
  fail_usage("the tokens {} and {} are both '{}'; give the number of the one that is meant",
             found[0], found[1], printable(name));
}

bool Tokenizer::ends_text(int32_t id) const {
  return eos_id() == id ||
         std::find(special_.ends.begin(), special_.ends.end(), id) != special_.ends.end();
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += piece(id);
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  if (spec.starts_with("bpe:"))
    fail_usage("the tokenizer \"{}\" has to be trained on a text first", printable(spec));
  fail_usage("the tokenizer \"{}\" is not known{}", printable(spec),
             suggestion(spec, {"bytes", "bpe:SIZE", "a model folder"}));
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  if (!JsonReader(parsed, where).has("model"))
    fail("{}: \"model\" is missing; this is no tokenizer.json", where);
  try {
    BpeParts parts = read_bpe(parsed, json, where);
    if (is_bytes(parts)) return std::make_unique<ByteTokenizer>();
    return make_bpe(std::move(parts));
  } catch (const Error& e) {
    fail(
        "{}: this tokenizer is not supported: {}; supported are BPE over bytes, and BPE and "
        "Unigram over characters as SentencePiece writes them",
        where, e.what());
  }
}

namespace {

constexpr const char* kSentencePieceFile = "tokenizer.model";

// Tokens that transformers puts behind the vocabulary of tokenizer.model, in its config by their
// ids.
void add_config_tokens(const std::string& config, const std::string& where, GgmlVocab& vocab) {
  constexpr const char* kKey = "added_tokens_decoder";
  if (config.empty()) return;
  const Json parsed = parse_json(config, where);
  if (!JsonReader(parsed, where).has(kKey)) return;
  const Json& added = parsed[kKey];
  for (size_t n = 0; n < added.size(); ++n) {
    const size_t id = vocab.tokens.size();
    const auto found = added.find(std::to_string(id));
    if (found == added.end()) return;
    const JsonReader token(*found, where);
    vocab.tokens.push_back(token.get<std::string>("content"));
    vocab.scores.push_back(0);
    vocab.types.push_back(token.get<bool>("special", false) ? 3 : 4);
  }
}

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& folder,
                                              const std::string& config) {
  const std::string path = folder + "/" + kSentencePieceFile;
  GgmlVocab vocab = parse_sentencepiece(read_text(path, kJsonMaxBytes), path);
  add_config_tokens(config, folder + "/tokenizer_config.json", vocab);
  return make_ggml_tokenizer(std::move(vocab), path);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json", config = read_tokenizer_config(folder);
  const bool own =
      !std::filesystem::exists(path) && std::filesystem::exists(folder + "/" + kSentencePieceFile);
  std::unique_ptr<Tokenizer> tokenizer =
      own ? load_sentencepiece(folder, config)
          : parse_tokenizer(read_text(path, kJsonMaxBytes), path);
  if (!own || !config.empty()) tokenizer->set_config_json(config);
  apply_folder(*tokenizer, folder);
  return tokenizer;
}

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_->piece(id);
  std::string ready;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::cut) break;
    if (step.kind == Utf8Step::Kind::character)
      ready += rest.substr(0, static_cast<size_t>(step.length));
    else ready += kReplacement;
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  pending_ = std::string(rest);
  return ready;
}

std::string StreamDecoder::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? kReplacement : "";
}

}  // namespace moe
