#include "infer/text_stream.h"

#include <algorithm>
#include <utility>

namespace moe {
namespace {

// The stop string that begins first in text[from, ...), of several the longest, and where; null:
// none is there.
std::pair<const std::string*, size_t> first_stop(const std::string& text, size_t from,
                                                 const std::vector<std::string>& stops) {
  const std::string* first = nullptr;
  size_t begin = std::string::npos;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop, from);
    if (at == std::string::npos || at > begin) continue;
    if (at == begin && stop.size() <= first->size()) continue;
    begin = at;
    first = &stop;
  }
  return {first, begin};
}

// How much of a text without stop strings may be shown: no tail that may turn out to begin one.
size_t certain_length(const std::string& text, const std::vector<std::string>& stops) {
  size_t end = text.size();
  for (const std::string& stop : stops)
    for (size_t n = std::min(stop.size() - 1, text.size()); n > 0; --n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        end = std::min(end, text.size() - n);
        break;
      }
  return end;
}

bool lists(const std::vector<int32_t>& sorted, int32_t id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, TextRules rules)
    : tokenizer_(tokenizer),
      stops_(std::move(stops)),
      rules_(std::move(rules)),
      decoder_(tokenizer) {}

std::string TextStream::push(int32_t id) {
  ++tokens_;
  const bool stops = lists(rules_.stop_ids, id);
  if (stops) stop_id_ = id;
  if (stops || tokenizer_.ends_text(id)) return end_with(id);
  const bool may_stop = tokens_ > rules_.min_tokens;
  if (lists(rules_.hidden, id)) {
    const auto stop = std::find(stops_.begin(), stops_.end(), tokenizer_.piece(id));
    return may_stop && stop != stops_.end() ? end_at(*stop, text_.size()) : "";
  }
  text_ += decoder_.push(id);
  // None begins in what was shown: that would have been held back, or was passed over.
  if (may_stop)
    if (const auto [stop, begin] = first_stop(text_, shown_, stops_); stop != nullptr)
      return end_at(*stop, begin);
  return show(certain_length(text_, stops_));
}

std::string TextStream::end_with(int32_t id) {
  ended_ = true;
  if (lists(rules_.kept_ids, id)) text_ += decoder_.push(id);
  return finish();
}

// Of a hidden one nothing is in the text.
std::string TextStream::end_at(const std::string& stop, size_t begin) {
  ended_ = true;
  stop_ = stop;
  const auto number = static_cast<size_t>(&stop - stops_.data());
  if (number < rules_.kept_stops) begin = std::min(begin + stop.size(), text_.size());
  return show(begin);
}

std::string TextStream::finish() {
  text_ += decoder_.finish();
  return show(text_.size());
}

std::string TextStream::show(size_t end) {
  const size_t begin = std::exchange(shown_, std::max(shown_, end));
  return text_.substr(begin, shown_ - begin);
}

}  // namespace moe
