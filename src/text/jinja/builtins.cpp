#include "text/jinja/builtins.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "text/jinja/lexer.h"

namespace moe::jinja {
namespace {

// ---- what several need --------------------------------------------------------------------------

constexpr int64_t kSortingOfDicts = 16;  // times that it goes through their keys

// A part of a path: digits are a place.
Value key_in_path(std::string_view part) {
  int64_t place = 0;
  const char* const end = part.data() + part.size();
  const bool digits = part.find_first_not_of("0123456789") == std::string_view::npos;
  const auto [read, error] = std::from_chars(part.data(), end, place);
  return digits && error == std::errc() ? Value(place) : Value(std::string(part));
}

// x['a']['b'][0], as `attribute=` names it: a.b.0.
Value at_path(const Call& c, Value x, const Value& path) {
  if (path.integer()) return c.host.item(x, path);
  const std::string held = text_of(c, path);
  std::string_view rest = held;
  while (true) {
    const size_t dot = rest.find('.');
    x = c.host.item(x, key_in_path(rest.substr(0, dot)));
    if (dot == std::string_view::npos) return x;
    rest.remove_prefix(dot + 1);
  }
}

// What a filter with `attribute=` looks at of each item.
Value key_of(const Call& c, const Value& x, const Value& attribute, bool fold_case = false) {
  Value key = attribute.none() ? x : at_path(c, x, attribute);
  if (fold_case && key.text()) return lowered(*key.text());
  return key;
}

// The arguments from `first` on.
Arguments behind(const Arguments& given, size_t first) {
  Arguments rest;
  for (size_t i = first; i < given.positional.size(); ++i)
    rest.positional.push_back(given.positional[i]);
  rest.named = given.named;
  return rest;
}

// ---- filters: texts -----------------------------------------------------------------------------

Value trim(const Call& c) {
  c.only(1, {"chars"});
  const std::string text = written(c.host, c.on);
  const Value set = c.get(0, "chars", {});
  if (set.none()) return std::string(stripped(text));
  return text_methods().at("strip")({c.host, "strip", Value(text), c.given});
}

Value through_method(const Call& c) {
  const Value text = written(c.host, c.on);
  return text_methods().at(c.name)({c.host, c.name, text, c.given});
}

// Every word's first letter large, the others small; words end where Jinja's do.
Value title(const Call& c) {
  std::string out = lowered(written(c.host, c.on));
  bool begins = true;
  for (char& x : out) {
    if (begins && x >= 'a' && x <= 'z') x = static_cast<char>(x - 32);
    begins = std::string_view("- \t\n\r\f\v({[<").find(x) != std::string_view::npos;
  }
  return out;
}

Value escape(const Call& c) {
  if (c.on.safe()) return c.on;
  return Value::marked_safe(escaped(c.host, written(c.host, c.on)));
}

Value indent(const Call& c) {
  c.only(3, {"width", "first", "blank"});
  const Value width = c.get(0, "width", int64_t{4});
  if (width.integer() && *width.integer() > 1000) fail("indent() by more than 1000");
  const std::string by =
      width.text()
          ? *width.text()
          : std::string(static_cast<size_t>(std::max<int64_t>(0, integer_of(c, width))), ' ');
  const bool first = c.flag(1, "first", false), blank = c.flag(2, "blank", false);
  const std::string text = written(c.host, c.on);
  std::string out = first ? by : "";
  for (const char x : text) {
    out += x;
    if (x == '\n') out += by;
    c.host.spend(1 + (x == '\n' ? by.size() : 0));
  }
  if (blank) return out;
  // lines without anything get none
  std::string kept;
  for (size_t at = 0; at <= out.size();) {
    const size_t end = std::min(out.find('\n', at), out.size());
    const bool empty = end - at == by.size() && out.compare(at, by.size(), by) == 0 && at > 0;
    kept.append(out, empty ? end : at, empty ? 0 : end - at);
    if (end < out.size()) kept += '\n';
    at = end + 1;
  }
  return kept;
}

Value replace(const Call& c) {
  const Value text = written(c.host, c.on);
  Arguments given = c.given;
  for (Value& x : given.positional)
    if (!x.number()) x = written(c.host, x);
  return text_methods().at("replace")({c.host, "replace", text, given});
}

Value to_json_filter(const Call& c) {
  c.only(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = c.flag(0, "ensure_ascii", false);
  if (const Value indent = c.get(1, "indent", {}); !indent.none()) {
    style.indent = integer_of(c, indent);
    if (style.indent < 0 || style.indent > 100) fail("tojson(): indent is 0 to 100");
    style.item.pop_back();  // the space: the line ends there
  }
  if (const Value by = c.get(2, "separators", {}); !by.none()) {
    const List parts = items_of(c.host, by);
    if (parts.size() != 2) fail("tojson(): separators are two texts");
    style.item = text_of(c, parts[0]);
    style.colon = text_of(c, parts[1]);
  }
  style.sorted = c.flag(3, "sort_keys", false);
  if (style.sorted) c.host.work(product_of_weights(c.on.weight(), kSortingOfDicts));
  style.spend = [&](size_t bytes) { c.host.spend(bytes); };
  return to_json(c.on, style);
}

// ---- filters: numbers ---------------------------------------------------------------------------

Value to_int(const Call& c) {
  c.only(2, {"default", "base"});
  if (c.on.boolean()) return int64_t{*c.on.boolean()};
  if (c.on.integer()) return c.on;
  if (c.on.real() && std::abs(*c.on.real()) < 9e18) return static_cast<int64_t>(*c.on.real());
  if (!c.get(1, "base", {}).none()) fail("int() of a base is not known here");
  const std::string held = written(c.host, c.on);
  std::string_view text = stripped(held);
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t whole = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
      error == std::errc() && end == text.data() + text.size())
    return whole;
  double x = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
      error == std::errc() && end == text.data() + text.size() && std::abs(x) < 9e18)
    return static_cast<int64_t>(x);
  return c.get(0, "default", int64_t{0});
}

Value to_float(const Call& c) {
  c.only(1, {"default"});
  if (c.on.number()) return c.on.as_double();
  const std::string held = written(c.host, c.on);
  const std::string_view text = stripped(held);
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  return error == std::errc() && end == text.data() + text.size() ? Value(x)
                                                                  : c.get(0, "default", 0.0);
}

Value absolute(const Call& c) {
  if (c.on.integer() && *c.on.integer() != std::numeric_limits<int64_t>::min())
    return std::abs(*c.on.integer());
  if (!c.on.number()) fail("abs of {}", c.on.type());
  return std::abs(c.on.as_double());
}

Value round(const Call& c) {
  c.only(2, {"precision", "method"});
  const int64_t places = integer_of(c, c.get(0, "precision", int64_t{0}));
  const Value method = c.get(1, "method", "common");
  if (!c.on.number() || std::abs(places) > 15)
    fail("round of {} to {} places", c.on.type(), places);
  if (c.on.integer() && text_of(c, method) == "common" && places >= 0) return c.on;
  const double scale = std::pow(10.0, static_cast<double>(places)), x = c.on.as_double() * scale;
  if (*method.text() == "common") return std::nearbyint(x) / scale;
  if (*method.text() == "ceil") return std::ceil(x) / scale;
  if (*method.text() == "floor") return std::floor(x) / scale;
  fail("round(): the method is common, ceil or floor");
}

// ---- filters: lists -----------------------------------------------------------------------------

Value or_default(const Call& c) {
  c.only(2, {"default_value", "boolean"});
  const bool missing = c.on.undefined() || (c.flag(1, "boolean", false) && !c.on.truth());
  return missing ? c.get(0, "default_value", "") : c.on;
}

template <bool kLast>
Value end_item(const Call& c) {
  if (const std::string* text = c.on.text(); text != nullptr && !text->empty())
    return std::string(character_of(*text, kLast ? character_count(*text) - 1 : 0));
  const List items = items_of(c.host, c.on);
  if (items.empty())
    return Undefined{kLast ? "the last item of nothing" : "the first item of nothing"};
  return kLast ? items.back() : items.front();
}

Value join(const Call& c) {
  c.only(2, {"d", "attribute"});
  const std::string by = written(c.host, c.get(0, "d", ""));
  const Value attribute = c.get(1, "attribute", {});
  std::string out;
  bool first = true;
  for (const Value& x : items_of(c.host, c.on)) {
    if (!first) out += by;
    first = false;
    const std::string text = written(c.host, key_of(c, x, attribute));
    c.host.spend(text.size() + by.size());
    out += text;
  }
  return out;
}

Value reverse(const Call& c) {
  List items = items_of(c.host, c.on);
  std::reverse(items.begin(), items.end());
  if (!c.on.text()) return Value::stream(std::move(items));
  std::string out;
  for (const Value& x : items) out += *x.text();
  return out;
}

Value dict_items(const Call& c) {
  if (c.on.undefined()) return List{};
  if (!c.on.dict()) fail("items of {}", c.on.type());
  List out;
  for (const auto& [key, value] : c.on.dict()->entries) out.push_back(Value::tuple({key, value}));
  return out;
}

void sort_by(const Call& c, List& items, const std::vector<Value>& keys, bool reversed) {
  int64_t all = 0;
  for (const Value& key : keys) all = sum_of_weights(all, key.weight());
  c.host.work(product_of_weights(all, std::bit_width(keys.size())));
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int sign = compare(keys[a], keys[b]);
    return reversed ? sign > 0 : sign < 0;
  });
  List sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  items = std::move(sorted);
}

