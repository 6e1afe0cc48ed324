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

// Viterbi's table over a stretch of the text. Where no word reaches beyond a place every path
// passes it: what stands before is fixed, and the table begins anew. Where that does not happen for
// a window of places, what later words need of the table is kept as a Mark and the rest dropped;
// once the end of the stretch is found the marks tell where the best path enters each window, and
// the windows are filled again from their marks. Sums are never rebased and offers come in the
// order of the text both times, so the same of two equal sums wins as in one table for the whole
// text.
class UnigramTable::Lattice {
 public:
  using Emit = std::function<void(const Part&)>;

  Lattice(const UnigramTable& table, std::string_view text, size_t window, const Emit& emit)
      : table_(table), text_(text), window_(window), emit_(emit) {}

  void run() {
    best_.resize(1);
    for (size_t at = 0; at < text_.size();) {
      at += step(at);
      const size_t ahead = first_ + best_.size() - 1 - at;  // how far words reach beyond it
      if (ahead == 0) finish(at);
      else if (at - first_ >= std::max(window_, kReaches * ahead)) leave(at);
    }
  }

 private:
  // A window is so many times longer than what is kept of it.
  static constexpr size_t kReaches = 4;

  // The last word of the best cut of the text before a place.
  struct Best {
    double sum = 0;
    uint32_t length = 0;  // 0: none so far
    int32_t id = -1;
  };
  struct Mark {
    size_t at;
    std::vector<Best> best;  // of `at` and the places behind it, from words that begin before it
    // of each the first place of its best path that is not before the previous mark, from there
    std::vector<size_t> enters;
  };

  void offer(size_t end, double sum, size_t length, int32_t id) {
    const size_t place = end - first_;
    if (place >= best_.size()) best_.resize(place + 1);
    Best& best = best_[place];
    if (best.length == 0 || sum > best.sum) best = {sum, static_cast<uint32_t>(length), id};
  }

  // Offers all words that begin at `at`; the length of the character there.
  size_t step(size_t at) {
    const double here = best_[at - first_].sum;
    const std::string_view rest = text_.substr(at);
    const size_t character = character_length(rest);
    bool single = false;
    table_.prefixes(rest, [&](int32_t id, size_t length) {
      offer(at + length, table_.scores_[static_cast<size_t>(id)] + here, length, id);
      single |= length == character;
    });
    if (!single) offer(at + character, table_.unknown_ + here, character, -1);
    return character;
  }

  // The table begins at `at` from now on.
  void leave(size_t at) {
    if (marks_.empty()) marks_.push_back({first_, {best_.front()}, {}});
    std::vector<size_t> enters(best_.size());
    for (size_t place = 1; place < best_.size(); ++place) {
      const size_t length = best_[place].length;
      enters[place] = length > place ? place : enters[place - length];
    }
    const auto kept = static_cast<std::ptrdiff_t>(at - first_);
    best_.erase(best_.begin(), best_.begin() + kept);
    marks_.push_back({at, best_, {enters.begin() + kept, enters.end()}});
    first_ = at;
  }

  // Every path passes `end`.
  void finish(size_t end) {
    if (marks_.empty()) {
      emit_path(first_, end);
    } else {
      leave(end);
      fill_again();
    }
    best_.front() = best_.back();
    best_.resize(1);
    first_ = end;
  }

  void fill_again() {
    std::vector<size_t> entry(marks_.size());
    entry.back() = marks_.back().at;
    for (size_t i = marks_.size() - 1; i > 0; --i)
      entry[i - 1] = marks_[i - 1].at + marks_[i].enters[entry[i] - marks_[i].at];
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      first_ = marks_[i].at;
      best_ = std::move(marks_[i].best);
      for (size_t at = first_; at < marks_[i + 1].at;) at += step(at);
      emit_path(entry[i], entry[i + 1]);
    }
    marks_.clear();
  }

  // The best path's words from one of its places to another.
  void emit_path(size_t from, size_t to) {
    path_.clear();
    for (size_t end = to; end > from; end -= best_[end - first_].length) path_.push_back(end);
    for (auto end = path_.rbegin(); end != path_.rend(); ++end) {
      const Best& best = best_[*end - first_];
      emit_({text_.substr(*end - best.length, best.length), best.id});
    }
  }

  const UnigramTable& table_;
  std::string_view text_;
  size_t window_;
  const Emit& emit_;
  size_t first_ = 0;        // the place of best_[0]
  std::vector<Best> best_;  // up to the furthest place that a word reaches
  std::vector<Mark> marks_;
  std::vector<size_t> path_;
};

void UnigramTable::cut(std::string_view text, const std::function<void(const Part&)>& emit,
                       size_t window) const {
  Lattice(*this, text, window, emit).run();
}

}  // namespace moe
