#include "convert/merge.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "convert/condition.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/folder/rope_fields.h"
#include "hub/wanted_model.h"
#include "moe/one_sequence.h"

namespace moe {
namespace {

// A field that two models may differ in, in words and as config.json of most models calls it.
struct SameField {
  std::string name;
  std::string value;
  bool decides;  // models that differ in it cannot be merged; else the base's is taken
};

std::string listed(const std::vector<int64_t>& layers) {
  return fmt::format("{}", fmt::join(layers, ", "));
}

const char* placement_name(NormPlacement placement) {
  switch (placement) {
    case NormPlacement::pre: return "before each sublayer";
    case NormPlacement::post: return "after each sum";
    case NormPlacement::output: return "after each sublayer";
    case NormPlacement::both: return "before and after each sublayer";
    case NormPlacement::beside: return "before both sublayers";
    case NormPlacement::beside_each: return "before either sublayer, beside one another";
    case NormPlacement::carried: return "before each sublayer, giving the residual";
  }
  return "";
}

std::string growth_of(const QueryGrowth& g) {
  return fmt::format("{} every {}{}", g.beta, g.context,
                     g.where_still ? " where nothing turns" : "");
}

const char* qk_norm_name(QkNorm norm) {
  switch (norm) {
    case QkNorm::none: return "none";
    case QkNorm::head: return "per head";
    case QkNorm::full: return "over all heads";
    case QkNorm::bare: return "per head without weights, where something turns";
  }
  return "";
}

// Its kind, and what config.json says of it otherwise than of `beside`: of a list, which may fill
// the screen, the first number that differs.
std::string scaling_in_words(const RopeScaling& s, const RopeScaling& beside) {
  if (s.kind == RopeScaling::Kind::none) return "none";
  const Json own = rope_scaling_json(s), other = rope_scaling_json(beside);
  const char* kind = "rope_type";
  std::string words = own.at(kind).get<std::string>();
  const auto add = [&](const std::string& name, const Json& x) {  // dump() has 2.0 for 2
    words += fmt::format(", {} {}", name,
                         x.is_number_float() ? fmt::format("{}", x.get<double>()) : x.dump());
  };
  for (const auto& [key, value] : own.items()) {
    const Json theirs = other.value(key, Json());
    if (key == kind || value == theirs) continue;
    if (!value.is_array()) {
      add(key, value);
      continue;
    }
    size_t i = 0;
    while (i < value.size() && i < theirs.size() && value[i] == theirs[i]) ++i;
    if (i < value.size()) add(fmt::format("{}[{}]", key, i), value[i]);
  }
  return words;
}

std::string of_parts_in_words(const Multipliers& m) {
  return fmt::format(
      "{} of a state space, {} of what it gives, {} of attention, {} and {} of FFNs, {} and {} of "
      "what attention adds to and adds, {} and {} of lightning attention likewise, {} and {} of "
      "FFNs",
      fmt::join(m.scan_in, ", "), m.scan_out, m.attention_out, m.ffn_gate, m.ffn_down,
      m.attention_sum.kept, m.attention_sum.added, m.lightning_sum.kept, m.lightning_sum.added,
      m.ffn_sum.kept, m.ffn_sum.added);
}

std::string heads_in_words(const StateSpace& s, bool beside) {
  return fmt::format(
      "{} in {} groups, {} wide, {} kept of each value, behind a convolution of {}{}{}{}{}",
      s.heads, s.groups, s.width, s.states, s.conv_width, s.conv_bias ? " with a bias" : "",
      s.norm ? "" : ", not normalised",
      s.selective() ? fmt::format(", steps of {} numbers", s.step_rank) : "",
      beside ? ", beside attention" : "");
}

std::string heads_in_words(const LinearAttention& l) {
  return fmt::format(
      "{} and {}, {} and {} wide, behind a convolution of {}, gates of {}, decays of {} above {}, "
      "strengths up to {}, an epsilon of {}",
      l.key_heads, l.value_heads, l.key_width, l.value_width, l.conv_width, l.gate_width,
      l.by_channel() ? "channels" : "heads", l.decay_floor, l.most_strength(), l.norm_eps);
}

// By how many matrices heads are made narrower where latents are shared as they are, and entries.
std::string shared_in_words(const ModelConfig& c) {
  const auto of = [](const Entries& e, const std::vector<int64_t>& layers) {
    return fmt::format("{} tokens, {} by {} heads of {} in layers {}", e.tokens, e.top, e.heads,
                       e.width, listed(layers));
  };
  return fmt::format("{} by {}, entries of {} and of {}", c.latent.out_groups, c.latent.out_width,
                     of(c.heavy, c.heavy_layers), of(c.light, c.light_layers));
}

// Widths, factors where there are any, and how they are shared.
std::string latents_in_words(const ModelConfig& c) {
  const LatentAttention& l = c.latent;
  std::string words = fmt::format("{}, {}, {}", l.width, l.query_width, l.value_width);
  if (l.factor != 1 || l.query_factor != 1)
    words += fmt::format(", times {} and {}", l.factor, l.query_factor);
  return words + (l.shared ? ", shared, heads made " + shared_in_words(c) : "");
}

// What of the text attention chooses.
std::string choice_in_words(const SparseAttention& s) {
  return fmt::format(
      "{} in blocks of {}, of which {} are always seen, by {} heads of {}, without "
      "an indexer in {}, all in {}",
      s.top, s.block, s.local, s.heads, s.width, listed(s.followers), listed(s.whole_layers));
}

// The width of values and their factor, sinks and what turns in layers with a window alone; what
// gates behind norms are made of, and whether queries are made of latents on both sides of a norm.
std::string parts_in_words(const ModelConfig& c) {
  return fmt::format("{}, {}, {}, {}, {}, {}", c.value_width, c.value_factor, c.window_sinks,
                     c.window_rotary_width, c.norm_gate, c.latent.query_both);
}

std::string streams_in_words(const ops::HyperShape& h) {
  if (!h.present()) return "one";
  return fmt::format("{}, {}weighed up to {} with an epsilon of {} in {} rounds", h.streams,
                     h.mixes ? "mixed, " : "", h.magnitude, h.eps, h.rounds);
}

const char* gates_in_words(const ModelConfig& c) {
  if (!c.attention_gate) return "none";
  if (c.gate_softplus) return c.head_gates ? "softplus, one a head" : "softplus";
  return c.head_gates ? "sigmoids, one a head" : "sigmoids";
}

std::string activation_in_words(const ModelConfig& c) {
  return c.xielu ? "xIELU" : activation_names().at(static_cast<size_t>(c.act));
}

// As they stand beside those of `beside`.
std::vector<SameField> fields_of(const ModelConfig& c, const ModelConfig& beside) {
  std::vector<SameField> fields;
  const auto decides = [&](const char* name, const auto& value) {
    fields.push_back({name, fmt::format("{}", value), true});
  };
  const auto of_base = [&](const char* name, const auto& value) {
    fields.push_back({name, fmt::format("{}", value), false});
  };
  decides("the vocabulary (vocab_size)", c.vocab);
  decides("the width (hidden_size)", c.width);
  decides("the number of layers (num_hidden_layers)", c.layers);
  decides("the FFN's width (intermediate_size)", c.dense_width);
  decides("the activation (hidden_act)", activation_in_words(c));
  decides("whether FFNs have gates", c.gated);
  decides("whether FFNs have biases (mlp_bias)", c.ffn_bias);
  decides("the kind of norm", c.norm == NormKind::rms ? "RMSNorm" : "LayerNorm");
  decides("the place of the norms", placement_name(c.norm_placement));
  decides("whether norms of layers without attention stand before sublayers", c.states_pre_norm);
  decides("whether norms have biases (norm_bias)", c.norm_bias);
  decides("the positions (position_embedding_type)",
          c.positions == Positions::rope ? "rotary" : "learned");
  decides("the scaling of rotary positions (rope_scaling)",
          scaling_in_words(c.rope_scaling, beside.rope_scaling));
  decides("the norm of queries and keys (qk_norm)", qk_norm_name(c.qk_norm));
  decides("whether queries, keys and values have biases (attention_bias)", c.attention_bias);
  decides("whether the projection back has a bias (attention_out_bias)", c.attention_out_bias);
  decides("whether attention has sinks (attention_sinks)", c.attention_sinks);
  decides("the latents of attention (kv_lora_rank, q_lora_rank, v_head_dim)", latents_in_words(c));
  decides("what attention sees (index_topk and the like)", choice_in_words(c.sparse));
  decides("whether the head is the embedding (tie_word_embeddings)", c.tied);
  decides("how many numbers of a head turn (partial_rotary_factor)", c.rotary_width);
  decides("the multipliers of embedding, residual, attention and logits",
          fmt::format("{}, {}, {}, {}", c.multipliers.embedding, c.multipliers.residual,
                      c.multipliers.attention, c.multipliers.logits));
  decides("the multipliers of parts of a layer", of_parts_in_words(c.multipliers));
  decides("whether the head has a bias (lm_head_bias)", c.head_bias);
  decides("the cap of logits (final_logit_softcapping)", c.logit_cap);
  decides("the cap of attention's scores (attn_logit_softcapping)", c.score_cap);
  decides("heads of layers without a window (global_head_dim and the like)",
          fmt::format("{} and {} of {}{}", c.full.heads, c.full.kv_heads, c.full.head_width,
                      c.full.values_of_keys ? ", values of keys" : ""));
  decides("whether values are normalised", c.value_norm);
  decides("what queries, keys and values are clipped at (clip_qkv)", c.qkv_clip);
  decides("values, windows and gates (value_head_dim and the like)", parts_in_words(c));
  decides("whether layers have a scale", c.layer_scale);
  of_base("the layers without rotary positions (no_rope_layers)", listed(c.nope_layers));
  decides("the layers of linear attention (layer_types)", listed(c.linear_layers));
  decides("the heads of linear attention (linear_num_key_heads and the like)",
          heads_in_words(c.linear));
  decides("the layers of lightning attention (layer_types)", listed(c.lightning_layers));
  decides("the layers of a convolution (layer_types)", listed(c.conv_layers));
  decides("the tokens that a convolution sees (conv_L_cache)", c.conv_width);
  decides("the layers of a state space (layer_types)", listed(c.scan_layers));
  decides("the heads of a state space (mamba_n_heads and the like)",
          heads_in_words(c.scan, c.scan_beside));
  decides("the layers that are an FFN alone, and those without one",
          fmt::format("{}; {}", listed(c.ffn_only_layers), listed(c.mixer_only_layers)));
  decides("whether norms of queries and keys see them turned", c.qk_norm_turned);
  decides("the gates of attention", gates_in_words(c));
  decides("what norms add to their weights", c.norm_offset ? 1 : 0);
  decides("whether norms have weights", c.norm_weights);
  decides("whether the embedding is normalised", c.embedding_norm);
  decides("the residual streams (hc_mult and the like)", streams_in_words(c.hyper));
  decides("whether experts are held at 10", c.experts_held);
  of_base("the rotary base of layers with a window (rope_local_base_freq)", c.window_rope_theta);
  decides("the number of heads (num_attention_heads)", c.heads);
  decides("the number of key/value heads (num_key_value_heads)", c.kv_heads);
  decides("the width of a head (head_dim)", c.head_width);
  of_base("the norm's epsilon (rms_norm_eps)", c.norm_eps);
  of_base("the epsilon of an indexer's norms (index_norm_eps)", c.sparse.norm_eps);
  of_base("rope theta (rope_theta)", c.rope_theta);
  of_base("how queries grow (llama_4_scaling_beta)", growth_of(c.query_growth));
  of_base("the attention window (sliding_window, attention_chunk_size)",
          fmt::format("{}{}", c.attention_window, c.window_chunks ? ", in chunks" : ""));
  of_base("the layers with a window (layer_types)", listed(c.window_layers));
  of_base("the context (max_position_embeddings)", c.context);
  return fields;
}

void check_shape(const ModelConfig& base, const MergeExpert& expert,
                 std::vector<std::string>& notes) {
  const ModelConfig& config = expert.model->config();
  if (config.moe_layer_count() > 0)
    fail_usage("{} has experts already; each expert is made of a dense model", expert.name);
  const std::vector<SameField> want = fields_of(base, config), got = fields_of(config, base);
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].value == got[i].value) continue;
    if (want[i].decides)
      fail_usage("{} does not match the base: {} is {}, the base's {}", expert.name, want[i].name,
                 got[i].value, want[i].value);
    notes.push_back(fmt::format("{}: {} is {}; the result has the base's, {}", expert.name,
                                want[i].name, got[i].value, want[i].value));
  }
}

