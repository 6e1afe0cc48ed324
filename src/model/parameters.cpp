#include "model/parameters.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>

#include "core/threads.h"
#include "model/norm_places.h"
#include "tensor/quant.h"

namespace moe {
namespace {

// Writes down what a parameter is and tells of it.
class List {
 public:
  List(const ModelConfig& config, const OnParam& on_param, int64_t layer = -1)
      : c(config), on_param_(on_param), layer_(layer) {}

  void add(Param& param, Part part, ParamKind kind, std::string_view name, Role role,
           std::initializer_list<int64_t> shape) const {
    param.part = part;
    param.kind = kind;
    param.layer = layer_;
    param.name = layer_ < 0 ? std::string(name) : fmt::format("layers.{}.{}", layer_, name);
    param.role = role;
    param.frozen = is_of_indexer(kind);
    param.value = Tensor(nullptr, DType::f32, shape);
    on_param_(param);
  }
  void norm(Norm& norm, ParamKind kind, const std::string& name) const {
    norm.kind = c.norm;
    norm.eps = c.norm_eps;
    norm.offset = c.norm_offset ? 1 : 0;
    if (c.norm_weights)
      add(norm.weight, Part::norms, kind, name + ".weight", Role::norm, {c.width});
    if (c.norm_bias && c.norm == NormKind::layer)
      add(norm.bias, Part::norms, kind, name + ".bias", Role::bias, {c.width});
  }
  void streams(HyperConnection& streams, ParamKind kind, ParamKind scale, std::string_view name,
               int64_t weights, int64_t parts) const;
  void norm_gate(NormGate& gate, ParamKind down, ParamKind up, const std::string& name) const {
    add(gate.down, Part::norms, down, name + "_gate_down.weight", Role::matrix,
        {c.norm_gate, c.width});
    add(gate.up, Part::norms, up, name + "_gate_up.weight", Role::matrix, {c.width, c.norm_gate});
  }
  void attention(Attention& attention) const;
  void latent_attention(Attention& attention) const;
  void indexer(Indexer& indexer, const AttentionShape& shape) const;
  void block_indexer(Indexer& indexer, const AttentionShape& shape) const;
  void shared_attention(Attention& attention) const;
  struct EntryKinds {
    ParamKind kv, gate, bias, norm;
    const char* name;
  };
  void compressor(Compressor& of, const Entries& entries, int64_t width, const EntryKinds&) const;
  void entries(Attention& attention) const;
  void linear_attention(DeltaNet& linear) const;
  void gated_conv(GatedConv& conv) const;
  void state_space(StateScan& scan) const;
  void selective_scan(SelectiveScan& scan) const;
  void lightning(Lightning& lightning) const;
  void router(Router& router) const;
  void branch_norms(BranchNorms& norms) const;
  void bank(ExpertBank& bank, Part part, const std::string& name, int64_t experts, int64_t width,
            bool down_bias) const;
  void neurons(ExpertBank& bank) const;

  const ModelConfig& c;

