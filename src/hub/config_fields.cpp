// The lists of fields, and the two visitors that walk them: one reads a JsonReader, one writes a Json. Both check the same ranges, so that what is written
// can be read. Floats are written as the shortest decimal that reads back as the same float.
#include "hub/config_fields.h"

#include <algorithm>
#include <cfloat>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/error.h"
#include "core/nearest.h"
#include "moe/spec_json.h"

namespace moe {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // as validate() has it
constexpr int64_t kMaxLayers = 4096;            // bounds the work that a hostile file can ask for before its tensors are looked at

const std::vector<std::string> kNormNames = {"rms", "layer"};
const std::vector<std::string> kPlacementNames = {"pre", "post"};
const std::vector<std::string> kPositionNames = {"rope", "learned"};
const std::vector<std::string> kQkNormNames = {"none", "head", "full"};
const std::vector<std::string> kActNames = {"silu", "gelu", "gelu_pytorch_tanh", "relu"};  // as transformers calls them

// Visitors. A field is (key, member, lowest, highest); `extra` fields have a default and stand in the file only when they differ from it.
class FieldReader {
 public:
  explicit FieldReader(const JsonReader& from) : from_(from) {}

  void size(const char* key, int64_t& x, int64_t low, int64_t high = kMaxSize) { x = from_.get_in<int64_t>(key, low, high); }
  void number(const char* key, float& x, double low) { x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX)); }
  void flag(const char* key, bool& x) { x = from_.get<bool>(key); }
  template <class E>
  void one_of(const char* key, E& x, const std::vector<std::string>& names) {
    x = static_cast<E>(from_.get_one_of(key, names));
  }
  void recipe(const char* key, std::string& x) { x = recipe_name(key); }
  void optional(const char* key, std::optional<bool>& x) {
    if (from_.has(key)) x = from_.get<bool>(key);
  }
  void optional(const char* key, std::optional<float>& x, double low) {
    if (from_.has(key)) x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX));
  }
  void optional(const char* key, std::optional<int64_t>& x, int64_t low) {
    if (from_.has(key)) x = from_.get_in<int64_t>(key, low, kMaxSize);
  }
  template <class E>
  void optional(const char* key, std::optional<E>& x, const std::vector<std::string>& names) {
    if (from_.has(key)) x = static_cast<E>(from_.get_one_of(key, names));
  }
  // Bad stages are refused here, where the file's name is known.
  void stages(const char* key, std::string& x) {
    if (!from_.has(key)) return;
    x = from_.value(key).dump();
    parse_stages(x, fmt::format("{}: \"{}\"", from_.where(), key));
  }
  void layer_list(const char* key, std::vector<int64_t>& x) {
    if (!from_.has(key)) return;
    x = from_.get<std::vector<int64_t>>(key);
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] < 0 || x[i] >= kMaxLayers || (i > 0 && x[i] <= x[i - 1]))
        fail("{}: \"{}\" must list layers from 0 on, each once and in rising order; entry {} is {}", from_.where(), key, i, x[i]);
  }
  void extra(const char* key, float& x, float otherwise, double low) {
    x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX, shortest_decimal(otherwise)));
  }
  void extra(const char* key, bool& x, bool otherwise) { x = from_.get<bool>(key, otherwise); }
  void extra_recipe(const char* key, std::string& x, const char* otherwise) { x = from_.has(key) ? recipe_name(key) : otherwise; }

 private:
  std::string recipe_name(const char* key) {
    std::vector<std::string> names;
    for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
    return names[from_.get_one_of(key, names)];
  }

  const JsonReader& from_;
};

class FieldWriter {
 public:
  explicit FieldWriter(Json& to) : to_(to) {}

