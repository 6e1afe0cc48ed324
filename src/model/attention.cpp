#include "model/attention.h"

#include <array>
#include <cmath>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "model/chunks.h"

namespace moe {
namespace {

float scale_of(const AttentionShape& shape) {
  return shape.score_factor / std::sqrt(static_cast<float>(shape.key_width));
}

// Of the batch itself.
ops::KvView kv_of(const Batch& batch, const Attention::Saved& saved) {
  return {saved.k, saved.v, batch.bounds, batch.bounds.first(batch.bounds.size() - 1)};
}

}  // namespace

// Per head the norm runs over rows of C numbers, in full over rows of H*C: the same memory seen
// with other rows.
Tensor Attention::as_norm_rows(const Norm& norm, Tensor x) const {
  const int64_t cols = norm.weight.present() ? norm.weight.value.numel() : shape.value_width;
  return x.reshape({x.numel() / cols, cols});
}

Tensor Attention::finish(Run& run, Tensor y, const Param& bias, std::optional<Norm>& norm,
                         Norm::Saved& saved, Tensor& whole) {
  const std::array<int64_t, 2> all = {0, y.rows()};
  const auto like = [&] { return run.saved.alloc(y.dtype, {y.rows(), y.cols()}); };
  if (bias.present()) ops::bias_forward_acc(run, y, bias, {}, all);
  if (norm) {
    Tensor normed = like();
    norm->forward(run, as_norm_rows(*norm, normed), as_norm_rows(*norm, y), saved);
    y = normed;
  }
  whole = {};
  if (shape.clip == 0) return y;
  whole = y;
  y = like();
  ops::clip_forward(run, y, whole, shape.clip);
  return y;
}

void Attention::project(Run& run, Tensor x, Saved& saved) {
  if (latents) return project_latents(run, x, saved);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto projected = [&](int64_t width) { return run.saved.alloc(x.dtype, {x.rows(), width}); };
  Tensor yq = projected(shape.q_width()), yk = projected(shape.k_width()),
         yv = shape.values_of_keys ? yk : projected(shape.v_width());
  if (shape.values_of_keys) {
    ops::matmul_forward(run, {{q, yq}, {k, yk}}, x, all);
  } else if (gate.present() && !shape.own_gates()) {
    saved.gate = projected(shape.o_width());
    ops::matmul_forward(run, {{q, yq}, {k, yk}, {v, yv}, {gate, saved.gate}}, x, all);
  } else {
    ops::matmul_forward(run, {{q, yq}, {k, yk}, {v, yv}}, x, all);
  }
  std::optional<Norm> none;
  std::optional<Norm>& of_q = shape.norm_turned ? none : q_norm;
  saved.q = finish(run, yq, q_bias, of_q, saved.q_norm, saved.q_whole);
  finish_keys(run, yk, yv, saved);
}

void Attention::finish_keys(Run& run, Tensor yk, Tensor yv, Saved& saved) {
  std::optional<Norm> none;
  std::optional<Norm>& of_k = shape.norm_turned ? none : k_norm;
  saved.k = finish(run, yk, k_bias, of_k, saved.k_norm, saved.k_whole);
  saved.v = finish(run, yv, v_bias, v_norm, saved.v_norm, saved.v_whole);
  if (shape.value_factor != 1) ops::scale(run, saved.v, saved.v, shape.value_factor);
}

void Attention::project_backward(Run& run, Tensor dx, Tensor dq, Tensor dk, Tensor dv, Tensor dgate,
                                 Tensor x, const Saved& saved) {
  if (latents) return project_latents_backward(run, dx, dq, dk, dv, dgate, x, saved);
  std::optional<Norm> none;
  const auto back = [&](Tensor dy, std::optional<Norm>& norm, const Norm::Saved& of_norm,
                        Tensor whole) {
    if (!whole.empty()) ops::clip_backward(run, dy, dy, whole, shape.clip);
    return before_norm(run, dy, norm, of_norm);
  };
  {
    const ArenaScope scope(run.scratch);
    dq = back(dq, shape.norm_turned ? none : q_norm, saved.q_norm, saved.q_whole);
    projection_backward(run, dx, false, dq, x, q, q_bias);
  }
  dk = back(dk, shape.norm_turned ? none : k_norm, saved.k_norm, saved.k_whole);
  if (shape.value_factor != 1) ops::scale(run, dv, dv, shape.value_factor);
  dv = back(dv, v_norm, saved.v_norm, saved.v_whole);
  if (shape.values_of_keys) ops::add(run, dk, dk, dv);
  projection_backward(run, dx, true, dk, x, k, k_bias);
  if (!shape.values_of_keys) projection_backward(run, dx, true, dv, x, v, v_bias);
}

void Attention::project_latents(Run& run, Tensor x, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  latents->forward(run, x, saved.latents);
  saved.q = run.saved.alloc(x.dtype, {x.rows(), shape.q_width()});
  const Tensor queries = latents->queries_of(x, saved.latents);
  if (!gate_of_latents()) return ops::matmul_forward(run, saved.q, queries, q, all);
  saved.gate = run.saved.alloc(x.dtype, {x.rows(), shape.gates});
  ops::matmul_forward(run, {{q, saved.q}, {gate, saved.gate}}, queries, all);
}

// k[n,h] = (k_rope[n], k_b[h] kv[n]),  v[n,h] = v_b[h] kv[n]
void Attention::expand_latents(Run& run, Saved& saved) {
  const Tensor kv = saved.latents.kv;
  const std::array<int64_t, 2> all = {0, kv.rows()};
  const auto alloc = [&](Arena& arena, int64_t width) {
    return arena.alloc(kv.dtype, {kv.rows(), width});
  };
  saved.k = alloc(run.saved, shape.k_width());
  saved.v = alloc(run.saved, shape.v_width());
  ArenaScope scope(run.scratch);
  Tensor own = alloc(run.scratch, k.value.rows());
  ops::matmul_forward(run, {{k, own}, {v, saved.v}}, kv, all);
  ops::join_heads(run, saved.k, saved.latents.k_rope, own, shape.heads);
}

void Attention::project_latents_backward(Run& run, Tensor dx, Tensor dq, Tensor dk, Tensor dv,
                                         Tensor dgate, Tensor x, const Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor queries = latents->queries_of(x, saved.latents);
  if (shape.latent.shared) {
    const Tensor dqueries = like(queries);
    dq = before_norm(run, dq, q_norm, saved.q_norm);
    ops::matmul_dw(run, q, dq, queries, all);
    ops::matmul_dx(run, dqueries, dq, q, all);
    ops::zero(run, dx);
    return latents->backward_acc(run, dx, dqueries, dk, {}, x, saved.latents);
  }
  Tensor dk_rope = like(saved.latents.k_rope), dkv = like(saved.latents.kv),
         down = run.scratch.alloc(x.dtype, {x.rows(), k.value.rows()});
  ops::split_heads(run, dk_rope, down, dk, shape.heads);
  ops::matmul_dw(run, {{k, down}, {v, dv}}, saved.latents.kv, all);
  ops::matmul_dx(run, dkv, {{k, down}, {v, dv}}, all);
  ops::matmul_dw(run, q, dq, queries, all);
  if (saved.latents.q.empty()) {
    ops::matmul_dx(run, dx, dq, q, all);
    return latents->backward_acc(run, dx, {}, dkv, dk_rope, x, saved.latents);
  }
  Tensor dqueries = like(queries);
  if (gate_of_latents()) {
    ops::matmul_dw(run, gate, dgate, queries, all);
    ops::matmul_dx(run, dqueries, {{q, dq}, {gate, dgate}}, all);
  } else {
    ops::matmul_dx(run, dqueries, dq, q, all);
  }
  ops::zero(run, dx);
  latents->backward_acc(run, dx, dqueries, dkv, dk_rope, x, saved.latents);
}

Tensor Attention::before_norm(Run& run, Tensor dy, std::optional<Norm>& norm,
                              const Norm::Saved& saved) {
  if (!norm) return dy;
  Tensor dx = run.scratch.alloc(dy.dtype, {dy.rows(), dy.cols()});
  norm->backward(run, as_norm_rows(*norm, dx), as_norm_rows(*norm, dy), saved);
  return dx;
}

void Attention::projection_backward(Run& run, Tensor dx, bool accumulate, Tensor dy, Tensor x,
                                    Param& weight, Param& bias) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  ops::matmul_dw(run, weight, dy, x, all);
  if (bias.present()) ops::bias_backward(run, {}, bias, dy, {}, all);
  if (accumulate) ops::matmul_dx_acc(run, dx, dy, weight, all);
  else ops::matmul_dx(run, dx, dy, weight, all);
}