 private:
  const OnParam& on_param_;
  int64_t layer_;
};

void List::streams(HyperConnection& streams, ParamKind kind, ParamKind scale, std::string_view name,
                   int64_t weights, int64_t parts) const {
  const std::string of(name);
  streams.shape = c.hyper;
  streams.norm_eps = c.norm_eps;
  add(streams.weight, Part::norms, kind, of + ".weight", Role::matrix,
      {weights, c.hyper.streams * c.width});
  add(streams.base, Part::norms, kind, of + ".base", Role::bias, {weights});
  add(streams.scale, Part::norms, scale, of + ".scale", Role::bias, {parts});
}

// The norms' epsilon is not the model's: the families' code has a constant
// (transformers:deepseek_v3/modeling_deepseek_v3.py).
void List::latent_attention(Attention& attention) const {
  constexpr float kLatentEps = 1e-6f;
  const AttentionShape& shape = attention.shape;
  const LatentAttention& l = shape.latent;
  const auto matrix = [&](Param& param, ParamKind kind, std::string_view name, int64_t out,
                          int64_t in) {
    add(param, Part::attention, kind, name, Role::matrix, {out, in});
  };
  const auto norm = [&](Norm& of, ParamKind kind, std::string_view name, int64_t width) {
    of.eps = kLatentEps;
    add(of.weight, Part::attention, kind, name, Role::norm, {width});
  };
  Latents& latents = attention.latents.emplace();
  if (l.query_width > 0) {
    matrix(latents.q_a, ParamKind::q_a, "attn.q_a.weight", l.query_width, c.width);
    norm(latents.q_norm.emplace(), ParamKind::q_a_norm, "attn.q_a_norm.weight", l.query_width);
    matrix(attention.q, ParamKind::q_b, "attn.q_b.weight", shape.q_width(), l.queries_of());
    latents.both = l.query_both;
    latents.q_factor = l.query_factor;
  } else {
    matrix(attention.q, ParamKind::q, "attn.q.weight", shape.q_width(), c.width);
  }
  matrix(latents.kv_a, ParamKind::kv_a, "attn.kv_a.weight", l.width, c.width);
  matrix(latents.k_rope, ParamKind::k_rope, "attn.k_rope.weight", shape.shared_width, c.width);
  norm(latents.kv_norm, ParamKind::kv_a_norm, "attn.kv_a_norm.weight", l.width);
  latents.kv_factor = l.factor;
  matrix(attention.k, ParamKind::k_b, "attn.k_b.weight",
         shape.heads * (shape.key_width - shape.shared_width), l.width);
  matrix(attention.v, ParamKind::v_b, "attn.v_b.weight", shape.v_width(), l.width);
  add(attention.o, Part::attention, ParamKind::o, "attn.o.weight", Role::residual,
      {c.width, shape.o_width()});
  if (shape.gates > 0)
    matrix(attention.gate, ParamKind::o_gate, "attn.o_gate.weight", shape.gates,
           l.query_both ? l.queries_of() : c.width);
  if (c.attention_sinks)
    add(attention.sinks, Part::attention, ParamKind::sinks, "attn.sinks", Role::bias,
        {shape.heads});
  if (shape.index_heads > 0) indexer(attention.indexer.emplace(), shape);
}

// The norms' epsilon is the model's (transformers:deepseek_v4/modeling_deepseek_v4.py).
void List::shared_attention(Attention& attention) const {
  const AttentionShape& shape = attention.shape;
  const LatentAttention& l = shape.latent;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> of) {
    add(param, Part::attention, kind, name, role, of);
  };
  Latents& latents = attention.latents.emplace();
  own(latents.q_a, ParamKind::q_a, "attn.q_a.weight", Role::matrix, {l.query_width, c.width});
  latents.q_norm.emplace().eps = latents.kv_norm.eps = c.norm_eps;
  own(latents.q_norm->weight, ParamKind::q_a_norm, "attn.q_a_norm.weight", Role::norm,
      {l.query_width});
  own(attention.q, ParamKind::q_b, "attn.q_b.weight", Role::matrix,
      {shape.q_width(), l.query_width});
  own(latents.kv_a, ParamKind::kv_a, "attn.kv_a.weight", Role::matrix, {l.width, c.width});
  own(latents.kv_norm.weight, ParamKind::kv_a_norm, "attn.kv_a_norm.weight", Role::norm, {l.width});
  attention.q_norm.emplace().eps = c.norm_eps;
  if (l.out_groups > 0)
    own(attention.o_a, ParamKind::o_a, "attn.o_a.weight", Role::matrix,
        {l.out_groups, l.out_width, shape.o_width() / l.out_groups});
  own(attention.o, ParamKind::o, "attn.o.weight", Role::residual, {c.width, shape.out_width()});
  if (shape.sinks) own(attention.sinks, ParamKind::sinks, "attn.sinks", Role::bias, {shape.heads});
  if (shape.entries.present()) entries(attention);
}

void List::compressor(Compressor& of, const Entries& entries, int64_t width,
                      const EntryKinds& kinds) const {
  const std::string name = kinds.name;
  const auto own = [&](Param& param, ParamKind kind, const char* what, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::attention, kind, name + what, role, shape);
  };
  const int64_t all = entries.parts() * width;
  own(of.kv, kinds.kv, ".kv.weight", Role::matrix, {all, c.width});
  own(of.gate, kinds.gate, ".gate.weight", Role::matrix, {all, c.width});
  own(of.bias, kinds.bias, ".bias", Role::bias, {entries.tokens, all});
  of.norm.eps = c.norm_eps;
  own(of.norm.weight, kinds.norm, ".norm.weight", Role::norm, {width});
}

void List::entries(Attention& attention) const {
  const Entries& e = attention.shape.entries;
  compressor(attention.entries.emplace(), e, attention.shape.key_width,
             {ParamKind::entry_kv, ParamKind::entry_gate, ParamKind::entry_bias,
              ParamKind::entry_norm, "attn.entries"});
  if (!e.chosen()) return;
  EntryIndexer& indexer = attention.entry_indexer.emplace();
  compressor(indexer.keys, e, e.width,
             {ParamKind::entry_index_kv, ParamKind::entry_index_gate, ParamKind::entry_index_bias,
              ParamKind::entry_index_norm, "attn.entry_index"});
  add(indexer.q, Part::attention, ParamKind::index_q, "attn.index_q.weight", Role::matrix,
      {e.heads * e.width, attention.shape.latent.query_width});
  add(indexer.weights, Part::attention, ParamKind::index_weights, "attn.index_weights.weight",
      Role::matrix, {e.heads, c.width});
}