  void size(const char* key, const int64_t& x, int64_t low, int64_t high = kMaxSize) { to_[key] = checked<int64_t>(key, x, low, high); }
  void number(const char* key, const float& x, double low) { to_[key] = shortest_decimal(checked<float>(key, x, low, FLT_MAX)); }
  void flag(const char* key, const bool& x) { to_[key] = x; }
  template <class E>
  void one_of(const char* key, const E& x, const std::vector<std::string>& names) {
    to_[key] = names.at(static_cast<size_t>(x));
  }
  void recipe(const char* key, const std::string& x) { to_[key] = x; }
  void optional(const char* key, const std::optional<bool>& x) {
    if (x) to_[key] = *x;
  }
  void optional(const char* key, const std::optional<float>& x, double low) {
    if (x) number(key, *x, low);
  }
  void optional(const char* key, const std::optional<int64_t>& x, int64_t low) {
    if (x) size(key, *x, low);
  }
  template <class E>
  void optional(const char* key, const std::optional<E>& x, const std::vector<std::string>& names) {
    if (x) one_of(key, *x, names);
  }
  void stages(const char* key, const std::string& x) {
    if (!x.empty()) to_[key] = parse_json(x, "the routing stages");
  }
  void layer_list(const char* key, std::vector<int64_t> x) {
    std::sort(x.begin(), x.end());
    x.erase(std::unique(x.begin(), x.end()), x.end());
    if (!x.empty()) to_[key] = x;
  }
  void extra(const char* key, const float& x, float otherwise, double low) {
    if (x != otherwise) number(key, x, low);
  }
  void extra(const char* key, const bool& x, bool otherwise) {
    if (x != otherwise) to_[key] = x;
  }
  void extra_recipe(const char* key, const std::string& x, const char* otherwise) {
    if (x != otherwise) to_[key] = x;
  }

 private:
  template <class T>
  T checked(const char* key, T x, std::type_identity_t<double> low, double high) {
    if (!(static_cast<double>(x) >= low && static_cast<double>(x) <= high)) fail_usage("\"{}\" is {}, config.json holds {} to {}", key, x, low, high);
    return x;
  }

  Json& to_;
};

