// Methods of Python's str as templates call them.
#include <algorithm>
#include <set>

#include "core/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace moe::jinja {
namespace {

const std::string& self(const Call& c) { return *c.on.text(); }

void need_ascii(std::string_view text, std::string_view what) {
  if (std::any_of(text.begin(), text.end(), [](char x) { return static_cast<signed char>(x) < 0; }))
    fail("{} of letters beyond ASCII is not known here", what);
}

// f(character) of a text, one after the other.
template <class F>
void each_character(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view one = character_of(text.substr(at), 0);
    f(one);
    at += one.size();
  }
}

// Without the characters of `set` at its ends.
std::string without(std::string_view text, std::string_view set, bool left, bool right) {
  std::set<std::string_view> drop;
  each_character(set, [&](std::string_view one) { drop.insert(one); });
  size_t at = 0, begin = text.size(), end = 0;  // of what is not dropped
  each_character(text, [&](std::string_view one) {
    if (!drop.contains(one)) {
      begin = std::min(begin, at);
      end = at + one.size();
    }
    at += one.size();
  });
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, begin < end ? end - begin : 0));
}

template <bool kLeft, bool kRight>
Value strip(const Call& c) {
  c.only(1, {"chars"});
  const Value set = c.get(0, "chars", {});
  if (set.none()) return std::string(stripped(self(c), kLeft, kRight));
  const std::string drop = text_of(c, set);
  c.host.work(std::ssize(drop));
  return without(self(c), drop, kLeft, kRight);
}

List split_spaces(std::string_view text, int64_t most) {
  List parts;
  for (text = stripped(text, true, false); !text.empty();) {
    size_t end = 0;
    while (end < text.size() && stripped(text.substr(end), true, false).size() == text.size() - end)
      ++end;
    if (end == text.size() || (most >= 0 && static_cast<int64_t>(parts.size()) == most)) {
      parts.emplace_back(std::string(text));
      break;
    }
    parts.emplace_back(std::string(text.substr(0, end)));
    text = stripped(text.substr(end), true, false);
  }
  return parts;
}

Value split(const Call& c) {
  c.only(2, {"sep", "maxsplit"});
  const Value separator = c.get(0, "sep", {});
  const int64_t most = integer_of(c, c.get(1, "maxsplit", int64_t{-1}));
  c.host.spend(self(c).size() * 8);
  if (separator.none()) return split_spaces(self(c), most);
  const std::string by = text_of(c, separator);
  if (by.empty()) fail("split() by an empty text");
  work_of_searching(c.host, self(c), by);
  List parts;
  size_t at = 0;
  for (size_t end; (most < 0 || static_cast<int64_t>(parts.size()) < most) &&
                   (end = self(c).find(by, at)) != std::string::npos;
       at = end + by.size())
    parts.emplace_back(self(c).substr(at, end - at));
  parts.emplace_back(self(c).substr(at));
  return parts;
}

