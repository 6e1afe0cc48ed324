// Why a row of llama.cpp's architectures cannot say a model.
#include <cmath>

#include "core/error.h"
#include "hub/folder/architectures.h"
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

bool fits(Biases wanted, bool has) {
  return wanted == Biases::any || (wanted == Biases::yes) == has;
}

// Choosing experts, which llama.cpp does by the k largest scores, with a bias where a tensor gives
// one, of the groups whose two largest sum up to most.
std::string why_not_choosing(const GgufArchitecture& row, const RoutingSpec& train,
                             const RoutingSpec& spec) {
  const auto* top = std::get_if<TopK>(&spec.select);
  const auto* grouped = std::get_if<GroupedTopK>(&spec.select);
  const bool biased = selection_bias(train.select) != nullptr;
  if ((top == nullptr && grouped == nullptr) || (biased && row.selection_bias == Biases::no))
    return "does not choose the k largest scores";
  if (!fits(row.selection_bias, biased)) return "chooses without a bias";
  if (grouped == nullptr || grouped->groups == 1) return "";
  if (!row.weighs_as_said) return "chooses experts of some groups only";
  return grouped->group_top == 2 ? "" : "takes a group for as good as its best expert";
}

// How a config's routing evaluates, in llama.cpp's terms; empty reason where it can.
std::string why_not_routing(const GgufArchitecture& row, const ModelConfig& c) {
  const RoutingSpec train = train_spec(c.routing), spec = eval_spec(c.routing);
  const auto recipe = [&](std::string_view what) {
    return fmt::format("recipe '{}' {}", c.routing.recipe, what);
  };
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  if (linear == nullptr || linear->bias != row.router_bias)
    return recipe(row.router_bias ? "does not score by a matrix and a bias"
                                  : "does not score by a matrix alone");
  if (std::holds_alternative<LearnedNoise>(train.noise)) return recipe("has weights for its noise");
  if (const std::string why = why_not_choosing(row, train, spec); !why.empty()) return recipe(why);
  if (!std::holds_alternative<KeepSecond>(spec.second) ||
      !std::holds_alternative<Dropless>(spec.capacity))
    return recipe("may drop choices");
  if (std::holds_alternative<ScaledScores>(spec.weigh) || row.gemma4) {
    const bool same = std::holds_alternative<ScaledScores>(spec.weigh) && row.gemma4 &&
                      std::holds_alternative<SoftmaxScore>(spec.score);
    return same ? "" : recipe("has a factor of each expert's weight, or has none");
  }
  if (row.llama4) {
    const auto* sigmoids = std::get_if<ChosenSigmoids>(&spec.weigh);
    return sigmoids != nullptr && !sigmoids->renormalise
               ? ""
               : recipe("does not weigh by sigmoids of chosen logits alone");
  }
  bool divides = std::holds_alternative<RawScore>(spec.score) &&
                 std::holds_alternative<ChosenSoftmax>(spec.weigh);
  if (!divides) {
    const auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
    const bool scores = row.gating == GgufGating::softmax
                            ? std::holds_alternative<SoftmaxScore>(spec.score)
                            : std::holds_alternative<SigmoidScore>(spec.score);
    if (!scores || weigh == nullptr)
      return recipe(row.gating == GgufGating::softmax ? "does not weigh by a softmax"
                                                      : "does not weigh by sigmoids");
    if (weigh->scale != 1 && !row.weighs_as_said)
      return recipe(fmt::format("scales its weights by {}", weigh->scale));
    divides = weigh->renormalise != ChosenScores::Renormalise::never;
  }
  if (divides == row.renormalises) return "";
  return recipe(divides ? "divides the weights of the chosen by their sum"
                        : "does not divide the weights of the chosen by their sum");
}

std::string why_not_half_layers(const GgufArchitecture& row, const ModelConfig& c) {
  if (!row.halves) return c.has_halves() ? kHalvesInWords : "";
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixes(i) && c.has_ffn(i)) return fmt::format("layer {} mixes tokens and has an FFN", i);
  return "";
}

