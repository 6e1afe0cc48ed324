#include "model/compressor.h"

#include <algorithm>
#include <array>

#include "model/indexer.h"

namespace moe {

MadeEntries::MadeEntries(const Batch& batch, int64_t tokens) {
  bounds.push_back(0);
  for (size_t s = 0; s + 1 < batch.bounds.size(); ++s) {
    for (int64_t n = batch.bounds[s]; n < batch.bounds[s + 1]; ++n) {
      const int64_t seen = entries_seen(batch.positions[static_cast<size_t>(n)], tokens);
      if ((batch.positions[static_cast<size_t>(n)] + int64_t{1}) % tokens != 0) continue;
      number.push_back(static_cast<int32_t>(seen - 1));
      first_token.push_back(static_cast<int32_t>((seen - 1) * tokens));
    }
    bounds.push_back(count());
  }
}

void Compressor::forward(Run& run, Tensor x, const Pass& pass, const MadeEntries& made,
                         std::span<float* const> state, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const int64_t width = norm.weight.value.numel();
  for (Tensor* t : {&saved.kv, &saved.gate})
    *t = run.saved.alloc(x.dtype, {x.rows(), kv.value.rows()});
  ops::matmul_forward(run, {{kv, saved.kv}, {gate, saved.gate}}, x, all);
  saved.pooled = saved.entries = {};
  if (made.count() > 0) {
    saved.pooled = run.saved.alloc(x.dtype, {made.count(), width});
    saved.entries = run.saved.alloc(x.dtype, {made.count(), width});
  }
  ops::pool_tokens_forward(run, saved.pooled, saved.kv, saved.gate, bias, parts(),
                           pass.batch.bounds, pass.batch.positions, state);
  if (made.count() == 0) return;
  norm.forward(run, saved.entries, saved.pooled, saved.norm);
  const ArenaScope scope(run.scratch);
  ops::rope_acc(run, {saved.entries}, width,
                ops::cos_sin_table(run, run.scratch, made.first_token, *pass.frequencies), false);
}

void Compressor::backward_acc(Run& run, Tensor dx, Tensor dentries, Tensor x, const Pass& pass,
                              const MadeEntries& made, const Saved& saved) {
  if (made.count() == 0) return;
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor dpooled = like(saved.pooled), dkv = like(saved.kv), dgate = like(saved.gate);
  {
    const ArenaScope turning(run.scratch);
    ops::rope_acc(run, {dentries}, dentries.cols(),
                  ops::cos_sin_table(run, run.scratch, made.first_token, *pass.frequencies), true);
  }
  norm.backward(run, dpooled, dentries, saved.norm);
  ops::pool_tokens_backward(run, dkv, dgate, bias, dpooled, saved.kv, saved.gate, parts(),
                            pass.batch.bounds, pass.batch.positions);
  for (const auto& [w, dy] : {std::pair{&kv, dkv}, {&gate, dgate}}) {
    ops::matmul_dw(run, *w, dy, x, all);
    ops::matmul_dx_acc(run, dx, dy, *w, all);
  }
}

// A token that sees no entry yet is given the first one's place in what chooses, and chooses none.
void EntryIndexer::choose(Run& run, Tensor kept, Tensor x, Tensor from, const Pass& pass,
                          Tensor of_entries, std::span<const int64_t> bounds, int64_t tokens) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const Tensor queries = run.scratch.alloc(x.dtype, {x.rows(), q.value.rows()}),
               weight = run.scratch.alloc(DType::f32, {x.rows(), weights.value.rows()});
  ops::matmul_forward(run, queries, from, q, all);
  ops::rope_acc(run, {queries}, of_entries.cols(), pass.cos_sin, false);
  ops::matmul_forward_f32(run, weight, x, weights, all);
  std::vector<int64_t> first_row;
  const Tensor laid = laid_as_kept(run, of_entries, bounds, first_row).k;
  const auto fill = [&](int64_t n, int32_t with) {
    std::fill_n(kept.row<int32_t>(n), kept.cols(), with);
  };
  // Of a sequence without entries no query is asked: pieces of the batch between such.
  const Batch& batch = pass.batch;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const auto i = static_cast<size_t>(s);
    const int64_t begin = batch.bounds[i], end = batch.bounds[i + 1];
    if (bounds[i] == bounds[i + 1]) {
      for (int64_t n = begin; n < end; ++n) fill(n, -1);
      continue;
    }
    if (begin == end) continue;
    std::vector<int32_t> places;
    for (int64_t n = begin; n < end; ++n)
      places.push_back(static_cast<int32_t>(
          std::max<int64_t>(0, entries_seen(batch.positions[static_cast<size_t>(n)], tokens) - 1)));
    const std::array<int64_t, 2> own = {0, end - begin};
    const std::array<int64_t, 1> first = {first_row[i]};
    ops::choose_keys(run, kept.slice_rows(begin, end), queries.slice_rows(begin, end),
                     weight.slice_rows(begin, end), {laid, {}, own, first}, places);
    for (int64_t n = begin; n < end; ++n)
      if (entries_seen(batch.positions[static_cast<size_t>(n)], tokens) == 0) fill(n, -1);
  }
}

}  // namespace moe
