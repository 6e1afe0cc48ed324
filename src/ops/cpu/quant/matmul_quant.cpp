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

bool same_rows(const GatheredRows& a, const GatheredRows& b) {
  return a.x.data == b.x.data && a.row.data() == b.row.data() && a.rows() == b.rows() &&
         a.cols() == b.cols();
}

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

// Columns of one matrix of one expert, the unit of sharing being a group of columns.
struct Stretch {
  const Part* part;
  const Group* group;
  Records x;  // unless in tiles
  bool in_tiles;
  const char* tiles;  // null: made by the thread
  int64_t cost;       // of one group of columns
  int64_t before;     // of all earlier stretches

  int64_t columns() const { return quant_groups(part->w.bank.out); }
  int64_t end() const { return before + cost * columns(); }
  // The columns that begin in a share of all costs.
  Span in(Span share) const {
    const auto column = [&](int64_t at) {
      return at <= before ? 0 : std::min((at - before + cost - 1) / cost, columns());
    };
    return {column(share.begin), column(share.end)};
  }
  const char* panel(int64_t column) const {
    return part->w.at(group->expert) +
           column * static_cast<int64_t>(quant_group_bytes(part->w.dtype, part->w.bank.in));
  }
};

// Of one thread: the tiles of the rows that its stretches meet, made when they come, and scratch.
class TilesOfThread {
 public:
  explicit TilesOfThread(Arena& scratch)
      : scope_(scratch),
        scratch_(scratch),
        product_(scratch.alloc_bytes(quant_tiles_scratch_bytes())),
        mark_(scratch.mark()) {}

  void* product_scratch() const { return product_; }
  const char* of(const Stretch& s) {
    if (s.tiles != nullptr) return s.tiles;
    const GatheredRows& x = s.part->in;
    // The next matrix often reads the same rows.
    if (s.group == group_ && same_rows(x, *rows_)) return tiles_;
    const int64_t rows = s.group->end - s.group->begin;
    scratch_.rewind(mark_);
    group_ = nullptr;
    auto* tiles =
        static_cast<char*>(scratch_.alloc_bytes(static_cast<size_t>(tiled_bytes(rows, x.cols()))));
    tile_rows(tiles, source_of(x, s.group->begin, 0), rows, x.cols());
    group_ = s.group;
    rows_ = &x;
    return tiles_ = tiles;
  }

 private:
  ArenaScope scope_;
  Arena& scratch_;
  void* product_;
  Arena::Mark mark_;
  TilesInUse in_use_;
  const Group* group_ = nullptr;  // null: there are none
  const GatheredRows* rows_ = nullptr;
  const char* tiles_ = nullptr;
};

void run_stretch(const Stretch& s, Span columns, QuantNext next,
                 std::optional<TilesOfThread>& tiles) {
  const Part& p = *s.part;
  const int64_t row = s.group->begin, rows = s.group->end - row;
  const QuantOut out{static_cast<char*>(p.out.data) + row * p.out.row_bytes, p.out.dtype,
                     p.out.row_bytes / element_size(p.out.dtype), p.add};
  const char* panels = p.w.at(s.group->expert);
  const Bank& bank = p.w.bank;
  if (s.in_tiles)
    return quant_multiply_tiles(out, tiles->of(s), rows, panels, p.w.dtype, bank.out, bank.in,
                                columns, next, tiles->product_scratch());
  const char* records = s.x.row != nullptr ? s.x.data : s.x.data + row * s.x.bytes;
  quant_multiply(out, records, s.x.row != nullptr ? s.x.row + row : nullptr, rows, panels,
                 p.w.dtype, bank.out, bank.in, columns, next);
}

// A pair of groups is multiplied together.
QuantNext first_panels(const Stretch& s, Span columns) {
  const int64_t groups = std::min<int64_t>(2, columns.end - columns.begin);
  return {s.panel(columns.begin), s.panel(columns.begin + groups) - s.panel(columns.begin)};
}

void run_share(std::span<const Stretch> stretches, Span share, Arena& scratch) {
  std::optional<TilesOfThread> tiles;
  if (std::any_of(stretches.begin(), stretches.end(), [](const Stretch& s) { return s.in_tiles; }))
    tiles.emplace(scratch);
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
                tiles);
  }
}

}  // namespace

bool quantised_products_in_tiles() { return has_tiles(); }

void multiply_quantised(Run& run, std::span<const Meeting> meetings) {
  const ArenaScope scope(run.scratch);
  RecordedRows records(run);
  TiledRows tiles(run);
  std::vector<Stretch> stretches;
  stretches.reserve(meetings.size());
  int64_t total = 0;
  for (const auto& [p, g] : meetings) {
    Stretch s{p, g, {}, in_tiles(*g), nullptr, cost_of(*g) * p->w.bank.in, total};
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
