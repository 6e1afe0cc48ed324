// Prompt lookup: a guess of how a text goes on, taken from what it said before (the idea of "prompt
// lookup decoding", github apoorvumang/prompt-lookup-decoding).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

constexpr int64_t kMostGuesses = 64;

// At most `most` tokens that may follow `text`: those behind the earlier place whose last tokens
// agree with the last ones of the text for longest; of equal ones the latest. Two have to agree,
// and no more are guessed than agree, so that a chance meeting costs little and a copied passage is
// soon taken in large pieces.
std::vector<int32_t> look_up(std::span<const int32_t> text, int64_t most);

}  // namespace moe
