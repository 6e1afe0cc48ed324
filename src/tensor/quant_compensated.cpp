#include "tensor/quant_compensated.h"

#include <algorithm>
#include <vector>

#include "tensor/quant.h"
#include "tensor/quant_k.h"
#include "tensor/quant_rounding.h"

namespace moe {
namespace {

// Errors of a block go to its own later numbers at once, and are kept for those of other blocks.
class InBlock : public BlockRounding {
 public:
  explicit InBlock(Tensor shares) : shares_(shares) {}
  void begin(int64_t column, float* errors) {
    column_ = column;
    errors_ = errors;
  }
  void round(int* q, const float* x, const BlockGrid& grid) override {
    float moved[kSuperBlock];
    std::copy_n(x, grid.numbers, moved);
    for (int j = 0; j < grid.numbers; ++j) {
      q[j] = grid.nearest(j, moved[j]);
      const float error = moved[j] - grid.value(j, q[j]);
      errors_[j] = error;
      const float* share = shares_.row<float>(column_ + j) + column_;
      for (int k = j + 1; k < grid.numbers; ++k) moved[k] -= error * share[k];
    }
  }

 private:
  Tensor shares_;  // [I,I]
  int64_t column_ = 0;
  float* errors_ = nullptr;
};

// So many rows meet a row of the shares while it is in the cache.
constexpr int64_t kRows = 8;

}  // namespace

void quantise_compensated(char* out, Tensor rows, DType to, const float* importance,
                          Tensor shares) {
  const int64_t cols = rows.cols(), block = block_of(to).elements, row_bytes = bytes_of(to, cols),
                block_bytes = block_of(to).bytes;
  InBlock rounding(shares);
  std::vector<float> errors(static_cast<size_t>(kRows * block));
  for (int64_t first = 0; first < rows.rows(); first += kRows) {
    const int64_t n = std::min(kRows, rows.rows() - first);
    for (int64_t c = 0; c < cols; c += block) {
      for (int64_t r = 0; r < n; ++r) {
        rounding.begin(c, errors.data() + r * block);
        quantise(out + (first + r) * row_bytes + c / block * block_bytes,
                 rows.row<float>(first + r) + c, to, block,
                 importance == nullptr ? nullptr : importance + c, &rounding);
      }
      for (int64_t j = 0; j < block; ++j) {
        const float* share = shares.row<float>(c + j);
        for (int64_t r = 0; r < n; ++r) {
          const float error = errors[static_cast<size_t>(r * block + j)];
          float* row = rows.row<float>(first + r);
          for (int64_t k = c + block; k < cols; ++k) row[k] -= error * share[k];
        }
      }
    }
  }
}

}  // namespace moe