const ops::CosSinTable& Attention::turns(const Pass& pass) const {
  const bool as_queries_grow = shape.queries_grow && !latents;
  return shape.window_turns && !as_queries_grow ? pass.window_cos_sin : pass.cos_sin;
}

void Attention::rotate(Run& run, Tensor queries, Tensor keys, const Pass& pass,
                       bool inverse) const {
  if (latents || shape.rotary_width == 0) grow(run, queries, pass);
  if (shape.rotary_width == 0) return;
  if (shape.queries_grow && !latents) {
    ops::rope_acc(run, {queries}, shape.key_width, pass.query_cos_sin, inverse);
    return ops::rope_acc(run, {keys}, shape.key_width, turns(pass), inverse);
  }
  ops::rope_acc(run, {queries, keys}, shape.key_width, turns(pass), inverse);
}

// A part of a head turns, or none of it, and all of it grows: the table of queries is one of whole
// heads that turns nothing, so that it multiplies gradients as it does queries.
void Attention::grow(Run& run, Tensor queries, const Pass& pass) const {
  if (shape.queries_grow) ops::rope_acc(run, {queries}, shape.key_width, pass.query_cos_sin, false);
}

Tensor Attention::turned_normed(Run& run, Norm& norm, Tensor x, Norm::Saved& saved) {
  Tensor y = run.saved.alloc(x.dtype, {x.rows(), x.cols()});
  norm.forward(run, as_norm_rows(norm, y), as_norm_rows(norm, x), saved);
  return y;
}