Value sort(const Call& c) {
  c.only(3, {"reverse", "case_sensitive", "attribute"});
  List items = items_of(c.host, c.on);
  std::vector<Value> keys;
  for (const Value& x : items)
    keys.push_back(key_of(c, x, c.get(2, "attribute", {}), !c.flag(1, "case_sensitive", false)));
  sort_by(c, items, keys, c.flag(0, "reverse", false));
  return items;
}

Value dictsort(const Call& c) {
  c.only(3, {"case_sensitive", "by", "reverse"});
  List items = items_of(c.host, dict_items({c.host, c.name, c.on, {}}));
  const Value by = c.get(1, "by", "key");
  std::vector<Value> keys;
  for (const Value& x : items)
    keys.push_back(
        key_of(c, x, int64_t{text_of(c, by) == "value"}, !c.flag(0, "case_sensitive", false)));
  sort_by(c, items, keys, c.flag(2, "reverse", false));
  return items;
}

Value unique(const Call& c) {
  c.only(2, {"case_sensitive", "attribute"});
  List kept, seen;
  for (const Value& x : items_of(c.host, c.on)) {
    const Value key = key_of(c, x, c.get(1, "attribute", {}), !c.flag(0, "case_sensitive", false));
    c.host.spend(seen.size());
    work_of_finding(c.host, std::ssize(seen), key);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(key);
    kept.push_back(x);
  }
  return Value::stream(std::move(kept));
}

