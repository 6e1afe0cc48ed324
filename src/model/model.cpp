#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>

#include "core/error.h"
#include "core/threads.h"
#include "model/rope.h"
#include "ops/memory.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

constexpr int64_t kDraws = 1 << 14;               // that are worth a thread
constexpr uint64_t kEmbeddingDropout = 1u << 20;  // beyond any layer's number

// Softplus of them is from 1e-3 to 1e-1, evenly by its logarithm (fla/layers/kda.py).
void draw_strengths(float* x, int64_t n, RngKey key) {
  const double low = std::log(1e-3), high = std::log(1e-1);
  for (int64_t i = 0; i < n; ++i) {
    const double dt =
        std::exp(low + (high - low) * static_cast<double>(uniform(key, static_cast<uint64_t>(i))));
    x[i] = static_cast<float>(dt + std::log(-std::expm1(-dt)));
  }
}

// Of xIELU's numbers, so that both its factors begin at 0.8 (transformers:activations.py,
// XIELUActivation); nothing of other parameters.
std::optional<float> first_of_xielu(ParamKind kind) {
  constexpr float kFactor = 0.8f, kBeta = 0.5f;
  switch (kind) {
    case ParamKind::xielu_alpha_p: return std::log(std::expm1(kFactor));
    case ParamKind::xielu_alpha_n: return std::log(std::expm1(kFactor - kBeta));
    case ParamKind::xielu_beta: return kBeta;
    case ParamKind::xielu_eps: return -1e-6f;
    default: return std::nullopt;
  }
}

// Streams begin as one: a sublayer sees their mean and gives to each what it gives, each goes on as
// it is, but for a hundredth of what the token says (arXiv 2512.24880; transformers:
// hy_v4/modeling_hy_v4.py).
void first_of_streams(const Param& param, const ops::HyperShape& shape) {
  constexpr float kScale = 0.01f, kOwn = 6;
  float* x = param.value.as<float>();
  const int64_t streams = shape.streams;
  if (!param.is_bias() || param.kind == ParamKind::attn_streams_scale ||
      param.kind == ParamKind::ffn_streams_scale || param.kind == ParamKind::end_streams_scale) {
    std::fill_n(x, param.value.numel(), kScale);
    return;
  }
  std::fill_n(x, param.value.numel(), 0.0f);
  std::fill_n(x, streams, -std::log(static_cast<float>(streams - 1)));
  for (int64_t s = 0; shape.mixes && param.value.numel() > streams && s < streams; ++s)
    x[(2 + s) * streams + s] = kOwn;
}

bool is_of_scan_norm(ParamKind kind) {
  return kind == ParamKind::scan_norm || kind == ParamKind::scan_step_norm ||
         kind == ParamKind::scan_b_norm || kind == ParamKind::scan_c_norm;
}

// Of each id so many experts, no two alike, as HashChoice draws them (moe/stages/select.h).
void draw_table(const Param& param, int64_t experts, RngKey key) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  for (int64_t id = 0; id < param.value.rows(); ++id) {
    const RngKey of_id = key.fold(static_cast<uint64_t>(id));
    std::iota(order.begin(), order.end(), int64_t{0});
    for (size_t i = 0; i < static_cast<size_t>(param.value.cols()); ++i) {
      std::swap(order[i], order[i + uniform_index(of_id, i, order.size() - i)]);
      param.value.row<float>(id)[i] = static_cast<float>(order[i]);
    }
  }
}

