// A sample of a model whose tokens are bytes, told by words: a text whose letters have a colour each cannot be read.
#pragma once

#include "analyze/report.h"

namespace moe {

// The first `tokens` of a sample.
SampleText first_tokens(SampleText s, size_t tokens);

// Pieces are words, runs of blanks, single line ends and runs of signs. The choices of one are the experts of its tokens, each with the mean over the tokens of
// its weight, the largest first; its nll is the sum of theirs.
SampleText by_words(const SampleText& s);

}  // namespace moe
