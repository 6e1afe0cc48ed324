#include "core/words.h"

#include <fmt/format.h>

namespace moe {
namespace {

std::string scaled(double n, double step, const char* const* units, int count) {
  int u = 0;
  while (n >= step && u + 1 < count) {
    n /= step;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f}{}", n, units[0]) : fmt::format("{:.{}f}{}", n, n < 10 ? 2 : n < 100 ? 1 : 0, units[u]);
}

}  // namespace

std::string counted(int64_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::string human_count(double n) {
  static const char* const units[] = {"", "k", "M", "G", "T", "P"};
  return scaled(n, 1000, units, 6);
}

std::string human_bytes(double n) {
  static const char* const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  return scaled(n, 1024, units, 5);
}

}  // namespace moe
