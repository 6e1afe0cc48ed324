// One list of fields for all that are built like Llama, with a row for what sets each family apart
// (hub/folder/families.h). A key whose absence would let the default of a class decide about the
// mathematics is needed, unless the family's own checkpoints were published before the key existed:
// then its absence means what there was before. What shows in the tensors (biases, widths of heads)
// is checked by them too.
#include "hub/folder/family_fields.h"

#include <cmath>
#include <optional>

#include "hub/folder/architectures.h"
#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

// Whether FFNs are clamped SwiGLUs, whatever "hidden_act" says, and whether experts have biases.
bool clamped(const Family& f) { return f.experts && f.experts->clamped; }
bool biased_experts(const Family& f) { return f.experts && f.experts->biased; }

template <class Visitor, class Config>
void visit_latents(Visitor& v, Config& c, const Family& f) {
  v.size("kv_lora_rank", c.latent.width, 1);
  v.size("qk_rope_head_dim", c.rotary_width, 2);
  if (f.minicpm) v.size_or("v_head_dim", c.latent.value_width, c.width / c.heads, 1);
  else v.size("v_head_dim", c.latent.value_width, 1);
}

void read_latents(const JsonReader& reader, ModelConfig& c, const Family& f) {
  FieldReader fields(reader);
  visit_latents(fields, c, f);
  if (!f.indexed && !f.may_lack_query_rank)
    need_to_stand(
        reader, "q_lora_rank",
        "the width of what queries are made of, or null where they are made of the token");
  if (f.indexed || f.longcat || reader.has("q_lora_rank"))
    fields.size("q_lora_rank", c.latent.query_width, 1);
  if (f.longcat) read_longcat_latents(c);
  if (f.indexed) read_indexers(reader, c, f);
  c.head_width = reader.get_in<int64_t>("qk_nope_head_dim", 1, kMaxSize) + c.rotary_width;
  // What else says the width of a head, or of a part of it.
  const auto check = [&](const char* key, int64_t width) {
    if (reader.get<int64_t>(key, width) != width)
      refuse(reader, key, "it does not go with the widths of the parts of a head");
  };
  check("qk_head_dim", c.head_width);
  switch (f.latent_head_dim) {
    case LatentHeadDim::turning: check("head_dim", c.rotary_width); break;
    case LatentHeadDim::whole: check("head_dim", c.head_width); break;
    case LatentHeadDim::linear:
    case LatentHeadDim::unread: stands(reader, "head_dim");
  }
  need_off(reader, "attention_bias", "biases of latent attention are not supported");
  need_off(reader, "mlp_bias", "biases of this family are not supported");
  stands(reader, "ep_size");  // of a way to run it
  if (!reader.get<bool>("rope_interleave", true))
    refuse(reader, "rope_interleave", "of this family only neighbours are turned, only true");
}

void write_latents(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_latents(fields, c, f);
  json["q_lora_rank"] = c.latent.query_width > 0 ? Json(c.latent.query_width) : Json();
  json["qk_nope_head_dim"] = c.head_width - c.rotary_width;
}

template <class Visitor, class Config>
void visit_sizes(Visitor& v, Config& c, const Family& f) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  if (f.halves) v.size_or("num_hidden_layers", c.layers, c.layers, 1, kMaxLayers);
  else if (!f.longcat) v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  if (f.biases == FamilyBiases::flag_later || f.longcat)
    v.size_or("num_key_value_heads", c.kv_heads, c.heads, 1);
  else v.size("num_key_value_heads", c.kv_heads, 1);
  if (f.halves) v.size_or("head_dim", c.head_width, c.head_width, 1);
  else if (f.head_width == HeadWidth::must) v.size("head_dim", c.head_width, 1);
  else if (!f.latent())
    v.size_or("head_dim", c.head_width, c.width % c.heads == 0 ? c.width / c.heads : 0, 1);
  v.size_by(f.context_key, f.other_context_key, c.context, 1);
  if (f.eps_key) v.number_by(f.eps_key, f.older_eps_key, c.norm_eps, 0);
  if (f.act_key && !clamped(f)) v.act(f.act_key, c.act);
  if (f.tied_unless_said) v.flag_or("tie_word_embeddings", c.tied, true);
  else if (f.longcat) v.flag_or("tie_word_embeddings", c.tied, false);
  else v.flag("tie_word_embeddings", c.tied);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  switch (f.biases) {
    case FamilyBiases::none:
    case FamilyBiases::qkv: return;
    case FamilyBiases::qkv_bias: return v.flag_or("qkv_bias", c.attention_bias, true);
    case FamilyBiases::qkv_flag:
    case FamilyBiases::flag: return v.flag("attention_bias", c.attention_bias);
    case FamilyBiases::flag_or_none: return v.flag_or("attention_bias", c.attention_bias, false);
    case FamilyBiases::flag_later:
      v.flag_or("attention_bias", c.attention_bias, false);
      return v.flag_or("mlp_bias", c.ffn_bias, false);
    case FamilyBiases::both:
      v.flag("attention_bias", c.attention_bias);
      return v.flag("mlp_bias", c.ffn_bias);
    case FamilyBiases::use_qkv: return v.flag_or("use_qkv_bias", c.attention_bias, false);
    case FamilyBiases::use_all: return v.flag("use_bias", c.attention_bias);
    case FamilyBiases::two_flags:
      v.flag_by("qkv_bias", "attention_bias", c.attention_bias);
      return v.flag_by("bias", "mlp_bias", c.attention_out_bias);
  }
}