std::string why_not_layers(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.routers_tell)
    return c.moe_layer_count() < c.layers && c.dense_width != c.expert_width
               ? "its dense FFNs are not as wide as its experts"
               : "";
  const int64_t dense = row.dense_first ? c.layers - c.moe_layer_count() : 0,
                step = row.llama4 ? llama4_step(c) : 1;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.has_ffn(i) && c.is_moe(i) != (row.routes() && i >= dense && (i + 1) % step == 0))
      return fmt::format("layer {} {}", i, c.is_moe(i) ? "routes" : "is dense");
  return "";
}

std::string why_not_shared(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.shared == SharedExperts::none) return c.shared_experts > 0 ? "it has shared experts" : "";
  if (c.shared_experts == 0) return row.may_lack_shared() ? "" : "it has no shared expert";
  if (c.shared_gate != (row.shared == SharedExperts::gated))
    return c.shared_gate ? "its shared experts are weighed" : "its shared experts are not weighed";
  if (row.shared == SharedExperts::same &&
      (c.shared_experts != 1 || c.shared_width != c.expert_width))
    return "it has not one shared expert as wide as the others";
  if (row.shared == SharedExperts::counted &&
      c.shared_experts * c.shared_width % c.expert_width != 0)
    return fmt::format("{} shared experts of width {} are not a number of experts of width {}",
                       c.shared_experts, c.shared_width, c.expert_width);
  return "";
}

// What turns of queries and keys, and how far attention sees.
std::string why_not_positions(const GgufArchitecture& row, const ModelConfig& c) {
  if (c.rotary_width > 0 && !row.latent() && !row.part_turns)
    return "only a part of each head turns";
  if (row.positions != Positions::rope) return "";
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool turns = c.attention(i).rotary_width > 0,
               stands = row.granite4
                            ? !c.attention_turns()
                            : row.stands() || (row.nope_every > 0 && (i + 1) % row.nope_every == 0);
    if (!c.attends(i)) continue;
    if (turns == stands)
      return fmt::format("in layer {} {} turns", i, turns ? "something" : "nothing");
  }
  return "";
}

std::string why_not_windows(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.gemma4) return "";
  if (row.listed() && row.window_local) {
    int64_t windows = 0;
    for (int64_t i = 0; i < c.layers; ++i) windows += c.has_window(i);
    return windows == 0          ? "its attention has no windows"
           : windows == c.layers ? "all of its layers have a window"
                                 : "";
  }
  const bool all = c.attention_window == 0 || c.attention_window >= c.context;
  if (row.window_every == 0)
    return all ? "" : "its attention sees a window of the last tokens only";
  if (c.attention_window == 0) return "its attention has no windows";
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.has_window(i) == ((i + 1) % row.window_every == 0))
      return fmt::format("layer {} has {} window", i, c.has_window(i) ? "a" : "no");
  return "";
}

// What layers with a window turn by.
std::string why_not_window_rope(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.gemma4) return "";
  const bool scaled = c.rope_scaling.kind != RopeScaling::Kind::none,
             plain = c.window_rope_theta == 0 ? !scaled : c.window_rope_theta == c.rope_theta;
  if (row.window_local && c.window_rope_theta == 0 && scaled)
    return "layers with a window turn by scaled frequencies";
  if (row.window_local || (row.window_plain ? plain : c.window_rope_theta == 0)) return "";
  return "layers with a window turn by other frequencies";
}

// A file has one width of all that, and no number of heads of its own.
std::string why_not_kimi_sizes(const GgufArchitecture& row, const ModelConfig& c) {
  const LinearAttention& l = c.linear;
  if (!l.by_channel()) return "heads of its linear attention have one decay each";
  if (l.key_heads != c.heads || l.value_heads != c.heads)
    return fmt::format("its linear attention has {} heads, its other attention {}", l.value_heads,
                       c.heads);
  if (row.ling3 && l.gate_width > 0) return "gates of its linear attention are made of few numbers";
  if (l.value_width != l.key_width || (row.kimi && l.gate_width != l.key_width))
    return "keys, values and gates of its linear attention are of different widths";
  if (row.ling3) return c.head_gates ? "" : "its attention has a gate for each number of a head";
  return c.latent.query_width > 0 ? "its queries are made of latents" : "";
}

