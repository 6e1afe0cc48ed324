// What the rows of mixer_rows.h have in common, and the keys of those that tell layers of linear
// attention or of a convolution from attention by the words of one list (transformers:qwen3_next/
// configuration_qwen3_next.py, kimi_linear/configuration_kimi_linear.py,
// olmo_hybrid/configuration_olmo_hybrid.py, lfm2_moe/configuration_lfm2_moe.py,
// lfm2/configuration_lfm2.py).
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

constexpr const char *kTypes = "layer_types", *kFull = "full_attention",
                     *kLinearType = "linear_attention", *kConvType = "conv";

std::vector<int64_t> layers_called(const JsonReader& reader, const ModelConfig& c,
                                   const std::vector<std::string>& types, const char* other) {
  const char *others[] = {other}, *attention[] = {kFull};
  return layers_of_type(reader, c, kTypes, types, others, attention);
}

std::vector<std::string> listed_types(const JsonReader& reader) {
  return reader.get<std::vector<std::string>>(kTypes);
}

void write_types(Json& json, const ModelConfig& c, const char* other) {
  for (int64_t i = 0; i < c.layers; ++i)
    json[kTypes].push_back(c.mixer(i) == Mixer::attention ? kFull : other);
}

template <class Visitor, class Config>
void visit_linear(Visitor& v, Config& c) {
  v.size("linear_conv_kernel_dim", c.linear.conv_width, 2);
  v.size("linear_key_head_dim", c.linear.key_width, 1);
  v.size("linear_value_head_dim", c.linear.value_width, 1);
  v.size("linear_num_key_heads", c.linear.key_heads, 1);
  v.size("linear_num_value_heads", c.linear.value_heads, 1);
}

// Where there are none nothing is left of their sizes.
void take_linear_layers(const JsonReader& reader, ModelConfig& c,
                        const std::vector<std::string>& types) {
  c.linear_layers = layers_called(reader, c, types, kLinearType);
  if (c.linear_layers.empty()) c.linear = {};
}

}  // namespace

std::vector<int64_t> layers_of_type(const JsonReader& reader, const ModelConfig& c, const char* key,
                                    const std::vector<std::string>& types,
                                    std::span<const char* const> words,
                                    std::span<const char* const> rest) {
  if (std::ssize(types) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), key,
         types.size(), c.layers);
  const auto is_one_of = [](std::span<const char* const> all, const std::string& word) {
    return std::ranges::find(all, word) != all.end();
  };
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if (is_one_of(words, type)) layers.push_back(i);
    else if (!is_one_of(rest, type))
      fail("{}: \"{}\" has \"{}\" at layer {}; {} and {} are known", reader.where(), key,
           printable(type), i, words[0], rest[0]);
  }
  return layers;
}

void read_qwen3_next_mixers(const JsonReader& reader, ModelConfig& c) {
  FieldReader fields(reader);
  visit_linear(fields, c);
  need_off(reader, "attention_bias", "biases of this family are not supported");
  need_off(reader, "use_sliding_window", "no layer of this family has a window, only false");
  if (!reader.get<bool>("attn_output_gate", true))
    refuse(reader, "attn_output_gate", "attention of this family has a gate, only true");
  const auto interval = reader.get_in<int64_t>("full_attention_interval", 1, kMaxLayers, 4);
  std::vector<std::string> types;
  if (reader.has(kTypes)) types = listed_types(reader);
  else
    for (int64_t i = 0; i < c.layers; ++i)
      types.emplace_back((i + 1) % interval == 0 ? kFull : kLinearType);
  take_linear_layers(reader, c, types);
}

void write_qwen3_next_mixers(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_linear(fields, c);
  json["attention_bias"] = false;
  write_types(json, c, kLinearType);
}

namespace {

// Kimi's published configs have what is of linear attention in an object, which counts layers from
// 1; transformers writes the same, or what it says, by keys of its own.
constexpr const char *kKimiObject = "linear_attn_config", *kKimiLinearAt = "kda_layers",
                     *kKimiFullAt = "full_attn_layers";

std::vector<std::string> kimi_types(const JsonReader& reader, const ModelConfig& c) {
  const bool listed = reader.has(kTypes);
  std::vector<std::string> types;
  if (listed) types = listed_types(reader);
  else
    for (int64_t i = 0; i < c.layers; ++i)
      types.emplace_back(i > 0 && i % 4 == 0 ? kFull : kLinearType);
  if (!reader.has(kKimiObject)) return types;
  const JsonReader own = reader.object(kKimiObject);
  std::vector<std::string> counted(static_cast<size_t>(c.layers));
  for (const auto& [key, type] : {std::pair{kKimiLinearAt, kLinearType}, {kKimiFullAt, kFull}})
    for (const int64_t layer : own.get<std::vector<int64_t>>(key)) {
      if (layer < 1 || layer > c.layers || !counted[static_cast<size_t>(layer - 1)].empty())
        fail("{}: \"{}\" lists layer {}; each of 1 to {} stands once, in it or in the other list",
             own.where(), key, layer, c.layers);
      counted[static_cast<size_t>(layer - 1)] = type;
    }
  own.refuse_unknown({"head_dim", "num_heads", "short_conv_kernel_size"});
  if (std::ranges::find(counted, "") != counted.end())
    fail("{}: \"{}\" and \"{}\" do not list all of the {} layers", own.where(), kKimiLinearAt,
         kKimiFullAt, c.layers);
  if (listed && types != counted)
    refuse(reader, kTypes, "\"linear_attn_config\" lists other layers; make them equal");
  return counted;
}

}  // namespace

