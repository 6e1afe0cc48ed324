#include "model/block.h"

namespace moe {
namespace {

enum Site : uint64_t { kAttentionDropout, kFfnDropout, kRouterNoise };

RngKey site_key(const BlockPass& pass, Site site) { return pass.key.empty() ? RngKey{} : pass.key.fold(site); }

}  // namespace

template <class F>
void Block::sublayer_forward(Run& run, Tensor out, Tensor h, Norm& norm, const BlockPass& pass, RngKey dropout_key, SublayerSaved& saved, F&& body) {
  const bool pre = placement == NormPlacement::pre;
  saved.x = run.saved.alloc(run.compute, {h.rows(), h.cols()});
  if (pre) norm.forward(run, saved.x, h, saved.norm);
  else ops::cast(run, saved.x, h);
  // A post-norm's input must outlive this call, a pre-norm sublayer's sum is the output itself.
  ArenaScope scope(run.scratch);
  Tensor sum = pre ? out : run.saved.alloc(DType::f32, {h.rows(), h.cols()});
  Tensor y = run.scratch.alloc(DType::f32, {h.rows(), h.cols()});
  body(y, saved.x);
  if (pass.dropout > 0 && !dropout_key.empty()) ops::dropout(run, y, y, pass.dropout, dropout_key);
  ops::add(run, sum, h, y);
  if (!pre) norm.forward(run, out, sum, saved.norm);
}

template <class F>
void Block::sublayer_backward(Run& run, Tensor dh, Norm& norm, const BlockPass& pass, RngKey dropout_key, const SublayerSaved& saved, F&& body) {
  ArenaScope scope(run.scratch);
  const bool pre = placement == NormPlacement::pre;
  const auto stream = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  Tensor dsum = dh;
  if (!pre) {
    dsum = stream();
    norm.backward(run, dsum, dh, saved.norm);
  }
  Tensor dy = dsum;  // [N,D] in the activations' dtype, as the products want it
  if (run.compute != DType::f32 || pass.dropout > 0) {
    dy = run.scratch.alloc(run.compute, {dh.rows(), dh.cols()});
    if (pass.dropout > 0 && !dropout_key.empty()) ops::dropout(run, dy, dsum, pass.dropout, dropout_key);
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

void Block::forward(Run& run, Tensor out, Tensor h, const BlockPass& pass, Saved& saved) {
  Tensor u = run.saved.alloc(DType::f32, {h.rows(), h.cols()});
  forward_attention(run, u, h, pass, saved);
  forward_ffn(run, out, u, pass, saved);
}

void Block::forward_attention(Run& run, Tensor u, Tensor h, const BlockPass& pass, Saved& saved) {
  sublayer_forward(run, u, h, norm1, pass, site_key(pass, kAttentionDropout), saved.attention_in,
                   [&](Tensor y, Tensor x) { attention.forward(run, y, x, *pass.batch, pass.turns, pass.cache, pass.layer, saved.attention); });
}

void Block::forward_ffn(Run& run, Tensor out, Tensor u, const BlockPass& pass, Saved& saved) {
  const RouterInput input{pass.batch->ids, pass.batch->bounds, pass.step_counts, pass.recorded, pass.layer};
  sublayer_forward(run, out, u, norm2, pass, site_key(pass, kFfnDropout), saved.ffn_in,
                   [&](Tensor y, Tensor x) { ffn.forward(run, y, x, input, pass.routing, site_key(pass, kRouterNoise), saved.ffn); });
}

void Block::backward(Run& run, Tensor dh, const BlockPass& pass, const RoutingLosses& coef, const Saved& saved) {
  sublayer_backward(run, dh, norm2, pass, site_key(pass, kFfnDropout), saved.ffn_in,
                    [&](Tensor dx, Tensor dy, Tensor x) { ffn.backward(run, dx, dy, x, pass.routing, coef, saved.ffn); });
  sublayer_backward(run, dh, norm1, pass, site_key(pass, kAttentionDropout), saved.attention_in,
                    [&](Tensor dx, Tensor dy, Tensor x) { attention.backward(run, dx, dy, x, *pass.batch, pass.turns, saved.attention); });
}

}  // namespace moe
