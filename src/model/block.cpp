#include "model/block.h"

#include "model/norm_places.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

float number_of(const Run& run, const Param& one) {
  OnHost host(run);
  return host.read(one.value).as<float>()[0];
}

}  // namespace

void Block::add_dropped(Run& run, Tensor sum, Tensor h, Tensor y, RngKey dropout_key) const {
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, dropout, dropout_key);
  if (residual != 1) ops::scale(run, y, y, residual);
  ops::add(run, sum, h, y);
}

void Block::dropped_backward(Run& run, Tensor dy, Tensor dsum, RngKey dropout_key) const {
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, dy, dsum, dropout, dropout_key);
  else ops::cast(run, dy, dsum);
  if (residual != 1) ops::scale(run, dy, dy, residual);
}

void Block::scale_layer(Run& run, Tensor x) const {
  if (layer_scale.present()) ops::scale(run, x, x, number_of(run, layer_scale));
}

void Block::mix_forward(Run& run, Tensor y, Tensor x, const Pass& pass, Saved& saved) {
  if (linear) return linear->forward(run, y, x, pass, layer, saved.linear);
  if (conv) return conv->forward(run, y, x, pass, layer, saved.conv);
  if (selective) return selective->forward(run, y, x, pass, layer, saved.selective);
  if (lightning) return lightning->forward(run, y, x, pass, layer, saved.lightning);
  const ArenaScope scope(run.scratch);
  Tensor attended = y;
  if (scan) {
    scan->forward(run, y, x, pass, layer, saved.scan);
    if (scan_out != 1) ops::scale(run, y, y, scan_out);
    if (!attends) return;
    attended = run.scratch.alloc(DType::f32, {y.rows(), y.cols()});
  }
  attention.forward(run, attended, x, pass, layer, saved.attention);
  if (attention_out != 1) ops::scale(run, attended, attended, attention_out);
  if (scan) ops::add(run, y, y, attended);
}

Tensor Block::times(Run& run, Tensor dy, float factor) {
  if (factor == 1) return dy;
  const Tensor scaled = run.scratch.alloc(dy.dtype, {dy.rows(), dy.cols()});
  ops::scale(run, scaled, dy, factor);
  return scaled;
}

void Block::mix_backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                         const Saved& saved) {
  if (linear) return linear->backward(run, dx, dy, x, pass, saved.linear);
  if (conv) return conv->backward(run, dx, dy, x, pass, saved.conv);
  if (selective) return selective->backward(run, dx, dy, x, pass, saved.selective);
  if (lightning) return lightning->backward(run, dx, dy, x, pass, saved.lightning);
  const ArenaScope scope(run.scratch);
  Tensor dattended = dx;
  if (scan) {
    scan->backward(run, dx, times(run, dy, scan_out), x, pass, saved.scan);
    if (!attends) return;
    dattended = run.scratch.alloc(DType::f32, {dx.rows(), dx.cols()});
  }
  attention.backward(run, dattended, times(run, dy, attention_out), x, pass, saved.attention);
  if (scan) ops::add(run, dx, dx, dattended);
}

void Block::enter(Run& run, Tensor h, const SublayerNorms& norms, SublayerSaved& saved) {
  saved.x = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  if (!norms.out_norm && placement != NormPlacement::pre && !is_beside(placement))
    return ops::cast(run, saved.x, h);
  if (!norms.gate) return norms.norm.forward(run, saved.x, h, saved.norm);
  const Tensor normed = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  norms.norm.forward(run, normed, h, saved.norm);
  norms.gate->forward(run, saved.x, normed, saved.gate);
}