int64_t window_of(const JsonReader& reader) {
  return reader.get_in<int64_t>("sliding_window", 1, kMaxSize);
}

// transformers 5 lists what each layer is; what the family's other keys say must be that.
void check_layer_types(const JsonReader& reader, const ModelConfig& c, const char* keys) {
  if (!reader.has("layer_types")) return;
  const auto types = reader.get<std::vector<std::string>>("layer_types");
  if (static_cast<int64_t>(types.size()) != c.layers)
    fail("{}: \"layer_types\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(),
         types.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string &type = types[static_cast<size_t>(i)],
                      wanted = c.has_window(i) ? "sliding_attention" : "full_attention";
    if (type != wanted)
      fail("{}: \"layer_types\" has \"{}\" at layer {}, where {} make it \"{}\"; they must agree",
           reader.where(), printable(type), i, keys, wanted);
  }
}

// The layers from max_window_layers on have a window, the others none.
void read_last_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const bool flag = f.window != FamilyWindow::dots;
  stands(reader, "sliding_window");
  const bool used = flag ? reader.get<bool>("use_sliding_window") : reader.has("sliding_window");
  const int64_t first = reader.get_in<int64_t>("max_window_layers", 0, kMaxSize, c.layers);
  if (used && f.window == FamilyWindow::never)
    refuse(reader, "use_sliding_window",
           "layers with and without a window are not supported in this family, only false");
  if (used && first < c.layers) {
    c.attention_window = window_of(reader);
    for (int64_t i = first; first > 0 && i < c.layers; ++i) c.window_layers.push_back(i);
  }
  check_layer_types(reader, c,
                    flag ? "\"use_sliding_window\" and \"max_window_layers\""
                         : "\"sliding_window\" and \"max_window_layers\"");
}

// Of a family whose models have no window where the key says null.
bool has_no_windows(const JsonReader& reader, const Family& f) {
  if (!f.may_lack_windows()) return false;
  need_to_stand(reader, "sliding_window",
                "the number of tokens that attention of some layers reaches back, or null");
  return !reader.has("sliding_window");
}

constexpr const char* kDensePattern = "prefix_dense_sliding_window_pattern";

int64_t dense_pattern(const JsonReader& reader) {
  return reader.get_in<int64_t>(kDensePattern, 1, kMaxLayers, 1);
}

void read_listed_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (has_no_windows(reader, f)) {
    if (f.every_key) stands(reader, f.every_key);
    return check_layer_types(reader, c, "\"sliding_window\" null");
  }
  c.attention_window = window_of(reader);
  std::vector<std::string> types;
  int64_t every = f.window_every;
  if (f.gemma == FamilyGemma::gemma3)  // transformers 5 writes it under another name
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"})
      every = reader.get_in<int64_t>(key, 1, kMaxLayers, every);
  const bool listed = reader.has("layer_types");
  if (f.every_key && listed) stands(reader, f.every_key);
  else if (f.every_key) every = reader.get_in<int64_t>(f.every_key, 1, kMaxLayers);
  if (listed) types = reader.get<std::vector<std::string>>("layer_types");
  else
    for (int64_t i = 0; i < c.layers; ++i) {
      const bool dense = f.dense_windows && i < c.dense_first;
      const int64_t before = f.dense_windows && !dense ? c.dense_first : 0,
                    of = dense ? dense_pattern(reader) : every;
      const bool slides = of == 0 || (f.first_full ? i : i + 1 - before) % of != 0;
      types.emplace_back(slides ? "sliding_attention" : "full_attention");
    }
  for (size_t i = 0; i < types.size() && static_cast<int64_t>(i) < c.layers; ++i)
    if (types[i] == "sliding_attention") c.window_layers.push_back(static_cast<int64_t>(i));
  if (c.window_layers.empty()) c.attention_window = 0;
  check_layer_types(reader, c, "the kinds that are known here");
}

void read_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  switch (f.window) {
    case FamilyWindow::none: return;
    case FamilyWindow::mistral:
      need_to_stand(reader, "sliding_window",
                    "the number of tokens that attention reaches back, or null for all");
      if (reader.has("sliding_window")) c.attention_window = window_of(reader);
      return;
    case FamilyWindow::qwen:
    case FamilyWindow::dots:
    case FamilyWindow::never: return read_last_windows(reader, c, f);
    case FamilyWindow::listed:
      return f.mimo ? read_mimo_windows(reader, c) : read_listed_windows(reader, c, f);
  }
}

// The first layer with a window, where all behind it have one too and none before it; else -1.
int64_t first_window(const ModelConfig& c) {
  int64_t first = 0;
  while (first < c.layers && !c.has_window(first)) ++first;
  for (int64_t i = first; i < c.layers; ++i)
    if (!c.has_window(i)) return -1;
  return first;
}

