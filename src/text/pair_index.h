// Where the preference pairs of a corpus lie, and which of them fit into rows.
#pragma once

#include <cstdint>
#include <vector>

#include "text/corpus.h"

namespace moe {

struct PairPlace {
  // The chosen text is tokens [begin, middle) of the corpus, the rejected one [middle, end).
  int64_t begin = 0, middle = 0, end = 0;
  // The last token of a text is only predicted.
  int64_t tokens() const { return end - begin - 2; }
};

class PairIndex {
 public:
  // Of a corpus of pairs. A pair fits where either text has at most context + 1 tokens; the others
  // are left out. Fails where none fits, and where a text has nothing to be learned from.
  PairIndex(const Corpus&, int64_t context);

  // Of those that fit, in the order of the corpus.
  int64_t count() const { return static_cast<int64_t>(places_.size()); }
  const PairPlace& place(int64_t pair) const { return places_[static_cast<size_t>(pair)]; }
  int64_t left_out() const { return left_out_; }

 private:
  std::vector<PairPlace> places_;
  int64_t left_out_ = 0;
};

}  // namespace moe