template <class F>
void Block::sublayer_forward(Run& run, Tensor out, Tensor h, SublayerNorms norms,
                             RngKey dropout_key, SublayerSaved& saved, F&& body) {
  const auto stream = [&](Arena& arena) { return arena.alloc(DType::f32, {h.rows(), h.cols()}); };
  const bool both = norms.out_norm.has_value(), post = placement == NormPlacement::post,
             behind = both || placement == NormPlacement::output;
  enter(run, h, norms, saved);
  // What is normed after the sublayer must outlive this call; elsewhere the sum is the output.
  ArenaScope scope(run.scratch);
  Tensor sum = post ? stream(run.saved) : out;
  Tensor y = stream(behind ? run.saved : run.scratch);
  body(y, saved.x);
  if (behind) {
    Tensor normed = stream(run.scratch);
    if (both) norms.out_norm->forward(run, normed, y, saved.out_norm);
    else norms.norm.forward(run, normed, y, saved.norm);
    y = normed;
  }
  add_dropped(run, sum, h, y, dropout_key);
  if (post) norms.norm.forward(run, out, sum, saved.norm);
}

template <class F>
void Block::sublayer_backward(Run& run, Tensor dh, SublayerNorms norms, RngKey dropout_key,
                              const SublayerSaved& saved, F&& body) {
  auto& [norm, gate, out_norm] = norms;
  ArenaScope scope(run.scratch);
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  Tensor dsum = dh;
  if (placement == NormPlacement::post) {
    dsum = stream();
    norm.backward(run, dsum, dh, saved.norm);
  }
  Tensor dy = dsum;  // [N,D] in the activations' dtype, as the products want it
  const bool both = out_norm.has_value(), normed = both || placement == NormPlacement::output;
  if (run.compute != DType::f32 || dropout > 0 || residual != 1 || normed) {
    dy = normed ? stream() : run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    dropped_backward(run, dy, dsum, dropout_key);
  }
  if (normed) {
    Tensor dnormed = dy;
    dy = run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    if (both) out_norm->backward(run, dy, dnormed, saved.out_norm);
    else norm.backward(run, dy, dnormed, saved.norm);
  }
  Tensor dx = stream();
  body(dx, dy, saved.x);
  if (both || placement == NormPlacement::pre) {
    if (gate) gate->backward(run, dx, dx, saved.gate);
    Tensor dnorm = stream();
    norm.backward(run, dnorm, dx, saved.norm);
    dx = dnorm;
  }
  ops::add(run, dh, dsum, dx);
}

template <class F>
void Block::carried(Run& run, Tensor out, Tensor h, Norm& norm, Multipliers::Sum sum,
                    RngKey dropout_key, SublayerSaved& saved, F&& body) {
  saved.x = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  const ArenaScope scope(run.scratch);
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {h.rows(), h.cols()}); };
  // Rounded to the activations' type it would lose with each layer what the stream has in f32.
  const bool rounded = saved.x.dtype != DType::f32;
  const Tensor kept = rounded ? stream() : saved.x, y = stream();
  norm.forward(run, kept, h, saved.norm);
  if (rounded) ops::cast(run, saved.x, kept);
  body(y, saved.x);
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, dropout, dropout_key);
  ops::add_scaled(run, out, kept, y, sum.kept, sum.added);
}

template <class F>
void Block::carried_backward(Run& run, Tensor dh, Norm& norm, Multipliers::Sum sum,
                             RngKey dropout_key, const SublayerSaved& saved, F&& body) {
  const ArenaScope scope(run.scratch);
  const Tensor dx = run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()});
  Tensor dy = dh;
  if (run.compute != DType::f32 || dropout > 0 || sum.added != 1) {
    dy = run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    dropped_backward(run, dy, dh, dropout_key);
    if (sum.added != 1) ops::scale(run, dy, dy, sum.added);
  }
  body(dx, dy, saved.x);
  ops::add_scaled(run, dx, dx, dh, 1, sum.kept);
  norm.backward(run, dh, dx, saved.norm);
}

template <class F>
void Block::between_streams(Run& run, Tensor out, Tensor h, HyperConnection& streams, Norm& norm,
                            RngKey dropout_key, SublayerSaved& saved, F&& body) {
  const int64_t tokens = h.rows(), width = h.cols() / streams.shape.streams;
  const Tensor seen = run.saved.alloc(DType::f32, {tokens, width}),
               y = run.saved.alloc(DType::f32, {tokens, width});
  streams.collapse(run, seen, h, saved.streams);
  saved.x = run.saved.alloc(run.compute, {tokens, width});
  norm.forward(run, saved.x, seen, saved.norm);
  body(y, saved.x);
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, dropout, dropout_key);
  streams.spread(run, out, y, saved.streams);
}