template <bool kMost>
Value extreme(const Call& c) {
  c.only(2, {"case_sensitive", "attribute"});
  const List items = items_of(c.host, c.on);
  if (items.empty()) return Undefined{"the extreme of nothing"};
  const auto key = [&](const Value& x) {
    Value of = key_of(c, x, c.get(1, "attribute", {}), !c.flag(0, "case_sensitive", false));
    c.host.work(of.weight());
    return of;
  };
  const Value* best = &items[0];
  for (const Value& x : items) {
    const int sign = compare(key(x), key(*best));
    if (kMost ? sign > 0 : sign < 0) best = &x;
  }
  return *best;
}

Value sum(const Call& c) {
  c.only(2, {"attribute", "start"});
  const Value start = c.get(1, "start", int64_t{0});
  double total = start.number() ? start.as_double() : 0;
  bool whole = start.integer() != nullptr;
  for (const Value& x : items_of(c.host, c.on)) {
    const Value term = key_of(c, x, c.get(0, "attribute", {}));
    if (!term.number()) fail("sum of {}", term.type());
    whole = whole && !term.real();
    total += term.as_double();
  }
  if (!whole) return total;
  if (std::abs(total) > 9e15) fail("sum: too large a number");
  return static_cast<int64_t>(total);
}

Value map(const Call& c) {
  List out;
  if (!c.on.truth()) return Value::stream({});
  const Value* attribute = c.find(99, "attribute");
  const Value otherwise = c.get(99, "default", Undefined{"an attribute"});
  for (const Value& x : items_of(c.host, c.on)) {
    c.host.spend(sizeof(Value));
    if (attribute == nullptr) {
      out.push_back(c.host.filter(text_of(c, c.need(0, "filter")), x, behind(c.given, 1)));
      continue;
    }
    Value found = at_path(c, x, *attribute);
    out.push_back(found.undefined() && !otherwise.undefined() ? otherwise : std::move(found));
  }
  return Value::stream(std::move(out));
}