// Everything a ModelConfig holds. `Config` is ModelConfig or const ModelConfig.
template <class Visitor, class Config>
void visit_moe_cpp(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("num_key_value_heads", c.kv_heads, 1);
  v.size("head_dim", c.head_width, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.one_of("norm_type", c.norm, kNormNames);
  v.one_of("norm_placement", c.norm_placement, kPlacementNames);
  v.number(c.norm == NormKind::rms ? "rms_norm_eps" : "layer_norm_eps", c.norm_eps, 0);
  v.flag("norm_bias", c.norm_bias);
  v.one_of("position_embedding_type", c.positions, kPositionNames);
  v.number("rope_theta", c.rope_theta, 0);
  v.one_of("qk_norm", c.qk_norm, kQkNormNames);
  v.flag("attention_bias", c.attention_bias);
  v.extra("attention_out_bias", c.attention_out_bias, c.attention_bias);
  v.flag("mlp_bias", c.ffn_bias);
  v.one_of("hidden_act", c.act, kActNames);
  v.flag("gated_mlp", c.gated);
  v.flag("tie_word_embeddings", c.tied);
  v.number("dropout", c.dropout, 0);
  v.size("intermediate_size", c.dense_width, 0);
  v.size("moe_intermediate_size", c.expert_width, 0);
  v.size("n_shared_experts", c.shared_experts, 0);
  v.size("shared_expert_intermediate_size", c.shared_width, 0);
  v.flag("shared_expert_gate", c.shared_gate);
  v.size("moe_every", c.moe_every, 1);
  v.size("first_k_dense_replace", c.dense_first, 0);
  v.layer_list("moe_layers", c.moe_layers);
  v.recipe("recipe", c.routing.recipe);
  v.size("num_experts", c.routing.experts, 1);
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  v.optional("norm_topk_prob", c.routing.norm_topk_prob);
  v.optional("capacity_factor", c.routing.capacity_factor, 0);
  v.optional("capacity_factor_eval", c.routing.capacity_factor_eval, 0);
  v.optional("n_group", c.routing.expert_groups, 1);
  v.optional("topk_group", c.routing.groups_kept, 1);
  v.optional("routed_scaling_factor", c.routing.routed_scale, 0);
  v.stages("routing_stages", c.routing.stages);
  v.flag("router_noise", c.routing.noise);
  v.number("router_aux_loss_coef", c.routing.coef.balance, 0);
  v.number("router_z_loss_coef", c.routing.coef.z, 0);
  v.extra("router_device_loss_coef", c.routing.coef.device, 0, 0);
  v.extra("router_communication_loss_coef", c.routing.coef.communication, 0, 0);
  v.extra("router_importance_loss_coef", c.routing.coef.importance, 0, 0);
  v.extra("router_load_loss_coef", c.routing.coef.load, 0, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  v.number("initializer_range", c.init.std, 0);
  v.number("initializer_cutoff", c.init.cut, 0);
  v.flag("init_scale_residual", c.init.scale_residual);
}

// transformers' keys; the extras at the end are ours, and transformers carries them along unread.
template <class Visitor, class Config>
void visit_olmoe(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("intermediate_size", c.expert_width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("num_key_value_heads", c.kv_heads, 1);
  v.size("num_experts", c.routing.experts, 1);
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("rms_norm_eps", c.norm_eps, 0);
  v.flag("attention_bias", c.attention_bias);
  v.flag("tie_word_embeddings", c.tied);
  v.one_of("hidden_act", c.act, kActNames);
  v.number("initializer_range", c.init.std, 0);
  v.extra_recipe("recipe", c.routing.recipe, "olmoe");
  v.extra("router_z_loss_coef", c.routing.coef.z, 0, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  v.extra("initializer_cutoff", c.init.cut, 0, 0);
  v.extra("init_scale_residual", c.init.scale_residual, false);
}

std::string text_of(const JsonReader& reader, const char* key) { return printable(reader.value(key).dump(-1, ' ', true, Json::error_handler_t::replace)); }

// {"rope_type": "default", "rope_theta": t} as transformers 5 has it, rope_theta and rope_scaling beside each other as transformers 4 had it, or both.
float read_rope_theta(const JsonReader& reader) {
  if (reader.has("rope_scaling")) {
    const JsonReader scaling = reader.object("rope_scaling");
    const char* key = scaling.has("rope_type") ? "rope_type" : "type";
    if (scaling.get<std::string>(key) != "default")
      fail("{}: \"rope_scaling\" is {}; only the plain rotary embedding is supported", reader.where(), text_of(reader, "rope_scaling"));
  }
  if (!reader.has("rope_parameters")) return static_cast<float>(reader.get_in<double>("rope_theta", 0, FLT_MAX));
  const JsonReader rope = reader.object("rope_parameters");
  if (rope.get<std::string>("rope_type", "default") != "default")
    fail("{}: \"rope_type\" is {}; only \"default\", the plain rotary embedding, is supported", rope.where(), text_of(rope, "rope_type"));
  const auto theta = static_cast<float>(rope.get_in<double>("rope_theta", 0, FLT_MAX));
  if (rope.get<double>("partial_rotary_factor", 1) != 1)
    fail("{}: \"partial_rotary_factor\" is {}; only heads that are rotated whole are supported", rope.where(), text_of(rope, "partial_rotary_factor"));
  rope.refuse_unknown();
  if (reader.has("rope_theta") && static_cast<float>(reader.get<double>("rope_theta")) != theta)
    fail("{}: \"rope_theta\" is {}, but \"rope_parameters\" says {}; make them equal", reader.where(), text_of(reader, "rope_theta"),
         text_of(rope, "rope_theta"));
  return theta;
}

// What transformers' architecture has and ours has not must be switched off.
void refuse_switched_on(const JsonReader& reader, const ModelConfig& c) {
  if (reader.has("clip_qkv"))
    fail("{}: \"clip_qkv\" is {}; clipped queries, keys and values are not supported, only null", reader.where(), text_of(reader, "clip_qkv"));
  if (reader.get<double>("attention_dropout", 0) != 0)
    fail("{}: \"attention_dropout\" is {}; dropout of attention weights is not supported, only 0", reader.where(), text_of(reader, "attention_dropout"));
  if (reader.get<int64_t>("head_dim", c.head_width) != c.head_width)
    fail("{}: \"head_dim\" is {}; olmoe has hidden_size / num_attention_heads = {}", reader.where(), text_of(reader, "head_dim"), c.head_width);
}

// Whether the recipe renormalises the chosen weights where the config says nothing.
bool renormalises(const RoutingOptions& routing) {
  const auto* weigh = std::get_if<ChosenScores>(&find_recipe(routing.recipe).train.weigh);
  return weigh != nullptr && weigh->renormalise != ChosenScores::Renormalise::never;
}

}  // namespace

ModelConfig read_moe_cpp(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_moe_cpp(fields, c);
  return c;
}

void write_moe_cpp(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_moe_cpp(fields, c);
}

// transformers' balance loss is K where ours is 1 (all choices are counted and not divided by K), so its coefficient is ours / K.
ModelConfig read_olmoe(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_olmoe(fields, c);
  if (c.width % c.heads != 0) fail("{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}", reader.where(), c.heads, c.width);
  c.head_width = c.width / c.heads;
  c.dense_width = c.expert_width;
  c.attention_out_bias = c.attention_bias;
  c.qk_norm = QkNorm::full;
  c.rope_theta = read_rope_theta(reader);
  const auto k = static_cast<double>(c.routing.top_k);
  c.routing.coef.balance = static_cast<float>(k * reader.get_in<double>("router_aux_loss_coef", 0, FLT_MAX / k));
  if (const bool renormalise = reader.get<bool>("norm_topk_prob"); renormalise != renormalises(c.routing)) c.routing.norm_topk_prob = renormalise;
  refuse_switched_on(reader, c);
  return c;
}

void write_olmoe(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_olmoe(fields, c);
  fields.number("rope_theta", c.rope_theta, 0);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", shortest_decimal(c.rope_theta)}};
  const auto k = static_cast<double>(c.routing.top_k);
  fields.number("router_aux_loss_coef", c.routing.coef.balance, 0);
  const double coef = shortest_decimal(c.routing.coef.balance) / k;
  json["router_aux_loss_coef"] = static_cast<float>(coef * k) == c.routing.coef.balance ? coef : static_cast<double>(c.routing.coef.balance) / k;
  json["norm_topk_prob"] = c.routing.norm_topk_prob.value_or(renormalises(c.routing));
  json["attention_dropout"] = 0.0;
  json["clip_qkv"] = nullptr;
  json["output_router_logits"] = false;
  // transformers has defaults of its own for these; id 1, say, would get no gradient.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[key] = nullptr;
}

const std::vector<std::string>& ignored_config_keys() {
  static const std::vector<std::string> keys = {"_attn_implementation",
                                                "_commit_hash",
                                                "_name_or_path",
                                                "add_cross_attention",
                                                "architectures",
                                                "auto_map",
                                                "begin_suppress_tokens",
                                                "bos_token_id",
                                                "chunk_size_feed_forward",
                                                "cross_attention_hidden_size",
                                                "decoder_start_token_id",
                                                "dtype",
                                                "eos_token_id",
                                                "finetuning_task",
                                                "forced_bos_token_id",
                                                "forced_eos_token_id",
                                                "id2label",
                                                "is_decoder",
                                                "is_encoder_decoder",
                                                "label2id",
                                                "output_attentions",
                                                "output_hidden_states",
                                                "output_router_logits",
                                                "pad_token_id",
                                                "prefix",
                                                "pretraining_tp",
                                                "problem_type",
                                                "pruned_heads",
                                                "return_dict",
                                                "sep_token_id",
                                                "suppress_tokens",
                                                "task_specific_params",
                                                "tie_encoder_decoder",
                                                "tokenizer_class",
                                                "torch_dtype",
                                                "torchscript",
                                                "transformers_version",
                                                "use_bfloat16",
                                                "use_cache"};
  return keys;
}

}  // namespace moe