void Attention::norm_turned(Run& run, Saved& saved) {
  saved.q = turned_normed(run, *q_norm, saved.q, saved.q_norm);
  saved.k = turned_normed(run, *k_norm, saved.k, saved.k_norm);
}

void Attention::norm_turned_backward(Run& run, Tensor& dq, Tensor& dk, const Saved& saved) {
  dq = before_norm(run, dq, q_norm, saved.q_norm);
  dk = before_norm(run, dk, k_norm, saved.k_norm);
}

// Those of heads are few numbers, so they stay f32; so do those that are no sigmoids.
void Attention::project_gate(Run& run, Tensor x, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  saved.gate = run.saved.alloc(shape.own_gates() ? DType::f32 : x.dtype, {x.rows(), shape.gates});
  ops::matmul_forward(run, saved.gate, x, gate, all);
}

// y = o * sigmoid(gate), or o * log(1 + e^gate)
Tensor Attention::gated(Run& run, const Saved& saved) const {
  if (!gate.present()) return saved.o;
  Tensor y = run.scratch.alloc(saved.o.dtype, {saved.o.rows(), saved.o.cols()});
  if (shape.own_gates()) ops::head_gates_forward(run, y, saved.o, saved.gate, curve());
  else ops::ffn_act_forward(run, y, saved.gate, saved.o, {}, ops::Act::sigmoid);
  return y;
}

Tensor Attention::gate_backward(Run& run, Tensor do_, Tensor dgate, const Saved& saved) const {
  Tensor y = run.scratch.alloc(saved.o.dtype, {saved.o.rows(), saved.o.cols()});
  if (shape.own_gates()) {
    ops::head_gates_backward(run, do_, dgate, y, do_, saved.o, saved.gate, curve());
    return y;
  }
  ops::cast(run, y, do_);
  ops::ffn_act_backward(run, dgate, do_, y, {}, y, saved.gate, saved.o, {}, ops::Act::sigmoid);
  return y;
}

