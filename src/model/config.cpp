// Which numbers of a model fit together.
#include "model/config.h"

#include <cmath>
#include <tuple>

#include "core/error.h"
#include "model/norm_places.h"
#include "model/rope.h"

namespace moe {
namespace {

// keeps every product of two sizes far from overflow
constexpr int64_t kMaxModelSize = int64_t{1} << 24;

void need_positive(int64_t value, const std::string& what) {
  if (value < 1) fail_usage("{} is {}; it must be at least 1", what, value);
}

void validate_sizes(const ModelConfig& c) {
  need_positive(c.vocab, "the vocabulary");
  need_positive(c.width, "the width");
  need_positive(c.layers, "the number of layers");
  need_positive(c.heads, "the number of heads");
  need_positive(c.kv_heads, "the number of key/value heads");
  need_positive(c.head_width, "the width of a head");
  need_positive(c.context, "the context");
  for (int64_t size : {c.vocab,
                       c.width,
                       c.layers,
                       c.heads,
                       c.head_width,
                       c.context,
                       c.dense_width,
                       c.expert_width,
                       c.routing.experts,
                       c.routing.zero_experts,
                       c.shared_experts,
                       c.shared_width,
                       c.latent.width,
                       c.latent.query_width,
                       c.latent.value_width,
                       c.sparse.top,
                       c.sparse.heads,
                       c.sparse.width,
                       c.sparse.block,
                       c.value_width})
    if (size > kMaxModelSize)
      fail_usage("a size of {} is beyond what a model can have here ({})", size, kMaxModelSize);
  if (c.heads % c.kv_heads != 0)
    fail_usage("{} heads cannot share {} key/value heads evenly; @kv_heads must divide @heads",
               c.heads, c.kv_heads);
}

void validate_rotary(const ModelConfig& c) {
  if (c.positions != Positions::rope) return;
  if (c.rotary_width < 0 || c.rotary_width > c.head_width || c.rotary_width % 2 != 0)
    fail_usage(
        "{} numbers of a head of {} turn with the position; it must be an even number of them",
        c.rotary_width, c.head_width);
  if (c.rotary_width == 0 && c.head_width % 2 != 0)
    fail_usage(
        "rotary positions turn pairs, so the head width must be even, not {}; change @width or "
        "@heads",
        c.head_width);
  if (c.window_rotary_width == 0) return;
  if (c.window_rotary_width < 0 || c.window_rotary_width > c.head_width ||
      c.window_rotary_width % 2 != 0)
    fail_usage(
        "{} numbers of a head of {} turn in layers with a window; it must be an even number of "
        "them",
        c.window_rotary_width, c.head_width);
  if (c.window_rope_theta == 0 || c.full.head_width > 0)
    fail_usage(
        "in layers with a window another part of a head can turn only by frequencies of their own, "
        "for which they need a rope theta, of heads as wide as the others");
}

void validate_values(const ModelConfig& c) {
  if (c.value_width < 0)
    fail_usage("the width of a head's values is {}; it must be at least 0", c.value_width);
  if (!(c.value_factor > 0 && std::isfinite(c.value_factor)))
    fail_usage("values are multiplied by {}; it must be above 0", c.value_factor);
  if (c.latent.present() && (c.value_width > 0 || c.value_factor != 1))
    fail_usage("latents say how wide the values of a head are, and nothing multiplies them");
  if (c.value_width > 0 && (c.full.head_width > 0 || !c.norm_weights))
    fail_usage(
        "values can be of another width than keys only where all heads are as wide as each other "
        "and norms have weights");
  if (c.gate_softplus && !c.attention_gate)
    fail_usage("it is said how a gate of attention weighs, but attention has no gate");
  if (c.window_sinks && !c.attention_sinks)
    fail_usage("sinks of layers with a window are asked for, but attention has no sinks");
}

void validate_layers(const ModelConfig& c, const std::vector<int64_t>& layers, const char* as) {
  for (int64_t layer : layers)
    if (layer < 0 || layer >= c.layers)
      fail_usage("layer {} is listed as {} but the model has layers 0 to {}", layer, as,
                 c.layers - 1);
}

void validate_multipliers(const ModelConfig& c) {
  const Multipliers& m = c.multipliers;
  if ((m.ffn_gate != 1 || m.ffn_down != 1) && (!c.gated || c.ffn_bias || c.moe_layer_count() > 0))
    fail_usage("FFNs with multipliers of their own are dense ones with gates and without biases");
  for (const auto& [what, x] :
       {std::pair{"embedding", m.embedding}, {"residual", m.residual}, {"logits", m.logits}})
    if (!(x > 0 && std::isfinite(x)))
      fail_usage("the multiplier of the {} is {}; it must be above 0", what, x);
  for (const auto& [what, x] : {std::pair{"what state spaces give", m.scan_out},
                                {"what attention gives", m.attention_out},
                                {"an FFN's gates", m.ffn_gate},
                                {"what an FFN gives", m.ffn_down},
                                {"a state space's gates", m.scan_in[0]},
                                {"a state space's values", m.scan_in[1]},
                                {"what writes its states", m.scan_in[2]},
                                {"what reads its states", m.scan_in[3]},
                                {"a state space's steps", m.scan_in[4]}})
    if (!(x > 0 && std::isfinite(x)))
      fail_usage("the multiplier of {} is {}; it must be above 0", what, x);
  for (const auto& [what, sum] : {std::pair{"attention", m.attention_sum},
                                  {"lightning attention", m.lightning_sum},
                                  {"an FFN", m.ffn_sum}})
    for (const float x : {sum.kept, sum.added})
      if (!(x > 0 && std::isfinite(x)))
        fail_usage(
            "the residual that {} adds to and what it adds are multiplied by {} and {}; both "
            "must be above 0",
            what, sum.kept, sum.added);
  const bool carried = c.norm_placement == NormPlacement::carried;
  if (carried ? m.residual != 1 : !m.plain_sums())
    fail_usage(
        "what norms give and what sublayers add have multipliers of their own where residuals are "
        "what norms give (@norm_placement carried), and there alone");
  if (!(m.attention >= 0 && std::isfinite(m.attention)))
    fail_usage("the multiplier of the attention's scores is {}; it must be at least 0",
               m.attention);
}

// Of latents that are keys and values as they are.
void validate_shared(const ModelConfig& c) {
  const LatentAttention& l = c.latent;
  if (!l.shared) {
    if (l.out_groups != 0 || l.out_width != 0 || c.has_entries())
      fail_usage(
          "matrices of parts of the heads, and entries, go with latents that are keys and values "
          "as they are");
    return;
  }
  if (l.query_width < 1 || l.width != c.head_width || l.value_width != c.head_width ||
      c.kv_heads != 1)
    fail_usage(
        "latents of {} numbers cannot be the one key and value of heads of {}: they are as wide, "
        "@kv_heads is 1, and queries are made of latents, too",
        l.width, c.head_width);
  if ((l.out_groups > 0) != (l.out_width > 0) || l.out_groups < 0 || l.out_width > kMaxModelSize ||
      (l.out_groups > 0 && c.heads % l.out_groups != 0))
    fail_usage("{} heads are not {} parts, of which each becomes {} numbers", c.heads, l.out_groups,
               l.out_width);
  if (l.query_both || c.attention_gate || c.sparse.present() || c.query_growth.present() ||
      c.window_sinks || c.scan_beside || !c.nope_layers.empty() || c.window_rotary_width > 0 ||
      c.rope_scaling.kind == RopeScaling::Kind::longrope)
    fail_usage(
        "latents that are keys and values as they are turn in all layers, without gates, sparse "
        "attention, queries that grow and longrope");
}

void validate_entries(const ModelConfig& c, const Entries& e, const std::vector<int64_t>& layers,
                      bool chosen) {
  validate_layers(c, layers, "one that attends to entries");
  if (e.present() == layers.empty())
    fail_usage("entries stand for {} tokens, and {} layers have them; give both, or none", e.tokens,
               layers.size());
  if (!e.present()) {
    if (e.tokens < 0 || e.top != 0 || e.heads != 0 || e.width != 0)
      fail_usage("an indexer of entries is given, but there are none");
    return;
  }
  constexpr int64_t kMostTokens = int64_t{1} << 16;
  if (e.tokens > kMostTokens || e.chosen() != chosen || e.top < 0 || e.top > kMaxModelSize)
    fail_usage("entries of {} tokens, of which {} are chosen; it must be 1 to {} tokens", e.tokens,
               e.top, kMostTokens);
  if (chosen && (e.heads < 1 || e.heads > kMaxModelSize || e.width < c.rotary_width ||
                 e.width > kMaxModelSize))
    fail_usage(
        "an indexer of entries has {} heads of {} numbers, of which {} turn with the position",
        e.heads, e.width, c.rotary_width);
  for (const int64_t layer : layers)
    if (c.mixer(layer) != Mixer::attention || !c.has_window(layer))
      fail_usage("layer {} attends to entries, so it must have attention with a window", layer);
}

void validate_latent(const ModelConfig& c) {
  const LatentAttention& l = c.latent;
  if (l.query_both && (!l.present() || l.query_width == 0))
    fail_usage("queries are made of latents before and behind their norm, but of none");
  for (const float factor : {l.factor, l.query_factor})
    if (!(factor > 0 && std::isfinite(factor)) || (factor != 1 && !l.present()))
      fail_usage("latents are multiplied by {}; it must be above 0, and 1 where there are none",
                 factor);
  validate_shared(c);
  if (!l.present()) return;
  if (l.query_factor != 1 && (l.query_width == 0 || l.query_both || c.sparse.present()))
    fail_usage(
        "latents of queries that are multiplied are behind their norm alone, and no indexer reads "
        "them");
  need_positive(l.value_width, "the width of a head's values");
  if (l.query_width < 0)
    fail_usage("the width of what queries are made of is {}; it must be at least 0", l.query_width);
  if (c.rotary_width == 0 || c.rotary_width == c.head_width)
    fail_usage(
        "all of a head's {} numbers turn with the position; with latent attention only some may",
        c.head_width);
  if (!l.shared && c.kv_heads != c.heads)
    fail_usage("with latent attention every head has its own keys and values; there are {} of {}",
               c.kv_heads, c.heads);
  if (c.positions != Positions::rope || c.qk_norm != QkNorm::none || c.attention_bias ||
      c.attention_out_bias)
    fail_usage(
        "latent attention has rotary positions, no biases, and no norms of queries and keys");
  if (l.query_both && (c.head_gates || c.gate_softplus))
    fail_usage(
        "a gate that is made of latents before and behind their norm has a sigmoid for each number "
        "of a head's values");
}

void validate_blocks(const ModelConfig& c) {
  const SparseAttention& s = c.sparse;
  if (s.block < 1 || s.block % ops::kKeyBlock != 0)
    fail_usage("blocks of {} tokens are chosen; it must be a multiple of {}, in which keys lie",
               s.block, ops::kKeyBlock);
  if (s.top % s.block != 0 || s.local < 1 || s.local > s.blocks())
    fail_usage(
        "{} tokens are chosen in blocks of {}, the last {} of them always; these must be whole "
        "blocks, and 1 of them to all",
        s.top, s.block, s.local);
  if (s.heads != c.kv_heads)
    fail_usage(
        "an indexer has {} heads; where it chooses blocks each is of one of the {} "
        "key/value heads",
        s.heads, c.kv_heads);
  if (c.latent.present() || !s.followers.empty() || c.positions != Positions::rope ||
      c.attention_sinks || c.score_cap > 0)
    fail_usage(
        "blocks are chosen without latents, with rotary positions, by an indexer in each layer "
        "that "
        "is sparse, of scores without sinks and caps");
  if (std::ssize(s.whole_layers) == c.layers)
    fail_usage("indexers are given, but all {} layers attend to all tokens", c.layers);
}

void validate_sparse(const ModelConfig& c) {
  const SparseAttention& s = c.sparse;
  validate_layers(c, s.followers, "one without an indexer");
  validate_layers(c, s.whole_layers, "one that attends to all tokens");
  if (!s.present()) {
    if (s.top < 0 || s.heads != 0 || s.width != 0 || !s.followers.empty() || s.block != 0 ||
        !s.whole_layers.empty())
      fail_usage("indexers are given, but they choose {} tokens; it must be at least 1", s.top);
    return;
  }
  need_positive(s.heads, "the number of an indexer's heads");
  if (s.block != 0) validate_blocks(c);
  else if (c.latent.query_width < 1 || !s.whole_layers.empty())
    fail_usage(
        "single tokens are chosen by latent attention whose queries are made of latents, in all "
        "layers");
  const int64_t turning = c.rotary_width > 0 ? c.rotary_width : c.head_width;
  if (s.width < turning)
    fail_usage("an indexer's heads have {} numbers, of which {} turn with the position", s.width,
               turning);
  if (lists(s.followers, 0))
    fail_usage("layer 0 has no indexer, and no layer before it has one whose choice it could take");
  if (c.attention_window > 0 || !c.nope_layers.empty() || !c.linear_layers.empty() ||
      !c.conv_layers.empty() || !c.scan_layers.empty() || !c.lightning_layers.empty() ||
      !c.ffn_only_layers.empty())
    fail_usage("where attention is sparse all layers have it, with rotary positions, no window");
  // A text would end for two reasons.
  if (c.rope_scaling.kind == RopeScaling::Kind::dynamic)
    fail_usage("where attention is sparse rotary frequencies cannot be \"dynamic\"");
}

void validate_full(const ModelConfig& c) {
  const FullAttention& f = c.full;
  if (!f.present()) return;
  if (f.heads < 0 || f.kv_heads < 0 || f.head_width < 0 || f.head_width > kMaxModelSize ||
      f.heads > kMaxModelSize)
    fail_usage(
        "layers without a window have {} heads, {} key/value heads, of width {}; none may be below "
        "0, nor so large",
        f.heads, f.kv_heads, f.head_width);
  if (c.attention_window == 0)
    fail_usage("heads of layers without a window are given, but no layer has one");
  const int64_t heads = f.heads > 0 ? f.heads : c.heads,
                kv_heads = f.kv_heads > 0 ? f.kv_heads : c.kv_heads;
  if (heads % kv_heads != 0)
    fail_usage("{} heads of layers without a window cannot share {} key/value heads evenly", heads,
               kv_heads);
  if (c.latent.present() || c.qk_norm == QkNorm::full)
    fail_usage(
        "layers without a window can have heads of their own only without latents and norms over "
        "all heads");
  if (f.head_width > 0 && c.rotary_width > 0) fail_usage("heads of two widths can turn only whole");
  if (f.values_of_keys && (c.qk_norm != QkNorm::head || c.qk_norm_turned || !c.value_norm ||
                           c.attention_bias || c.attention_gate))
    fail_usage(
        "values can be of keys only where both have norms of their own, before they turn, without "
        "biases and gates");
  if (f.head_width % 2 != 0)
    fail_usage("rotary positions turn pairs, so the head width must be even, not {}", f.head_width);
  if (f.head_width > 0 && f.head_width != c.head_width && c.window_rope_theta == 0)
    fail_usage("heads of two widths turn by frequencies of their own; give both a rope theta");
}

void validate_linear(const ModelConfig& c) {
  const LinearAttention& l = c.linear;
  validate_layers(c, c.linear_layers, "one of linear attention");
  if (l.present() && c.linear_layers.empty())
    fail_usage("heads of linear attention are given, but no layer has it");
  if (!l.present() && !c.linear_layers.empty())
    fail_usage("layers have linear attention, but no heads of it are given");
  if (!l.present()) return;
  constexpr int64_t kLimit = int64_t{1} << 12;  // of heads, and of their widths
  for (const auto& [what, size] : {std::pair{"key heads", l.key_heads},
                                   {"value heads", l.value_heads},
                                   {"a key's width", l.key_width},
                                   {"a value's width", l.value_width},
                                   {"the convolution's width", l.conv_width}})
    if (size < 1 || size > kLimit)
      fail_usage("{} of linear attention: {}; it must be 1 to {}", what, size, kLimit);
  if (l.value_heads % l.key_heads != 0)
    fail_usage("{} value heads of linear attention cannot share {} key heads evenly", l.value_heads,
               l.key_heads);
  if (l.conv_width < 2)
    fail_usage("the convolution of linear attention sees {} token; it must see 2 at least",
               l.conv_width);
  if (l.gate_width < 0 || l.gate_width > kLimit)
    fail_usage(
        "gates of linear attention are made of {} numbers; it must be 0 (of the token) to {}",
        l.gate_width, kLimit);
  if (!(l.decay_floor <= 0 && std::isfinite(l.decay_floor)))
    fail_usage("the floor of linear attention's decays is {}; it must be below 0, or 0 for none",
               l.decay_floor);
  if (!(l.norm_eps >= 0 && std::isfinite(l.norm_eps)))
    fail_usage(
        "the epsilon of linear attention's norm is {}; it must be above 0, or 0 for the "
        "model's",
        l.norm_eps);
}

void validate_convolutions(const ModelConfig& c) {
  validate_layers(c, c.conv_layers, "one of a convolution");
  constexpr int64_t kMost = 64;
  if (c.conv_layers.empty() != (c.conv_width == 0) ||
      (c.conv_width != 0 && (c.conv_width < 2 || c.conv_width > kMost)))
    fail_usage("{} layers have a convolution of {} tokens; it must see 2 to {} where there is one",
               c.conv_layers.size(), c.conv_width, kMost);
  for (const int64_t layer : c.conv_layers)
    if (lists(c.linear_layers, layer))
      fail_usage("layer {} is listed as one of linear attention and as one of a convolution",
                 layer);
}

void validate_scan(const ModelConfig& c) {
  const StateSpace& s = c.scan;
  validate_layers(c, c.scan_layers, "one of a state space");
  if (s.present() == c.scan_layers.empty() || (s.selective() && !s.present()))
    fail_usage("a state space has {} heads, and {} layers have one; both must be given, or none",
               s.heads, c.scan_layers.size());
  for (const int64_t layer : c.scan_layers)
    if (lists(c.linear_layers, layer) || lists(c.conv_layers, layer))
      fail_usage("layer {} is listed as one of a state space and as one of something else", layer);
  if (c.scan_beside && (!s.present() || c.latent.present()))
    fail_usage("attention stands beside state spaces, but there are none, or it is latent");
  if (!s.present()) return;
  // of heads, and of their widths; where each value is a head, of values
  constexpr int64_t kLimit = int64_t{1} << 12, kMostValues = int64_t{1} << 20;
  for (const auto& [what, size, least, most] :
       {std::tuple{"heads", s.heads, 1, s.selective() ? kMostValues : kLimit},
        {"groups of heads", s.groups, 1, kLimit},
        {"a head's width", s.width, 1, kLimit},
        {"numbers kept of each value", s.states, 1, kLimit},
        {"the convolution's width", s.conv_width, 2, kLimit},
        {"numbers that steps are made of", s.step_rank, 0, kMostValues}})
    if (size < least || size > most)
      fail_usage("{} of a state space: {}; it must be {} to {}", what, size, least, most);
  if (s.selective() &&
      (s.groups != 1 || s.width != 1 || c.scan_beside || !c.multipliers.none_in_layers()))
    fail_usage(
        "steps of a state space are made of {} numbers: each of its values is then a head in one "
        "group, without attention beside it and multipliers of parts of layers",
        s.step_rank);
  if (s.heads % s.groups != 0)
    fail_usage("{} heads of a state space are not {} groups of as many each", s.heads, s.groups);
}

void validate_lightning(const ModelConfig& c) {
  validate_layers(c, c.lightning_layers, "one of lightning attention");
  for (const int64_t layer : c.lightning_layers)
    if (lists(c.linear_layers, layer) || lists(c.conv_layers, layer) || lists(c.scan_layers, layer))
      fail_usage("layer {} is listed as one of lightning attention and as one of something else",
                 layer);
  if (!(c.lightning_norm_eps > 0 && std::isfinite(c.lightning_norm_eps)))
    fail_usage("the epsilon of lightning attention's norm is {}; it must be above 0",
               c.lightning_norm_eps);
  if (c.lightning_layers.empty()) return;
  constexpr int64_t kLimit = int64_t{1} << 12;
  if (c.heads > kLimit || c.head_width > kLimit)
    fail_usage("lightning attention has {} heads of {} numbers; each must be 1 to {}", c.heads,
               c.head_width, kLimit);
  if (c.latent.present() || c.full.present() || c.norm_offset)
    fail_usage(
        "lightning attention has the heads of attention, which are then of one kind and without "
        "latents, and norms that do not count from 1");
  if (c.act == ops::Act::swiglu_oai || c.act == ops::Act::swiglu_10 || c.xielu)
    fail_usage(
        "queries, keys and values of lightning attention go through the activation, which has to "
        "be one of a single number, without factors that are learned");
}

void validate_streams(const ModelConfig& c) {
  const ops::HyperShape& h = c.hyper;
  constexpr int64_t kMost = 16, kMostRounds = 1000;
  if (h.streams < 0 || h.streams == 1 || h.streams > kMost)
    fail_usage("@streams is {}; there are 2 to {} residual streams, or 0: one that is not weighed",
               h.streams, kMost);
  if (!h.present()) return;
  if (!(h.magnitude > 0 && std::isfinite(h.magnitude)) || !(h.eps >= 0 && std::isfinite(h.eps)))
    fail_usage(
        "streams are weighed up to {} with an epsilon of {}; give one above 0, and one of 0 or "
        "more",
        h.magnitude, h.eps);
  if (h.rounds < 1 || h.rounds > kMostRounds)
    fail_usage("weights of streams are divided by their sums in {} rounds; it must be 1 to {}",
               h.rounds, kMostRounds);
  if (c.norm_placement != NormPlacement::pre || c.moe_out_norm || c.branch_norms || c.layer_scale ||
      c.multipliers.residual != 1 || c.has_halves())
    fail_usage(
        "several residual streams go with norms before sublayers alone, in layers that have both, "
        "without multipliers of the residual");
}

void validate_halves(const ModelConfig& c) {
  validate_layers(c, c.ffn_only_layers, "one that is an FFN alone");
  validate_layers(c, c.mixer_only_layers, "one without an FFN");
  if (!c.has_halves()) return;
  for (const int64_t layer : c.ffn_only_layers)
    if (lists(c.mixer_only_layers, layer) || lists(c.linear_layers, layer) ||
        lists(c.conv_layers, layer) || lists(c.scan_layers, layer) ||
        lists(c.lightning_layers, layer))
      fail_usage("layer {} is listed as one that is an FFN alone and as one of something else",
                 layer);
  for (const int64_t layer : c.moe_layers)
    if (lists(c.mixer_only_layers, layer))
      fail_usage("layer {} is listed as MoE and as one without an FFN", layer);
  int64_t mixing = 0;
  for (int64_t i = 0; i < c.layers; ++i) mixing += c.mixes(i);
  if (mixing == 0)
    fail_usage("all {} layers are FFNs alone; one at least has to mix tokens", c.layers);
  if (is_beside(c.norm_placement))
    fail_usage("a layer whose FFN stands beside its attention has both");
}

void validate_longrope(const ModelConfig& c) {
  if (c.rope_scaling.kind != RopeScaling::Kind::longrope) return;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const AttentionShape shape = c.attention(layer);
    const auto pairs = static_cast<size_t>(shape.rotary_width / 2);
    if (pairs > 0 && pairs != c.rope_scaling.short_factors.size())
      fail_usage("longrope has {} factors, but {} pairs of a head turn in layer {}; give one each",
                 c.rope_scaling.short_factors.size(), pairs, layer);
  }
}

void validate_projected(const ModelConfig& c) {
  if (!(c.qkv_clip >= 0 && std::isfinite(c.qkv_clip)) || (c.qkv_clip > 0 && c.latent.present()))
    fail_usage("what queries are clipped at is {}; it must be above 0, without latents, or 0",
               c.qkv_clip);
  if (c.value_norm && c.latent.present())
    fail_usage("values of latent attention have no norm of their own");
}

// The factor is part of what queries are turned by, so all of a head has to turn, in every layer by
// the same. Of latent attention it is a table of whole heads, in pairs, that turns nothing.
void validate_query_growth(const ModelConfig& c) {
  const QueryGrowth& g = c.query_growth;
  if (!g.present()) return;
  if (!(g.beta > 0 && std::isfinite(g.beta)) || g.context < 1)
    fail_usage("queries grow by {} each time that {} tokens are behind them; both must be above 0",
               g.beta, g.context);
  const bool latent = c.latent.present();
  if (g.where_still) {
    if (c.positions != Positions::rope || latent || c.full.present())
      fail_usage(
          "queries can grow where nothing turns only beside layers with rotary positions, without "
          "latents, with heads of one kind");
    return;
  }
  if (c.positions != Positions::rope || (c.rotary_width > 0 && !latent) || !c.nope_layers.empty() ||
      c.sparse.present() || c.window_rope_theta > 0 ||
      c.rope_scaling.kind == RopeScaling::Kind::longrope)
    fail_usage(
        "queries can grow with their positions only where all of a head turns, or a part of it by "
        "latent attention, in all layers by the same frequencies, without indexers and longrope");
  if (latent && c.head_width % 2 != 0)
    fail_usage("queries of latent attention grow in pairs, so the head width must be even, not {}",
               c.head_width);
}

void validate_windows(const ModelConfig& c) {
  if (!(c.window_rope_theta >= 0 && std::isfinite(c.window_rope_theta)))
    fail_usage("the rope theta of layers with a window is {}; it must be at least 0",
               c.window_rope_theta);
  if (c.attention_window < 0)
    fail_usage(
        "the attention window is {}; it must be 0 (none) or the number of tokens that each token "
        "sees",
        c.attention_window);
  if (c.window_chunks && (c.attention_window == 0 || c.latent.present()))
    fail_usage(
        "attention is cut into chunks of {} tokens; there must be some in a chunk, and no latents",
        c.attention_window);
}

void validate_activation(const ModelConfig& c) {
  if ((c.act == ops::Act::swiglu_oai || c.act == ops::Act::swiglu_10) && !c.gated)
    fail_usage("the activations swiglu_oai and swiglu_10 are of FFNs with gates");
  if (c.experts_held && (c.act != ops::Act::silu || !c.gated || c.by_neuron()))
    fail_usage("routed experts can be held at 10 only where FFNs have gates of silu");
  if (c.xielu && c.gated) fail_usage("xIELU is an activation of FFNs without gates");
  if (c.xielu && c.moe_layer_count() > 0)
    fail_usage(
        "xIELU, whose factors each layer learns, is an activation of dense FFNs here: a model with "
        "it cannot have experts, nor be carved, upcycled or merged into one that has");
}

void validate_norms(const ModelConfig& c) {
  if (c.norm == NormKind::rms && c.norm_bias)
    fail_usage("an RMSNorm has no bias; drop the norm bias or take LayerNorm");
  if (c.states_pre_norm && c.norm_placement != NormPlacement::output)
    fail_usage(
        "norms of layers without attention stand before sublayers apart from the others' only "
        "where these are of what sublayers give");
  if (!c.norm_weights && (c.norm_bias || c.norm_offset))
    fail_usage("only a norm without bias that adds nothing to its weight can be without one");
  if (!c.norm_weights && c.qk_norm == QkNorm::full)
    fail_usage("norms of queries and keys over all heads together have weights");
  if (c.qk_norm == QkNorm::bare && c.positions != Positions::rope)
    fail_usage("bare norms of queries and keys stand where something turns; nothing does here");
  if (c.norm_gate < 0 || c.norm_gate > kMaxModelSize)
    fail_usage("a gate behind a norm is made of {} numbers; it must be 0 (there is none) to {}",
               c.norm_gate, kMaxModelSize);
  if (c.norm_gate > 0 &&
      (c.norm_placement != NormPlacement::pre || c.branch_norms || c.hyper.present()))
    fail_usage(
        "gates stand behind norms before sublayers, of one residual stream, where branches have no "
        "norms of their own");
}

void validate_shortcut(const ModelConfig& c) {
  if (!c.shortcut) return;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_moe(i) && (i + 1 == c.layers || c.is_moe(i + 1)))
      fail_usage(
          "what experts of layer {} give joins behind the next layer, so that has to be a dense "
          "one",
          i);
  if (c.shared_experts == 0 || c.shared_average || c.branch_norms || c.moe_out_norm)
    fail_usage(
        "experts that join later have shared experts beside them, which join at once, without "
        "norms between or behind");
  if (c.norm_placement != NormPlacement::pre || c.hyper.present() || c.layer_scale ||
      c.has_halves() || c.multipliers.residual != 1 || c.dropout > 0)
    fail_usage(
        "experts join later in one residual stream with norms before sublayers, without dropout, "
        "multipliers of the residual, scales of layers and layers of one sublayer");
}