bool same_numbers(const Param& a, const Param& b) {
  const Tensor x = a.expert(0), y = b.expert(0);
  if (x.dtype != y.dtype || x.numel() != y.numel()) return false;
  for (int64_t r = 0; r < x.rows(); ++r)
    if (std::memcmp(static_cast<const char*>(x.data) + r * x.row_bytes,
                    static_cast<const char*>(y.data) + r * y.row_bytes,
                    static_cast<size_t>(bytes_of(x.dtype, x.cols()))) != 0)
      return false;
  return true;
}

// Of a dense model.
bool is_ffn(const Param& param) { return param.part == Part::dense_ffn; }

// Of each expert's dense model what is there what `param` is, in a dense model or in the result.
std::vector<Tensor> expert_matrices(const Param& param, std::span<const MergeExpert> experts) {
  std::vector<Tensor> matrices;
  for (const MergeExpert& expert : experts)
    matrices.push_back(expert_of(source_of(param, *expert.model, Part::dense_ffn), 0));
  return matrices;
}

bool differ_in_type(const std::vector<Tensor>& matrices) {
  return std::any_of(matrices.begin(), matrices.end(),
                     [&](const Tensor& m) { return m.dtype != matrices[0].dtype; });
}

bool same_experts(const Model& a, const Model& b) {
  return std::all_of(a.params().begin(), a.params().end(), [&](const Param* p) {
    return !is_ffn(*p) || same_numbers(*p, source_of(*p, b));
  });
}

