// The families of transformers (transformers:models/*) that are built like Llama, and the first
// DeepSeekMoE, whose code lies with its weights (huggingface deepseek-ai/deepseek-moe-16b-base): a
// row for what sets each apart. Adding one is adding a row here, one to the table of architectures,
// and a case to tools/interop/architectures.py.
#pragma once

#include <string_view>

#include "model/config.h"

namespace moe {

// Where attention has biases.
enum class FamilyBiases {
  none,
  qkv,        // queries, keys and values
  qkv_bias,   // these, unless "qkv_bias" says otherwise
  flag,       // these and the projection back, as "attention_bias" says
  flag_later  // the same and of FFNs "mlp_bias"; both keys came later than the family
};

// Whether "head_dim" may be missing: hidden_size / num_attention_heads; latent: the sizes of latent
// attention.
enum class HeadWidth { may, must, latent };

// What says how far attention reaches; never: the keys stand there and must switch it off.
enum class FamilyWindow { none, mistral, qwen, never };

// The keys of the experts' sizes, and of the layers that route.
enum class FamilyExperts { none, mixtral, qwen2, qwen3, deepseek };

// A router that scores by more than a softmax: what the family's code does where its config says
// nothing, and the words of the configs that were published.
struct FamilyRouter {
  const char *recipe, *score, *method;
  bool greedy;        // it may also choose among all, by the method "greedy"
  bool renormalises;  // weights are divided by their sum
};
// (huggingface deepseek-ai/DeepSeek-V2-Lite, deepseek-ai/DeepSeek-V3)
inline constexpr FamilyRouter kDeepSeekV2Router = {"deepseek-v2", "softmax", "group_limited_greedy",
                                                   true, false};
inline constexpr FamilyRouter kDeepSeekV3Router = {"deepseek-v3", "sigmoid", "noaux_tc", false,
                                                   true};

struct Family {
  FamilyBiases biases = FamilyBiases::none;
  HeadWidth head_width = HeadWidth::may;
  FamilyWindow window = FamilyWindow::none;
  QkNorm qk_norm = QkNorm::none;
  FamilyExperts experts = FamilyExperts::none;
  const FamilyRouter* router = nullptr;  // none: dropless top-k of a softmax

  bool out_bias() const {
    return biases == FamilyBiases::flag || biases == FamilyBiases::flag_later;
  }
  bool latent() const { return head_width == HeadWidth::latent; }
  bool qwen() const { return experts == FamilyExperts::qwen2 || experts == FamilyExperts::qwen3; }
};

inline constexpr Family kLlama = {.biases = FamilyBiases::flag_later};
inline constexpr Family kMistral = {.window = FamilyWindow::mistral};
inline constexpr Family kQwen2 = {.biases = FamilyBiases::qkv, .window = FamilyWindow::qwen};
inline constexpr Family kQwen3 = {.biases = FamilyBiases::flag,
                                  .head_width = HeadWidth::must,
                                  .window = FamilyWindow::qwen,
                                  .qk_norm = QkNorm::head};
inline constexpr Family kMixtral = {.window = FamilyWindow::mistral,
                                    .experts = FamilyExperts::mixtral};
inline constexpr Family kQwen2Moe = {.biases = FamilyBiases::qkv_bias,
                                     .window = FamilyWindow::never,
                                     .experts = FamilyExperts::qwen2};
inline constexpr Family kQwen3Moe = {.biases = FamilyBiases::flag,
                                     .window = FamilyWindow::never,
                                     .qk_norm = QkNorm::head,
                                     .experts = FamilyExperts::qwen3};
inline constexpr Family kDeepSeek = {.biases = FamilyBiases::flag,
                                     .experts = FamilyExperts::deepseek};
inline constexpr Family kDeepSeekV2 = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::latent,
                                       .experts = FamilyExperts::deepseek,
                                       .router = &kDeepSeekV2Router};
inline constexpr Family kDeepSeekV3 = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::latent,
                                       .experts = FamilyExperts::deepseek,
                                       .router = &kDeepSeekV3Router};

}  // namespace moe
