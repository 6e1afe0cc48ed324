// A template's text as tokens: what stands between tags, and what stands within them. White space
// around tags goes as transformers configures Jinja: trim_blocks and lstrip_blocks, and the signs -
// and + in a tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe::jinja {

struct Token {
  enum class Kind {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    text,
    integer,
    real,
    sign,
    end
  };
  Kind kind;
  std::string text;  // a string's is what it stands for
  int line;          // from 1

  bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
};

// Ends with a token `end`. Fails, naming the line, where a tag or a string does not end.
std::vector<Token> lex(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& what);
// White space as Python's strip() sees it, at both ends or one.
std::string_view stripped(std::string_view text, bool left = true, bool right = true);

}  // namespace moe::jinja