void List::indexer(Indexer& indexer, const AttentionShape& shape) const {
  const int64_t heads = shape.index_heads, width = shape.index_width;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> of) {
    add(param, Part::attention, kind, name, role, of);
  };
  own(indexer.q, ParamKind::index_q, "attn.index_q.weight", Role::matrix,
      {heads * width, shape.latent.query_width});
  own(indexer.k, ParamKind::index_k, "attn.index_k.weight", Role::matrix, {width, c.width});
  indexer.k_norm.kind = NormKind::layer;
  indexer.k_norm.eps = c.sparse.norm_eps;
  own(indexer.k_norm.weight, ParamKind::index_k_norm, "attn.index_k_norm.weight", Role::norm,
      {width});
  own(indexer.k_norm.bias, ParamKind::index_k_norm, "attn.index_k_norm.bias", Role::bias, {width});
  own(indexer.weights, ParamKind::index_weights, "attn.index_weights.weight", Role::matrix,
      {heads, c.width});
}

// Its norms are as those of attention's queries and keys.
void List::block_indexer(Indexer& indexer, const AttentionShape& shape) const {
  const int64_t heads = shape.index_heads, width = shape.index_width;
  const auto matrix = [&](Param& param, ParamKind kind, std::string_view name, int64_t out) {
    add(param, Part::attention, kind, name, Role::matrix, {out, c.width});
  };
  const auto norm = [&](Norm& of, ParamKind kind, std::string_view name) {
    of.eps = c.norm_eps;
    of.offset = c.norm_offset ? 1 : 0;
    add(of.weight, Part::attention, kind, name, Role::norm, {width});
  };
  matrix(indexer.q, ParamKind::index_q, "attn.index_q.weight", heads * width);
  norm(indexer.q_norm.emplace(), ParamKind::index_q_norm, "attn.index_q_norm.weight");
  matrix(indexer.k, ParamKind::index_k, "attn.index_k.weight", width);
  norm(indexer.k_norm, ParamKind::index_k_norm, "attn.index_k_norm.weight");
}

void List::attention(Attention& attention) const {
  const AttentionShape& shape = attention.shape = c.attention(layer_);
  if (shape.latent.shared) return shared_attention(attention);
  if (shape.latent.present()) return latent_attention(attention);
  const auto projection = [&](Param& weight, Param& bias, bool biased, ParamKind kind,
                              const std::string& name, Role role, int64_t out, int64_t in) {
    add(weight, Part::attention, kind, name + ".weight", role, {out, in});
    if (biased) add(bias, Part::attention, kind, name + ".bias", Role::bias, {out});
  };
  projection(attention.q, attention.q_bias, c.attention_bias, ParamKind::q, "attn.q", Role::matrix,
             shape.q_width(), c.width);
  projection(attention.k, attention.k_bias, c.attention_bias, ParamKind::k, "attn.k", Role::matrix,
             shape.k_width(), c.width);
  if (!shape.values_of_keys)
    projection(attention.v, attention.v_bias, c.attention_bias, ParamKind::v, "attn.v",
               Role::matrix, shape.v_width(), c.width);
  projection(attention.o, attention.o_bias, c.attention_out_bias, ParamKind::o, "attn.o",
             Role::residual, c.width, shape.o_width());
  if (shape.gates > 0)
    add(attention.gate, Part::attention, ParamKind::o_gate, "attn.o_gate.weight", Role::matrix,
        {shape.gates, c.width});
  if (shape.sinks)
    add(attention.sinks, Part::attention, ParamKind::sinks, "attn.sinks", Role::bias,
        {shape.heads});
  if (shape.index_heads > 0) block_indexer(attention.indexer.emplace(), shape);
  if (shape.value_norm) attention.v_norm.emplace().eps = c.norm_eps;
  if (shape.qk_norm == QkNorm::none) return;
  const auto qk_norm = [&](std::optional<Norm>& norm, ParamKind kind, std::string_view name,
                           int64_t full) {
    norm.emplace();
    norm->eps = c.norm_eps;
    norm->offset = c.norm_offset ? 1 : 0;
    if (!c.norm_weights || shape.qk_norm == QkNorm::bare) return;
    add(norm->weight, Part::attention, kind, name, Role::norm,
        {shape.qk_norm == QkNorm::head ? shape.key_width : full});
  };
  qk_norm(attention.q_norm, ParamKind::q_norm, "attn.q_norm.weight", shape.q_width());
  qk_norm(attention.k_norm, ParamKind::k_norm, "attn.k_norm.weight", shape.k_width());
}