void check_experts(Model& base, std::span<const MergeExpert> experts, const MergeOptions& o,
                   std::vector<std::string>& notes) {
  if (base.config().moe_layer_count() > 0)
    fail_usage("the base has experts already; merging begins with dense models");
  if (base.config().has_halves())
    fail_usage(
        "some layers of the base are attention or an FFN alone; such models cannot be merged yet");
  if (experts.size() < 2)
    fail_usage("{} given; an MoE model needs at least two, each @expert a dense model",
               counted(static_cast<int64_t>(experts.size()), "expert"));
  for (const MergeExpert& expert : experts) check_shape(base.config(), expert, notes);
  for (const MergeExpert& expert : experts)
    if (o.gates != Gates::random && expert.prompts.positive.empty())
      fail_usage(
          "{} has no prompts, which its gate is made of; give @expert MODEL:PROMPTS, or @gates "
          "random",
          expert.name);
  for (size_t i = 0; i < experts.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      if (experts[i].model == experts[j].model ||
          same_experts(*experts[i].model, *experts[j].model))
        fail_usage(
            "{} and {} have the same FFNs, so two experts would be one; leave one of them out, or "
            "make copies by moe upcycle",
            experts[j].name, experts[i].name);
      if (o.gates == Gates::random) continue;
      if (experts[i].prompts.positive == experts[j].prompts.positive &&
          experts[i].prompts.negative == experts[j].prompts.negative)
        fail_usage(
            "the prompts of {} and {} are the same, so no router could tell them apart; give each "
            "its own",
            experts[j].name, experts[i].name);
    }
}

