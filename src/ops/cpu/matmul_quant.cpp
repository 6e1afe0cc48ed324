// Products with quantised weights over groups of rows: rows of x become records of signed bytes once for all matrices and experts of the call, then threads
// take groups of columns, so that each expert's weights are read by one thread once, whether it has one row or hundreds.
#include <algorithm>

#include "ops/cpu/parts.h"
#include "ops/cpu/quant_product.h"

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

Records quantised_rows(Run& run, const Picked& x) {
  // A token that several experts take is quantised once.
  const bool all = x.listed() && x.rows() >= x.x.rows();
  const int64_t rows = all ? x.x.rows() : x.rows(), in = x.cols();
  auto* records = static_cast<char*>(run.scratch.alloc_bytes(quant_rows_bytes(rows, in)));
  const Source source = source_of(all ? Picked(x.x) : x, 0, 0);
  parallel_for(run.threads, rows, row_grain(in), [&](int64_t begin, int64_t end, int) { quant_rows(records, source, in, {begin, end}); });
  return {records, static_cast<int64_t>(quant_rows_bytes(1, in)), all ? x.row.data() : nullptr};
}

// Columns of one matrix of one expert, the unit of sharing being a group of columns.
struct Stretch {
  const Part* part;
  const Group* group;
  size_t records;  // those that its rows are read from
  int64_t cost;    // of one group of columns
  int64_t before;  // of all earlier stretches
  int64_t columns() const { return quant_groups(part->w.bank.out); }
};

void run_stretch(const Stretch& s, const Records& x, Span columns) {
  const Part& p = *s.part;
  const int64_t row = s.group->begin;
  const QuantOut out{static_cast<char*>(p.out.data) + row * p.out.row_bytes, p.out.dtype, p.out.row_bytes / element_size(p.out.dtype), p.add};
  const char* records = x.row != nullptr ? x.data : x.data + row * x.bytes;
  quant_multiply(out, records, x.row != nullptr ? x.row + row : nullptr, s.group->end - row, p.w.at(s.group->expert), p.w.dtype, p.w.bank.out, p.w.bank.in,
                 columns);
}

}  // namespace

void multiply_quantised(Run& run, std::span<const Meeting> meetings) {
  const ArenaScope scope(run.scratch);
  std::vector<Records> records;
  std::vector<const Picked*> inputs;  // what `records` were made of
  std::vector<Stretch> stretches;
  int64_t total = 0;
  for (const auto& [p, g] : meetings) {
    const auto same = [&in = p->in](const Picked* known) { return known->x.data == in.x.data && known->row.data() == in.row.data(); };
    const auto known = static_cast<size_t>(std::find_if(inputs.begin(), inputs.end(), same) - inputs.begin());
    if (known == inputs.size()) {
      inputs.push_back(&p->in);
      records.push_back(quantised_rows(run, p->in));
    }
    stretches.push_back({p, g, known, (g->end - g->begin + kFetchRows) * p->w.bank.in, total});
    total += stretches.back().cost * stretches.back().columns();
  }
  constexpr int64_t kWorthThreads = int64_t{1} << 16;  // cost of 64 Ki numbers of weights, about 5 microseconds
  parallel_for(run.threads, run.threads, total < kWorthThreads ? run.threads : 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = total * begin / run.threads, last = total * end / run.threads;
    for (const Stretch& s : stretches) {
      const auto column = [&](int64_t cost) { return std::clamp<int64_t>((cost - s.before + s.cost - 1) / s.cost, 0, s.columns()); };
      const Span mine{first <= s.before ? 0 : column(first), last <= s.before ? 0 : column(last)};
      if (mine.begin < mine.end) run_stretch(s, records[s.records], mine);
    }
  });
}

}  // namespace moe::ops