// One parameter's initial values, each drawn from (key, index in the whole of it).
void draw(const Param& param, const ModelConfig& config, RngKey key) {
  const InitOptions& init = config.init;
  const Tensor& value = param.value;
  const Role role = param.role;
  const auto first = static_cast<uint64_t>(param.share.first *
                                           (value.numel() / std::max<int64_t>(1, value.shape[0])));
  float* x = value.as<float>();
  const int64_t n = value.numel();
  // Decays from e^-0.01, of channels and of state spaces from e^-1, to e^-16 a token of strength 1
  // (github fla-org/flash-linear-attention, fla/layers/gated_deltanet.py, kda.py; github
  // state-spaces/mamba, mamba_ssm/modules/mamba2.py).
  // Of channels the C-th of what they keep decays C times as fast as the first (github
  // state-spaces/mamba, mamba_ssm/modules/mamba_simple.py).
  if (param.kind == ParamKind::scan_a_log && config.scan.selective()) {
    for (int64_t i = 0; i < n; ++i) x[i] = std::log(static_cast<float>(1 + i % config.scan.states));
    return;
  }
  if (param.kind == ParamKind::linear_a_log || param.kind == ParamKind::scan_a_log) {
    const bool heads = param.kind == ParamKind::linear_a_log && !config.linear.by_channel();
    const float least = heads ? 0.01f : 1.0f;
    for (int64_t i = 0; i < n; ++i)
      x[i] = std::log(least + (16 - least) * uniform(key, static_cast<uint64_t>(i)));
    return;
  }
  if (param.kind == ParamKind::scan_dt_bias ||
      (param.kind == ParamKind::linear_dt_bias && config.linear.by_channel()))
    return draw_strengths(x, n, key);
  if (param.kind == ParamKind::table) return draw_table(param, config.routing.experts, key);
  if (is_of_streams(param.kind) && !param.is_matrix()) return first_of_streams(param, config.hyper);
  if (const std::optional<float> factor = first_of_xielu(param.kind)) {
    std::fill_n(x, n, *factor);
    return;
  }
  // A router's fixed matrix, which is a buffer, is drawn as one that learns.
  if (role == Role::norm || role == Role::bias || (role == Role::buffer && value.rank < 2)) {
    const bool of_one =
        role == Role::norm && (!config.norm_offset || param.kind == ParamKind::linear_norm ||
                               is_of_scan_norm(param.kind) || param.kind == ParamKind::scale);
    const bool from_one = of_one || param.kind == ParamKind::linear_dt_bias ||
                          param.kind == ParamKind::scan_skip ||
                          param.kind == ParamKind::layer_scale;
    std::fill_n(x, n, from_one ? 1.0f : 0.0f);
    return;
  }
  const float std = role == Role::residual && init.scale_residual
                        ? init.std / std::sqrt(static_cast<float>(config.sublayers()))
                        : init.std;
  parallel_for(available_threads(), n, kDraws, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t index = first + static_cast<uint64_t>(i);
      x[i] = std * (init.cut > 0 ? truncated_normal(key, index, init.cut) : normal(key, index));
    }
  });
}

// What a layer did, where the CPU can look at it.
MoeLayerSaved on_host(OnHost& host, const MoeLayerSaved& of) {
  MoeLayerSaved here = of;
  Routing& r = here.router;
  for (Tensor* t :
       {&r.x,      &r.raw,          &r.clean,          &r.sigma,          &r.logits,
        &r.lse,    &r.scores,       &r.choice,         &r.selected,       &r.cutoff,
        &r.agreed, &r.weights,      &r.kept,           &r.counts,         &r.balance_counts,
        &r.rows,   &r.kept_weights, &here.plan.weight, &here.rows.weight, &here.rows.x.x})
    *t = host.read(*t);
  RoutingPlan& plan = here.plan;
  plan.token = host.read(plan.token), plan.offsets = host.read(plan.offsets);
  plan.bounds = host.read(plan.bounds), plan.row = host.read(plan.row);
  plan.pair = host.read(plan.pair);
  here.rows.offsets = plan.offsets, here.rows.x.row = plan.token;
  return here;
}

}  // namespace

// What layers did, brought here while the device goes on.
class Model::Told {
 public:
  explicit Told(const Run& run) : later_(run) {}
  LayerRouting of(int64_t layer, const Routing& r) {
    LayerRouting made{.layer = layer, .dropped = r.dropped};
    read(made.counts, r.counts);
    read(made.balance_counts, r.balance_counts);
    read(made.cutoff, r.cutoff);
    read(losses_.emplace_back(), r.losses);
    return made;
  }
  // Of the layers that were asked for, in order.
  void settle(std::vector<LayerRouting>& layers) {
    later_.settle();
    for (size_t i = 0; i < losses_.size(); ++i)
      if (!losses_[i].empty()) layers[i].losses = losses_of(losses_[i].data());
  }

