#include "cli/screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace moe::cli {
namespace {

constexpr int kBarWidth = 20;
constexpr double kTerminalInterval = 0.1, kPlainInterval = 10;  // seconds

size_t columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

}  // namespace

std::string human_seconds(double s) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, s)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

void print_json(const Json& json) { fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(' ', begin), text.size());
    if (column > indent && column + 1 + end - begin > width) {
      out.append(1, '\n').append(indent, ' ');
      column = indent;
    } else if (begin > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stderr);
}

void ProgressLine::show(int64_t done, int64_t total, const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  const double since = std::chrono::duration<double>(now - last_).count();
  if (done < total && since < (terminal_ ? kTerminalInterval : kPlainInterval)) return;
  last_ = now;
  if (!terminal_) {
    tell("{}/{}  {}\n", done, total, text);
    return;
  }
  const int filled = total > 0 ? static_cast<int>(done * kBarWidth / total) : kBarWidth;
  std::string line = fmt::format("[{:#<{}}{:.<{}}] {}/{}  {}", "", filled, "", kBarWidth - filled, done, total, text);
  if (const size_t width = columns(); line.size() >= width) line.resize(width - 1);
  tell("\r{}\x1b[K", line);
  std::fflush(stderr);
  open_ = true;
}

void ProgressLine::log(const std::string& line) {
  tell("{}{}{}\n", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "");
  open_ = false;
}

}  // namespace moe::cli