// Sums over prompts of what the router of each layer sees: [L] vectors [D].
using Gathered = std::vector<std::vector<double>>;

void add_prompt(Model& base, Run& run, std::span<const int32_t> ids, Gates gates, double factor,
                Gathered& sums) {
  const int64_t tokens = std::ssize(ids);
  const OneSequence sequence(tokens);
  ArenaScope scope(run.saved);
  ModelSaved saved;
  base.forward(run, {.batch = sequence.of(ids), .keep = Keep::all}, saved);
  const int64_t first = gates == Gates::hidden ? tokens - 1 : 0;
  for (size_t layer = 0; layer < saved.blocks.size(); ++layer) {
    const Tensor x = saved.blocks[layer].ffn_in.x;
    for (int64_t n = first; n < tokens; ++n)
      for (int64_t d = 0; d < x.cols(); ++d)
        sums[layer][static_cast<size_t>(d)] +=
            factor / static_cast<double>(tokens - first) * static_cast<double>(x.row<float>(n)[d]);
  }
}

class GateMaker {
 public:
  GateMaker(Model& base, std::span<const MergeExpert> experts, const MergeOptions& o)
      : base_(base), o_(o), run_(o.threads) {
    for (const MergeExpert& expert : experts)
      total_ +=
          static_cast<int64_t>(expert.prompts.positive.size() + expert.prompts.negative.size());
  }

