// Values, strings, arrays and objects. Numbers and formats are in number_rules.cpp and
// format_rules.cpp.
#include "text/grammar/json_rules.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.h"
#include "text/utf8.h"

namespace moe::grammar {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Unit = std::vector<ByteSet>;  // one character of a string, as it is written

constexpr uint32_t kMostIndent = 40;
constexpr uint32_t kMostTabs = 12;

constexpr ByteSet kTail{0x80, 0xBF};  // a byte within a character of UTF-8

ByteSet plain_ascii() { return ByteSet(0x20, 0x7F).without('"').without('\\'); }

// Characters of two bytes and more: Unicode's table 3-7.
std::vector<Unit> longer_characters() {
  return {{{0xC2, 0xDF}, kTail},
          {{0xE0, 0xE0}, {0xA0, 0xBF}, kTail},
          {{0xE1, 0xEC}, kTail, kTail},
          {{0xED, 0xED}, {0x80, 0x9F}, kTail},
          {{0xEE, 0xEF}, kTail, kTail},
          {{0xF0, 0xF0}, {0x90, 0xBF}, kTail, kTail},
          {{0xF1, 0xF3}, kTail, kTail, kTail},
          {{0xF4, 0xF4}, {0x80, 0x8F}, kTail, kTail}};
}

Builder::Sequence sequence_of(Builder& builder, const Unit& unit) {
  Builder::Sequence out;
  for (const ByteSet& set : unit) out.push_back(builder.bytes(set));
  return out;
}

// Takes the one way to write a character that `bytes` is out of `units`, of which no two have one
// in common: what is left of its unit differs from it first in byte 0, or in byte 1, and so on.
void take_out(std::vector<Unit>& units, const std::string& bytes) {
  const auto place = std::find_if(units.begin(), units.end(), [&](const Unit& unit) {
    return unit.size() == bytes.size() &&
           std::equal(unit.begin(), unit.end(), bytes.begin(), [](const ByteSet& set, char byte) {
             return set.has(static_cast<uint8_t>(byte));
           });
  });
  if (place == units.end()) return;
  Unit rest = std::move(*place);
  *place = std::move(units.back());
  units.pop_back();
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const ByteSet all = rest[i];
    rest[i] = all.without(byte);
    if (!rest[i].empty()) units.push_back(rest);
    rest[i] = ByteSet(byte, byte);
  }
}

std::string written(const std::string& name) { return one_line_json(OrderedJson(name)); }

// The characters of a string as `written` writes it, without its quotes.
std::vector<std::string> units_of(const std::string& written) {
  std::vector<std::string> units;
  for (size_t at = 1; at + 1 < written.size();) {
    size_t length = 1;
    if (written[at] == '\\') length = written[at + 1] == 'u' ? 6 : 2;
    else
      while (!begins_character(written[at + length])) ++length;
    units.push_back(written.substr(at, length));
    at += length;
  }
  return units;
}

struct NameNode {
  std::map<std::string, size_t> next;
  bool is_name = false;
};

std::vector<NameNode> trie_of(const std::vector<std::string>& names) {
  std::vector<NameNode> nodes(1);
  for (const std::string& name : names) {
    size_t node = 0;
    for (std::string& unit : units_of(written(name))) {
      const auto [place, is_new] = nodes[node].next.try_emplace(std::move(unit), nodes.size());
      node = place->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[node].is_name = true;
  }
  return nodes;
}

}  // namespace

RuleId JsonRules::once(std::optional<RuleId>& made, RuleId (JsonRules::*make)()) {
  if (!made) made = (this->*make)();
  return *made;
}

RuleId JsonRules::any_object() { return once(any_object_, &JsonRules::make_any_object); }
RuleId JsonRules::any_string() { return once(any_string_, &JsonRules::make_any_string); }
RuleId JsonRules::any_number() { return once(any_number_, &JsonRules::make_any_number); }

RuleId JsonRules::any() {
  if (any_) return *any_;
  any_ = b_->rule();  // before what it consists of, which leads back to it
  for (const RuleId kind : {any_object(), array({}, any_, 0, kUnbounded), any_string(),
                            any_number(), boolean(), null()})
    b_->add(*any_, {Builder::ref(kind)});
  return *any_;
}

RuleId JsonRules::boolean() { return b_->rule({b_->text("true"), b_->text("false")}); }
RuleId JsonRules::null() { return b_->rule({b_->text("null")}); }

