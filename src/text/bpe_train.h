// Learning a byte-level BPE vocabulary from text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

// Ends a text; looked for in every text, so that files may hold several documents.
inline constexpr const char* kEndOfText = "<|endoftext|>";

// Counts the words of texts, one text at a time, and learns a vocabulary from them.
class BpeLearner {
 public:
  void add(std::string_view text);
  // Of all pairs of neighbouring tokens the most frequent becomes a token, the lower ids first
  // among equals, until there are `size` entries: 256 bytes, the merges, kEndOfText and, for a
  // model of dialogues, the marks of text/chat.h. Fewer where no pair occurs twice any more. The
  // same texts give the same vocabulary on every machine.
  std::unique_ptr<Tokenizer> learn(int64_t size, bool dialogues = false) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> words_;
};

// What --tokenizer names: "bytes"; "bpe:SIZE", trained on the texts at `data` (files and folders);
// or a model folder, whose tokenizer it takes.
std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& spec,
                                            const std::vector<std::string>& data);
// Its entries, before there is a text; a text in which fewer pairs repeat than SIZE asks for has
// fewer.
int64_t vocabulary_of(const std::string& spec);

}  // namespace moe
