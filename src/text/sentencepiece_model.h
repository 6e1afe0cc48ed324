// tokenizer.model, SentencePiece's own file: a protocol buffer with words, scores and how text is
// normalised (google/sentencepiece:src/sentencepiece_model.proto).
#pragma once

#include <string>
#include <string_view>

#include "text/ggml_vocab.h"

namespace moe {

// Its vocabulary under llama.cpp's names. Fails, naming what it is, where the file is none or holds
// what cannot be honoured.
GgmlVocab parse_sentencepiece(std::string_view bytes, const std::string& where);

}  // namespace moe