void List::linear_attention(DeltaNet& linear) const {
  const LinearAttention& l = linear.shape = c.linear;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::attention, kind, name, role, shape);
  };
  const auto projection = [&](Param& param, ParamKind kind, std::string_view name, int64_t width) {
    own(param, kind, name, Role::matrix, {width, c.width});
  };
  projection(linear.q, ParamKind::linear_q, "linear.q.weight", l.k_width());
  projection(linear.k, ParamKind::linear_k, "linear.k.weight", l.k_width());
  projection(linear.v, ParamKind::linear_v, "linear.v.weight", l.v_width());
  if (l.gate_width > 0) {
    projection(linear.z_in, ParamKind::linear_z_in, "linear.z_in.weight", l.gate_width);
    projection(linear.a_in, ParamKind::linear_a_in, "linear.a_in.weight", l.gate_width);
    own(linear.z, ParamKind::linear_z, "linear.z.weight", Role::matrix,
        {l.v_width(), l.gate_width});
    own(linear.a, ParamKind::linear_a_out, "linear.a_out.weight", Role::matrix,
        {l.decays(), l.gate_width});
  } else {
    projection(linear.z, ParamKind::linear_z, "linear.z.weight", l.v_width());
    if (l.by_channel())
      projection(linear.a, ParamKind::linear_a_out, "linear.a_out.weight", l.decays());
  }
  projection(linear.b, ParamKind::linear_b, "linear.b.weight", l.value_heads);
  if (!l.by_channel()) projection(linear.a, ParamKind::linear_a, "linear.a.weight", l.value_heads);
  own(linear.conv, ParamKind::linear_conv, "linear.conv.weight", Role::matrix,
      {l.channels(), l.conv_width});
  own(linear.dt_bias, ParamKind::linear_dt_bias, "linear.dt_bias", Role::bias, {l.decays()});
  own(linear.a_log, ParamKind::linear_a_log, "linear.a_log", Role::bias, {l.value_heads});
  linear.norm.eps = l.norm_eps > 0 ? l.norm_eps : c.norm_eps;
  own(linear.norm.weight, ParamKind::linear_norm, "linear.norm.weight", Role::norm,
      {l.value_width});
  own(linear.o, ParamKind::linear_o, "linear.o.weight", Role::residual, {c.width, l.v_width()});
}

void List::gated_conv(GatedConv& conv) const {
  const auto projection = [&](Param& param, ParamKind kind, std::string_view name, Role role) {
    add(param, Part::attention, kind, name, role, {c.width, c.width});
  };
  projection(conv.b, ParamKind::conv_b, "conv.b.weight", Role::matrix);
  projection(conv.c, ParamKind::conv_c, "conv.c.weight", Role::matrix);
  projection(conv.x, ParamKind::conv_x, "conv.x.weight", Role::matrix);
  add(conv.conv, Part::attention, ParamKind::conv, "conv.conv.weight", Role::matrix,
      {c.width, c.conv_width});
  projection(conv.o, ParamKind::conv_o, "conv.o.weight", Role::residual);
}

void List::state_space(StateScan& scan) const {
  const StateSpace& s = scan.shape = c.scan;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::attention, kind, name, role, shape);
  };
  own(scan.z, ParamKind::scan_z, "scan.z.weight", Role::matrix, {s.values(), c.width});
  own(scan.xbc, ParamKind::scan_xbc, "scan.xbc.weight", Role::matrix, {s.channels(), c.width});
  own(scan.dt, ParamKind::scan_dt, "scan.dt.weight", Role::matrix, {s.heads, c.width});
  own(scan.conv, ParamKind::scan_conv, "scan.conv.weight", Role::matrix,
      {s.channels(), s.conv_width});
  if (s.conv_bias)
    own(scan.conv_bias, ParamKind::scan_conv, "scan.conv.bias", Role::bias, {s.channels()});
  own(scan.dt_bias, ParamKind::scan_dt_bias, "scan.dt_bias", Role::bias, {s.heads});
  own(scan.a_log, ParamKind::scan_a_log, "scan.a_log", Role::bias, {s.heads});
  own(scan.skip, ParamKind::scan_skip, "scan.skip", Role::bias, {s.heads});
  scan.eps = c.norm_eps;
  scan.factors = c.multipliers.scan_in;
  if (s.norm) own(scan.norm, ParamKind::scan_norm, "scan.norm.weight", Role::norm, {s.values()});
  own(scan.o, ParamKind::scan_o, "scan.o.weight", Role::residual, {c.width, s.values()});
}

