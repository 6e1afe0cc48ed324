// The keys of DBRX (transformers:dbrx/configuration_dbrx.py), which says attention and experts in
// configs within its own.
#include "hub/folder/architectures.h"
#include "hub/folder/family_fields.h"
#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

constexpr const char *kDbrxAttention = "attn_config", *kDbrxExperts = "ffn_config",
                     *kDbrxBase = "rope_theta", *kDbrxClip = "clip_qkv",
                     *kDbrxDivides = "moe_normalize_expert_weights", *kDbrxAct = "ffn_act_fn",
                     *kDbrxLoss = "moe_loss_weight";
constexpr float kDbrxEps = 1e-5f;  // of its LayerNorms; there is no key of it

template <class Visitor, class Config>
void visit_dbrx(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("d_model", c.width, 1);
  v.size("n_layers", c.layers, 1, kMaxLayers);
  v.size("n_heads", c.heads, 1);
  v.size("max_seq_len", c.context, 1);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  v.number("resid_pdrop", c.dropout, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  visit_extras(v, c);
}

template <class Visitor, class Config>
void visit_dbrx_experts(Visitor& v, Config& c) {
  v.size("ffn_hidden_size", c.expert_width, 1);
  v.size("moe_num_experts", c.routing.experts, 1);
  v.size("moe_top_k", c.routing.top_k, 1);
}

// A config of transformers within another has the keys of all of them.
void end_dbrx_part(const JsonReader& part) {
  for (const char* key : {"model_type", "tie_word_embeddings"}) stands(part, key);
  part.refuse_unknown(ignored_config_keys());
}

// The base stands within attention's config as it was published; transformers 5 reads the one
// around.
void read_dbrx_attention(const JsonReader& reader, ModelConfig& c) {
  const JsonReader attention = reader.object(kDbrxAttention);
  FieldReader(attention).size("kv_n_heads", c.kv_heads, 1);
  need_to_stand(attention, kDbrxClip,
                "the number that queries, keys and values are held within, or null");
  if (attention.has(kDbrxClip))
    c.qkv_clip = static_cast<float>(attention.get_in<double>(kDbrxClip, FLT_MIN, FLT_MAX));
  attention.get<double>("attn_pdrop", 0);  // part of its training only; there is none here
  if (!reader.has("rope_parameters")) {
    c.rope_theta = static_cast<float>(attention.get_in<double>(kDbrxBase, FLT_MIN, FLT_MAX));
  } else {
    read_rope(reader, c);
    if (attention.has(kDbrxBase) &&
        static_cast<float>(attention.get<double>(kDbrxBase)) != c.rope_theta)
      refuse(attention, kDbrxBase, "\"rope_parameters\" says another base; make them equal");
  }
  end_dbrx_part(attention);
  constexpr const char* kAgain = "num_key_value_heads";
  if (reader.get<int64_t>(kAgain, c.kv_heads) != c.kv_heads)
    refuse(reader, kAgain, "\"kv_n_heads\" is another number; make them equal");
}

// Its jitter is of training, and of what experts see too; there is none here.
void read_dbrx_experts(const JsonReader& reader, ModelConfig& c) {
  const JsonReader experts = reader.object(kDbrxExperts);
  FieldReader fields(experts);
  visit_dbrx_experts(fields, c);
  if (experts.has(kDbrxAct)) {
    const JsonReader act = experts.object(kDbrxAct);
    FieldReader(act).act("name", c.act);
    act.refuse_unknown();
  }
  // By the sum where nothing is said, by nothing where it is null.
  const bool divides = experts.has(kDbrxDivides) || !stands(experts, kDbrxDivides);
  if (divides && experts.get<double>(kDbrxDivides, 1) != 1)
    refuse(experts, kDbrxDivides, "weights are divided by their sum or by nothing, only 1 or null");
  FieldReader(reader).extra_recipe("recipe", c.routing.recipe, divides ? "mixtral" : "qwen2-moe");
  if (divides != renormalises(c.routing.recipe)) c.routing.norm_topk_prob = divides;
  c.routing.coef.balance =
      read_coefficient(experts, kDbrxLoss, static_cast<double>(c.routing.top_k));
  for (const char* key : {"moe_jitter_eps", "hidden_size"}) stands(experts, key);
  end_dbrx_part(experts);
  stands(reader, "router_aux_loss_coef");  // said again
}

bool divides_weights(const RoutingOptions& routing) {
  return routing.norm_topk_prob.value_or(renormalises(routing.recipe));
}

}  // namespace

