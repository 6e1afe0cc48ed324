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

constexpr const char *kGemma4Pattern = "attention.sliding_window_pattern",
                     *kGemma4Window = "attention.sliding_window",
                     *kGemma4KvHeads = "attention.head_count_kv",
                     *kGemma4Keys = "attention.key_length",
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

void read_window_layers(GgufKeys& keys, ModelConfig& c) {
  c.attention_window = keys.size(kGemma4Window, 1);
  const std::vector<bool>& pattern = keys.flags(kGemma4Pattern);
  if (std::ssize(pattern) != c.layers)
    fail("{}: key \"{}\" lists {} layers of {}", keys.where(), keys.name(kGemma4Pattern),
         pattern.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    if (pattern[static_cast<size_t>(i)]) c.window_layers.push_back(i);
  if (c.window_layers.empty() || std::ssize(c.window_layers) == c.layers)
    fail("{}: by key \"{}\" {} layers of {} have a window; some have one and some none",
         keys.where(), keys.name(kGemma4Pattern), c.window_layers.size(), c.layers);
}

// One number, or one for each layer: of those with a window and those without.
void read_kv_heads(GgufKeys& keys, ModelConfig& c) {
  if (!keys.holds<std::vector<int64_t>>(kGemma4KvHeads)) {
    c.kv_heads = keys.size(kGemma4KvHeads, 1);
    return;
  }
  const std::vector<int64_t>& heads = keys.integers(kGemma4KvHeads);
  if (std::ssize(heads) != c.layers)
    fail("{}: key \"{}\" lists {} layers of {}", keys.where(), keys.name(kGemma4KvHeads),
         heads.size(), c.layers);
  int64_t of[2] = {0, 0};
  for (int64_t i = 0; i < c.layers; ++i) {
    int64_t& wanted = of[c.has_window(i) ? 1 : 0];
    const int64_t n = heads[static_cast<size_t>(i)];
    if (n < 1 || (wanted != 0 && n != wanted))
      fail("{}: key \"{}\" has {} at layer {}; layers of a kind are alike here, and have some",
           keys.where(), keys.name(kGemma4KvHeads), n, i);
    wanted = n;
  }
  c.kv_heads = of[1];
  if (of[0] != of[1]) c.full.kv_heads = of[0];
}

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
  read_kv_heads(keys, c);
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
  std::vector<bool> pattern;
  std::vector<int64_t> kv_heads;
  for (int64_t i = 0; i < c.layers; ++i) {
    pattern.push_back(c.has_window(i));
    kv_heads.push_back(c.attention(i).kv_heads);
  }
  size(kGemma4PerLayer, 0);
  size(kGemma4SharedLayers, 0);
  size(kGemma4Window, c.attention_window);
  out.push_back({prefix + kGemma4Pattern, Type::booleans, pattern});
  if (c.full.kv_heads > 0) out.push_back({prefix + kGemma4KvHeads, Type::u32s, kv_heads});
  else size(kGemma4KvHeads, c.kv_heads);
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