namespace {

// The same numbers as a bank with a matrix for each head.
void bind_heads(Param& bank, const Param& w, int64_t heads) {
  if (bank.present() && bank.version == w.version && bank.value.data == w.value.data) return;
  Tensor value = w.value;
  value.rank = 3;
  value.shape = {heads, w.value.rows() / heads, w.value.cols()};
  bank.bind(value);
  bank.version = w.version;
}

}  // namespace

// Sessions that step at the same time share it: it is written where w is another than it was, and
// else only read.
Param& Attention::bank_of(HeadBank& bank, const Param& w, int64_t heads) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  bind_heads(bank.w, w, heads);
  if (w.term == nullptr) {
    if (bank.w.term != nullptr) bank.w.term = nullptr;
    return bank.w;
  }
  bind_heads(bank.b, *w.term->b, heads);
  if (bank.w.term == nullptr || bank.term.a != w.term->a || bank.term.scale != w.term->scale) {
    bank.term = {w.term->a, &bank.b, w.term->scale};
    bank.w.term = &bank.term;
  }
  return bank.w;
}

Tensor Attention::latent_keys(Run& run, const Pass& pass, const Saved& saved) const {
  const int64_t shared = shape.shared_width, width = shape.latent.width;
  if (shape.rotary_width > 0)
    ops::rope_acc(run, {saved.latents.k_rope}, shared, pass.cos_sin, false);
  const Tensor key =
      run.scratch.alloc(saved.latents.kv.dtype, {saved.latents.kv.rows(), shared + width});
  ops::cast(run, key.slice_cols(0, shared), saved.latents.k_rope);
  ops::cast(run, key.slice_cols(shared, shared + width), saved.latents.kv);
  return key;
}

// Queries go to the latents instead of latents to keys: with q = (q_r, q_n) the score
//   <q_n, k_b kv> = <k_b^T q_n, kv>,  and  sum_p s_p v_b kv_p = v_b (sum_p s_p kv_p),
// so that all heads read what the cache keeps of a token as one head's key and value. Products of
// each head's own matrix take rows sorted by head.
void Attention::attend_latents(Run& run, Tensor x, const Pass& pass, int64_t layer, Saved& saved) {
  const Batch& batch = pass.batch;
  const int64_t tokens = saved.q.rows(), heads = shape.heads, shared = shape.shared_width,
                width = shape.latent.width, rows = tokens * heads;
  saved.o = run.saved.alloc(saved.q.dtype, {tokens, shape.o_width()});
  ArenaScope scope(run.scratch);
  const auto alloc = [&](int64_t count, int64_t cols) {
    return run.scratch.alloc(saved.q.dtype, {count, cols});
  };
  grow(run, saved.q, pass);
  if (shape.rotary_width > 0) ops::rope_acc(run, {saved.q}, shape.key_width, pass.cos_sin, false);
  const Tensor key = latent_keys(run, pass, saved);
  ops::KvView kv{key, key.slice_cols(shared, shared + width), batch.bounds,
                 batch.bounds.first(batch.bounds.size() - 1)};
  if (pass.cache) {
    pass.cache->store(run, layer, batch, key, {});
    kv = pass.cache->view(layer, batch);
  }
  if (indexer) choose(run, x, pass, layer, saved);

  const RowsByPart by_head(tokens, heads);
  const Tensor q_heads = saved.q.reshape({rows, shape.key_width});
  Tensor sorted = alloc(rows, width), query = alloc(rows, shared + width);
  ops::matmul_dx(run, sorted, {q_heads.slice_cols(shared, shape.key_width), by_head.sorted},
                 bank_of(k_bank_, k, heads), by_head.offsets);
  ops::cast(run, query.slice_cols(0, shared), q_heads.slice_cols(0, shared));
  ops::gather_rows(run, query.slice_cols(shared, shared + width), sorted, by_head.back);

  Tensor seen = alloc(tokens, heads * width), values = alloc(rows, shape.value_width), lse;
  if (sinks.present()) lse = run.scratch.alloc(DType::f32, {tokens, heads});
  query = query.reshape({tokens, heads * (shared + width)});
  if (pass.kept.empty())
    ops::attention_forward(run, seen, lse, query, kv, batch.positions, heads, 1, scale_of(shape),
                           shape.window);
  else attend_kept(run, seen, lse, query, kv, pass.kept, batch.positions, heads, scale_of(shape));
  if (sinks.present()) ops::attention_sinks(run, seen, lse, sinks);
  ops::matmul_forward(run, values, {seen.reshape({rows, width}), by_head.sorted},
                      bank_of(v_bank_, v, heads), by_head.offsets);
  ops::gather_rows(run, saved.o.reshape({rows, shape.value_width}), values, by_head.back);
}