void write_windows(Json& json, const ModelConfig& c, const Family& f) {
  if (f.window == FamilyWindow::none) return;
  const bool used = c.attention_window > 0;
  json["sliding_window"] = used ? Json(c.attention_window) : Json();
  if (f.window == FamilyWindow::mistral) return;
  if (f.window == FamilyWindow::listed) {
    // Of most families transformers wants a number.
    if (!used && f.rotary != FamilyRotary::windowed_or_all) json["sliding_window"] = c.context;
    for (int64_t i = 0; i < c.layers; ++i)
      json["layer_types"].push_back(c.has_window(i) ? "sliding_attention" : "full_attention");
    return;
  }
  if (f.window != FamilyWindow::dots) json["use_sliding_window"] = used;
  if (f.window != FamilyWindow::never) json["max_window_layers"] = first_window(c);
}

std::string why_not_windows(const ModelConfig& c, const Family& f) {
  if (c.attention_window == 0 || f.window == FamilyWindow::listed || f.lfm3) return "";
  if (f.llama4 && c.window_chunks) return "";
  if (f.window == FamilyWindow::none || f.window == FamilyWindow::never)
    return "its attention has a window";
  const int64_t first = first_window(c);
  if (first != 0 && f.window == FamilyWindow::mistral)
    return "only some of its layers have a window";
  if (first < 0) return "its layers with a window are not the last ones";
  return "";
}

// Where only layers with a window turn, once it is known which these are.
void read_windowed_turning(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.rotary != FamilyRotary::windowed && f.rotary != FamilyRotary::windowed_or_all) return;
  if (has_no_windows(reader, f)) return;
  const bool dense_turn = f.dense_windows && dense_pattern(reader) == 1;
  for (int64_t i = dense_turn ? c.dense_first : 0; i < c.layers; ++i)
    if (!c.has_window(i)) c.nope_layers.push_back(i);
}

// Of dense layers without a window, the first ones, how many turn, and how many do not.
std::pair<int64_t, int64_t> turning_dense_layers(const ModelConfig& c) {
  std::pair<int64_t, int64_t> count = {0, 0};
  for (int64_t i = 0; i < c.layers && !c.is_moe(i); ++i)
    if (!c.has_window(i)) ++(c.attention(i).rotary_width > 0 ? count.first : count.second);
  return count;
}

void write_dense_pattern(Json& json, const ModelConfig& c) {
  json[kDensePattern] = turning_dense_layers(c).second > 0 ? 2 : 1;  // layers are listed
}

constexpr const char* kRotaryDim = "rotary_dim";

// The share of a head that turns where the config says none; empty: it has to.
std::optional<double> share_otherwise(const JsonReader& reader, const Family& f) {
  switch (f.rotary) {
    case FamilyRotary::half: return 0.5;
    case FamilyRotary::quarter: return 0.25;
    case FamilyRotary::said: break;
    default: return 1;
  }
  return reader.has(kRotaryDim) ? std::optional(1.0) : std::nullopt;
}

// How much of a head turns, and in which layers.
double read_rotary(const JsonReader& reader, ModelConfig& c, const Family& f) {
  double share = 1;
  const auto turns = static_cast<double>(c.rotary_width);
  if (f.latent_head_dim == LatentHeadDim::whole) return turns / static_cast<double>(c.head_width);
  if (f.latent_head_dim == LatentHeadDim::linear)
    return turns / static_cast<double>(c.linear.key_width);
  if (f.rotary_share() || f.rotary_dim()) {
    share = read_rotary_share(reader, share_otherwise(reader, f));
    c.rotary_width = static_cast<int64_t>(static_cast<double>(c.head_width) * share);
    if (f.rotary_dim() && reader.has(kRotaryDim)) {
      const auto width = reader.get_in<int64_t>(kRotaryDim, 2, c.head_width);
      const bool both = f.rotary == FamilyRotary::said && reader.has("partial_rotary_factor");
      if ((share != 1 || both) && width != c.rotary_width)
        refuse(reader, kRotaryDim, "it does not go with \"partial_rotary_factor\"");
      c.rotary_width = width;
    }
    if (c.rotary_width < 2)
      fail("{}: \"partial_rotary_factor\" is {}; of a head of {} no pair would turn",
           reader.where(), share, c.head_width);
    if (c.rotary_width == c.head_width) c.rotary_width = 0;
  }
  if (f.rotary != FamilyRotary::by_layer) return share;
  constexpr const char *kTurning = "no_rope_layers", *kTurningEach = "no_rope_layer_interval";
  const bool listed = reader.has(kTurning) && !(f.llama4 && reader.value(kTurning).empty());
  const auto interval = listed ? reader.get_in<int64_t>(kTurningEach, 1, kMaxLayers, 1)
                               : reader.get_in<int64_t>(kTurningEach, 1, kMaxLayers);
  std::vector<int64_t> turning;  // of each layer: 1 where it turns
  if (listed) turning = reader.get<std::vector<int64_t>>(kTurning);
  else
    for (int64_t i = 0; i < c.layers; ++i) turning.push_back((i + 1) % interval != 0);
  if (static_cast<int64_t>(turning.size()) < c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kTurning,
         turning.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    if (turning[static_cast<size_t>(i)] == 0) c.nope_layers.push_back(i);
  return share;
}

// A.X K2's (transformers:axk2/modeling_axk2.py).
constexpr const char* kNormGate = "gated_norm_rank";

void read_norm_gates(const JsonReader& reader, ModelConfig& c) {
  c.norm_gate = reader.get_in<int64_t>(kNormGate, 1, kMaxSize);
  c.latent.query_both = true;
}

// Granite's (transformers:granitemoe_swa/modeling_granitemoe_swa.py): of each layer the base, which
// goes before the one that is said of all.
constexpr const char* kBases = "layer_rope_theta";

void read_bases(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kBases)) return;
  const auto bases = reader.get<std::vector<double>>(kBases);
  if (static_cast<int64_t>(bases.size()) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kBases,
         bases.size(), c.layers);
  double one = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const double base = bases[static_cast<size_t>(i)];
    if (base == 0) {
      c.nope_layers.push_back(i);
      continue;
    }
    if (!(base >= FLT_MIN && base <= FLT_MAX) || (one > 0 && base != one))
      fail("{}: \"{}\" is {} at layer {}; layers that turn have one base here, above 0",
           reader.where(), kBases, base, i);
    one = base;
  }
  if (one > 0) c.rope_theta = static_cast<float>(one);
}

