// SentencePiece's unigram model: of all ways to cut a text into words the one whose scores (log
// probabilities) sum to the most. Kudo 2018, arXiv 1804.10959; the order in which sums are made is
// that of google/sentencepiece:src/unigram_model.cc (EncodeOptimized), which decides between
// equals.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe {

class UnigramTable {
 public:
  // [V] each. Empty words are none; one whose score is NaN is not looked for. The words live as
  // long as the table.
  UnigramTable(const std::vector<std::string>& words, std::vector<double> scores);

  // A word of the best cut, or a character that is none.
  struct Part {
    std::string_view text;
    int32_t id;  // -1: no word
  };
  // Hands the parts out in order; O(n times the longest word). Bytes that are no UTF-8 are
  // characters of one byte. At most about `window` places are held at a time, however long the
  // text; where words overlap for longer than that the work is done twice. The parts are the same
  // with any window.
  static constexpr size_t kWindow = size_t{1} << 16;
  void cut(std::string_view text, const std::function<void(const Part&)>& emit,
           size_t window = kWindow) const;

 private:
  class Lattice;

  // Calls found(id, length) for every word that text begins with, the shortest first.
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const;

  std::vector<double> scores_;
  double unknown_;  // score of a character that is no word
  std::vector<std::pair<std::string_view, int32_t>> sorted_;
  std::array<size_t, 257> first_{};  // where words with each first byte begin in sorted_
};

}  // namespace moe
