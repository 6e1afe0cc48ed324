// A sample of a model whose tokens are bytes, told by words: a text whose letters have a colour
// each cannot be read.
#pragma once

#include "analyze/data/report.h"

namespace moe {

// The first `tokens` of a sample.
SampleText first_tokens(SampleText s, size_t tokens);

// Pieces are words and runs of signs, each with a single blank before it, longer runs of blanks and
// single line ends. The choices of one are the experts of its tokens but for that blank, each with
// the mean over the tokens of its weight, the largest first; its nll is the sum of theirs.
SampleText by_words(const SampleText& s);

}  // namespace moe