void validate_tables(const ModelConfig& c, const RoutingSpec& spec) {
  validate_layers(c, c.table_layers, "one whose experts a table says");
  for (const int64_t layer : c.table_layers)
    if (!c.is_moe(layer))
      fail_usage("layer {} is listed as one whose experts a table says, but it has none", layer);
  if (!c.table_layers.empty() && (!needs_logits(spec.select) || experts_choose(spec.select) ||
                                  !std::holds_alternative<KeepSecond>(spec.second) ||
                                  !std::holds_alternative<Dropless>(spec.capacity)))
    fail_usage(
        "a table can say the experts of a layer only where tokens choose theirs by scores and none "
        "is left out");
}

void validate_experts(const ModelConfig& c) {
  need_positive(c.expert_width, "the expert width");
  if (c.shared_experts < 0)
    fail_usage("@shared_experts is {}; it must be at least 0", c.shared_experts);
  if (c.moe_out_norm && c.norm_placement != NormPlacement::pre)
    fail_usage("norms behind experts alone stand where others are before sublayers");
  if (c.branch_norms && is_beside(c.norm_placement))
    fail_usage("branches with norms of their own stand in an FFN behind attention, not beside it");
  if (c.branch_norms && c.norm_placement == NormPlacement::carried)
    fail_usage("branches with norms of their own see the residual, which a norm does not give");
  if (c.branch_norms && (c.shared_experts == 0 || c.shared_gate))
    fail_usage("branches with norms of their own have shared experts without a gate beside them");
  if (c.shared_average && (c.shared_experts == 0 || c.branch_norms))
    fail_usage("routed and shared experts are averaged only where both are, without norms between");
  if (c.shared_experts > 0) need_positive(c.shared_width, "the width of a shared expert");
}

}  // namespace

