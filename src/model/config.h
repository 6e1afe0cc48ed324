// What a model is: every number and choice that its mathematics depends on. hub/ reads and writes
// it in the ecosystem's formats.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moe/norm.h"
#include "moe/recipes/recipes.h"
#include "ops/ops.h"

namespace moe {

// h being the residual stream and f a sublayer: h + f(norm(h)), norm(h + f(h)), h + norm(f(h)),
// h + out_norm(f(norm(h))); beside: h + attn(norm(h)) + ffn(norm(h)), one norm for both (GPT-J,
// Cohere); beside_each: the same with a norm for each (GPT-NeoX); carried: a norm(h) + b
// f(norm(h)), what the norm gives being the residual too, a and b being Multipliers::Sum
// (MiniMax-Text-01)
enum class NormPlacement { pre, post, output, both, beside, beside_each, carried };
enum class Positions { rope, learned };
enum class QkNorm {
  none,
  head,
  full,
  bare
};  // RMSNorm of queries and keys, per head or over all heads together; bare: per head, without
    // weights, in layers where something turns (Llama 4)

// How rotary frequencies f_c = theta^(-2c/C) are changed for contexts longer than a model was first
// trained on (transformers:modeling_rope_utils.py). A wavelength is 2 pi / f; original =
// original_context.
struct RopeScaling {
  enum class Kind {
    none,
    linear,        // f / factor
    llama3,        // f where the wavelength is under original / high_freq_factor, f / factor over
                   // original / low_freq_factor, between them a blend; of equal factors (Llama 4)
                   // one or the other
    yarn,          // f and f / factor blended over the c whose rotations in `original` lie between
                   // beta_fast and beta_slow; scores grow (arXiv 2309.00071)
    proportional,  // f / factor of the first `share` of pairs, 0 of the others (Gemma 4)
    longrope,      // f / short_factors[c]; of texts that may grow beyond `original` f /
                   // long_factors[c] from their first token on (arXiv 2402.13753)
    dynamic,       // f while a text is no longer than the model's context; of longer ones, which
                   // are not computed here, another base, which factor and length give
  };
  Kind kind = Kind::none;
  float factor = 1;
  int64_t original_context = 0;                     // llama3, yarn and longrope
  float low_freq_factor = 1, high_freq_factor = 4;  // llama3
  float beta_fast = 32, beta_slow = 1;              // yarn
  // yarn and longrope: what cosines and sines are multiplied by; the reader of a config works it
  // out
  float attention_factor = 1;
  float long_attention_factor = 1;  // longrope: the same of texts that may grow beyond
  std::vector<float> short_factors, long_factors;  // longrope, [R/2]
  // yarn, with latent attention: scores are multiplied by (0.1 score_mscale ln(factor) + 1)^2
  float score_mscale = 0;
  bool truncate = true;  // yarn: the blend's ends are rounded outwards to whole c
  float share = 1;       // proportional: of pairs that turn
};

// Queries of far tokens are multiplied by 1 + beta ln(1 + floor(position / context)), so that
// scores stay apart among many keys (Ministral 3, Llama 4; arXiv 2501.19399; transformers:
// ministral3/modeling_ministral3.py, llama4/modeling_llama4.py).
struct QueryGrowth {
  float beta = 0;       // 0: queries are as they are
  int64_t context = 0;  // tokens before the first step
  // Only in layers where nothing turns, by positions that are counted from 1 (Llama 4).
  bool where_still = false;

  bool present() const { return beta != 0 || context != 0; }
};

// Attention whose keys and values are made of few numbers that a token keeps, the same for all
// heads (DeepSeek-V2, arXiv 2405.04434, section 2.1).
struct LatentAttention {
  int64_t width = 0;        // of those numbers; 0: keys and values are made of the token itself
  int64_t query_width = 0;  // likewise for queries; 0: they are made of the token
  int64_t value_width = 0;  // Cv of a head
  // queries, and a gate of what heads give, are made of these numbers behind their norm and before
  // it, side by side
  bool query_both = false;
  // of these numbers and of those of queries, behind their norms (LongCat-Flash, arXiv 2509.01322,
  // section 2.3)
  float factor = 1, query_factor = 1;
  // They are the key and the value of all heads as they are, turned like a key, and what heads give
  // of them is turned back (DeepSeek-V4, arXiv 2606.19348, section 2.3).
  bool shared = false;
  // With those: what heads give is made narrower by so many matrices, each of its part of the
  // heads, to so many numbers each; 0: it is not
  int64_t out_groups = 0, out_width = 0;

