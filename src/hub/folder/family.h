// What sets a family of models apart that is built like Llama: of such rows, one for each family,
// families.h is made.
#pragma once

#include <span>
#include <string_view>

#include "hub/folder/family_experts.h"
#include "hub/folder/family_mixers.h"
#include "model/config.h"

namespace moe {

// Where attention has biases.
enum class FamilyBiases {
  none,
  qkv,           // queries, keys and values
  qkv_bias,      // these, unless "qkv_bias" says otherwise
  qkv_flag,      // these, as "attention_bias" says
  flag,          // these and the projection back, as "attention_bias" says
  flag_or_none,  // the same, none where it is missing, as in some of the family's published configs
  flag_later,    // the same and of FFNs "mlp_bias"; both keys came later than the family
  both,          // the same, of FFNs "mlp_bias"; both keys have to stand
  use_qkv,       // queries, keys and values, as "use_qkv_bias" says, none where it is missing
  use_all,       // these, the projection back and FFNs, as "use_bias" says
  two_flags      // these as "qkv_bias" says, the projection back and FFNs as "bias" says
};

// Whether "head_dim" may be missing: hidden_size / num_attention_heads; even: it may say nothing
// else; latent: the sizes of latent attention.
enum class HeadWidth { may, must, even, latent };

// What "head_dim" says beside latent attention. turning: how much of a head turns; whole: how wide
// a head is; linear: how wide one of the family's linear attention is; unread: nothing that its
// code takes. Of the second and third width "partial_rotary_factor" is the share that turns.
enum class LatentHeadDim { turning, whole, linear, unread };

// What says how far attention reaches; never: the keys stand there and must switch it off; listed:
// "layer_types" says which layers have a window, all but each `window_every`th where it is missing,
// or as the key says that is `every_key`; of families where that is 0 all, or none where
// "sliding_window" is null; own: what tells the kinds of its layers tells this too.
enum class FamilyWindow { none, mistral, qwen, dots, never, listed, own };

// The embedding times sqrt(D), and the other words of Gemma's configs.
enum class FamilyGemma { none, gemma, gemma2, gemma3, gemma4 };

// What layers with a window turn by. plain: the same base, never scaled; local:
// "rope_local_base_freq", never scaled. Newer configs say it in "rope_parameters", by kinds of
// layers; listed: there alone, and never scaled; parts: likewise, with how much of a head turns in
// either kind.
enum class WindowRope { same, plain, local, listed, parts };

// Which positions turn how much of a head. half: as much as "partial_rotary_factor" says, half
// where it is missing; quarter and all likewise; dim: as much as "rotary_dim" or that factor says;
// said: the same, and one of them has to stand there; by_layer: all of it, and in some layers
// nothing; windowed: all of it in layers with a window, and in the others nothing; windowed_or_all:
// the same, and all of it where no layer has a window; bases: all of it, and nothing in layers
// whose base "layer_rope_theta" says to be 0; null_base: all of it, or nothing where "rope_theta"
// is null; all_or_none: the same, read with the kinds of its layers; none: nothing.
enum class FamilyRotary {
  whole,
  half,
  quarter,
  all,
  dim,
  said,
  by_layer,
  windowed,
  windowed_or_all,
  bases,
  null_base,
  all_or_none,
  none
};

// A key of a family's configs that may be missing and may say one thing only, in JSON; a list says
// it of every layer.
struct FamilyKey {
  const char* name;
  std::string_view only;
};

struct Family {
  FamilyBiases biases = FamilyBiases::none;
  HeadWidth head_width = HeadWidth::may;
  LatentHeadDim latent_head_dim = LatentHeadDim::turning;
  bool may_lack_query_rank = false;  // "q_lora_rank" may be missing: queries are of the token
  FamilyWindow window = FamilyWindow::none;
  int64_t window_every = 2;
  bool first_full = false;  // these are counted from the first layer on, which has none
  // Dense layers, the first ones, are counted by "prefix_dense_sliding_window_pattern"; where it is
  // 1 they have no window and turn all the same.
  bool dense_windows = false;
  const char* every_key = nullptr;  // needed where "layer_types" is missing
  WindowRope window_rope = WindowRope::same;
  QkNorm qk_norm = QkNorm::none;
  bool qk_norm_flag = false;  // "use_qk_norm" says whether
  FamilyRotary rotary = FamilyRotary::whole;
  NormPlacement placement = NormPlacement::pre;
  const char* post_norm_key = nullptr;   // it says whether there are norms behind sublayers
  const char* eps_key = "rms_norm_eps";  // null: it is 1e-5
  const char* older_eps_key = nullptr;   // where the other is missing
  const char* context_key = "max_position_embeddings";
  const char* other_context_key = nullptr;  // goes before it where it stands
  const char* act_key = "hidden_act";       // null: it is SiLU, or what else the row says
  bool layer_norms = false;                 // norms are LayerNorms
  bool either_norm = false;                 // or, where "rms_norm_eps" says an epsilon, RMSNorms
  bool norm_biases = true;                  // with biases
  bool norm_weights = true;                 // norms have weights
  bool from_one = false;                    // which multiply by 1 + their weight
  bool query_growth = false;                // queries grow as "llama_4_scaling_beta" says
  // Layers are cut into chunks, of which "layer_types" tells, those that turn where it is missing;
  // in layers where nothing turns queries grow as "attn_temperature_tuning" says.
  bool llama4 = false;
  const char* logit_factor = nullptr;  // logits are times what this key says
  bool plain_ffn = false;              // FFNs have no gates
  bool relu2 = false;                  // their activation is the square of ReLU and no other
  bool xielu = false;                  // or xIELU and no other
  bool silu = false;                   // or SiLU, whatever their configs may say
  bool nanochat = false;               // the embedding has a norm; logits are held back
  // It says what queries, keys and values are held within, or null.
  const char* clip_key = nullptr;
  bool phimoe = false;  // a bias of the head as "lm_head_bias" says, frequencies of two lengths
  // Frequencies may be of two lengths, with one factor of what turns, which the contexts give.
  bool longrope = false;
  bool multipliers = false;
  bool minicpm = false;  // the same in its own words; values of latents may be as wide as D / H
  bool moe_out_norm = false;  // a norm stands behind the FFN of layers that route
  bool mup = false;           // "mup_enabled" says whether the embedding is times sqrt(D)
  FamilyGemma gemma = FamilyGemma::none;
  const FamilyMixers* mixers = &kAttentionAlone;  // what layers have in place of attention
  bool attention_gate = false;                    // attention has a gate in every layer
  bool head_gates = false;                        // which is one of each head
  const char* gate_key = nullptr;                 // and there as this says
  bool norm_turned = false;                       // norms of queries and keys see them turned
  const char* head_width_too = nullptr;  // a key that may say the width of a head a second time
  bool sinks = false;
  bool indexed = false;          // a token sees "index_topk" of those before it
  bool shared_indexers = false;  // "indexer_types" says which layers have an indexer
  bool streams = false;          // several residual streams, and routed experts that are held (Hy4)
  // Layers with a window, which `layer_types` or an older list says, have twice the key/value heads
  // of the others and alone have sinks; values have a width of their own and a factor.
  bool mimo = false;
  // Attention has softplus gates, and layers with a window another number of heads.
  bool laguna = false;
  bool blocks = false;  // attention sees blocks of keys that it chooses, or all (MiniMax-M3)
  // Gates stand behind norms, and queries and the gate of latent attention are made of latents
  // before and behind their norm.
  bool axk2 = false;
  // Each of its layers is two of ours, of which the first routes, to zero experts too, and what
  // experts give joins behind the second; latents have factors.
  bool longcat = false;
  bool tied_unless_said = false;  // "tie_word_embeddings" was not written where it was true
  bool needs_begin = false;       // "bos_token_id" may be missing, but not null
  // How wide FFNs are where no layer routes, if "intermediate_size" alone does not say it, and what
  // says that it does.
  int64_t (*read_width)(const JsonReader&) = nullptr;
  void (*write_width)(Json&) = nullptr;
  const FamilyExperts* experts = nullptr;
  const FamilyRouter* router = nullptr;  // none: dropless top-k of a softmax
  // Its published configs have no "router_aux_loss_coef": then there is no balance loss.
  bool may_lack_balance = false;
  std::span<const FamilyKey> keys = {};
  std::span<const char* const> unread = {};

