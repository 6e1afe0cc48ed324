// tokenizer.model: whatever is read encodes within its vocabulary, and so does what it writes as
// tokenizer.json.
#include "text/sentencepiece_model.h"

#include "fuzz/fuzz.h"
#include "fuzz/fuzz_vocab.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const auto tokenizer = make_ggml_tokenizer(parse_sentencepiece(input, "fuzz"), "fuzz");
    fuzz::encodes_within(*tokenizer, input, input.size() % 8 == 0);
  });
  return 0;
}