template <bool kKeep, bool kByAttribute>
Value select(const Call& c) {
  List out;
  if (!c.on.truth()) return Value::stream({});  // None has nothing to choose from, either
  const size_t at = kByAttribute ? 1 : 0;
  for (const Value& x : items_of(c.host, c.on)) {
    const Value looked = kByAttribute ? at_path(c, x, c.need(0, "attribute")) : x;
    const Value* test = c.find(at, "test");
    const bool holds = test == nullptr
                           ? looked.truth()
                           : c.host.test(text_of(c, *test), looked, behind(c.given, at + 1));
    c.host.spend(sizeof(Value));
    if (holds == kKeep) out.push_back(x);
  }
  return Value::stream(std::move(out));
}

Value to_list(const Call& c) { return items_of(c.host, c.on); }

// ---- tests --------------------------------------------------------------------------------------

bool is_iterable(const Value& x) { return x.text() || x.sequence() || x.dict() || x.undefined(); }

template <class Fits>
Value by_sign(const Call& c, Fits&& fits) {
  c.only(1, {"other"});
  const Value other = c.need(0, "other");
  work_of_comparing(c.host, c.on, other);
  return fits(c.on, other);
}

bool odd(const Call& c) { return integer_of(c, c.on) % 2 != 0; }

// Whether a text's letters are all as `change` makes them.
Value is_cased(const Call& c, std::string (*change)(std::string_view)) {
  const std::string text = written(c.host, c.on);
  return change(text) == text;
}

}  // namespace

const Table& filters() {
  static const Table table = {
      {"abs", absolute},
      {"capitalize", through_method},
      {"count", [](const Call& c) { return length_of(c.on); }},
      {"d", or_default},
      {"default", or_default},
      {"dictsort", dictsort},
      {"e", escape},
      {"escape", escape},
      {"first", end_item<false>},
      {"float", to_float},
      {"indent", indent},
      {"int", to_int},
      {"items", [](const Call& c) { return Value::stream(items_of(c.host, dict_items(c))); }},
      {"join", join},
      {"last", end_item<true>},
      {"length", [](const Call& c) { return length_of(c.on); }},
      {"list", to_list},
      {"lower", through_method},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"replace", replace},
      {"reverse", reverse},
      {"round", round},
      {"safe", [](const Call& c) { return Value::marked_safe(written(c.host, c.on)); }},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
      {"sort", sort},
      {"string", [](const Call& c) { return c.on.safe() ? c.on : Value(written(c.host, c.on)); }},
      {"sum", sum},
      {"title", title},
      {"tojson", to_json_filter},
      {"trim", trim},
      {"unique", unique},
      {"upper", through_method},
  };
  return table;
}

