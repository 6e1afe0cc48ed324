// The tokenizer's keys in a GGUF: only moved in and out here, understood in text/ggml_vocab.h.
#pragma once

#include <vector>

#include "formats/gguf.h"
#include "text/ggml_vocab.h"

namespace moe {

GgmlVocab read_gguf_vocab(const Gguf&);
// `vocab`: rows of the embedding; llama.cpp wants a token for each, so unused ones fill up.
std::vector<GgufEntry> gguf_vocab_entries(GgmlVocab, int64_t vocab);

}  // namespace moe
