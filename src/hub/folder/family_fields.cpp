// One list of fields for all that are built like Llama, with a row for what sets each family apart,
// and one for GPT-2. A key whose absence would let the default of a class decide about the
// mathematics is needed, unless the family's own checkpoints were published before the key existed:
// then its absence means what there was before. What shows in the tensors (biases, widths of heads)
// is checked by them too.
#include "hub/folder/family_fields.h"

#include "hub/folder/architectures.h"
#include "hub/folder/config_fields.h"
#include "hub/folder/field_visitors.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

enum class FamilyBiases {
  none,
  qkv,
  flag
};  // of attention: none; of queries, keys and values; of these and the projection back, as
    // "attention_bias" says
enum class HeadWidth {
  may,
  must,
  latent
};  // whether "head_dim" may be missing: hidden_size / num_attention_heads; latent: the sizes of
    // latent attention
enum class Window {
  none,
  mistral,
  qwen,
  never
};  // what says how far attention reaches; never: a window cannot be said by one number for all
    // layers

struct Family {
  FamilyKind kind;
  std::string_view name;
  FamilyBiases biases;
  HeadWidth head_width;
  Window window;
  QkNorm qk_norm;
  bool moe;
  bool first_of_its_kind;  // llama: num_key_value_heads, attention_bias and mlp_bias came later
};

constexpr Family kFamilies[] = {
    {FamilyKind::llama, "llama", FamilyBiases::flag, HeadWidth::may, Window::none, QkNorm::none,
     false, true},
    {FamilyKind::mistral, "mistral", FamilyBiases::none, HeadWidth::may, Window::mistral,
     QkNorm::none, false, false},
    {FamilyKind::qwen2, "qwen2", FamilyBiases::qkv, HeadWidth::may, Window::qwen, QkNorm::none,
     false, false},
    {FamilyKind::qwen3, "qwen3", FamilyBiases::flag, HeadWidth::must, Window::qwen, QkNorm::head,
     false, false},
    {FamilyKind::mixtral, "mixtral", FamilyBiases::none, HeadWidth::may, Window::mistral,
     QkNorm::none, true, false},
    {FamilyKind::qwen2_moe, "qwen2_moe", FamilyBiases::qkv, HeadWidth::may, Window::never,
     QkNorm::none, true, false},
    {FamilyKind::qwen3_moe, "qwen3_moe", FamilyBiases::flag, HeadWidth::may, Window::never,
     QkNorm::head, true, false},
    {FamilyKind::deepseek, "deepseek", FamilyBiases::flag, HeadWidth::may, Window::none,
     QkNorm::none, true, false},
    {FamilyKind::deepseek_v2, "deepseek_v2", FamilyBiases::flag, HeadWidth::latent, Window::none,
     QkNorm::none, true, false},
    {FamilyKind::deepseek_v3, "deepseek_v3", FamilyBiases::flag, HeadWidth::latent, Window::none,
     QkNorm::none, true, false},
};

bool is_latent(const Family& f) { return f.head_width == HeadWidth::latent; }
bool is_deepseek(const Family& f) { return f.kind == FamilyKind::deepseek || is_latent(f); }

const Family& family_of(FamilyKind kind) {
  for (const Family& family : kFamilies)
    if (family.kind == kind) return family;
  fail("there is no such family");
}