// Those that follow take the choice as it stands in the pass.
void Attention::choose(Run& run, Tensor x, const Pass& pass, int64_t layer, const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const Tensor keys = indexer->keys(run, x, pass.cos_sin);
  if (pass.cache) pass.cache->store_index(run, layer, pass.batch, keys);
  if (pass.kept.empty()) return;
  std::vector<int64_t> first_row;
  const ops::KvView seen = pass.cache ? pass.cache->index_view(layer, pass.batch)
                                      : laid_as_kept(run, keys, pass.batch.bounds, first_row);
  if (latents) indexer->choose(run, pass.kept, x, latents->normed_of(x, saved.latents), pass, seen);
  else indexer->choose_blocks(run, pass.kept, x, pass, seen, shape.block, shape.local);
}

void Attention::attend(Run& run, Tensor x, const Pass& pass, int64_t layer, Saved& saved) {
  const Batch& batch = pass.batch;
  ops::KvView kv = kv_of(batch, saved);
  if (pass.cache) {
    pass.cache->store(run, layer, batch, saved.k, shape.latent.shared ? Tensor{} : saved.v);
    kv = pass.cache->view(layer, batch);
  }
  saved.o = run.saved.alloc(saved.q.dtype, {saved.q.rows(), shape.o_width()});
  saved.lse = run.saved.alloc(DType::f32, {saved.q.rows(), shape.heads});
  if (shape.block > 0 && (pass.cache || !pass.kept.empty())) choose(run, x, pass, layer, saved);
  if (shape.block > 0 && !pass.kept.empty())
    return attend_blocks(run, saved.o, saved.q, kv, pass.kept, batch.positions, shape.heads,
                         shape.kv_heads, shape.block, scale_of(shape));
  const ChunkedKeys keys(kv, batch.positions, shape.chunk);
  ops::attention_forward(run, saved.o, saved.lse, saved.q, keys.kv(), keys.positions(), shape.heads,
                         shape.kv_heads, scale_of(shape), shape.window, shape.score_cap);
  if (!saved.kept.empty())
    ops::attend_entries_acc(run, saved.o, saved.lse, saved.q,
                            pass.cache ? pass.cache->entries(layer) : saved.entries.entries,
                            saved.kept, shape.heads, scale_of(shape));
  if (sinks.present()) ops::attention_sinks(run, saved.o, saved.lse, sinks);
}

void Attention::attend_backward(Run& run, Tensor dq, Tensor dk, Tensor dv, Tensor do_,
                                Tensor dentries, const Pass& pass, const Saved& saved) {
  if (sinks.present()) ops::attention_sinks_backward(run, sinks, do_, saved.o, saved.lse);
  const ChunkedKeys keys(kv_of(pass.batch, saved), pass.batch.positions, shape.chunk);
  ops::attention_backward(run, dq, dk, dv, do_, saved.q, keys.kv(), saved.o, saved.lse,
                          keys.positions(), shape.heads, shape.kv_heads, scale_of(shape),
                          shape.window, shape.score_cap);
  if (!dentries.empty())
    ops::attend_entries_backward_acc(run, dq, dentries, do_, saved.q, saved.entries.entries,
                                     saved.o, saved.lse, saved.kept, shape.heads, scale_of(shape));
}

