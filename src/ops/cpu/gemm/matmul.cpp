// The products forward and backward to their rows, over groups of rows. Rows are cut into blocks of
// at most 256. For oneDNN, a multiple of 16 and an exact tail of 1 to 15, so that at most 31
// primitives exist for each width and dtype and no row is padded; the engine's own (tile_product.h,
// f32_product.h, bf16_product.h) take any number. A row's bits do not depend on its block, so any
// cut is as good as any other. A block meets all the matrices it was given with before the next
// block comes, so that it is read, or summed into, while it is in the cache. Weights are packed
// when their version has moved, or when rows meet them (weights.h). No exception leaves a parallel
// region: Guard carries the first one out.
#include <vector>

#include "ops/banks.h"
#include "ops/cpu/gemm/bf16_product.h"
#include "ops/cpu/gemm/f32_product.h"
#include "ops/cpu/gemm/low_rank.h"
#include "ops/cpu/gemm/narrow_product.h"
#include "ops/cpu/gemm/parts.h"
#include "ops/cpu/gemm/row_product.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/isa.h"
#include "ops/memory.h"

namespace moe::ops::cpu {
namespace {

struct Block {
  int64_t group, row, rows;  // rows [row, row + rows) of the whole matrix
};

// Blocks in the order of rows; thread t runs [first[t], first[t + 1]). One share only: each block
// is run by all threads together.
struct Schedule {
  std::vector<Block> blocks;
  std::vector<size_t> first;

  int shares() const { return static_cast<int>(first.size()) - 1; }
};

// Of more than `any` rows a tail of less than a unit is a block of its own.
void cut_rows(std::vector<Block>& blocks, int64_t group, int64_t begin, int64_t end, int64_t any) {
  while (begin < end) {
    int64_t rows = std::min(kMostRows, end - begin);
    if (rows > any) rows -= rows % kUnit;
    blocks.push_back({group, begin, rows});
    begin += rows;
  }
}

Schedule schedule_rows(int threads, std::span<const Group> groups, int64_t any) {
  int64_t units = 0;
  for (const Group& g : groups) units += g.units();
  const bool together = static_cast<int64_t>(groups.size()) < 2 * threads && units < 4 * threads;
  const int parts = together ? 1 : threads;
  Schedule schedule;
  schedule.first.push_back(0);
  for (int part = 0; part < parts; ++part) {
    const Span share = partition(units, part, parts);
    int64_t unit = 0;  // of the group's first row
    for (const Group& g : groups) {
      const int64_t here = g.units();
      const int64_t begin = std::clamp<int64_t>(share.begin - unit, 0, here),
                    end = std::clamp<int64_t>(share.end - unit, 0, here);
      cut_rows(schedule.blocks, g.expert, g.begin + begin * kUnit,
               std::min(g.begin + end * kUnit, g.end), any);
      unit += here;
    }
    schedule.first.push_back(schedule.blocks.size());
  }
  return schedule;
}

void run_part(const Part& p, const Block& block, const Product& product, const void* in,
              Arena& scratch) {
  const ArenaScope scope(scratch);
  const Tensor out = p.out.slice_rows(block.row, block.row + block.rows);
  void* to =
      p.direct_out()
          ? out.data
          : scratch.alloc_bytes(static_cast<size_t>(block.rows * out.cols()) * sizeof(float));
  product.run(to, in, p.w.at(block.group), scratch.alloc_bytes(product.scratch_bytes()));
  if (!p.direct_out())
    convert_matrix(out.data, out.dtype, source_of(out).stride, {to, DType::f32, out.cols()},
                   block.rows, out.cols(), p.add);
}

// f(block, its place, scratch) for every block, with as many threads as the schedule has shares, or
// one block after the other where all threads share each.
template <class F>
void each_block(Run& run, const Schedule& schedule, F&& f) {
  if (schedule.shares() == 1) {
    for (size_t i = 0; i < schedule.blocks.size(); ++i) {
      const ArenaScope scope(run.scratch);
      f(schedule.blocks[i], i, run.scratch);
    }
    return;
  }
  parallel_shares(run, schedule.shares(), [&](size_t share, Arena& scratch) {
    for (size_t i = schedule.first[share]; i < schedule.first[share + 1]; ++i) {
      const ArenaScope scope(scratch);
      f(schedule.blocks[i], i, scratch);
    }
  });
}

// `one_in`: all parts read the same rows. layouts [parts]: of their weights, as tiles take them.
void multiply_tiles(Run& run, const std::vector<Part>& parts, bool one_in,
                    std::span<const PackLayout* const> layouts, std::span<const Group> groups,
                    int threads) {
  const Schedule schedule = schedule_rows(threads, groups, kMostRows);
  const int inner_threads = schedule.shares() == 1 ? threads : 1;
  each_block(run, schedule, [&](const Block& block, size_t, Arena& scratch) {
    void* tiles = nullptr;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& p = parts[i];
      if (i == 0 || !one_in) {
        tiles = scratch.alloc_bytes(static_cast<size_t>(tiled_bytes(block.rows, p.in.cols())));
        tile_rows(tiles, source_of(p.in, block.row, 0), block.rows, p.in.cols());
      }
      const Tensor out = p.out.slice_rows(block.row, block.row + block.rows);
      const TileProduct product{layouts[i], block.rows, out.dtype, p.add};
      product.run(out.data, source_of(out).stride, tiles, p.w.at(block.group), scratch,
                  inner_threads);
    }
  });
}

void multiply_blocks(Run& run, const std::vector<Part>& parts, bool one_in,
                     std::span<const Group> groups, int threads) {
  if (const std::vector<const PackLayout*> layouts = tile_layouts(parts); !layouts.empty())
    return multiply_tiles(run, parts, one_in, layouts, groups, threads);

  std::vector<int64_t> stretches;  // [parts]
  int64_t any = kMostRows;         // rows of which all parts take any number
  for (const Part& part : parts) {
    stretches.push_back(fetched_stretch(part.shape(1, 1)));
    if (has_f32_products(part.w.dtype)) continue;
    any = std::min(any, stretches.back() > 0 ? kMostFetchedRows : kUnit);
  }
  const Schedule schedule = schedule_rows(threads, groups, any);
  const int inner_threads = schedule.shares() == 1 ? threads : 1;
  // Found before the threads start, so that making one is never paid by many; [block, part].
  std::vector<const Product*> products;
  for (const Block& block : schedule.blocks)
    for (size_t p = 0; p < parts.size(); ++p) {
      ProductShape shape = parts[p].shape(block.rows, inner_threads);
      if (block.rows <= kMostFetchedRows) shape.stretch = stretches[p];
      products.push_back(&find_product(shape));
    }
  const ThreadLimit limit(inner_threads);
  each_block(run, schedule, [&](const Block& block, size_t place, Arena& scratch) {
    const void* in = nullptr;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (p == 0 || !one_in) in = parts[p].rows_of(block.row, block.rows, scratch);
      run_part(parts[p], block, *products[place * parts.size() + p], in, scratch);
    }
  });
}