// Whether the key stands there, null too.
bool stands(const JsonReader& reader, const char* key) {
  if (reader.has(key)) return true;
  const std::vector<std::string> keys = reader.keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void need_to_stand(const JsonReader& reader, const char* key, const char* meaning) {
  if (!stands(reader, key)) fail("{}: \"{}\" is missing; add {}", reader.where(), key, meaning);
}

void refuse(const JsonReader& reader, const char* key, const char* why) {
  fail("{}: \"{}\" is {}; {}", reader.where(), key, text_of(reader, key), why);
}

// For switches that only few models turn on.
void need_off(const JsonReader& reader, const char* key, const char* why) {
  if (reader.get<bool>(key, false)) refuse(reader, key, why);
}

// Keys of ours beside the family's, left out at their usual value; other programs carry them along
// unread.
template <class Visitor, class Config>
void visit_extras(Visitor& v, Config& c) {
  v.extra("router_z_loss_coef", c.routing.coef.z, 0, 0);
  v.extra("initializer_cutoff", c.init.cut, 0, 0);
  v.extra("init_scale_residual", c.init.scale_residual, false);
}

template <class Visitor, class Config>
void visit_latents(Visitor& v, Config& c) {
  v.size("kv_lora_rank", c.latent.width, 1);
  v.size("qk_rope_head_dim", c.latent.rotary_width, 2);
  v.size("v_head_dim", c.latent.value_width, 1);
}

void read_latents(const JsonReader& reader, ModelConfig& c) {
  FieldReader fields(reader);
  visit_latents(fields, c);
  need_to_stand(reader, "q_lora_rank",
                "the width of what queries are made of, or null where they are made of the token");
  if (reader.has("q_lora_rank")) fields.size("q_lora_rank", c.latent.query_width, 1);
  c.head_width = reader.get_in<int64_t>("qk_nope_head_dim", 1, kMaxSize) + c.latent.rotary_width;
  // What else says the width of a head, or of a part of it.
  for (const auto& [key, width] :
       {std::pair{"qk_head_dim", c.head_width}, std::pair{"head_dim", c.latent.rotary_width}})
    if (reader.get<int64_t>(key, width) != width)
      refuse(reader, key, "it does not go with the widths of the parts of a head");
  need_off(reader, "attention_bias", "biases of latent attention are not supported");
  need_off(reader, "mlp_bias", "biases of this family are not supported");
  // Layers that predict further tokens show in the tensors; the last is of a way to run it.
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers", "ep_size"})
    stands(reader, key);
  if (!reader.get<bool>("rope_interleave", true))
    refuse(reader, "rope_interleave", "of this family only neighbours are turned, only true");
}

void write_latents(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_latents(fields, c);
  json["q_lora_rank"] = c.latent.query_width > 0 ? Json(c.latent.query_width) : Json();
  json["qk_nope_head_dim"] = c.head_width - c.latent.rotary_width;
}

template <class Visitor, class Config>
void visit_sizes(Visitor& v, Config& c, const Family& f) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  if (f.first_of_its_kind) v.size_or("num_key_value_heads", c.kv_heads, c.heads, 1);
  else v.size("num_key_value_heads", c.kv_heads, 1);
  if (f.head_width == HeadWidth::must) v.size("head_dim", c.head_width, 1);
  else if (!is_latent(f))
    v.size_or("head_dim", c.head_width, c.width % c.heads == 0 ? c.width / c.heads : 0, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("rms_norm_eps", c.norm_eps, 0);
  v.act("hidden_act", c.act);
  v.flag("tie_word_embeddings", c.tied);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  if (f.first_of_its_kind) {
    v.flag_or("attention_bias", c.attention_bias, false);
    v.flag_or("mlp_bias", c.ffn_bias, false);
  } else if (f.biases == FamilyBiases::flag) {
    v.flag("attention_bias", c.attention_bias);
  }
  if (f.kind == FamilyKind::qwen2_moe) v.flag_or("qkv_bias", c.attention_bias, true);
}

template <class Visitor, class Config>
void visit_experts(Visitor& v, Config& c, const Family& f) {
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  if (f.kind == FamilyKind::mixtral) {
    v.size("num_local_experts", c.routing.experts, 1);
    v.size("intermediate_size", c.expert_width, 1);
    return;
  }
  v.size("intermediate_size", c.dense_width, 1);
  v.size("moe_intermediate_size", c.expert_width, 1);
  if (f.kind == FamilyKind::qwen2_moe) v.size("shared_expert_intermediate_size", c.shared_width, 1);
  if (!is_deepseek(f)) return;
  v.size("n_routed_experts", c.routing.experts, 1);
  if (is_latent(f)) v.size("n_shared_experts", c.shared_experts, 1);
  else v.size_or("n_shared_experts", c.shared_experts, 0, 0);
  v.size("first_k_dense_replace", c.dense_first, 0);
  if (is_latent(f)) v.size_or("moe_layer_freq", c.moe_every, 1, 1);
  else v.size("moe_layer_freq", c.moe_every, 1);
}

int64_t window_of(const JsonReader& reader) {
  return reader.get_in<int64_t>("sliding_window", 1, kMaxSize);
}

// qwen: the layers from max_window_layers on have a window, the others none; transformers 5 also
// lists what each layer is.
void read_qwen_window(const JsonReader& reader, ModelConfig& c, Window rule) {
  const bool used = reader.get<bool>("use_sliding_window");
  stands(reader, "sliding_window");
  const int64_t first = reader.get_in<int64_t>("max_window_layers", 0, kMaxSize, c.layers);
  if (reader.has("layer_types")) {
    const auto types = reader.get<std::vector<std::string>>("layer_types");
    if (static_cast<int64_t>(types.size()) != c.layers)
      fail("{}: \"layer_types\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(),
           types.size(), c.layers);
    for (int64_t i = 0; i < c.layers; ++i) {
      const std::string &type = types[static_cast<size_t>(i)],
                        wanted = used && i >= first ? "sliding_attention" : "full_attention";
      if (type != wanted)
        fail(
            "{}: \"layer_types\" has \"{}\" at layer {}, where \"use_sliding_window\" and "
            "\"max_window_layers\" make it \"{}\"; they must agree",
            reader.where(), printable(type), i, wanted);
    }
  }
  if (!used) return;
  if (rule == Window::never)
    refuse(reader, "use_sliding_window",
           "layers with and without a window are not supported in this family, only false");
  if (first >= c.layers) return;
  c.attention_window = window_of(reader);
  c.window_from = first;
}

void read_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.window == Window::mistral) {
    need_to_stand(reader, "sliding_window",
                  "the number of tokens that attention reaches back, or null for all");
    if (reader.has("sliding_window")) c.attention_window = window_of(reader);
  }
  if (f.window == Window::qwen || f.window == Window::never) read_qwen_window(reader, c, f.window);
}

