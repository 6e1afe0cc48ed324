// The products forward and backward to their rows, over groups of rows. Rows are cut into blocks of at most 256, one multiple of 16 and an exact tail of 1 to
// 15, so that at most 31 primitives exist for each width and dtype; no row is padded. A row's bits do not depend on its block, so any cut is as good as any
// other. A block meets all the matrices it was given with before the next block comes, so that it is read, or summed into, while it is in the cache.
// Weights are packed when their version has moved. No exception leaves a parallel region: Guard carries the first one out.
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/cpu/products.h"

namespace moe::ops {
namespace {

struct Block {
  int64_t group, row, rows;  // rows [row, row + rows) of the whole matrix
};

// Blocks in the order of rows; thread t runs [first[t], first[t + 1]). One share only: each block is run by all threads together.
struct Schedule {
  std::vector<Block> blocks;
  std::vector<size_t> first;
};

void cut_rows(std::vector<Block>& blocks, int64_t group, int64_t begin, int64_t end) {
  while (begin < end) {
    int64_t rows = std::min(kMostRows, end - begin);
    if (rows > kUnit) rows -= rows % kUnit;
    blocks.push_back({group, begin, rows});
    begin += rows;
  }
}

Schedule schedule_rows(int threads, Offsets offsets) {
  int64_t units = 0, groups = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    units += round_up(offsets[e + 1] - offsets[e], kUnit) / kUnit;
    groups += offsets[e + 1] > offsets[e];
  }
  const bool together = groups < 2 * threads && units < 4 * threads;
  const int parts = together ? 1 : threads;
  Schedule schedule;
  schedule.first.push_back(0);
  for (int part = 0; part < parts; ++part) {
    const Span share = partition(units, part, parts);
    int64_t unit = 0;  // of the group's first row
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int64_t rows = offsets[e + 1] - offsets[e], here = round_up(rows, kUnit) / kUnit;
      const int64_t begin = std::clamp<int64_t>(share.begin - unit, 0, here), end = std::clamp<int64_t>(share.end - unit, 0, here);
      cut_rows(schedule.blocks, static_cast<int64_t>(e), offsets[e] + begin * kUnit, offsets[e] + std::min(end * kUnit, rows));
      unit += here;
    }
    schedule.first.push_back(schedule.blocks.size());
  }
  return schedule;
}

// One matrix of a call. Forward it reads the rows all factors share and has an output of its own; backward the other way round.
struct Part {
  Tensor out;  // [R, N]
  Picked in;   // [R, K]
  PackedBank w;
  bool add;
  DType compute;

  bool direct_in() const { return !in.listed() && in.x.dense() && in.x.dtype == compute; }
  // Else the product goes to a dense copy in scratch, because `out` is a slice of columns or of another dtype.
  bool direct_out() const { return out.dense() && (out.dtype == DType::f32 || out.dtype == compute); }
  DType product_dtype() const { return direct_out() ? out.dtype : DType::f32; }
  ProductShape shape(int64_t rows, int threads) const { return {rows, in.cols(), out.cols(), compute, product_dtype(), add && direct_out(), threads}; }
};

// The block's rows of `in` as the product wants them: where they lie, or gathered and converted in scratch.
const void* rows_of(const Part& p, const Block& block, Arena& scratch) {
  if (p.direct_in()) return static_cast<const char*>(p.in.x.data) + block.row * p.in.x.row_bytes;
  void* copy = scratch.alloc_bytes(static_cast<size_t>(block.rows * p.in.cols()) * size_of(p.compute));
  convert_matrix(copy, p.compute, p.in.cols(), source_of(p.in, block.row, 0), block.rows, p.in.cols(), false);
  return copy;
}

void run_part(const Part& p, const Block& block, const Product& product, const void* in, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Tensor out = p.out.slice_rows(block.row, block.row + block.rows);
  void* to = p.direct_out() ? out.data : scratch.alloc_bytes(static_cast<size_t>(block.rows * out.cols()) * sizeof(float));
  product.run(to, in, p.w.data + block.group * p.w.expert_bytes, scratch.alloc_bytes(product.scratch_bytes()));
  if (!p.direct_out()) convert_matrix(out.data, out.dtype, source_of(out).stride, {to, DType::f32, out.cols()}, block.rows, out.cols(), p.add);
}

