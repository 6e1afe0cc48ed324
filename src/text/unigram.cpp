#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/utf8.h"

namespace moe {
namespace {

constexpr double kUnknownPenalty = 10;

size_t character_length(std::string_view text) {
  const Utf8Step step = utf8_step(text);
  return step.kind == Utf8Step::Kind::character ? static_cast<size_t>(step.length) : 1;
}

}  // namespace

UnigramTable::UnigramTable(const std::vector<std::string>& words, std::vector<double> scores)
    : scores_(std::move(scores)) {
  double least = std::numeric_limits<double>::max();
  for (size_t id = 0; id < words.size(); ++id) {
    if (std::isnan(scores_[id])) continue;
    least = std::min(least, scores_[id]);
    if (!words[id].empty()) sorted_.emplace_back(words[id], static_cast<int32_t>(id));
  }
  unknown_ = least - kUnknownPenalty;
  std::sort(sorted_.begin(), sorted_.end());
  for (const auto& [word, id] : sorted_) ++first_[static_cast<unsigned char>(word[0]) + size_t{1}];
  for (size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
}

template <class Found>
void UnigramTable::prefixes(std::string_view text, const Found& found) const {
  const auto first = static_cast<unsigned char>(text[0]);
  auto begin = sorted_.begin() + static_cast<std::ptrdiff_t>(first_[first]);
  auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(first_[first + size_t{1}]);
  // Of the words that begin with text[0, length) the shortest stands first.
  for (size_t length = 1; begin != end; ++length) {
    if (begin->first.size() == length) {
      found(begin->second, length);
      ++begin;
    }
    if (length == text.size()) return;
    const auto byte = static_cast<unsigned char>(text[length]);
    const auto at = [length](const auto& entry) {
      return static_cast<unsigned char>(entry.first[length]);
    };
    begin = std::partition_point(begin, end, [&](const auto& entry) { return at(entry) < byte; });
    end = std::partition_point(begin, end, [&](const auto& entry) { return at(entry) == byte; });
  }
}

std::vector<UnigramTable::Part> UnigramTable::cut(std::string_view text) const {
  struct Best {
    double sum = 0;
    size_t from = std::string_view::npos;  // where the last word begins
    int32_t id = -1;
  };
  std::vector<Best> best(text.size() + 1);  // of each cut of text[0, i)
  const auto offer = [&](size_t end, double sum, size_t from, int32_t id) {
    if (best[end].from == std::string_view::npos || sum > best[end].sum)
      best[end] = {sum, from, id};
  };
  for (size_t at = 0; at < text.size();) {
    const double here = best[at].sum;
    const size_t character = character_length(text.substr(at));
    bool single = false;
    prefixes(text.substr(at), [&](int32_t id, size_t length) {
      offer(at + length, scores_[static_cast<size_t>(id)] + here, at, id);
      single |= length == character;
    });
    if (!single) offer(at + character, unknown_ + here, at, -1);
    at += character;
  }
  std::vector<Part> parts;
  for (size_t end = text.size(); end > 0; end = best[end].from)
    parts.push_back({text.substr(best[end].from, end - best[end].from), best[end].id});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace moe