void write_bases(Json& json, const ModelConfig& c) {
  const Json base = json["rope_theta"];
  json[kBases] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kBases].push_back(c.attention(i).rotary_width > 0 ? base : Json(0.0));
}

// The share that reads back as the width.
double rotary_share(const ModelConfig& c) {
  if (c.latent.present() || c.rotary_width == 0) return 1;
  return share_of_head(c.rotary_width, c.head_width);
}

void write_rotary(Json& json, const ModelConfig& c, const Family& f) {
  if (f.kimi || f.halves) return;
  if (f.olmo_hybrid && !c.attention_turns()) return write_standing(json);
  const double share = rotary_share(c);
  if (f.window_rope == WindowRope::same) write_rope(json, c, share);
  else if (f.window_rope == WindowRope::parts) write_rope_by_parts(json, c);
  else write_rope_by_layers(json, c, f.window_rope != WindowRope::listed);
  if (f.longrope) say_by_contexts(json, c.rope_scaling);
  if (f.query_growth) write_query_growth(json, c);
  if (f.rotary_share()) json["partial_rotary_factor"] = share;
  if (f.rotary == FamilyRotary::dim)
    json[kRotaryDim] = c.rotary_width > 0 ? c.rotary_width : c.head_width;
  if (f.rotary == FamilyRotary::bases) write_bases(json, c);
  if (f.rotary != FamilyRotary::by_layer) return;
  std::vector<int64_t> turning(static_cast<size_t>(c.layers), 1);
  for (const int64_t layer : c.nope_layers) turning[static_cast<size_t>(layer)] = 0;
  json["no_rope_layers"] = turning;
}

std::string why_not_rotary(const ModelConfig& c, const Family& f) {
  if (f.query_growth && !c.query_growth.present()) return "its queries do not grow";
  const int64_t scaled = c.rope_scaling.original_context;  // one key says both
  if (f.query_growth && scaled > 0 && scaled != c.query_growth.context)
    return "its queries grow by another context than the one that frequencies are scaled from";
  const bool parts = f.window_rope == WindowRope::parts,
             part = f.rotary_share() || f.rotary_dim() || parts,
             plain = c.window_rope_theta == c.rope_theta ||
                     (c.window_rope_theta == 0 && c.rope_scaling.kind == RopeScaling::Kind::none);
  if (c.window_rope_theta > 0 && f.window_rope == WindowRope::same)
    return "layers with a window turn by other frequencies";
  if (f.window_rope == WindowRope::plain && !plain)
    return "layers with a window turn by frequencies that are no part of this family";
  if ((parts || f.window_rope == WindowRope::listed) && c.attention_window > 0 && !plain &&
      c.window_rope_theta == 0)
    return "layers with a window turn by scaled frequencies";
  if (c.rotary_width > 0 && !part && !f.latent()) return "only a part of each head turns";
  if (f.longrope && !is_by_contexts(c.rope_scaling))
    return "its rotary frequencies are scaled in another way than for long texts";
  if (f.kimi || f.halves)
    return c.rope_scaling.kind == RopeScaling::Kind::none ? ""
                                                          : "its rotary frequencies are scaled";
  if (f.rotary == FamilyRotary::windowed ||
      (f.rotary == FamilyRotary::windowed_or_all && c.attention_window > 0)) {
    const auto [turn, stand] = turning_dense_layers(c);
    if (f.dense_windows && turn > 0 && stand > 0)
      return "some of its dense layers without a window turn and some do not";
    for (int64_t i = 0; i < c.layers; ++i) {
      const bool turns = c.attention(i).rotary_width > 0, dense = f.dense_windows && !c.is_moe(i);
      if (turns != c.has_window(i) && !(turns && dense))
        return "what turns are not its layers with a window";
    }
    return "";
  }
  if (!c.nope_layers.empty() && f.rotary != FamilyRotary::by_layer &&
      f.rotary != FamilyRotary::bases && !f.states && !f.olmo_hybrid)
    return "in some of its layers nothing turns";
  return "";
}

