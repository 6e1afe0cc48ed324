#include "model/block.h"

#include "tensor/on_host.h"

namespace moe {
namespace {

float number_of(const Run& run, const Param& one) {
  OnHost host(run);
  return host.read(one.value).as<float>()[0];
}

}  // namespace

template <class F>
void Block::sublayer_forward(Run& run, Tensor out, Tensor h, Norm& norm,
                             std::optional<Norm>& out_norm, RngKey dropout_key,
                             SublayerSaved& saved, F&& body) {
  const auto stream = [&](Arena& arena) { return arena.alloc(DType::f32, {h.rows(), h.cols()}); };
  const bool both = placement == NormPlacement::both, pre = both || placement == NormPlacement::pre,
             post = placement == NormPlacement::post,
             behind = both || placement == NormPlacement::output;
  saved.x = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  if (pre) norm.forward(run, saved.x, h, saved.norm);
  else ops::cast(run, saved.x, h);
  // What is normed after the sublayer must outlive this call; elsewhere the sum is the output.
  ArenaScope scope(run.scratch);
  Tensor sum = post ? stream(run.saved) : out;
  Tensor y = stream(behind ? run.saved : run.scratch);
  body(y, saved.x);
  if (behind) {
    Tensor normed = stream(run.scratch);
    if (both) out_norm->forward(run, normed, y, saved.out_norm);
    else norm.forward(run, normed, y, saved.norm);
    y = normed;
  }
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, dropout, dropout_key);
  if (residual != 1) ops::scale(run, y, y, residual);
  ops::add(run, sum, h, y);
  if (post) norm.forward(run, out, sum, saved.norm);
}

template <class F>
void Block::sublayer_backward(Run& run, Tensor dh, Norm& norm, std::optional<Norm>& out_norm,
                              RngKey dropout_key, const SublayerSaved& saved, F&& body) {
  ArenaScope scope(run.scratch);
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  Tensor dsum = dh;
  if (placement == NormPlacement::post) {
    dsum = stream();
    norm.backward(run, dsum, dh, saved.norm);
  }
  Tensor dy = dsum;  // [N,D] in the activations' dtype, as the products want it
  const bool both = placement == NormPlacement::both,
             normed = both || placement == NormPlacement::output;
  if (run.compute != DType::f32 || dropout > 0 || residual != 1 || normed) {
    dy = normed ? stream() : run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, dy, dsum, dropout, dropout_key);
    else ops::cast(run, dy, dsum);
    if (residual != 1) ops::scale(run, dy, dy, residual);
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
    Tensor dnorm = stream();
    norm.backward(run, dnorm, dx, saved.norm);
    dx = dnorm;
  }
  ops::add(run, dh, dsum, dx);
}

void Block::forward(Run& run, Tensor out, Tensor h, const Pass& pass, Saved& saved) {
  Tensor u = run.saved.alloc(DType::f32, {h.rows(), h.cols()});
  forward_attention(run, u, h, pass, saved);
  forward_ffn(run, out, u, pass, saved);
}

void Block::forward_attention(Run& run, Tensor u, Tensor h, const Pass& pass, Saved& saved) {
  sublayer_forward(run, u, h, attn_norm, attn_out_norm, pass.key_of(layer, Site::attention_dropout),
                   saved.attention_in, [&](Tensor y, Tensor x) {
                     if (linear) linear->forward(run, y, x, pass, layer, saved.linear);
                     else if (conv) conv->forward(run, y, x, pass, layer, saved.conv);
                     else attention.forward(run, y, x, pass, layer, saved.attention);
                   });
}

void Block::forward_ffn(Run& run, Tensor out, Tensor u, const Pass& pass, Saved& saved) {
  sublayer_forward(run, out, u, ffn_norm, ffn_out_norm, pass.key_of(layer, Site::ffn_dropout),
                   saved.ffn_in,
                   [&](Tensor y, Tensor x) { ffn.forward(run, y, x, u, pass, saved.ffn); });
  if (layer_scale.present()) ops::scale(run, out, out, number_of(run, layer_scale));
}

void Block::backward(Run& run, Tensor dh, const Pass& pass, const RoutingLosses& coef,
                     const Saved& saved) {
  ArenaScope scope(run.scratch);
  if (layer_scale.present()) ops::scale(run, dh, dh, number_of(run, layer_scale));
  Tensor du;  // [N,D] f32, beside what goes through ffn_norm
  if (ffn.norms) du = run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()});
  sublayer_backward(run, dh, ffn_norm, ffn_out_norm, pass.key_of(layer, Site::ffn_dropout),
                    saved.ffn_in, [&](Tensor dx, Tensor dy, Tensor x) {
                      ffn.backward(run, dx, du, dy, x, pass, coef, saved.ffn);
                    });
  if (ffn.norms) ops::add(run, dh, dh, du);
  sublayer_backward(run, dh, attn_norm, attn_out_norm, pass.key_of(layer, Site::attention_dropout),
                    saved.attention_in, [&](Tensor dx, Tensor dy, Tensor x) {
                      if (linear) linear->backward(run, dx, dy, x, pass, saved.linear);
                      else if (conv) conv->backward(run, dx, dy, x, pass, saved.conv);
                      else attention.backward(run, dx, dy, x, pass, saved.attention);
                    });
}

}  // namespace moe