void check_sketch_bits(int64_t bits) {
  if (bits < 2 || bits > 4)
    fail_usage("@sketch_bits is {}; a sketch has 2, 3 or 4 bits a number", bits);
}

void validate(const ModelConfig& c) {
  validate_sizes(c);
  if (!(c.dropout >= 0 && c.dropout < 1))
    fail_usage("dropout is {}; it must be at least 0 and below 1", c.dropout);
  if (!(c.norm_eps > 0)) fail_usage("the norm's epsilon is {}; it must be above 0", c.norm_eps);
  if (!(c.rope_theta > 0)) fail_usage("rope theta is {}; it must be above 0", c.rope_theta);
  validate(c.rope_scaling);
  validate_latent(c);
  if (c.head_gates && !c.attention_gate)
    fail_usage("gates of heads are given, but attention has no gate");
  validate_entries(c, c.heavy, c.heavy_layers, false);
  validate_entries(c, c.light, c.light_layers, true);
  for (const int64_t layer : c.heavy_layers)
    if (lists(c.light_layers, layer))
      fail_usage("layer {} is listed with entries of many tokens and with such of few", layer);
  validate_sparse(c);
  validate_full(c);
  validate_linear(c);
  validate_convolutions(c);
  validate_scan(c);
  validate_lightning(c);
  validate_halves(c);
  validate_streams(c);
  validate_windows(c);
  validate_rotary(c);
  validate_values(c);
  validate_longrope(c);
  validate_query_growth(c);
  validate_multipliers(c);
  validate_layers(c, c.window_layers, "one with a window");
  validate_layers(c, c.nope_layers, "one without rotary positions");
  check_sketch_bits(c.sketch_bits);
  validate_activation(c);
  validate_norms(c);
  need_positive(c.moe_every, field("moe_every"));
  if (c.dense_first < 0) fail_usage("@dense_first is {}; it must be at least 0", c.dense_first);
  validate_layers(c, c.moe_layers, "MoE");
  if (c.dense_layer_count() > 0) need_positive(c.dense_width, "the FFN width of dense layers");
  if (!(c.logit_cap >= 0 && std::isfinite(c.logit_cap)))
    fail_usage("logits are held below {}; it must be above 0, or 0 for none", c.logit_cap);
  if (!(c.score_cap >= 0 && std::isfinite(c.score_cap)))
    fail_usage("attention's scores are held below {}; it must be above 0, or 0 for none",
               c.score_cap);
  if (c.score_cap > 0 && c.latent.present()) fail_usage("scores of latent attention have no cap");
  validate_projected(c);
  if (c.shortcut && c.moe_layer_count() == 0)
    fail_usage("experts are said to join later, but none of the {} layers has some", c.layers);
  if (!find_recipe(c.routing.recipe).has_router()) return;
  if (c.moe_layer_count() == 0)
    fail_usage("recipe '{}' routes, but none of the {} layers is an MoE layer; lower @dense_first",
               c.routing.recipe, c.layers);
  validate_experts(c);
  validate_shortcut(c);
  validate_tables(c, train_spec(c.routing));
  eval_spec(c.routing);
}

}  // namespace moe