RuleId JsonRules::make_any_object() { return object({}, any()); }
RuleId JsonRules::make_any_string() { return string(0, kUnbounded); }

RuleId JsonRules::make_space() {
  const RuleId blank = b_->rule({b_->text(" ")}), tab = b_->rule({b_->text("\t")});
  return b_->rule({{},
                   b_->text(" "),
                   {b_->bytes(ByteSet("\n")), Builder::repeat(blank, 0, kMostIndent)},
                   {b_->bytes(ByteSet("\n")), Builder::repeat(tab, 1, kMostTabs)}});
}

RuleId JsonRules::make_comma() { return b_->rule({{b_->bytes(ByteSet(",")), space()}}); }
RuleId JsonRules::make_colon() { return b_->rule({b_->text(":"), b_->text(": ")}); }

RuleId JsonRules::make_character() {
  const RuleId made = b_->rule({{b_->bytes(plain_ascii())}});
  for (const Unit& unit : longer_characters()) b_->add(made, sequence_of(*b_, unit));
  const Symbol backslash = b_->bytes(ByteSet("\\")), u = b_->bytes(ByteSet("u")),
               d = b_->bytes(ByteSet("Dd")), hex = b_->bytes(ByteSet("0123456789ABCDEFabcdef"));
  b_->add(made, {backslash, b_->bytes(ByteSet("\"\\/bfnrt"))});
  b_->add(made, {backslash, u, b_->bytes(ByteSet("0123456789ABCEFabcef")), hex, hex, hex});
  b_->add(made, {backslash, u, d, b_->bytes(ByteSet('0', '7')), hex, hex});
  b_->add(made, {backslash, u, d, b_->bytes(ByteSet("89ABab")), hex, hex, backslash, u, d,
                 b_->bytes(ByteSet("CDEFcdef")), hex, hex});
  return made;
}

RuleId JsonRules::string(uint32_t min, uint32_t max) {
  if (min > max) return b_->rule();
  const Symbol quote = b_->bytes(ByteSet("\""));
  return b_->rule({{quote, Builder::repeat(character().index, min, max), quote}});
}

RuleId JsonRules::exactly(const OrderedJson& value) {
  if (value.is_array()) {
    std::vector<RuleId> elements;
    for (const OrderedJson& element : value) elements.push_back(exactly(element));
    return array(elements, {}, static_cast<uint32_t>(elements.size()), kUnbounded);
  }
  if (value.is_object()) {
    std::vector<Member> members;
    for (const auto& [name, element] : value.items())
      members.push_back({name, exactly(element), true});
    return object(members, {});
  }
  return b_->rule({b_->text(one_line_json(value))});
}

RuleId JsonRules::array(const std::vector<RuleId>& first, std::optional<RuleId> rest, uint32_t min,
                        uint32_t max) {
  const auto known = static_cast<uint32_t>(std::min<size_t>(first.size(), max));
  const Symbol open = b_->bytes(ByteSet("[")), close = b_->bytes(ByteSet("]"));
  const RuleId inside = b_->rule(), made = b_->rule({{open, space(), Builder::ref(inside)}});
  if (min > max || (!rest && min > known)) return made;
  if (min == 0) b_->add(inside, {close});
  // how the array goes on after `known` elements, then after one fewer, and so on
  std::vector<RuleId> after(known + 1);
  const bool goes_on = rest && max > known;
  // an element of `rest` that stands first has no comma before it
  const uint32_t behind = std::max<uint32_t>(known, 1);
  Sequence others;
  if (goes_on && max > behind) {
    const RuleId other = b_->rule({{comma(), Builder::ref(*rest)}});
    others.push_back(Builder::repeat(other, min > behind ? min - behind : 0,
                                     max == kUnbounded ? kUnbounded : max - behind));
  }
  if (known == 0) {
    if (!goes_on) return made;
    Sequence all = {Builder::ref(*rest)};
    all.insert(all.end(), others.begin(), others.end());
    all.insert(all.end(), {space(), close});
    b_->add(inside, all);
    return made;
  }
  after[known] = b_->rule({others});
  for (uint32_t i = known - 1; i >= 1; --i) {
    after[i] = b_->rule({{comma(), Builder::ref(first[i]), Builder::ref(after[i + 1])}});
    if (i >= min) b_->add(after[i], {});
  }
  b_->add(inside, {Builder::ref(first[0]), Builder::ref(after[1]), space(), close});
  return made;
}

