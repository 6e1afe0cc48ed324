#include "text/pair_index.h"

#include <algorithm>

#include "core/error.h"

namespace moe {
namespace {

// Of tokens [begin, end), a text, whose first is not predicted.
bool learns_from(const Corpus& corpus, int64_t begin, int64_t end) {
  std::vector<uint8_t> trained(static_cast<size_t>(end - begin));
  corpus.fill_trained(begin, end - begin, trained.data());
  return std::any_of(trained.begin() + 1, trained.end(), [](uint8_t t) { return t != 0; });
}

}  // namespace

PairIndex::PairIndex(const Corpus& corpus, int64_t context) {
  int64_t at = 0;
  for (int64_t p = 0; p < corpus.pairs(); ++p) {
    const int64_t middle = corpus.document_end(at), end = corpus.document_end(middle);
    const PairPlace place{at, middle, end};
    at = end;
    if (std::max(middle - place.begin, end - middle) > context + 1) {
      ++left_out_;
      continue;
    }
    if (!learns_from(corpus, place.begin, middle) || !learns_from(corpus, middle, end))
      fail(
          "preference pair {} of {}: a reply has no token of its own to learn from; is it empty, "
          "and has the tokenizer no end-of-text token? Leave the pair out",
          p + 1, corpus.pairs());
    places_.push_back(place);
  }
  if (places_.empty())
    fail(
        "each of the {} preference pairs has a text of more than {} tokens; give a larger "
        "@context, "
        "or shorter pairs",
        corpus.pairs(), context + 1);
}

}  // namespace moe
