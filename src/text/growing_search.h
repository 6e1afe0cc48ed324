// Finds things in a text that grows, at each byte a bounded number of times: what is read of a
// reply under way is linear in its length, however small the pieces that it comes in. A text that
// is given begins with the one given before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace moe {

// Of one mark; one that is empty is never found.
class GrowingSearch {
 public:
  explicit GrowingSearch(std::string_view mark) : mark_(mark) {}

  // Where the mark begins, or may begin at the text's end; else the text's size. It is not looked
  // for before `from`.
  size_t in(std::string_view text, size_t from = 0) {
    if (found_) return next_;
    next_ = std::max(next_, from);
    if (mark_.empty() || next_ >= text.size()) return text.size();
    looked_ += static_cast<int64_t>(text.size() - next_);
    const size_t at = text.find(mark_, next_);
    found_ = at != std::string_view::npos;
    next_ = found_ ? at : begin_of_part(text);
    return next_;
  }
  // It stands there, and whole.
  bool found() const { return found_; }
  // Bytes, each as often as it was looked at.
  int64_t looked() const { return looked_; }

 private:
  // Of what may become the mark; it is looked at again, and nothing before it.
  size_t begin_of_part(std::string_view text) const {
    for (size_t size = std::min(mark_.size() - 1, text.size() - next_); size > 0; --size)
      if (text.ends_with(mark_.substr(0, size))) return text.size() - size;
    return text.size();
  }

  std::string_view mark_;
  size_t next_ = 0;
  bool found_ = false;
  int64_t looked_ = 0;
};

// Of what is none of `space`: where it begins, and where it ends before a place that moves on.
class GrowingTrim {
 public:
  explicit GrowingTrim(std::string_view space) : space_(space) {}

  // The first that is none in text[from, ...), or the text's size.
  size_t begin(std::string_view text, size_t from = 0) {
    if (begun_) return begin_;
    begin_ = std::max(begin_, from);
    const size_t at = text.find_first_not_of(space_, begin_);
    begun_ = at != std::string_view::npos;
    const size_t end = begun_ ? at : text.size();
    looked_ += static_cast<int64_t>(end - std::min(begin_, end));
    return begin_ = end;
  }
  // Behind the last that is none in text[0, to); 0: all are space.
  size_t end(std::string_view text, size_t to) {
    if (to <= trimmed_) return end_;
    const size_t last = text.substr(trimmed_, to - trimmed_).find_last_not_of(space_);
    if (last != std::string_view::npos) end_ = trimmed_ + last + 1;
    looked_ += static_cast<int64_t>(to - trimmed_);
    trimmed_ = to;
    return end_;
  }
  int64_t looked() const { return looked_; }

 private:
  std::string_view space_;
  size_t begin_ = 0, end_ = 0, trimmed_ = 0;
  bool begun_ = false;
  int64_t looked_ = 0;
};

}  // namespace moe
