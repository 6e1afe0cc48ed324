#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "text/utf8.h"

namespace moe::jinja {
namespace {

constexpr int kDeepestValue = 64;    // of values inside values
constexpr int64_t kLeastWeight = 8;  // of one
// Keys of a dict are looked for one after the other: those of two with n each take n^2 comparisons.
constexpr int64_t kKeysOfAByte = 16;

std::string real_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// The character at `at` and its bytes; a byte that belongs to none counts as one.
std::string_view character_at(std::string_view text, size_t at) {
  return text.substr(at, static_cast<size_t>(utf8_step(text.substr(at)).length));
}

int32_t code_of(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  int32_t code = byte(0) & (0xFF >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3F);
  return code;
}

// Python takes single quotes unless the text has those and no double ones.
std::string python_quoted(std::string_view text) {
  const bool twice =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = twice ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else {
      if (c == quote || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + quote;
}

std::string json_string(std::string_view text, bool ascii) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const std::string_view c = character_at(text, at);
    at += c.size();
    const int32_t code = code_of(c);
    static constexpr std::string_view kShort = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
    if (const size_t i = c.size() == 1 ? kShort.find(c[0]) : std::string_view::npos;
        i != std::string_view::npos) {
      out += '\\';
      out += kNames[i];
    } else if (code < 0x20 || (ascii && code >= 0x7F && code <= 0xFFFF)) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ascii && code > 0xFFFF) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                         0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string repr_of(const Value& x) {
  if (x.text()) return python_quoted(*x.text());
  if (const Sequence* s = x.sequence()) {
    if (s->form == Sequence::Form::stream)
      fail("{} cannot be written; list makes a list of it", x.type());
    const bool tuple = s->form == Sequence::Form::tuple;
    std::string out(1, tuple ? '(' : '[');
    for (size_t i = 0; i < s->items.size(); ++i) out += (i > 0 ? ", " : "") + repr_of(s->items[i]);
    if (tuple && s->items.size() == 1) out += ',';
    return out + (tuple ? ')' : ']');
  }
  if (const Dict* d = x.dict()) {
    std::string out = "{";
    for (size_t i = 0; i < d->entries.size(); ++i)
      out +=
          (i > 0 ? ", " : "") + repr_of(d->entries[i].first) + ": " + repr_of(d->entries[i].second);
    return out + "}";
  }
  if (x.undefined()) return "Undefined";
  return to_text(x);
}

struct JsonWriter {
  const JsonStyle& style;
  std::string out;

  void add(std::string_view text) {
    if (style.spend) style.spend(text.size());
    out += text;
  }
  void line(int depth) {
    if (style.indent < 0) return;
    const auto spaces = static_cast<size_t>(style.indent * depth);
    if (style.spend) style.spend(spaces + 1);
    out += '\n';
    out.append(spaces, ' ');
  }
  template <class Range, class Write>
  void within(char open, char close, const Range& range, int depth, Write&& one) {
    add({&open, 1});
    bool first = true;
    for (const auto& x : range) {
      if (!first) add(style.item);
      first = false;
      line(depth + 1);
      one(x);
    }
    if (!first) line(depth);
    add({&close, 1});
  }
  void write(const Value& x, int depth) {
    if (x.none()) add("null");
    else if (x.boolean()) add(*x.boolean() ? "true" : "false");
    else if (x.integer()) add(std::to_string(*x.integer()));
    else if (x.real())
      add(std::isnan(*x.real())   ? "NaN"
          : std::isinf(*x.real()) ? (*x.real() < 0 ? "-Infinity" : "Infinity")
                                  : real_text(*x.real()));
    else if (x.text()) add(json_string(*x.text(), style.ascii));
    else if (x.sequence() && x.sequence()->form != Sequence::Form::stream)
      within('[', ']', x.sequence()->items, depth, [&](const Value& y) { write(y, depth + 1); });
    else if (x.dict()) write_dict(*x.dict(), depth);
    else fail("tojson: {} has no form in JSON", x.type());
  }
  void write_dict(const Dict& d, int depth) {
    Entries entries = d.entries;
    if (style.sorted)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    within('{', '}', entries, depth, [&](const auto& entry) {
      add(json_string(entry.first.text() ? *entry.first.text()
                                         : to_json(entry.first, JsonStyle{.spend = style.spend}),
                      style.ascii));
      add(style.colon);
      write(entry.second, depth + 1);
    });
  }
};

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

Value::Value(Sequence x) {
  int deepest = 0;
  x.weight = kLeastWeight;
  for (const Value& item : x.items) {
    deepest = std::max(deepest, item.depth());
    x.weight = sum_of_weights(x.weight, item.weight());
  }
  set_depth(deepest);
  held_ = std::make_shared<const Sequence>(std::move(x));
}
Value::Value(Dict x) {
  int deepest = 0;
  const auto keys = std::ssize(x.entries);
  x.weight = kLeastWeight + product_of_weights(keys, keys) / kKeysOfAByte;
  for (const auto& [key, item] : x.entries) {
    deepest = std::max({deepest, key.depth(), item.depth()});
    x.weight = sum_of_weights(x.weight, sum_of_weights(key.weight(), item.weight()));
  }
  set_depth(deepest);
  held_ = std::make_shared<const Dict>(std::move(x));
}
Value::Value(Function x) {
  set_depth(x.holds);
  held_ = std::make_shared<const Function>(std::move(x));
}

void Value::set_depth(int of_held) {
  if (of_held >= kDeepestValue) fail("values lie more than {} deep in each other", kDeepestValue);
  depth_ = of_held + 1;
}

int64_t Value::weight() const {
  if (text()) return kLeastWeight + std::ssize(*text());
  return sequence() ? sequence()->weight : dict() ? dict()->weight : kLeastWeight;
}

double Value::as_double() const {
  if (boolean()) return *boolean() ? 1 : 0;
  if (integer()) return static_cast<double>(*integer());
  return *real();
}

bool Value::truth() const {
  if (undefined() || none()) return false;
  if (number()) return as_double() != 0;
  if (text()) return !text()->empty();
  if (sequence()) return sequence()->form == Sequence::Form::stream || !sequence()->items.empty();
  if (dict()) return !dict()->entries.empty();
  return true;
}

const char* Value::type() const {
  static constexpr const char* kNames[] = {"undefined", "None", "bool", "int",      "float",
                                           "str",       "list", "dict", "function", "namespace"};
  if (!sequence() || sequence()->form == Sequence::Form::list) return kNames[held_.index()];
  return sequence()->form == Sequence::Form::tuple ? "tuple" : "generator";
}

bool operator==(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return a.as_double() == b.as_double();
  if (a.held_.index() != b.held_.index()) return false;
  if (a.text()) return *a.text() == *b.text();
  if (a.sequence())
    return a.sequence()->form == b.sequence()->form && a.sequence()->items == b.sequence()->items;
  if (a.dict()) {
    const Entries &x = a.dict()->entries, &y = b.dict()->entries;
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& entry) {
             const Value* other = b.dict()->find(entry.first);
             return other != nullptr && *other == entry.second;
           });
  }
  if (a.space()) return a.space() == b.space();
  if (a.function()) return a.function() == b.function();
  return true;
}

int compare(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) {
    const int64_t x = *a.integer(), y = *b.integer();
    return x < y ? -1 : x > y;
  }
  if (a.number() && b.number()) {
    const double x = a.as_double(), y = b.as_double();
    return x < y ? -1 : x > y;
  }
  if (a.text() && b.text()) return a.text()->compare(*b.text());  // bytes of UTF-8 order as codes
  if (a.sequence() && b.sequence()) {
    const List &x = a.sequence()->items, &y = b.sequence()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!(x[i] == y[i])) return compare(x[i], y[i]);
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  fail("{} and {} have no order", a.type(), b.type());
}

