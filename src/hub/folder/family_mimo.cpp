// MiMo's words for what layers with a window have of their own, and for values
// (transformers:mimo_v2_flash/configuration_mimo_v2_flash.py and modeling_mimo_v2_flash.py); its
// first configs said some of it by other keys (huggingface XiaomiMiMo/MiMo-V2-Flash).
#include "hub/folder/expert_rows.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kMimoTypes = "layer_types", *kMimoPattern = "hybrid_layer_pattern",
                     *kMimoWindow = "sliding_window", *kMimoReach = "sliding_window_size",
                     *kMimoFreq = "moe_layer_freq", *kMimoKvHeads = "num_key_value_heads",
                     *kMimoValues = "v_head_dim", *kMimoFactor = "attention_value_scale";
constexpr const char *kMimoWindowed[] = {"sliding_attention"}, *kMimoFull[] = {"full_attention"};
constexpr int64_t kMimoWindowHeads =
    2;  // key/value heads in layers with a window, times the others

std::vector<std::string> mimo_types(const JsonReader& reader, const ModelConfig& c) {
  std::vector<std::string> types;
  if (reader.has(kMimoPattern))
    for (const int64_t window : zeros_and_ones(reader, c, kMimoPattern))
      types.emplace_back(window == 1 ? kMimoWindowed[0] : kMimoFull[0]);
  if (!types.empty() && !reader.has(kMimoTypes)) return types;
  auto listed = reader.get<std::vector<std::string>>(kMimoTypes);
  if (!types.empty() && listed != types)
    refuse(reader, kMimoPattern, "\"layer_types\" lists other layers; make them equal");
  return listed;
}

}  // namespace

std::vector<int64_t> zeros_and_ones(const JsonReader& reader, const ModelConfig& c,
                                    const char* key) {
  auto pattern = reader.get<std::vector<int64_t>>(key);
  if (std::ssize(pattern) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), key,
         pattern.size(), c.layers);
  for (size_t i = 0; i < pattern.size(); ++i)
    if (pattern[i] != 0 && pattern[i] != 1)
      fail("{}: \"{}\" has {} at layer {}; 0 and 1 are known", reader.where(), key, pattern[i], i);
  return pattern;
}

// The first configs say how many tokens are seen beside the one that sees, as transformers takes
// them, and say it a second time under the key of today.
void read_mimo_windows(const JsonReader& reader, ModelConfig& c) {
  c.window_layers =
      layers_of_type(reader, c, kMimoTypes, mimo_types(reader, c), kMimoWindowed, kMimoFull);
  int64_t window = 0;
  if (reader.has(kMimoReach)) {
    const auto reach = reader.get_in<int64_t>(kMimoReach, 1, kMaxSize - 1);
    window = reader.get<int64_t>(kMimoWindow, reach);
    if (window != reach && window != reach + 1)
      refuse(reader, kMimoReach, "\"sliding_window\" is another number; make them equal");
    window = reach + 1;
  } else {
    window = reader.get_in<int64_t>(kMimoWindow, 1, kMaxSize);
  }
  if (!c.window_layers.empty()) c.attention_window = window;
}

void read_mimo(const JsonReader& reader, ModelConfig& c) {
  c.value_width = reader.get_in<int64_t>(kMimoValues, 1, kMaxSize);
  need_to_stand(reader, kMimoFactor, "the factor of values, or null for 1");
  c.value_factor = static_cast<float>(reader.get_in<double>(kMimoFactor, FLT_MIN, FLT_MAX, 1));
  for (const auto& [key, same] : {std::pair{"swa_num_attention_heads", c.heads},
                                  {"swa_num_key_value_heads", kMimoWindowHeads * c.kv_heads},
                                  {"swa_head_dim", c.head_width},
                                  {"swa_v_head_dim", c.value_width}})
    if (reader.get<int64_t>(key, same) != same)
      refuse(reader, key,
             fmt::format("layers with a window have {} by the keys of the others", same).c_str());
  if (c.value_width == c.head_width) c.value_width = 0;
  c.window_sinks = true;
  if (c.attention_window == 0) return;
  c.full.kv_heads = c.kv_heads;
  c.kv_heads *= kMimoWindowHeads;
}

void read_mimo_dense(const JsonReader& reader, ModelConfig& c) {
  if (!reader.has(kMimoFreq)) return;
  const std::vector<int64_t> pattern = zeros_and_ones(reader, c, kMimoFreq);
  const int64_t dense = std::ranges::find(pattern, 1) - pattern.begin();
  if (reader.has("mlp_layer_types") && dense != c.dense_first)
    refuse(reader, kMimoFreq, "\"mlp_layer_types\" says other layers; make them equal");
  if (std::find(pattern.begin() + dense, pattern.end(), 0) != pattern.end())
    refuse(reader, kMimoFreq, "dense layers are supported before all that route");
  c.dense_first = dense;
}

void write_mimo(Json& json, const ModelConfig& c) {
  if (c.full.kv_heads > 0) json[kMimoKvHeads] = c.full.kv_heads;
  json[kMimoValues] = c.value_width > 0 ? c.value_width : c.head_width;
  FieldWriter(json).number(kMimoFactor, c.value_factor, 0);
}

std::string why_not_mimo(const ModelConfig& c) {
  if (!c.window_sinks) return "layers without a window have sinks";
  if (c.attention_window > 0 && kMimoWindowHeads * c.full.kv_heads != c.kv_heads)
    return "its layers with a window have not twice the key/value heads of the others";
  return "";
}

}  // namespace moe