const Table& tests() {
  static constexpr Builtin kEqual = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return a == b; });
  };
  static constexpr Builtin kUnequal = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return !(a == b); });
  };
  static constexpr Builtin kLess = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return compare(a, b) < 0; });
  };
  static constexpr Builtin kMore = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return compare(a, b) > 0; });
  };
  static constexpr Builtin kAtMost = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return compare(a, b) <= 0; });
  };
  static constexpr Builtin kAtLeast = [](const Call& c) {
    return by_sign(c, [](const Value& a, const Value& b) { return compare(a, b) >= 0; });
  };
  static const Table table = {
      {"boolean", [](const Call& c) -> Value { return c.on.boolean() != nullptr; }},
      {"callable", [](const Call& c) -> Value { return c.on.function() != nullptr; }},
      {"defined", [](const Call& c) -> Value { return c.on.undefined() == nullptr; }},
      {"divisibleby",
       [](const Call& c) -> Value {
         const int64_t by = integer_of(c, c.need(0, "num"));
         if (by == 0) fail("divisibleby 0");
         return by == -1 || integer_of(c, c.on) % by == 0;
       }},
      {"==", kEqual},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"even", [](const Call& c) -> Value { return !odd(c); }},
      {"false", [](const Call& c) -> Value { return c.on.boolean() && !*c.on.boolean(); }},
      {"float", [](const Call& c) -> Value { return c.on.real() != nullptr; }},
      {">=", kAtLeast},
      {"ge", kAtLeast},
      {">", kMore},
      {"gt", kMore},
      {"greaterthan", kMore},
      {"in", [](const Call& c) -> Value { return contains(c.host, c.need(0, "seq"), c.on); }},
      {"integer", [](const Call& c) -> Value { return c.on.integer() != nullptr; }},
      {"iterable", [](const Call& c) -> Value { return is_iterable(c.on); }},
      {"<=", kAtMost},
      {"le", kAtMost},
      {"lower", [](const Call& c) { return is_cased(c, lowered); }},
      {"<", kLess},
      {"lt", kLess},
      {"lessthan", kLess},
      {"mapping", [](const Call& c) -> Value { return c.on.dict() != nullptr; }},
      {"!=", kUnequal},
      {"ne", kUnequal},
      {"none", [](const Call& c) -> Value { return c.on.none(); }},
      {"number", [](const Call& c) -> Value { return c.on.number(); }},
      {"odd", [](const Call& c) -> Value { return odd(c); }},
      {"sequence", [](const Call& c) -> Value { return is_iterable(c.on) && !c.on.undefined(); }},
      {"string", [](const Call& c) -> Value { return c.on.text() != nullptr; }},
      {"true", [](const Call& c) -> Value { return c.on.boolean() && *c.on.boolean(); }},
      {"undefined", [](const Call& c) -> Value { return c.on.undefined() != nullptr; }},
      {"upper", [](const Call& c) { return is_cased(c, raised); }},
  };
  return table;
}

const Table& dict_methods() {
  static const Table table = {
      {"items", dict_items},
      {"keys", to_list},
      {"values",
       [](const Call& c) -> Value {
         List out;
         for (const auto& entry : c.on.dict()->entries) out.push_back(entry.second);
         return out;
       }},
      {"get",
       [](const Call& c) -> Value {
         c.only(2, {});
         const Value key = c.need(0, "key");
         work_of_finding(c.host, std::ssize(c.on.dict()->entries), key);
         const Value* found = c.on.dict()->find(key);
         return found != nullptr ? *found : c.get(1, "default", {});
       }},
  };
  return table;
}

const Table& sequence_methods() {
  static const Table table = {
      {"index",
       [](const Call& c) -> Value {
         const List& items = c.on.sequence()->items;
         const Value value = c.need(0, "value");
         work_of_finding(c.host, std::ssize(items), value);
         const auto found = std::find(items.begin(), items.end(), value);
         if (found == items.end()) fail("index() finds nothing");
         return static_cast<int64_t>(found - items.begin());
       }},
      {"count",
       [](const Call& c) -> Value {
         const List& items = c.on.sequence()->items;
         const Value value = c.need(0, "value");
         work_of_finding(c.host, std::ssize(items), value);
         return static_cast<int64_t>(std::count(items.begin(), items.end(), value));
       }},
  };
  return table;
}

// ---- arguments ----------------------------------------------------------------------------------