template <class F>
void Block::between_streams_backward(Run& run, Tensor dh, HyperConnection& streams, Norm& norm,
                                     RngKey dropout_key, const SublayerSaved& saved, F&& body) {
  const ArenaScope scope(run.scratch);
  const auto alloc = [&](DType dtype, int64_t cols) {
    return run.scratch.alloc(dtype, {dh.rows(), cols});
  };
  const int64_t width = saved.x.cols();
  const Tensor dgiven = alloc(DType::f32, width), dx = alloc(DType::f32, width),
               dw = alloc(DType::f32, saved.streams.w.cols());
  streams.spread_backward(run, dh, dgiven, dw, saved.streams);
  Tensor dy = dgiven;
  if (run.compute != DType::f32) dy = alloc(run.compute, width);
  dropped_backward(run, dy, dgiven, dropout_key);
  body(dx, dy, saved.x);
  norm.backward(run, dgiven, dx, saved.norm);
  streams.collapse_backward_acc(run, dh, dw, dgiven, saved.streams);
}

void Block::forward(Run& run, Tensor out, Tensor h, const Pass& pass, Saved& saved) {
  if (is_beside(placement)) return forward_beside(run, out, h, pass, saved);
  if (!mixes) return forward_ffn(run, out, h, pass, saved);
  if (!feeds) {
    forward_attention(run, out, h, pass, saved);
    return scale_layer(run, out);
  }
  Tensor u = run.saved.alloc(DType::f32, {h.rows(), h.cols()});
  forward_attention(run, u, h, pass, saved);
  forward_ffn(run, out, u, pass, saved);
}

void Block::forward_attention(Run& run, Tensor u, Tensor h, const Pass& pass, Saved& saved) {
  const RngKey key = pass.key_of(layer, Site::attention_dropout);
  const auto body = [&](Tensor y, Tensor x) { mix_forward(run, y, x, pass, saved); };
  if (attn_streams)
    return between_streams(run, u, h, *attn_streams, attn_norm, key, saved.attention_in, body);
  if (placement == NormPlacement::carried)
    return carried(run, u, h, attn_norm, attn_sum, key, saved.attention_in, body);
  sublayer_forward(run, u, h, {attn_norm, attn_norm_gate, attn_out_norm}, key, saved.attention_in,
                   body);
}

void Block::forward_ffn(Run& run, Tensor out, Tensor u, const Pass& pass, Saved& saved) {
  const RngKey key = pass.key_of(layer, Site::ffn_dropout);
  const auto body = [&](Tensor y, Tensor x) { ffn.forward(run, y, x, u, pass, saved.ffn); };
  if (ffn_streams)
    return between_streams(run, out, u, *ffn_streams, ffn_norm, key, saved.ffn_in, body);
  if (placement == NormPlacement::carried)
    carried(run, out, u, ffn_norm, ffn_sum, key, saved.ffn_in, body);
  else
    sublayer_forward(run, out, u, {ffn_norm, ffn_norm_gate, ffn_out_norm}, key, saved.ffn_in, body);
  scale_layer(run, out);
  if (joins_late) ops::add(run, out, out, pass.late);
}

// What attention sees the FFN sees too, unless it has a norm of its own: it is kept once.
void Block::forward_beside(Run& run, Tensor out, Tensor h, const Pass& pass, Saved& saved) {
  enter(run, h, {attn_norm, attn_norm_gate, attn_out_norm}, saved.attention_in);
  if (placement == NormPlacement::beside_each)
    enter(run, h, {ffn_norm, ffn_norm_gate, ffn_out_norm}, saved.ffn_in);
  else saved.ffn_in.x = saved.attention_in.x;
  ArenaScope scope(run.scratch);
  const Tensor y = run.scratch.alloc(DType::f32, {h.rows(), h.cols()});
  mix_forward(run, y, saved.attention_in.x, pass, saved);
  add_dropped(run, out, h, y, pass.key_of(layer, Site::attention_dropout));
  ffn.forward(run, y, saved.ffn_in.x, h, pass, saved.ffn);
  add_dropped(run, out, out, y, pass.key_of(layer, Site::ffn_dropout));
  scale_layer(run, out);
}