 private:
  // None where it is absent.
  template <class T>
  void read(std::vector<T>& to, const Tensor& from) {
    to.resize(from.empty() ? 0 : static_cast<size_t>(from.numel()));
    if (!from.empty()) later_.read(to.data(), from);
  }

  std::deque<std::vector<float>> losses_;  // of each layer
  Later later_;
};

Model::Model(ModelConfig config, Storage storage, const comm::Group& experts)
    : config_(std::move(config)), storage_(storage), experts_(experts) {
  validate(config_);
  if (experts_.size > 1 && config_.moe_layer_count() == 0)
    fail_usage("the model has no experts that could lie on {} processes", experts_.size);
  if (experts_.size > 1 && experts_.size > config_.routing.experts)
    fail_usage("a layer's {} experts cannot lie on {} processes; each must hold one at least",
               config_.routing.experts, experts_.size);
  if (experts_.size > 1 && config_.by_neuron())
    fail_usage(
        "the experts of a layer are the neurons of one network, which lies on one process; start "
        "it without mpirun");
  const OnParam take = [this](Param& param) { this->take(param); };
  list_input(config_, embedding_, positions_, take);
  if (config_.positions == Positions::rope) {
    for (int64_t i = 0; i < config_.layers; ++i) {
      const AttentionShape shape = config_.attention(i);
      if (shape.rotary_width == 0) continue;
      if (shape.window_turns && !window_rope_)
        window_rope_ = rope_frequencies(shape.rotary_width, config_.window_rope_theta, {});
      if (!shape.window_turns && !rope_)
        rope_ = rope_frequencies(shape.rotary_width, config_.rope_theta, config_.rope_scaling);
      if (!long_rope_ && config_.rope_scaling.kind == RopeScaling::Kind::longrope)
        long_rope_ =
            rope_frequencies(shape.rotary_width, config_.rope_theta, config_.rope_scaling, true);
    }
  }
  for (int64_t i = 0; i < config_.layers; ++i) {
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    list_block(config_, i, block, take);
    if (!block.ffn.router) continue;
    block.ffn.router->index = static_cast<int64_t>(moe_blocks_.size());
    block.ffn.group = experts_;
    moe_blocks_.push_back(&block);
  }
  list_output(config_, end_streams_, final_norm_, lm_head_, lm_head_bias_, take);
  // so that no run is without a limit
  if (storage_ == Storage::bound) ops::limit_copies(params_, {});
}

void Model::take(Param& param) {
  if (param.part == Part::experts && experts_.size > 1) {
    const int64_t all = param.value.shape[0];
    const Span own = partition(all, experts_.rank, experts_.size);
    param.share = {own.begin, all};
    param.value.shape[0] = own.end - own.begin;
  }
  if (storage_ == Storage::owned) param.value.data = zeroed_like(param.value);
  params_.push_back(&param);
}

// Memory of the Model's own for as many zeros as `shape` has numbers.
void* Model::zeroed_like(const Tensor& shape) {
  Arena& memory = is_on_device_ ? on_device_->memory() : memory_;
  return memory.alloc_zeroed_bytes(static_cast<size_t>(shape.bytes()));
}

void Model::move_to(Device* device) {
  if (is_on_device_ == (device != nullptr)) return;
  if (device != nullptr) {
    if (!on_device_) on_device_ = std::make_unique<OnDevice>(params_, *device);
    on_device_->bring_up();
  } else {
    on_device_->bring_back();
  }
  is_on_device_ = device != nullptr;
}

void Model::bind(Param& param, Tensor value, std::vector<const void*> places) {
  const Tensor& wanted = param.value;
  if (value.rank != wanted.rank || value.shape != wanted.shape)
    fail("parameter \"{}\" does not have the shape of {}", param.name, describe(value));
  if (!places.empty() && (value.rank != 3 || static_cast<int64_t>(places.size()) != value.shape[0]))
    fail("parameter \"{}\" is given in {} pieces, which are not its experts", param.name,
         places.size());
  param.bind(value, std::move(places));
}