const Value* Call::find(size_t place, std::string_view argument) const {
  for (const auto& entry : given.named)
    if (entry.first == argument) return &entry.second;
  return place < given.positional.size() ? &given.positional[place] : nullptr;
}
Value Call::get(size_t place, std::string_view argument, Value otherwise) const {
  const Value* found = find(place, argument);
  return found != nullptr ? *found : std::move(otherwise);
}
Value Call::need(size_t place, std::string_view argument) const {
  const Value* found = find(place, argument);
  if (found == nullptr) fail("{} needs its argument {}", name, argument);
  return *found;
}
bool Call::flag(size_t place, std::string_view argument, bool otherwise) const {
  return get(place, argument, otherwise).truth();
}
void Call::only(size_t places, std::initializer_list<std::string_view> names) const {
  if (given.positional.size() > places) fail("{} has {} arguments at most", name, places);
  for (const auto& entry : given.named)
    if (std::find(names.begin(), names.end(), entry.first) == names.end())
      fail("{} has no argument {}", name, entry.first);
}

std::string escaped(Host& host, std::string_view text) {
  std::string out;
  for (const char x : text) {
    switch (x) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += x;
    }
  }
  host.spend(out.size());
  return out;
}

List items_of(Host& host, const Value& x) {
  if (x.undefined()) return {};
  if (x.sequence()) return x.sequence()->items;
  if (x.text()) {
    host.spend(x.text()->size() * sizeof(Value));  // a value each
    return characters(*x.text());
  }
  if (!x.dict()) fail("{} has no items to go through", x.type());
  List keys;
  for (const auto& entry : x.dict()->entries) keys.push_back(entry.first);
  return keys;
}

std::string written(Host& host, const Value& x) {
  if (x.sequence() || x.dict()) host.spend(static_cast<size_t>(x.weight()));
  return to_text(x);
}

// Of others than lists and dicts the first look tells; texts are gone through by what holds them.
void work_of_comparing(Host& host, const Value& a, const Value& b) {
  if ((a.sequence() && b.sequence()) || (a.dict() && b.dict()))
    host.work(std::min(a.weight(), b.weight()));
}

void work_of_finding(Host& host, int64_t count, const Value& x) {
  host.work(product_of_weights(count, x.weight()));
}

// Where a text begins as what is looked for does, over and over, each place is looked at for long.
void work_of_searching(Host& host, std::string_view text, std::string_view what) {
  constexpr size_t kShort = 64;
  if (what.size() > kShort)
    host.work(product_of_weights(std::ssize(text), std::ssize(what)) /
              static_cast<int64_t>(kShort));
}

bool contains(Host& host, const Value& all, const Value& x) {
  if (all.undefined()) return false;
  if (all.dict()) {
    work_of_finding(host, std::ssize(all.dict()->entries), x);
    return all.dict()->find(x) != nullptr;
  }
  if (all.text()) {
    if (!x.text()) fail("a text holds texts only, not {}", x.type());
    work_of_searching(host, *all.text(), *x.text());
    return all.text()->find(*x.text()) != std::string::npos;
  }
  if (!all.sequence()) fail("{} has no items to look through", all.type());
  const List& items = all.sequence()->items;
  work_of_finding(host, std::ssize(items), x);
  return std::find(items.begin(), items.end(), x) != items.end();
}

Value length_of(const Value& x) {
  if (x.undefined()) return int64_t{0};
  if (x.text()) return Value::of_size(character_count(*x.text()));
  if (x.sequence() && x.sequence()->form != Sequence::Form::stream)
    return Value::of_size(x.sequence()->items.size());
  if (x.dict()) return Value::of_size(x.dict()->entries.size());
  fail("{} has no length", x.type());
}

std::string text_of(const Call& c, const Value& x) {
  if (x.text() == nullptr) fail("{} needs a text, not {}", c.name, x.type());
  return *x.text();
}
int64_t integer_of(const Call& c, const Value& x) {
  if (x.boolean()) return *x.boolean();
  if (x.integer() == nullptr) fail("{} needs a whole number, not {}", c.name, x.type());
  return *x.integer();
}

}  // namespace moe::jinja
