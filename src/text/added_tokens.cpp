// The trie's building and walking.
#include "text/added_tokens.h"

namespace moe {
namespace {

uint64_t key(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<unsigned char>(byte); }

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : id_of_{-1} {
  for (const AddedToken& token : tokens) {
    uint32_t node = 0;
    for (const char byte : token.content) {
      const auto [place, is_new] = next_.try_emplace(key(node, byte), static_cast<uint32_t>(id_of_.size()));
      if (is_new) id_of_.push_back(-1);
      node = place->second;
    }
    id_of_[node] = token.id;
  }
}

void AddedTokens::split(std::string_view text, const std::function<void(std::string_view, int32_t)>& emit) const {
  bool begins[256] = {};
  for (int b = 0; b < 256; ++b) begins[b] = next_.contains(static_cast<uint64_t>(b));
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    int32_t id = -1;
    if (begins[static_cast<unsigned char>(text[at])]) {
      uint32_t node = 0;
      for (size_t i = at; i < text.size(); ++i) {
        const auto place = next_.find(key(node, text[i]));
        if (place == next_.end()) break;
        node = place->second;
        if (id_of_[node] >= 0) {
          id = id_of_[node];
          length = i + 1 - at;
        }
      }
    }
    if (length == 0) {
      ++at;
      continue;
    }
    if (at > done) emit(text.substr(done, at - done), -1);
    emit(text.substr(at, length), id);
    at += length;
    done = at;
  }
  if (done < text.size()) emit(text.substr(done), -1);
}

}  // namespace moe