void List::selective_scan(SelectiveScan& scan) const {
  const StateSpace& s = scan.shape = c.scan;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::attention, kind, name, role, shape);
  };
  own(scan.x, ParamKind::scan_x, "scan.x.weight", Role::matrix, {s.values(), c.width});
  own(scan.z, ParamKind::scan_z, "scan.z.weight", Role::matrix, {s.values(), c.width});
  own(scan.conv, ParamKind::scan_conv, "scan.conv.weight", Role::matrix,
      {s.values(), s.conv_width});
  if (s.conv_bias)
    own(scan.conv_bias, ParamKind::scan_conv, "scan.conv.bias", Role::bias, {s.values()});
  own(scan.made, ParamKind::scan_made, "scan.made.weight", Role::matrix, {s.made(), s.values()});
  scan.eps = c.norm_eps;
  if (s.norm) {
    const auto norm = [&](Param& param, ParamKind kind, std::string_view name, int64_t width) {
      own(param, kind, name, Role::norm, {width});
    };
    norm(scan.step_norm, ParamKind::scan_step_norm, "scan.step_norm.weight", s.step_rank);
    norm(scan.b_norm, ParamKind::scan_b_norm, "scan.b_norm.weight", s.states);
    norm(scan.c_norm, ParamKind::scan_c_norm, "scan.c_norm.weight", s.states);
  }
  own(scan.step, ParamKind::scan_step, "scan.step.weight", Role::matrix, {s.values(), s.step_rank});
  own(scan.dt_bias, ParamKind::scan_dt_bias, "scan.dt_bias", Role::bias, {s.values()});
  own(scan.a_log, ParamKind::scan_a_log, "scan.a_log", Role::bias, {s.values(), s.states});
  own(scan.skip, ParamKind::scan_skip, "scan.skip", Role::bias, {s.values()});
  own(scan.o, ParamKind::scan_o, "scan.o.weight", Role::residual, {c.width, s.values()});
}

void List::lightning(Lightning& lightning) const {
  const int64_t values = c.q_width();
  lightning.heads = c.heads;
  lightning.width = c.head_width;
  lightning.act = c.act;
  for (int64_t h = 0; h < c.heads; ++h)
    lightning.log_slopes.push_back(
        static_cast<float>(std::log(lightning_slope(h, c.heads, layer_, c.layers))));
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::attention, kind, name, role, shape);
  };
  own(lightning.q, ParamKind::lightning_q, "lightning.q.weight", Role::matrix, {values, c.width});
  own(lightning.k, ParamKind::lightning_k, "lightning.k.weight", Role::matrix, {values, c.width});
  own(lightning.v, ParamKind::lightning_v, "lightning.v.weight", Role::matrix, {values, c.width});
  own(lightning.z, ParamKind::lightning_z, "lightning.z.weight", Role::matrix, {values, c.width});
  lightning.norm.eps = c.lightning_norm_eps;
  own(lightning.norm.weight, ParamKind::lightning_norm, "lightning.norm.weight", Role::norm,
      {values});
  own(lightning.o, ParamKind::lightning_o, "lightning.o.weight", Role::residual, {c.width, values});
}

void List::router(Router& router) const {
  const RoutingSpec spec = train_spec(c.routing);
  const int64_t experts = c.routing.scored(), d = c.width;
  const auto own = [&](Param& param, ParamKind kind, std::string_view name, Role role,
                       std::initializer_list<int64_t> shape) {
    add(param, Part::router, kind, name, role, shape);
  };
  router.logit.act = c.act;
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  const Role matrix = is_fixed(spec.logits) ? Role::buffer : Role::matrix;
  if (needs_logits(spec.select))
    own(router.logit.weight, ParamKind::weight, "ffn.router.weight", matrix, {experts, d});
  if (!linear && c.gated)
    own(router.logit.up, ParamKind::up, "ffn.router.up.weight", matrix, {experts, d});
  if (linear && linear->bias)
    own(router.logit.bias, ParamKind::weight, "ffn.router.logit_bias", Role::bias, {experts});
  if (has_expert_scale(spec.weigh))
    own(router.scale, ParamKind::scale, "ffn.router.scale",
        first_expert_scale(spec.weigh) == 1 ? Role::norm : Role::bias, {experts});
  if (std::holds_alternative<LearnedNoise>(spec.noise))
    own(router.noise, ParamKind::noise, "ffn.router.noise.weight", Role::matrix, {experts, d});
  if (c.has_table(layer_))
    own(router.table, ParamKind::table, "ffn.router.table", Role::buffer, {c.vocab, spec.slots()});
  else if (selection_bias(spec.select))
    own(router.bias, ParamKind::selection_bias, "ffn.router.bias", Role::buffer, {experts});
  if (experts_choose(spec.select))
    own(router.threshold, ParamKind::threshold, "ffn.router.threshold", Role::buffer, {experts});
}