Value rsplit(const Call& c) {
  c.only(2, {"sep", "maxsplit"});
  const std::string by = text_of(c, c.need(0, "sep"));
  int64_t most = integer_of(c, c.get(1, "maxsplit", int64_t{-1}));
  if (by.empty()) fail("rsplit() by an empty text");
  work_of_searching(c.host, self(c), by);
  List parts;
  size_t end = self(c).size();
  for (; most != 0; --most) {
    const size_t at = end < by.size() ? std::string::npos : self(c).rfind(by, end - by.size());
    if (at == std::string::npos) break;
    c.host.spend(sizeof(Value) + end - at);
    parts.emplace_back(self(c).substr(at + by.size(), end - at - by.size()));
    end = at;
  }
  parts.emplace_back(self(c).substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value splitlines(const Call& c) {
  c.only(0, {});
  List lines;
  const std::string& text = self(c);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    c.host.spend(sizeof(Value) + end - at);
    lines.emplace_back(text.substr(at, end - at));
    at = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

template <bool kStart>
Value begins_or_ends(const Call& c) {
  c.only(1, {});
  const Value what = c.need(0, "prefix");
  const auto fits = [&](const Value& x) {
    return kStart ? self(c).starts_with(text_of(c, x)) : self(c).ends_with(text_of(c, x));
  };
  if (!what.sequence()) return fits(what);
  const List& any = what.sequence()->items;
  return std::any_of(any.begin(), any.end(), fits);
}

template <bool kStart>
Value remove_end(const Call& c) {
  c.only(1, {});
  const std::string what = text_of(c, c.need(0, "prefix"));
  if (kStart && self(c).starts_with(what)) return self(c).substr(what.size());
  if (!kStart && self(c).ends_with(what)) return self(c).substr(0, self(c).size() - what.size());
  return self(c);
}

Value replace_in_text(const Call& c) {
  c.only(3, {"old", "new", "count"});
  const std::string from = text_of(c, c.need(0, "old")), to = text_of(c, c.need(1, "new"));
  int64_t most = integer_of(c, c.get(2, "count", int64_t{-1}));
  std::string out;
  size_t at = 0;
  if (from.empty()) fail("replace() of an empty text is not known here");
  work_of_searching(c.host, self(c), from);
  for (size_t found; most != 0 && (found = self(c).find(from, at)) != std::string::npos; --most) {
    c.host.spend(found - at + to.size());
    out.append(self(c), at, found - at) += to;
    at = found + from.size();
  }
  c.host.spend(self(c).size() - at);
  return out.append(self(c), at);
}

template <bool kLast, bool kMustBe>
Value find(const Call& c) {
  c.only(1, {});
  const std::string what = text_of(c, c.need(0, "sub"));
  work_of_searching(c.host, self(c), what);
  const size_t at = kLast ? self(c).rfind(what) : self(c).find(what);
  if (at == std::string::npos && kMustBe) fail("{}() finds nothing", c.name);
  if (at == std::string::npos) return int64_t{-1};
  return Value::of_size(character_count(std::string_view(self(c)).substr(0, at)));
}

Value count(const Call& c) {
  c.only(1, {});
  const std::string what = text_of(c, c.need(0, "sub"));
  int64_t found = 0;
  if (what.empty()) return Value::of_size(character_count(self(c)) + 1);
  work_of_searching(c.host, self(c), what);
  for (size_t at = 0; (at = self(c).find(what, at)) != std::string::npos; at += what.size())
    ++found;
  return found;
}

Value join_texts(const Call& c) {
  c.only(1, {});
  std::string out;
  bool first = true;
  for (const Value& x : items_of(c.host, c.need(0, "iterable"))) {
    if (!first) out += self(c);
    first = false;
    out += text_of(c, x);
    c.host.spend(self(c).size() + x.text()->size());
  }
  return out;
}

bool ascii_digit(char x) { return x >= '0' && x <= '9'; }

// {} and {0} and {name}, without a format behind a colon.
Value format(const Call& c) {
  const std::string& text = self(c);
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool open = text[i] == '{', twice = text.substr(i, 2) == (open ? "{{" : "}}");
    if ((!open && text[i] != '}') || twice) {
      out += text[i];
      i += twice ? 1 : 0;
      continue;
    }
    const size_t end = open ? text.find('}', i) : std::string::npos;
    if (end == std::string::npos) fail("format(): a bracket stands alone");
    std::string name = text.substr(i + 1, end - i - 1);
    if (name.empty()) name = std::to_string(next++);
    const bool by_place = std::all_of(name.begin(), name.end(), ascii_digit) && name.size() < 4;
    const Value* found = by_place ? c.find(std::stoul(name), "") : c.find(~size_t{0}, name);
    if (found == nullptr) fail("format(): {{{}}} is not known here", name);
    out += written(c.host, *found);
    c.host.spend(out.size());
    i = end;
  }
  return out;
}

Value capitalize(const Call& c) {
  std::string out = lowered(self(c));
  if (!out.empty()) out.replace(0, 1, raised(out.substr(0, 1)));
  return out;
}

// Python's: a letter behind one that is none is raised.
Value title_of_text(const Call& c) {
  std::string out = lowered(self(c));
  bool inside = false;
  for (char& x : out) {
    const bool letter = x >= 'a' && x <= 'z';
    if (letter && !inside) x = static_cast<char>(x - 32);
    inside = letter;
  }
  return out;
}

template <bool (*kBelongs)(char)>
Value all_are(const Call& c) {
  c.only(0, {});
  need_ascii(self(c), c.name);
  return !self(c).empty() && std::all_of(self(c).begin(), self(c).end(), kBelongs);
}
bool ascii_alpha(char x) { return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z'); }
bool ascii_alnum(char x) { return ascii_digit(x) || ascii_alpha(x); }
bool ascii_space(char x) { return x == ' ' || (x >= '\t' && x <= '\r') || (x >= 28 && x <= 31); }

}  // namespace

std::string lowered(std::string_view text) {
  need_ascii(text, "lower()");
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}
std::string raised(std::string_view text) {
  need_ascii(text, "upper()");
  std::string out(text);
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  return out;
}

const Table& text_methods() {
  static const Table table = {
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"split", split},
      {"rsplit", rsplit},
      {"splitlines", splitlines},
      {"startswith", begins_or_ends<true>},
      {"endswith", begins_or_ends<false>},
      {"removeprefix", remove_end<true>},
      {"removesuffix", remove_end<false>},
      {"replace", replace_in_text},
      {"find", find<false, false>},
      {"rfind", find<true, false>},
      {"index", find<false, true>},
      {"rindex", find<true, true>},
      {"count", count},
      {"format", format},
      {"join", join_texts},
      {"upper", [](const Call& c) -> Value { return raised(self(c)); }},
      {"lower", [](const Call& c) -> Value { return lowered(self(c)); }},
      {"capitalize", capitalize},
      {"title", title_of_text},
      {"isdigit", all_are<ascii_digit>},
      {"isnumeric", all_are<ascii_digit>},
      {"isalpha", all_are<ascii_alpha>},
      {"isalnum", all_are<ascii_alnum>},
      {"isspace", all_are<ascii_space>},
  };
  return table;
}

}  // namespace moe::jinja
