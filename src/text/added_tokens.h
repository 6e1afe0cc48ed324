// Tokens that are looked for in the text before anything else, such as <|endoftext|>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moe {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special = true;                  // a mark, not a word
  bool lstrip = false, rstrip = false;  // takes the white space before, behind it with it
};

// A trie; of the tokens that begin at a place the longest counts, and the leftmost place.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<AddedToken>& tokens);
  // Hands out, in order, what lies between tokens as (text, -1) and each token as (its text, with
  // what it strips, and id). O(text times the longest token).
  void split(std::string_view text,
             const std::function<void(std::string_view, int32_t)>& emit) const;

 private:
  std::unordered_map<uint64_t, uint32_t> next_;  // node << 8 | byte -> node
  std::vector<int32_t> token_of_;                // of each node; -1 where no token ends
  std::vector<AddedToken> tokens_;
};

}  // namespace moe
