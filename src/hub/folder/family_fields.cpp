// One list of fields for all that are built like Llama, with a row for what sets each family apart
// (hub/folder/families.h). A key whose absence would let the default of a class decide about the
// mathematics is needed, unless the family's own checkpoints were published before the key existed:
// then its absence means what there was before. What shows in the tensors (biases, widths of heads)
// is checked by them too.
#include "hub/folder/family_fields.h"

#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

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
  if (f.biases == FamilyBiases::flag_later)
    v.size_or("num_key_value_heads", c.kv_heads, c.heads, 1);
  else v.size("num_key_value_heads", c.kv_heads, 1);
  if (f.head_width == HeadWidth::must) v.size("head_dim", c.head_width, 1);
  else if (!f.latent())
    v.size_or("head_dim", c.head_width, c.width % c.heads == 0 ? c.width / c.heads : 0, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("rms_norm_eps", c.norm_eps, 0);
  v.act("hidden_act", c.act);
  v.flag("tie_word_embeddings", c.tied);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  switch (f.biases) {
    case FamilyBiases::none:
    case FamilyBiases::qkv: return;
    case FamilyBiases::qkv_bias: return v.flag_or("qkv_bias", c.attention_bias, true);
    case FamilyBiases::flag: return v.flag("attention_bias", c.attention_bias);
    case FamilyBiases::flag_later:
      v.flag_or("attention_bias", c.attention_bias, false);
      return v.flag_or("mlp_bias", c.ffn_bias, false);
  }
}

int64_t window_of(const JsonReader& reader) {
  return reader.get_in<int64_t>("sliding_window", 1, kMaxSize);
}

// qwen: the layers from max_window_layers on have a window, the others none; transformers 5 also
// lists what each layer is.
void read_qwen_window(const JsonReader& reader, ModelConfig& c, FamilyWindow rule) {
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
  if (rule == FamilyWindow::never)
    refuse(reader, "use_sliding_window",
           "layers with and without a window are not supported in this family, only false");
  if (first >= c.layers) return;
  c.attention_window = window_of(reader);
  c.window_from = first;
}

void read_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.window == FamilyWindow::mistral) {
    need_to_stand(reader, "sliding_window",
                  "the number of tokens that attention reaches back, or null for all");
    if (reader.has("sliding_window")) c.attention_window = window_of(reader);
  }
  if (f.window == FamilyWindow::qwen || f.window == FamilyWindow::never)
    read_qwen_window(reader, c, f.window);
}

void write_windows(Json& json, const ModelConfig& c, const Family& f) {
  if (f.window == FamilyWindow::none) return;
  const bool used = c.attention_window > 0;
  json["sliding_window"] = used ? Json(c.attention_window) : Json();
  if (f.window == FamilyWindow::mistral) return;
  json["use_sliding_window"] = used;
  if (f.experts != FamilyExperts::qwen3)
    json["max_window_layers"] = used ? c.window_from : c.layers;
}

}  // namespace

ModelConfig read_family(const JsonReader& reader, const Family& f) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_sizes(fields, c, f);
  if (f.latent()) read_latents(reader, c);
  if (c.head_width == 0)
    fail(
        "{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}; then "
        "\"head_dim\" is needed",
        reader.where(), c.heads, c.width);
  if (f.biases == FamilyBiases::qkv) c.attention_bias = true;
  c.attention_out_bias = f.out_bias() && c.attention_bias;
  c.qk_norm = f.qk_norm;
  read_rope(reader, c);
  read_windows(reader, c, f);
  visit_extras(fields, c);
  need_off(reader, "rope_interleaved",
           "rotary embeddings of neighbours are not supported, only of halves");
  need_off(reader, "use_mrope", "rotary embeddings of several axes are not supported");
  if (reader.get<double>("attention_dropout", 0) != 0)
    refuse(reader, "attention_dropout", "dropout of attention weights is not supported, only 0");
  if (f.experts != FamilyExperts::none) {
    read_experts(reader, c, f);
    return c;
  }
  fields.size("intermediate_size", c.dense_width, 1);
  c.expert_width = c.dense_width;  // unused
  return c;
}

void write_family(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_sizes(fields, c, f);
  if (f.latent()) write_latents(json, c);
  visit_extras(fields, c);
  write_rope(json, c);
  write_windows(json, c, f);
  json["attention_dropout"] = 0.0;
  write_token_ids(json);
  if (f.experts != FamilyExperts::none) return write_experts(json, c, f);
  fields.size("intermediate_size", c.dense_width, 1);
}

std::string why_not_family(const ModelConfig& c, const Family& f) {
  if (c.norm != NormKind::rms || c.norm_placement != NormPlacement::pre)
    return "its norms are not RMSNorms before each sublayer";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (c.latent.present() != f.latent())
    return f.latent() ? "its attention is not latent" : "its attention is latent";
  if (c.attention_window > 0 && f.window != FamilyWindow::mistral && f.window != FamilyWindow::qwen)
    return "its attention has a window";
  if (c.attention_window > 0 && c.window_from > 0 && f.window != FamilyWindow::qwen)
    return "only some of its layers have a window";
  if (!c.gated) return "its FFNs have no gates";
  if (c.dropout != 0) return "it has dropout";
  if (c.qk_norm != f.qk_norm)
    return f.qk_norm == QkNorm::none ? "queries and keys are normalised"
                                     : "queries and keys are not normalised for each head";
  if (f.biases == FamilyBiases::none && (c.attention_bias || c.attention_out_bias))
    return "its attention has biases";
  const bool out = f.out_bias() && c.attention_bias;
  if (c.attention_out_bias != out) return "other projections of its attention have biases";
  if (f.biases == FamilyBiases::qkv && !c.attention_bias)
    return "queries, keys and values have no biases";
  if (c.ffn_bias && f.biases != FamilyBiases::flag_later) return "its FFNs have biases";
  if (f.experts == FamilyExperts::none)
    return c.moe_layer_count() > 0 ? "some of its layers route" : "";
  if (c.expert_down_bias) return "its experts have biases";
  return why_not_experts(c, f);
}

}  // namespace moe