void List::branch_norms(BranchNorms& norms) const {
  norm(norms.router, ParamKind::router_norm, "ffn.router.norm");
  norms.router_factor = 1 / std::sqrt(static_cast<float>(c.width));
  norm(norms.experts, ParamKind::experts_norm, "ffn.experts.norm");
  norm(norms.experts_out, ParamKind::experts_out_norm, "ffn.experts.norm_out");
  norm(norms.shared_out, ParamKind::shared_out_norm, "ffn.shared.norm_out");
}

void List::bank(ExpertBank& bank, Part part, const std::string& name, int64_t experts,
                int64_t width, bool down_bias) const {
  const int64_t d = c.width;
  bank.act = part == Part::experts && c.experts_held ? ops::Act::swiglu_10 : c.act;
  if (c.gated)
    add(bank.gate, part, ParamKind::gate, name + "gate.weight", Role::matrix, {experts, width, d});
  add(bank.up, part, ParamKind::up, name + "up.weight", Role::matrix, {experts, width, d});
  add(bank.down, part, ParamKind::down, name + "down.weight", Role::residual, {experts, d, width});
  if (c.ffn_bias && c.gated)
    add(bank.gate_bias, part, ParamKind::gate, name + "gate.bias", Role::bias, {experts, width});
  if (c.ffn_bias)
    add(bank.up_bias, part, ParamKind::up, name + "up.bias", Role::bias, {experts, width});
  if (down_bias)
    add(bank.down_bias, part, ParamKind::down, name + "down.bias", Role::bias, {experts, d});
  if (!c.xielu) return;
  ExpertBank::Xielu& xielu = bank.xielu.emplace();
  add(xielu.alpha_p, part, ParamKind::xielu_alpha_p, name + "alpha_p", Role::bias, {1});
  add(xielu.alpha_n, part, ParamKind::xielu_alpha_n, name + "alpha_n", Role::bias, {1});
  add(xielu.beta, part, ParamKind::xielu_beta, name + "beta", Role::buffer, {1});
  add(xielu.eps, part, ParamKind::xielu_eps, name + "eps", Role::buffer, {1});
}

// All neurons of a layer as one bank, whose rows are theirs.
void List::neurons(ExpertBank& bank) const {
  bank.act = c.act;
  const auto rows = [&](Param& param, ParamKind kind, std::string_view name, Role role) {
    add(param, Part::experts, kind, name, role, {1, c.routing.experts, c.width});
  };
  if (c.gated) rows(bank.gate, ParamKind::gate, "ffn.experts.gate.weight", Role::matrix);
  rows(bank.up, ParamKind::up, "ffn.experts.up.weight", Role::matrix);
  rows(bank.down, ParamKind::down, "ffn.experts.down.weight", Role::residual);
}

}  // namespace

void list_input(const ModelConfig& c, Param& embedding, Param& positions, const OnParam& on_param) {
  const List list(c, on_param);
  list.add(embedding, Part::embedding, ParamKind::weight, "embed.weight", Role::matrix,
           {c.vocab, c.width});
  if (c.positions == Positions::learned)
    list.add(positions, Part::positions, ParamKind::weight, "positions.weight", Role::matrix,
             {c.context, c.width});
}