void multiply_in_scratch(Run& run, std::vector<Part>& parts, bool one_in,
                         std::span<const Group> groups, int threads) {
  std::vector<CallWeight*> weights;
  std::vector<int64_t> experts;
  for (Part& p : parts) weights.push_back(&p.w);
  for (const Group& g : groups) experts.push_back(g.expert);
  for (size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
    const ArenaScope scope(run.scratch);
    int64_t bytes = 0;
    for (; end < groups.size() && (end == begin || bytes < kPassingBytes); ++end)
      for (const CallWeight* w : weights) bytes += w->expert_bytes;
    pack_into_scratch(run, weights, std::span(experts).subspan(begin, end - begin));
    multiply_blocks(run, parts, one_in, groups.subspan(begin, end - begin), threads);
  }
}

// All parts are quantised, or none is.
void multiply(Run& run, std::vector<Part>& parts, bool one_in, std::span<const Group> groups,
              int threads) {
  std::vector<CallWeight*> weights;
  std::vector<int64_t> experts;
  std::vector<Meeting> meetings;
  meetings.reserve(groups.size() * parts.size());
  for (Part& p : parts) weights.push_back(&p.w);
  for (const Group& g : groups) {
    experts.push_back(g.expert);
    for (const Part& p : parts) meetings.push_back({&p, &g});
  }
  if (meetings.empty()) return;
  pack_within_budget(run, weights, experts);
  if (parts.front().w.copy == Copy::blocks) return multiply_quantised(run, meetings);
  if (multiply_rows(run, meetings)) return;

  std::vector<Group> packed, passing;
  for (const Group& g : groups) {
    const bool is_packed = std::all_of(weights.begin(), weights.end(), [&](const CallWeight* w) {
      return w->at(g.expert) != nullptr;
    });
    (is_packed ? packed : passing).push_back(g);
  }
  if (!packed.empty()) multiply_blocks(run, parts, one_in, packed, threads);
  if (!passing.empty() && !multiply_passing(run, parts, passing, threads))
    multiply_in_scratch(run, parts, one_in, passing, threads);
}

