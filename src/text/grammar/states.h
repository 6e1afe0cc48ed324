// What may follow a text under a grammar: the text's state is the set of all stacks that a parser
// may have after it. States and their successors are remembered, so that following bytes is mostly
// a look into a table. Memory is bounded: whoever holds a state asks for crowded() now and then.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace moe::grammar {

using StateId = uint32_t;
constexpr StateId kDead = 0;  // no text goes on from here

class States {
 public:
  explicit States(std::shared_ptr<const Grammar> grammar);

  StateId start() const { return start_; }
  // The state after one more byte. Fails (usage) where there are too many ways to read the text.
  StateId next(StateId state, uint8_t byte) {
    const State& from = states_[state];
    if (!from.live.has(byte)) return kDead;
    if (!from.row.empty()) {
      const StateId known = from.row[byte];
      if (known != kUnknown) return known;
    }
    return find_next(state, byte);
  }
  // The bytes that may follow; each of them leads to a text that can be completed.
  const ByteSet& live(StateId state) const { return states_[state].live; }
  // Whether the text is complete.
  bool complete(StateId state) const { return states_[state].complete; }

  // Allows this much work until it is called again; more fails (usage).
  void begin_work() { work_ = 0; }
  // So much is remembered that it should be forgotten; keep_only() does, and returns what `state`
  // is called from then on. All other states are gone.
  bool crowded() const;
  StateId keep_only(StateId state);

 private:
  static constexpr StateId kUnknown = UINT32_MAX;
  static constexpr size_t kFew = 4;
  // A stack: the place to go on from, and the stack below it. 0 is the empty one.
  struct Stack {
    uint32_t position, count;  // `count`: repetitions so far, where the position is at one
    uint32_t below;
    uint32_t height;
    bool operator==(const Stack&) const = default;
  };
  struct State {
    std::vector<uint32_t> stacks;  // sorted; each at a byte set, or the empty one
    ByteSet live;
    bool complete = false;
    std::vector<std::pair<uint8_t, StateId>> few;  // successors, until there are more than kFew
    std::vector<StateId> row;                      // [256] then
  };
  struct StackSetHash {
    size_t operator()(const std::vector<uint32_t>& stacks) const;
  };

  void forget();
  uint32_t intern(const Stack&);
  void grow_slots();
  uint32_t push(uint32_t position, uint32_t count, uint32_t below);
  StateId find_next(StateId state, uint8_t byte);
  void go_on(uint32_t position, uint32_t count, uint32_t below);
  void enter(RuleId rule, uint32_t below);
  void repeat(const Symbol& symbol, uint32_t stack);
  void expand();
  StateId state_of_reached();
  void count_work();

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Stack> stacks_;
  std::vector<uint32_t> slots_;  // of a hash table over stacks_; 0: free
  std::vector<uint64_t> seen_;   // of each stack, the round it was last met in
  uint64_t round_ = 0;
  std::vector<uint32_t> open_, reached_;
  std::vector<State> states_;
  std::unordered_map<std::vector<uint32_t>, StateId, StackSetHash> ids_;
  size_t held_ = 0;  // stacks in all states together
  StateId start_ = kDead;
  int64_t work_ = 0;
};

}  // namespace moe::grammar
