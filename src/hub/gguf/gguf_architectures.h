// The table of llama.cpp's architectures that are read and written: what its graphs hard-code, as
// data; and the form of our own for what none of them can say. Source of every fact: github
// ggml-org/llama.cpp, src/models/NAME.cpp, and llama_model_rope_type in src/llama-model.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hub/tensor_names.h"
#include "model/config.h"

namespace moe {

enum class Biases { no, yes, any };

// How an architecture says its shared experts.
enum class SharedExperts {
  none,
  counted,  // expert_shared_count of them, each as wide as a routed one, weighing 1
  gated,    // one, expert_shared_feed_forward_length wide, weighed by the sigmoid of a token
  sized,    // none, or one expert_shared_feed_forward_length wide, weighing 1
  one,      // the same, and never none
  same,     // one, as wide as a routed one, which no key says, weighing 1
  beside,   // one, feed_forward_length wide, weighing 1, behind norms of its own
  summed,   // none, or as many as a routed one goes into that width, weighing 1
};

// What "expert_shared_feed_forward_length" says of counted ones.
enum class SharedWidth { unsaid, each, together };

// What "use_parallel_residual" says. unread: nothing, which llama.cpp does not read, its converter
// writes true where a config says nothing, and the tensors tell: here each has a norm of its own;
// told: whether attention and FFN stand beside one another, each behind a norm of its own.
enum class ParallelKey { none, unread, told };

// Which "mscale_all_dim" YaRN's factor of scores may be of; none: scores have no such factor.
enum class YarnScores { any, one, none };

// "expert_gating_func": what the scores of experts are.
enum class GgufGating { softmax = 1, sigmoid = 2 };

// One row. An architecture that has both dense and sparse models has a row for each, and so has one
// whose routers score in two ways.
struct GgufArchitecture {
  std::string_view name;  // "general.architecture"
  std::string_view title;
  std::string_view recipe;  // of the models that are read; empty: dense
  bool read_only = false;   // such a model is written as another row has it
  const TensorNames* tensors;
  NormKind norm = NormKind::rms;
  bool norm_bias = true;     // of LayerNorms
  bool norm_weights = true;  // norms have weights
  NormPlacement placement = NormPlacement::pre;
  Positions positions = Positions::rope;
  QkNorm qk_norm = QkNorm::none;
  bool may_lack_qk_norm = false;
  // With so many layers queries and keys have LayerNorms, which no model here has; 0: with none
  int64_t qk_layer_norms_from = 0;
  ops::Act act = ops::Act::silu;
  bool gated = true;
  Biases attention_bias = Biases::no;      // of queries, keys and values
  Biases attention_out_bias = Biases::no;  // of the projection back
  Biases ffn_bias = Biases::no;
  bool free_head_width = false;  // heads need not make up the width
  bool shares_kv = true;         // fewer key/value heads than heads are possible
  // Attention is latent. Older files have keys and values in one matrix, under these names.
  const TensorNames* older_latents = nullptr;
  // Names of files whose experts have gates and ups in one tensor.
  const TensorNames* fused_experts = nullptr;
  // Names of files that have queries, keys and values in one tensor, where others have not.
  const TensorNames* fused_attention = nullptr;
  bool indexed = false;          // attention is sparse, by indexers
  bool shared_indexers = false;  // a layer may take the choice of one before
  bool blocks = false;           // they choose blocks, without latents, in layers that route
  YarnScores yarn_scores = YarnScores::any;  // of latent attention
  bool part_turns = false;   // "rope.dimension_count" may be less than a head's width
  int64_t nope_every = 0;    // nothing turns in layers i with (i + 1) mod this == 0
  int64_t window_every = 0;  // layers have windows but those with (i + 1) mod this == 0
  // llama.cpp takes a model of this name for one with windows where it has so many layers, and for
  // one without where it has another number; 0: the row tells
  int64_t windows_at = 0;
  // A window of all layers, or 0 for none, may be said, which llama.cpp heeds no more: a model that
  // has one is read with it and not written.
  bool unheeded_window = false;
  int64_t usual_window = 0;   // of files that do not say how far it reaches; 0: they have to
  bool window_key = false;    // a key that says so has to stand there
  bool window_plain = false;  // which turn unscaled, with the same base
  bool window_local = false;  // which turn unscaled, with a base of their own
  bool base_unsaid = false;   // a file may lack the base of rotary angles, which is 10,000 then
  ParallelKey parallel = ParallelKey::none;
  bool linear = false;  // linear attention but in each so-many-th layer, whose attention has
                        // a gate
  // Windows and numbers of heads are said layer by layer (gguf_windows.cpp). Of MiMo values have a
  // width and a factor of their own and layers sinks where the file has some; of Laguna layers with
  // a window, where there are such, turn a part of a head of their own, and gates are softplus.
  bool mimo = false, laguna = false;
  // Linear attention with decays of channels in layers whose number of key/value heads is 0, latent
  // attention in which nothing turns in the others.
  bool kimi = false;
  // The same in Ling 3.0, whose gates and decays are made by whole matrices and decays have a
  // floor, around latent attention that turns, with a gate of each head.
  bool ling3 = false;
  bool hy4 = false;    // residual streams, latent attention with a gate, experts that are held
  bool mrope = false;  // a key of the axes of pictures has to stand there
  bool gate = false;   // attention of every layer has a gate
  // Lightning attention in the layers that are listed, else in all but each eighth; and residuals
  // that norms give, all of them times one number.
  bool lightning = false;
  bool conv = false;    // convolutions in layers whose number of key/value heads is 0
  bool scan = false;    // state spaces likewise
  bool beside = false;  // and these beside attention, in every layer; weights hold all multipliers
  // State spaces are selective scans, whose steps are made of few numbers, around attention in
  // which nothing turns.
  bool selective = false;
  // Layers are one sublayer alone: attention in which nothing turns, a state space, or an FFN,
  // whose width is 0 in the others.
  bool halves = false;
  bool norm_turned = false;  // norms of queries and keys see them turned
  bool norm_offset = false;  // norms multiply by 1 + their weight, which the file has as one
  // The embedding times sqrt(D), scores over the root of a head's width, or in the largest model,
  // which has so many layers, of D / H; 0: as others have them.
  int64_t gemma = 0;
  bool clips = false;        // a key may say what queries, keys and values are held within
  bool caps = false;         // scores of attention and logits are held below what keys say
  bool mup = false;          // the embedding times sqrt(D), nothing else
  bool gemma4 = false;       // all of what only Gemma 4 has (gguf_gemma4.cpp)
  bool llama4 = false;       // all of what only Llama 4 has (gguf_llama4.cpp)
  bool sinks = false;        // of attention
  bool multipliers = false;  // Granite's
  // What its converter says since Granite 4: whether anything turns, key/value heads by layers, and
  // sizes of a state space and the width of the FFN beside experts also of models without these.
  bool granite4 = false;
  bool logit_factor = false;  // logits are multiplied by "logit_scale", nothing else
  // Queries grow with their positions where a file says so; its YaRN multiplies nothing.
  bool query_growth = false;
  bool yarn_truncate = true;  // the ends of YaRN's blend are rounded in the models of this name
  bool head_bias = false;     // the head has a bias
  bool needs_head = false;    // a tied head is written a second time, as "output.weight"
  bool tied = false;          // the head is the embedding, whatever a file holds
  GgufGating gating = GgufGating::softmax;
  bool router_bias = false;            // the logits of experts have a bias
  Biases selection_bias = Biases::no;  // the choice of experts has one
  bool renormalises = false;           // the weights of the chosen experts are divided by their sum
  bool weighs_as_said = false;         // "expert_weights_scale" counts, and the keys of groups do
  SharedExperts shared = SharedExperts::none;
  SharedWidth shared_width = SharedWidth::unsaid;
  bool dense_first = false;       // leading_dense_block_count dense layers come first
  bool dense_by_tensors = false;  // as many as have no router; no key says how many
  bool routers_tell = false;      // those layers route that have a router; no key says which
  // A key that must stand there and, but for Llama 4, be 1: how far apart MoE layers are.
  std::string_view step = {};
  std::string_view expert_width = "feed_forward_length";  // key of the width of an expert
  // Of no others than these, whose files are read as the first; empty: of whatever model the row
  // can say.
  std::string_view model_type = {}, other_model_type = {};
  bool llama3_scaling = false;  // a tensor "rope_freqs.weight" of factors is honoured
  bool longrope = false;        // and two, of factors for short and for long texts