  bool present() const { return width > 0; }
  int64_t queries_of() const { return query_both ? 2 * query_width : query_width; }
};

// Of the tokens before it a token attends to the `top` best only, itself among them. An indexer of
// the layer says which these are, or the choice of the last layer before it that has one stands
// (DeepSeek-V3.2, arXiv 2512.02556, section 2.1; GLM-5).
struct SparseAttention {
  int64_t top = 0;               // 0: to all of them
  int64_t heads = 0, width = 0;  // of an indexer's queries; its keys have one head
  // of the norm of an indexer's keys, a constant of most families' code
  // (transformers:deepseek_v32/modeling_deepseek_v32.py)
  float norm_eps = 1e-6f;
  std::vector<int64_t> followers = {};  // layers without an indexer
  // Without latents whole blocks of so many tokens are chosen, counted from the text's beginning,
  // `top` tokens together: for the heads of each key/value head by one head of the indexer, those
  // whose best token it scores highest, and the last `local` of them always, the token's own among
  // them (MiniMax-M3; transformers:minimax_m3_vl/modeling_minimax_m3_vl.py). 0: single tokens
  int64_t block = 0, local = 1;
  std::vector<int64_t> whole_layers = {};  // in which a token attends to all before it

  bool present() const { return top > 0; }
  int64_t blocks() const { return block > 0 ? top / block : 0; }
};

// Entries beside the tokens of a window (DeepSeek-V4, arXiv 2606.19348, section 2.3), each of which
// stands for some tokens that follow one another: every number of it is a mean of theirs, weighted
// by what they say themselves. A token attends to those whose last token is not behind it.
struct Entries {
  int64_t tokens = 0;  // that an entry stands for; 0: there are none
  // Each is a mean of as many tokens before those, too, and a token attends to the `top` best only,
  // which an indexer says.
  int64_t top = 0;
  int64_t heads = 0, width = 0;  // of an indexer's queries; its keys are entries of its own

  bool present() const { return tokens > 0; }
  bool chosen() const { return top > 0; }
  // That can have their last token within so many that follow one another.
  int64_t in_block(int64_t block) const { return (block + tokens - 1) / tokens; }
  // How often an entry's width a token is projected to.
  int64_t parts() const { return chosen() ? 2 : 1; }
};

// The gated delta rule, in place of attention (Gated DeltaNet, arXiv 2412.06464): a sequence keeps
// one matrix a value head, however long it is.
struct LinearAttention {
  int64_t key_heads = 0;  // of queries and keys; 0: no layer is so
  int64_t value_heads =
      0;  // value head h has the queries and keys of head h key_heads / value_heads
  int64_t key_width = 0, value_width = 0;  // of a head
  int64_t conv_width = 0;                  // tokens that the convolution before it sees
  // Of what decays, of each channel of a head, and sigmoid gates are made (Kimi Delta Attention,
  // arXiv 2510.26692); 0: both are made of the token, decays are of a head and gates are silu ...
  int64_t gate_width = 0;
  bool channel_decays = false;  // ... unless this says that they are as Kimi's all the same
  // What a token's decay, its logarithm, never falls below: floor / (1 + e^-(e^a_log (a +
  // dt_bias))), in place of -e^a_log log(1 + e^(a + dt_bias)); 0: that (Ling 3.0)
  float decay_floor = 0;
  // Strengths are up to 2, not 1: what a matrix holds of a key may turn round, which gives the rule
  // negative eigenvalues (arXiv 2411.12537).
  bool negative = false;
  float norm_eps = 0;  // of the norm of what heads give; 0: that of the model's norms