void read_kimi_mixers(const JsonReader& reader, ModelConfig& c) {
  constexpr std::pair<const char*, const char*> kKeys[] = {
      {"head_dim", "linear_head_dim"},
      {"num_heads", "linear_num_heads"},
      {"short_conv_kernel_size", "linear_conv_kernel_dim"}};
  int64_t sizes[std::size(kKeys)];
  for (size_t i = 0; i < std::size(kKeys); ++i) {
    const auto& [key, flat] = kKeys[i];
    const int64_t least = i == 2 ? 2 : 1;
    if (!reader.has(kKimiObject)) {
      sizes[i] = reader.get_in<int64_t>(flat, least, kMaxSize);
      continue;
    }
    sizes[i] = reader.object(kKimiObject).get_in<int64_t>(key, least, kMaxSize);
    if (reader.get<int64_t>(flat, sizes[i]) != sizes[i])
      refuse(reader, flat, "\"linear_attn_config\" says another number; make them equal");
  }
  c.linear = {.key_heads = sizes[1],
              .value_heads = sizes[1],
              .key_width = sizes[0],
              .value_width = sizes[0],
              .conv_width = sizes[2],
              .gate_width = sizes[0]};
  c.linear_layers = layers_called(reader, c, kimi_types(reader, c), kLinearType);
}

void write_kimi_mixers(Json& json, const ModelConfig& c) {
  Json own = {{"head_dim", c.linear.key_width},
              {"num_heads", c.linear.key_heads},
              {"short_conv_kernel_size", c.linear.conv_width},
              {kKimiLinearAt, Json::array()},
              {kKimiFullAt, Json::array()}};
  for (int64_t i = 0; i < c.layers; ++i)
    own[c.is_linear(i) ? kKimiLinearAt : kKimiFullAt].push_back(i + 1);
  json[kKimiObject] = std::move(own);
  json["mla_use_nope"] = true;
}

std::string why_not_kimi_mixers(const ModelConfig& c) {
  const LinearAttention& l = c.linear;
  if (l.key_heads != l.value_heads || l.key_width != l.value_width || l.gate_width != l.key_width)
    return "keys, values and gates of its linear attention are of different sizes";
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.mixer(i) == Mixer::attention && c.attention(i).rotary_width > 0)
      return fmt::format("in layer {} something turns", i);
  return "";
}

namespace {

// OLMo Hybrid's; the epsilon of its heads' norm is a constant (transformers:olmo_hybrid/
// modeling_olmo_hybrid.py).
constexpr const char* kNegative = "linear_allow_neg_eigval";
constexpr float kHeadsEps = 1e-5f;

}  // namespace

void read_olmo_mixers(const JsonReader& reader, ModelConfig& c) {
  FieldReader fields(reader);
  visit_linear(fields, c);
  fields.flag(kNegative, c.linear.negative);
  c.linear.norm_eps = kHeadsEps;
  c.states_pre_norm = true;
  take_linear_layers(reader, c, listed_types(reader));
}

void write_olmo_mixers(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_linear(fields, c);
  fields.flag(kNegative, c.linear.negative);
  write_types(json, c, kLinearType);
}

std::string why_not_olmo_mixers(const ModelConfig& c) {
  if (!c.states_pre_norm) return "norms of its layers without attention stand where the others do";
  if ((c.linear.norm_eps > 0 ? c.linear.norm_eps : c.norm_eps) != kHeadsEps)
    return "the norm in its linear attention has another epsilon";
  bool attends = false;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.mixer(i) != Mixer::attention) continue;
    attends = true;
    if ((c.attention(i).rotary_width > 0) != c.attention_turns())
      return "in some of its layers nothing turns";
  }
  if (!attends) return "none of its layers has attention";
  if (!c.attention_turns() && c.rope_scaling.kind != RopeScaling::Kind::none)
    return "its rotary frequencies are scaled";
  return "";
}

namespace {

// LFM2's first configs list the layers that have attention.
constexpr const char* kAttentionAt = "full_attn_idxs";

std::vector<std::string> types_by_index(const JsonReader& reader, const ModelConfig& c) {
  const auto listed = reader.get<std::vector<int64_t>>(kAttentionAt);
  std::vector<std::string> types;
  for (int64_t i = 0; i < c.layers; ++i)
    types.emplace_back(std::ranges::find(listed, i) != listed.end() ? kFull : kConvType);
  return types;
}

// Which of a width as it was written FFNs have, and multiples of what.
constexpr const char *kAdjusts = "block_auto_adjust_ff_dim", *kFactor = "block_ffn_dim_multiplier",
                     *kMultipleOf = "block_multiple_of", *kWidth = "intermediate_size",
                     *kOlderWidth = "block_ff_dim";

}  // namespace

