#include "cli/screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/flags.h"
#include "cli/verbs.h"
#include "core/json.h"

namespace moe::cli {
namespace {

constexpr int kBarWidth = 20;
// columns that have room for a bar of that width beside a training step's figures
constexpr size_t kWide = 100;
// what help is folded to, however wide the terminal is
constexpr size_t kNarrowHelp = 60, kWideHelp = 120;
// where CLI11 begins what it says of a flag
constexpr size_t kHelpColumn = 30;
constexpr double kTerminalInterval = 0.1, kPlainInterval = 10;  // seconds

size_t columns(int stream) {
  winsize size{};
  return ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

// Where a line of help is said to go on: under what is told of a flag or a verb, else under its
// first letter.
size_t told_column(const std::string& line) {
  const size_t first = line.find_first_not_of(' ');
  if (first != 2) return first == std::string::npos ? 0 : first;
  const size_t gap = line.find("  ", first);
  if (gap < kHelpColumn) return std::min(line.find_first_not_of(' ', gap), line.size());
  // the longest flags leave a single blank before the column
  return line.size() > kHelpColumn && line[kHelpColumn - 1] == ' ' ? kHelpColumn : first;
}

}  // namespace

std::string human_seconds(double s) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, s)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

void print_json(const Json& json) { fmt::print("{}\n", one_line_json(json)); }

std::string folded_help(const std::string& help, size_t width) {
  std::string out;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line); out += '\n') {
    const size_t column = told_column(line);
    if (line.size() <= width || line.starts_with("  moe ")) out += line;
    else out += line.substr(0, column) + wrapped(line.substr(column), column, width);
  }
  return out;
}

void print_help(const std::string& help) {
  const size_t width = columns(STDOUT_FILENO) - 1;  // the last column stays free
  const std::string text = isatty(STDOUT_FILENO) == 0
                               ? help
                               : folded_help(help, std::clamp(width, kNarrowHelp, kWideHelp));
  std::fwrite(text.data(), 1, text.size(), stdout);  // main says where it could not be written
}

std::string PeakShare::describe(double rate) {
  if (rate > peak_) peak_ = 0;
  const std::string share = peak_ > 0 ? fmt::format(", {:.0f}% of peak", 100 * rate / peak_) : "";
  return fmt::format("{:.3g} GFLOP/s{}", rate / 1e9, share);
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stderr);
}

std::string progress_text(int64_t done, int64_t total, const std::vector<std::string>& parts,
                          size_t width) {
  const int bar = width >= kWide ? kBarWidth : kBarWidth / 2;
  const int filled = total > 0 ? static_cast<int>(done * bar / total) : bar;
  std::string line =
      fmt::format("[{:#<{}}{:.<{}}] {}/{}", "", filled, "", bar - filled, done, total);
  for (const std::string& part : parts) {
    // the last column stays free: a line that fills it wraps on some terminals
    if (line.size() + 2 + part.size() >= width) break;
    line += "  " + part;
  }
  if (line.size() >= width) line.resize(width - 1);
  return line;
}

void ProgressLine::show(int64_t done, int64_t total, const std::vector<std::string>& parts) {
  const auto now = std::chrono::steady_clock::now();
  const double since = std::chrono::duration<double>(now - last_).count();
  if (done < total && since < (terminal_ ? kTerminalInterval : kPlainInterval)) return;
  last_ = now;
  if (!terminal_) {
    tell("{}/{}  {}\n", done, total, fmt::join(parts, "  "));
    return;
  }
  tell("\r{}\x1b[K", progress_text(done, total, parts, columns(STDERR_FILENO)));
  std::fflush(stderr);
  open_ = true;
}

void ProgressLine::log(const std::string& line) {
  tell("{}{}{}\n", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "");
  open_ = false;
}

void ProgressLine::clear() {
  if (open_) tell("\r\x1b[K");
  open_ = false;
}

void ReadingLine::show(int64_t done, int64_t total) {
  if (wanted_ && line_.on_terminal() && seconds_since(begun_) >= patience_)
    line_.show(done, total, "tokens of the prompt read");
}

Watch on_screen() {
  return {.begin = []() -> Progress {
            const auto line = std::make_shared<ProgressLine>();
            return [line](int64_t done, int64_t total, std::string_view what) {
              line->show(done, total, std::string(what));
            };
          },
          .tell = [](const std::string& line) { tell("{}\n", in_flags(line)); },
          .stopped = [] { return watch_interrupts().load(); }};
}

}  // namespace moe::cli
