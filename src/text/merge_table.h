// BPE proper: which two tokens become which one, and the merging of one piece of text. Knows no file format.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moe {

struct Merge {
  int32_t left, right, result;  // ids
};

class MergeTable {
 public:
  // `merges` in order of rank: of all pairs in a piece the lowest rank is merged first, the leftmost of equals. A pair that occurs twice has the
  // later rank, as in Hugging Face `tokenizers`. Ids lie in [0, vocab).
  MergeTable(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids, int64_t vocab);

  // Appends the ids of `piece`: O(n log n) for n bytes, whatever they are.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    int32_t right, rank, result;
  };
  const Entry* find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<size_t> begin_;   // [V + 1]; the entries of left id i are [begin_[i], begin_[i + 1]), sorted by right id
  std::vector<Entry> entries_;  // no hash: hostile ids cannot make a lookup slow
};

}  // namespace moe