bool Block::leaves_only_keys() const {
  if (joins_late || ffn.late) return false;
  if (!mixes) return true;
  const bool attends_alone = attends && !linear && !conv && !selective && !scan && !lightning;
  return attends_alone && !attn_streams && placement != NormPlacement::carried &&
         attention.leaves_only_keys();
}

void Block::remember(Run& run, Tensor h, const Pass& pass) {
  if (!mixes) return;
  const ArenaScope scope(run.saved);
  SublayerSaved saved;
  enter(run, h, {attn_norm, attn_norm_gate, attn_out_norm}, saved);
  attention.remember(run, saved.x, pass, layer);
}

void Block::backward_beside(Run& run, Tensor dh, const Pass& pass, const RoutingLosses& coef,
                            const Saved& saved) {
  ArenaScope scope(run.scratch);
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  const bool own = run.compute != DType::f32 || dropout > 0 || residual != 1;
  Tensor dy = dh;  // of one sublayer, then of the other
  if (own) dy = run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
  const Tensor dx = stream(), dother = stream();
  if (own) dropped_backward(run, dy, dh, pass.key_of(layer, Site::ffn_dropout));
  ffn.backward(run, dx, {}, dy, saved.ffn_in.x, pass, coef, saved.ffn);
  if (own) dropped_backward(run, dy, dh, pass.key_of(layer, Site::attention_dropout));
  mix_backward(run, dother, dy, saved.attention_in.x, pass, saved);
  if (placement == NormPlacement::beside) {
    ops::add(run, dx, dx, dother);
    attn_norm.backward(run, dother, dx, saved.attention_in.norm);
    return ops::add(run, dh, dh, dother);
  }
  const Tensor through = stream();  // a norm
  attn_norm.backward(run, through, dother, saved.attention_in.norm);
  ops::add(run, dh, dh, through);
  ffn_norm.backward(run, through, dx, saved.ffn_in.norm);
  ops::add(run, dh, dh, through);
}

void Block::backward(Run& run, Tensor dh, const Pass& pass, const RoutingLosses& coef,
                     const Saved& saved) {
  ArenaScope scope(run.scratch);
  if (joins_late) ops::cast(run, pass.dlate, dh);
  scale_layer(run, dh);
  if (is_beside(placement)) return backward_beside(run, dh, pass, coef, saved);
  Tensor du;  // [N,D] f32, beside what goes through ffn_norm
  if (ffn.norms) du = run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()});
  const RngKey ffn_key = pass.key_of(layer, Site::ffn_dropout),
               attention_key = pass.key_of(layer, Site::attention_dropout);
  const auto ffn_body = [&](Tensor dx, Tensor dy, Tensor x) {
    ffn.backward(run, dx, du, dy, x, pass, coef, saved.ffn);
  };
  const auto mix_body = [&](Tensor dx, Tensor dy, Tensor x) {
    mix_backward(run, dx, dy, x, pass, saved);
  };
  if (ffn_streams)
    between_streams_backward(run, dh, *ffn_streams, ffn_norm, ffn_key, saved.ffn_in, ffn_body);
  else if (feeds && placement == NormPlacement::carried)
    carried_backward(run, dh, ffn_norm, ffn_sum, ffn_key, saved.ffn_in, ffn_body);
  else if (feeds)
    sublayer_backward(run, dh, {ffn_norm, ffn_norm_gate, ffn_out_norm}, ffn_key, saved.ffn_in,
                      ffn_body);
  if (ffn.norms) ops::add(run, dh, dh, du);
  if (attn_streams)
    between_streams_backward(run, dh, *attn_streams, attn_norm, attention_key, saved.attention_in,
                             mix_body);
  else if (mixes && placement == NormPlacement::carried)
    carried_backward(run, dh, attn_norm, attn_sum, attention_key, saved.attention_in, mix_body);
  else if (mixes)
    sublayer_backward(run, dh, {attn_norm, attn_norm_gate, attn_out_norm}, attention_key,
                      saved.attention_in, mix_body);
}

}  // namespace moe
