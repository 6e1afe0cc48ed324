// tokenizer.json, and decoding any bytes to text that a terminal can take.
#include "text/tokenizer.h"

#include <string>

#include "fuzz/fuzz.h"
#include "text/corpus.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] { parse_tokenizer(text, "fuzz"); });

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