  bool routes() const { return !recipe.empty(); }
  bool listed() const { return mimo || laguna; }
  bool windows() const { return window_every > 0 || gemma4 || (listed() && window_local); }
  bool stands() const { return kimi || halves || selective; }  // nothing turns in any layer
  bool channel_decays() const { return kimi || ling3; }
  bool latent() const { return older_latents != nullptr || channel_decays() || hy4; }
  bool may_lack_shared() const {
    return shared == SharedExperts::sized || shared == SharedExperts::summed;
  }
};

std::span<const GgufArchitecture> gguf_architectures();
// What of this model the row cannot say; empty when it can say all. `distance` (may be null): how
// many of its questions the model passed before.
std::string why_not(const GgufArchitecture&, const ModelConfig&, int* distance = nullptr);
// "moe_cpp": any model, its config.json in a key. No row of the table: llama.cpp does not know it,
// and of its fields only name, title and tensors count.
const GgufArchitecture& own_gguf_architecture();

struct GgufForm {
  const GgufArchitecture* architecture = nullptr;
  std::string why_own;  // why llama.cpp does not run it; empty where it does
};
// The first row that is written and can say the model, else our own with the reason of the row that
// comes nearest.
GgufForm gguf_form_of(const ModelConfig&);
// What of a file tells the rows of one name apart.
struct GgufTraits {
  bool routes = false, windows = false;
  int64_t gating = 0;           // 0: the file does not say, then whether there is a bias does
  bool selection_bias = false;  // the choice of experts has one
};
// Fails, offering the nearest, when no architecture has this name.
const GgufArchitecture& find_gguf_architecture(std::string_view name, const GgufTraits&,
                                               const std::string& where);
// Of a model with linear attention: the N of each Nth layer that has another, as far as the first
// of them tells.
int64_t full_attention_every(const ModelConfig&);
// What Gemma 2's and 3's graphs multiply scores by (github ggml-org/llama.cpp src/models/gemma2.cpp
// and gemma3.cpp).
float gemma_score_factor(const GgufArchitecture&, const ModelConfig&);

}  // namespace moe
