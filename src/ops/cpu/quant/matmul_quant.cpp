// Products with quantised weights over groups of rows: rows of x become records of signed bytes
// once for all matrices and experts of the call, then threads take groups of columns, so that each
// expert's weights are read by one thread once, whether it has one row or hundreds. Many rows
// become tiles of bf16 instead where the machine has them: those that all of a call's products read
// once for all, an expert's own by the thread that multiplies them.
#include <algorithm>
#include <optional>

#include "ops/cpu/gemm/parts.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/quant/quant_product.h"

namespace moe::ops {
namespace {

bool in_tiles(const Group& g) { return g.end - g.begin >= kFewestTiledRows && has_tiles(); }

// What a group of columns costs a group of rows, in rows of records: of these what fetching costs
// comes on top, of tiles what unpacking does, and 16 rows are multiplied like two and a half.
int64_t cost_of(const Group& g) {
  const int64_t rows = g.end - g.begin;
  return in_tiles(g) ? 14 + round_up(rows, kTiledRows) * 5 / 32 : rows + 8;
}

// The records that rows of the call are read from: row r is record row[r], or r without a list.
struct Records {
  const char* data;
  int64_t bytes;  // of one
  const int32_t* row;
};

// Rows of all calls as records. What was made of a tensor serves every product that reads it.
class RecordedRows {
 public:
  explicit RecordedRows(Run& run) : run_(run) {}

  Records of(const GatheredRows& x) {
    // A token that several experts take, or one that all take, is quantised once.
    const bool all = !x.listed() || x.rows() >= x.x.rows();
    const GatheredRows read = all ? GatheredRows(x.x) : x;
    const int64_t bytes = static_cast<int64_t>(quant_rows_bytes(1, x.cols()));
    return {records_of(read), bytes, all && x.listed() ? x.row.data() : nullptr};
  }

 private:
  struct Made {
    GatheredRows of;
    const char* records;
  };

  const char* records_of(const GatheredRows& x) {
    const int64_t rows = x.rows(), in = x.cols();
    for (const auto& [of, records] : made_)
      if (same_rows(of, x)) return records;
    auto* records = static_cast<char*>(run_.scratch.alloc_bytes(quant_rows_bytes(rows, in)));
    const Source source = source_of(x, 0, 0);
    parallel_for(run_.threads, rows, row_grain(in), [&](int64_t begin, int64_t end, int) {
      quant_rows(records, source, in, {begin, end});
    });
    made_.push_back({x, records});
    return records;
  }

  Run& run_;
  std::vector<Made> made_;
};

// Rows of calls as tiles. What was made of rows serves every product that reads them.
class TiledRows {
 public:
  explicit TiledRows(Run& run) : run_(run) {}

  // Null where the group is not all of the rows.
  const char* of(const GatheredRows& x, const Group& g) {
    if (g.begin != 0 || g.end != x.rows()) return nullptr;
    for (const auto& [of, tiles] : made_)
      if (same_rows(of, x)) return tiles;
    const int64_t in = x.cols(), unit_bytes = tiled_bytes(kTiledRows, in);
    auto* tiles = static_cast<char*>(
        run_.scratch.alloc_bytes(static_cast<size_t>(tiled_bytes(x.rows(), in))));
    parallel_for(run_.threads, g.units(), std::max<int64_t>(1, row_grain(in) / kTiledRows),
                 [&](int64_t begin, int64_t end, int) {
                   const int64_t row = begin * kTiledRows;
                   tile_rows(tiles + begin * unit_bytes, source_of(x, row, 0),
                             std::min(end * kTiledRows, x.rows()) - row, in);
                 });
    made_.push_back({x, tiles});
    return tiles;
  }

 private:
  struct Made {
    GatheredRows of;
    const char* tiles;
  };

  Run& run_;
  std::vector<Made> made_;
};

// Units are groups of columns.
struct QuantStretch : Stretch {
  Records x;  // unless in tiles
  bool in_tiles;
  const char* tiles;  // null: made by the thread

