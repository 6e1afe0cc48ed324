#include "text/grammar/token_mask.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace moe::grammar {
namespace {

constexpr size_t kLongestToken = 4096;              // longer ones are never allowed
constexpr size_t kMostMaskBytes = size_t{4} << 20;  // of one text

}  // namespace

TokenTable::TokenTable(const Tokenizer& tokenizer)
    : vocab_(static_cast<size_t>(tokenizer.vocab_size())) {
  std::vector<bool> is_text(vocab_, true);
  for (const int32_t id : tokenizer.marks()) is_text[static_cast<size_t>(id)] = false;
  if (const auto bos = tokenizer.bos_id(); bos && static_cast<size_t>(*bos) < vocab_)
    is_text[static_cast<size_t>(*bos)] = false;
  starts_.reserve(vocab_ + 1);
  for (size_t i = 0; i < vocab_; ++i) {
    const auto id = static_cast<int32_t>(i);
    starts_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (tokenizer.ends_text(id)) ends_.push_back(id);
    else if (is_text[i])
      if (const std::string piece = tokenizer.piece(id); piece.size() <= kLongestToken)
        bytes_ += piece;
  }
  starts_.push_back(static_cast<uint32_t>(bytes_.size()));
  build_trie();
}

bool TokenTable::is_end(int32_t id) const {
  return std::binary_search(ends_.begin(), ends_.end(), id);
}

std::string_view TokenTable::bytes(int32_t id) const {
  const auto at = static_cast<size_t>(id);
  if (id < 0 || at >= vocab_) return {};
  return std::string_view(bytes_).substr(starts_[at], starts_[at + 1] - starts_[at]);
}

// Of tokens in the order of their bytes each shares a path with the one before it.
void TokenTable::build_trie() {
  for (size_t i = 0; i < vocab_; ++i)
    if (starts_[i] != starts_[i + 1]) tokens_.push_back(static_cast<int32_t>(i));
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const int order = bytes(a).compare(bytes(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<size_t> path;  // nodes of the token before
  std::string_view before;
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].after = static_cast<uint32_t>(nodes_.size());
  };
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view word = bytes(tokens_[i]);
    const auto shared =
        std::mismatch(word.begin(), word.end(), before.begin(), before.end()).first - word.begin();
    leave(static_cast<size_t>(shared));
    for (size_t depth = path.size(); depth < word.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({0, static_cast<uint32_t>(i), static_cast<uint16_t>(depth + 1),
                        static_cast<uint8_t>(word[depth])});
    }
    before = word;
  }
  leave(0);
  nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), 0, 0});
}

Constraint::Constraint(std::shared_ptr<const Grammar> grammar,
                       std::shared_ptr<const TokenTable> table)
    : grammar_(std::move(grammar)),
      table_(std::move(table)),
      states_(std::make_unique<States>(grammar_)),
      state_(states_->start()) {}

// One way through the trie, leaving out what lies below a byte that may not come. The states of the
// nodes on the path are held, so each node costs one step.
TokenMask Constraint::work_out() const {
  TokenMask mask((table_->vocab_size() + 63) / 64);
  const auto add = [&](int32_t id) {
    mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  };
  if (may_end())
    for (const int32_t id : table_->ends()) add(id);
  if (ended_) return mask;
  const std::vector<TokenTable::Node>& nodes = table_->nodes();
  const std::vector<int32_t>& tokens = table_->tokens();
  std::vector<StateId> path(kLongestToken + 1);
  path[0] = state_;
  for (size_t i = 0; i + 1 < nodes.size();) {
    const TokenTable::Node& node = nodes[i];
    const StateId state = states_->next(path[node.depth - 1u], node.byte);
    if (state == kDead) {
      i = node.after;
      continue;
    }
    path[node.depth] = state;
    ++i;
    for (size_t t = node.first_token; t < nodes[i].first_token; ++t) add(tokens[t]);
  }
  return mask;
}

// Masks are kept per state, as texts come back to few of them: inside a string, between members.
const TokenMask& Constraint::mask_of_state() {
  if (mask_ != nullptr) return *mask_;
  if (const auto known = masks_.find(state_); known != masks_.end() && !ended_)
    return *(mask_ = &known->second);
  const size_t bytes = table_->vocab_size() / 8 + sizeof(TokenMask);
  if (states_->crowded() || (masks_.size() + 1) * bytes > kMostMaskBytes) {
    state_ = states_->keep_only(state_);
    masks_.clear();
  }
  states_->begin_work();
  return *(mask_ = &(masks_[state_] = work_out()));
}

std::span<const uint64_t> Constraint::allowed() {
  const TokenMask& mask = mask_of_state();
  if (std::all_of(mask.begin(), mask.end(), [](uint64_t word) { return word == 0; }))
    fail("{}: no token of the vocabulary can go on the text here{}", grammar_->where(),
         may_end() ? ", which is complete" : "");
  return mask;
}

bool Constraint::allows(int32_t id) { return id >= 0 && has(mask_of_state(), id); }

StateId Constraint::after(std::string_view bytes) {
  states_->begin_work();
  StateId state = ended_ || bytes.empty() ? kDead : state_;
  for (const char byte : bytes) state = states_->next(state, static_cast<uint8_t>(byte));
  return state;
}

void Constraint::accept(int32_t id) {
  if (table_->is_end(id) && may_end()) {
    ended_ = true;
    mask_ = nullptr;
    return;
  }
  const StateId next = after(table_->bytes(id));
  if (next == kDead) fail("{}: the token {} may not come here", grammar_->where(), id);
  state_ = next;
  mask_ = nullptr;
  if (states_->crowded()) {
    state_ = states_->keep_only(state_);
    masks_.clear();
  }
}

bool Constraint::may_end() const { return ended_ || states_->complete(state_); }

bool Constraint::must_end() const { return ended_ || states_->live(state_).empty(); }

}  // namespace moe::grammar