void write_windows(Json& json, const ModelConfig& c, const Family& f) {
  if (f.window == Window::none) return;
  const bool used = c.attention_window > 0;
  json["sliding_window"] = used ? Json(c.attention_window) : Json();
  if (f.window == Window::mistral) return;
  json["use_sliding_window"] = used;
  if (f.kind != FamilyKind::qwen3_moe) json["max_window_layers"] = used ? c.window_from : c.layers;
}

// Layers i with (i + 1) mod decoder_sparse_step == 0 that are not listed in mlp_only_layers route.
void read_qwen_layers(const JsonReader& reader, ModelConfig& c) {
  const auto step = reader.get_in<int64_t>("decoder_sparse_step", 1, kMaxLayers);
  std::vector<int64_t> dense;
  FieldReader(reader).layer_list("mlp_only_layers", dense);
  if (step == 1 && dense.empty()) return;
  for (int64_t i = 0; i < c.layers; ++i)
    if ((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end())
      c.moe_layers.push_back(i);
  if (c.moe_layers.empty())
    fail(
        "{}: no layer routes by \"decoder_sparse_step\" and \"mlp_only_layers\"; such a model is a "
        "dense one",
        reader.where());
}

void write_qwen_layers(Json& json, const ModelConfig& c) {
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    if (!c.is_moe(i)) json["mlp_only_layers"].push_back(i);
}

// The recipe that a family's router is, where the config names none.
const char* recipe_of(FamilyKind kind, bool renormalise) {
  switch (kind) {
    case FamilyKind::mixtral: return "mixtral";
    case FamilyKind::qwen3_moe: return renormalise ? "qwen3-moe" : "qwen2-moe";
    case FamilyKind::deepseek: return renormalise ? "mixtral" : "deepseek-moe";
    case FamilyKind::deepseek_v2: return "deepseek-v2";
    case FamilyKind::deepseek_v3: return "deepseek-v3";
    default: return "qwen2-moe";
  }
}

bool renormalises(const RoutingOptions& routing) {
  return routing.norm_topk_prob.value_or(moe::renormalises(routing.recipe));
}

void read_deepseek_router(const JsonReader& reader, ModelConfig& c) {
  if (reader.get<std::string>("scoring_func") != "softmax")
    refuse(reader, "scoring_func", "only \"softmax\" is of this family");
  if (reader.get<double>("routed_scaling_factor", 1) != 1)
    refuse(reader, "routed_scaling_factor", "this family does not scale its weights, only 1");
  if (reader.get<std::string>("topk_method", "greedy") != "greedy")
    refuse(reader, "topk_method", "only \"greedy\" is of this family");
  for (const char* key : {"kv_lora_rank", "q_lora_rank"})
    if (reader.has(key)) refuse(reader, key, "latent attention is not supported");
  c.routing.coef.balance = read_coefficient(
      reader, "aux_loss_alpha", static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  if (!c.routing.balance_over && reader.get<bool>("seq_aux"))
    c.routing.balance_over = BalanceOver::sequence;
  stands(reader, "seq_aux");
}

// What the code of a family has, which says nothing of it in a config of its own, and the words of
// the configs that were published (huggingface deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V3).
struct GroupedRouter {
  const char *recipe, *score, *method;
  bool renormalises;
};
GroupedRouter grouped_router_of(const Family& f) {
  return f.kind == FamilyKind::deepseek_v2
             ? GroupedRouter{"deepseek-v2", "softmax", "group_limited_greedy", false}
             : GroupedRouter{"deepseek-v3", "sigmoid", "noaux_tc", true};
}

void read_grouped_router(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const GroupedRouter router = grouped_router_of(f);
  const bool second = f.kind == FamilyKind::deepseek_v2;
  FieldReader fields(reader);
  fields.extra_recipe("recipe", c.routing.recipe, router.recipe);
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  if (reader.get<std::string>("scoring_func", router.score) != router.score)
    refuse(reader, "scoring_func",
           second ? "only \"softmax\" is of this family" : "only \"sigmoid\" is of this family");
  const auto method = reader.get<std::string>("topk_method", second ? "greedy" : router.method);
  const bool greedy = second && method == "greedy";
  if (!greedy && method != router.method)
    refuse(reader, "topk_method",
           second ? "only \"greedy\" and \"group_limited_greedy\" are of this family"
                  : "only \"noaux_tc\" is of this family");
  if (reader.get<bool>("norm_topk_prob", router.renormalises) != router.renormalises)
    refuse(reader, "norm_topk_prob",
           second ? "this family does not divide weights by their sum, only false"
                  : "this family divides weights by their sum, only true");
  const auto groups = [&](const char* key) {
    if (!greedy) return reader.get_in<int64_t>(key, 1, kMaxSize);
    reader.get_in<int64_t>(key, 1, kMaxSize, 1);
    return int64_t{1};
  };
  c.routing.expert_groups = groups("n_group");
  c.routing.groups_kept = groups("topk_group");
  float scale = 1;
  fields.number("routed_scaling_factor", scale, 0);
  const auto& weigh = std::get<ChosenScores>(find_recipe(c.routing.recipe).train.weigh);
  if (scale != weigh.scale) c.routing.routed_scale = scale;
  if (reader.has("aux_loss_alpha"))
    c.routing.coef.balance = read_coefficient(
        reader, "aux_loss_alpha", static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  if (!c.routing.balance_over && !reader.get<bool>("seq_aux", true))
    c.routing.balance_over = BalanceOver::micro_batch;
}

void write_grouped_router(Json& json, const ModelConfig& c, const Family& f) {
  const GroupedRouter router = grouped_router_of(f);
  FieldWriter fields(json);
  fields.extra_recipe("recipe", c.routing.recipe, router.recipe);
  const RoutingSpec spec = train_spec(c.routing);
  const auto& select = std::get<GroupedTopK>(spec.select);
  const auto& weigh = std::get<ChosenScores>(spec.weigh);
  json["scoring_func"] = router.score;
  json["topk_method"] =
      f.kind == FamilyKind::deepseek_v2 && select.groups == 1 ? "greedy" : router.method;
  json["norm_topk_prob"] = router.renormalises;
  json["n_group"] = select.groups;
  json["topk_group"] = select.keep;
  fields.number("routed_scaling_factor", weigh.scale, 0);
  write_coefficient(json, "aux_loss_alpha", c.routing.coef.balance,
                    static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
  const bool sequence =
      c.routing.balance_over.value_or(BalanceOver::sequence) == BalanceOver::sequence;
  json["seq_aux"] = sequence;
  if (!sequence)
    fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
}

void read_router(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (is_latent(f)) return read_grouped_router(reader, c, f);
  const bool renormalise = f.kind == FamilyKind::mixtral || reader.get<bool>("norm_topk_prob");
  FieldReader fields(reader);
  fields.extra_recipe("recipe", c.routing.recipe, recipe_of(f.kind, renormalise));
  fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  if (renormalise != moe::renormalises(c.routing.recipe)) c.routing.norm_topk_prob = renormalise;
  if (f.kind == FamilyKind::deepseek) return read_deepseek_router(reader, c);
  c.routing.coef.balance =
      read_coefficient(reader, "router_aux_loss_coef", static_cast<double>(c.routing.top_k));
  if (reader.get<double>("router_jitter_noise", 0) != 0)
    refuse(reader, "router_jitter_noise", "noise on what experts see is not supported, only 0");
}

void write_router(Json& json, const ModelConfig& c, const Family& f) {
  if (is_latent(f)) return write_grouped_router(json, c, f);
  FieldWriter fields(json);
  const bool renormalise = renormalises(c.routing);
  fields.extra_recipe("recipe", c.routing.recipe, recipe_of(f.kind, renormalise));
  if (f.kind != FamilyKind::mixtral) json["norm_topk_prob"] = renormalise;
  if (f.kind != FamilyKind::deepseek) {
    fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
    write_coefficient(json, "router_aux_loss_coef", c.routing.coef.balance,
                      static_cast<double>(c.routing.top_k));
    json["output_router_logits"] = false;
    return;
  }
  const bool sequence = c.routing.balance_over == BalanceOver::sequence;
  if (!sequence)
    fields.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  json["seq_aux"] = sequence;
  json["scoring_func"] = "softmax";
  write_coefficient(json, "aux_loss_alpha", c.routing.coef.balance,
                    static_cast<double>(std::max<int64_t>(c.moe_layer_count(), 1)));
}

ModelConfig read_llama_like(const JsonReader& reader, const Family& f) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_sizes(fields, c, f);
  if (is_latent(f)) read_latents(reader, c);
  if (c.head_width == 0)
    fail(
        "{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}; then "
        "\"head_dim\" is needed",
        reader.where(), c.heads, c.width);
  if (f.biases == FamilyBiases::qkv && f.kind != FamilyKind::qwen2_moe) c.attention_bias = true;
  c.attention_out_bias = f.biases == FamilyBiases::flag && c.attention_bias;
  c.qk_norm = f.qk_norm;
  read_rope(reader, c);
  read_windows(reader, c, f);
  visit_extras(fields, c);
  need_off(reader, "rope_interleaved",
           "rotary embeddings of neighbours are not supported, only of halves");
  need_off(reader, "use_mrope", "rotary embeddings of several axes are not supported");
  if (reader.get<double>("attention_dropout", 0) != 0)
    refuse(reader, "attention_dropout", "dropout of attention weights is not supported, only 0");
  if (!f.moe) {
    fields.size("intermediate_size", c.dense_width, 1);
    c.expert_width = c.dense_width;  // unused
    return c;
  }
  visit_experts(fields, c, f);
  if (f.kind == FamilyKind::mixtral) c.dense_width = c.expert_width;
  if (f.kind == FamilyKind::qwen2_moe || f.kind == FamilyKind::qwen3_moe) {
    // transformers 5 writes it under another name in one of the two.
    fields.size(reader.has("num_experts") || !reader.has("num_local_experts") ? "num_experts"
                                                                              : "num_local_experts",
                c.routing.experts, 1);
    read_qwen_layers(reader, c);
  }
  if (f.kind == FamilyKind::qwen2_moe) c.shared_experts = 1, c.shared_gate = true;
  if (is_deepseek(f)) c.shared_width = c.shared_experts > 0 ? c.expert_width : 0;
  read_router(reader, c, f);
  return c;
}

void write_llama_like(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_sizes(fields, c, f);
  if (is_latent(f)) write_latents(json, c);
  visit_extras(fields, c);
  write_rope(json, c);
  write_windows(json, c, f);
  json["attention_dropout"] = 0.0;
  write_token_ids(json);
  if (!f.moe) return fields.size("intermediate_size", c.dense_width, 1);
  visit_experts(fields, c, f);
  if (f.kind == FamilyKind::qwen2_moe || f.kind == FamilyKind::qwen3_moe) {
    fields.size("num_experts", c.routing.experts, 1);
    write_qwen_layers(json, c);
  }
  write_router(json, c, f);
}

template <class Visitor, class Config>
void visit_gpt2(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("n_embd", c.width, 1);
  v.size("n_layer", c.layers, 1, kMaxLayers);
  v.size("n_head", c.heads, 1);
  v.size("n_positions", c.context, 1);
  v.size_or("n_inner", c.dense_width, 4 * c.width, 1, 4 * kMaxSize);
  v.number("layer_norm_epsilon", c.norm_eps, 0);
  v.act("activation_function", c.act);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  v.number("resid_pdrop", c.dropout, 0);
  v.flag_or("tie_word_embeddings", c.tied, true);  // never written before transformers 5
  visit_extras(v, c);
}

// Dropout of attention weights is part of its training only; there is none here.
ModelConfig read_gpt2(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_gpt2(fields, c);
  if (c.width % c.heads != 0)
    fail("{}: \"n_head\" is {}, which does not divide \"n_embd\" {}", reader.where(), c.heads,
         c.width);
  c.kv_heads = c.heads;
  c.head_width = c.width / c.heads;
  c.expert_width = c.dense_width;  // unused
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.positions = Positions::learned;
  c.gated = false;
  if (static_cast<float>(reader.get<double>("embd_pdrop")) != c.dropout)
    refuse(reader, "embd_pdrop", "it must be \"resid_pdrop\": one dropout is supported");
  reader.get<double>("attn_pdrop", 0);
  if (!reader.get<bool>("scale_attn_weights", true))
    refuse(reader, "scale_attn_weights", "scores that are not scaled are not supported");
  need_off(reader, "scale_attn_by_inverse_layer_idx",
           "scores scaled by the layer are not supported");
  need_off(reader, "add_cross_attention", "attention to another text is not supported");
  reader.get<bool>("reorder_and_upcast_attn", false);
  for (const char* key : {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                          "summary_type", "summary_use_proj"})
    stands(reader, key);
  return c;
}

void write_gpt2(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_gpt2(fields, c);
  fields.number("embd_pdrop", c.dropout, 0);
  json["attn_pdrop"] = 0.0;
  if (c.act == ops::Act::gelu_tanh) json["activation_function"] = "gelu_new";
  write_token_ids(json);
}

std::string why_not_gpt2(const ModelConfig& c) {
  if (c.moe_layer_count() > 0) return "some of its layers route";
  if (c.norm != NormKind::layer || c.norm_placement != NormPlacement::pre)
    return "its norms are not LayerNorms before each sublayer";
  if (!c.norm_bias || !c.attention_bias || !c.attention_out_bias || !c.ffn_bias)
    return "some of its parts have no biases";
  if (c.positions != Positions::learned) return "its positions are not learned";
  if (c.attention_window > 0) return "its attention has a window";
  if (c.qk_norm != QkNorm::none) return "queries and keys are normalised";
  if (c.kv_heads != c.heads) return "heads share keys and values";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.gated) return "its FFNs have gates";
  return "";
}

std::string why_not_grouped(const ModelConfig& c, const Family& f) {
  if (c.routing.recipe != grouped_router_of(f).recipe)
    return fmt::format("recipe '{}' is another than '{}'", c.routing.recipe,
                       grouped_router_of(f).recipe);
  const RoutingLosses& coef = c.routing.coef;
  if (coef.device != 0 || coef.communication != 0)
    return "it learns with losses of devices, for which the family has no words";
  if (!c.moe_layers.empty()) return "its MoE layers are listed one by one";
  if (c.shared_experts == 0) return "it has no shared experts";
  if (c.shared_gate || c.shared_width != c.expert_width)
    return "its shared experts are not as wide as the others, or weighted";
  return "";
}

std::string why_not_experts(const ModelConfig& c, const Family& f) {
  if (c.moe_layer_count() == 0) return "no layer routes";
  if (is_latent(f)) return why_not_grouped(c, f);
  if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
  const bool renormalise = renormalises(c.routing);
  const bool qwen = f.kind == FamilyKind::qwen2_moe || f.kind == FamilyKind::qwen3_moe;
  if (f.kind == FamilyKind::mixtral && !renormalise)
    return "its combine weights are not normalised";
  if (f.kind == FamilyKind::mixtral && c.moe_layer_count() != c.layers)
    return "some layers are dense";
  if (f.kind == FamilyKind::deepseek && !c.moe_layers.empty())
    return "its MoE layers are listed one by one";
  if (qwen && c.dense_width < 1) return "its dense layers have no width";
  if (f.kind == FamilyKind::qwen2_moe && (c.shared_experts != 1 || !c.shared_gate))
    return "it has not one shared expert with a gate";
  if (f.kind == FamilyKind::deepseek && c.shared_experts > 0 &&
      (c.shared_gate || c.shared_width != c.expert_width))
    return "its shared experts are not as wide as the others, or weighted";
  if ((f.kind == FamilyKind::mixtral || f.kind == FamilyKind::qwen3_moe) && c.shared_experts > 0)
    return "it has shared experts";
  return "";
}

std::string why_not_llama_like(const ModelConfig& c, const Family& f) {
  if (c.norm != NormKind::rms || c.norm_placement != NormPlacement::pre)
    return "its norms are not RMSNorms before each sublayer";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (c.latent.present() != is_latent(f))
    return is_latent(f) ? "its attention is not latent" : "its attention is latent";
  if (c.attention_window > 0 && f.window != Window::mistral && f.window != Window::qwen)
    return "its attention has a window";
  if (c.attention_window > 0 && c.window_from > 0 && f.window != Window::qwen)
    return "only some of its layers have a window";
  if (!c.gated) return "its FFNs have no gates";
  if (c.dropout != 0) return "it has dropout";
  if (c.qk_norm != f.qk_norm)
    return f.qk_norm == QkNorm::none ? "queries and keys are normalised"
                                     : "queries and keys are not normalised for each head";
  if (f.biases == FamilyBiases::none && (c.attention_bias || c.attention_out_bias))
    return "its attention has biases";
  const bool out = f.biases == FamilyBiases::flag && c.attention_bias;
  if (c.attention_out_bias != out) return "other projections of its attention have biases";
  if (f.kind == FamilyKind::qwen2 && !c.attention_bias)
    return "queries, keys and values have no biases";
  if (c.ffn_bias && f.kind != FamilyKind::llama) return "its FFNs have biases";
  if (!f.moe) return c.moe_layer_count() > 0 ? "some of its layers route" : "";
  if (c.expert_down_bias) return "its experts have biases";
  return why_not_experts(c, f);
}

}  // namespace

ModelConfig read_family(const JsonReader& reader, FamilyKind kind) {
  return kind == FamilyKind::gpt2 ? read_gpt2(reader) : read_llama_like(reader, family_of(kind));
}

void write_family(Json& json, const ModelConfig& c, FamilyKind kind) {
  if (kind == FamilyKind::gpt2) write_gpt2(json, c);
  else write_llama_like(json, c, family_of(kind));
}

std::string why_not_family(const ModelConfig& c, FamilyKind kind) {
  return kind == FamilyKind::gpt2 ? why_not_gpt2(c) : why_not_llama_like(c, family_of(kind));
}

}  // namespace moe