  bool out_bias() const {
    return biases == FamilyBiases::flag || biases == FamilyBiases::flag_or_none ||
           biases == FamilyBiases::flag_later || biases == FamilyBiases::both ||
           biases == FamilyBiases::use_all;
  }
  bool latent() const { return head_width == HeadWidth::latent; }
  // Whether "sliding_window" may be null, which is that no layer has a window.
  bool may_lack_windows() const {
    return rotary == FamilyRotary::windowed_or_all || window_every == 0;
  }
  bool norm_offset() const {
    return from_one || (gemma != FamilyGemma::none && gemma != FamilyGemma::gemma4);
  }
  // Whether a share of a head turns that "partial_rotary_factor" says.
  bool rotary_share() const {
    return rotary == FamilyRotary::half || rotary == FamilyRotary::quarter ||
           rotary == FamilyRotary::all || rotary == FamilyRotary::said;
  }
  // Whether "rotary_dim" may say it too.
  bool rotary_dim() const { return rotary == FamilyRotary::dim || rotary == FamilyRotary::said; }
  // Whether there may be layers with attention in which nothing turns, whatever windows they have.
  bool may_stand() const {
    return rotary == FamilyRotary::by_layer || rotary == FamilyRotary::bases ||
           rotary == FamilyRotary::null_base || rotary == FamilyRotary::all_or_none;
  }
};

}  // namespace moe
