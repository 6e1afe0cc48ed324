// Gemma 4's keys (github ggml-org/llama.cpp, src/models/gemma4.cpp and conversion/gemma.py): layers
// with a window and without have heads of their own, and of those without a share turns, which a
// tensor of factors says.
#include <algorithm>
#include <cmath>

#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_keys.h"
#include "model/rope.h"

namespace moe {
namespace {

constexpr const char *kGemma4Keys = "attention.key_length",
                     *kGemma4Values = "attention.value_length",
                     *kGemma4WindowKeys = "attention.key_length_swa",
                     *kGemma4WindowValues = "attention.value_length_swa",
                     *kGemma4Turning = "rope.dimension_count",
                     *kGemma4WindowTurning = "rope.dimension_count_swa",
                     *kGemma4Base = "rope.freq_base", *kGemma4WindowBase = "rope.freq_base_swa",
                     *kGemma4Cap = "final_logit_softcapping",
                     *kGemma4SharedLayers = "attention.shared_kv_layers",
                     *kGemma4PerLayer = "embedding_length_per_layer_input",
                     *kGemma4Factors = "rope_freqs.weight";
constexpr float kGemma4UsualCap = 30;   // of files that do not say one, as llama.cpp has it
constexpr float kGemma4Stands = 1e30f;  // the factor of a pair that does not turn

// The pairs whose factor is 1 turn, and stand before those that do not.
RopeScaling read_factors(const Gguf& file, int64_t width) {
  const Tensor stored = file.get(kGemma4Factors);
  if (stored.dtype != DType::f32 || stored.numel() != width / 2)
    fail("{}: tensor \"{}\" is {}; f32 [{}] is needed", file.path(), kGemma4Factors,
         describe(stored), width / 2);
  const float *x = stored.as<float>(), *end = x + stored.numel();
  const float* stand = std::find_if(x, end, [](float f) { return f != 1; });
  if (stand == x || std::any_of(stand, end, [](float f) { return !(f >= kGemma4Stands / 2); }))
    fail(
        "{}: tensor \"{}\" divides the rotary frequencies in another way than by letting a share "
        "of "
        "them stand, which is not supported",
        file.path(), kGemma4Factors);
  if (stand == end) return {};
  return {.kind = RopeScaling::Kind::proportional,
          .share = 2 * static_cast<float>(stand - x) / static_cast<float>(width)};
}

}  // namespace

void read_gemma4(const Gguf& file, GgufKeys& keys, ModelConfig& c) {
  keys.need_number(kGemma4PerLayer, 0, "embeddings of each layer are not supported");
  keys.need_number(kGemma4SharedLayers, 0, "every layer has keys of its own");
  read_window_layers(keys, c);
  const HeadsByWindow kv = read_heads_by_window(keys, c, kKvHeads);
  c.kv_heads = kv.heads;
  c.full.kv_heads = kv.full;
  const int64_t width = keys.size(kGemma4Keys, 1);
  c.head_width = keys.size(kGemma4WindowKeys, 1);
  if (width != c.head_width) c.full.head_width = width;
  for (const auto& [key, wanted] : {std::pair{kGemma4Values, width},
                                    {kGemma4Turning, width},
                                    {kGemma4WindowValues, c.head_width},
                                    {kGemma4WindowTurning, c.head_width}})
    keys.need_number(key, static_cast<double>(wanted), "a head's keys and values are as wide");
  int64_t full = 0;
  while (c.has_window(full)) ++full;
  c.full.values_of_keys = !file.contains("blk." + std::to_string(full) + ".attn_v.weight");
  c.rope_theta = keys.number(kGemma4Base, 0);
  c.window_rope_theta = keys.number_or(kGemma4WindowBase, FLT_MIN, 10000);
  c.rope_scaling = read_factors(file, width);
  c.logit_cap = keys.number_or(kGemma4Cap, 0, kGemma4UsualCap);
  c.multipliers = {.embedding = std::sqrt(static_cast<float>(c.width)), .attention = 1};
  c.value_norm = true;
  c.layer_scale = file.contains("blk.0.layer_output_scale.weight");
}

void add_gemma4(std::vector<GgufEntry>& out, const std::string& prefix, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](const char* key, int64_t x) {
    out.push_back({prefix + key, Type::u32, x});
  };
  const auto number = [&](const char* key, float x) {
    out.push_back({prefix + key, Type::f32, static_cast<double>(x)});
  };
  size(kGemma4PerLayer, 0);
  size(kGemma4SharedLayers, 0);
  add_window_layers(out, prefix, c);
  add_heads_by_layers(out, prefix + kKvHeads, c, &AttentionShape::kv_heads);
  const int64_t width = c.full.head_width > 0 ? c.full.head_width : c.head_width;
  for (const char* key : {kGemma4Keys, kGemma4Values, kGemma4Turning}) size(key, width);
  for (const char* key : {kGemma4WindowKeys, kGemma4WindowValues, kGemma4WindowTurning})
    size(key, c.head_width);
  number(kGemma4Base, c.rope_theta);
  number(kGemma4WindowBase, c.window_rope_theta > 0 ? c.window_rope_theta : c.rope_theta);
  number(kGemma4Cap, c.logit_cap);
}

std::string why_not_gemma4(const ModelConfig& c) {
  using Kind = RopeScaling::Kind;
  if (!c.value_norm || !c.layer_scale) return "its values have no norm, or its layers no scale";
  if (c.branch_norms != (c.moe_layer_count() > 0)) return "its experts have no norms of their own";
  if (c.rope_scaling.kind != Kind::none &&
      (c.rope_scaling.kind != Kind::proportional || c.rope_scaling.factor != 1))
    return "its rotary frequencies are scaled";
  if (c.attention_window == 0 || c.window_layers.empty() || std::ssize(c.window_layers) == c.layers)
    return "its layers all have a window, or none has";
  if (c.rope_scaling.kind == Kind::none || c.window_rope_theta > 0) return "";
  return "layers with a window turn as the others do";
}

std::vector<float> gemma4_factors(const ModelConfig& c) {
  const int64_t width = c.full.head_width > 0 ? c.full.head_width : c.head_width;
  std::vector<float> factors(static_cast<size_t>(width / 2), 1);
  if (c.rope_scaling.kind == RopeScaling::Kind::proportional)
    std::fill(factors.begin() + turning_pairs(c.rope_scaling, width), factors.end(), kGemma4Stands);
  return factors;
}

}  // namespace moe
