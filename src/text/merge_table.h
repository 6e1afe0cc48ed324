// BPE proper: which two tokens become which one, and the merging of one piece of text. Knows no
// file format.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

struct Merge {
  int32_t left, right, result;  // ids
  int32_t rank = -1;            // -1: the place in the list
};

class MergeTable {
 public:
  // Of all pairs in a piece the lowest rank is merged first, the leftmost of equals. A pair that
  // occurs twice has what the list says last, as in Hugging Face `tokenizers`. Ids lie in [0,
  // vocab).
  MergeTable(const std::vector<Merge>& merges, int64_t vocab);

  // Appends what becomes of a piece's first ids (its bytes or characters): O(n log n) for n of
  // them, whatever they are.
  void encode(std::span<const int32_t> first, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    int32_t right, rank, result;
  };
  const Entry* find(int32_t left, int32_t right) const;

  std::vector<size_t> begin_;   // [V + 1]; the entries of left id i are [begin_[i], begin_[i + 1]),
                                // sorted by right id
  std::vector<Entry> entries_;  // no hash: hostile ids cannot make a lookup slow
};

}  // namespace moe