// gpt-oss's experts (transformers:gpt_oss/modeling_gpt_oss.py), and MiniMax-M3's FFNs; ops::Act has
// its two numbers.
constexpr double kSwigluAlpha = 1.702, kSwigluLimit = 7;

void read_clamped_swiglu(const JsonReader& reader, ModelConfig& c) {
  for (const auto& [key, known] :
       {std::pair{"swiglu_alpha", kSwigluAlpha}, {"swiglu_limit", kSwigluLimit}})
    if (reader.get<double>(key, known) != known)
      fail("{}: \"{}\" is {}; only {} is known here", reader.where(), key, text_of(reader, key),
           known);
  reader.get<std::string>("hidden_act", "silu");  // said, and not what its code does
  for (const char* key : {"initial_context_length", "experts_per_token"}) stands(reader, key);
  c.act = ops::Act::swiglu_oai;
}

void write_clamped_swiglu(Json& json) {
  json["hidden_act"] = "silu";
  json["swiglu_alpha"] = kSwigluAlpha;
  json["swiglu_limit"] = kSwigluLimit;
}

template <class Visitor, class Config>
void visit_multipliers(Visitor& v, Config& c, const Family& f) {
  v.number("embedding_multiplier", c.multipliers.embedding, 0);
  v.number("residual_multiplier", c.multipliers.residual, 0);
  v.number("attention_multiplier", c.multipliers.attention, 0);
  if (!f.logit_factor) v.number("logits_scaling", c.multipliers.logits, 0);
}

// Here logits are divided.
void read_logit_factor(const JsonReader& reader, ModelConfig& c, const char* key) {
  const double scale = reader.get_in<double>(key, 1 / FLT_MAX, 1 / FLT_MIN);
  c.multipliers.logits = static_cast<float>(1 / scale);
}

void write_logit_factor(Json& json, const ModelConfig& c, const char* key) {
  json[key] = 1 / static_cast<double>(c.multipliers.logits);
}

// Trinity's (transformers:afmoe/modeling_afmoe.py).
constexpr const char* kMup = "mup_enabled";

// Phi-3.5-MoE's (transformers:phimoe/modeling_phimoe.py).
constexpr const char* kHeadBias = "lm_head_bias";

void read_phimoe_parts(const JsonReader& reader, ModelConfig& c) {
  c.head_bias = reader.get<bool>(kHeadBias);
  if (reader.get<double>("hidden_dropout", 0) != 0)
    refuse(reader, "hidden_dropout", "dropout of this family is not supported, only 0");
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int64_t original = c.rope_scaling.original_context;
  if (reader.has(kOriginal) && original > 0 && reader.get<int64_t>(kOriginal) != original)
    refuse(reader, kOriginal, "the rotary scaling says another; make them equal");
}

void read_keys(const JsonReader& reader, const Family& f) {
  for (const char* key : f.unread) stands(reader, key);
  for (const auto& [key, only] : f.keys) {
    if (!reader.has(key)) continue;
    const Json &said = reader.value(key), wanted = Json::parse(only);
    const bool same =
        said == wanted || (said.is_array() && !wanted.is_array() &&
                           std::all_of(said.begin(), said.end(),
                                       [&](const Json& of_layer) { return of_layer == wanted; }));
    if (!same) refuse(reader, key, fmt::format("only {} is of this family", only).c_str());
  }
}

constexpr float kUnsaidEps = 1e-5f;  // of norms whose epsilon no key says
constexpr const char *kRmsNormEps = "rms_norm_eps", *kHiddenAct = "hidden_act", *kXielu = "xielu";