// One matrix of a call as the caller gave it.
struct Asked {
  Param& w;
  Tensor out;
  GatheredRows in;
};

// A call that was checked: the parts whose weights are not quantised, those whose are, and the
// groups that all of them meet.
struct Checked {
  std::vector<Part> parts, quantised;
  std::vector<Group> groups;
  int threads = 1;
};

// Both directions: `forward` goes from I to O. `add`: to what stands in the output. `wide`: the
// product is f32 whatever the input is.
struct Kind {
  const char* op;
  bool forward = true, add = false, wide = false;
};

// Refuses shapes, dtypes and lists that do not fit.
Bank check_asked(const Kind& kind, const Asked& a, Offsets offsets) {
  const auto [op, forward, unused_add, wide] = kind;
  const Bank bank = checked_bank(op, a.w);
  const Tensor &out = a.out, &in = a.in.x;
  const bool fits = !out.empty() && !in.empty() && is_float(in) &&
                    in.cols() == (forward ? bank.in : bank.out) &&
                    out.cols() == (forward ? bank.out : bank.in) && a.in.rows() == out.rows();
  const bool out_dtype_fits = out.dtype == DType::f32 || (out.dtype == in.dtype && !wide);
  need(fits && out_dtype_fits, op,
       forward ? "y [R, O] f32 or x's dtype (f32 for a product in f32), x [R, I]"
               : "dx [R, I] f32 or dy's dtype, dy [R, O]",
       {{forward ? "y" : "dx", out}, {forward ? "x" : "dy", in}, {a.w.name.c_str(), a.w.value}});
  need_listed(op, a.in);
  check_offsets(op, bank, a.in.rows(), offsets, a.w);
  return bank;
}

// Whether w is multiplied as panels of its blocks.
bool in_blocks(const Run& run, const Kind& kind, const Param& w) {
  return kind.forward && !run.widen && is_quantised(w.value.dtype);
}

bool has_term(const Asked& a) { return a.w.term != nullptr; }

// Low-rank terms (low_rank.h) are to be rounded once, together with the product. In training they
// go to the outputs before the products do, which takes no memory; else behind them, to f32, so
// that a row's bits do not depend on how many there are.
bool terms_first(const Run& run, const std::vector<Asked>& asked) {
  return run.widen && std::any_of(asked.begin(), asked.end(), has_term);
}

// The first part adds to what stands in its output if `add`; the others do if all share one output.
Checked check_call(Run& run, const Kind& kind, const std::vector<Asked>& asked, Offsets offsets) {
  choose_isa();
  Checked checked;
  auto& [parts, quantised, groups, threads] = checked;
  const bool after_terms = terms_first(run, asked);
  (!asked.empty() && in_blocks(run, kind, asked.front().w) ? quantised : parts)
      .reserve(asked.size());
  for (const Asked& a : asked) {
    const Bank bank = check_asked(kind, a, offsets);
    if (a.in.rows() == 0) return {};
    const DType compute = kind.wide ? DType::f32 : compute_dtype(a.in.x.dtype);
    if (in_blocks(run, kind, a.w)) {
      quantised.push_back(
          {a.out, a.in, call_weight(run, a.w, Copy::blocks, a.w.value.dtype), kind.add, compute});
    } else {
      const bool add = kind.add || (!kind.forward && !parts.empty()) ||
                       (after_terms && (!kind.forward || a.w.term != nullptr));
      parts.push_back({a.out, a.in,
                       call_weight(run, a.w, kind.forward ? Copy::forward : Copy::backward,
                                   stored_dtype(a.w.value.dtype, compute)),
                       add, compute});
    }
    threads = std::max(threads, worthy_threads(run, a.in.rows(), bank));
  }
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] < offsets[e + 1])
      groups.push_back({static_cast<int64_t>(e), offsets[e], offsets[e + 1]});
  return checked;
}

void multiply_checked(Run& run, Checked& checked, bool forward) {
  for (std::vector<Part>* together : {&checked.parts, &checked.quantised})
    if (!together->empty()) multiply(run, *together, forward, checked.groups, checked.threads);
}

