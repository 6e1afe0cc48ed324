#include "infer/text_stream.h"

#include <algorithm>
#include <utility>

namespace moe {
namespace {

// How much of `text` may be shown: nothing from the first stop string on, and no tail that may turn
// out to begin one. `hit` says that one was found.
size_t certain_length(const std::string& text, const std::vector<std::string>& stops, bool& hit) {
  size_t end = text.size();
  for (const std::string& stop : stops) {
    if (const size_t at = text.find(stop); at != std::string::npos) {
      hit = true;
      end = std::min(end, at);
      continue;
    }
    for (size_t n = std::min(stop.size() - 1, text.size()); n > 0; --n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        end = std::min(end, text.size() - n);
        break;
      }
  }
  return end;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)), decoder_(tokenizer) {}

std::string TextStream::push(int32_t id) {
  if (tokenizer_.ends_text(id)) {
    ended_ = true;
    return finish();
  }
  text_ += decoder_.push(id);
  return show(certain_length(text_, stops_, ended_));
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
