#include "core/words.h"

#include <fmt/format.h>

#include <algorithm>

namespace moe {
namespace {

std::string scaled(double n, double step, const char* const* units, int count) {
  int u = 0;
  while (n >= step && u + 1 < count) {
    n /= step;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f}{}", n, units[0])
                : fmt::format("{:.{}f}{}", n,
                              n < 10    ? 2
                              : n < 100 ? 1
                                        : 0,
                              units[u]);
}

}  // namespace

std::string counted(int64_t n, std::string_view noun) {
  const bool hisses = noun.ends_with('s') || noun.ends_with("ch");
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : hisses ? "es" : "s");
}

std::string human_count(double n) {
  static const char* const units[] = {"", "k", "M", "G", "T", "P"};
  return scaled(n, 1000, units, 6);
}

std::string human_bytes(double n) {
  static const char* const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  return scaled(n, 1024, units, 5);
}

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

}  // namespace moe