std::string why_not_linear(const GgufArchitecture& row, const ModelConfig& c) {
  const bool linear = row.linear || row.channel_decays(),
             gate = row.linear || row.gate || row.ling3;
  if (linear != c.linear.present())
    return linear ? "it has no linear attention" : "some of its layers have linear attention";
  if (const std::string why = why_not_gguf_lightning(row, c); !why.empty()) return why;
  if (row.scan != c.scan.present())
    return row.scan ? "none of its layers has a state space"
                    : "some of its layers have a state space";
  if (row.selective && !c.scan.selective())
    return "steps of its state spaces are not made of few numbers";
  for (int64_t i = 0; row.beside && i < c.layers; ++i)
    if (c.mixer(i) != Mixer::scan || !c.attends(i))
      return fmt::format("layer {} has not both attention and a state space", i);
  if (row.conv == c.conv_layers.empty())
    return row.conv ? "none of its layers has a convolution"
                    : "some of its layers have a convolution";
  if (row.ling3 != (c.linear.decay_floor != 0))
    return row.ling3 ? "decays of its linear attention have no floor"
                     : "decays of its linear attention have a floor";
  if (gate != c.attention_gate)
    return gate ? "its attention has no gate" : "its attention has a gate";
  if (row.channel_decays()) return why_not_kimi_sizes(row, c);
  if (!row.linear) return "";
  if (c.linear.by_channel()) return "in its linear attention each channel has its own decay";
  if (c.linear.key_width != c.linear.value_width)
    return "keys and values of its linear attention are of different widths";
  const int64_t every = full_attention_every(c);
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_linear(i) == ((i + 1) % every == 0))
      return fmt::format("layer {} has {}linear attention", i, c.is_linear(i) ? "" : "no ");
  return "";
}

std::string why_not_multipliers(const GgufArchitecture& row, const ModelConfig& c) {
  const Multipliers& m = c.multipliers;
  const bool rooted = m.embedding == std::sqrt(static_cast<float>(c.width));
  if (row.logit_factor) {
    Multipliers others = m;
    others.logits = 1;
    return others.none() ? "" : "its multipliers are others";
  }
  if (row.lightning) {
    Multipliers others = m;
    others.attention_sum = others.lightning_sum = others.ffn_sum = {};
    return others.none() ? "" : "it has multipliers";
  }
  if (row.beside) return m.residual == 1 ? "" : "what its sublayers add has a multiplier";
  if (row.mup)
    return rooted && m.residual == 1 && m.attention == 0 && m.logits == 1
               ? ""
               : "its multipliers are others";
  if (row.gemma == 0 && !row.gemma4) return row.multipliers || m.none() ? "" : "it has multipliers";
  const float scores = row.gemma4 ? 1 : gemma_score_factor(row, c);
  const bool same = rooted && m.residual == 1 && m.logits == 1 &&
                    std::fabs(m.attention - scores) <= 1e-6f * m.attention;
  return same ? "" : "its multipliers are others";
}

std::string why_not_rope_scaling(const GgufArchitecture& row, const ModelConfig& c) {
  using Kind = RopeScaling::Kind;
  const RopeScaling& s = c.rope_scaling;
  if (row.stands()) return s.kind == Kind::none ? "" : "its rotary frequencies are scaled";
  if (s.kind == Kind::dynamic) return "beyond its context its rotary frequencies are others";
  if (s.kind == Kind::llama3 && !row.llama3_scaling)
    return "its rotary frequencies are scaled as Llama 3's are";
  if (s.kind == Kind::linear && row.latent())
    return "its rotary frequencies are scaled by one factor";
  if (s.kind == Kind::longrope && s.attention_factor != s.long_attention_factor)
    return "what turns is multiplied by one number in short texts and by another in long ones";
  if (s.kind != Kind::yarn) return "";
  if (s.truncate != row.yarn_truncate)
    return s.truncate ? "the ends of its YaRN's blend are rounded"
                      : "the ends of its YaRN's blend are not rounded";
  if (row.query_growth && s.attention_factor != 1) return "its YaRN multiplies cosines and sines";
  if (row.query_growth && s.original_context != c.query_growth.context)
    return "its queries grow from another context on than its YaRN's";
  if (row.latent() && row.yarn_scores == YarnScores::none) return "its YaRN scales scores";
  if (row.latent() && row.yarn_scores == YarnScores::one && s.score_mscale != 1)
    return fmt::format("its YaRN's mscale_all_dim is {}, not 1", s.score_mscale);
  // llama.cpp knows one number there, of scores alone.
  return row.latent() && (s.score_mscale <= 0 || s.attention_factor != 1)
             ? "its YaRN scales what turns otherwise than what does not"
             : "";
}

