// The keys of LFM3's layers, each of which is a convolution, attention with a window or attention
// without one (transformers:lfm3/configuration_lfm3.py).
#include "hub/folder/family_parts.h"
#include "hub/folder/mixer_rows.h"

namespace moe {
namespace {

constexpr const char *kLfm3Types = "layer_types", *kLfm3Conv = "conv",
                     *kLfm3Window = "sliding_attention", *kLfm3Full = "full_attention";
constexpr const char *kLfm3Taps = "conv_L_cache", *kLfm3Bias = "conv_bias",
                     *kLfm3Reach = "sliding_window";

}  // namespace

void read_lfm3(const JsonReader& reader, ModelConfig& c) {
  const auto types = reader.get<std::vector<std::string>>(kLfm3Types);
  const char *conv[] = {kLfm3Conv}, *attention[] = {kLfm3Window, kLfm3Full};
  c.conv_layers = layers_of_type(reader, c, kLfm3Types, types, conv, attention);
  for (int64_t i = 0; i < c.layers; ++i)
    if (types[static_cast<size_t>(i)] == kLfm3Window) c.window_layers.push_back(i);
  need_off(reader, kLfm3Bias, "convolutions with biases are not supported");
  if (c.conv_layers.empty()) stands(reader, kLfm3Taps);
  else c.conv_width = reader.get_in<int64_t>(kLfm3Taps, 2, kMaxSize);
  if (c.window_layers.empty()) stands(reader, kLfm3Reach);
  else c.attention_window = reader.get_in<int64_t>(kLfm3Reach, 1, kMaxSize);
}

void write_lfm3(Json& json, const ModelConfig& c) {
  json[kLfm3Taps] = c.conv_width;
  json[kLfm3Bias] = false;
  json[kLfm3Reach] = c.attention_window > 0 ? Json(c.attention_window) : Json();
  for (int64_t i = 0; i < c.layers; ++i)
    json[kLfm3Types].push_back(c.mixer(i) == Mixer::conv ? kLfm3Conv
                               : c.has_window(i)         ? kLfm3Window
                                                         : kLfm3Full);
}

}  // namespace moe
