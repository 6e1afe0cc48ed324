#include "text/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace moe::grammar {
namespace {

constexpr uint32_t kNoText = UINT32_MAX;  // the height of a rule that no finite text is of

// A rule in the middle of an alternative needs a place to return to, the last one does not.
uint32_t height_of(const Builder::Sequence& sequence, const std::vector<uint32_t>& rules) {
  uint32_t height = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Symbol& symbol = sequence[i];
    if (symbol.kind == Symbol::Kind::bytes) continue;
    if (symbol.kind == Symbol::Kind::repeat && symbol.min == 0) continue;
    if (rules[symbol.index] == kNoText) return kNoText;
    const bool returns = symbol.kind == Symbol::Kind::repeat || i + 1 < sequence.size();
    height = std::max(height, rules[symbol.index] + (returns ? 1 : 0));
  }
  return height;
}

bool may_be_empty(const Symbol& symbol, const std::vector<bool>& nullable) {
  if (symbol.kind == Symbol::Kind::repeat) return symbol.min == 0 || nullable[symbol.index];
  return symbol.kind == Symbol::Kind::rule && nullable[symbol.index];
}

// Who mentions each rule, so that what changes is passed on without going over all rules again.
std::vector<std::vector<RuleId>> users_of(
    const std::vector<std::vector<Builder::Sequence>>& rules) {
  std::vector<std::vector<RuleId>> users(rules.size());
  for (size_t r = 0; r < rules.size(); ++r)
    for (const Builder::Sequence& sequence : rules[r])
      for (const Symbol& symbol : sequence)
        if (symbol.kind != Symbol::Kind::bytes)
          users[symbol.index].push_back(static_cast<RuleId>(r));
  for (std::vector<RuleId>& list : users)
    list.erase(std::unique(list.begin(), list.end()), list.end());
  return users;
}

}  // namespace

RuleId Builder::rule() {
  if (++symbols_ > kMostSymbols)
    fail_usage("{}: the grammar it asks for has more than {} symbols; make it smaller", where_,
               kMostSymbols);
  rules_.emplace_back();
  return static_cast<RuleId>(rules_.size() - 1);
}

void Builder::add(RuleId rule, const Sequence& alternative) {
  symbols_ += alternative.size() + 1;
  if (symbols_ > kMostSymbols)
    fail_usage("{}: the grammar it asks for has more than {} symbols; make it smaller", where_,
               kMostSymbols);
  rules_[rule].push_back(alternative);
}

RuleId Builder::rule(const std::vector<Sequence>& alternatives) {
  const RuleId made = rule();
  for (const Sequence& alternative : alternatives) add(made, alternative);
  return made;
}

Symbol Builder::bytes(const ByteSet& set) {
  const auto [place, is_new] = sets_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  return {Symbol::Kind::bytes, place->second, 1, 1};
}

void Builder::text(Sequence& sequence, std::string_view text) {
  for (const char c : text) sequence.push_back(bytes(ByteSet(std::string_view(&c, 1))));
}

Builder::Sequence Builder::text(std::string_view text) {
  Sequence sequence;
  this->text(sequence, text);
  return sequence;
}

std::vector<bool> Builder::nullable() const {
  std::vector<bool> out(rules_.size());
  const auto users = users_of(rules_);
  std::vector<RuleId> open(rules_.size());
  for (size_t r = 0; r < open.size(); ++r) open[r] = static_cast<RuleId>(r);
  while (!open.empty()) {
    const RuleId rule = open.back();
    open.pop_back();
    if (out[rule]) continue;
    for (const Sequence& sequence : rules_[rule])
      out[rule] = out[rule] || std::all_of(sequence.begin(), sequence.end(),
                                           [&](const Symbol& s) { return may_be_empty(s, out); });
    if (out[rule]) open.insert(open.end(), users[rule].begin(), users[rule].end());
  }
  return out;
}

// The rules that may come first in a rule's text are its edges; a circle of them has no end. Looked
// for without recursion, as chains of rules are long.
void Builder::refuse_circles() const {
  const std::vector<bool> empty = nullable();
  std::vector<std::vector<RuleId>> first(rules_.size());
  for (size_t r = 0; r < rules_.size(); ++r)
    for (const Sequence& sequence : rules_[r]) {
      bool at_front = true;
      for (const Symbol& symbol : sequence) {
        if (symbol.kind == Symbol::Kind::repeat && empty[symbol.index])
          fail("{}: a repeated rule of the grammar may be empty", where_);
        if (at_front && symbol.kind != Symbol::Kind::bytes) first[r].push_back(symbol.index);
        at_front = at_front && may_be_empty(symbol, empty);
      }
    }
  enum class Mark : uint8_t { fresh, open, done };
  std::vector<Mark> marks(rules_.size(), Mark::fresh);
  std::vector<std::pair<RuleId, size_t>> path;
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (marks[r] != Mark::fresh) continue;
    path.emplace_back(static_cast<RuleId>(r), 0);
    marks[r] = Mark::open;
    while (!path.empty()) {
      const RuleId rule = path.back().first;
      if (path.back().second == first[rule].size()) {
        marks[rule] = Mark::done;
        path.pop_back();
        continue;
      }
      const RuleId next = first[rule][path.back().second++];
      if (marks[next] == Mark::open)
        fail_usage("{}: a $ref leads back to its own schema with nothing in between", where_);
      if (marks[next] == Mark::done) continue;
      marks[next] = Mark::open;
      path.emplace_back(next, 0);
    }
  }
}

// Heights are the least that satisfy all rules: they begin at "no text" and only ever fall.
void Builder::measure(Grammar& grammar) const {
  std::vector<uint32_t> heights(rules_.size(), kNoText);
  const auto users = users_of(rules_);
  // Rules in the order of their height: each is settled once, by the lowest that is left.
  std::vector<std::vector<RuleId>> at(kMostHeight + 1);
  const auto settle = [&](RuleId rule) {
    uint32_t least = kNoText;
    for (const Sequence& sequence : rules_[rule])
      least = std::min(least, height_of(sequence, heights));
    if (least >= heights[rule] || least > kMostHeight) return;
    heights[rule] = least;
    at[least].push_back(rule);
  };
  for (size_t r = 0; r < rules_.size(); ++r) settle(static_cast<RuleId>(r));
  for (size_t height = 0; height < at.size(); ++height)
    for (size_t i = 0; i < at[height].size(); ++i) {
      const RuleId rule = at[height][i];
      if (heights[rule] != height) continue;
      for (const RuleId user : users[rule]) settle(user);
    }
  grammar.rules_.resize(rules_.size());
  for (size_t r = 0; r < rules_.size(); ++r)
    for (const Sequence& sequence : rules_[r]) {
      const uint32_t height = height_of(sequence, heights);
      if (height > kMostHeight) continue;
      grammar.rules_[r].push_back({static_cast<uint32_t>(grammar.symbols_.size()), height});
      grammar.symbols_.insert(grammar.symbols_.end(), sequence.begin(), sequence.end());
      grammar.symbols_.push_back({});
    }
}

std::shared_ptr<const Grammar> Builder::build(RuleId start) {
  refuse_circles();
  auto grammar = std::make_shared<Grammar>();
  grammar->where_ = where_;
  grammar->start_ = start;
  grammar->sets_.resize(sets_.size());
  for (const auto& [set, index] : sets_) grammar->sets_[index] = set;
  measure(*grammar);
  if (grammar->rules_[start].empty())
    fail_usage("{}: no text satisfies it, or only one nested too deep", where_);
  return grammar;
}

}  // namespace moe::grammar
