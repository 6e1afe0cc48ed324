#include "text/tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr int kBytes = 256;

// The alphabet of GPT-2 (encoder.py, bytes_to_unicode): each byte as one printable character. Printable Latin-1 bytes stand for themselves,
// the others take U+0100, U+0101, ... in order.
std::array<std::string, kBytes> byte_alphabet() {
  std::array<std::string, kBytes> alphabet;
  int next = 0x100;
  for (int b = 0; b < kBytes; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int code = itself ? b : next++;
    if (code < 0x80) alphabet[b] = static_cast<char>(code);
    else alphabet[b] = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  }
  return alphabet;
}

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return kBytes; }
  std::string spec() const override { return "bytes"; }
  bool ids_are_bytes() const override { return true; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string piece(int32_t id) const override {
    if (id < 0 || id >= kBytes) fail("token id {} is outside the byte tokenizer's 0..255", id);
    return std::string(1, static_cast<char>(id));
  }
  std::string to_json() const override;
};

Json byte_level(bool prefix_space) { return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", true}}; }

// A byte-level BPE without merges: every byte stays a token of its own.
std::string ByteTokenizer::to_json() const {
  Json vocab = Json::object();
  const auto alphabet = byte_alphabet();
  for (int b = 0; b < kBytes; ++b) vocab[alphabet[b]] = b;
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", vocab},
                      {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", Json::array()},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level(false)},
                          {"post_processor", nullptr},
                          {"decoder", byte_level(true)},
                          {"model", model}};
  return tokenizer.dump(2) + "\n";
}

// Why a tokenizer.json is not the byte tokenizer; empty when it is.
std::string why_not_bytes(const JsonReader& tokenizer) {
  const JsonReader model = tokenizer.object("model");
  if (const auto type = model.get<std::string>("type", "BPE"); type != "BPE") return fmt::format("its model is {}", printable(type));
  if (model.has("merges") && !model.value("merges").empty()) return fmt::format("it has {} merges", model.value("merges").size());
  const JsonReader vocab = model.object("vocab");
  const size_t size = vocab.keys().size();
  if (size != kBytes) return fmt::format("it has {} tokens", size);
  const auto alphabet = byte_alphabet();
  for (int b = 0; b < kBytes; ++b)
    if (!vocab.has(alphabet[b]) || vocab.get<int64_t>(alphabet[b]) != b) return fmt::format("byte {} is not token {}", b, b);
  if (tokenizer.has("added_tokens") && !tokenizer.value("added_tokens").empty()) return "it has added tokens";
  for (const char* key : {"normalizer", "truncation", "padding"})
    if (tokenizer.has(key)) return fmt::format("it has a {}", key);
  for (const char* key : {"pre_tokenizer", "decoder", "post_processor"}) {
    if (!tokenizer.has(key)) {
      if (std::string_view(key) == "post_processor") continue;
      return fmt::format("it has no {}", key);
    }
    const auto type = tokenizer.object(key).get<std::string>("type");
    if (type != "ByteLevel") return fmt::format("its {} is {}", key, printable(type));
  }
  if (tokenizer.object("pre_tokenizer").get<bool>("add_prefix_space", true)) return "it puts a space in front of the text";
  return "";
}

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += piece(id);
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  fail_usage("the tokenizer \"{}\" is not known{}", printable(spec), suggestion(spec, {"bytes"}));
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  const std::string reason = why_not_bytes(JsonReader(parsed, where));
  if (!reason.empty()) fail("{}: this tokenizer is not supported: {}; supported is \"bytes\" (256 byte-level tokens, no merges)", where, reason);
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  return parse_tokenizer(read_text(path, kJsonMaxBytes), path);
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
    if (step.kind == Utf8Step::Kind::character) ready += rest.substr(0, static_cast<size_t>(step.length));
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
