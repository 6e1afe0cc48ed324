// tokenizer.json, what it makes of a text and of its own bytes, learning from any bytes, and
// decoding any bytes to text that a terminal can take.
#include "text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "core/json.h"
#include "fuzz/fuzz.h"
#include "support/learned_bpe.h"
#include "text/byte_alphabet.h"
#include "text/corpus.h"
#include "text/utf8.h"

namespace {

constexpr std::string_view kText =
    "The cat's 1234 mice,\n\n  Gr\xC3\xB6\xC3\x9F"
    "e \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xFF <|endoftext|>aaaaab";

// Whether the file changes nothing of a text: no normalizer, no token that strips, every byte a
// token.
bool keeps_text(const moe::Json& file) {
  const auto is_there = [&](const char* key) { return file.contains(key) && !file[key].is_null(); };
  if (is_there("normalizer") || file["decoder"].value("type", "") != "ByteLevel") return false;
  if (is_there("added_tokens"))
    for (const moe::Json& token : file["added_tokens"])
      for (const char* key : {"lstrip", "rstrip"})
        if (token.contains(key) && token[key] == true) return false;
  const auto& alphabet = moe::byte_alphabet();
  return std::all_of(alphabet.begin(), alphabet.end(), [&](const std::string& byte) {
    return file["model"]["vocab"].contains(byte);
  });
}

// Whatever a file says, ids stay within the vocabulary, and the bytes come back where it keeps
// them.
void come_back(const moe::Tokenizer& tokenizer, std::string_view text, bool keeps = true) {
  const auto ids = tokenizer.encode(text);
  for (const int32_t id : ids) moe::fuzz::demand(id >= 0 && id < tokenizer.vocab_size());
  const std::string back = tokenizer.decode(ids);
  moe::fuzz::demand(!keeps || back == text);
  moe::fuzz::demand(tokenizer.starts(text).size() == ids.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const auto read = parse_tokenizer(text, "fuzz");
    const bool keeps = keeps_text(parse_json(text, "fuzz"));
    come_back(*read, kText, keeps);
    come_back(*read, text.substr(0, 256), keeps);
    fuzz::demand(read->ids_are_bytes() || read->to_json() == text);
  });
  const std::string_view part = text.substr(0, 512);
  if (!text.starts_with('{'))
    come_back(*test::learned_bpe(std::span(&part, 1), 257 + static_cast<int64_t>(size % 64)), part);

  const auto tokenizer = make_tokenizer("bytes");
  StreamDecoder decoder(*tokenizer);
  std::string shown;
  for (const int32_t id : tokenizer->encode(text)) shown += decoder.push(id);
  shown += decoder.finish();
  bool changed = false;
  for (std::string_view rest = shown; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    fuzz::demand(step.kind == Utf8Step::Kind::character);
    changed |= rest.starts_with("\xEF\xBF\xBD");
    rest.remove_prefix(static_cast<size_t>(step.length));
  }
  fuzz::demand(changed || shown == text);
  binary_reason(text);
  return 0;
}
