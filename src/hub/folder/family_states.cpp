// The keys of layers that have a state space in place of attention, and whether what attention
// there is turns (transformers:granitemoehybrid/configuration_granitemoehybrid.py,
// bamba/configuration_bamba.py, falcon_h1/configuration_falcon_h1.py).
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

// As published; transformers 5 writes the second of each.
constexpr const char *kStateWords[] = {"mamba", "linear_attention"},
                     *kAttentionWords[] = {"attention", "full_attention"};
constexpr const char *kLayerKinds = "layer_types", *kOlderKinds = "layers_block_type",
                     *kHeadWidth = "mamba_d_head", *kTimes = "mamba_expand",
                     *kLimits = "time_step_limit", *kAttentionTurns = "position_embedding_type",
                     *kAttentionLayers = "attn_layer_indices", *kTurningOfHead = "attn_rotary_emb",
                     *kValuesOfAll = "mamba_d_ssm", *kNormalised = "mamba_rms_norm",
                     *kNormFirst = "mamba_norm_before_gate";

template <class Visitor, class Config>
void visit_states(Visitor& v, Config& c) {
  v.size("mamba_n_heads", c.scan.heads, 1);
  v.size("mamba_n_groups", c.scan.groups, 1);
  v.size("mamba_d_state", c.scan.states, 1);
  v.size("mamba_d_conv", c.scan.conv_width, 2);
  v.flag("mamba_conv_bias", c.scan.conv_bias);
}

std::vector<int64_t> state_layers(const JsonReader& reader, const ModelConfig& c) {
  const bool older = reader.has(kOlderKinds);
  const char* key = older && !reader.has(kLayerKinds) ? kOlderKinds : kLayerKinds;
  const auto types = reader.get<std::vector<std::string>>(key);
  if (older && reader.get<std::vector<std::string>>(kOlderKinds) != types)
    refuse(reader, kOlderKinds, "\"layer_types\" says others; make them equal");
  return layers_of_type(reader, c, key, types, kStateWords, kAttentionWords);
}

// Heads are as wide as they have to be where nothing or "auto" is said of it; `said`: "mamba_d_ssm"
// says how wide all of them are.
void read_head_width(const JsonReader& reader, ModelConfig& c, bool said) {
  constexpr int64_t kMost = 1024;
  if (said) stands(reader, kTimes);
  const int64_t values = said ? reader.get_in<int64_t>(kValuesOfAll, 1, kMaxSize)
                              : reader.get_in<int64_t>(kTimes, 1, kMost) * c.width;
  if (values % c.scan.heads != 0)
    fail("{}: \"mamba_n_heads\" is {}, which does not divide \"{}\"{}, {}", reader.where(),
         c.scan.heads, said ? kValuesOfAll : kTimes, said ? "" : " times \"hidden_size\"", values);
  c.scan.width = values / c.scan.heads;
  if (!reader.has(kHeadWidth) || reader.value(kHeadWidth) == Json("auto")) return;
  if (reader.get<int64_t>(kHeadWidth) != c.scan.width)
    refuse(reader, kHeadWidth,
           said ? "heads of it do not make up \"mamba_d_ssm\""
                : "heads of it do not make up \"mamba_expand\" times \"hidden_size\"");
}

// Bamba's: all layers but these.
std::vector<int64_t> layers_but_listed(const JsonReader& reader, const ModelConfig& c) {
  need_to_stand(reader, kAttentionLayers, "the layers that have attention, or null for none");
  std::vector<bool> attends(static_cast<size_t>(c.layers));
  if (reader.has(kAttentionLayers))
    for (const int64_t layer : reader.get<std::vector<int64_t>>(kAttentionLayers)) {
      if (layer < 0 || layer >= c.layers)
        fail("{}: \"{}\" lists layer {}; the model has layers 0 to {}", reader.where(),
             kAttentionLayers, layer, c.layers - 1);
      attends[static_cast<size_t>(layer)] = true;
    }
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i)
    if (!attends[static_cast<size_t>(i)]) layers.push_back(i);
  return layers;
}

// transformers takes half of a head whatever stands here (transformers:bamba/
// configuration_bamba.py), which other programs read.
void check_turning_half(const JsonReader& reader, const ModelConfig& c) {
  if (reader.has(kTurningOfHead) &&
      2 * reader.get_in<int64_t>(kTurningOfHead, 0, kMaxSize) != c.head_width)
    refuse(reader, kTurningOfHead, "half of each head turns in this family");
}

void read_whether_turns(const JsonReader& reader, ModelConfig& c) {
  need_to_stand(reader, kAttentionTurns,
                "\"rope\" where attention turns, \"nope\" where nothing does");
  const auto turning = reader.get<std::string>(kAttentionTurns, "nope");
  if (turning == "rope") return;
  if (turning != "nope") refuse(reader, kAttentionTurns, "rope and nope are known");
  nothing_turns(c);
}

