// Which tokens may come next in a text that has to be one of a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/states.h"
#include "text/tokenizer.h"

namespace moe::grammar {

// One bit a token, 64 a word, the lowest id in the lowest bit.
using TokenMask = std::vector<uint64_t>;
inline bool has(std::span<const uint64_t> mask, int32_t id) {
  const auto at = static_cast<size_t>(id);
  return at / 64 < mask.size() && (mask[at / 64] >> (at % 64) & 1) != 0;
}

// A tokenizer's tokens as a trie of their bytes, made once and shared by all texts. Tokens that are
// no piece of ordinary text (Tokenizer::marks) and those that end a text are not in it: their bytes
// never count.
class TokenTable {
 public:
  explicit TokenTable(const Tokenizer&);

  size_t vocab_size() const { return vocab_; }
  const std::vector<int32_t>& ends() const { return ends_; }
  bool is_end(int32_t id) const;
  // Empty for an id that is not in the trie.
  std::string_view bytes(int32_t id) const;

  // A node of the trie. They lie in depth-first order, each before what is below it.
  struct Node {
    uint32_t after;        // the first node that is not below this one
    uint32_t first_token;  // of tokens(), up to the next node's
    uint16_t depth;        // 1 for a token's first byte
    uint8_t byte;
  };
  const std::vector<Node>& nodes() const { return nodes_; }  // a last one has no byte
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  void build_trie();

  size_t vocab_;
  std::vector<int32_t> ends_;     // sorted
  std::vector<uint32_t> starts_;  // [vocab + 1] where each token's bytes begin
  std::string bytes_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
};

// One text under way. After every token that allowed() has, the text can be completed as far as the
// tokens' bytes let it. Used by one thread at a time.
class Constraint {
 public:
  Constraint(std::shared_ptr<const Grammar>, std::shared_ptr<const TokenTable>);

  // The tokens that may come next; those that end a text are among them exactly where it may end.
  // Stays as it is until the next accept(). Fails where no token can go on, and (usage) where there
  // are too many ways to read the text.
  std::span<const uint64_t> allowed();
  bool allows(int32_t id);
  // Takes the next token. Fails on one that may not come.
  void accept(int32_t id);
  // The text may end here.
  bool may_end() const;
  // Nothing can follow.
  bool must_end() const;

 private:
  const TokenMask& mask_of_state();
  TokenMask work_out() const;
  StateId after(std::string_view bytes);

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTable> table_;
  std::unique_ptr<States> states_;
  StateId state_;
  bool ended_ = false;
  std::unordered_map<StateId, TokenMask> masks_;
  const TokenMask* mask_ = nullptr;  // of state_, once asked for
};

}  // namespace moe::grammar
