// The keys of GPT-2 (transformers:models/gpt2/configuration_gpt2.py).
#include "hub/folder/architectures.h"
#include "hub/folder/family_fields.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

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

}  // namespace

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
  if (const std::string has = what_few_have(c); !has.empty()) return has;
  if (c.norm != NormKind::layer || c.norm_placement != NormPlacement::pre)
    return "its norms are not LayerNorms before each sublayer";
  if (c.norm_offset) return "its norms count from 1";
  if (!c.norm_bias || !c.attention_bias || !c.attention_out_bias || !c.ffn_bias)
    return "some of its parts have no biases";
  if (c.positions != Positions::learned) return "its positions are not learned";
  if (c.attention_window > 0) return "its attention has a window";
  if (!c.multipliers.none()) return "it has multipliers";
  if (c.attention_sinks) return "its attention has sinks";
  if (c.has_states()) return "some of its layers have no attention";
  if (c.qk_norm != QkNorm::none) return "queries and keys are normalised";
  if (c.kv_heads != c.heads) return "heads share keys and values";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.gated) return "its FFNs have gates";
  return "";
}

}  // namespace moe