ModelConfig read_dbrx(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_dbrx(fields, c);
  if (c.width % c.heads != 0)
    fail("{}: \"n_heads\" is {}, which does not divide \"d_model\" {}", reader.where(), c.heads,
         c.width);
  c.head_width = c.width / c.heads;
  c.norm = NormKind::layer;
  c.norm_eps = kDbrxEps;
  read_dbrx_attention(reader, c);
  read_dbrx_experts(reader, c);
  c.dense_width = c.expert_width;  // unused
  if (static_cast<float>(reader.get<double>("emb_pdrop")) != c.dropout)
    refuse(reader, "emb_pdrop", "it must be \"resid_pdrop\": one dropout is supported");
  need_off(reader, "tie_word_embeddings", "the head of this family is no embedding, only false");
  return c;
}

void write_dbrx(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_dbrx(fields, c);
  fields.number("emb_pdrop", c.dropout, 0);
  fields.extra_recipe("recipe", c.routing.recipe,
                      divides_weights(c.routing) ? "mixtral" : "qwen2-moe");
  write_rope(json, c);
  Json attention, experts, act;
  FieldWriter of_attention(attention), of_experts(experts);
  of_attention.size("kv_n_heads", c.kv_heads, 1);
  of_attention.number(kDbrxBase, c.rope_theta, 0);
  attention["attn_pdrop"] = 0.0;
  write_cap(attention, kDbrxClip, c.qkv_clip);
  visit_dbrx_experts(of_experts, c);
  write_coefficient(experts, kDbrxLoss, c.routing.coef.balance,
                    static_cast<double>(c.routing.top_k));
  experts[kDbrxDivides] = divides_weights(c.routing) ? Json(1.0) : Json();
  experts["moe_jitter_eps"] = nullptr;
  FieldWriter(act).act("name", c.act);
  experts[kDbrxAct] = act;
  json[kDbrxAttention] = attention;
  json[kDbrxExperts] = experts;
  json["tie_word_embeddings"] = false;
  json["output_router_logits"] = false;
  write_token_ids(json);
}

std::string why_not_dbrx(const ModelConfig& c) {
  if (c.moe_layer_count() != c.layers) return "some of its layers do not route";
  if (const std::string has = what_few_have(c, {.clips = true}); !has.empty()) return has;
  if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
  if (c.norm != NormKind::layer || c.norm_placement != NormPlacement::pre || c.norm_bias ||
      c.norm_offset || c.norm_eps != kDbrxEps)
    return "its norms are not LayerNorms without bias, of epsilon 1e-5, before each sublayer";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (c.rotary_width > 0 || !c.nope_layers.empty())
    return "some of a head, or of its layers, does not turn";
  if (c.attention_window > 0) return "its attention has a window";
  if (c.latent.present()) return "its attention is latent";
  if (!c.multipliers.none()) return "it has multipliers";
  if (c.attention_sinks || c.attention_gate) return "its attention has sinks or a gate";
  if (c.has_states()) return "some of its layers have no attention";
  if (c.qk_norm != QkNorm::none || c.qk_norm_turned) return "queries and keys are normalised";
  if (c.attention_bias || c.attention_out_bias || c.ffn_bias || c.expert_down_bias)
    return "some of its projections have biases";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (!c.gated) return "its experts have no gates";
  if (c.shared_experts > 0) return "it has shared experts";
  return c.tied ? "its head is the embedding" : "";
}

}  // namespace moe