void list_block(const ModelConfig& c, int64_t layer, Block& block, const OnParam& on_param) {
  const List list(c, on_param, layer);
  block.layer = layer;
  block.placement = c.placement(layer);
  block.dropout = c.dropout;
  block.residual = c.multipliers.residual;
  block.attn_sum = c.mixer(layer) == Mixer::lightning ? c.multipliers.lightning_sum
                                                      : c.multipliers.attention_sum;
  block.ffn_sum = c.multipliers.ffn_sum;
  block.mixes = c.mixes(layer);
  block.feeds = c.has_ffn(layer);
  // By these names the trainer files of earlier versions know them.
  // Where layers differ in the place of their norms those behind sublayers are called otherwise.
  const bool behind = c.states_pre_norm && block.placement == NormPlacement::output;
  const auto norm = [&](Norm& of, ParamKind before_it, ParamKind behind_it, const char* name) {
    list.norm(of, behind ? behind_it : before_it, behind ? fmt::format("{}_out", name) : name);
  };
  if (block.mixes) norm(block.attn_norm, ParamKind::attn_norm, ParamKind::attn_out_norm, "norm1");
  if (block.mixes && c.norm_gate > 0)
    list.norm_gate(block.attn_norm_gate.emplace(), ParamKind::mix_gate_down, ParamKind::mix_gate_up,
                   "norm1.mix");
  block.attends = c.attends(layer);
  block.scan_out = c.multipliers.scan_out;
  block.attention_out = c.multipliers.attention_out;
  if (block.attends) list.attention(block.attention);
  switch (c.mixer(layer)) {
    case Mixer::attention: break;
    case Mixer::linear: list.linear_attention(block.linear.emplace()); break;
    case Mixer::conv: list.gated_conv(block.conv.emplace()); break;
    case Mixer::scan:
      if (c.scan.selective()) list.selective_scan(block.selective.emplace());
      else list.state_space(block.scan.emplace());
      break;
    case Mixer::lightning: list.lightning(block.lightning.emplace()); break;
    case Mixer::none: break;
  }
  if (block.feeds && c.norm_placement != NormPlacement::beside)
    norm(block.ffn_norm, ParamKind::ffn_norm, ParamKind::ffn_out_norm, "norm2");
  if (block.feeds && c.norm_gate > 0 && c.is_moe(layer))
    list.norm_gate(block.ffn_norm_gate.emplace(), ParamKind::ffn_gate_down, ParamKind::ffn_gate_up,
                   "norm2.ffn");
  if (block.mixes && c.norm_placement == NormPlacement::both)
    list.norm(block.attn_out_norm.emplace(), ParamKind::attn_out_norm, "norm1_out");
  if (has_ffn_out_norm(c, layer))
    list.norm(block.ffn_out_norm.emplace(), ParamKind::ffn_out_norm, "norm2_out");
  if (c.hyper.present()) {
    list.streams(block.attn_streams.emplace(), ParamKind::attn_streams,
                 ParamKind::attn_streams_scale, "streams1", c.hyper.weights(), c.hyper.parts());
    list.streams(block.ffn_streams.emplace(), ParamKind::ffn_streams, ParamKind::ffn_streams_scale,
                 "streams2", c.hyper.weights(), c.hyper.parts());
  }
  if (c.layer_scale)
    list.add(block.layer_scale, Part::norms, ParamKind::layer_scale, "layer_scale", Role::buffer,
             {1});
  block.joins_late = c.joins_late(layer);
  if (block.feeds) list_ffn(c, layer, block.ffn, on_param);
}

void list_ffn(const ModelConfig& c, int64_t layer, MoeLayer& ffn, const OnParam& on_param) {
  const List list(c, on_param, layer);
  if (!c.is_moe(layer)) {
    ffn.experts.gate_factor = c.multipliers.ffn_gate;
    ffn.experts.down_factor = c.multipliers.ffn_down;
    return list.bank(ffn.experts, Part::dense_ffn, "ffn.experts.", 1, c.dense_width, c.ffn_bias);
  }
  const bool down_bias = c.ffn_bias || c.expert_down_bias;
  ffn.router.emplace().layer = layer;
  list.router(*ffn.router);
  ffn.by_neuron = c.by_neuron();
  if (ffn.by_neuron) return list.neurons(ffn.experts);
  list.bank(ffn.experts, Part::experts, "ffn.experts.", c.routing.experts, c.expert_width,
            down_bias);
  ffn.experts.weighs_input = c.weigh_inputs;
  if (c.branch_norms) list.branch_norms(ffn.norms.emplace());
  if (c.shared_experts == 0) return;
  list.bank(ffn.shared.emplace(), Part::shared, "ffn.shared.", 1, c.shared_experts * c.shared_width,
            down_bias);
  ffn.average = c.shared_average;
  ffn.late = c.shortcut;
  if (c.shared_gate)
    list.add(ffn.shared_gate, Part::shared, ParamKind::weight, "ffn.shared_gate.weight",
             Role::matrix, {1, c.width});
}

void list_output(const ModelConfig& c, std::optional<HyperConnection>& end_streams,
                 Norm& final_norm, Param& lm_head, Param& lm_head_bias, const OnParam& on_param) {
  const List list(c, on_param);
  if (c.hyper.present())
    list.streams(end_streams.emplace(), ParamKind::end_streams, ParamKind::end_streams_scale,
                 "end_streams", c.hyper.streams, 1);
  if (has_final_norm(c)) list.norm(final_norm, ParamKind::final_norm, "final_norm");
  if (!c.tied)
    list.add(lm_head, Part::lm_head, ParamKind::weight, "head.weight", Role::matrix,
             {c.vocab, c.width});
  if (c.head_bias)
    list.add(lm_head_bias, Part::lm_head, ParamKind::weight, "head.bias", Role::bias, {c.vocab});
}

