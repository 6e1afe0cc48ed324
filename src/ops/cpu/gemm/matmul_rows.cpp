// The products forward of at most kMostSingleRows rows an expert (row_product.h).
#include <algorithm>

#include "ops/cpu/gemm/parts.h"
#include "ops/cpu/gemm/row_product.h"

namespace moe::ops {
namespace {

// What a single product of few rows needs to know of a part; stretch 0: it cannot do this part.
RowProduct row_product_of(const Part& p) {
  const bool forward = p.w.copy == Copy::forward;
  const bool out_fits = p.out.dtype == DType::f32 || p.out.dtype == p.compute;
  const PackLayout& layout = weights_layout(p.in.cols(), p.out.cols(), p.w.dtype);
  return {.layout = &layout,
          .dtype = p.w.dtype,
          .stretch = forward && !p.add ? row_stretch(layout, p.w.dtype) : 0,
          .row = {},
          .rows = 0,
          .packed = nullptr,
          .out = nullptr,
          .out_dtype = out_fits ? p.out.dtype : DType::f32,
          .out_stride = out_fits ? p.out.row_bytes / element_size(p.out.dtype) : p.out.cols()};
}

// Threads share what run_rows() counts in, of weights that are not packed whole blocks of the
// layout.
struct RowStretch : Stretch {
  RowProduct product;
  bool packed;

  int64_t block() const { return product.layout->n_block; }
  // Columns of a unit.
  int64_t columns() const { return packed ? kRowUnit : std::max(kRowUnit, block()); }
};

RowStretch row_stretch_of(const Meeting& m, int64_t before) {
  const Part& p = *m.part;
  RowStretch s{{&p, m.group, 0, 0, before}, row_product_of(p), p.w.at(m.group->expert) != nullptr};
  if (s.product.stretch == 0) return s;
  s.units = (p.out.cols() + s.columns() - 1) / s.columns();
  s.cost = p.in.cols() * s.columns();
  return s;
}

// These columns, in units of kRowUnit.
void run_columns(const RowStretch& s, RowProduct product, Span columns, Arena& scratch) {
  const Part& p = *s.part;
  if (s.packed) {
    product.packed = p.w.at(s.group->expert);
    return run_rows(product, columns.begin, columns.end);
  }
  const int64_t each = s.columns() / kRowUnit, pieces = s.columns() / s.block(),
                bytes = piece_bytes(p.w);
  const ArenaScope scope(scratch);
  auto* panels = static_cast<char*>(scratch.alloc_bytes(static_cast<size_t>(pieces * bytes)));
  for (int64_t c = columns.begin; c < columns.end; c += each) {
    const int64_t first = c * kRowUnit / s.block(),
                  last = std::min(first + pieces, column_blocks(*product.layout));
    for (int64_t i = first; i < last; ++i)
      pack_piece(panels + (i - first) * bytes, p.w, s.group->expert, i, scratch);
    product.packed = beginning(panels, first * bytes);
    run_rows(product, c, std::min(c + each, columns.end));
  }
}

// Where the output is of a type that the product does not write, its sums wait in scratch.
void run_units(const RowStretch& s, Span units, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Part& p = *s.part;
  const Tensor out = p.out.slice_rows(s.group->begin, s.group->end);
  RowProduct product = s.product;
  product.rows = out.rows();
  const auto* rows = static_cast<const char*>(p.rows_of(s.group->begin, product.rows, scratch));
  for (int64_t r = 0; r < product.rows; ++r)
    product.row[r] = rows + r * p.in.cols() * element_size(p.compute);
  const int64_t each = s.columns(), first = units.begin * each,
                last = std::min(units.end * each, out.cols());
  const Span columns{first / kRowUnit, (last + kRowUnit - 1) / kRowUnit};
  if (product.out_dtype == out.dtype) {
    product.out = out.data;
    return run_columns(s, product, columns, scratch);
  }
  auto* sums = static_cast<float*>(
      scratch.alloc_bytes(static_cast<size_t>(product.rows * out.cols()) * sizeof(float)));
  product.out = sums;
  run_columns(s, product, columns, scratch);
  convert_matrix(out.slice_cols(first, last).data, out.dtype, source_of(out).stride,
                 {sums + first, DType::f32, out.cols()}, product.rows, last - first, false);
}

}  // namespace

bool multiply_rows(Run& run, std::span<const Meeting> meetings) {
  for (const Meeting& m : meetings)
    if (m.group->end - m.group->begin > kMostSingleRows) return false;
  std::vector<RowStretch> stretches;
  stretches.reserve(meetings.size());
  int64_t total = 0, bytes = 0;
  for (const Meeting& m : meetings) {
    stretches.push_back(row_stretch_of(m, total));
    if (stretches.back().product.stretch == 0) return false;
    total = stretches.back().end();
    bytes += static_cast<int64_t>(stretches.back().product.layout->bytes);
  }
  constexpr int64_t kWorthThreads = 256 << 10;
  const int shares = bytes < kWorthThreads ? 1 : run.threads;
  const auto run_share = [&](size_t share, Arena& scratch) {
    const Span mine = partition(total, static_cast<int>(share), shares);
    for (const RowStretch& s : stretches)
      if (const Span units = s.in(mine); units.begin < units.end) run_units(s, units, scratch);
  };
  if (shares == 1) run_share(0, run.scratch);
  else parallel_shares(run, shares, run_share);
  return true;
}

}  // namespace moe::ops