  bool present() const { return key_heads > 0; }
  float most_strength() const { return negative ? 2 : 1; }
  int64_t k_width() const { return key_heads * key_width; }
  int64_t v_width() const { return value_heads * value_width; }
  int64_t channels() const { return 2 * k_width() + v_width(); }  // of the convolution
  bool by_channel() const { return gate_width > 0 || channel_decays; }
  // Numbers that say how much a token makes the matrices forget.
  int64_t decays() const { return by_channel() ? value_heads * key_width : value_heads; }
  // Numbers that a sequence keeps: the last tokens' channels, and the matrices.
  int64_t conv_state() const { return (conv_width - 1) * channels(); }
  int64_t state() const { return conv_state() + v_width() * key_width; }
};

// Mamba-2's state space, in place of attention (arXiv 2405.21060, section 7): a sequence keeps one
// matrix a head, however long it is. Or Mamba-1's (arXiv 2312.00752, section 3): each value is a
// head of its own in one group, and steps, B and C are made of what the convolution gives.
struct StateSpace {
  int64_t heads = 0;       // H; 0: no layer is so
  int64_t groups = 0;      // G: head h writes and reads its matrix as group h G / H says
  int64_t width = 0;       // P of a head's values
  int64_t states = 0;      // C: numbers that a matrix keeps of each value
  int64_t conv_width = 0;  // tokens that the convolution before it sees
  bool conv_bias = false;
  bool norm = true;       // what is gated is normalised before the projection back; of Mamba-1 what
                          // steps are made of, B and C are (Jamba)
  int64_t step_rank = 0;  // R numbers that Mamba-1's steps are made of; 0: it is Mamba-2's

  bool present() const { return heads > 0; }
  bool selective() const { return step_rank > 0; }
  int64_t values() const { return heads * width; }
  int64_t made() const { return step_rank + 2 * states; }  // Mamba-1's, of the convolution's
  int64_t channels() const {                               // of the convolution
    return selective() ? values() : values() + 2 * groups * states;
  }
  // Numbers that a sequence keeps: the last tokens' channels, and the matrices.
  int64_t conv_state() const { return (conv_width - 1) * channels(); }
  int64_t state() const { return conv_state() + values() * states; }
};

// The heads of layers without a window, where those with one have others (Gemma 4, Laguna).
struct FullAttention {
  int64_t kv_heads = 0;         // G; 0: as in the other layers
  int64_t head_width = 0;       // C likewise
  bool values_of_keys = false;  // values are what keys are made of, before its norm
  int64_t heads = 0;            // H; 0: as in the other layers

  bool present() const { return kv_heads > 0 || head_width > 0 || values_of_keys || heads > 0; }
};

// What a layer mixes tokens by; none: it is an FFN alone.
enum class Mixer { attention, linear, conv, scan, lightning, none };

// The heads of one layer's attention.
struct AttentionShape {
  int64_t heads = 1, kv_heads = 1;  // H, G: query head h reads the keys and values of head h G / H
  int64_t key_width = 1, value_width = 1;  // C of queries and keys, Cv of values
  // so many of a head's C numbers, the first ones, turn with the position; 0: none
  int64_t rotary_width = 0;
  int64_t window = 0;             // keys a token sees, itself among them; 0: all before it
  int64_t chunk = 0;              // or it sees those of its chunk of so many tokens; 0: likewise
  bool values_of_keys = false;    // values are what keys are made of, before its norm
  bool value_norm = false;        // values are divided by their root mean square, head by head
  float value_factor = 1;         // of values
  bool sinks = false;             // heads have a score more, that takes weight and gives nothing
  QkNorm qk_norm = QkNorm::none;  // of queries and keys in this layer
  bool norm_turned = false;       // it sees them as they are turned
  bool window_turns = false;      // by the frequencies of layers with a window (window_rope_theta)
  // with their positions (QueryGrowth), where nothing turns by a table of whole heads
  bool queries_grow = false;
  float clip = 0;              // queries, keys and values are held within +-it; 0: as they are
  float score_factor = 1;      // of the scores, beside 1 / sqrt(C)
  float score_cap = 0;         // scores are cap tanh(score / cap); 0: as they are
  int64_t gates = 0;           // sigmoids that weight what heads give: H*Cv, or H; 0: none
  bool head_gates = false;     // one of each head
  bool gate_softplus = false;  // log(1 + e^z) in place of sigmoids
  LatentAttention latent = {};
  // with latents: so many of a key's C numbers, the first ones, all heads share; they turn or not
  int64_t shared_width = 0;
  int64_t top = 0;  // so many of the keys before it a token sees, chosen ones; 0: all
  int64_t index_heads = 0, index_width = 0;  // of the indexer that chooses them; 0: there is none
  // it chooses blocks of so many keys, the last `local` of them always; 0: single keys
  int64_t block = 0, local = 0;
  Entries entries = {};  // that a token sees, too

