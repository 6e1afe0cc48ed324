#include "ops/cpu/gemm/parts.h"

namespace moe::ops {

const void* Part::rows_of(int64_t first, int64_t rows, Arena& scratch) const {
  if (direct_in()) return static_cast<const char*>(in.x.data) + first * in.x.row_bytes;
  void* copy = scratch.alloc_bytes(static_cast<size_t>(rows * in.cols()) * size_of(compute));
  convert_matrix(copy, compute, in.cols(), source_of(in, first, 0), rows, in.cols(), false);
  return copy;
}

std::vector<const PackLayout*> tile_layouts(const std::vector<Part>& parts) {
  std::vector<const PackLayout*> layouts;
  for (const Part& p : parts) {
    layouts.push_back(tile_layout(p.in.cols(), p.out.cols(), p.compute));
    if (layouts.back() == nullptr) return {};
  }
  return layouts;
}

bool same_rows(const GatheredRows& a, const GatheredRows& b) {
  return a.x.data == b.x.data && a.row.data() == b.row.data() && a.rows() == b.rows() &&
         a.cols() == b.cols();
}

const char* TilesOfThread::of(const Part& p, const Group& g) {
  // The next matrix often reads the same rows.
  if (&g == group_ && same_rows(p.in, *rows_)) return tiles_;
  const int64_t rows = g.end - g.begin;
  scratch_.rewind(mark_);
  group_ = nullptr;
  auto* tiles =
      static_cast<char*>(scratch_.alloc_bytes(static_cast<size_t>(tiled_bytes(rows, p.in.cols()))));
  tile_rows(tiles, source_of(p.in, g.begin, 0), rows, p.in.cols());
  group_ = &g;
  rows_ = &p.in;
  return tiles_ = tiles;
}

}  // namespace moe::ops