JsonRules::Sequence JsonRules::member(Sequence name, RuleId value) {
  name.push_back(colon());
  name.push_back(Builder::ref(value));
  return name;
}

// Any name but those of `taken`. It is written without \u and without \/ as far as it agrees with
// one of them, so that there is one way to write it and the bytes tell names apart.
RuleId JsonRules::other_names(const std::vector<std::string>& taken) {
  if (taken.empty()) return any_string();
  const Symbol quote = b_->bytes(ByteSet("\""));
  const Symbol rest =
      Builder::ref(b_->rule({{Builder::repeat(character().index, 0, kUnbounded), quote}}));
  const Unit escapes = {ByteSet("\\"), ByteSet("\"\\bfnrt")};
  const RuleId escape = b_->rule({sequence_of(*b_, escapes)}), longer = b_->rule();
  for (const Unit& unit : longer_characters()) b_->add(longer, sequence_of(*b_, unit));

  const std::vector<NameNode> nodes = trie_of(taken);
  std::vector<RuleId> rules(nodes.size());
  for (RuleId& rule : rules) rule = b_->rule();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].is_name) b_->add(rules[i], {quote});
    ByteSet ascii = plain_ascii();
    std::vector<Unit> other_escapes = {escapes}, other_longer = longer_characters();
    bool shared_escape = true, shared_longer = true;
    for (const auto& [unit, child] : nodes[i].next) {
      const auto lead = static_cast<uint8_t>(unit[0]);
      if (lead == '\\') take_out(other_escapes, unit), shared_escape = false;
      else if (lead >= 0x80) take_out(other_longer, unit), shared_longer = false;
      else ascii = ascii.without(lead);
      if (unit.starts_with("\\u")) continue;
      Sequence known = b_->text(unit);
      known.push_back(Builder::ref(rules[child]));
      b_->add(rules[i], known);
    }
    const auto add = [&](Sequence other) {
      other.push_back(rest);
      b_->add(rules[i], other);
    };
    add({b_->bytes(ascii)});
    if (shared_escape) add({Builder::ref(escape)});
    else
      for (const Unit& unit : other_escapes) add(sequence_of(*b_, unit));
    if (shared_longer) add({Builder::ref(longer)});
    else
      for (const Unit& unit : other_longer) add(sequence_of(*b_, unit));
  }
  return b_->rule({{quote, Builder::ref(rules[0])}});
}

RuleId JsonRules::object(const std::vector<Member>& members, std::optional<RuleId> others) {
  const Symbol open = b_->bytes(ByteSet("{")), close = b_->bytes(ByteSet("}"));
  const RuleId inside = b_->rule(), made = b_->rule({{open, space(), Builder::ref(inside)}});
  if (std::none_of(members.begin(), members.end(), [](const Member& m) { return m.required; }))
    b_->add(inside, {close});
  // From the last member to the first: what one of them begins, and what follows a member. The
  // comma comes before the choice of the next member, so that few stacks wait for it.
  RuleId front = b_->rule(), behind = b_->rule({{}});
  if (others) {
    std::vector<std::string> taken;
    for (const Member& m : members) taken.push_back(m.name);
    const RuleId other = b_->rule({member({Builder::ref(other_names(taken))}, *others)});
    const RuleId next = b_->rule({{comma(), Builder::ref(other)}});
    const Symbol more = Builder::repeat(next, 0, kUnbounded);
    b_->add(front, {Builder::ref(other), more});
    behind = b_->rule({{more}});
  }
  bool may_end = true;
  for (auto m = members.rbegin(); m != members.rend(); ++m) {
    Sequence pair = member(b_->text(written(m->name)), m->value);
    pair.push_back(Builder::ref(behind));
    const RuleId next = b_->rule({pair});
    if (!m->required) b_->add(next, {Builder::ref(front)});
    front = next;
    may_end = may_end && !m->required;
    behind = b_->rule({{comma(), Builder::ref(front)}});
    if (may_end) b_->add(behind, {});
  }
  b_->add(inside, {Builder::ref(front), space(), close});
  return made;
}

std::shared_ptr<const Grammar> json_object_grammar() {
  Builder builder("a JSON object");
  return builder.build(JsonRules(builder).any_object());
}

}  // namespace moe::grammar