Tensor Model::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  return memory_.alloc(dtype, shape);
}

Tensor Model::allocate_like(const Tensor& like, DType dtype) {
  const auto& d = like.shape;
  switch (like.rank) {
    case 1: return allocate(dtype, {d[0]});
    case 2: return allocate(dtype, {d[0], d[1]});
    default: return allocate(dtype, {d[0], d[1], d[2]});
  }
}

Param* Model::find(Part part, ParamKind kind, int64_t layer, bool bias) const {
  for (Param* param : params_)
    if (param->part == part && param->kind == kind && param->layer == layer &&
        param->is_bias() == bias)
      return param;
  return nullptr;
}

void Model::initialise(uint64_t seed) {
  const RngKey root = RngKey::from_seed(seed);
  uint64_t index = 0;
  for (Param* param : params_) {
    draw(*param, config_, root.fold(index++));
    param->touched();
  }
  if (moe_blocks_.empty() || !resolved_recipe(config_.routing).zero_init) return;
  for (const Param* param : params_)
    if (param->part == Part::router && param->is_matrix())
      std::memset(param->value.data, 0, static_cast<size_t>(param->value.bytes()));
}

void Model::own(Param& param, int threads) {
  if (!param.is_bound()) return;
  const Tensor copy = allocate_like(param.value, DType::f32);
  copy_as_f32(copy, param, threads);
  param.own(copy);
}

void Model::enable_grads(const std::function<bool(const Param&)>& wanted) {
  for (Param* param : params_) {
    if (wanted && !wanted(*param)) param->grad = {};
    if (!param->is_trained() || !param->grad.empty() || (wanted && !wanted(*param))) continue;
    if (param->is_bound())
      fail_usage("{} lies in a file and cannot be trained; load the model for training",
                 param->name);
    param->grad = param->value;
    param->grad.data = zeroed_like(param->value);
  }
}

void Model::embed(Run& run, Tensor h, const Batch& batch) {
  for (int32_t id : batch.ids)
    if (id < 0 || id >= config_.vocab)
      fail("token id {} is outside the vocabulary of {}", id, config_.vocab);
  if (config_.ends_at_context())
    for (int32_t p : batch.positions)
      if (p >= config_.context)
        fail("{}, and a sequence reaches position {}; shorten the text or the window",
             why_texts_end(config_), p);
  if (!config_.embedding_norm) return look_up(run, h, batch);
  const ArenaScope scope(run.scratch);
  const Tensor x = run.scratch.alloc(DType::f32, {h.rows(), h.cols()}),
               rstd = run.scratch.alloc(DType::f32, {h.rows()});
  look_up(run, x, batch);
  ops::rms_norm_forward(run, h, rstd, x, Param(), config_.norm_eps);
}

void Model::look_up(Run& run, Tensor h, const Batch& batch) {
  ops::embedding_forward(run, h, embedding_, batch.ids);
  if (const float by = config_.multipliers.embedding; by != 1) ops::scale(run, h, h, by);
  if (config_.positions == Positions::learned)
    ops::embedding_forward_acc(run, h, positions_, batch.positions);
}

// The ids are looked up again: what they gave is not kept.
Tensor Model::before_embedding_norm(Run& run, Tensor dh, const Batch& batch) {
  const auto like = [&] { return run.scratch.alloc(DType::f32, {dh.rows(), dh.cols()}); };
  const Tensor x = like(), dx = like(), rstd = run.scratch.alloc(DType::f32, {dh.rows()});
  Param none;
  look_up(run, x, batch);
  ops::rms_norm_forward(run, dx, rstd, x, none, config_.norm_eps);  // for rstd
  ops::rms_norm_backward(run, dx, none, dh, x, rstd);
  return dx;
}

