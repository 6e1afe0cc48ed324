// What is apart of attention whose latents are the one key and value of all heads (DeepSeek-V4,
// arXiv 2606.19348, section 2.3; transformers:deepseek_v4/modeling_deepseek_v4.py,
// DeepseekV4Attention): what heads give is turned back, as values are turned like keys, goes
// through matrices of parts of the heads, and comes of entries too.
#include <algorithm>
#include <array>

#include "model/attention.h"

namespace moe {
namespace {

// Rows of heads, or of parts of them, of all tokens, sorted by head: where each is, and back.
std::vector<int32_t> transposed_rows(int64_t rows, int64_t cols) {
  std::vector<int32_t> list;
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r) list.push_back(static_cast<int32_t>(r * cols + c));
  return list;
}

}  // namespace

RowsByPart::RowsByPart(int64_t tokens, int64_t parts)
    : sorted(transposed_rows(tokens, parts)), back(transposed_rows(parts, tokens)) {
  for (int64_t part = 0; part <= parts; ++part) offsets.push_back(part * tokens);
}

void Attention::turn_back(Run& run, Tensor o, const Pass& pass, bool inverse) const {
  ops::rope_acc(run, {o}, shape.key_width, shape.window_turns ? pass.window_cos_sin : pass.cos_sin,
                !inverse);
}

Tensor Attention::turned_back(Run& run, const Pass& pass, const Saved& saved) const {
  const Tensor turned = run.scratch.alloc(saved.o.dtype, {saved.o.rows(), saved.o.cols()});
  ops::cast(run, turned, saved.o);
  turn_back(run, turned, pass, false);
  return turned;
}

void Attention::project_shared(Run& run, const Pass& pass, Saved& saved) {
  Tensor whole;
  saved.q = finish(run, saved.q, {}, q_norm, saved.q_norm, whole);
  saved.k = saved.v = saved.latents.kv;
  ops::rope_acc(run, {saved.q, saved.k}, shape.key_width,
                shape.window_turns ? pass.window_cos_sin : pass.cos_sin, false);
}

// What the projection back takes, in scratch, or in run.saved where it is made narrower.
Tensor Attention::narrowed(Run& run, Tensor o, Saved& saved) {
  if (!o_a.present()) return o;
  const int64_t tokens = o.rows(), parts = shape.latent.out_groups, rows = tokens * parts;
  const RowsByPart by_part(tokens, parts);
  saved.narrowed = run.saved.alloc(o.dtype, {tokens, shape.out_width()});
  const ArenaScope scope(run.scratch);
  const Tensor made = run.scratch.alloc(o.dtype, {rows, shape.latent.out_width});
  ops::matmul_forward(run, made, {o.reshape({rows, o.cols() / parts}), by_part.sorted}, o_a,
                      by_part.offsets);
  ops::gather_rows(run, saved.narrowed.reshape({rows, made.cols()}), made, by_part.back);
  return saved.narrowed;
}

void Attention::narrowed_backward(Run& run, Tensor do_, Tensor dnarrowed, Tensor turned) {
  const int64_t tokens = do_.rows(), parts = shape.latent.out_groups, rows = tokens * parts,
                width = do_.cols() / parts;
  const RowsByPart by_part(tokens, parts);
  const ArenaScope scope(run.scratch);
  const ops::GatheredRows dmade(dnarrowed.reshape({rows, shape.latent.out_width}), by_part.sorted);
  ops::matmul_dw(run, o_a, dmade, {turned.reshape({rows, width}), by_part.sorted}, by_part.offsets);
  const Tensor sorted = run.scratch.alloc(do_.dtype, {rows, width});
  ops::matmul_dx(run, sorted, dmade, o_a, by_part.offsets);
  ops::gather_rows(run, do_.reshape({rows, width}), sorted, by_part.back);
}