  int64_t q_width() const { return heads * key_width; }
  int64_t k_width() const { return kv_heads * key_width; }
  int64_t v_width() const { return kv_heads * value_width; }
  int64_t o_width() const { return heads * value_width; }
  // Of what the projection back takes.
  int64_t out_width() const {
    return latent.out_groups > 0 ? latent.out_groups * latent.out_width : o_width();
  }
  // Gates that ops::head_gates_forward weighs by, in f32; the others are those of an activation.
  bool own_gates() const { return head_gates || gate_softplus; }
  // Numbers that a cache keeps of a token. With latents its keys are what heads share of a key and
  // what keys and values are made of, and its values are part of them.
  int64_t cached_key_width() const {
    return latent.present() ? shared_width + latent.width : k_width();
  }
  int64_t cached_value_width() const { return latent.present() ? 0 : v_width(); }
  int64_t cached_width() const { return cached_key_width() + cached_value_width() + index_width; }
  // Of the tokens before one, itself among them, those that it attends to.
  int64_t seen_of(int64_t before) const {
    if (top > 0 && block > 0 && before > top) return top - block + (before - 1) % block + 1;
    if (top > 0) return std::min(top, before);
    if (chunk > 0) return (before - 1) % chunk + 1;
    const int64_t tokens = window > 0 ? std::min(window, before) : before;
    if (!entries.present()) return tokens;
    const int64_t made = before / entries.tokens;
    return tokens + (entries.chosen() ? std::min(entries.top, made) : made);
  }
};

// Fixed factors (Granite; transformers:granitemoe/modeling_granitemoe.py).
struct Multipliers {
  float embedding = 1;
  float residual = 1;   // of what a sublayer adds
  float attention = 0;  // of the scores, in place of 1 / sqrt(C); 0: that
  float logits = 1;     // what logits are divided by

  // Of parts of a layer (Falcon-H1; transformers:falcon_h1/modeling_falcon_h1.py): of what a state
  // space makes of a token, which are its gates, its values, what writes and what reads its states,
  // and its steps; of what it gives, and what attention gives; of an FFN's gates before the
  // activation, and of what it gives.
  std::array<float, 5> scan_in = {1, 1, 1, 1, 1};
  float scan_out = 1, attention_out = 1, ffn_gate = 1, ffn_down = 1;

  // Of the two that a carried residual is the sum of: what a norm gives, and what a sublayer makes
  // of it (transformers:minimax/modeling_minimax.py, MiniMaxDecoderLayer).
  struct Sum {
    float kept = 1, added = 1;

    bool operator==(const Sum&) const = default;
  };
  Sum attention_sum, lightning_sum, ffn_sum;