// `one_in`: all parts read the same rows.
void multiply(Run& run, const std::vector<Part>& parts, bool one_in, Offsets offsets, int threads) {
  const Schedule schedule = schedule_rows(threads, offsets);
  const int shares = static_cast<int>(schedule.first.size()) - 1;
  const int inner_threads = shares == 1 ? threads : 1;
  // Found before the threads start, so that making one is never paid by many; [block, part].
  std::vector<const Product*> products;
  for (const Block& block : schedule.blocks)
    for (const Part& part : parts) products.push_back(&find_product(part.shape(block.rows, inner_threads)));
  const auto run_block = [&](size_t i, Arena& scratch) {
    const ArenaScope scope(scratch);
    const Block& block = schedule.blocks[i];
    const void* in = nullptr;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (p == 0 || !one_in) in = rows_of(parts[p], block, scratch);
      run_part(parts[p], block, *products[i * parts.size() + p], in, scratch);
    }
  };
  if (shares == 1) {
    const ThreadLimit limit(inner_threads);
    for (size_t i = 0; i < schedule.blocks.size(); ++i) run_block(i, run.scratch);
    return;
  }
  parallel_shares(run, shares, [&](size_t share, Arena& scratch) {
    for (size_t i = schedule.first[share]; i < schedule.first[share + 1]; ++i) run_block(i, scratch);
  });
}

// One matrix of a call as the caller gave it.
struct Asked {
  Param& w;
  Tensor out;
  Picked in;
};

// Both directions: `forward` goes from I to O. The first part adds to what stands in its output if `add`; the others do if all share one output.
// `wide`: the product is f32 whatever the input is.
void checked_multiply(Run& run, const char* op, const std::vector<Asked>& asked, Offsets offsets, bool forward, bool add, bool wide = false) {
  choose_isa();
  const char* names[2] = {forward ? "y" : "dx", forward ? "x" : "dy"};
  std::vector<Part> parts;
  int threads = 1;
  for (const Asked& a : asked) {
    const Bank bank = checked_bank(op, a.w);
    const Tensor &out = a.out, &in = a.in.x;
    const bool fits = !out.empty() && !in.empty() && is_float(in) && in.cols() == (forward ? bank.in : bank.out) &&
                      out.cols() == (forward ? bank.out : bank.in) && a.in.rows() == out.rows();
    const bool out_dtype_fits = out.dtype == DType::f32 || (out.dtype == in.dtype && !(forward && add) && !wide);
    need(fits && out_dtype_fits, op,
         forward ? "y [R, O] f32 or x's dtype (f32 to add, or for a product in f32), x [R, I]" : "dx [R, I] f32 or dy's dtype, dy [R, O]",
         {{names[0], out}, {names[1], in}, {a.w.name.c_str(), a.w.value}});
    need_listed(op, a.in);
    check_offsets(op, bank, a.in.rows(), offsets, a.w);
    if (a.in.rows() == 0) return;
    const DType compute = wide ? DType::f32 : compute_dtype(in.dtype);
    parts.push_back({out, a.in, packed_bank(run, a.w, bank, compute, forward), add || (!forward && !parts.empty()), compute});
    threads = std::max(threads, worthy_threads(run, a.in.rows(), bank));
  }
  multiply(run, parts, forward, offsets, threads);
}

}  // namespace

void matmul_forward(Run& run, Tensor y, Picked x, Param& w, Offsets offsets) { checked_multiply(run, "matmul_forward", {{w, y, x}}, offsets, true, false); }

void matmul_forward(Run& run, std::initializer_list<Factor> factors, Picked x, Offsets offsets) {
  std::vector<Asked> asked;
  for (const Factor& f : factors) asked.push_back({f.w, f.y, x});
  checked_multiply(run, "matmul_forward", asked, offsets, true, false);
}

void matmul_forward_f32(Run& run, Tensor y, Picked x, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_forward_f32", {{w, y, x}}, offsets, true, false, true);
}

void matmul_forward_acc(Run& run, Tensor y, Picked x, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_forward_acc", {{w, y, x}}, offsets, true, true);
}

void matmul_dx(Run& run, Tensor dx, Picked dy, Param& w, Offsets offsets) { checked_multiply(run, "matmul_dx", {{w, dx, dy}}, offsets, false, false); }

void matmul_dx(Run& run, Tensor dx, std::initializer_list<Factor> factors, Offsets offsets) {
  std::vector<Asked> asked;
  for (const Factor& f : factors) asked.push_back({f.w, dx, f.y});
  checked_multiply(run, "matmul_dx", asked, offsets, false, false);
}

void matmul_dx_acc(Run& run, Tensor dx, Picked dy, Param& w, Offsets offsets) { checked_multiply(run, "matmul_dx_acc", {{w, dx, dy}}, offsets, false, true); }

}  // namespace moe::ops
