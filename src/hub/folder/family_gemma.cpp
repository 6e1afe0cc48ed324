// The keys of Gemma's families beside those of all (transformers:gemma/configuration_gemma.py,
// gemma2/modeling_gemma2.py, gemma3/modeling_gemma3.py, gemma4/configuration_gemma4.py): what their
// code does, and what must be off.
#include <cmath>

#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kScoreScale = "query_pre_attn_scalar", *kScoreCap = "attn_logit_softcapping",
                     *kSees = "use_bidirectional_attention";

// The whole number of which a multiplier of scores is 1 over the root; 0: there is none.
int64_t score_scale(const ModelConfig& c) {
  const auto m = static_cast<double>(c.multipliers.attention);
  if (m == 0 || 1 / (m * m) > static_cast<double>(kMaxSize)) return 0;
  const auto whole = static_cast<int64_t>(std::lround(1 / (m * m)));
  return 1 / std::sqrt(static_cast<float>(whole)) == c.multipliers.attention ? whole : 0;
}

constexpr const char *kAct = "hidden_act", *kNewerAct = "hidden_activation",
                     *kTanh = "gelu_pytorch_tanh";

// Its first configs say "gelu", and mean the one by tanh as the others do.
void read_gemma1(const JsonReader& reader, ModelConfig& c) {
  for (const char* key : {kAct, kNewerAct}) {
    const auto name = reader.get<std::string>(key, kTanh);
    if (name != kTanh && !(key == kAct && name == "gelu"))
      refuse(reader, key, "only the GELU by tanh is of this family");
  }
  need_off(reader, kSees, "attention sees what is before only, only false");
  c.act = ops::Act::gelu_tanh;
}

void read_score_scale(const JsonReader& reader, ModelConfig& c) {
  need_off(reader, kSees, "attention sees what is before only, only false");
  c.multipliers.attention =
      1 / std::sqrt(static_cast<float>(reader.get_in<int64_t>(kScoreScale, 1, kMaxSize)));
}

void read_gemma2(const JsonReader& reader, ModelConfig& c) {
  need_to_stand(reader, kScoreCap, "what scores of attention are held below, or null");
  need_to_stand(reader, kLogitCap, "what logits are held below, or null");
  c.score_cap = read_cap(reader, kScoreCap);
  c.logit_cap = read_cap(reader, kLogitCap);
  read_score_scale(reader, c);
}

void read_gemma3(const JsonReader& reader, ModelConfig& c) {
  for (const char* key : {kLogitCap, kScoreCap})
    if (reader.has(key)) refuse(reader, key, "scores are not held back in this family, only null");
  read_score_scale(reader, c);
}

constexpr const char *kPerLayerWidth = "hidden_size_per_layer_input",
                     *kSharedLayers = "num_kv_shared_layers", *kFullWidth = "global_head_dim",
                     *kFullKvHeads = "num_global_key_value_heads",
                     *kKeysAreValues = "attention_k_eq_v", *kOwnSizes = "per_layer_config";

void read_gemma4(const JsonReader& reader, ModelConfig& c) {
  need_to_stand(reader, kPerLayerWidth, "the width of the embeddings of each layer, 0 for none");
  for (const char* key : {kPerLayerWidth, kSharedLayers})
    if (reader.get<int64_t>(key, 0) != 0)
      refuse(reader, key,
             "embeddings of each layer, and keys that layers share, are not supported, only 0");
  // Pictures may see both ways, a text does not.
  if (reader.has(kSees) && reader.get<std::string>(kSees) != "vision")
    refuse(reader, kSees, "attention sees what is before only, only null or \"vision\"");
  for (const char* key : {"vocab_size_per_layer_input", "use_double_wide_mlp"}) stands(reader, key);
  c.logit_cap = read_cap(reader, kLogitCap);
  c.multipliers.attention = 1;
  c.value_norm = c.layer_scale = true;
}

// Of one layer by "per_layer_config"; the other layers have the sizes of all.
FullAttention sizes_of(const JsonReader& of_layers, const ModelConfig& c, int64_t layer) {
  const std::string key = std::to_string(layer);
  FullAttention sizes = {c.kv_heads, c.head_width};
  if (!of_layers.has(key.c_str())) return sizes;
  const JsonReader own = of_layers.object(key.c_str());
  sizes.head_width = own.get_in<int64_t>("head_dim", 1, kMaxSize, c.head_width);
  sizes.kv_heads = own.get_in<int64_t>("num_key_value_heads", 1, kMaxSize, c.kv_heads);
  own.refuse_unknown();
  return sizes;
}