// Biases, norms and what else of attention and FFNs is as the family has it.
void read_parts(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.layer_norms) c.norm = NormKind::layer;
  if (!f.eps_key) c.norm_eps = kUnsaidEps;
  if (f.either_norm && reader.has(kRmsNormEps)) {
    c.norm = NormKind::rms;
    FieldReader(reader).number(kRmsNormEps, c.norm_eps, 0);
  }
  c.norm_bias = f.layer_norms && f.norm_biases;
  c.norm_placement = f.placement;
  if (f.post_norm_key && !reader.get<bool>(f.post_norm_key)) c.norm_placement = NormPlacement::pre;
  c.moe_out_norm = f.moe_out_norm;
  c.norm_offset = f.norm_offset();
  c.norm_weights = f.norm_weights;
  if (f.clip_key) c.qkv_clip = read_cap(reader, f.clip_key);
  c.embedding_norm = f.nanochat;
  if (f.nanochat) {
    need_to_stand(reader, kLogitCap, "the number that logits are held below, or null");
    c.logit_cap = read_cap(reader, kLogitCap);
  }
  c.gated = !f.plain_ffn;
  if (f.relu2 && c.act != ops::Act::relu2)
    refuse(reader, "hidden_act", "only the square of ReLU is of this family, \"relu2\"");
  c.xielu = f.xielu;
  if (f.xielu && reader.get<std::string>(kHiddenAct) != kXielu)
    refuse(reader, kHiddenAct, "only xIELU is of this family, \"xielu\"");
  if (f.biases == FamilyBiases::qkv) c.attention_bias = true;
  if (f.biases == FamilyBiases::two_flags) c.ffn_bias = c.attention_out_bias;
  else c.attention_out_bias = f.out_bias() && c.attention_bias;
  if (f.biases == FamilyBiases::use_all) c.ffn_bias = c.attention_bias;
  c.qk_norm = f.qk_norm;
  if (f.qk_norm_flag && !reader.get<bool>("use_qk_norm")) c.qk_norm = QkNorm::none;
  c.qk_norm_turned = f.norm_turned;
  if (f.head_width_too && reader.get<int64_t>(f.head_width_too, c.head_width) != c.head_width)
    refuse(reader, f.head_width_too, "\"head_dim\" is another width");
  c.attention_sinks = f.sinks;
  c.attention_gate = f.attention_gate && (!f.gate_key || reader.get<bool>(f.gate_key));
  c.head_gates = f.head_gates && c.attention_gate;
  if (clamped(f)) read_clamped_swiglu(reader, c);
  if (biased_experts(f)) c.ffn_bias = true;
}

// Of Granite 4, and the width of its FFNs where it is 0.
constexpr const char *kExpertsOrNone = "num_local_experts",
                     *kWidthBeside = "shared_intermediate_size";

bool has_experts(const JsonReader& reader, const ModelConfig& c, const Family& f) {
  if (f.halves) return !c.moe_layers.empty();
  if (f.states) {
    if (reader.get_in<int64_t>(kExpertsOrNone, 0, kMaxSize) > 0) return true;
    for (const char* key : {"num_experts_per_tok", "intermediate_size", "router_aux_loss_coef"})
      stands(reader, key);
    return false;
  }
  if (!f.experts || !f.experts->switch_key) return f.experts != nullptr;
  if (reader.get<bool>(f.experts->switch_key)) return true;
  for (const char* key : {f.experts->count_key, f.experts->top_k_key, f.experts->width_key})
    stands(reader, key);
  return false;
}

// Of a family whose models have experts or not: that this one has none.
bool may_be_dense(const ModelConfig& c, const Family& f) {
  return ((f.experts && f.experts->switch_key) || f.states || f.halves) && c.moe_layer_count() == 0;
}

}  // namespace

ModelConfig read_family(const JsonReader& reader, const Family& f) {
  ModelConfig c;
  FieldReader fields(reader);
  if (f.halves) read_half_sizes(reader, c);
  if (f.longcat) read_longcat_layers(reader, c);
  visit_sizes(fields, c, f);
  if (f.latent()) read_latents(reader, c, f);
  if (c.head_width == 0)
    fail(
        "{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}; then "
        "\"head_dim\" is needed",
        reader.where(), c.heads, c.width);
  read_parts(reader, c, f);
  read_mixers(reader, c, f);
  if (f.gemma != FamilyGemma::none) read_gemma(reader, c, f);
  const double share = read_rotary(reader, c, f);
  if (f.dense_windows) read_mlp_types(reader, c, *f.experts);
  read_windows(reader, c, f);
  read_windowed_turning(reader, c, f);
  if (f.gemma == FamilyGemma::gemma4) read_gemma4_layers(reader, c);
  if (f.mimo) read_mimo(reader, c);
  if (f.laguna) read_laguna(reader, c);
  if (f.blocks) read_blocks(reader, c);
  if (f.axk2) read_norm_gates(reader, c);
  if (f.window_rope == WindowRope::listed)  // has to stand there
    reader.object("rope_parameters").object("full_attention");
  if (f.query_growth) read_query_growth(reader, c);
  if (f.kimi || f.halves || (f.olmo_hybrid && read_standing(reader, c))) c.rope_scaling = {};
  else if (f.window_rope == WindowRope::same) read_rope(reader, c, share, f.longrope);
  else if (f.window_rope == WindowRope::parts) read_rope_by_parts(reader, c);
  else read_rope_by_layers(reader, c, f.window_rope == WindowRope::local);
  if (f.rotary == FamilyRotary::bases) read_bases(reader, c);
  if (f.llama4) read_llama4(reader, c);
  if (f.multipliers) visit_multipliers(fields, c, f);
  if (f.minicpm) read_minicpm(reader, c);
  if (f.falcon_h1) read_falcon_factors(reader, c);
  if (f.logit_factor) read_logit_factor(reader, c, f.logit_factor);
  if (f.mup && reader.get<bool>(kMup)) c.multipliers.embedding = root_of_width(c);
  if (f.phimoe) read_phimoe_parts(reader, c);
  if (f.streams) read_streams(reader, c);
  visit_extras(fields, c);
  read_keys(reader, f);
  need_off(reader, "rope_interleaved",
           "rotary embeddings of neighbours are not supported, only of halves");
  need_off(reader, "use_mrope", "rotary embeddings of several axes are not supported");
  reader.get<double>("attention_dropout", 0);  // part of its training only; there is none here
  if (has_experts(reader, c, f)) {
    read_experts(reader, c, f);
    return c;
  }
  if (f.lfm2) c.dense_width = read_lfm2_width(reader);
  else if (f.states) fields.size(kWidthBeside, c.dense_width, 1);
  else fields.size("intermediate_size", c.dense_width, 1);
  c.expert_width = c.dense_width;  // unused
  return c;
}

