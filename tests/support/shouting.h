// Bytes of which letters are other texts than in the tokenizer of bytes: capitals.
#pragma once

#include <cctype>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace moe::test {

class Shouting : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "shouting"; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string piece(int32_t id) const override {
    return std::string(1, static_cast<char>(std::toupper(id)));
  }
  std::string to_json() const override { return ""; }
};

}  // namespace moe::test