std::string to_text(const Value& x) {
  if (x.undefined()) return "";
  if (x.none()) return "None";
  if (x.boolean()) return *x.boolean() ? "True" : "False";
  if (x.integer()) return std::to_string(*x.integer());
  if (x.real()) return real_text(*x.real());
  if (x.text()) return *x.text();
  if (x.sequence() || x.dict()) return repr_of(x);
  fail("{} cannot be written as text", x.type());
}

void fail_overflow() { fail("a whole number leaves the 64 bits that it has here"); }

std::string to_repr(const Value& x) { return repr_of(x); }

std::string to_json(const Value& x, const JsonStyle& style) {
  JsonWriter writer{style, {}};
  writer.write(x, 0);
  return std::move(writer.out);
}

List characters(std::string_view text) {
  List out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view c = character_at(text, at);
    out.emplace_back(std::string(c));
    at += c.size();
  }
  return out;
}

size_t character_count(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += character_at(text, at).size();
  return count;
}

std::string_view character_of(std::string_view text, size_t place) {
  for (size_t at = 0; at < text.size(); --place) {
    const std::string_view c = character_at(text, at);
    if (place == 0) return c;
    at += c.size();
  }
  return {};
}

std::string_view characters_between(std::string_view text, size_t begin, size_t end) {
  size_t from = text.size(), to = 0;
  for (size_t place = 0; place < end && to < text.size(); ++place) {
    if (place == begin) from = to;
    to += character_at(text, to).size();
  }
  return from < to ? text.substr(from, to - from) : std::string_view();
}

int64_t sum_of_weights(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}
int64_t product_of_weights(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace moe::jinja
