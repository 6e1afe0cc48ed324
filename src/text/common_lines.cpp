#include "text/common_lines.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

namespace moe {
namespace {

constexpr size_t kTelling = 20;  // bytes of a line that two texts do not share by chance
constexpr size_t kLong = 400;    // of a line that is cut further
constexpr std::string_view kBlank = " \t\r\n\v\f";

// Where a line without sentences may be cut: behind words that their own letters choose, one in
// eight, so that what stands before them does not matter.
size_t cut_of(std::string_view line) {
  size_t from = 0;
  for (size_t at = line.find(' '); at != std::string_view::npos; at = line.find(' ', from)) {
    if (at >= kTelling && std::hash<std::string_view>()(line.substr(from, at - from)) % 8 == 0)
      return at;
    from = at + 1;
  }
  return line.size();
}

// The sentences of one line, long ones in parts. The end of a sentence is looked for once, however
// often it is cut.
template <class Take>
void each_sentence(std::string_view line, const Take& take) {
  size_t at = 0, stop = 0;
  while (at < line.size()) {
    if (at == 0 || stop < at) stop = std::min(line.find(". ", at), line.size() - 1);
    std::string_view part = line.substr(at, stop + 1 - at);
    if (part.size() > kLong) part = part.substr(0, cut_of(part));
    take(part);
    at += part.size() + 1;
  }
}

template <class Take>
void each_line(std::string_view text, size_t least, const Take& take) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    each_sentence(line, [&](std::string_view part) {
      part.remove_prefix(std::min(part.find_first_not_of(kBlank), part.size()));
      part = part.substr(0, part.find_last_not_of(kBlank) + 1);
      if (part.size() >= least) take(part);
    });
  }
}

}  // namespace

double shared_lines(std::string_view text, std::string_view other) {
  for (const size_t least : {kTelling, size_t{1}}) {
    std::unordered_set<std::string_view> lines;
    each_line(other, least, [&](std::string_view line) { lines.insert(line); });
    size_t all = 0, shared = 0;
    each_line(text, least, [&](std::string_view line) {
      all += line.size();
      if (lines.contains(line)) shared += line.size();
    });
    if (all > 0) return static_cast<double>(shared) / static_cast<double>(all);
  }
  return 0;
}

}  // namespace moe
