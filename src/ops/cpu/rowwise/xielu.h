// What the kernels of xIELU, compiled once for each instruction set, take and give.
#pragma once

namespace moe::ops {

struct XieluFactors {
  float p, n, beta, eps;  // as ops.h has them
};
// Of one row the sums of dh b: over numbers above 0, of which p is the factor, and over the others.
struct XieluSums {
  float p = 0, n = 0;
};

}  // namespace moe::ops
