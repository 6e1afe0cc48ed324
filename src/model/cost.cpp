// Counting by configuration: each size is written once, as a matrix part (which costs arithmetic) and the rest.
// Checked against published totals and against what Model builds.
#include "model/cost.h"

namespace moe {
namespace {

int64_t norm_size(const ModelConfig& c) { return c.width * (c.norm == NormKind::layer && c.norm_bias ? 2 : 1); }

// Q and O: D H C each; K and V: D G C each; biases on what comes out of each; QK-norms.
int64_t attention_matrices(const ModelConfig& c) { return 2 * c.width * c.q_width() + 2 * c.width * c.kv_width(); }
int64_t attention_size(const ModelConfig& c) {
  int64_t size = attention_matrices(c);
  if (c.attention_bias) size += c.q_width() + 2 * c.kv_width();
  if (c.attention_out_bias) size += c.width;
  if (c.qk_norm == QkNorm::head) size += 2 * c.head_width;
  if (c.qk_norm == QkNorm::full) size += c.q_width() + c.kv_width();
  return size;
}

// One expert of width F: gate and up [F,D], down [D,F]; without a gate two matrices.
int64_t expert_matrices(const ModelConfig& c, int64_t f) { return (c.gated ? 3 : 2) * c.width * f; }
int64_t dense_size(const ModelConfig& c, int64_t f) { return expert_matrices(c, f) + (c.ffn_bias ? (c.gated ? 2 : 1) * f + c.width : 0); }
int64_t expert_size(const ModelConfig& c, int64_t f) { return dense_size(c, f) + (c.expert_down_bias && !c.ffn_bias ? c.width : 0); }

int64_t router_matrices(const ModelConfig& c) {
  const RoutingSpec spec = train_spec(c.routing);
  const bool gated_logits = std::holds_alternative<AnalyticLogits>(spec.logits) && c.gated;
  return c.routing.experts * c.width * ((needs_logits(spec.select) ? 1 : 0) + gated_logits + std::holds_alternative<LearnedNoise>(spec.noise));
}
// A bias of the logits and a scale of the weights are one number an expert.
int64_t router_vectors(const ModelConfig& c) {
  const RoutingSpec spec = train_spec(c.routing);
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  return c.routing.experts * ((linear && linear->bias) + std::holds_alternative<OnePlusScaled>(spec.weigh));
}

// A selection bias and a threshold are one number an expert.
int64_t router_buffers(const ModelConfig& c) {
  const RoutingSpec spec = train_spec(c.routing);
  return c.routing.experts * ((selection_bias(spec.select) ? 1 : 0) + (experts_choose(spec.select) ? 1 : 0));
}

bool has_shared(const ModelConfig& c) { return c.shared_experts > 0; }
int64_t shared_width(const ModelConfig& c) { return c.shared_experts * c.shared_width; }

// Keys that a token of a sequence of S sees on average: S/2, with a window W < S the first W tokens W/2 and the others W.
double average_keys(const ModelConfig& c, int64_t context) {
  const auto s = static_cast<double>(context), w = static_cast<double>(c.attention_window);
  if (c.attention_window == 0 || c.attention_window >= context) return s / 2;
  return w * (s - w / 2) / s;
}

}  // namespace

ParamCount count_params(const ModelConfig& c) {
  ParamCount n;
  n.embedding = c.vocab * c.width;
  if (c.positions == Positions::learned) n.positions = c.context * c.width;
  if (!c.tied) n.head = c.vocab * c.width;
  const int64_t moe = c.moe_layer_count(), dense = c.layers - moe;
  n.norms = norm_size(c) * (2 * c.layers + (c.norm_placement == NormPlacement::pre ? 1 : 0));
  n.attention = c.layers * attention_size(c);
  n.dense_ffn = dense * dense_size(c, c.dense_width);
  if (moe == 0) return n;
  n.experts = moe * c.routing.experts * expert_size(c, c.expert_width);
  n.experts_active = moe * c.routing.top_k * expert_size(c, c.expert_width);
  n.router = moe * (router_matrices(c) + router_vectors(c));
  n.buffers = moe * router_buffers(c);
  if (has_shared(c)) n.shared = moe * (expert_size(c, shared_width(c)) + (c.shared_gate ? c.width : 0));
  return n;
}

// forward = 2 (active numbers of matrices that are multiplied) + attention 4 L H C times the keys seen; norms, activations and the embedding's lookup are not
// counted.
FlopCount count_flops(const ModelConfig& c, int64_t context) {
  const auto moe = static_cast<double>(c.moe_layer_count()), layers = static_cast<double>(c.layers);
  FlopCount f;
  f.projections = 2 * layers * static_cast<double>(attention_matrices(c));
  f.scores = 4 * layers * static_cast<double>(c.q_width()) * average_keys(c, context);
  f.dense_ffn = 2 * (layers - moe) * static_cast<double>(expert_matrices(c, c.dense_width));
  f.head = 2 * static_cast<double>(c.vocab * c.width);
  if (moe == 0) return f;
  f.experts = 2 * moe * static_cast<double>(c.routing.top_k * expert_matrices(c, c.expert_width));
  f.router = 2 * moe * static_cast<double>(router_matrices(c));
  if (has_shared(c)) f.shared = 2 * moe * static_cast<double>(expert_matrices(c, shared_width(c)) + (c.shared_gate ? c.width : 0));
  return f;
}

double training_flops(const ModelConfig& c, int64_t context, int64_t tokens, int64_t expert_rows) {
  const FlopCount per_token = count_flops(c, context);
  const double rows = 2 * static_cast<double>(expert_rows) * static_cast<double>(expert_matrices(c, c.expert_width));
  return 3 * (static_cast<double>(tokens) * (per_token.forward() - per_token.experts) + rows);
}

MemoryCount count_memory(const ModelConfig& c) {
  const ParamCount params = count_params(c);
  const int64_t n = params.total(), buffers = 4 * params.buffers;  // buffers stay f32
  return {4 * n + buffers, 2 * n + buffers, 2 * 2 * c.layers * c.kv_width()};
}

ModelCost count_cost(const ModelConfig& config, int64_t context) { return {count_params(config), count_flops(config, context), count_memory(config)}; }

}  // namespace moe
