// tokenizer.json, what it makes of a text and of its own bytes, learning from any bytes, and decoding any bytes to text that a terminal can take.
#include "text/tokenizer.h"

#include <string>

#include "fuzz/fuzz.h"
#include "text/bpe_train.h"
#include "text/corpus.h"
#include "text/utf8.h"

namespace {

constexpr std::string_view kText =
    "The cat's 1234 mice,\n\n  Gr\xC3\xB6\xC3\x9F"
    "e \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xFF <|endoftext|>aaaaab";

// Whatever a file says, the bytes come back and ids stay within the vocabulary.
void come_back(const moe::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  for (const int32_t id : ids) moe::fuzz::demand(id >= 0 && id < tokenizer.vocab_size());
  moe::fuzz::demand(tokenizer.decode(ids) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const auto read = parse_tokenizer(text, "fuzz");
    come_back(*read, kText);
    come_back(*read, text.substr(0, 256));
    fuzz::demand(read->ids_are_bytes() || read->to_json() == text);
  });
  const std::string_view part = text.substr(0, 512);
  if (!text.starts_with('{')) come_back(*train_bpe(std::span(&part, 1), 257 + static_cast<int64_t>(size % 64)), part);

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