  // [L] unit vectors [D].
  Gathered of(const MergeExpert& expert) {
    const auto zero = Gathered(static_cast<size_t>(base_.config().layers),
                               std::vector<double>(static_cast<size_t>(base_.config().width)));
    Gathered gates = zero, away = zero;
    add(expert.prompts.positive, gates);
    add(expert.prompts.negative, away);
    for (size_t layer = 0; layer < gates.size(); ++layer) {
      std::vector<double>& gate = gates[layer];
      const double before = norm_of(gate);
      for (size_t d = 0; d < gate.size(); ++d) gate[d] -= away[layer][d];
      const double norm = norm_of(gate);
      if (!(norm > 1e-6 * before))
        fail_usage("the prompts of {} cancel out, so they point nowhere; change its negative ones",
                   expert.name);
      for (double& x : gate) x /= norm;
    }
    return gates;
  }

 private:
  static double norm_of(const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  }

  void add(const std::vector<std::vector<int32_t>>& prompts, Gathered& sums) {
    for (const std::vector<int32_t>& ids : prompts) {
      if (ids.empty()) fail_usage("a prompt has no token; leave it out");
      add_prompt(base_, run_, ids, o_.gates, 1 / static_cast<double>(prompts.size()), sums);
      if (o_.progress) o_.progress(++done_, total_);
    }
  }

  Model& base_;
  const MergeOptions& o_;
  Run run_;
  int64_t done_ = 0, total_ = 0;
};

// The routers' matrices; all other parameters of a router are 0.
void fill_routers(Assembly& assembly, Model& base, std::span<const MergeExpert> experts,
                  const MergeOptions& o, std::vector<MergedLayer>& layers) {
  const ModelConfig& config = assembly.model().config();
  std::vector<Gathered> gates;
  if (o.gates != Gates::random) {
    GateMaker maker(base, experts, o);
    for (const MergeExpert& expert : experts) gates.push_back(maker.of(expert));
  }
  const std::string drawn = fmt::format("drawn from N(0, {:g})", o.router_std);
  for (int64_t i = 0; i < config.layers; ++i) {
    const Tensor out = assembly.own(assembly.model().block(i).ffn.router->logit.weight,
                                    o.gates == Gates::random ? drawn : "from the prompts", 0);
    const RngKey key = RngKey::from_seed(o.seed).fold(static_cast<uint64_t>(i));
    for (int64_t e = 0; e < out.rows(); ++e)
      for (int64_t d = 0; d < out.cols(); ++d)
        out.row<float>(e)[d] =
            o.gates == Gates::random
                ? o.router_std * normal(key, static_cast<uint64_t>(e * out.cols() + d))
                : static_cast<float>(gates[static_cast<size_t>(e)][static_cast<size_t>(i)]
                                          [static_cast<size_t>(d)]);
    layers.push_back({i, condition_of(out)});
  }
  assembly.start_routers();
}