// llama.cpp knows V2-Lite and its like, whose queries are made of the token itself, by their layers
// (github ggml-org/llama.cpp src/models/deepseek2.cpp).
bool taken_for_lite(const ModelConfig& c) {
  return c.latent.present() &&
         (c.layers == 26 || c.layers == 27 || (c.layers == 48 && c.vocab == 128256));
}

std::string why_not_norms(const GgufArchitecture& row, const ModelConfig& c) {
  const bool told = row.parallel == ParallelKey::told && c.norm_placement == NormPlacement::pre;
  if (row.placement != c.norm_placement && !told)
    return c.norm_placement == NormPlacement::pre      ? "its norms come before each sublayer"
           : c.norm_placement == NormPlacement::output ? "its norms are of what sublayers give"
           : c.norm_placement == NormPlacement::both
               ? "its norms come before and behind each sublayer"
           : c.norm_placement == NormPlacement::beside
               ? "its FFNs stand beside attention, behind one norm"
           : c.norm_placement == NormPlacement::beside_each
               ? "its FFNs stand beside attention, each behind a norm"
           : c.norm_placement == NormPlacement::carried ? "its residuals are what norms give"
                                                        : "its norms come after each sublayer";
  if (row.norm_offset != c.norm_offset)
    return c.norm_offset ? "its norms count from 1" : "its norms do not count from 1";
  if (!row.norm_weights && c.norm_weights) return "its norms have weights";
  if (row.norm == NormKind::layer && row.norm_bias != c.norm_bias)
    return c.norm_bias ? "its norms have biases" : "its norms have no biases";
  if (row.norm_turned != c.qk_norm_turned)
    return c.qk_norm_turned ? "norms of queries and keys see them turned"
                            : "norms of queries and keys see them before they turn";
  if (row.qk_norm == c.qk_norm || (row.may_lack_qk_norm && c.qk_norm == QkNorm::none)) return "";
  return c.qk_norm == QkNorm::none   ? "queries and keys are not normalised"
         : c.qk_norm == QkNorm::head ? "queries and keys are normalised for each head"
         : c.qk_norm == QkNorm::bare ? "queries and keys are normalised without weights"
                                     : "queries and keys are normalised over all heads together";
}

// Command R+'s layers, by whose number llama.cpp knows it.
std::string why_not_so_many_layers(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.qk_layer_norms_from == 0 || c.layers < row.qk_layer_norms_from) return "";
  return fmt::format("with {} layers or more its queries and keys have norms",
                     row.qk_layer_norms_from);
}

// A few models have windows by that number alone.
std::string why_not_windows_by_layers(const GgufArchitecture& row, const ModelConfig& c) {
  if (row.windows_at == 0 || (c.layers == row.windows_at) == row.windows()) return "";
  return row.windows()
             ? fmt::format("llama.cpp gives it windows only with {} layers", row.windows_at)
             : fmt::format("with {} layers llama.cpp gives it windows", c.layers);
}

// What the row can say of the parts that few families' models have.
KnownParts known_parts_of(const GgufArchitecture& row, const ModelConfig& c) {
  return {.gemma4 = row.gemma4,
          .head_bias = row.head_bias,
          .longrope = row.longrope,
          .query_growth = c.query_growth.where_still ? row.llama4 : row.query_growth,
          .caps = row.caps,
          .bare_norms = !row.norm_weights,
          .halves = row.halves,
          .head_gates = row.laguna || row.ling3,
          .streams = row.hy4,
          .llama4 = row.llama4,
          .clips = row.clips,
          .scan_beside = row.beside,
          .values_apart = row.mimo,
          .kv_heads_apart = row.listed(),
          .heads_apart = row.listed(),
          .parts_apart = row.laguna,
          .softplus_gates = row.laguna,
          .blocks = row.blocks,
          .selective = row.selective};
}

