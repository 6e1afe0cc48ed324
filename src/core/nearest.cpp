#include "core/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace moe {
namespace {

// A mistyped name is short; a hostile one must not cost a product of lengths.
constexpr size_t kLongest = 128;
// Of a beginning, for it to say more than a distance.
constexpr size_t kShortestBeginning = 4;

std::string plain(std::string_view name) {
  std::string out(name.substr(0, kLongest));
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
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
  return above[b.size()];
}

std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates) {
  const std::string wanted = plain(name);
  std::optional<std::string> best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::string known = plain(candidate);
    const bool begins_so = wanted.size() >= kShortestBeginning && known.starts_with(wanted);
    // A beginning stands between one difference and two.
    const size_t edits = edit_distance(wanted, known),
                 distance = begins_so && edits > 1 ? 3 : 2 * edits;
    if (wanted.empty()) continue;
    if (!begins_so && edits * 3 >= std::max(wanted.size(), known.size())) continue;
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
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