// `written`: whether there is something in the outputs to add to.
void add_terms(Run& run, const Kind& kind, const std::vector<Asked>& asked, Offsets offsets,
               bool written) {
  for (const Asked& a : asked) {
    if (a.w.term == nullptr || a.in.rows() == 0) continue;
    if (kind.forward) {
      term_forward(run, a.out, a.in, *a.w.term, offsets, {.add = written, .wide = kind.wide});
    } else {
      term_backward(run, a.out, a.in, *a.w.term, offsets, written);
      written = true;  // one output for all
    }
  }
}

// A quantised matrix of which a widened copy would take more is multiplied in slices of its rows.
constexpr int64_t kWidenedBytes = int64_t{8} << 20;

int64_t slice_rows(const Run& run, const Kind& kind, const std::vector<Asked>& asked) {
  if (asked.size() != 1) return 0;
  const Param& w = asked[0].w;
  if (w.value.rank != 2 || !is_quantised(w.value.dtype) || in_blocks(run, kind, w)) return 0;
  const int64_t row = w.value.cols() * element_size(compute_dtype(asked[0].in.x.dtype)),
                step = std::max<int64_t>(64, kWidenedBytes / row / 64 * 64);
  return step < w.value.rows() ? step : 0;
}

void checked_multiply(Run& run, const Kind& kind, const std::vector<Asked>& asked, Offsets offsets);

void multiply_slices(Run& run, const Kind& kind, const Asked& a, Offsets offsets, int64_t step) {
  for (int64_t begin = 0; begin < a.w.value.rows(); begin += step) {
    const int64_t end = std::min(begin + step, a.w.value.rows());
    Param slice;
    slice.name = a.w.name;
    slice.bind(a.w.value.slice_rows(begin, end));
    Kind of_slice = kind;
    Asked part{slice, a.out, a.in};
    if (kind.forward) {
      part.out = a.out.slice_cols(begin, end);
    } else {
      part.in.x = a.in.x.slice_cols(begin, end);
      of_slice.add = kind.add || begin > 0;
    }
    checked_multiply(run, of_slice, {part}, offsets);
  }
}

// Outputs of which a term is a part are f32 until it is in them.
void multiply_wide(Run& run, const Kind& kind, const std::vector<Asked>& asked, Offsets offsets) {
  std::vector<Asked> wide = asked;
  for (Asked& a : wide)
    if (has_term(a)) a.out = run.scratch.alloc(DType::f32, {a.out.rows(), a.out.cols()});
  checked_multiply(run, kind, wide, offsets);
  for (size_t i = 0; i < wide.size(); ++i)
    if (has_term(wide[i])) cast(run, asked[i].out, wide[i].out);
}

void checked_multiply(Run& run, const Kind& kind, const std::vector<Asked>& asked,
                      Offsets offsets) {
  const ArenaScope scope(run.scratch);
  if (const int64_t step = slice_rows(run, kind, asked); step > 0) {
    check_asked(kind, asked[0], offsets);
    multiply_slices(run, kind, asked[0], offsets, step);
    return add_terms(run, kind, asked, offsets, true);
  }
  if (terms_first(run, asked)) {
    Checked checked = check_call(run, kind, asked, offsets);
    add_terms(run, kind, asked, offsets, kind.add);
    return multiply_checked(run, checked, kind.forward);
  }
  if (kind.forward && !kind.add && std::any_of(asked.begin(), asked.end(), [](const Asked& a) {
        return has_term(a) && a.out.dtype != DType::f32;
      }))
    return multiply_wide(run, kind, asked, offsets);
  Checked checked = check_call(run, kind, asked, offsets);
  multiply_checked(run, checked, kind.forward);
  add_terms(run, kind, asked, offsets, true);
}

// All of the calls' products at once, where all are of one kind and are quantised or have few rows;
// else nothing is multiplied.
bool multiply_together(Run& run, std::vector<Checked>& calls) {
  std::vector<Meeting> meetings;
  bool quantised = false, plain = false;
  for (Checked& call : calls) {
    quantised = quantised || !call.quantised.empty();
    plain = plain || !call.parts.empty();
  }
  if (quantised && plain) return false;
  for (Checked& call : calls) {
    std::vector<Part>& parts = quantised ? call.quantised : call.parts;
    std::vector<CallWeight*> weights;
    std::vector<int64_t> experts;
    for (Part& p : parts) weights.push_back(&p.w);
    for (const Group& g : call.groups) {
      if (!quantised && g.end - g.begin > kMostSingleRows) return false;
      experts.push_back(g.expert);
    }
    pack_within_budget(run, weights, experts);
    for (const Group& g : call.groups)
      for (const Part& p : parts) meetings.push_back({&p, &g});
  }
  if (meetings.empty()) return true;
  if (!quantised) return multiply_rows(run, meetings);
  multiply_quantised(run, meetings);
  return true;
}