  bool plain_sums() const {
    return attention_sum == Sum{} && lightning_sum == Sum{} && ffn_sum == Sum{};
  }
  bool none_in_layers() const {
    return scan_in == std::array<float, 5>{1, 1, 1, 1, 1} && scan_out == 1 && attention_out == 1 &&
           ffn_gate == 1 && ffn_down == 1;
  }
  bool none() const {
    return embedding == 1 && residual == 1 && attention == 0 && logits == 1 && none_in_layers() &&
           plain_sums();
  }
};

struct InitOptions {
  float std = 0.02f;
  float cut = 0;  // truncated normal at +-cut standard deviations; 0: plain normal
  // weights that write into the residual stream get std / sqrt(2 L) (GPT-2), 2 L being how many
  // sublayers write into it
  bool scale_residual = false;
};

// Whether a list of layers has this one.
inline bool lists(const std::vector<int64_t>& layers, int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

struct ModelConfig {
  int64_t vocab = 256;      // V
  int64_t width = 128;      // D
  int64_t layers = 4;       // L
  int64_t heads = 4;        // H
  int64_t kv_heads = 4;     // G, divides H
  int64_t head_width = 32;  // C
  LatentAttention latent;   // then G = H, or 1 where they are shared as they are
  SparseAttention sparse;   // of latent attention, or of blocks of keys
  // Of latents that are shared as they are: entries of many tokens, and of few of which some are
  // chosen, and the layers that have them.
  Entries heavy, light;
  std::vector<int64_t> heavy_layers, light_layers;
  FullAttention full;
  // so many of a head's C numbers, the first ones, turn with the position (of latent attention: the
  // same of keys in all heads, also where nothing turns); 0: all
  int64_t rotary_width = 0;
  // The same of layers with a window, where they turn by frequencies of their own; 0: as the others
  int64_t window_rotary_width = 0;
  std::vector<int64_t> nope_layers;  // in which nothing turns
  int64_t context = 256;             // longest sequence trained on; learned positions end there

  NormKind norm = NormKind::rms;
  NormPlacement norm_placement = NormPlacement::pre;
  // Of norms before sublayers: in layers that route one stands behind the FFN too (A.X K1).
  bool moe_out_norm = false;
  // Of norms of what sublayers give: layers without attention have theirs before them (OLMo
  // Hybrid).
  bool states_pre_norm = false;
  // r: behind norms before attention, and before FFNs of layers that route, stands a gate that is
  // made of so many numbers (A.X K2, moe/norm_gate.h); 0: there is none
  int64_t norm_gate = 0;
  float norm_eps = 1e-5f;
  bool norm_bias = false;
  // norms multiply by 1 + their weight (but those of linear attention, of state spaces and of
  // indexers that choose single tokens)
  bool norm_offset = false;
  // false: norms have no weights (but those of linear attention and of latents)
  bool norm_weights = true;
  bool embedding_norm = false;  // what the embedding gives is divided by its root mean square
  Positions positions = Positions::rope;
  float rope_theta = 10000;
  RopeScaling rope_scaling;
  // of layers with a window and without entries, unscaled; 0: they turn as the others do
  float window_rope_theta = 0;
  QueryGrowth query_growth;
  QkNorm qk_norm = QkNorm::none;
  bool qk_norm_turned = false;  // of queries and keys as they are turned, not before
  bool value_norm = false;      // of values too, without a weight
  float qkv_clip = 0;       // behind norms, before they turn all three are held within +-it; 0: not
  int64_t value_width = 0;  // Cv, without latents; 0: as wide as keys
  float value_factor = 1;   // of values
  int64_t attention_window = 0;        // keys a token sees, itself among them; 0: all before it
  std::vector<int64_t> window_layers;  // that have the window; none listed: all
  // The window is the chunk of so many tokens, counted from the text's beginning, that a token
  // stands in: it sees what of that is before it (Llama 4).
  bool window_chunks = false;
  float score_cap = 0;              // scores are cap tanh(score / cap), on the CPU; 0: as they are
  bool attention_sinks = false;     // heads have a score more, that takes weight and gives nothing
  bool window_sinks = false;        // these, in layers with a window alone
  bool attention_gate = false;      // what heads give is weighted by sigmoids of the token
  bool head_gates = false;          // of those each head has one, not one for each number
  bool gate_softplus = false;       // and they are log(1 + e^z) in place of sigmoids
  bool attention_bias = false;      // of queries, keys and values
  bool attention_out_bias = false;  // of the projection back
  bool ffn_bias = false;
  bool expert_down_bias = false;  // routed and shared experts add a bias after `down`, though
                                  // nothing else of an FFN has one
  ops::Act act = ops::Act::silu;
  bool gated = true;  // SwiGLU and kin
  // Routed experts hold their gate below 10 and `up` within +-10, as swiglu_10 does, and other FFNs
  // do not (Hy4).
  bool experts_held = false;
  // The activation is not `act` but xIELU, two factors of which each layer learns (ops.h): of dense
  // FFNs without gates.
  bool xielu = false;
  // Of routers that score neurons by a sketch (recipe sketch): bits of a number, 2 or 4; 3: 2 of
  // `gate`, 4 of `up`.
  int64_t sketch_bits = 2;
  bool tied = false;  // the head is the embedding
  bool head_bias = false;
  float dropout = 0;  // on the embedding and on what attention and FFN add to the residual
  Multipliers multipliers;
  float logit_cap = 0;  // logits are cap tanh(logit / cap); 0: as they are
  // Several residual streams, with norms before sublayers alone.
  ops::HyperShape hyper;
  bool layer_scale = false;  // what a layer leaves is multiplied by a number of its own, a buffer
  // The router and the routed experts see the residual stream by norms of their own, and norms
  // stand behind the routed experts and behind the shared ones (moe/layer.h, BranchNorms).
  bool branch_norms = false;

  LinearAttention linear;
  std::vector<int64_t> linear_layers;  // that have it in place of attention
  // Tokens that a gated convolution sees (LFM2), and the layers that have one in place of
  // attention.
  int64_t conv_width = 0;
  std::vector<int64_t> conv_layers;
  // That have lightning attention in place of attention, by as many heads as wide as attention has;
  // and of the norm of what these give, a constant of the family's code
  // (transformers:minimax/modeling_minimax.py).
  std::vector<int64_t> lightning_layers;
  float lightning_norm_eps = 1e-6f;
  StateSpace scan;
  std::vector<int64_t> scan_layers;  // that have it in place of attention
  bool scan_beside = false;          // or beside attention, which sees the same (Falcon-H1)
  // Layers that are one sublayer of the two, with its norm and its residual (Nemotron-H): an FFN
  // alone, or what mixes tokens alone.
  std::vector<int64_t> ffn_only_layers, mixer_only_layers;

  int64_t dense_width = 512;   // F of dense layers
  int64_t expert_width = 512;  // F of each routed expert
  int64_t shared_experts = 0;  // always on; one bank of width shared_experts * shared_width
  int64_t shared_width = 0;
  bool shared_gate = false;     // weighted by a sigmoid of the token
  bool shared_average = false;  // what they and the routed ones give is averaged, not added up
  // Combine weights multiply what routed experts are given, not what they make (Llama 4).
  bool weigh_inputs = false;
  // What routed experts give joins the residual stream behind the next layer, which is dense
  // (shortcut-connected experts, arXiv 2404.05019; LongCat-Flash, arXiv 2509.01322, section 2.2).
  bool shortcut = false;

  int64_t moe_every = 1;            // MoE at layers i with i mod moe_every == 0 ...
  int64_t dense_first = 0;          // ... and i >= dense_first ...
  std::vector<int64_t> moe_layers;  // ... unless listed here
  // In these a token's experts are those of its id, by a table, and are weighed by their scores.
  std::vector<int64_t> table_layers;
  RoutingOptions routing;
  InitOptions init;
  std::string model_type;  // that hub/ read it as and saves it as while that can say it; empty:
                           // whatever can

  // Whether no text can be longer than the context.
  bool ends_at_context() const {
    return positions == Positions::learned || rope_scaling.kind == RopeScaling::Kind::dynamic;
  }
  // The longest text that can be read, on a GPU or without one; 0: any can be. Sparse attention is
  // done without one only.
  int64_t longest_text(bool on_gpu) const {
    return ends_at_context() ? context : on_gpu ? sparse.top : 0;
  }
  bool is_moe(int64_t layer) const;
  // Whether what routed experts of the layer before gave joins behind this one.
  bool joins_late(int64_t layer) const { return shortcut && layer > 0 && is_moe(layer - 1); }
  bool has_table(int64_t layer) const;
  bool has_ffn(int64_t layer) const;
  bool has_window(int64_t layer) const;
  Entries entries(int64_t layer) const;
  bool has_entries() const { return heavy.present() || light.present(); }
  Mixer mixer(int64_t layer) const;
  // Where the norms of a layer stand.
  NormPlacement placement(int64_t layer) const;
  bool is_linear(int64_t layer) const { return mixer(layer) == Mixer::linear; }
  bool mixes(int64_t layer) const { return mixer(layer) != Mixer::none; }
  // Whether it has attention, alone or beside a state space.
  bool attends(int64_t layer) const {
    const Mixer of = mixer(layer);
    return of == Mixer::attention || (of == Mixer::scan && scan_beside);
  }
  bool has_halves() const { return !ffn_only_layers.empty() || !mixer_only_layers.empty(); }
  int64_t sublayers() const;  // of all layers: two of each that is whole
  // Numbers, f32, that a sequence keeps beside the keys and values of its tokens: of a layer, of
  // all.
  int64_t state_numbers(int64_t layer) const;
  int64_t state_numbers() const;
  bool has_states() const { return state_numbers() > 0; }
  int64_t moe_layer_count() const;
  int64_t dense_layer_count() const;  // that have an FFN and do not route
  // Whether the experts of a layer are the neurons of one network (moe/neurons.h).
  bool by_neuron() const;
  // What sets a layer's attention apart from another's is decided here and nowhere else.
  AttentionShape attention(int64_t layer) const;
  // Whether anything turns in the first layer that has attention; true where none has.
  bool attention_turns() const;
  int64_t q_width() const { return heads * head_width; }
  // Numbers of a layer's matrices of lightning attention, which a sequence keeps.
  int64_t lightning_state() const { return q_width() * head_width; }
};

// Whether what the last block gives is normalised: it is, where the block itself does not.
inline bool has_final_norm(const ModelConfig& c) { return c.norm_placement != NormPlacement::post; }

// Throws (usage) when the numbers do not fit together, naming the option to change.
void validate(const ModelConfig&);
// For messages, why no text is longer than longest_text(); `who`: the model.
std::string why_texts_end(const ModelConfig&, std::string_view who = "the model");
// Of ModelConfig::sketch_bits, for who asks for them before there is a config.
void check_sketch_bits(int64_t bits);

}  // namespace moe