  // Null where the expert is not packed.
  const char* panels() const { return part->w.at(group->expert); }
};

// What a thread has for its stretches.
struct OfThread {
  Arena& scratch;
  std::optional<TilesOfThread> tiles;
  void* product = nullptr;  // scratch of quant_multiply_tiles()
};

// These panels with the columns that they hold, as a matrix by itself; `columns` among its own.
void run_panels(const QuantStretch& s, const QuantOut& out, const char* panels, int64_t out_cols,
                Span columns, QuantNext next, OfThread& mine) {
  const Part& p = *s.part;
  const int64_t row = s.group->begin, rows = s.group->end - row;
  if (s.in_tiles)
    return quant_multiply_tiles(out, s.tiles, rows, panels, p.w.dtype, out_cols, p.w.bank.in,
                                columns, next, mine.product);
  const bool listed = s.x.row != nullptr;
  quant_multiply(out, listed ? s.x.data : s.x.data + row * s.x.bytes,
                 listed ? s.x.row + row : nullptr, rows, panels, p.w.dtype, out_cols, p.w.bank.in,
                 columns, next);
}

// Bytes of panels that are packed in passing and multiplied together.
constexpr int64_t kPassingPanels = int64_t{128} << 10;

void run_passing(const QuantStretch& s, QuantOut out, Span columns, OfThread& mine) {
  const CallWeight& w = s.part->w;
  const int64_t bytes = piece_bytes(w), together = std::max<int64_t>(2, kPassingPanels / bytes);
  const ArenaScope scope(mine.scratch);
  auto* panels =
      static_cast<char*>(mine.scratch.alloc_bytes(static_cast<size_t>(together * bytes)));
  char* const data = static_cast<char*>(out.data);
  for (int64_t begin = columns.begin; begin < columns.end; begin += together) {
    const int64_t count = std::min(together, columns.end - begin), first = begin * kQuantColumns;
    for (int64_t i = 0; i < count; ++i)
      pack_piece(panels + i * bytes, w, s.group->expert, begin + i, mine.scratch);
    out.data = data + first * element_size(out.dtype);
    run_panels(s, out, panels, w.bank.out - first, {0, count}, {}, mine);
  }
}

void run_stretch(QuantStretch s, Span columns, QuantNext next, OfThread& mine) {
  if (s.in_tiles && s.tiles == nullptr) s.tiles = mine.tiles->of(*s.part, *s.group);
  const Tensor& to = s.part->out;
  const QuantOut out{static_cast<char*>(to.data) + s.group->begin * to.row_bytes, to.dtype,
                     to.row_bytes / element_size(to.dtype), s.part->add};
  if (s.panels() == nullptr) return run_passing(s, out, columns, mine);
  run_panels(s, out, s.panels(), s.part->w.bank.out, columns, next, mine);
}

// A pair of groups is multiplied together.
QuantNext first_panels(const QuantStretch& s, Span columns) {
  if (s.panels() == nullptr) return {};
  const int64_t bytes = piece_bytes(s.part->w);
  return {s.panels() + columns.begin * bytes,
          std::min<int64_t>(2, columns.end - columns.begin) * bytes};
}

void run_share(std::span<const QuantStretch> stretches, Span share, Arena& scratch) {
  const ArenaScope scope(scratch);
  OfThread mine{scratch, {}};
  if (std::any_of(stretches.begin(), stretches.end(),
                  [](const QuantStretch& s) { return s.in_tiles; })) {
    mine.product = scratch.alloc_bytes(quant_tiles_scratch_bytes());
    mine.tiles.emplace(scratch);
  }
  // The first stretch from i on that has columns in the share.
  const auto from = [&](size_t i) {
    while (i < stretches.size() && stretches[i].in(share).begin == stretches[i].in(share).end) ++i;
    return i;
  };
  for (size_t i = from(0), then; i < stretches.size(); i = then) {
    then = from(i + 1);
    run_stretch(stretches[i], stretches[i].in(share),
                then < stretches.size() ? first_panels(stretches[then], stretches[then].in(share))
                                        : QuantNext{},
                mine);
  }
}

}  // namespace

bool quantised_products_in_tiles() { return has_tiles(); }

void multiply_quantised(Run& run, std::span<const Meeting> meetings) {
  const ArenaScope scope(run.scratch);
  RecordedRows records(run);
  TiledRows tiles(run);
  std::vector<QuantStretch> stretches;
  stretches.reserve(meetings.size());
  int64_t total = 0;
  for (const auto& [p, g] : meetings) {
    const Bank& bank = p->w.bank;
    QuantStretch s{
        {p, g, quant_groups(bank.out), cost_of(*g) * bank.in, total}, {}, in_tiles(*g), nullptr};
    if (s.in_tiles) s.tiles = tiles.of(p->in, *g);
    else s.x = records.of(p->in);
    stretches.push_back(s);
    total = s.end();
  }
  // cost of 64 Ki numbers of weights, about 5 microseconds
  constexpr int64_t kWorthThreads = int64_t{1} << 16;
  parallel_for(run.threads, run.threads, total < kWorthThreads ? run.threads : 1,
               [&](int64_t begin, int64_t end, int thread) {
                 run_share(stretches, {total * begin / run.threads, total * end / run.threads},
                           run.thread_scratch[static_cast<size_t>(thread)]);
               });
}

}  // namespace moe::ops