void Attention::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                        Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  project(run, x, saved);
  if (gate.present() && !gate_of_latents() && (shape.own_gates() || latents))
    project_gate(run, x, saved);
  if (shape.latent.shared) {
    project_shared(run, pass, saved);
    saved.kept = {};
    if (entries) make_entries(run, x, pass, layer, saved);
    attend(run, x, pass, layer, saved);
    const ArenaScope scope(run.scratch);
    return ops::matmul_forward(run, y, narrowed(run, turned_back(run, pass, saved), saved), o, all);
  }
  if (latents && (pass.cache || !pass.kept.empty())) {
    attend_latents(run, x, pass, layer, saved);
  } else {
    if (latents) expand_latents(run, saved);
    rotate(run, saved.q, saved.k, pass, false);
    if (shape.norm_turned && q_norm) norm_turned(run, saved);
    attend(run, x, pass, layer, saved);
  }
  const ArenaScope scope(run.scratch);
  ops::matmul_forward(run, y, gated(run, saved), o, all);
  if (o_bias.present()) ops::bias_forward_acc(run, y, o_bias, {}, all);
}

void Attention::remember(Run& run, Tensor x, const Pass& pass, int64_t layer) {
  const ArenaScope kept(run.saved), scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  Saved saved;
  if (latents) {
    latents->forward_keys(run, x, saved.latents);
    return pass.cache->store(run, layer, pass.batch, latent_keys(run, pass, saved), {});
  }
  const Tensor yk = run.saved.alloc(x.dtype, {x.rows(), shape.k_width()}),
               yv = shape.values_of_keys ? yk
                                         : run.saved.alloc(x.dtype, {x.rows(), shape.v_width()});
  if (shape.values_of_keys) ops::matmul_forward(run, yk, x, k, all);
  else ops::matmul_forward(run, {{k, yk}, {v, yv}}, x, all);
  finish_keys(run, yk, yv, saved);
  if (shape.rotary_width > 0) ops::rope_acc(run, {saved.k}, shape.key_width, turns(pass), false);
  if (shape.norm_turned && k_norm) saved.k = turned_normed(run, *k_norm, saved.k, saved.k_norm);
  pass.cache->store(run, layer, pass.batch, saved.k, saved.v);
}

void Attention::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                         const Saved& saved) {
  if (shape.top > 0 && !pass.kept.empty())
    fail_usage("beyond {} tokens the attention of the model is sparse, which is not trained here",
               shape.top);
  ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  if (o_bias.present()) ops::bias_backward(run, {}, o_bias, dy, {}, all);
  Tensor do_ = like(saved.o), dq = like(saved.q), dk = like(saved.k), dv = like(saved.v), dgate,
         dentries;
  if (shape.latent.shared) {
    out_shared_backward(run, do_, dy, pass, saved);
    if (!saved.kept.empty()) dentries = like(saved.entries.entries);
    attend_backward(run, dq, dk, dv, do_, dentries, pass, saved);
    ops::add(run, dk, dk, dv);
    turn_back(run, dq, pass, false);
    turn_back(run, dk, pass, false);
    project_backward(run, dx, dq, dk, dv, dgate, x, saved);
    if (dentries.empty()) return;
    return entries->backward_acc(run, dx, dentries, x, pass, {pass.batch, shape.entries.tokens},
                                 saved.entries);
  }
  ops::matmul_dx(run, do_, dy, o, all);
  if (gate.present()) {
    dgate = like(saved.gate);
    ops::matmul_dw(run, o, dy, gate_backward(run, do_, dgate, saved), all);
  } else {
    ops::matmul_dw(run, o, dy, saved.o, all);
  }
  attend_backward(run, dq, dk, dv, do_, {}, pass, saved);
  if (shape.norm_turned && q_norm) norm_turned_backward(run, dq, dk, saved);
  rotate(run, dq, dk, pass, true);
  project_backward(run, dx, dq, dk, dv, dgate, x, saved);
  if (!gate.present() || gate_of_latents()) return;
  if (dgate.dtype != x.dtype) {
    const Tensor rounded = run.scratch.alloc(x.dtype, {x.rows(), shape.gates});
    ops::cast(run, rounded, dgate);
    dgate = rounded;
  }
  ops::matmul_dw(run, gate, dgate, x, all);
  ops::matmul_dx_acc(run, dx, dgate, gate, all);
}

}  // namespace moe