// What the pass wants to know, which is there once `told` has settled, and whom it tells, after a
// block has given h [N,D] f32.
void Model::tell(const Run& run, ModelSaved& saved, Told& told, const Block& block,
                 const Block::Saved& of, const Tensor& h) const {
  OnHost host(run);
  const Pass& pass = saved.pass;
  if (block.ffn.router) {
    const Routing& r = of.ffn.router;
    if (pass.wanted.any()) saved.routing.push_back(told.of(block.layer, r));
    if (pass.on_routing) (*pass.on_routing)(block.layer, on_host(host, of.ffn));
  }
  if (pass.on_block) (*pass.on_block)(block.layer, host.read(h));
}

void Model::prepare(Run& run, Arena& memory, Pass& pass) const {
  const Batch& batch = pass.batch;
  pass.kept = {};
  if (const int64_t top = config_.sparse.top; top > 0) {
    const auto last = std::max_element(batch.positions.begin(), batch.positions.end());
    if (last != batch.positions.end() && *last >= top) {
      if (run.device != nullptr)
        fail("a sequence reaches position {}, but {}; shorten the text, or leave the GPU out",
             *last, why_texts_end(config_));
      const SparseAttention& of = config_.sparse;
      pass.kept =
          memory.alloc(DType::i32, {batch.tokens(), of.block > 0 ? of.heads * of.blocks() : top});
    }
  }
  if (config_.has_entries() && run.device != nullptr)
    fail("attention to entries that stand for several tokens is not done on a GPU; leave it out");
  const auto table = [&](const std::optional<ops::RopeFrequencies>& rope) {
    return rope ? ops::cos_sin_table(run, memory, batch.positions, *rope) : ops::CosSinTable{};
  };
  if (long_rope_) {
    std::vector<bool> stretch;
    for (size_t s = 0; s + 1 < batch.bounds.size(); ++s) {
      const auto last = static_cast<size_t>(batch.bounds[s + 1]);
      stretch.push_back(
          pass.cache ? pass.cache->stretched(batch.slots[s])
                     : last > 0 && stretches(config_.rope_scaling, batch.positions[last - 1] + 1));
    }
    pass.cos_sin = cos_sin_of(run, memory, batch, *rope_, *long_rope_, stretch);
  } else {
    pass.cos_sin = table(rope_);
    pass.frequencies = rope_ ? &*rope_ : nullptr;
  }
  pass.window_cos_sin = table(window_rope_);
  if (config_.query_growth.present())
    pass.query_cos_sin = grown_cos_sin(run, memory, batch,
                                       config_.latent.present() || config_.query_growth.where_still
                                           ? still_frequencies(config_.head_width)
                                           : *rope_,
                                       config_.query_growth);
}

Tensor Model::end_of_last(Run& run, Tensor h, const CutRows& rows, ModelSaved& saved) {
  Block& block = *blocks_.back();
  if (!rows.before.empty()) {
    const ArenaScope kept(run.saved), scope(run.scratch);
    Pass before = rows.before.pass(saved.pass);
    prepare(run, run.saved, before);
    block.remember(run, rows.before.of(run, run.scratch, h), before);
  }
  if (rows.last.empty()) return {};
  const Tensor out = run.saved.alloc(DType::f32, {rows.last.count(), h.cols()});
  const ArenaScope kept(run.saved), scope(run.scratch);
  Pass last = rows.last.pass(saved.pass);
  prepare(run, run.saved, last);
  block.forward(run, out, rows.last.of(run, run.scratch, h), last, saved.blocks.back());
  return out;
}

