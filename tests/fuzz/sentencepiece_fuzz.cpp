// tokenizer.model: whatever is read encodes within its vocabulary, and what it writes as
// tokenizer.json encodes the same.
#include "text/sentencepiece_model.h"

#include <string>

#include "fuzz/fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fuzz::accept_or_refuse([&] {
    const auto tokenizer = make_ggml_tokenizer(parse_sentencepiece(input, "fuzz"), "fuzz");
    // Writing tokenizer.json takes long, and what tells two tokens apart may not be sayable in it.
    const auto read =
        input.size() % 8 == 0 ? parse_tokenizer(tokenizer->to_json(), "fuzz") : nullptr;
    for (const std::string_view text :
         {input.substr(0, 512),
          std::string_view("  The cat's \t1234\n\n caf\xC3\xA9 \xFF aaaab ")}) {
      const auto ids = tokenizer->encode(text);
      for (const int32_t id : ids) fuzz::demand(id >= 0 && id < tokenizer->vocab_size());
      fuzz::demand(tokenizer->starts(text).size() == ids.size());
      tokenizer->decode(ids);
      if (read)
        for (const int32_t id : read->encode(text))
          fuzz::demand(id >= 0 && id < read->vocab_size());
    }
    ggml_vocab_of(*tokenizer);
  });
  return 0;
}
