// The rows of family_experts.h, of which families.h makes its own. Those of several families have
// the name of the first.
#pragma once

#include "hub/folder/family_experts.h"

namespace moe {

// Stages of routers (family_experts.cpp): sigmoids of the scores, or of chosen logits, which a
// bias may choose among.
std::string sigmoid_stages(bool renormalise);
std::string chosen_sigmoid_stages(bool renormalise);
std::string biased_sigmoid_stages(bool renormalise);

// What single rows have (family_experts.cpp, family_llama4.cpp, family_mimo.cpp,
// family_laguna.cpp, family_longcat.cpp, family_minimax.cpp).
void read_ernie_layers(const JsonReader&, ModelConfig&);
void write_ernie_layers(Json&, const ModelConfig&);
void check_exaone_layers(const JsonReader&, ModelConfig&);
void read_hunyuan_experts(const JsonReader&, ModelConfig&);
void write_hunyuan_experts(Json&, const ModelConfig&);
void read_llama4_experts(const JsonReader&, ModelConfig&);
void write_llama4_experts(Json&, const ModelConfig&);
void read_mimo_dense(const JsonReader&, ModelConfig&);
void check_laguna_dense(const JsonReader&, ModelConfig&);
void read_minimax_layers(const JsonReader&, ModelConfig&);
void write_minimax_layers(Json&, const ModelConfig&);
void read_longcat_experts(const JsonReader&, ModelConfig&);
void write_longcat_experts(Json&, const ModelConfig&);
std::string why_not_longcat_experts(const ModelConfig&);

inline constexpr const char kDenseWidth[] = "intermediate_size";

inline constexpr FamilyExperts kMixtralExperts = {.count_key = "num_local_experts",
                                                  .width_key = "intermediate_size",
                                                  .recipe = "mixtral",
                                                  .norm = Renormalised::always};
inline constexpr FamilyExperts kPhiMoeExperts = {.count_key = "num_local_experts",
                                                 .width_key = "intermediate_size",
                                                 .recipe = "sparsemixer",
                                                 .norm = Renormalised::always,
                                                 .only_recipe = true};
inline constexpr FamilyExperts kGptOssExperts = {.count_key = "num_local_experts",
                                                 .width_key = "intermediate_size",
                                                 .recipe = "gpt-oss",
                                                 .norm = Renormalised::always,
                                                 .only_recipe = true,
                                                 .clamped = true,
                                                 .biased = true};
inline constexpr FamilyExperts kGraniteSharedExperts = {.count_key = "num_local_experts",
                                                        .width_key = "intermediate_size",
                                                        .shared = FamilyShared::one_or_none,
                                                        .shared_key = "shared_intermediate_size",
                                                        .recipe = "mixtral",
                                                        .norm = Renormalised::always};
inline constexpr FamilyExperts kGraniteHybridExperts = {.count_key = "num_local_experts",
                                                        .width_key = "intermediate_size",
                                                        .shared = FamilyShared::one,
                                                        .shared_key = "shared_intermediate_size",
                                                        .recipe = "mixtral",
                                                        .norm = Renormalised::always,
                                                        .or_shared_alone = true};
// Dense layers are as wide as an expert.
inline constexpr FamilyExperts kJambaExperts = {.width_key = "intermediate_size",
                                                .layers = MoeLayers::mixers,
                                                .recipe = "olmoe",
                                                .norm = Renormalised::never};
inline constexpr FamilyExperts kOlmoExperts = {.width_key = "intermediate_size", .recipe = "olmoe"};

inline constexpr FamilyExperts kQwen2Experts = {.dense_width_key = kDenseWidth,
                                                .layers = MoeLayers::step,
                                                .shared = FamilyShared::gated,
                                                .shared_key = "shared_expert_intermediate_size"};
inline constexpr FamilyExperts kQwen3Experts = {
    .dense_width_key = kDenseWidth, .layers = MoeLayers::step, .renormalised_recipe = "qwen3-moe"};
inline constexpr FamilyExperts kQwen3NextExperts = {.dense_width_key = kDenseWidth,
                                                    .layers = MoeLayers::step,
                                                    .shared = FamilyShared::gated,
                                                    .shared_key = "shared_expert_intermediate_size",
                                                    .renormalised_recipe = "qwen3-moe"};
inline constexpr FamilyExperts kQwen35Experts = {.shared = FamilyShared::gated,
                                                 .shared_key = "shared_expert_intermediate_size",
                                                 .recipe = "qwen3-moe",
                                                 .norm = Renormalised::always};
inline constexpr FamilyExperts kMellumExperts = {
    .dense_width_key = kDenseWidth, .layers = MoeLayers::types, .renormalised_recipe = "qwen3-moe"};

inline constexpr FamilyExperts kFirstDeepSeekExperts = {.count_key = "n_routed_experts",
                                                        .dense_width_key = kDenseWidth,
                                                        .layers = MoeLayers::first_or_list,
                                                        .dense_first_otherwise = std::nullopt,
                                                        .every_key = "moe_layer_freq",
                                                        .every_needed = true,
                                                        .shared = FamilyShared::counted_or_none,
                                                        .shared_key = "n_shared_experts",
                                                        .shared_needed = false,
                                                        .recipe = "deepseek-moe",
                                                        .renormalised_recipe = "mixtral",
                                                        .first_deepseek = true};
inline constexpr FamilyExperts kDeepSeekExperts = {.count_key = "n_routed_experts",
                                                   .dense_width_key = kDenseWidth,
                                                   .layers = MoeLayers::first,
                                                   .every_key = "moe_layer_freq",
                                                   .shared = FamilyShared::counted,
                                                   .shared_key = "n_shared_experts"};
// All layers behind the dense ones route.
inline constexpr FamilyExperts kMistral4Experts = {.count_key = "n_routed_experts",
                                                   .dense_width_key = kDenseWidth,
                                                   .layers = MoeLayers::first,
                                                   .shared = FamilyShared::counted,
                                                   .shared_key = "n_shared_experts",
                                                   .recipe = "deepseek-moe",
                                                   .renormalised_recipe = "mixtral"};
inline constexpr FamilyExperts kGlmExperts = {.count_key = "n_routed_experts",
                                              .dense_width_key = kDenseWidth,
                                              .layers = MoeLayers::first_or_types,
                                              .shared = FamilyShared::counted,
                                              .shared_key = "n_shared_experts"};
inline constexpr FamilyExperts kIndexedExperts = {.count_key = "n_routed_experts",
                                                  .dense_width_key = kDenseWidth,
                                                  .layers = MoeLayers::first_or_types,
                                                  .dense_first_otherwise = std::nullopt,
                                                  .shared = FamilyShared::counted,
                                                  .shared_key = "n_shared_experts"};
inline constexpr FamilyExperts kSolarExperts = {.count_key = "n_routed_experts",
                                                .shared = FamilyShared::counted,
                                                .shared_key = "n_shared_experts"};
inline constexpr FamilyExperts kMimoExperts = {.count_key = "n_routed_experts",
                                               .dense_width_key = kDenseWidth,
                                               .layers = MoeLayers::first_or_types,
                                               .read = read_mimo_dense};
inline constexpr FamilyExperts kNemotronHExperts = {
    .count_key = "n_routed_experts",
    .dense_width_key = kDenseWidth,
    .layers = MoeLayers::mixers,
    .shared = FamilyShared::one,
    .shared_key = "moe_shared_expert_intermediate_size",
    .one_shared_key = "n_shared_experts"};

inline constexpr FamilyExperts kLingExperts = {.dense_width_key = kDenseWidth,
                                               .layers = MoeLayers::first,
                                               .shared = FamilyShared::counted,
                                               .shared_key = "num_shared_experts",
                                               .several_chosen = true};
inline constexpr FamilyExperts kLing3Experts = {.other_top_k_key = "num_experts_per_token",
                                                .dense_width_key = kDenseWidth,
                                                .layers = MoeLayers::first_or_types,
                                                .dense_first_otherwise = std::nullopt,
                                                .shared = FamilyShared::counted,
                                                .shared_key = "num_shared_experts",
                                                .several_chosen = true};
inline constexpr FamilyExperts kKimiExperts = {.top_k_key = "num_experts_per_token",
                                               .dense_width_key = kDenseWidth,
                                               .layers = MoeLayers::first_or_types,
                                               .shared = FamilyShared::counted,
                                               .shared_key = "num_shared_experts"};
inline constexpr FamilyExperts kHy3Experts = {.dense_width_key = kDenseWidth,
                                              .layers = MoeLayers::first_or_types,
                                              .shared = FamilyShared::counted,
                                              .shared_key = "num_shared_experts"};
inline constexpr FamilyExperts kExaoneExperts = {.dense_width_key = kDenseWidth,
                                                 .layers = MoeLayers::first_or_types,
                                                 .shared = FamilyShared::counted,
                                                 .shared_key = "num_shared_experts",
                                                 .read = check_exaone_layers};
inline constexpr FamilyExperts kAfmoeExperts = {.dense_width_key = kDenseWidth,
                                                .layers = MoeLayers::first,
                                                .dense_first_key = "num_dense_layers",
                                                .shared = FamilyShared::counted,
                                                .shared_key = "num_shared_experts"};
inline constexpr FamilyExperts kLfm2Experts = {.dense_width_key = kDenseWidth,
                                               .layers = MoeLayers::first,
                                               .dense_first_key = "num_dense_layers"};
inline constexpr FamilyExperts kLagunaExperts = {.dense_width_key = kDenseWidth,
                                                 .layers = MoeLayers::first_or_types,
                                                 .shared = FamilyShared::one,
                                                 .shared_key = "shared_expert_intermediate_size",
                                                 .read = check_laguna_dense};
inline constexpr FamilyExperts kCohereExperts = {
    .width_key = "intermediate_size",
    .dense_width_key = "prefix_dense_intermediate_size",
    .dense_as_experts = true,
    .layers = MoeLayers::first_or_types,
    .dense_first_otherwise = 0,
    .shared = FamilyShared::counted_or_none,
    .shared_key = "num_shared_experts",
    .recipe = "mixtral",
    .stages = sigmoid_stages,
    .scores_said = true};

inline constexpr FamilyExperts kErnieExperts = {.count_key = "moe_num_experts",
                                                .top_k_key = "moe_k",
                                                .dense_width_key = kDenseWidth,
                                                .layers = MoeLayers::first,
                                                .dense_first_key = "moe_layer_start_index",
                                                .shared = FamilyShared::counted_or_none,
                                                .shared_key = "moe_num_shared_experts",
                                                .recipe = "ernie-moe",
                                                .norm = Renormalised::always,
                                                .only_recipe = true,
                                                .read = read_ernie_layers,
                                                .write = write_ernie_layers};
inline constexpr FamilyExperts kAriaExperts = {.count_key = "moe_num_experts",
                                               .top_k_key = "moe_topk",
                                               .width_key = "intermediate_size",
                                               .shared = FamilyShared::counted,
                                               .shared_key = "moe_num_shared_experts",
                                               .recipe = "mixtral",
                                               .norm = Renormalised::always};
inline constexpr FamilyExperts kHunYuanExperts = {.top_k_key = nullptr,
                                                  .width_key = "intermediate_size",
                                                  .shared = FamilyShared::alike,
                                                  .recipe = "mixtral",
                                                  .norm = Renormalised::always,
                                                  .read = read_hunyuan_experts,
                                                  .write = write_hunyuan_experts};
inline constexpr FamilyExperts kGemma4Experts = {.top_k_key = "top_k_experts",
                                                 .shared = FamilyShared::branch,
                                                 .shared_key = "intermediate_size",
                                                 .recipe = "gemma4",
                                                 .norm = Renormalised::always,
                                                 .only_recipe = true,
                                                 .switch_key = "enable_moe_block"};
inline constexpr FamilyExperts kKolibriExperts = {.shared = FamilyShared::one,
                                                  .shared_key = "shared_expert_intermediate_size",
                                                  .stages = biased_sigmoid_stages};
inline constexpr FamilyExperts kFlintExperts = {.dense_width_key = kDenseWidth,
                                                .layers = MoeLayers::step,
                                                .shared = FamilyShared::one,
                                                .shared_key = "shared_expert_intermediate_size",
                                                .stages = chosen_sigmoid_stages};
inline constexpr FamilyExperts kLlama4Experts = {.count_key = "num_local_experts",
                                                 .width_key = "intermediate_size",
                                                 .dense_width_key = "intermediate_size_mlp",
                                                 .layers = MoeLayers::own,
                                                 .shared = FamilyShared::alike,
                                                 .norm = Renormalised::never,
                                                 .stages = chosen_sigmoid_stages,
                                                 .read = read_llama4_experts,
                                                 .write = write_llama4_experts};
inline constexpr FamilyExperts kMiniMaxM3Experts = {.count_key = "num_local_experts",
                                                    .width_key = "intermediate_size",
                                                    .dense_width_key = "dense_intermediate_size",
                                                    .layers = MoeLayers::own,
                                                    .shared = FamilyShared::one,
                                                    .shared_key = "shared_intermediate_size",
                                                    .clamped = true,
                                                    .read = read_minimax_layers,
                                                    .write = write_minimax_layers};
inline constexpr FamilyExperts kLongcatExperts = {.count_key = "n_routed_experts",
                                                  .top_k_key = "moe_topk",
                                                  .width_key = "expert_ffn_hidden_size",
                                                  .dense_width_key = "ffn_hidden_size",
                                                  .layers = MoeLayers::own,
                                                  .read = read_longcat_experts,
                                                  .write = write_longcat_experts,
                                                  .why_not = why_not_longcat_experts};

// Routers.

// (huggingface deepseek-ai/DeepSeek-V2-Lite, deepseek-ai/DeepSeek-V3, MiniMaxAI/MiniMax-M2)
inline constexpr FamilyRouter kDeepSeekV2Router = {.recipe = "deepseek-v2",
                                                   .score = "softmax",
                                                   .method = "group_limited_greedy",
                                                   .greedy = true,
                                                   .renormalises = false};
inline constexpr FamilyRouter kDeepSeekV3Router = {.method = "noaux_tc"};
inline constexpr FamilyRouter kMiniMaxRouter = {.groups = false};
inline constexpr FamilyRouter kMiniMaxM3Router = {.groups = false, .scale = true};
// (github ggml-org/llama.cpp conversion of dots1)
inline constexpr FamilyRouter kDots1Router = {.score = "noaux_tc", .method = "noaux_tc"};
inline constexpr FamilyRouter kLfm2Router = {
    .groups = false, .bias_key = "use_expert_bias", .scale = true};
// (huggingface inclusionAI/Ring-mini-sparse-2.0-exp, github inclusionAI/Ling-V2
// models/modeling_bailing_moe_v2.py; transformers:afmoe/modeling_afmoe.py, huggingface
// arcee-ai/Trinity-Nano-Preview)
inline constexpr FamilyRouter kLingRouter = {.bias_key = "moe_router_enable_expert_bias",
                                             .score_key = "score_function"};
inline constexpr FamilyRouter kAfmoeRouter = {.groups = false,
                                              .bias_key = nullptr,
                                              .scale = true,
                                              .score_key = "score_func",
                                              .scale_key = "route_scale",
                                              .norm_key = "route_norm"};
// (transformers:hy_v3/modeling_hy_v3.py, huggingface tencent/Hy3)
inline constexpr FamilyRouter kHy3Router = {.groups = false,
                                            .bias_key = "moe_router_enable_expert_bias",
                                            .scale = true,
                                            .score_key = "moe_router_use_sigmoid",
                                            .scale_key = "router_scaling_factor",
                                            .norm_key = "route_norm",
                                            .score_flag = true};
// (huggingface moonshotai/Kimi-Linear-48B-A3B-Instruct)
inline constexpr FamilyRouter kKimiRouter = {.method = "noaux_tc",
                                             .score_key = "moe_router_activation_func",
                                             .norm_key = "moe_renormalize",
                                             .groups_key = "num_expert_group"};
// (transformers:bailing_hybrid/modeling_bailing_hybrid.py; published configs have Ling 2.0's words)
inline constexpr FamilyRouter kLing3Router = {.bias_key = "moe_router_enable_expert_bias",
                                              .score_key = "score_function",
                                              .other_groups_key = "num_expert_group",
                                              .other_norm_key = "moe_renormalize"};
// (transformers:nemotron_h/modeling_nemotron_h.py, NemotronHMoE)
inline constexpr FamilyRouter kNemotronHRouter = {.bias_key = nullptr};
// (transformers:mimo_v2_flash/modeling_mimo_v2_flash.py, MiMoV2FlashTopkRouter)
inline constexpr FamilyRouter kMimoRouter = {.method = "noaux_tc", .scale_or_one = true};
// (transformers:laguna/modeling_laguna.py, LagunaTopKRouter)
inline constexpr FamilyRouter kLagunaRouter = {
    .groups = false, .bias_key = nullptr, .scale = true, .scale_key = "moe_routed_scaling_factor"};
// (transformers:axk2/modeling_axk2.py, AXK2TopkRouter)
inline constexpr FamilyRouter kAxK2Router = {.groups = false, .bias_key = nullptr, .scale = true};

}  // namespace moe
