#include "hub/gguf/gguf_architectures.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

// Its config is config.json's, so that only names are said here.
constexpr GgufArchitecture kOwn = {.name = "moe_cpp", .title = "moe.cpp", .tensors = &kGgufTensors};

// In order of preference when a model is written.
constexpr GgufArchitecture kRows[] = {
    {.name = "gpt2",
     .title = "GPT-2",
     .tensors = &kGgufFusedTensors,
     .norm = NormKind::layer,
     .positions = Positions::learned,
     .act = ops::Act::gelu_tanh,
     .gated = false,
     .attention_bias = Biases::yes,
     .attention_out_bias = Biases::yes,
     .ffn_bias = Biases::yes},
    {.name = "qwen3",
     .title = "Qwen3",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true},
    {.name = "qwen2", .title = "Qwen2", .tensors = &kGgufTensors, .attention_bias = Biases::yes},
    {.name = "llama",
     .title = "Llama",
     .tensors = &kGgufLlamaTensors,
     .attention_bias = Biases::any,
     .attention_out_bias = Biases::any,
     .ffn_bias = Biases::any,
     .free_head_width = true,
     .llama3_scaling = true},
    {.name = "llama",
     .title = "Mixtral",
     .recipe = "mixtral",
     .tensors = &kGgufLlamaTensors,
     .attention_bias = Biases::any,
     .attention_out_bias = Biases::any,
     .free_head_width = true,
     .renormalises = true,
     .llama3_scaling = true},
    {.name = "olmoe",
     .title = "OLMoE",
     .recipe = "olmoe",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::full,
     .shares_kv = false,  // the norms of queries and keys are as wide as the model
     .needs_head = true},
    {.name = "qwen2moe",
     .title = "Qwen2-MoE",
     .recipe = "qwen2-moe",
     .tensors = &kGgufTensors,
     .attention_bias = Biases::yes,
     .needs_head = true,
     .shared = SharedExperts::gated,
     .expert_width = "expert_feed_forward_length"},
    {.name = "qwen3moe",
     .title = "Qwen3-MoE",
     .recipe = "qwen3-moe",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .renormalises = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "deepseek",
     .title = "DeepSeekMoE",
     .recipe = "deepseek-moe",
     .tensors = &kGgufPairedTensors,
     .needs_head = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "deepseek2",
     .title = "DeepSeek-V2",
     .recipe = "deepseek-v2",
     .tensors = &kGgufLatentTensors,
     .older_latents = &kGgufOlderLatentTensors,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "deepseek2",
     .title = "DeepSeek-V3",
     .recipe = "deepseek-v3",
     .tensors = &kGgufLatentTensors,
     .older_latents = &kGgufOlderLatentTensors,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "glm-dsa",
     .title = "GLM-5",
     .recipe = "deepseek-v3",
     .tensors = &kGgufIndexedTensors,
     .older_latents = &kGgufOlderIndexedTensors,
     .indexed = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "dots1",
     .title = "dots.llm1",
     .recipe = "deepseek-v3",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .shares_kv = false,
     .needs_head = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "bailingmoe2",
     .title = "Ling 2.0",
     .recipe = "deepseek-v3",
     .tensors = &kGgufFusedTensors,
     .qk_norm = QkNorm::head,
     .part_turns = true,
     .needs_head = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .shared_width = SharedWidth::each,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length",
     .model_type = "bailing_moe_v2",
     .other_model_type = "sarvam_moe"},
    {.name = "glm4moe",
     .title = "GLM-4.5",
     .recipe = "deepseek-v3",
     .tensors = &kGgufAfterAttentionTensors,
     .qk_norm = QkNorm::head,
     .may_lack_qk_norm = true,
     .attention_bias = Biases::any,
     .free_head_width = true,
     .part_turns = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "minimax-m2",
     .title = "MiniMax-M2",
     .recipe = "deepseek-v3",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::full,
     .free_head_width = true,
     .part_turns = true,
     .needs_head = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "ernie4_5-moe",
     .title = "ERNIE 4.5 MoE",
     .recipe = "ernie-moe",
     .tensors = &kGgufPairedTensors,
     .free_head_width = true,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .shared = SharedExperts::summed,
     .dense_first = true,
     .step = "interleave_moe_layer_step",
     .expert_width = "expert_feed_forward_length"},
    {.name = "olmo2",
     .title = "OLMo 2",
     .tensors = &kGgufOutputNormTensors,
     .placement = NormPlacement::output,
     .qk_norm = QkNorm::full,
     .needs_head = true},
    {.name = "olmo2",
     .title = "OLMo 3",
     .tensors = &kGgufOutputNormTensors,
     .placement = NormPlacement::output,
     .qk_norm = QkNorm::full,
     .window_every = 4,
     .window_plain = true,
     .needs_head = true},
    {.name = "gemma3",
     .title = "Gemma 3",
     .tensors = &kGgufGemma3Tensors,
     .placement = NormPlacement::both,
     .qk_norm = QkNorm::head,
     .act = ops::Act::gelu_tanh,
     .free_head_width = true,
     .window_every = 6,
     .window_local = true,
     .norm_offset = true,
     .gemma = true},
    {.name = "gemma4",
     .title = "Gemma 4",
     .tensors = &kGgufGemma4Tensors,
     .placement = NormPlacement::both,
     .qk_norm = QkNorm::head,
     .act = ops::Act::gelu_tanh,
     .free_head_width = true,
     .gemma4 = true},
    {.name = "gemma4",
     .title = "Gemma 4 MoE",
     .recipe = "gemma4",
     .tensors = &kGgufGemma4Tensors,
     .placement = NormPlacement::both,
     .qk_norm = QkNorm::head,
     .act = ops::Act::gelu_tanh,
     .free_head_width = true,
     .fused_experts = &kGgufGemma4FusedTensors,
     .gemma4 = true,
     .renormalises = true,
     .shared = SharedExperts::beside,
     .expert_width = "expert_feed_forward_length"},
    {.name = "qwen35",
     .title = "Qwen3.5",
     .tensors = &kGgufQwen35Tensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .part_turns = true,
     .linear = true,
     .mrope = true,
     .norm_offset = true},
    {.name = "qwen35moe",
     .title = "Qwen3.5 MoE",
     .recipe = "qwen3-moe",
     .tensors = &kGgufQwen35Tensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .part_turns = true,
     .linear = true,
     .mrope = true,
     .norm_offset = true,
     .renormalises = true,
     .shared = SharedExperts::gated,
     .expert_width = "expert_feed_forward_length",
     .model_type = "qwen3_5_moe_text"},
    {.name = "qwen3next",
     .title = "Qwen3-Next",
     .recipe = "qwen3-moe",
     .tensors = &kGgufQwen3NextTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .part_turns = true,
     .linear = true,
     .norm_offset = true,
     .renormalises = true,
     .shared = SharedExperts::gated,
     .expert_width = "expert_feed_forward_length"},
    {.name = "afmoe",
     .title = "Trinity",
     .recipe = "deepseek-v3",
     .tensors = &kGgufAfmoeTensors,
     .placement = NormPlacement::both,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .nope_every = 4,
     .window_every = 4,
     .gate = true,
     .mup = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length",
     .model_type = "afmoe"},
    {.name = "exaone-moe",
     .title = "K-EXAONE",
     .recipe = "deepseek-v3",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .nope_every = 4,
     .window_every = 4,
     .needs_head = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .weighs_as_said = true,
     .shared = SharedExperts::counted,
     .shared_width = SharedWidth::together,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "hunyuan-moe",
     .title = "Hunyuan MoE",
     .recipe = "mixtral",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .attention_bias = Biases::any,
     .free_head_width = true,
     .norm_turned = true,
     .renormalises = true,
     .shared = SharedExperts::one,
     .expert_width = "expert_feed_forward_length"},
    {.name = "lfm2moe",
     .title = "LFM2 MoE",
     .recipe = "deepseek-v3",
     .tensors = &kGgufLfm2Tensors,
     .qk_norm = QkNorm::head,
     .conv = true,
     .gating = GgufGating::sigmoid,
     .selection_bias = Biases::yes,
     .renormalises = true,
     .dense_first = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "mellum",
     .title = "Mellum",
     .recipe = "qwen3-moe",
     .tensors = &kGgufTensors,
     .qk_norm = QkNorm::head,
     .free_head_width = true,
     .window_every = 4,
     .window_key = true,
     .window_plain = true,
     .needs_head = true,
     .renormalises = true,
     .expert_width = "expert_feed_forward_length"},
    {.name = "smollm3", .title = "SmolLM3", .tensors = &kGgufPairedTensors, .nope_every = 4},
    {.name = "granitemoe",
     .title = "GraniteMoE",
     .recipe = "mixtral",
     .tensors = &kGgufPairedTensors,
     .multipliers = true,
     .renormalises = true,
     .shared = SharedExperts::sized},
    {.name = "gpt-oss",
     .title = "gpt-oss",
     .recipe = "gpt-oss",
     .tensors = &kGgufAfterAttentionTensors,
     .act = ops::Act::swiglu_oai,
     .attention_bias = Biases::yes,
     .attention_out_bias = Biases::yes,
     .ffn_bias = Biases::yes,
     .free_head_width = true,
     .window_every = 2,
     .sinks = true,
     .yarn_truncate = false,
     .needs_head = true,
     .router_bias = true,
     .renormalises = true,
     .expert_width = "expert_feed_forward_length"},
};

