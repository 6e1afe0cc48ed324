#include "text/linear_patterns.h"

#include <algorithm>
#include <iterator>

namespace moe {
namespace {

struct LinearPattern {
  std::vector<std::string_view> slow;  // patterns one after the other
  std::string same;                    // one with their matches
};

// The group is repeated for each letter, and every repetition may be given back: the matcher keeps
// all of them on its stack. A letter with marks, over and over, is a letter and then letters and
// marks. Each repeat here ends at a character that it cannot take, and nothing stands behind the
// last one, so giving back makes no other match.
std::string exaone_moe() {
  constexpr std::string_view kSlow = R"((?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+)";
  std::string pattern(kExaoneMoePattern);
  return pattern.replace(pattern.find(kSlow), kSlow.size(),
                         R"(\p{L}[\p{L}\p{M}]*+(?: \p{L}[\p{L}\p{M}]*+)*+)");
}

// DeepSeek-LLM's for white space that ends a line was tried at each place of a run. Where it
// matches at a later place it matches at the first, and to the last line end in the run, behind
// which it matches no more.
constexpr std::string_view kSpacesToTheEnd = R"(\s+$)", kSpacesFromTheFirst = R"((?<!\s)\s+$)";

// Trinity's first pattern looks to the end of the digits from each piece of 510, at the first one
// for each length that it may have. Since 510 are 170 times three, what the patterns make of digits
// together is threes from the right: how many stand before them is found where the digits begin,
// and behind that a search goes on where the last piece ended.
constexpr std::string_view kDigitsInThrees =
    R"((?<!\p{Nd})\p{Nd}{1,3}(?=(?:\p{Nd}{3})*+(?!\p{Nd}))|\G\p{Nd}{3})";

const std::vector<LinearPattern>& rows() {
  static const std::vector<LinearPattern> all = {
      {{kExaoneMoePattern}, exaone_moe()},
      {{kSpacesToTheEnd}, std::string(kSpacesFromTheFirst)},
      {{std::begin(kTrinityDigits), std::end(kTrinityDigits)}, std::string(kDigitsInThrees)},
  };
  return all;
}

// The row whose patterns begin at patterns[at]; null: none.
const LinearPattern* row_at(const std::vector<std::string>& patterns, size_t at) {
  for (const LinearPattern& row : rows())
    if (patterns.size() - at >= row.slow.size() &&
        std::equal(row.slow.begin(), row.slow.end(),
                   patterns.begin() + static_cast<std::ptrdiff_t>(at)))
      return &row;
  return nullptr;
}

}  // namespace

std::vector<std::string> linear_patterns(const std::vector<std::string>& patterns) {
  std::vector<std::string> linear;
  for (size_t at = 0; at < patterns.size();) {
    const LinearPattern* row = row_at(patterns, at);
    linear.push_back(row ? row->same : patterns[at]);
    at += row ? row->slow.size() : 1;
  }
  return linear;
}

}  // namespace moe