// The questions, those that tell families apart first.
std::string ask(const GgufArchitecture& row, const ModelConfig& c, int& passed) {
  const std::string why_layers = why_not_layers(row, c);
  const bool routes = c.moe_layer_count() > 0,
             comparable = routes && row.routes() && why_layers.empty();
  const auto needs = [&](bool holds, std::string reason) {
    return holds ? std::string() : std::move(reason);
  };
  const std::string answers[] = {
      why_not_half_layers(row, c),
      needs(row.model_type.empty() || row.model_type == c.model_type ||
                (!row.other_model_type.empty() && row.other_model_type == c.model_type),
            fmt::format("it is no {}", row.title)),
      why_not_gguf_indexers(row, c),
      needs(row.norm == c.norm,
            row.norm == NormKind::rms ? "its norms are LayerNorms" : "its norms are RMSNorms"),
      needs(row.positions == c.positions, row.positions == Positions::rope
                                              ? "its positions are learned"
                                              : "its positions are rotary"),
      needs(row.routes() == routes,
            routes ? "some of its layers route" : "none of its layers routes"),
      why_layers,
      why_not_block_layers(row, c),
      why_not_norms(row, c),
      what_few_have(c, known_parts_of(row, c)),
      needs(!row.caps || (c.score_cap > 0 && c.logit_cap > 0),
            "its attention's scores or its logits are not held back"),
      needs(!row.query_growth || c.query_growth.present(),
            "its queries do not grow with their positions"),
      row.gemma4 ? why_not_gemma4(c) : "",
      row.llama4 ? why_not_llama4(c) : "",
      row.hy4 ? why_not_hy4(c) : "",
      needs(row.latent() == c.latent.present(),
            row.latent() ? "its attention is not latent" : "its attention is latent"),
      why_not_positions(row, c),
      why_not_linear(row, c),
      why_not_multipliers(row, c),
      needs(row.mimo || row.sinks == c.attention_sinks,
            c.attention_sinks ? "its attention has sinks" : "its attention has no sinks"),
      why_not_windows(row, c),
      why_not_window_rope(row, c),
      why_not_listed(row, c),
      needs(row.act == c.act, "its activation is another"),
      needs(row.gated == c.gated, c.gated ? "its FFNs have gates" : "its FFNs have no gates"),
      comparable ? why_not_shared(row, c) : "",
      comparable ? why_not_routing(row, c) : "",
      needs(fits(row.attention_bias, c.attention_bias),
            c.attention_bias ? "queries, keys and values have biases"
                             : "queries, keys and values have no biases"),
      needs(fits(row.attention_out_bias, c.attention_out_bias),
            c.attention_out_bias ? "the projection after attention has a bias"
                                 : "the projection after attention has no bias"),
      needs(!c.expert_down_bias || c.moe_layer_count() == 0, "its experts have biases"),
      needs(fits(row.ffn_bias, c.ffn_bias),
            c.ffn_bias ? "its FFNs have biases" : "its FFNs have no biases"),
      needs(row.free_head_width || row.latent() || c.q_width() == c.width,
            fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                        c.width)),
      needs(row.shares_kv || c.kv_heads == c.heads, "heads share keys and values"),
      needs(!row.tied || c.tied, "its head is not the embedding"),
      needs(!row.head_bias || c.head_bias, "its head has no bias"),
      why_not_so_many_layers(row, c),
      why_not_windows_by_layers(row, c),
      why_not_rope_scaling(row, c),
      needs(row.older_latents == nullptr || !taken_for_lite(c) || c.latent.query_width == 0,
            fmt::format("it has {} layers, as DeepSeek-V2-Lite has, and latents of queries",
                        c.layers)),
      row.scan ? why_not_state_sizes(row, c) : "",
  };
  passed = 0;
  for (const std::string& reason : answers) {
    if (!reason.empty()) return reason;
    ++passed;
  }
  return "";
}

}  // namespace

std::string why_not(const GgufArchitecture& row, const ModelConfig& config, int* distance) {
  int passed = 0;
  std::string reason = ask(row, config, passed);
  if (distance != nullptr) *distance = passed;
  return reason;
}

}  // namespace moe
