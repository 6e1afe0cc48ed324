// Merging with a list of what is left of the piece and a heap of the pairs in it (as Hugging Face's
// word.rs does; Sennrich et al. 2016, algorithm 1).
#include "text/merge_table.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "core/error.h"

namespace moe {
namespace {

struct Symbol {
  int32_t id;  // -1: became part of the symbol before it
  int32_t previous, next;
};

struct Candidate {
  int32_t rank, at;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges, int64_t vocab)
    : begin_(static_cast<size_t>(vocab) + 1) {
  struct Row {
    int32_t left;
    Entry entry;
    size_t place;
  };
  std::vector<Row> rows(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Merge& m = merges[i];
    rows[i] = {m.left, {m.right, m.rank < 0 ? static_cast<int32_t>(i) : m.rank, m.result}, i};
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    if (a.left != b.left) return a.left < b.left;
    return a.entry.right != b.entry.right ? a.entry.right < b.entry.right : a.place < b.place;
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + 1 < rows.size() && rows[i].left == rows[i + 1].left &&
        rows[i].entry.right == rows[i + 1].entry.right)
      continue;
    entries_.push_back(rows[i].entry);
    ++begin_[static_cast<size_t>(rows[i].left) + 1];
  }
  for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  const Entry* last = entries_.data() + begin_[static_cast<size_t>(left) + 1];
  const Entry* entry =
      std::lower_bound(entries_.data() + begin_[static_cast<size_t>(left)], last, right,
                       [](const Entry& e, int32_t r) { return e.right < r; });
  return entry != last && entry->right == right ? entry : nullptr;
}

void MergeTable::encode(std::span<const int32_t> first, std::vector<int32_t>& ids) const {
  if (first.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail("a piece of text without a break has {} bytes; cut the file", first.size());
  const auto n = static_cast<int32_t>(first.size());
  std::vector<Symbol> symbols(first.size());
  for (int32_t i = 0; i < n; ++i)
    symbols[i] = {first[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto pair_at = [&](int32_t at) {
    return symbols[at].next < 0 ? nullptr : find(symbols[at].id, symbols[symbols[at].next].id);
  };
  const auto push = [&](int32_t at) {
    if (const Entry* entry = pair_at(at)) heap.push({entry->rank, at});
  };
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    if (symbols[top.at].id < 0) continue;
    const Entry* entry = pair_at(top.at);
    if (!entry || entry->rank != top.rank) continue;  // another merge took one of the two
    Symbol& left = symbols[top.at];
    Symbol& right = symbols[left.next];
    left.id = entry->result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = top.at;
    push(top.at);
    if (left.previous >= 0) push(left.previous);
  }
  for (int32_t i = 0; i >= 0 && i < n; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace moe
