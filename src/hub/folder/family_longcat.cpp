// LongCat-Flash's layers and experts (transformers:longcat_flash/configuration_longcat_flash.py and
// modeling_longcat_flash.py). A layer of its has two attentions and two dense FFNs one behind
// another, and experts that see what the first FFN sees and join at the end. Here it is two layers:
// one that routes, whose shared expert is the first FFN, and a dense one.
#include <cmath>
#include <nlohmann/json.hpp>

#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kLongcatLayers = "num_layers", *kLongcatZero = "zero_expert_num",
                     *kLongcatScale = "routed_scaling_factor",
                     *kLongcatHidden = "num_hidden_layers";

// A softmax over all, a selection bias, and weights that are scaled as they are; no loss.
std::string longcat_stages(float scale) {
  return Json{{"select", {{"type", "top_k"}, {"bias", true}}},
              {"weigh", {{"type", "scores"}, {"scale", shortest_decimal(scale)}}}}
      .dump();
}

float longcat_scale(const RoutingOptions& routing) {
  const RoutingSpec spec = train_spec(routing);
  const auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
  return weigh ? weigh->scale : 1;
}

float longcat_factor(const ModelConfig& c, int64_t latents) {
  return static_cast<float>(std::sqrt(static_cast<double>(c.width) / static_cast<double>(latents)));
}

}  // namespace

void read_longcat_layers(const JsonReader& reader, ModelConfig& c) {
  const auto layers = reader.get_in<int64_t>(kLongcatLayers, 1, kMaxLayers / 2);
  c.layers = 2 * layers;
  if (const auto said = reader.get<int64_t>(kLongcatHidden, c.layers);
      said != c.layers && said != layers)
    refuse(reader, kLongcatHidden, "\"num_layers\" is neither that nor half of it");
}

void read_longcat_latents(ModelConfig& c) {
  c.latent.factor = longcat_factor(c, c.latent.width);
  c.latent.query_factor = longcat_factor(c, c.latent.query_width);
}

void read_longcat_experts(const JsonReader& reader, ModelConfig& c) {
  need_to_stand(reader, kLongcatZero, "the number of zero experts, or null where there are none");
  c.routing.zero_experts = reader.get_in<int64_t>(kLongcatZero, 0, kMaxSize, 0);
  float scale = 1;
  FieldReader(reader).number(kLongcatScale, scale, 0);
  c.routing.recipe = kCustom;
  c.routing.stages = longcat_stages(scale);
  c.moe_every = 2;
  c.shared_experts = 1;
  c.shared_width = c.dense_width;
  c.shortcut = true;
}

void write_longcat_experts(Json& json, const ModelConfig& c) {
  json[kLongcatLayers] = c.layers / 2;
  json[kLongcatZero] = c.routing.zero_experts;
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["head_dim"] = c.rotary_width;  // by which its angles are made
  FieldWriter(json).number(kLongcatScale, longcat_scale(c.routing), 0);
}

std::string why_not_longcat_experts(const ModelConfig& c) {
  if (c.latent.query_width == 0 || c.latent.factor != longcat_factor(c, c.latent.width) ||
      c.latent.query_factor != longcat_factor(c, c.latent.query_width))
    return "its latents have no factors that their widths give";
  if (!c.shortcut) return "what its experts give joins at once";
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_moe(i) != (i % 2 == 0) || c.layers % 2 != 0)
      return "not every second of its layers has experts";
  if (c.shared_experts != 1 || c.shared_gate || c.shared_width != c.dense_width)
    return "it has not one shared expert as wide as its dense FFNs, without a gate";
  if (c.routing.recipe != kCustom || c.routing.stages != longcat_stages(longcat_scale(c.routing)))
    return fmt::format("recipe '{}' weighs experts otherwise", c.routing.recipe);
  return "";
}

}  // namespace moe
