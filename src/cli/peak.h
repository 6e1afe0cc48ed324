// What the processor can compute at most, against which training states its rate.
#pragma once

#include <string>

namespace moe::cli {

class PeakShare {
 public:
  // Flops a second, as ops::measure_peak_flops found them.
  explicit PeakShare(double measured) : peak_(measured) {}
  // "31.2 GFLOP/s, 47% of peak". A rate above it shows that the measurement was disturbed; from then on there is no share to speak of.
  std::string describe(double rate);

 private:
  double peak_;  // 0: not known
};

}  // namespace moe::cli
