#include "infer/lookup.h"

#include <algorithm>
#include <cstddef>

namespace moe {
namespace {

constexpr size_t kLeast = 2;  // tokens that agree

}  // namespace

std::vector<int32_t> look_up(std::span<const int32_t> text, int64_t most) {
  if (most <= 0) return {};
  size_t longest = kLeast - 1, from = 0;
  for (size_t end = text.size() - std::min<size_t>(text.size(), 1); end >= kLeast;
       --end) {  // an earlier place: before text[end]
    size_t alike = 0;
    while (alike < end && alike < static_cast<size_t>(kMostGuesses) &&
           text[end - 1 - alike] == text[text.size() - 1 - alike])
      ++alike;
    if (alike <= longest) continue;
    longest = alike;
    from = end;
  }
  if (longest < kLeast) return {};
  const size_t count = std::min({static_cast<size_t>(most), longest, text.size() - from});
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(from);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace moe