// The sizes of heads are those of all; of other keys the first configs had two forms.
void read_lfm2_mixers(const JsonReader& reader, ModelConfig& c) {
  c.conv_width = reader.get_in<int64_t>("conv_L_cache", 2, kMaxSize);
  need_off(reader, "conv_bias", "convolutions with biases are not supported");
  if (reader.get<int64_t>("num_heads", c.heads) != c.heads)
    refuse(reader, "num_heads", "\"num_attention_heads\" is another number");
  c.tied = reader.get<bool>("tie_embedding", c.tied);
  if (!reader.get<bool>("use_pos_enc", true))
    refuse(reader, "use_pos_enc", "queries and keys of this family are turned, only true");
  const bool by_index = !reader.has(kTypes) && reader.has(kAttentionAt);
  c.conv_layers = layers_called(
      reader, c, by_index ? types_by_index(reader, c) : listed_types(reader), kConvType);
  if (c.conv_layers.empty()) c.conv_width = 0;
}

void write_lfm2_mixers(Json& json, const ModelConfig& c) {
  json["conv_L_cache"] = c.conv_width;
  json["conv_bias"] = false;
  write_types(json, c, kConvType);
}

// transformers:lfm2/modeling_lfm2.py, Lfm2MLP.
int64_t read_lfm2_width(const JsonReader& reader) {
  reader.has(kWidth);  // the older key goes before it
  const auto width =
      reader.get_in<int64_t>(reader.has(kOlderWidth) ? kOlderWidth : kWidth, 1, kMaxSize);
  const bool adjusts = reader.get<bool>(kAdjusts, true),
             is_whole = stands(reader, kFactor) && !reader.has(kFactor);
  const auto factor = reader.get_in<double>(kFactor, 0, 1024, 1);
  const auto multiple = reader.get_in<int64_t>(kMultipleOf, 1, kMaxSize, 256);
  if (!adjusts) return width;
  const auto part = static_cast<int64_t>(factor * static_cast<double>(2 * width / 3));
  if (is_whole) return part;
  return std::max<int64_t>(1, (part + multiple - 1) / multiple * multiple);
}

void write_lfm2_width(Json& json) { json[kAdjusts] = false; }

namespace {

std::string why_not_decays(const ModelConfig& c, const FamilyMixers& m) {
  if (c.linear.decay_floor != 0 && !m.decay_floor)
    return "decays of its linear attention have a floor";
  if (c.linear.by_channel() == m.channel_decays) return "";
  return m.channel_decays ? "heads of its linear attention have one decay each"
                          : "in its linear attention each channel has its own decay";
}

struct OtherMixer {
  Mixer kind;
  const char* words;
  bool (*has)(const ModelConfig&);
};
constexpr OtherMixer kOtherMixers[] = {
    {Mixer::linear, "linear attention", [](const ModelConfig& c) { return c.linear.present(); }},
    {Mixer::scan, "a state space", [](const ModelConfig& c) { return c.scan.present(); }},
    {Mixer::lightning, "lightning attention",
     [](const ModelConfig& c) { return !c.lightning_layers.empty(); }},
    {Mixer::conv, "a convolution", [](const ModelConfig& c) { return !c.conv_layers.empty(); }}};

// The row is asked once it is known that the model has what it asks for.
std::string why_not_kinds(const ModelConfig& c, const FamilyMixers& m) {
  for (const OtherMixer& other : kOtherMixers) {
    const bool has = other.has(c), its = other.kind == m.kind;
    if (its && m.must && !has) return fmt::format("none of its layers has {}", other.words);
    if (!its && has) return fmt::format("some of its layers have {}", other.words);
    std::string reason = other.kind == Mixer::linear ? why_not_decays(c, m) : "";
    if (reason.empty() && its && m.why_not) reason = m.why_not(c);
    if (!reason.empty()) return reason;
  }
  return "";
}

}  // namespace

std::string why_not_mixers(const ModelConfig& c, const Family& f) {
  if (std::string reason = why_not_kinds(c, *f.mixers); !reason.empty()) return reason;
  if (c.qk_norm_turned != f.norm_turned)
    return f.norm_turned ? "norms of queries and keys see them before they turn"
                         : "norms of queries and keys see them turned";
  if (c.attention_gate != f.attention_gate && (c.attention_gate || !f.gate_key))
    return f.attention_gate ? "its attention has no gate" : "its attention has a gate";
  if (!f.laguna && c.head_gates != (f.head_gates && c.attention_gate))
    return "its attention's gate is not one of each head";
  if (c.norm_offset != f.norm_offset())
    return f.norm_offset() ? "its norms do not count from 1" : "its norms count from 1";
  return "";
}

}  // namespace moe