void write_family(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_sizes(fields, c, f);
  if (f.latent()) write_latents(json, c, f);
  if (f.indexed) write_indexers(json, c, f);
  if (f.streams) write_streams(json, c);
  if (f.multipliers) visit_multipliers(fields, c, f);
  if (f.minicpm) write_minicpm(json, c);
  if (f.falcon_h1) write_falcon_factors(json, c);
  if (f.logit_factor) write_logit_factor(json, c, f.logit_factor);
  if (f.mup) json[kMup] = c.multipliers.embedding != 1;
  if (f.gemma != FamilyGemma::none) write_gemma(json, c, f);
  write_mixers(json, c, f);
  if (clamped(f)) write_clamped_swiglu(json);
  if (f.xielu) json[kHiddenAct] = kXielu;
  if (f.phimoe) json[kHeadBias] = c.head_bias;
  if (f.gate_key) json[f.gate_key] = c.attention_gate;
  if (f.post_norm_key) json[f.post_norm_key] = c.norm_placement == NormPlacement::both;
  if (f.nanochat) write_cap(json, kLogitCap, c.logit_cap);
  if (f.clip_key) write_cap(json, f.clip_key, c.qkv_clip);
  if (f.qk_norm_flag) json["use_qk_norm"] = c.qk_norm != QkNorm::none;
  visit_extras(fields, c);
  write_rotary(json, c, f);
  write_windows(json, c, f);
  if (f.llama4) write_llama4(json, c);
  if (f.dense_windows) write_dense_pattern(json, c);
  if (f.mimo) write_mimo(json, c);
  if (f.laguna) write_laguna(json, c);
  if (f.blocks) write_blocks(json, c);
  if (f.axk2) json[kNormGate] = c.norm_gate;
  if (f.either_norm) {
    json[kRmsNormEps] = nullptr;
    if (c.norm == NormKind::rms) fields.number(kRmsNormEps, c.norm_eps, 0);
  }
  json["attention_dropout"] = 0.0;
  write_token_ids(json);
  if (f.needs_begin) json.erase("bos_token_id");
  if (f.experts && f.experts->switch_key) json[f.experts->switch_key] = c.moe_layer_count() > 0;
  if (f.experts && !may_be_dense(c, f)) return write_experts(json, c, f);
  fields.size("intermediate_size", c.dense_width, 1);
  if (f.states) {
    fields.size(kWidthBeside, c.dense_width, 1);
    for (const char* key : {kExpertsOrNone, "num_experts_per_tok"}) json[key] = 0;
  }
  if (f.lfm2) write_lfm2_width(json);
}

namespace {

std::string why_not_norms(const ModelConfig& c, const Family& f) {
  if (f.layer_norms && !(f.either_norm && c.norm == NormKind::rms))
    return c.norm == NormKind::layer && c.norm_bias == f.norm_biases &&
                   c.norm_placement == f.placement
               ? ""
           : f.norm_biases
               ? "its norms are not LayerNorms with biases before each sublayer"
               : "its norms are not LayerNorms without biases, each before attention and an FFN";
  if (c.norm == NormKind::rms && (c.norm_placement == f.placement ||
                                  (f.post_norm_key && c.norm_placement == NormPlacement::pre)))
    return "";
  return f.placement == NormPlacement::pre ? "its norms are not RMSNorms before each sublayer"
         : f.placement == NormPlacement::both
             ? "its norms are not RMSNorms before and behind each sublayer"
             : "its norms are not RMSNorms of what each sublayer gives";
}

std::string why_not_biases(const ModelConfig& c, const Family& f) {
  if (f.biases == FamilyBiases::none && (c.attention_bias || c.attention_out_bias))
    return "its attention has biases";
  if (f.biases == FamilyBiases::two_flags)
    return c.ffn_bias == c.attention_out_bias
               ? ""
               : "of FFNs and the projection after attention one has biases and one has none";
  const bool out = f.out_bias() && c.attention_bias;
  if (c.attention_out_bias != out) return "other projections of its attention have biases";
  if (f.biases == FamilyBiases::qkv && !c.attention_bias)
    return "queries, keys and values have no biases";
  if (f.biases == FamilyBiases::use_all)
    return c.ffn_bias != c.attention_bias ? "some projections have biases and some have none" : "";
  const bool said = f.biases == FamilyBiases::flag_later || f.biases == FamilyBiases::both;
  if (c.ffn_bias && !said && !biased_experts(f)) return "its FFNs have biases";
  return !c.ffn_bias && biased_experts(f) ? "its experts have no biases" : "";
}

}  // namespace

