// c -= a b in tiles of kTileRows rows and two vectors of columns, whose sums are registers. Both
// operands are laid out first as the tiles read them: of a the kTileRows numbers of a step side by
// side, of b the columns of a tile.
#include "ops/double_product.h"

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/double_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/isa.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTileRows = 6;
#define MOE_UNROLL _Pragma("GCC unroll 6")

HWY_INLINE int64_t TileColumns() {
  return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<double>()));
}

// Lines [begin, end) of `from`, `together` at a time: to[line / together][step][line % together],
// zeros behind the last. A line is a row of a, or a column of b (transposed).
void LayOut(double* to, const Doubles& from, int64_t together, int64_t begin, int64_t end) {
  for (int64_t first = begin; first < end; first += together)
    for (int64_t s = 0; s < from.cols; ++s)
      for (int64_t l = first; l < first + together; ++l)
        *to++ = l < from.rows ? from.data[l * from.row + s * from.col] : 0;
}

// A tile: a [depth][kTileRows], b [depth][TileColumns()]; c of rows by cols, no more than those.
void MultiplyTile(const Doubles& c, const double* a, const double* b, int64_t depth) {
  const hn::ScalableTag<double> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kTileRows][2];
  MOE_UNROLL for (int64_t r = 0; r < kTileRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  for (int64_t s = 0; s < depth; ++s, a += kTileRows, b += 2 * lanes) {
    const auto first = hn::Load(d, b), second = hn::Load(d, b + lanes);
    MOE_UNROLL for (int64_t r = 0; r < kTileRows; ++r) {
      const auto factor = hn::Set(d, a[r]);
      sum[r][0] = hn::MulAdd(factor, first, sum[r][0]);
      sum[r][1] = hn::MulAdd(factor, second, sum[r][1]);
    }
  }
  if (c.rows == kTileRows && c.cols == 2 * lanes && c.col == 1) {
    MOE_UNROLL for (int64_t r = 0; r < kTileRows; ++r) {
      double* row = c.data + r * c.row;
      hn::StoreU(hn::Sub(hn::LoadU(d, row), sum[r][0]), d, row);
      hn::StoreU(hn::Sub(hn::LoadU(d, row + lanes), sum[r][1]), d, row + lanes);
    }
    return;
  }
  HWY_ALIGN double sums[kTileRows * 2 * hn::MaxLanes(hn::ScalableTag<double>())];
  MOE_UNROLL for (int64_t r = 0; r < kTileRows; ++r) {
    hn::Store(sum[r][0], d, sums + r * 2 * lanes);
    hn::Store(sum[r][1], d, sums + r * 2 * lanes + lanes);
  }
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t j = 0; j < c.cols; ++j) c.data[r * c.row + j * c.col] -= sums[r * 2 * lanes + j];
}

// Tiles of c in a row of tiles of columns; `packed_b` those columns of b.
void MultiplyColumns(const Doubles& c, const double* packed_a, const double* packed_b,
                     int64_t depth, int64_t column, bool lower) {
  const int64_t width = TileColumns();
  const int64_t cols = width < c.cols - column ? width : c.cols - column;
  for (int64_t i = lower ? column / kTileRows * kTileRows : 0; i < c.rows; i += kTileRows) {
    const int64_t rows = kTileRows < c.rows - i ? kTileRows : c.rows - i;
    MultiplyTile(c.block(i, column, rows, cols), packed_a + i * depth, packed_b, depth);
  }
}

#undef MOE_UNROLL

int64_t ColumnsOfTile() { return TileColumns(); }
int64_t RowsOfTile() { return kTileRows; }

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(LayOut);
HWY_EXPORT(MultiplyColumns);
HWY_EXPORT(ColumnsOfTile);
HWY_EXPORT(RowsOfTile);

// Numbers whose lines are padded to whole groups, on a border that vectors can be loaded from.
class Packed {
 public:
  Packed(int threads, const Doubles& lines, int64_t together)
      : groups_((lines.rows + together - 1) / together),
        size_(together * lines.cols),
        memory_(static_cast<size_t>(groups_ * size_) + kAlign) {
    parallel_for(threads, groups_, 4, [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(LayOut)
      (group(begin), lines, together, begin * together, end * together);
    });
  }
  double* group(int64_t g) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - at % 64) % 64 / sizeof(double) + g * size_;
  }
  int64_t groups() const { return groups_; }

 private:
  static constexpr size_t kAlign = 8;
  int64_t groups_, size_;
  std::vector<double> memory_;
};

}  // namespace

void subtract_product(int threads, Doubles c, Doubles a, Doubles b, Written written) {
  choose_isa();
  const int64_t width = HWY_DYNAMIC_DISPATCH(ColumnsOfTile)();
  Packed rows(threads, a, HWY_DYNAMIC_DISPATCH(RowsOfTile)());
  Packed columns(threads, b.transposed(), width);
  // Below the diagonal the first columns have more rows than the last: they are dealt out in turn.
  parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t thread = begin; thread < end; ++thread)
      for (int64_t g = thread; g < columns.groups(); g += threads)
        HWY_DYNAMIC_DISPATCH(MultiplyColumns)
    (c, rows.group(0), columns.group(g), a.cols, g * width, written == Written::lower);
  });
}

}  // namespace moe::ops
#endif  // HWY_ONCE
