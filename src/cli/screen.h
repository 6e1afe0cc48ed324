// What people see: numbers in words, and a progress line on standard error.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/json.h"
#include "core/watch.h"
#include "core/words.h"

namespace moe::cli {

// To standard error, where fmt::print would throw when it is closed or its disk is full: no run
// ends because nobody hears of it.
template <class... T>
void tell(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string human_seconds(double s);  // 2m05s

// One line on standard output, as programs read it. Bytes that are no UTF-8, such as names of files
// may hold, become U+FFFD.
void print_json(const Json&);

// `help` in lines of at most `width` columns, what is said of a flag under the column that it
// begins in. Examples, which are there to be copied, stay whole.
std::string folded_help(const std::string& help, size_t width);

// On standard output, folded where that is a terminal: through a pipe a flag stays one line, for
// grep.
void print_help(const std::string& help);

// What training computes beside what the processor can compute at most.
class PeakShare {
 public:
  // Flops a second, as ops::measure_peak_flops found them.
  explicit PeakShare(double measured) : peak_(measured) {}
  // "31.2 GFLOP/s, 47% of peak". A rate above it shows that the measurement was disturbed; from
  // then on there is no share to speak of.
  std::string describe(double rate);

 private:
  double peak_;  // 0: not known
};

// The bar and as many of the parts, two spaces apart, as `width` columns hold; narrow terminals get
// a shorter bar.
std::string progress_text(int64_t done, int64_t total, const std::vector<std::string>& parts,
                          size_t width);

// Rewrites one line on a terminal; elsewhere prints a line now and then.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  // `done` of `total`; the text stands behind the bar.
  void show(int64_t done, int64_t total, const std::string& text) {
    show(done, total, std::vector{text});
  }
  // The same with what matters most first: where the terminal is too narrow the last parts are left
  // out.
  void show(int64_t done, int64_t total, const std::vector<std::string>& parts);
  // A line of its own, above the progress line.
  void log(const std::string& line);
  // Takes the line off the terminal.
  void clear();
  bool on_terminal() const { return terminal_; }

 private:
  bool terminal_;
  bool open_ = false;  // a line without its newline is on the screen
  std::chrono::steady_clock::time_point last_{};
};

// How far the reading of a prompt is: on a terminal alone, where it takes longer than a reader
// waits, and gone when the reply begins.
class ReadingLine {
 public:
  explicit ReadingLine(bool wanted, double patience = 2)  // seconds
      : wanted_(wanted), patience_(patience) {}
  ~ReadingLine() { clear(); }
  ReadingLine(const ReadingLine&) = delete;
  ReadingLine& operator=(const ReadingLine&) = delete;
  void show(int64_t done, int64_t total);
  void clear() { line_.clear(); }

 private:
  ProgressLine line_;
  bool wanted_;
  double patience_;
  Clock::time_point begun_ = Clock::now();
};

// Work of the library shows how far it is, and says its lines, on standard error; Ctrl-C stops it
// from the moment that it asks for the first time.
Watch on_screen();

}  // namespace moe::cli
