// The words of MiniMax-Text-01 and MiniMax-M1 for which layers have lightning attention and for the
// factors of their residuals (transformers:minimax/configuration_minimax.py). They were published
// under others (huggingface MiniMaxAI/MiniMax-Text-01, MiniMax-M1-80k).
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

constexpr const char *kLightningTypes = "layer_types", *kLightningType = "linear_attention",
                     *kSoftmaxType = "full_attention", *kLightningList = "attn_type_list",
                     *kLightningPost = "postnorm";
constexpr float kLightningEps = 1e-6f;  // of the class's norms where it is not told another

struct SumKey {
  const char *name, *published;
  Multipliers::Sum Multipliers::*of;
  float Multipliers::Sum::*part;
};
constexpr SumKey kSumKeys[] = {
    {"full_attn_alpha_factor", "layernorm_full_attention_alpha", &Multipliers::attention_sum,
     &Multipliers::Sum::kept},
    {"full_attn_beta_factor", "layernorm_full_attention_beta", &Multipliers::attention_sum,
     &Multipliers::Sum::added},
    {"linear_attn_alpha_factor", "layernorm_linear_attention_alpha", &Multipliers::lightning_sum,
     &Multipliers::Sum::kept},
    {"linear_attn_beta_factor", "layernorm_linear_attention_beta", &Multipliers::lightning_sum,
     &Multipliers::Sum::added},
    {"mlp_alpha_factor", "layernorm_mlp_alpha", &Multipliers::ffn_sum, &Multipliers::Sum::kept},
    {"mlp_beta_factor", "layernorm_mlp_beta", &Multipliers::ffn_sum, &Multipliers::Sum::added}};

float read_sum(const JsonReader& reader, const SumKey& key) {
  const auto factor = [&](const char* name, double otherwise) {
    return reader.get_in<double>(name, FLT_MIN, FLT_MAX, otherwise);
  };
  const double published = factor(key.published, 1);
  if (reader.has(key.published) && factor(key.name, published) != published)
    refuse(reader, key.name,
           fmt::format("\"{}\" says another number; make them equal", key.published).c_str());
  return static_cast<float>(factor(key.name, published));
}

// Of each layer a word; as published a number, 1 where attention is one of a softmax.
std::vector<std::string> lightning_types(const JsonReader& reader, const ModelConfig& c) {
  if (!reader.has(kLightningList)) return reader.get<std::vector<std::string>>(kLightningTypes);
  std::vector<std::string> types;
  for (const int64_t softmax : zeros_and_ones(reader, c, kLightningList))
    types.emplace_back(softmax == 1 ? kSoftmaxType : kLightningType);
  if (reader.has(kLightningTypes) && reader.get<std::vector<std::string>>(kLightningTypes) != types)
    refuse(reader, kLightningTypes, "\"attn_type_list\" lists other layers; make them equal");
  return types;
}

}  // namespace

void read_lightning(const JsonReader& reader, ModelConfig& c) {
  const char *lightning[] = {kLightningType}, *softmax[] = {kSoftmaxType};
  c.lightning_layers =
      layers_of_type(reader, c, kLightningTypes, lightning_types(reader, c), lightning, softmax);
  c.lightning_norm_eps = kLightningEps;
  // The code that lies with published weights adds to what is before the norm where it is not said.
  if (reader.has(kLightningList))
    need_to_stand(reader, kLightningPost, "true, for residuals that norms give");
  if (!reader.get<bool>(kLightningPost, true))
    refuse(reader, kLightningPost, "residuals of this family are what norms give, only true");
  for (const SumKey& key : kSumKeys) c.multipliers.*key.of.*key.part = read_sum(reader, key);
}

void write_lightning(Json& json, const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i)
    json[kLightningTypes].push_back(c.mixer(i) == Mixer::lightning ? kLightningType : kSoftmaxType);
  FieldWriter fields(json);
  for (const SumKey& key : kSumKeys) fields.number(key.name, c.multipliers.*key.of.*key.part, 0);
}

std::string why_not_lightning(const ModelConfig& c) {
  if (!c.lightning_layers.empty() && c.lightning_norm_eps != kLightningEps)
    return "the norm in its lightning attention has another epsilon than 1e-6";
  Multipliers others = c.multipliers;
  others.attention_sum = others.lightning_sum = others.ffn_sum = {};
  if (!others.none()) return "it has multipliers";
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention && c.attention(i).rotary_width == 0)
      return fmt::format("in layer {} nothing turns", i);
  return "";
}

}  // namespace moe