void each_param(const ModelConfig& c, const std::function<void(const Param&, int64_t layers)>& f) {
  int64_t layers = 1;
  const OnParam tell = [&](Param& param) { f(param, layers); };
  Param embedding, positions, head, head_bias;
  std::optional<HyperConnection> end_streams;
  Norm final_norm;
  list_input(c, embedding, positions, tell);
  // Heads of layers with a window may be others or alone have sinks, and some layers have no
  // indexer, or entries.
  const auto kind_of = [&](int64_t i) {
    return std::tuple(c.is_moe(i), c.has_table(i), c.has_ffn(i), c.mixer(i),
                      (c.full.present() || c.window_sinks) && c.has_window(i),
                      c.attention(i).index_heads > 0, c.entries(i).tokens, c.entries(i).top);
  };
  std::map<decltype(kind_of(0)), std::pair<int64_t, int64_t>> kinds;  // the first layer, how many
  for (int64_t i = 0; i < c.layers; ++i) ++kinds.try_emplace(kind_of(i), i, 0).first->second.second;
  for (const auto& [kind, of] : kinds) {
    layers = of.second;
    Block block;
    list_block(c, of.first, block, tell);
  }
  layers = 1;
  list_output(c, end_streams, final_norm, head, head_bias, tell);
}

std::string_view name_of(Part part) {
  switch (part) {
    case Part::none: return "none";
    case Part::embedding: return "embedding";
    case Part::positions: return "positions";
    case Part::norms: return "norms";
    case Part::attention: return "attention";
    case Part::dense_ffn: return "dense ffn";
    case Part::router: return "router";
    case Part::experts: return "experts";
    case Part::shared: return "shared";
    case Part::lm_head: return "head";
  }
  return "";
}

bool is_large(const Param& p) {
  const bool combine_weight = p.part == Part::shared && p.kind == ParamKind::weight;
  return p.is_matrix() && !is_multiplied_in_f32(p) && p.part != Part::positions &&
         !combine_weight && !is_convolution(p);
}

bool is_sketch(const Param& p) {
  return p.part == Part::router && p.role == Role::buffer && p.value.rank == 2 &&
         p.kind != ParamKind::table;
}

// Without a gate the first matrix is of `up`.
DType sketch_type(const ModelConfig& c, const Param& p) {
  const bool of_up = p.kind == ParamKind::up || !c.gated;
  return c.sketch_bits >= (of_up ? 3 : 4) ? DType::q4_0 : DType::q2_0;
}

bool is_of_indexer(ParamKind kind) {
  return kind == ParamKind::index_q || kind == ParamKind::index_k ||
         kind == ParamKind::index_q_norm || kind == ParamKind::index_k_norm ||
         kind == ParamKind::index_weights || kind == ParamKind::entry_index_kv ||
         kind == ParamKind::entry_index_gate || kind == ParamKind::entry_index_bias ||
         kind == ParamKind::entry_index_norm;
}

bool is_of_streams(ParamKind kind) {
  return kind == ParamKind::attn_streams || kind == ParamKind::attn_streams_scale ||
         kind == ParamKind::ffn_streams || kind == ParamKind::ffn_streams_scale ||
         kind == ParamKind::end_streams || kind == ParamKind::end_streams_scale;
}

bool is_hidden_matrix(const Param& p) { return is_large(p) && p.layer >= 0; }

bool is_convolution(const Param& p) {
  return p.kind == ParamKind::linear_conv || p.kind == ParamKind::conv ||
         p.kind == ParamKind::scan_conv;
}

bool is_multiplied(const ModelConfig& c, const Param& p) {
  return p.is_matrix() && p.part != Part::positions && !is_convolution(p) &&
         (c.tied || p.part != Part::embedding);
}

bool is_multiplied_in_f32(const Param& p) {
  return p.part == Part::router || p.kind == ParamKind::linear_a || p.kind == ParamKind::linear_b ||
         p.kind == ParamKind::scan_dt || p.kind == ParamKind::index_weights ||
         is_of_streams(p.kind);
}

void copy_as_f32(Tensor out, const Param& param, int threads) {
  const Tensor w = param.value;
  const int64_t rows = w.rows() / w.matrices();
  parallel_for(threads, w.rows(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const Tensor from = param.expert(r / rows);
      dequantise(out.as<float>() + r * w.cols(),
                 static_cast<const char*>(from.data) + r % rows * from.row_bytes, from.dtype,
                 w.cols());
    }
  });
}

}  // namespace moe
