#include "hub/folder/styles.h"

#include <cmath>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

std::vector<Style> make_styles() {
  ModelConfig gpt2;
  gpt2.norm = NormKind::layer;
  gpt2.norm_bias = gpt2.attention_bias = gpt2.attention_out_bias = gpt2.ffn_bias = true;
  gpt2.positions = Positions::learned;
  gpt2.act = ops::Act::gelu;
  gpt2.gated = false;
  gpt2.tied = true;
  gpt2.init = {.std = 0.02f, .cut = 0, .scale_residual = true};

  ModelConfig llama;  // the defaults of ModelConfig
  llama.init = {.std = 0.02f, .cut = 0, .scale_residual = true};

  ModelConfig olmoe = llama;
  olmoe.qk_norm = QkNorm::full;
  olmoe.init = {.std = 0.02f, .cut = 3, .scale_residual = false};

  return {
      {"gpt2", "LayerNorm, learned positions, GELU, biases, tied head (nanoGPT, nanoMoE)", gpt2, 4,
       true},
      {"llama", "RMSNorm, rotary positions, SwiGLU, no biases (Llama, Mixtral)", llama, 8.0 / 3,
       false},
      {"olmoe", "llama with queries and keys normalised over the full width (OLMoE)", olmoe,
       8.0 / 3, false},
  };
}

int64_t round_to_16(double x) {
  return std::max<int64_t>(16, static_cast<int64_t>(std::lround(x / 16)) * 16);
}

}  // namespace

const std::vector<Style>& styles() {
  static const std::vector<Style> table = make_styles();
  return table;
}

const Style& find_style(std::string_view name) {
  std::vector<std::string> names;
  for (const Style& style : styles()) {
    if (style.name == name) return style;
    names.emplace_back(style.name);
  }
  fail_usage("no architecture is called '{}'{}", name, suggestion(name, names));
}

std::string_view style_of_recipe(std::string_view recipe) {
  if (recipe == "nanomoe") return "gpt2";
  if (recipe == "olmoe") return "olmoe";
  return "llama";
}

RoutingOptions routing_for_dense(const ModelConfig& dense, int64_t experts, int64_t top_k,
                                 int64_t moe_layers) {
  const char* recipe = dense.qk_norm == QkNorm::full   ? "olmoe"
                       : dense.qk_norm == QkNorm::head ? "qwen3-moe"
                                                       : "mixtral";
  RoutingOptions options = default_options(find_recipe(recipe), experts, top_k, moe_layers);
  if (find_recipe(recipe).norm_topk_prob_is_open) options.norm_topk_prob = true;
  return options;
}

int64_t default_dense_width(const Style& style, int64_t width) {
  return round_to_16(style.ffn_factor * static_cast<double>(width));
}

int64_t default_expert_width(const Style& style, int64_t width, std::optional<int64_t> dense_width,
                             int64_t top_k) {
  const double dense = dense_width ? static_cast<double>(*dense_width)
                                   : style.ffn_factor * static_cast<double>(width);
  return round_to_16(style.experts_as_wide ? dense : dense / static_cast<double>(top_k));
}

}  // namespace moe
