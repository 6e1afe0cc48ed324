// A pass over the expression that lets through only constructs with one meaning in both engines.
// Differences that matter: \s (PCRE2 also takes U+180E), \w and \b (other sets), \h (hexadecimal or
// horizontal space), nested classes and && (Ruby only), {2}+ (possessive or a nested quantifier, as
// which it is rewritten behind a property), \uHHHH (Ruby only), \p{Han} (script extensions since
// PCRE2 10.40).
#include "text/pattern.h"

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

constexpr size_t kMaxPattern = 4096;
constexpr std::string_view kSpace =
    R"(\x{09}-\x{0D}\x{85}\p{Z})";  // White_Space of Unicode, as the inside of a class

class Translation {
 public:
  explicit Translation(std::string_view pattern) : rest_(pattern) {}

  std::string run() {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '\\') escape(false);
      else if (c == '[') character_class();
      else if (c == '(') group();
      else if (c == '{') repeat();
      else take(1);
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) {
    fail("its pattern has \"{}\", which is not supported", printable(what, 20));
  }
  void take(size_t n) {
    out_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
  }

  void escape(bool in_class) {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    const auto put = [&](std::string_view text) {
      out_ += text;
      rest_.remove_prefix(2);
    };
    const bool punctuation =
        c > ' ' && c < 0x7F &&
        !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
    if (punctuation || c == ' ' || c == 'r' || c == 'n' || c == 't' || c == 'f') take(2);
    else if (c == 's') put(in_class ? std::string(kSpace) : fmt::format("[{}]", kSpace));
    else if (c == 'S' && !in_class) put(fmt::format("[^{}]", kSpace));
    else if (c == 'd') put(R"(\p{Nd})");
    else if (c == 'D') put(R"(\P{Nd})");
    else if (c == 'p' || c == 'P') property();
    else if (c == 'u') code_point();
    // where a piece begins or ends, and where a search does
    else if (!in_class && (c == 'A' || c == 'z' || c == 'G')) take(2);
    else refuse(rest_.substr(0, 2));
  }

  // \p{L}, \p{Lu}: general categories; longer names are scripts.
  void property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 5 || rest_[2] != '{' || end == std::string_view::npos || end < 4)
      refuse(rest_.substr(0, 12));
    const std::string_view name = rest_.substr(3, end - 3);
    for (const char c : name)
      if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'))
        refuse(rest_.substr(0, end + 1));
    property_begin_ = out_.size();
    out_ += fmt::format("\\{}{{{}{}}}", rest_[1], name.size() <= 2 ? "" : "sc:", name);
    property_end_ = out_.size();
    rest_.remove_prefix(end + 1);
  }

  // \uHHHH
  void code_point() {
    constexpr size_t kLength = 6;
    const std::string_view digits = rest_.substr(2, kLength - 2);
    if (digits.size() < kLength - 2 ||
        digits.find_first_not_of("0123456789ABCDEFabcdef") != std::string_view::npos)
      refuse(rest_.substr(0, kLength));
    out_ += fmt::format("\\x{{{}}}", digits);
    rest_.remove_prefix(kLength);
  }

  void character_class() {
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) refuse("[]");
    while (!rest_.starts_with(']')) {
      if (rest_.empty()) fail("its pattern has a class without an end");
      if (rest_.front() == '[') refuse(rest_.substr(0, 4));
      if (rest_.starts_with("&&")) refuse("&&");
      if (rest_.front() == '\\') escape(true);
      else take(1);
    }
    take(1);
  }

  void group() {
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (rest_.starts_with(known)) return take(known.size());
    if (rest_.starts_with("(?") || rest_.starts_with("(*")) refuse(rest_.substr(0, 4));
    take(1);
  }

  // {n}, {n,} or {n,m}.
  void repeat() {
    size_t i = 1;
    const auto digits = [&] {
      const size_t first = i;
      while (i < rest_.size() && rest_[i] >= '0' && rest_[i] <= '9') ++i;
      return i - first;
    };
    const bool counted = digits() > 0;
    if (i < rest_.size() && rest_[i] == ',') {
      ++i;
      digits();
    }
    if (!counted || i == rest_.size() || rest_[i] != '}') refuse(rest_.substr(0, 8));
    const bool of_property = property_end_ == out_.size();
    take(i + 1);
    if (!rest_.starts_with('+')) return;
    if (!of_property) refuse("}+");
    out_.insert(property_begin_, "(?:");
    out_ += ')';
  }

  std::string_view rest_;
  std::string out_;
  // in out_, of the last one
  size_t property_begin_ = std::string::npos, property_end_ = std::string::npos;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  if (pattern.empty()) fail("its pattern is empty");
  if (pattern.size() > kMaxPattern)
    fail("its pattern has {} bytes; at most {} are supported", pattern.size(), kMaxPattern);
  return Translation(pattern).run();
}

}  // namespace moe
