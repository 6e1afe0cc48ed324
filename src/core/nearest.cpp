#include "core/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

namespace moe {
namespace {

// A mistyped name is short; a hostile one must not cost a product of lengths.
constexpr size_t kLongest = 128;
// Of a beginning, for it to say more than a distance, and of one that is mistyped.
constexpr size_t kShortestBeginning = 4, kShortestMistyped = 6;

std::string plain(std::string_view name) {
  std::string out(name.substr(0, kLongest));
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string joined(std::string name) {
  std::erase(name, '_');
  return name;
}

// The distances of `a` to the beginnings of `b`, of 0, 1, ... all of its characters.
std::vector<size_t> distances(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the table d[i][j] = distance of the first i of a to the first j of b.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above;
}

// How far off the name is in half edits; nothing where it is another word. A beginning stands
// between one edit and two, a mistyped one between two and three.
std::optional<size_t> half_edits(std::string_view wanted, std::string_view known) {
  if (wanted.empty()) return std::nullopt;
  const std::vector<size_t> to = distances(wanted, known);
  std::optional<size_t> best;
  if (to.back() * 3 < std::max(wanted.size(), known.size())) best = 2 * to.back();
  const size_t beginning = *std::min_element(to.begin(), to.end());
  if (beginning == 0 && wanted.size() >= kShortestBeginning)
    best = std::min<size_t>(best.value_or(3), 3);
  if (beginning == 1 && wanted.size() >= kShortestMistyped)
    best = std::min<size_t>(best.value_or(5), 5);
  return best;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) { return distances(a, b).back(); }

std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates) {
  const std::string wanted = plain(name);
  std::optional<std::string> best;
  std::pair<size_t, size_t> least;  // half edits, and with them those of '_' too
  for (const std::string& candidate : candidates) {
    const std::string known = plain(candidate);
    const std::optional<size_t> whole = half_edits(wanted, known),
                                parts = half_edits(joined(wanted), joined(known));
    if (!whole && !parts) continue;
    const std::pair<size_t, size_t> here = {
        std::min(whole.value_or(SIZE_MAX), parts.value_or(SIZE_MAX)), edit_distance(wanted, known)};
    if (best && here >= least) continue;
    best = candidate;
    least = here;
  }
  return best;
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates,
                       size_t list) {
  if (const auto found = nearest(name, candidates))
    return fmt::format("; did you mean \"{}\"?", printable(*found));
  if (candidates.empty() || candidates.size() > list) return "";
  return fmt::format("; known are {}",
                     printable(fmt::format("{}", fmt::join(candidates, ", ")), 400));
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text.substr(0, limit)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return text.size() > limit ? out + "..." : out;
}

std::string one_line(std::string text) {
  const auto breaks = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), breaks, '?');
  return text;
}

}  // namespace moe
