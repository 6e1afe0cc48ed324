// Products with quantised weights over groups of rows: rows of x become records of signed bytes
// once for all matrices and experts of the call, then threads take groups of columns, so that each
// expert's weights are read by one thread once, whether it has one row or hundreds.
#include <algorithm>

#include "ops/cpu/gemm/parts.h"
#include "ops/cpu/quant/quant_product.h"

namespace moe::ops {
namespace {

// What fetching a group of columns costs beside multiplying it, in rows.
constexpr int64_t kFetchRows = 8;

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
      if (of.x.data == x.x.data && of.row.data() == x.row.data() && of.rows() == rows &&
          of.cols() == in)
        return records;
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

// Columns of one matrix of one expert, the unit of sharing being a group of columns.
struct Stretch {
  const Part* part;
  const Group* group;
  Records x;
  int64_t cost;    // of one group of columns
  int64_t before;  // of all earlier stretches

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

void run_stretch(const Stretch& s, Span columns, QuantNext next) {
  const Part& p = *s.part;
  const int64_t row = s.group->begin;
  const QuantOut out{static_cast<char*>(p.out.data) + row * p.out.row_bytes, p.out.dtype,
                     p.out.row_bytes / element_size(p.out.dtype), p.add};
  const char* records = s.x.row != nullptr ? s.x.data : s.x.data + row * s.x.bytes;
  quant_multiply(out, records, s.x.row != nullptr ? s.x.row + row : nullptr, s.group->end - row,
                 p.w.at(s.group->expert), p.w.dtype, p.w.bank.out, p.w.bank.in, columns, next);
}

// A pair of groups is multiplied together.
QuantNext first_panels(const Stretch& s, Span columns) {
  const int64_t groups = std::min<int64_t>(2, columns.end - columns.begin);
  return {s.panel(columns.begin), s.panel(columns.begin + groups) - s.panel(columns.begin)};
}

void run_share(std::span<const Stretch> stretches, Span share) {
  // The first stretch from i on that has columns in the share.
  const auto from = [&](size_t i) {
    while (i < stretches.size() && stretches[i].in(share).begin == stretches[i].in(share).end) ++i;
    return i;
  };
  for (size_t i = from(0), then; i < stretches.size(); i = then) {
    then = from(i + 1);
    run_stretch(stretches[i], stretches[i].in(share),
                then < stretches.size() ? first_panels(stretches[then], stretches[then].in(share))
                                        : QuantNext{});
  }
}

}  // namespace

void multiply_quantised(Run& run, std::span<const Meeting> meetings) {
  const ArenaScope scope(run.scratch);
  RecordedRows rows(run);
  std::vector<Stretch> stretches;
  stretches.reserve(meetings.size());
  int64_t total = 0;
  for (const auto& [p, g] : meetings) {
    stretches.push_back(
        {p, g, rows.of(p->in), (g->end - g->begin + kFetchRows) * p->w.bank.in, total});
    total = stretches.back().end();
  }
  // cost of 64 Ki numbers of weights, about 5 microseconds
  constexpr int64_t kWorthThreads = int64_t{1} << 16;
  parallel_for(run.threads, run.threads, total < kWorthThreads ? run.threads : 1,
               [&](int64_t begin, int64_t end, int) {
                 run_share(stretches, {total * begin / run.threads, total * end / run.threads});
               });
}

}  // namespace moe::ops
