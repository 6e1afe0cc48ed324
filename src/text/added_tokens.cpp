// The trie's building and walking. White space that a token takes with it is found as Hugging Face
// `tokenizers` finds it (added_vocabulary.rs): before the token no further than where the token
// before ended.
#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace moe {
namespace {

uint64_t key(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

size_t end_of_space(std::string_view text, size_t at) {
  while (const size_t length = space_length(text.substr(at))) at += length;
  return at;
}

size_t begin_of_space(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    size_t before = at - 1;
    while (before > least && at - before < 3 && !begins_character(text[before])) --before;
    if (space_length(text.substr(before)) != at - before) return at;
    at = before;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : token_of_{-1}, tokens_(tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t node = 0;
    for (const char byte : tokens[i].content) {
      const auto [place, is_new] =
          next_.try_emplace(key(node, byte), static_cast<uint32_t>(token_of_.size()));
      if (is_new) token_of_.push_back(-1);
      node = place->second;
    }
    if (node != 0) token_of_[node] = static_cast<int32_t>(i);
  }
}

void AddedTokens::split(std::string_view text,
                        const std::function<void(std::string_view, int32_t)>& emit) const {
  bool begins[256] = {};
  for (int b = 0; b < 256; ++b) begins[b] = next_.contains(static_cast<uint64_t>(b));
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    int32_t found = -1;
    if (begins[static_cast<unsigned char>(text[at])]) {
      uint32_t node = 0;
      for (size_t i = at; i < text.size(); ++i) {
        const auto place = next_.find(key(node, text[i]));
        if (place == next_.end()) break;
        node = place->second;
        if (token_of_[node] >= 0) {
          found = token_of_[node];
          length = i + 1 - at;
        }
      }
    }
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    const size_t begin = std::max(done, token.lstrip ? begin_of_space(text, at, done) : at);
    at += length;
    const size_t end = std::max(done, token.rstrip ? end_of_space(text, at) : at);
    if (begin > done) emit(text.substr(done, begin - done), -1);
    emit(text.substr(begin, end - begin), token.id);
    done = end;
  }
  if (done < text.size()) emit(text.substr(done), -1);
}

}  // namespace moe
