#include "model/indexer.h"

#include <algorithm>
#include <array>

namespace moe {

Tensor Indexer::keys(Run& run, Tensor x, const ops::CosSinTable& cos_sin) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const int64_t width = k.value.rows();
  const Tensor made = run.scratch.alloc(x.dtype, {x.rows(), width}),
               normed = run.scratch.alloc(x.dtype, {x.rows(), width});
  ops::matmul_forward(run, made, x, k, all);
  Norm::Saved unused;
  k_norm.forward(run, normed, made, unused);
  ops::rope_acc(run, {normed}, width, cos_sin, false);
  return normed;
}

void Indexer::choose(Run& run, Tensor kept, Tensor x, Tensor from, const Pass& pass,
                     const ops::KvView& keys) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const Tensor queries = run.scratch.alloc(x.dtype, {x.rows(), q.value.rows()}),
               weight = run.scratch.alloc(DType::f32, {x.rows(), weights.value.rows()});
  ops::matmul_forward(run, queries, from, q, all);
  ops::rope_acc(run, {queries}, k.value.rows(), pass.cos_sin, false);
  ops::matmul_forward_f32(run, weight, x, weights, all);
  ops::choose_keys(run, kept, queries, weight, keys, pass.batch.positions);
}

void Indexer::choose_blocks(Run& run, Tensor kept, Tensor x, const Pass& pass,
                            const ops::KvView& keys, int64_t block, int64_t local) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const int64_t width = k.value.rows(), heads = q.value.rows() / width;
  const Tensor made = run.scratch.alloc(x.dtype, {x.rows(), q.value.rows()}),
               queries = run.scratch.alloc(x.dtype, {x.rows(), q.value.rows()});
  ops::matmul_forward(run, made, x, q, all);
  Norm::Saved unused;
  q_norm->forward(run, queries.reshape({x.rows() * heads, width}),
                  made.reshape({x.rows() * heads, width}), unused);
  ops::rope_acc(run, {queries}, width, pass.cos_sin, false);
  ops::choose_blocks(run, kept, queries, keys, pass.batch.positions, block, local);
}

ops::KvView laid_as_kept(Run& run, Tensor keys, std::span<const int64_t> bounds,
                         std::vector<int64_t>& first_row) {
  std::vector<int64_t> row;
  int64_t rows = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    first_row.push_back(rows);
    const int64_t count = bounds[s + 1] - bounds[s];
    for (int64_t n = 0; n < count; ++n) row.push_back(rows + n);
    rows += (count + ops::kKeyBlock - 1) / ops::kKeyBlock * ops::kKeyBlock;
  }
  const Tensor laid =
      run.scratch.alloc(keys.dtype, {rows / ops::kKeyBlock, keys.cols(), ops::kKeyBlock});
  ops::store_keys(run, laid, keys, row);
  return {laid, {}, bounds, first_row};
}

// Each query becomes a sequence of its own, whose keys are copies of those that it sees: so the
// sums of a query that sees all before it are those of attention that is not sparse.
void attend_kept(Run& run, Tensor o, Tensor lse, Tensor q, const ops::KvView& kv, Tensor kept,
                 std::span<const int32_t> positions, int64_t heads, float scale) {
  const int64_t most = std::max(kKeptBytes / bytes_of(kv.k.dtype, kv.k.cols()), kept.cols());
  const int64_t width = kv.k.cols(), value_at = width - kv.v.cols();
  std::vector<int32_t> row, last;
  std::vector<int64_t> first_row, bounds;
  for (int64_t s = 0, n = 0; n < q.rows();) {
    const int64_t begin = n;
    row.clear(), last.clear(), first_row.clear(), bounds.assign(1, 0);
    for (; n < q.rows(); ++n) {
      while (n >= kv.bounds[static_cast<size_t>(s) + 1]) ++s;
      const int64_t count =
          std::min<int64_t>(kept.cols(), positions[static_cast<size_t>(n)] + int64_t{1});
      if (n > begin && std::ssize(row) + count > most) break;
      first_row.push_back(std::ssize(row));
      last.push_back(static_cast<int32_t>(count - 1));
      bounds.push_back(n + 1 - begin);
      for (int64_t i = 0; i < count; ++i)
        row.push_back(static_cast<int32_t>(kv.row(s, kept.row<int32_t>(n)[i])));
    }
    const ArenaScope scope(run.scratch);
    const Tensor keys = run.scratch.alloc(kv.k.dtype, {std::ssize(row), width});
    ops::gather_rows(run, keys, kv.k, row);
    ops::attention_forward(run, o.slice_rows(begin, n),
                           lse.empty() ? lse : lse.slice_rows(begin, n), q.slice_rows(begin, n),
                           {keys, keys.slice_cols(value_at, width), bounds, first_row}, last, heads,
                           1, scale);
  }
}