// Files of models of pictures and text hold the model of text, which is another's.
struct TextOf {
  std::string_view name, text;
};
constexpr TextOf kTextOf[] = {{"qwen3vlmoe", "qwen3moe"}};

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kRows; }

const GgufArchitecture& own_gguf_architecture() { return kOwn; }

int64_t full_attention_every(const ModelConfig& c) {
  int64_t first = 0;
  while (first < c.layers && c.is_linear(first)) ++first;
  return first + 1;
}

float gemma_score_factor(const ModelConfig& c) {
  const int64_t width = c.layers == 62 ? c.width / c.heads : c.head_width;
  return 1 / std::sqrt(static_cast<float>(width));
}

GgufForm gguf_form_of(const ModelConfig& config) {
  // Its graph of Phi-3.5-MoE takes RMSNorms for LayerNorms and a softmax of the chosen (github
  // ggml-org/llama.cpp, src/models/phi3.cpp), which is another model.
  if (config.moe_layer_count() > 0 &&
      std::holds_alternative<NearSoftmax>(eval_spec(config.routing).weigh))
    return {&kOwn, fmt::format("none of its graphs weighs experts as recipe '{}' does",
                               config.routing.recipe)};
  const GgufArchitecture* nearest_row = nullptr;
  std::string nearest_reason;
  int furthest = -1;
  for (const GgufArchitecture& row : kRows) {
    int passed = 0;
    std::string reason = why_not(row, config, &passed);
    if (reason.empty()) return {&row, ""};
    if (passed <= furthest) continue;
    furthest = passed;
    nearest_row = &row;
    nearest_reason = std::move(reason);
  }
  return {&kOwn,
          fmt::format(
              "none of its architectures supports this model; {} (\"{}\") comes nearest, but {}",
              nearest_row->title, nearest_row->name, nearest_reason)};
}

