// The tokenizer inside a GGUF file, as plain values under llama.cpp's names (tokenizer.ggml.*);
// hub/ moves them in and out of the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

struct GgmlVocab {
  std::string model;  // "gpt2": byte-level BPE; "llama": SentencePiece's BPE with scores and byte
                      // tokens; "t5": SentencePiece's unigram
  std::string pre;    // how text is split before BPE: "llama-bpe", "qwen2", "smollm", "gpt-2", ...;
                      // may be empty
  std::vector<std::string> tokens;  // [V]
  std::vector<float> scores;        // [V], SentencePiece only
  std::vector<int32_t> types;  // [V] 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6
                               // byte; may be empty: all normal
  std::vector<std::string> merges;  // "left right" in order of rank, BPE only
  std::optional<int32_t> bos, eos, unk, pad;
  std::optional<int32_t> eot, eom;  // end what a model writes, besides eos
  std::vector<int32_t> more_ends;   // so do these, which llama.cpp has no key for
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;  // at the ends, and repeated ones
  std::string charsmap;  // SentencePiece's precompiled_charsmap (text/charsmap.h); may be empty
  std::string chat_template;                           // Jinja; may be empty
  std::map<std::string, std::string> named_templates;  // beside it, such as "tool_use"
};

// Fails with the part that cannot be honoured (an unknown `pre` offers the nearest).
std::unique_ptr<Tokenizer> make_ggml_tokenizer(GgmlVocab vocab, const std::string& where);
// What a GGUF has to say so that llama.cpp encodes as this tokenizer does; fails, saying why, when
// it cannot (a pattern that llama.cpp has no name for).
GgmlVocab ggml_vocab_of(const Tokenizer&);
// Of `more_ends` those that llama.cpp does not know by their text either.
std::vector<int32_t> ends_unknown_to_llama_cpp(const GgmlVocab&);

}  // namespace moe