namespace {

// Of each sequence the blocks of rows that its positions lie in, as a cache has them.
using BlockTables = std::vector<std::vector<int32_t>>;

// Rows of a batch that has no cache, each sequence from a block on: where each comes from, and the
// blocks. What fills the last block of a sequence up is seen by no query.
std::vector<int32_t> rows_in_blocks(std::span<const int64_t> bounds, BlockTables& tables) {
  std::vector<int32_t> from;
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    std::vector<int32_t>& table = tables.emplace_back();
    for (int64_t n = bounds[s]; n < bounds[s + 1]; ++n) {
      if (std::ssize(from) % ops::kKeyBlock == 0)
        table.push_back(static_cast<int32_t>(std::ssize(from) / ops::kKeyBlock));
      from.push_back(static_cast<int32_t>(n));
    }
    while (std::ssize(from) % ops::kKeyBlock != 0) from.push_back(from.back());
  }
  return from;
}

}  // namespace

// Each query becomes a sequence of its own, whose table lists the blocks that it sees: all of them
// whole but the last, in which it stands.
void attend_blocks(Run& run, Tensor o, Tensor q, const ops::KvView& kv, Tensor kept,
                   std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
                   int64_t block, float scale) {
  const ArenaScope scope(run.scratch);
  BlockTables laid;
  Tensor keys = kv.k, values = kv.v;
  if (kv.tables.empty()) {
    const std::vector<int32_t> from = rows_in_blocks(kv.bounds, laid);
    keys = run.scratch.alloc(kv.k.dtype, {std::ssize(from), kv.k.cols()});
    values = run.scratch.alloc(kv.v.dtype, {std::ssize(from), kv.v.cols()});
    ops::gather_rows(run, keys, kv.k, from);
    ops::gather_rows(run, values, kv.v, from);
  }
  const auto slice = [](const Tensor& t, int64_t g, int64_t of) {
    return t.slice_cols(g * t.cols() / of, (g + 1) * t.cols() / of);
  };
  const int64_t choices = kept.cols() / kv_heads, each = block / ops::kKeyBlock;
  std::vector<int32_t> slots, last(static_cast<size_t>(q.rows()));
  std::vector<int64_t> bounds = {0};
  for (int64_t n = 0; n < q.rows(); ++n) {
    slots.push_back(static_cast<int32_t>(n));
    bounds.push_back(n + 1);
  }
  for (int64_t g = 0; g < kv_heads; ++g) {
    BlockTables tables(static_cast<size_t>(q.rows()));
    for (int64_t s = 0; s < kv.sequences(); ++s) {
      const std::span<const int32_t> own =
          kv.tables.empty() ? std::span<const int32_t>(laid[static_cast<size_t>(s)]) : kv.table(s);
      for (int64_t n = kv.bounds[static_cast<size_t>(s)]; n < kv.bounds[static_cast<size_t>(s) + 1];
           ++n) {
        const auto row = static_cast<size_t>(n);
        const int32_t* list = kept.row<int32_t>(n) + g * choices;
        int64_t count = 0;
        for (; count < choices && list[count] >= 0; ++count)
          for (int64_t i = list[count] * each;
               i < std::min((list[count] + 1) * each, std::ssize(own)); ++i)
            tables[row].push_back(own[static_cast<size_t>(i)]);
        last[row] = static_cast<int32_t>((count - 1) * block + positions[row] % block);
      }
    }
    const ops::KvView some{
        slice(keys, g, kv_heads), slice(values, g, kv_heads), bounds, {}, slots, tables};
    ops::attention_forward(run, slice(o, g, kv_heads), {}, slice(q, g, kv_heads), some, last,
                           heads / kv_heads, 1, scale);
  }
}

}  // namespace moe