const GgufArchitecture& find_gguf_architecture(std::string_view name, const GgufTraits& file,
                                               const std::string& where) {
  std::vector<std::string> known = {std::string(kOwn.name)};
  for (const TextOf& with_pictures : kTextOf) {
    if (with_pictures.name == name) return find_gguf_architecture(with_pictures.text, file, where);
    known.emplace_back(with_pictures.name);
  }
  bool is_known = false;
  const GgufArchitecture* first = nullptr;
  for (const GgufArchitecture& row : kRows) {
    if (row.name == name && row.routes() == file.routes) {
      const bool scores = file.gating == 0
                              ? (row.selection_bias == Biases::yes) == file.selection_bias
                              : static_cast<int64_t>(row.gating) == file.gating;
      if (file.windows == row.windows() && scores) return row;
      if (first == nullptr || first->windows() != file.windows) first = &row;
    }
    is_known = is_known || row.name == name;
    if (std::ranges::find(known, row.name) == known.end()) known.emplace_back(row.name);
  }
  if (first != nullptr) return *first;
  if (is_known)
    fail("{}: architecture \"{}\" {}", where, printable(name),
         file.routes ? "has no experts, but \"expert_count\" is given" : "needs \"expert_count\"");
  fail("{}: architecture \"{}\" of key \"general.architecture\" is not supported{}", where,
       printable(name), suggestion(name, known));
}

}  // namespace moe
