// Products of doubles, for those who solve systems of equations (convert/cholesky.h). oneDNN has
// none on a CPU.
#pragma once

#include <cstdint>

namespace moe::ops {

// Element (i,j) lies at data[i * row + j * col].
struct Doubles {
  double* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row = 0, col = 1;

  Doubles transposed() const { return {data, cols, rows, col, row}; }
  Doubles block(int64_t i, int64_t j, int64_t height, int64_t width) const {
    return {data + i * row + j * col, height, width, row, col};
  }
};

enum class Written : uint8_t { all, lower };  // lower: what lies above the diagonal may be anything

// c -= a b, each element's sum in the order of b's rows, whatever the number of threads. c must not
// overlap the others, which are best no deeper than some hundred.
void subtract_product(int threads, Doubles c, Doubles a, Doubles b, Written = Written::all);

}  // namespace moe::ops
