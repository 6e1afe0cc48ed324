#include "text/jinja/lexer.h"

#include <algorithm>

#include "core/error.h"
#include "text/utf8.h"

namespace moe::jinja {
namespace {

using Kind = Token::Kind;

// The information separators are white space to Python, too.
bool is_space(std::string_view character) {
  return space_length(character) == character.size() ||
         (character.size() == 1 && character[0] >= '\x1C' && character[0] <= '\x1F');
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] != '\r') text_ += source[i];
      else if (source.substr(i, 2) != "\r\n") text_ += '\n';
    }
    if (!text_.empty() && text_.back() == '\n') text_.pop_back();  // Jinja drops the last one
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = find_tag(at_);
      data(tag);
      if (tag == std::string::npos) break;
      const char kind = text_[tag + 1];
      at_ = tag + 2;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      if (kind == '#') skip_comment();
      else if (kind == '{') print();
      else if (!raw()) block();
    }
    push(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  size_t find_tag(size_t from) const {
    for (size_t i = from; i + 1 < text_.size(); ++i)
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#'))
        return i;
    return std::string::npos;
  }

  void push(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void count_lines(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    counted_ = to;
  }

  // What stands before the tag at `tag`, without the white space that the tag takes.
  void data(size_t tag) {
    const std::string_view all =
        std::string_view(text_).substr(at_, tag == std::string::npos ? tag : tag - at_);
    std::string_view kept = all;
    if (tag != std::string::npos) kept = before_tag(all, tag);
    if (!kept.empty()) push(Kind::data, std::string(kept));
    count_lines(at_ + all.size());
  }

  std::string_view before_tag(std::string_view all, size_t tag) const {
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (sign == '-') return stripped(all, false, true);
    if (sign == '+' || text_[tag + 1] == '{') return all;
    const size_t newline = all.rfind('\n');
    if (newline == std::string_view::npos && !line_starts_) return all;
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return stripped(all.substr(begin)).empty() ? all.substr(0, begin) : all;
  }

  // Behind the two characters that end a tag, which may have had a sign before them.
  void end_tag(char sign, bool takes_newline) {
    const size_t begin = at_;
    if (sign == '-') {
      at_ = text_.size() - stripped(std::string_view(text_).substr(at_), true, false).size();
    } else if (takes_newline && sign != '+' && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
    line_starts_ = at_ > begin && text_[at_ - 1] == '\n';
    count_lines(at_);
  }

  void skip_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail_at(line_, "a comment does not end");
    const char sign = end > at_ ? text_[end - 1] : ' ';
    count_lines(end);
    at_ = end + 2;
    end_tag(sign, true);
  }

  void print() {
    push(Kind::print_begin, "{{");
    const char sign = inside("}}");
    push(Kind::print_end, "}}");
    end_tag(sign, false);
  }
  void block() {
    push(Kind::block_begin, "{%");
    const char sign = inside("%}");
    push(Kind::block_end, "%}");
    end_tag(sign, true);
  }

  size_t skip_spaces(size_t at) const {
    return text_.size() - stripped(std::string_view(text_).substr(at), true, false).size();
  }
  // `NAME %}` at `at`: returns what lies behind it and the sign, else npos.
  size_t tag_of(std::string_view name, size_t at, char& sign) const {
    at = skip_spaces(at);
    if (text_.compare(at, name.size(), name) != 0) return std::string::npos;
    at = skip_spaces(at + name.size());
    sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
    return text_.compare(at, 2, "%}") == 0 ? at + 2 : std::string::npos;
  }

  bool raw() {
    char sign = ' ';
    const size_t begin = tag_of("raw", at_, sign);
    if (begin == std::string::npos) return false;
    at_ = begin;
    end_tag(sign, false);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos;
         tag = text_.find("{%", tag + 2)) {
      size_t inner = tag + 2;
      if (inner < text_.size() && (text_[inner] == '-' || text_[inner] == '+')) ++inner;
      const size_t end = tag_of("endraw", inner, sign);
      if (end == std::string::npos) continue;
      data(tag);
      at_ = end;
      end_tag(sign, true);
      return true;
    }
    fail_at(line_, "{% raw %} does not end");
  }

  // The tokens up to `close`; returns the sign before it.
  char inside(std::string_view close) {
    int open = 0;  // brackets: within a dict, }} may be two of them
    for (;;) {
      at_ = skip_spaces(at_);
      count_lines(at_);
      if (at_ >= text_.size()) fail_at(line_, "a tag does not end");
      const std::string_view rest = std::string_view(text_).substr(at_);
      const bool has_sign = rest[0] == '-' || rest[0] == '+';
      if (open == 0 && rest.substr(has_sign ? 1 : 0, 2) == close &&
          (!has_sign || rest[0] == '-' || close == "%}")) {
        at_ += close.size() + (has_sign ? 1 : 0);
        return has_sign ? rest[0] : ' ';
      }
      if (is_letter(rest[0])) take(Kind::name, [](char c) { return is_letter(c) || is_digit(c); });
      else if (is_digit(rest[0])) number();
      else if (rest[0] == '\'' || rest[0] == '"') string(rest[0]);
      else open += sign(rest);
    }
  }

  template <class Belongs>
  void take(Kind kind, Belongs&& belongs) {
    const size_t begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    push(kind, text_.substr(begin, at_ - begin));
  }

  void number() {
    const size_t begin = at_;
    const auto digits = [&] {
      while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '_')) ++at_;
    };
    digits();
    bool real = false;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      real = true;
      ++at_;
      digits();
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      const size_t sign =
          at_ + 1 < text_.size() && (text_[at_ + 1] == '-' || text_[at_ + 1] == '+');
      if (at_ + 1 + sign < text_.size() && is_digit(text_[at_ + 1 + sign])) {
        real = true;
        at_ += 1 + sign;
        digits();
      }
    }
    std::string digits_only = text_.substr(begin, at_ - begin);
    std::erase(digits_only, '_');
    push(real ? Kind::real : Kind::integer, digits_only);
  }

  // Python's escapes, those by a character's name excepted.
  void string(char quote) {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] != '\\' || at_ + 1 >= text_.size()) {
        out += text_[at_];
        continue;
      }
      const char c = text_[++at_];
      static constexpr std::string_view kNames = "nrtbfva0\\'\"",
                                        kStandFor{"\n\r\t\b\f\v\a\0\\'\"", 11};
      if (const size_t i = kNames.find(c); i != std::string_view::npos) out += kStandFor[i];
      else if (c == 'x' || c == 'u' || c == 'U') out += code(c == 'x' ? 2 : c == 'u' ? 4 : 8);
      else if (c != '\n') (out += '\\') += c;
    }
    if (at_ >= text_.size()) fail_at(line_, "a string does not end");
    ++at_;
    push(Kind::text, std::move(out));
    count_lines(at_);
  }

  // `digits` hexadecimal ones behind the current character, as UTF-8.
  std::string code(size_t digits) {
    uint32_t x = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = at_ + 1 < text_.size() ? text_[++at_] : ' ';
      const size_t value = std::string_view("0123456789abcdef")
                               .find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (value == std::string_view::npos) fail_at(line_, "a string holds a broken escape");
      x = x << 4 | static_cast<uint32_t>(value);
    }
    if (x > 0x10FFFF || (x >= 0xD800 && x < 0xE000))
      fail_at(line_, "a string holds an escape of no character");
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | (x >> shift & 0x3F)); };
    if (x < 0x80) return {static_cast<char>(x)};
    if (x < 0x800) return {static_cast<char>(0xC0 | x >> 6), tail(0)};
    if (x < 0x10000) return {static_cast<char>(0xE0 | x >> 12), tail(6), tail(0)};
    return {static_cast<char>(0xF0 | x >> 18), tail(12), tail(6), tail(0)};
  }

  // Returns by how much more brackets stand open.
  int sign(std::string_view rest) {
    static constexpr std::string_view kTwo[] = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view two : kTwo)
      if (rest.starts_with(two)) {
        push(Kind::sign, std::string(two));
        at_ += 2;
        return 0;
      }
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(rest[0]) == std::string_view::npos)
      fail_at(line_,
              "a tag holds " +
                  readable_name(rest.substr(0, static_cast<size_t>(utf8_step(rest).length))) +
                  ", which means nothing there");
    push(Kind::sign, std::string(1, rest[0]));
    ++at_;
    if (rest[0] == '(' || rest[0] == '[' || rest[0] == '{') return 1;
    return rest[0] == ')' || rest[0] == ']' || rest[0] == '}' ? -1 : 0;
  }

  std::string text_;
  std::vector<Token> tokens_;
  size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // nothing but what a tag took stands before `at_` in its line
};

}  // namespace

std::vector<Token> lex(std::string_view source) { return Lexer(source).run(); }

// What a template says of itself may be of any length and several lines.
void fail_at(int line, const std::string& what) {
  constexpr size_t kShown = 500;
  std::string shown = what.substr(0, kShown);
  std::replace(shown.begin(), shown.end(), '\n', ' ');
  fail("chat template, line {}: {}{}", line, readable_name(shown),
       what.size() > kShown ? "..." : "");
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  size_t begin = std::string_view::npos, end = 0;
  for (size_t at = 0; at < text.size();) {
    const auto length = static_cast<size_t>(utf8_step(text.substr(at)).length);
    if (!is_space(text.substr(at, length))) {
      begin = std::min(begin, at);
      end = at + length;
      if (!right) break;
    }
    at += length;
  }
  if (end == 0) return text.substr(left ? text.size() : 0, 0);
  if (!left) begin = 0;
  return text.substr(begin, right ? end - begin : std::string_view::npos);
}

}  // namespace moe::jinja