bool says_values_of_all(const JsonReader& reader) {
  need_to_stand(reader, kValuesOfAll,
                "how wide all heads of a state space are, or null for what \"mamba_expand\" says");
  return reader.has(kValuesOfAll);
}

}  // namespace

// transformers 5 writes a number without end as an object; what was written before it is read as
// one too (hub/folder/config_json.cpp).
void check_step_limits(const JsonReader& reader) {
  if (!reader.has(kLimits)) return;
  if (reader.value(kLimits) != Json::array({0.0, {{"__float__", "Infinity"}}}))
    refuse(reader, kLimits, "steps of a state space have no limits here, only from 0 to infinity");
}

namespace {

// `sums`: "mamba_d_ssm" may say how wide all heads are.
void read_scan(const JsonReader& reader, ModelConfig& c, bool sums = false) {
  FieldReader fields(reader);
  visit_states(fields, c);
  read_head_width(reader, c, sums && says_values_of_all(reader));
  check_step_limits(reader);
  need_off(reader, "mamba_proj_bias", "projections of state spaces have no biases here");
  stands(reader, "mamba_chunk_size");  // of a way to compute it
}

// transformers checks the sizes also where no layer has them. Returns what is written.
StateSpace write_scan(Json& json, const ModelConfig& c) {
  ModelConfig of;
  of.scan = c.scan.present() ? c.scan
                             : StateSpace{.heads = 1,
                                          .groups = 1,
                                          .width = c.width,
                                          .states = 1,
                                          .conv_width = 4,
                                          .conv_bias = true};
  FieldWriter fields(json);
  visit_states(fields, of);
  json[kHeadWidth] = of.scan.width;
  json["mamba_proj_bias"] = false;
  return of.scan;
}

}  // namespace

std::string why_not_times(const ModelConfig& c) {
  return c.scan.values() % c.width == 0
             ? ""
             : "its state spaces are not a whole number of times as wide as the model";
}

void read_granite_states(const JsonReader& reader, ModelConfig& c) {
  read_scan(reader, c);
  c.scan_layers = state_layers(reader, c);
  if (c.scan_layers.empty()) c.scan = {};
  read_whether_turns(reader, c);
}

void write_granite_states(Json& json, const ModelConfig& c) {
  const StateSpace scan = write_scan(json, c);
  json[kTimes] = scan.values() / c.width;
  for (int64_t i = 0; i < c.layers; ++i)
    json[kLayerKinds].push_back(c.mixer(i) == Mixer::scan ? kStateWords[0] : kAttentionWords[0]);
  json[kAttentionTurns] = c.attention_turns() ? "rope" : "nope";
}

std::string why_not_granite_states(const ModelConfig& c) {
  if (std::string reason = why_not_times(c); !reason.empty()) return reason;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention && (c.attention(i).rotary_width > 0) != c.attention_turns())
      return "in some of its layers nothing turns";
  return "";
}

void read_bamba_states(const JsonReader& reader, ModelConfig& c) {
  read_scan(reader, c);
  c.scan_layers = layers_but_listed(reader, c);
  if (c.scan_layers.empty()) c.scan = {};
  check_turning_half(reader, c);
}

void write_bamba_states(Json& json, const ModelConfig& c) {
  const StateSpace scan = write_scan(json, c);
  json[kTimes] = scan.values() / c.width;
  json[kAttentionLayers] = Json::array();
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention) json[kAttentionLayers].push_back(i);
}

std::string why_not_bamba_states(const ModelConfig& c) {
  if (std::string reason = why_not_times(c); !reason.empty()) return reason;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention && 2 * c.attention(i).rotary_width != c.head_width)
      return "of its attention another part of each head than half turns";
  return "";
}

void read_falcon_states(const JsonReader& reader, ModelConfig& c) {
  read_scan(reader, c, true);
  c.scan.norm = reader.get<bool>(kNormalised);
  stands(reader, kNormFirst);
  if (c.scan.norm && reader.get<bool>(kNormFirst))
    refuse(reader, kNormFirst, "state spaces are gated before the norm here, only false");
  c.scan_beside = true;
  for (int64_t i = 0; i < c.layers; ++i) c.scan_layers.push_back(i);
  read_falcon_factors(reader, c);
}

void write_falcon_states(Json& json, const ModelConfig& c) {
  const StateSpace scan = write_scan(json, c);
  json[kValuesOfAll] = scan.values();
  json[kNormalised] = scan.norm;
  json[kNormFirst] = false;
  write_falcon_factors(json, c);
}

std::string why_not_falcon_states(const ModelConfig& c) {
  if (!c.scan_beside) return "attention does not stand beside its state spaces";
  if (std::ssize(c.scan_layers) != c.layers) return "some of its layers have no state space";
  return why_not_falcon_factors(c.multipliers);
}

}  // namespace moe
