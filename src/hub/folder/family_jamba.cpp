// The keys of Jamba (transformers:jamba/configuration_jamba.py): each so manyth layer has
// attention, in which nothing turns, and the others a selective scan; each so manyth routes, and
// the others are dense.
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

// Of which layers something is so: one in so many, and the first of them.
struct JambaKeys {
  const char *period, *offset;
};
constexpr JambaKeys kJambaAttention = {"attn_layer_period", "attn_layer_offset"},
                    kJambaRouting = {"expert_layer_period", "expert_layer_offset"};
constexpr const char *kJambaRank = "mamba_dt_rank", *kJambaTimes = "mamba_expand",
                     *kJambaCount = "num_experts", *kJambaTopK = "num_experts_per_tok",
                     *kJambaScans[] = {"mamba", "linear_attention"},
                     *kJambaAttends[] = {"attention", "full_attention"};

template <class Visitor, class Config>
void visit_jamba(Visitor& v, Config& c) {
  v.size("mamba_d_state", c.scan.states, 1);
  v.size("mamba_d_conv", c.scan.conv_width, 2);
  v.flag("mamba_conv_bias", c.scan.conv_bias);
}

std::vector<int64_t> jamba_layers(const JsonReader& reader, const ModelConfig& c,
                                  const JambaKeys& keys) {
  const auto period = reader.get_in<int64_t>(keys.period, 1, kMaxSize),
             offset = reader.get_in<int64_t>(keys.offset, 0, kMaxSize);
  if (offset >= period)
    fail("{}: \"{}\" is {}, \"{}\" {}; the first must be below the second", reader.where(),
         keys.offset, offset, keys.period, period);
  std::vector<int64_t> layers;
  for (int64_t i = offset; i < c.layers; i += period) layers.push_back(i);
  return layers;
}

// What says that these are the layers of so many; a period of 0 where nothing does.
struct JambaPeriod {
  int64_t period = 0, offset = 0;
};
JambaPeriod jamba_period(const std::vector<int64_t>& layers, int64_t of) {
  if (layers.empty()) return {of + 1, of};
  const JambaPeriod made = {layers.size() > 1 ? layers[1] - layers[0] : of, layers[0]};
  std::vector<int64_t> said;
  for (int64_t i = made.offset; i < of; i += made.period) said.push_back(i);
  return said == layers && made.offset < made.period ? made : JambaPeriod{};
}

JambaPeriod jamba_attention(const ModelConfig& c) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) != Mixer::scan) layers.push_back(i);
  return jamba_period(layers, c.layers);
}
JambaPeriod jamba_experts(const ModelConfig& c) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.is_moe(i)) layers.push_back(i);
  return jamba_period(layers, c.layers);
}

// "auto" is a sixteenth of the model's width, rounded up.
int64_t jamba_rank(const JsonReader& reader, const ModelConfig& c) {
  constexpr int64_t kShare = 16;
  if (reader.has(kJambaRank) && reader.value(kJambaRank) == Json("auto"))
    return (c.width + kShare - 1) / kShare;
  return reader.get_in<int64_t>(kJambaRank, 1, kMaxSize);
}

void read_jamba_layers(const JsonReader& reader, ModelConfig& c) {
  const std::vector<int64_t> attending = jamba_layers(reader, c, kJambaAttention);
  for (int64_t i = 0; i < c.layers; ++i)
    if (std::ranges::find(attending, i) == attending.end()) c.scan_layers.push_back(i);
  for (const char* key : {"layers_block_type", "layer_types"}) {
    if (!reader.has(key)) continue;
    const auto types = reader.get<std::vector<std::string>>(key);
    if (layers_of_type(reader, c, key, types, kJambaScans, kJambaAttends) != c.scan_layers)
      refuse(reader, key, "\"attn_layer_period\" and \"attn_layer_offset\" say other layers");
  }
  if (c.scan_layers.empty()) c.scan = {};
}

}  // namespace

// One expert is an FFN without a router.
void read_jamba(const JsonReader& reader, ModelConfig& c) {
  constexpr int64_t kMost = 1024;
  FieldReader fields(reader);
  visit_jamba(fields, c);
  c.scan.groups = c.scan.width = 1;
  c.scan.heads = reader.get_in<int64_t>(kJambaTimes, 1, kMost) * c.width;
  c.scan.step_rank = jamba_rank(reader, c);
  need_off(reader, "mamba_proj_bias", "projections of state spaces have no biases here");
  read_jamba_layers(reader, c);
  const bool other = reader.has("num_local_experts") && !reader.has(kJambaCount);
  const char* count = other ? "num_local_experts" : kJambaCount;
  const std::vector<int64_t> routing = jamba_layers(reader, c, kJambaRouting);
  if (reader.get_in<int64_t>(count, 1, kMaxSize) > 1) c.moe_layers = routing;
  if (!c.moe_layers.empty()) return;
  for (const char* key : {kJambaTopK, "router_aux_loss_coef"}) stands(reader, key);
}

void write_jamba(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_jamba(fields, c);
  json[kJambaTimes] = c.scan.values() / c.width;
  json[kJambaRank] = c.scan.step_rank;
  json["mamba_proj_bias"] = false;
  const JambaPeriod attention = jamba_attention(c), experts = jamba_experts(c);
  json[kJambaAttention.period] = attention.period;
  json[kJambaAttention.offset] = attention.offset;
  json[kJambaRouting.period] = experts.period;
  json[kJambaRouting.offset] = experts.offset;
  if (c.moe_layer_count() > 0) return;
  for (const char* key : {kJambaCount, kJambaTopK}) json[key] = 1;
}

std::string why_not_jamba(const ModelConfig& c) {
  const StateSpace& s = c.scan;
  if (!s.selective()) return "steps of its state spaces are not made of few numbers";
  if (!s.norm) return "what steps of its state spaces are made of is not normalised";
  if (std::string reason = why_not_times(c); !reason.empty()) return reason;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention && c.attention(i).rotary_width > 0)
      return fmt::format("in layer {} something turns", i);
  if (jamba_attention(c).period == 0) return "its layers with attention are not each so manyth";
  if (jamba_experts(c).period == 0) return "its layers that route are not each so manyth";
  const int64_t routing = c.moe_layer_count();
  if (routing > 0 && c.routing.experts == 1) return "its layers that route have one expert";
  return routing > 0 && routing < c.layers && c.dense_width != c.expert_width
             ? "its dense FFNs are not as wide as its experts"
             : "";
}

}  // namespace moe