// Enters what of the sources is not in the result; returns how many numbers they all have.
int64_t drop_the_rest(Assembly& assembly, const Model& base, std::span<const MergeExpert> experts) {
  const auto numbers = [](const Model& model, bool of_ffns) {
    int64_t sum = 0;
    for (const Param* param : model.params())
      sum += is_ffn(*param) == of_ffns ? param->value.numel() : 0;
    return sum;
  };
  int64_t sources = numbers_of(base), rest = 0;
  bool base_is_expert = false;
  for (const MergeExpert& expert : experts) {
    if (expert.model == &base) {
      base_is_expert = true;
      continue;
    }
    sources += numbers_of(*expert.model);
    rest += numbers(*expert.model, false);
  }
  if (!base_is_expert) assembly.drop("FFNs", "of the base: dropped", numbers(base, true));
  if (rest > 0) assembly.drop("all but FFNs", "of the experts: dropped", rest);
  return sources;
}

ModelConfig merged_config(const ModelConfig& base, int64_t experts, const MergeOptions& o) {
  ModelConfig config = without_experts(base);
  config.routing = o.routing;
  if (config.routing.experts != experts)
    fail("{} experts are given for a routing of {}", experts, config.routing.experts);
  config.expert_width = base.dense_width;
  config.moe_every = 1;
  config.dense_first = 0;
  config.moe_layers.clear();
  config.model_type.clear();
  validate(config);
  const RoutingSpec spec = eval_spec(config.routing);
  if (!needs_logits(spec.select) || !std::holds_alternative<LinearLogits>(spec.logits))
    fail_usage(
        "recipe '{}' has no router of one row an expert, which is what prompts make; take another "
        "(moe recipes lists them)",
        config.routing.recipe);
  return config;
}

}  // namespace

const std::vector<std::string>& gates_names() {
  static const std::vector<std::string> names = {"hidden", "hidden_avg", "random"};
  return names;
}

MergeCopies merging_copies(const Model& base, std::span<const MergeExpert> experts) {
  MergeCopies copies;
  if (base.config().moe_layer_count() > 0 || experts.empty()) return copies;  // merge() refuses
  std::vector<std::string> untold;
  for (const MergeExpert& expert : experts) check_shape(base.config(), expert, untold);
  const auto count = std::ssize(experts);
  std::vector<std::string> types;  // where they are several, of the first bank that has them
  for (const Param* param : base.params()) {
    if (!is_ffn(*param)) continue;
    const std::vector<Tensor> matrices = expert_matrices(*param, experts);
    if (can_be_bank(*param, matrices)) continue;
    copies.bytes += 4 * count * matrices[0].numel();
    if (!types.empty() || !differ_in_type(matrices)) continue;
    for (size_t e = 0; e < experts.size(); ++e)
      types.push_back(fmt::format("{} in {}", experts[e].name, name_of(matrices[e].dtype)));
  }
  copies.bytes += 4 * count * base.config().width * base.config().layers;  // routers
  if (!types.empty())
    copies.widened = fmt::format("the FFNs are stored in several types, {}: their banks are f32",
                                 fmt::join(types, ", "));
  return copies;
}

Merged merge(Model& base, std::span<const MergeExpert> experts, const MergeOptions& o) {
  Merged result;
  check_experts(base, experts, o, result.notes);
  Assembly assembly(merged_config(base.config(), static_cast<int64_t>(experts.size()), o));
  fill_routers(assembly, base, experts, o, result.layers);
  for (Param* to : assembly.model().params()) {
    if (!to->value.empty()) continue;
    if (to->part != Part::experts) {
      assembly.view(*to, source_of(*to, base), "the base's");
      continue;
    }
    const std::vector<Tensor> matrices = expert_matrices(*to, experts);
    assembly.bank(*to, matrices,
                  differ_in_type(matrices) ? "one of each model, of several types: widened to f32"
                                           : "one of each model",
                  std::ssize(experts) * matrices[0].numel());
  }
  const int64_t sources = drop_the_rest(assembly, base, experts);
  result.model = assembly.finish(sources);
  result.parts = assembly.account();
  return result;
}

}  // namespace moe
