// What SentencePiece does to characters before it looks for words (its precompiled_charsmap): a
// Darts trie from sequences of characters to places in a list of texts that end with NUL.
// google/sentencepiece:src/normalizer.cc, s-yata/darts-clone:include/darts.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace moe {

// A view of the bytes, which outlive it.
class Charsmap {
 public:
  // Fails where the bytes are no such map. Empty bytes map nothing.
  explicit Charsmap(std::string_view bytes);

  struct Match {
    size_t length;  // bytes of the text
    std::string_view becomes;
  };
  std::optional<Match> longest(std::string_view text) const { return find(text, true); }
  std::optional<Match> shortest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Match> find(std::string_view text, bool longest) const;
  uint32_t unit(size_t i) const;

  std::string_view units_, texts_;
};

}  // namespace moe