std::string why_not_family(const ModelConfig& c, const Family& f) {
  if (const std::string reason = why_not_norms(c, f); !reason.empty()) return reason;
  if (c.positions != Positions::rope) return "its positions are learned";
  if (f.head_width == HeadWidth::even && c.q_width() != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.latent.present() != f.latent())
    return f.latent() ? "its attention is not latent" : "its attention is latent";
  if (const std::string reason = why_not_indexers(c, f); !reason.empty()) return reason;
  if (const std::string reason = why_not_streams(c, f); !reason.empty()) return reason;
  if (f.moe_out_norm && !c.moe_out_norm) return "what its experts give is not normalised";
  if (!f.norm_weights && c.norm_weights) return "its norms have weights";
  if (!f.eps_key && c.norm_eps != kUnsaidEps) return "its norms have another epsilon than 1e-5";
  if (f.nanochat && !c.embedding_norm) return "its embedding is not normalised";
  const KnownParts known = {.gemma4 = f.gemma == FamilyGemma::gemma4,
                            .head_bias = f.phimoe,
                            .longrope = f.phimoe || f.longrope,
                            .query_growth = c.query_growth.where_still ? f.llama4 : f.query_growth,
                            .caps = f.gemma == FamilyGemma::gemma2,
                            .nanochat = f.nanochat,
                            .bare_norms = !f.norm_weights,
                            .moe_out_norm = f.moe_out_norm,
                            .shared_average = f.experts && f.experts->scores_said,
                            .xielu = f.xielu,
                            .halves = f.halves,
                            .head_gates = f.head_gates || f.laguna,
                            .streams = f.streams,
                            .proportional = f.lfm3,
                            .llama4 = f.llama4,
                            .clips = f.clip_key != nullptr,
                            .olmo_hybrid = f.olmo_hybrid,
                            .falcon_h1 = f.falcon_h1,
                            .values_apart = f.mimo,
                            .kv_heads_apart = f.mimo,
                            .heads_apart = f.laguna,
                            .parts_apart = f.window_rope == WindowRope::parts,
                            .softplus_gates = f.laguna,
                            .norm_gates = f.axk2,
                            .longcat = f.longcat,
                            .blocks = f.blocks};
  if (const std::string reason = what_few_have(c, known); !reason.empty()) return reason;
  for (const std::string& reason :
       {why_not_mixers(c, f), why_not_windows(c, f), why_not_rotary(c, f)})
    if (!reason.empty()) return reason;
  // Multipliers that do nothing can be said by a family that has them; of the scores it is one of
  // them.
  if (f.gemma != FamilyGemma::none) {
    if (const std::string reason = why_not_gemma(c, f); !reason.empty()) return reason;
  } else if (f.minicpm) {
    if (const std::string reason = why_not_minicpm(c); !reason.empty()) return reason;
  } else if (!f.multipliers && !f.falcon_h1) {
    Multipliers others = c.multipliers;
    if (f.logit_factor) others.logits = 1;
    if (f.mup && others.embedding == root_of_width(c)) others.embedding = 1;
    if (!others.none()) return "it has multipliers";
  }
  if (f.multipliers && c.multipliers.attention == 0) return "its scores have no multiplier";
  if (c.gated == f.plain_ffn) return c.gated ? "its FFNs have gates" : "its FFNs have no gates";
  if (f.relu2 && c.act != ops::Act::relu2) return "its activation is no square of ReLU";
  if (f.xielu && !c.xielu) return "its activation is no xIELU";
  if (c.dropout != 0) return "it has dropout";
  if (c.qk_norm != f.qk_norm && !(f.qk_norm_flag && c.qk_norm == QkNorm::none))
    return f.qk_norm == QkNorm::none   ? "queries and keys are normalised"
           : f.qk_norm == QkNorm::head ? "queries and keys are not normalised for each head"
           : f.qk_norm == QkNorm::bare ? "queries and keys are not normalised without weights"
                                       : "queries and keys are not normalised over all heads";
  if (const std::string reason = why_not_biases(c, f); !reason.empty()) return reason;
  if ((c.act == ops::Act::swiglu_oai) != clamped(f))
    return clamped(f) ? "its FFNs are no clamped SwiGLU" : "its FFNs are clamped SwiGLUs";
  if (c.attention_sinks != f.sinks)
    return f.sinks ? "its attention has no sinks" : "its attention has sinks";
  if (f.silu && c.act != ops::Act::silu) return "its activation is no SiLU";
  if (f.axk2 && (c.norm_gate == 0 || !c.latent.query_both))
    return "no gates stand behind its norms, or its queries are made of latents on one side of one";
  if (f.laguna && !c.gate_softplus) return "gates of its attention are sigmoids";
  if (f.mimo)
    if (const std::string reason = why_not_mimo(c); !reason.empty()) return reason;
  if (!f.experts || may_be_dense(c, f))
    return c.moe_layer_count() > 0 ? "some of its layers route" : "";
  if (c.expert_down_bias) return "its experts have biases";
  return why_not_experts(c, f);
}

}  // namespace moe