// What transformers 5 writes: sizes layer by layer.
FullAttention read_own_sizes(const JsonReader& reader, const ModelConfig& c) {
  const JsonReader of_layers = reader.object(kOwnSizes);
  FullAttention full = {c.kv_heads, c.head_width};
  bool seen = false;
  for (int64_t i = 0; i < c.layers; ++i) {
    const FullAttention sizes = sizes_of(of_layers, c, i),
                        wanted = c.has_window(i) ? FullAttention{c.kv_heads, c.head_width}
                                 : seen          ? full
                                                 : sizes;
    if (sizes.kv_heads != wanted.kv_heads || sizes.head_width != wanted.head_width)
      fail(
          "{}: by \"{}\" layer {} has {} key/value heads of width {}, where others of its kind "
          "have "
          "{} of {}; layers of a kind are alike here",
          reader.where(), kOwnSizes, i, sizes.kv_heads, sizes.head_width, wanted.kv_heads,
          wanted.head_width);
    if (c.has_window(i)) continue;
    full = sizes;
    seen = true;
  }
  of_layers.refuse_unknown();
  for (const char* key : {kFullWidth, kFullKvHeads}) stands(reader, key);
  return full;
}

}  // namespace

void read_gemma(const JsonReader& reader, ModelConfig& c, const Family& f) {
  c.multipliers.embedding = root_of_width(c);
  if (f.gemma == FamilyGemma::gemma) read_gemma1(reader, c);
  else if (f.gemma == FamilyGemma::gemma2) read_gemma2(reader, c);
  else if (f.gemma == FamilyGemma::gemma3) read_gemma3(reader, c);
  else read_gemma4(reader, c);
}

void read_gemma4_layers(const JsonReader& reader, ModelConfig& c) {
  if (c.has_window(c.layers - 1))
    fail(
        "{}: the last layer has a window; in this family it has none, whatever \"layer_types\" "
        "says",
        reader.where());
  need_to_stand(reader, "rope_parameters", "what turns in layers with a window and without");
  const bool keys_are_values = reader.get<bool>(kKeysAreValues, false);
  FullAttention full;
  if (reader.has(kOwnSizes)) {
    full = read_own_sizes(reader, c);
  } else {
    full.head_width = reader.get_in<int64_t>(kFullWidth, 1, kMaxSize, 512);
    full.kv_heads = reader.get_in<int64_t>(kFullKvHeads, 1, kMaxSize, c.kv_heads);
    if (!keys_are_values) full.kv_heads = c.kv_heads;
  }
  full.values_of_keys = keys_are_values;
  if (full.head_width == c.head_width) full.head_width = 0;
  if (full.kv_heads == c.kv_heads) full.kv_heads = 0;
  c.full = full;
}

void write_gemma(Json& json, const ModelConfig& c, const Family& f) {
  if (f.gemma == FamilyGemma::gemma) {
    json[kAct] = json[kNewerAct] = kTanh;
    return;
  }
  write_cap(json, kLogitCap, c.logit_cap);
  if (f.gemma != FamilyGemma::gemma4) {
    json[kScoreScale] = score_scale(c);
    return write_cap(json, kScoreCap, c.score_cap);
  }
  json[kPerLayerWidth] = json[kSharedLayers] = 0;
  json[kKeysAreValues] = c.full.values_of_keys;
  json[kFullWidth] = c.full.head_width > 0 ? c.full.head_width : c.head_width;
  json[kFullKvHeads] = c.full.kv_heads > 0 ? c.full.kv_heads : c.kv_heads;
}

std::string why_not_gemma(const ModelConfig& c, const Family& f) {
  const Multipliers& m = c.multipliers;
  if (m.embedding != root_of_width(c) || m.residual != 1 || m.logits != 1)
    return "its multipliers are others";
  if (f.gemma == FamilyGemma::gemma) {
    if (m.attention != 0) return "its scores have a multiplier";
    return c.act != ops::Act::gelu_tanh ? "its activation is no GELU by tanh" : "";
  }
  if (f.gemma != FamilyGemma::gemma4)
    return score_scale(c) == 0 ? "its scores are not over the root of a whole number" : "";
  if (m.attention != 1) return "its scores have a multiplier";
  if (!c.value_norm || !c.layer_scale) return "its values have no norm, or its layers no scale";
  if (c.branch_norms != (c.moe_layer_count() > 0)) return "its experts have no norms of their own";
  if (c.attention_window == 0 || c.has_window(c.layers - 1)) return "its last layer has a window";
  return c.full.kv_heads > 0 && !c.full.values_of_keys
             ? "layers without a window have other key/value heads"
             : "";
}

}  // namespace moe
