#include "cli/peak.h"

#include <fmt/format.h>

namespace moe::cli {

std::string PeakShare::describe(double rate) {
  if (rate > peak_) peak_ = 0;
  const std::string share = peak_ > 0 ? fmt::format(", {:.0f}% of peak", 100 * rate / peak_) : "";
  return fmt::format("{:.3g} GFLOP/s{}", rate / 1e9, share);
}

}  // namespace moe::cli
