// What the fuzzers of vocabularies demand of a tokenizer that was read.
#pragma once

#include <string_view>

#include "fuzz/fuzz.h"
#include "text/ggml_vocab.h"

namespace moe::fuzz {

// It encodes within its vocabulary, begins texts as it says, and can be written or is refused;
// `rewritten`: what it writes as tokenizer.json encodes within its vocabulary too.
inline void encodes_within(const Tokenizer& tokenizer, std::string_view input, bool rewritten) {
  const auto read = rewritten ? parse_tokenizer(tokenizer.to_json(), "fuzz") : nullptr;
  for (const std::string_view text :
       {input.substr(0, 512),
        std::string_view("  The cat's  \t1234\n\n caf\xC3\xA9 \xFF aaaab ")}) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids) demand(id >= 0 && id < tokenizer.vocab_size());
    demand(tokenizer.starts(text).size() == ids.size());
    tokenizer.decode(ids);
    if (read)
      for (const int32_t id : read->encode(text)) demand(id >= 0 && id < read->vocab_size());
    if (tokenizer.special().bos)
      demand(tokenizer.encode_text(text).size() ==
             ids.size() + (tokenizer.special().add_bos ? 1 : 0));
  }
  ggml_vocab_of(tokenizer);
}

}  // namespace moe::fuzz