// All of the matrices meet the same rows.
void let_observe(Run& run, const std::vector<Asked>& asked, Offsets offsets) {
  if (run.observer == nullptr || asked.empty()) return;
  std::vector<const Param*> weights;
  for (const Asked& a : asked) weights.push_back(&a.w);
  run.observer->observe(run, weights, asked[0].in, offsets);
}

void multiply_forward(Run& run, const Kind& kind, const std::vector<Asked>& asked,
                      Offsets offsets) {
  let_observe(run, asked, offsets);
  checked_multiply(run, kind, asked, offsets);
}

}  // namespace

void matmul_forward(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  multiply_forward(run, {"matmul_forward"}, {{w, y, x}}, offsets);
}

void matmul_forward(Run& run, List<Operand> operands, GatheredRows x, Offsets offsets) {
  std::vector<Asked> asked;
  asked.reserve(operands.size());
  for (const Operand& o : operands) asked.push_back({o.w, o.y, x});
  multiply_forward(run, {"matmul_forward"}, asked, offsets);
}

namespace {

void multiply_banks(Run& run, std::span<const BankOperands> banks) {
  const ArenaScope scope(run.scratch);
  constexpr Kind kind{"matmul_forward"};
  std::vector<Checked> calls;
  std::vector<std::vector<Asked>> asked(banks.size());
  bool any_term = false;
  calls.reserve(banks.size());
  for (size_t i = 0; i < banks.size(); ++i) {
    asked[i].reserve(banks[i].operands.size());
    for (const Operand& o : banks[i].operands) asked[i].push_back({o.w, o.y, banks[i].x});
    for (const Operand& o : banks[i].operands) any_term = any_term || o.w.term != nullptr;
    let_observe(run, asked[i], banks[i].offsets);
  }
  if (any_term) {
    for (size_t i = 0; i < banks.size(); ++i)
      checked_multiply(run, kind, asked[i], banks[i].offsets);
    return;
  }
  for (size_t i = 0; i < banks.size(); ++i)
    calls.push_back(check_call(run, kind, asked[i], banks[i].offsets));
  if (calls.size() > 1 && multiply_together(run, calls)) return;
  for (Checked& call : calls) multiply_checked(run, call, true);
}

}  // namespace

void matmul_forward_banks(Run& run, std::span<const BankOperands> banks) {
  multiply_banks(run, banks);
  for (const BankOperands& bank : banks)
    if (const std::optional<BankHidden>& h = bank.hidden)
      ffn_act_forward(run, h->y, bank.operands.size() > 1 ? bank.operands[0].y : Tensor{},
                      bank.operands.back().y, h->weight, h->act);
}

void matmul_forward_acc(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  multiply_forward(run, {.op = "matmul_forward_acc", .add = true}, {{w, y, x}}, offsets);
}

void matmul_forward_f32(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  const Kind kind{.op = "matmul_forward_f32", .wide = true};
  if (w.value.rank != 2 || w.value.rows() > kMostNarrowColumns || is_quantised(w.value.dtype) ||
      w.term != nullptr)
    return checked_multiply(run, kind, {{w, y, x}}, offsets);
  const Bank bank = check_asked(kind, {w, y, x}, offsets);
  parallel_for(run.threads, x.rows(), row_grain(bank.in * bank.out),
               [&](int64_t begin, int64_t end, int) {
                 narrow_multiply(y, x, w.expert(0), {begin, end});
               });
}

void matmul_dx(Run& run, Tensor dx, GatheredRows dy, Param& w, Offsets offsets) {
  checked_multiply(run, {.op = "matmul_dx", .forward = false}, {{w, dx, dy}}, offsets);
}

void matmul_dx(Run& run, Tensor dx, List<Operand> operands, Offsets offsets) {
  std::vector<Asked> asked;
  for (const Operand& o : operands) asked.push_back({o.w, dx, o.y});
  checked_multiply(run, {.op = "matmul_dx", .forward = false}, asked, offsets);
}

void matmul_dx_acc(Run& run, Tensor dx, GatheredRows dy, Param& w, Offsets offsets) {
  checked_multiply(run, {.op = "matmul_dx_acc", .forward = false, .add = true}, {{w, dx, dy}},
                   offsets);
}

}  // namespace moe::ops::cpu
