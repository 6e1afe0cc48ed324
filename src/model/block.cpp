#include "model/block.h"

namespace moe {

template <class F>
void Block::sublayer_forward(Run& run, Tensor out, Tensor h, Norm& norm, RngKey dropout_key,
                             SublayerSaved& saved, F&& body) {
  const bool pre = placement == NormPlacement::pre;
  saved.x = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  if (pre) norm.forward(run, saved.x, h, saved.norm);
  else ops::cast(run, saved.x, h);
  // A post-norm's input must outlive this call, a pre-norm sublayer's sum is the output itself.
  ArenaScope scope(run.scratch);
  Tensor sum = pre ? out : run.saved.alloc(DType::f32, {h.rows(), h.cols()});
  Tensor y = run.scratch.alloc(DType::f32, {h.rows(), h.cols()});
  body(y, saved.x);
  if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, dropout, dropout_key);
  ops::add(run, sum, h, y);
  if (!pre) norm.forward(run, out, sum, saved.norm);
}

template <class F>
void Block::sublayer_backward(Run& run, Tensor dh, Norm& norm, RngKey dropout_key,
                              const SublayerSaved& saved, F&& body) {
  ArenaScope scope(run.scratch);
  const bool pre = placement == NormPlacement::pre;
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  Tensor dsum = dh;
  if (!pre) {
    dsum = stream();
    norm.backward(run, dsum, dh, saved.norm);
  }
  Tensor dy = dsum;  // [N,D] in the activations' dtype, as the products want it
  if (run.compute != DType::f32 || dropout > 0) {
    dy = run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    if (dropout > 0 && !dropout_key.empty()) ops::dropout(run, dy, dsum, dropout, dropout_key);
    else ops::cast(run, dy, dsum);
  }
  Tensor dx = stream();
  body(dx, dy, saved.x);
  if (pre) {
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
  sublayer_forward(
      run, u, h, attn_norm, pass.key_of(layer, Site::attention_dropout), saved.attention_in,
      [&](Tensor y, Tensor x) { attention.forward(run, y, x, pass, layer, saved.attention); });
}

void Block::forward_ffn(Run& run, Tensor out, Tensor u, const Pass& pass, Saved& saved) {
  sublayer_forward(run, out, u, ffn_norm, pass.key_of(layer, Site::ffn_dropout), saved.ffn_in,
                   [&](Tensor y, Tensor x) { ffn.forward(run, y, x, pass, saved.ffn); });
}

void Block::backward(Run& run, Tensor dh, const Pass& pass, const RoutingLosses& coef,
                     const Saved& saved) {
  sublayer_backward(
      run, dh, ffn_norm, pass.key_of(layer, Site::ffn_dropout), saved.ffn_in,
      [&](Tensor dx, Tensor dy, Tensor x) { ffn.backward(run, dx, dy, x, pass, coef, saved.ffn); });
  sublayer_backward(run, dh, attn_norm, pass.key_of(layer, Site::attention_dropout),
                    saved.attention_in, [&](Tensor dx, Tensor dy, Tensor x) {
                      attention.backward(run, dx, dy, x, pass, saved.attention);
                    });
}

}  // namespace moe