void Model::forward(Run& run, const Pass& pass, ModelSaved& saved) {
  const int64_t tokens = pass.batch.tokens();
  const auto layers = static_cast<size_t>(config_.layers);
  if (pass.recorded && pass.recorded->size() != moe_blocks_.size())
    fail("the recorded routing is of {} layers, the model has {} that route", pass.recorded->size(),
         moe_blocks_.size());
  std::optional<CutRows> rows;
  if (!pass.last_rows.empty()) rows.emplace(pass);
  const bool looked_at = pass.on_routing || pass.on_block || pass.recorded || pass.wanted.any(),
             cut = rows && pass.cache && !looked_at && spares_last_block();
  saved = {};
  saved.pass = pass;
  saved.blocks.resize(layers);
  const size_t buffers = pass.keep == Keep::nothing ? 2 : layers + 1,
               whole = layers - (cut ? 1 : 0);
  for (size_t i = 0; i < buffers; ++i)
    saved.h.push_back(run.saved.alloc(DType::f32, {tokens, stream_width()}));
  saved.hidden = run.saved.alloc(run.compute, {rows ? rows->last.count() : tokens, config_.width});
  prepare(run, run.saved, saved.pass);
  if (config_.shortcut) saved.pass.late = run.saved.alloc(DType::f32, {tokens, config_.width});

  Told told(run);
  begin(run, saved.h[0], pass);
  for (size_t i = 0; i < whole; ++i) {
    const Arena::Mark mark = run.saved.mark();
    const Tensor out = saved.h[(i + 1) % buffers];
    blocks_[i]->forward(run, out, saved.h[i % buffers], saved.pass, saved.blocks[i]);
    tell(run, saved, told, *blocks_[i], saved.blocks[i], out);
    if (pass.keep != Keep::all) run.saved.rewind(mark);
  }
  Tensor last = saved.h[whole % buffers];
  if (cut) last = end_of_last(run, last, *rows, saved);
  else if (rows && !rows->last.empty()) last = rows->last.of(run, run.saved, last);
  if (saved.hidden.rows() > 0) finish(run, last, saved);
  told.settle(saved.routing);
}

void Model::begin(Run& run, Tensor h, const Pass& pass) {
  const Tensor first = h.slice_cols(0, config_.width);
  embed(run, first, pass.batch);
  if (config_.dropout > 0 && pass.draws())
    ops::dropout(run, first, first, config_.dropout, pass.key.fold(kEmbeddingDropout));
  for (int64_t at = config_.width; at < h.cols(); at += config_.width)
    ops::cast(run, h.slice_cols(at, at + config_.width), first);
}

void Model::begin_backward(Run& run, Tensor dh, const Pass& pass) {
  Tensor d = dh.slice_cols(0, config_.width);
  for (int64_t at = config_.width; at < dh.cols(); at += config_.width)
    ops::add(run, d, d, dh.slice_cols(at, at + config_.width));
  if (config_.dropout > 0 && pass.draws())
    ops::dropout(run, d, d, config_.dropout, pass.key.fold(kEmbeddingDropout));
  if (config_.embedding_norm) d = before_embedding_norm(run, d, pass.batch);
  if (config_.positions == Positions::learned)
    ops::embedding_backward(run, positions_, d, pass.batch.positions);
  if (const float by = config_.multipliers.embedding; by != 1) ops::scale(run, d, d, by);
  ops::embedding_backward(run, embedding_, d, pass.batch.ids);
}

void Model::finish(Run& run, Tensor last, ModelSaved& saved) {
  if (end_streams_) {
    const Tensor x = run.saved.alloc(DType::f32, {last.rows(), config_.width});
    end_streams_->collapse(run, x, last, saved.end_streams);
    last = x;
  }
  if (has_final_norm(config_)) final_norm_.forward(run, saved.hidden, last, saved.final_norm);
  else ops::cast(run, saved.hidden, last);
  if (const float by = config_.multipliers.logits; by != 1)
    ops::scale(run, saved.hidden, saved.hidden, 1 / by);
}

void Model::finish_backward(Run& run, Tensor dh, Tensor dhidden, const ModelSaved& saved) {
  if (const float by = config_.multipliers.logits; by != 1)
    ops::scale(run, dhidden, dhidden, 1 / by);
  const bool normed = has_final_norm(config_);
  if (!end_streams_) {
    if (normed) final_norm_.backward(run, dh, dhidden, saved.final_norm);
    return;
  }
  const ArenaScope scope(run.scratch);
  const Tensor dx = run.scratch.alloc(DType::f32, {dhidden.rows(), dhidden.cols()}),
               dw = run.scratch.alloc(DType::f32, {dh.rows(), saved.end_streams.w.cols()});
  final_norm_.backward(run, dx, dhidden, saved.final_norm);
  ops::zero(run, dh);
  end_streams_->collapse_backward_acc(run, dh, dw, dx, saved.end_streams);
}