// From dy the gradient of what heads gave, before it was turned back.
void Attention::out_shared_backward(Run& run, Tensor do_, Tensor dy, const Pass& pass,
                                    const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, dy.rows()};
  const Tensor turned = turned_back(run, pass, saved);
  if (o_a.present()) {
    const Tensor dnarrowed = run.scratch.alloc(do_.dtype, {dy.rows(), shape.out_width()});
    ops::matmul_dx(run, dnarrowed, dy, o, all);
    ops::matmul_dw(run, o, dy, saved.narrowed, all);
    narrowed_backward(run, do_, dnarrowed, turned);
  } else {
    ops::matmul_dx(run, do_, dy, o, all);
    ops::matmul_dw(run, o, dy, turned, all);
  }
  turn_back(run, do_, pass, true);
}

namespace {

// Where the entries of each sequence of a batch lie, those of s from bounds[s] on.
struct EntryPlaces {
  std::vector<int64_t> bounds = {0};
  std::vector<int32_t> row;
  int64_t most = 0;  // that a token sees
};

// Those that have their last token no later than the sequence's last in the batch.
EntryPlaces places_of(const Batch& batch, int64_t tokens, int64_t layer, const KvCache* cache,
                      const MadeEntries& made) {
  EntryPlaces places;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t end = batch.bounds[static_cast<size_t>(s) + 1];
    int64_t count = 0;
    if (end > batch.bounds[static_cast<size_t>(s)])
      count = entries_seen(batch.positions[static_cast<size_t>(end) - 1], tokens);
    places.most = std::max(places.most, count);
    for (int64_t e = 0; e < count; ++e)
      places.row.push_back(static_cast<int32_t>(
          cache != nullptr ? cache->entry_row(layer, batch.slots[static_cast<size_t>(s)], e)
                           : made.bounds[static_cast<size_t>(s)] + e));
    places.bounds.push_back(std::ssize(places.row));
  }
  return places;
}

// All that each token sees, by their numbers in the sequence.
void keep_all(Tensor kept, const Batch& batch, int64_t tokens) {
  for (int64_t n = 0; n < kept.rows(); ++n) {
    const int64_t seen = entries_seen(batch.positions[static_cast<size_t>(n)], tokens);
    for (int64_t i = 0; i < kept.cols(); ++i)
      kept.row<int32_t>(n)[i] = i < seen ? static_cast<int32_t>(i) : -1;
  }
}

}  // namespace

void Attention::make_entries(Run& run, Tensor x, const Pass& pass, int64_t layer, Saved& saved) {
  const Batch& batch = pass.batch;
  const MadeEntries made(batch, shape.entries.tokens);
  std::vector<float*> states;
  if (pass.cache) states = pass.cache->states(layer, batch);
  entries->forward(run, x, pass, made, states, saved.entries);
  for (float*& state : states) state += shape.entries.parts() * entries->bias.value.numel() * 2;
  if (entry_indexer) entry_indexer->keys.forward(run, x, pass, made, states, saved.index);
  if (pass.cache && made.count() > 0)
    pass.cache->store_entries(run, layer, batch, made, saved.entries.entries, saved.index.entries);
  const EntryPlaces places = places_of(batch, shape.entries.tokens, layer, pass.cache, made);
  if (places.most == 0) return;
  const int64_t top = shape.entries.top;
  saved.kept =
      run.saved.alloc(DType::i32, {x.rows(), top > 0 ? std::min(top, places.most) : places.most});
  if (top == 0 || places.most <= top) {
    keep_all(saved.kept, batch, shape.entries.tokens);
  } else {
    const ArenaScope scope(run.scratch);
    Tensor keys = saved.index.entries;
    if (pass.cache) {
      const Tensor all = pass.cache->index_entries(layer);
      keys = run.scratch.alloc(all.dtype, {std::ssize(places.row), all.cols()});
      ops::gather_rows(run, keys, all, places.row);
    }
    entry_indexer->choose(run, saved.kept, x, latents->normed_of(x, saved.latents), pass, keys,
                          places.bounds, shape.entries.tokens);
  }
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t n = batch.bounds[static_cast<size_t>(s)];
         n < batch.bounds[static_cast<size_t>(s) + 1]; ++n)
      for (int64_t i = 0; i < saved.kept.cols(); ++i)
        if (int32_t& at = saved.kept.row<int32_t>(n)[i]; at >= 0)
          at = places.row[static_cast<size_t>(places.bounds[static_cast<size_t>(s)] + at)];
}

}  // namespace moe
