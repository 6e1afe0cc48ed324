#include "text/grammar/states.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace moe::grammar {
namespace {

constexpr size_t kMostStacksOfAState = 8192;
// Between two begin_work(): stacks looked at, and more for a new state, which takes memory. It is
// well under a second.
constexpr int64_t kMostWork = 2'000'000, kWorkOfAState = 16;
constexpr size_t kCrowdedStates = 4096, kCrowdedStacks = size_t{1} << 18;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

}  // namespace

size_t States::StackSetHash::operator()(const std::vector<uint32_t>& stacks) const {
  uint64_t hash = stacks.size();
  for (const uint32_t stack : stacks) hash = mixed(hash, stack);
  return static_cast<size_t>(hash);
}

States::States(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  forget();
  ++round_;
  enter(grammar_->start(), 0);
  expand();
  start_ = state_of_reached();
}

void States::forget() {
  stacks_.assign(1, Stack{});
  seen_.assign(1, 0);
  slots_.assign(size_t{1} << 12, 0);
  states_.clear();
  states_.emplace_back();
  ids_.clear();
  held_ = 0;
}

bool States::crowded() const {
  return states_.size() > kCrowdedStates || stacks_.size() > kCrowdedStacks ||
         held_ > kCrowdedStacks;
}

StateId States::keep_only(StateId state) {
  const std::vector<Stack> old = std::move(stacks_);
  const std::vector<uint32_t> tops = std::move(states_[state].stacks);
  const bool dead = state == kDead;
  forget();
  ++round_;
  reached_.clear();
  std::unordered_map<uint32_t, uint32_t> moved{{0, 0}};
  std::vector<uint32_t> path;
  for (const uint32_t top : tops) {
    for (uint32_t at = top; !moved.contains(at); at = old[at].below) path.push_back(at);
    for (; !path.empty(); path.pop_back()) {
      const Stack& stack = old[path.back()];
      moved[path.back()] = push(stack.position, stack.count, moved[stack.below]);
    }
    reached_.push_back(moved[top]);
  }
  start_ = kDead;  // whoever starts anew makes new States
  work_ = 0;
  return dead ? kDead : state_of_reached();
}

uint32_t States::intern(const Stack& stack) {
  if (stacks_.size() * 2 > slots_.size()) grow_slots();
  const size_t mask = slots_.size() - 1;
  size_t slot = mixed(mixed(stack.position, stack.count), stack.below) & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask)
    if (stacks_[slots_[slot]] == stack) return slots_[slot];
  slots_[slot] = static_cast<uint32_t>(stacks_.size());
  stacks_.push_back(stack);
  seen_.push_back(0);
  return slots_[slot];
}

void States::grow_slots() {
  slots_.assign(slots_.size() * 2, 0);
  const size_t mask = slots_.size() - 1;
  for (size_t i = 1; i < stacks_.size(); ++i) {
    const Stack& stack = stacks_[i];
    size_t slot = mixed(mixed(stack.position, stack.count), stack.below) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<uint32_t>(i);
  }
}

uint32_t States::push(uint32_t position, uint32_t count, uint32_t below) {
  return intern({position, count, below, stacks_[below].height + 1});
}

void States::count_work() {
  if (++work_ > kMostWork)
    fail_usage(
        "{}: there are too many ways to read the text so far; alternatives that begin alike are "
        "the reason, such as an anyOf inside what it refers to itself",
        grammar_->where());
}

// The place after a symbol was read; an alternative's end leads back to what lies below. A place
// reached twice in a round is followed once.
void States::go_on(uint32_t position, uint32_t count, uint32_t below) {
  while (grammar_->symbol(position).kind == Symbol::Kind::end && below != 0) {
    count_work();
    const Stack& back = stacks_[below];
    position = back.position;
    count = back.count;
    below = back.below;
  }
  count_work();
  const bool whole = grammar_->symbol(position).kind == Symbol::Kind::end;
  const uint32_t stack = whole ? 0 : push(position, count, below);
  if (std::exchange(seen_[stack], round_) == round_) return;
  const bool stays = whole || grammar_->symbol(position).kind == Symbol::Kind::bytes;
  (stays ? reached_ : open_).push_back(stack);
}

// Every alternative that can still be completed within kMostHeight: as the shortest one of a rule
// within it always can, what was allowed never comes to a dead end.
void States::enter(RuleId rule, uint32_t below) {
  for (const Grammar::Alternative& alternative : grammar_->alternatives(rule))
    if (stacks_[below].height + alternative.height <= kMostHeight)
      go_on(alternative.begin, 0, below);
}

void States::repeat(const Symbol& symbol, uint32_t stack) {
  const Stack at = stacks_[stack];
  if (at.count < symbol.max) {
    // without a bound counts above the least are all the same
    const uint32_t next =
        symbol.max == kUnbounded ? std::min(at.count + 1, symbol.min) : at.count + 1;
    enter(symbol.index, push(at.position, next, at.below));
  }
  if (at.count >= symbol.min) go_on(at.position + 1, 0, at.below);
}

void States::expand() {
  while (!open_.empty()) {
    const uint32_t stack = open_.back();
    open_.pop_back();
    const Stack at = stacks_[stack];
    const Symbol symbol = grammar_->symbol(at.position);
    if (symbol.kind == Symbol::Kind::repeat) {
      repeat(symbol, stack);
      continue;
    }
    // behind the last symbol there is nothing to return to
    const bool last = grammar_->symbol(at.position + 1).kind == Symbol::Kind::end;
    enter(symbol.index, last ? at.below : push(at.position + 1, 0, at.below));
  }
}

StateId States::state_of_reached() {
  if (reached_.empty()) return kDead;
  if (reached_.size() > kMostStacksOfAState) work_ = kMostWork;
  count_work();
  std::sort(reached_.begin(), reached_.end());
  const auto [place, is_new] = ids_.try_emplace(reached_, static_cast<StateId>(states_.size()));
  if (is_new) {
    work_ += kWorkOfAState;
    State state;
    state.stacks = reached_;
    state.complete = reached_.front() == 0;
    for (const uint32_t stack : reached_)
      if (stack != 0) state.live |= grammar_->bytes(grammar_->symbol(stacks_[stack].position));
    held_ += reached_.size();
    states_.push_back(std::move(state));
  }
  return place->second;
}

StateId States::find_next(StateId state, uint8_t byte) {
  for (const auto& [known, next] : states_[state].few)
    if (known == byte) return next;
  ++round_;
  open_.clear();
  reached_.clear();
  for (size_t i = 0; i < states_[state].stacks.size(); ++i) {
    count_work();
    const uint32_t stack = states_[state].stacks[i];
    if (stack == 0) continue;
    const Stack at = stacks_[stack];
    if (!grammar_->bytes(grammar_->symbol(at.position)).has(byte)) continue;
    go_on(at.position + 1, 0, at.below);
  }
  expand();
  const StateId next = state_of_reached();
  State& from = states_[state];
  if (from.row.empty() && from.few.size() < kFew) {
    from.few.emplace_back(byte, next);
    return next;
  }
  if (from.row.empty()) {
    from.row.assign(256, kUnknown);
    for (const auto& [known, follows] : std::exchange(from.few, {})) from.row[known] = follows;
  }
  from.row[byte] = next;
  return next;
}

}  // namespace moe::grammar
