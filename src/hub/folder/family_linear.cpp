// The keys of linear attention (transformers:qwen3_next/configuration_qwen3_next.py).
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kTypes = "layer_types", *kInterval = "full_attention_interval";
constexpr const char *kLinear = "linear_attention", *kFull = "full_attention";

template <class Visitor, class Config>
void visit_heads(Visitor& v, Config& c) {
  v.size("linear_conv_kernel_dim", c.linear.conv_width, 2);
  v.size("linear_key_head_dim", c.linear.key_width, 1);
  v.size("linear_value_head_dim", c.linear.value_width, 1);
  v.size("linear_num_key_heads", c.linear.key_heads, 1);
  v.size("linear_num_value_heads", c.linear.value_heads, 1);
}

}  // namespace

void read_linear(const JsonReader& reader, ModelConfig& c) {
  FieldReader fields(reader);
  visit_heads(fields, c);
  need_off(reader, "attention_bias", "biases of this family are not supported");
  need_off(reader, "use_sliding_window", "no layer of this family has a window, only false");
  c.attention_gate = true;
  if (!reader.get<bool>("attn_output_gate", true))
    refuse(reader, "attn_output_gate", "attention of this family has a gate, only true");
  const auto interval = reader.get_in<int64_t>(kInterval, 1, kMaxLayers, 4);
  std::vector<std::string> types;
  if (reader.has(kTypes)) types = reader.get<std::vector<std::string>>(kTypes);
  else
    for (int64_t i = 0; i < c.layers; ++i)
      types.emplace_back((i + 1) % interval == 0 ? kFull : kLinear);
  if (static_cast<int64_t>(types.size()) != c.layers)
    fail("{}: \"{}\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(), kTypes,
         types.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if (type == kLinear) c.linear_layers.push_back(i);
    else if (type != kFull)
      fail("{}: \"{}\" has \"{}\" at layer {}; {} and {} are known", reader.where(), kTypes,
           printable(type), i, kLinear, kFull);
  }
  if (c.linear_layers.empty()) c.linear = {};
}

void write_linear(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_heads(fields, c);
  json["attention_bias"] = false;
  for (int64_t i = 0; i < c.layers; ++i) json[kTypes].push_back(c.is_linear(i) ? kLinear : kFull);
}

std::string why_not_linear(const ModelConfig& c, const Family& f) {
  if (c.linear.present() != f.linear)
    return f.linear ? "none of its layers has linear attention"
                    : "some of its layers have linear attention";
  if (c.attention_gate != f.linear)
    return f.linear ? "its attention has no gate" : "its attention has a gate";
  if (c.norm_offset != f.norm_offset())
    return f.norm_offset() ? "its norms do not count from 1" : "its norms count from 1";
  return "";
}

}  // namespace moe
