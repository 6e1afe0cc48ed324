// The multipliers of MiniCPM3 in its words (transformers:minicpm3/configuration_minicpm3.py,
// modeling_minicpm3.py): of the embedding; of what a sublayer adds, times the root of the number of
// layers; and the width that logits are as large as.
#include <cmath>

#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kScaleOfEmbedding = "scale_emb", *kScaleOfDepth = "scale_depth",
                     *kBaseWidth = "dim_model_base";

double root_of_layers(const ModelConfig& c) { return std::sqrt(static_cast<double>(c.layers)); }

float logits_by(const ModelConfig& c, int64_t base) {
  return static_cast<float>(static_cast<double>(c.width) / static_cast<double>(base));
}

// The whole number that makes logits what they are divided by; 0: there is none.
int64_t base_width(const ModelConfig& c) {
  const double base = static_cast<double>(c.width) / static_cast<double>(c.multipliers.logits);
  if (!(base >= 1 && base <= static_cast<double>(kMaxSize))) return 0;
  const auto whole = static_cast<int64_t>(std::lround(base));
  return logits_by(c, whole) == c.multipliers.logits ? whole : 0;
}

}  // namespace

void read_minicpm(const JsonReader& reader, ModelConfig& c) {
  FieldReader(reader).number(kScaleOfEmbedding, c.multipliers.embedding, FLT_MIN);
  need_to_stand(reader, kScaleOfDepth,
                "what sublayers add times the root of the number of layers, or null for that root");
  if (reader.has(kScaleOfDepth))
    c.multipliers.residual = static_cast<float>(
        reader.get_in<double>(kScaleOfDepth, FLT_MIN, FLT_MAX) / root_of_layers(c));
  need_to_stand(reader, kBaseWidth, "the width whose logits are as they are, or null for its own");
  if (reader.has(kBaseWidth))
    c.multipliers.logits = logits_by(c, reader.get_in<int64_t>(kBaseWidth, 1, kMaxSize));
}

void write_minicpm(Json& json, const ModelConfig& c) {
  FieldWriter(json).number(kScaleOfEmbedding, c.multipliers.embedding, FLT_MIN);
  json[kScaleOfDepth] = static_cast<double>(c.multipliers.residual) * root_of_layers(c);
  json[kBaseWidth] = base_width(c);
}

std::string why_not_minicpm(const ModelConfig& c) {
  if (c.multipliers.attention != 0) return "its scores have a multiplier";
  return base_width(c) == 0 ? "its logits are not as large as those of another width" : "";
}

}  // namespace moe