// On a device they are made there and brought here once: an op would first take there what stands
// in `out`.
void Model::logits(Run& run, Tensor out, Tensor hidden) {
  Device* device = run.scratch.device();
  if (device == nullptr || device->owns(out.data))
    return lm_head_logits(run, out, hidden, lm_head());
  const ArenaScope scope(run.scratch);
  const Tensor made = run.scratch.alloc(out.dtype, {out.rows(), out.cols()});
  lm_head_logits(run, made, hidden, lm_head());
  device->download(out.data, made.data, static_cast<size_t>(out.bytes()));
}

LmHead Model::lm_head() {
  return {config_.tied ? &embedding_ : &lm_head_, &lm_head_bias_, config_.logit_cap};
}

void Model::loss_forward(Run& run, Tensor nll, std::span<const int32_t> targets,
                         ModelSaved& saved) {
  loss_forward(run, nll, {}, targets, {}, saved);
}

void Model::loss_forward(Run& run, Tensor nll, Tensor kl, std::span<const int32_t> targets,
                         const LmHeadTeacher& teacher, ModelSaved& saved) {
  for (int32_t t : targets)
    if (t != ops::kIgnoreTarget && (t < 0 || t >= config_.vocab))
      fail("target id {} is outside the vocabulary of {}", t, config_.vocab);
  if (teacher.present() && teacher.head.vocab() != config_.vocab)
    fail("the teacher's vocabulary is {}, the model's {}; they must be the same",
         teacher.head.vocab(), config_.vocab);
  lm_head_loss_forward(run, nll, kl, saved.hidden, lm_head(), targets, teacher, saved.lm_head);
}

void Model::end_step(const Run& run, const RoutingSpec& training,
                     std::span<const LayerStep> layers) {
  if (layers.size() != moe_blocks_.size())
    fail("the step has the routing of {} layers, the model has {} that route", layers.size(),
         moe_blocks_.size());
  for (size_t i = 0; i < layers.size(); ++i)
    moe_blocks_[i]->ffn.router->end_step(run, training, layers[i].counts, layers[i].cutoff);
}

void Model::backward(Run& run, std::span<const int32_t> targets, float scale,
                     const RoutingLosses& coef, ModelSaved& saved, std::span<const float> weights) {
  ArenaScope scope(run.scratch);
  const int64_t tokens = saved.hidden.rows();
  const Tensor dh = run.scratch.alloc(DType::f32, {tokens, stream_width()});
  Tensor dhidden = dh;  // [N,D]
  if (has_final_norm(config_)) dhidden = run.scratch.alloc(DType::f32, {tokens, config_.width});
  lm_head_loss_backward(run, dhidden, lm_head(), targets, scale, saved.lm_head, weights);
  finish_backward(run, dh, dhidden, saved);
  Pass pass = saved.pass;
  pass.wanted = {};  // the forward has told it
  if (config_.shortcut) pass.dlate = run.scratch.alloc(DType::f32, {tokens, config_.width});
  for (size_t i = blocks_.size(); i-- > 0;) {
    ArenaScope recomputed(run.saved);
    if (pass.keep == Keep::inputs) {
      Tensor out = run.saved.alloc(DType::f32, {tokens, stream_width()});
      blocks_[i]->forward(run, out, saved.h[i], pass, saved.blocks[i]);
    }
    blocks_[i]->backward(run, dh, pass, coef, saved.blocks[i]);
  }
  begin_backward(run, dh, pass);
}

ModelsOn::ModelsOn(Device* where, std::initializer_list<Model*> models) {
  for (Model* model : models) {
    if (model == nullptr) continue;
    before_.push_back({model, model->device()});
    model->move_to(where);
  }
}

// A device that failed is told of by who waits for it next.
ModelsOn::~ModelsOn() {
  try {
    for (const Before& b : before_) b.model->move_to(b.device);
  } catch (...) {
  }
}

}  // namespace moe
