// The families of transformers (transformers:models/*) that are built like Llama, and the first
// DeepSeekMoE, Ling 2.0 and Sarvam, whose code lies with their weights (huggingface
// deepseek-ai/deepseek-moe-16b-base, inclusionAI/Ling-flash-2.0, sarvamai/sarvam-30b; of the third
// github MOBIRIZER-TECHNOLOGY/AnuLM has a copy): a row for what sets each apart.
// Adding one is adding a row here, one to the table of architectures, and a case to
// tools/interop/architectures.py. Rows of what experts are (expert_rows.h) and of what layers have
// in place of attention (mixer_rows.h) are added where none of those that are there says it.
#pragma once

#include "hub/folder/expert_rows.h"
#include "hub/folder/family.h"
#include "hub/folder/mixer_rows.h"

namespace moe {

// What LongCat-Flash's published configs say beside what transformers' class has.
inline constexpr FamilyKey kLongcatKeys[] = {
    {"hidden_act", "\"silu\""},    {"attention_method", "\"MLA\""},
    {"router_bias", "false"},      {"zero_expert_type", "\"identity\""},
    {"norm_topk_prob", "false"},   {"mla_scale_q_lora", "true"},
    {"mla_scale_kv_lora", "true"},
};
// What Qwen3-Coder's configs say of parts that only other families may have, or lack.
inline constexpr FamilyKey kQwen3MoeKeys[] = {
    {"qkv_bias", "false"}, {"use_qk_norm", "true"}, {"shared_expert_intermediate_size", "0"}};
// What of GLM-4.5, of which it is a kind, it never has.
inline constexpr FamilyKey kSolarKeys[] = {
    {"first_k_dense_replace", "0"}, {"partial_rotary_factor", "1"}, {"use_qk_norm", "false"}};
inline constexpr FamilyKey kGlm4MoeLiteKeys[] = {{"partial_rotary_factor", "1"}};
// What the models before it could do: layers of linear attention, norms of each head, shared
// experts, windows, factors of what a sublayer adds.
inline constexpr FamilyKey kMiniMaxKeys[] = {{"attn_type_list", "1"},
                                             {"use_qk_norm", "true"},
                                             {"qk_norm_type", "\"per_layer\""},
                                             {"shared_intermediate_size", "0"},
                                             {"sliding_window", "null"},
                                             {"layernorm_full_attention_beta", "1"},
                                             {"layernorm_linear_attention_beta", "1"},
                                             {"layernorm_mlp_beta", "1"}};
// What the first ones could do besides, and of how lightning attention is computed.
inline constexpr FamilyKey kMiniMax01Keys[] = {{"shared_intermediate_size", "0"}};
inline constexpr const char* kMiniMax01Unread[] = {"block_size", "shared_moe_mode"};
// What its published configs say of parts that have no other form in its code.
inline constexpr FamilyKey kMiniMaxM3Keys[] = {
    {"use_gemma_norm", "true"},         {"use_qk_norm", "true"},   {"qk_norm_type", "\"per_head\""},
    {"attention_output_gate", "false"}, {"n_shared_experts", "1"}, {"swiglu_beta", "1"}};
inline constexpr FamilyKey kErnieKeys[] = {
    {"use_rmsnorm", "true"}, {"moe_gate", "\"topk\""}, {"moe_use_aux_free", "true"}};
inline constexpr FamilyKey kQwen35Keys[] = {{"mlp_only_layers", "[]"},
                                            {"output_gate_type", "\"swish\""}};
// What of Qwen3-MoE, of which it is a kind, says the layers in another way.
inline constexpr FamilyKey kMellumKeys[] = {
    {"use_sliding_window", "true"}, {"decoder_sparse_step", "1"}, {"mlp_only_layers", "[]"}};
inline constexpr FamilyKey kHunYuanKeys[] = {{"use_qk_norm", "true"},
                                             {"use_mixed_mlp_moe", "true"},
                                             {"use_rotary_pos_emb", "true"},
                                             {"norm_topk_prob", "true"},
                                             {"routed_scaling_factor", "1"},
                                             {"moe_layer_num_skipped", "0"},
                                             {"use_cla", "false"},
                                             {"use_mla", "false"},
                                             {"mlp_bias", "false"},
                                             {"moe_drop_tokens", "false"},
                                             {"group_limited_greedy", "false"},
                                             {"moe_random_routing_dropped_token", "false"},
                                             {"position_embedding_xdrope", "false"},
                                             {"add_classification_head", "false"}};

// What Ling's first models could do.
inline constexpr FamilyKey kLingKeys[] = {{"use_bias", "false"},
                                          {"use_qkv_bias", "false"},
                                          {"use_rmsnorm", "true"},
                                          {"norm_head", "false"},
                                          {"norm_softmax", "false"}};
// What of Ling, of which it is a kind, it never has.
inline constexpr FamilyKey kSarvamKeys[] = {
    {"use_bias", "false"}, {"use_qkv_bias", "false"}, {"partial_rotary_factor", "1"}};
inline constexpr FamilyKey kAfmoeKeys[] = {{"attention_bias", "false"},
                                           {"n_group", "1"},
                                           {"topk_group", "1"},
                                           {"num_expert_groups", "1"},
                                           {"num_limited_groups", "1"}};
// Of the text of DeepSeek-OCR 2 (transformers:deepseek_ocr2/configuration_deepseek_ocr2.py) and of
// DeepSeek-OCR, which has the words of latent attention and none of it.
inline constexpr FamilyKey kDeepSeekKeys[] = {
    {"mlp_bias", "false"}, {"n_group", "1"}, {"topk_group", "1"}, {"use_mla", "false"}};
inline constexpr const char* kDeepSeekUnread[] = {
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "lm_head", "rm_head", "ep_size"};
// Their code does not read the first: all layers behind the dense ones route. What turns of an
// indexer it does not ask either (hub/tensor_names.cpp).
inline constexpr FamilyKey kDeepSeekV32Keys[] = {{"moe_layer_freq", "1"},
                                                 {"indexer_rope_interleave", "false"}};
inline constexpr FamilyKey kGlmDsaKeys[] = {{"moe_layer_freq", "1"},
                                            {"indexer_rope_interleave", "true"}};
// What of Qwen3-MoE, of which its config is a kind, it never has.
inline constexpr FamilyKey kKolibriKeys[] = {{"attention_bias", "false"},
                                             {"use_sliding_window", "true"},
                                             {"decoder_sparse_step", "1"},
                                             {"mlp_only_layers", "[]"}};
// Its code does not read it: all layers behind the dense ones route.
inline constexpr FamilyKey kAxK1Keys[] = {{"moe_layer_freq", "1"}};
// Nor the first, and it takes experts of other groups for 0 where DeepSeek's takes none of them.
inline constexpr FamilyKey kAxK2Keys[] = {
    {"moe_layer_freq", "1"}, {"n_group", "1"}, {"topk_group", "1"}};
// What of its router only DeepSeek's has, and a window, which none of its models has.
inline constexpr FamilyKey kMistral4Keys[] = {{"n_group", "1"},
                                              {"topk_group", "1"},
                                              {"routed_scaling_factor", "1"},
                                              {"sliding_window", "null"}};
inline constexpr FamilyKey kHy3Keys[] = {{"qk_norm", "true"}, {"mlp_bias", "false"}};
inline constexpr FamilyKey kGraniteHybridKeys[] = {{"normalization_function", "\"rmsnorm\""}};
// transformers' code of attention has no biases whatever the first says.
inline constexpr FamilyKey kNemotronHKeys[] = {{"attention_bias", "false"},
                                               {"mlp_bias", "false"},
                                               {"use_bias", "false"},
                                               {"mamba_proj_bias", "false"},
                                               {"mamba_hidden_act", "\"silu\""},
                                               {"sliding_window", "null"}};
// What its configs say of parts that all its models have, or none.
inline constexpr FamilyKey kJambaOnly[] = {{"mamba_inner_layernorms", "true"},
                                           {"sliding_window", "null"}};
// What its first configs say of parts that transformers' code has for none or for all.
inline constexpr FamilyKey kMimoKeys[] = {{"add_full_attention_sink_bias", "false"},
                                          {"add_swa_attention_sink_bias", "true"},
                                          {"hybrid_block_size", "null"},
                                          {"n_shared_experts", "0"},
                                          {"rope_scaling", "null"}};
// What transformers refuses, or takes of Qwen2-MoE and never has.
inline constexpr FamilyKey kLagunaKeys[] = {{"decoder_sparse_step", "1"},
                                            {"moe_apply_router_weight_on_input", "false"},
                                            {"moe_router_logit_softcapping", "0"},
                                            {"qkv_bias", "false"}};
inline constexpr FamilyKey kAriaKeys[] = {{"mlp_bias", "false"}};
inline constexpr FamilyKey kKimiKeys[] = {
    {"mla_use_nope", "true"}, {"use_grouped_topk", "true"}, {"moe_layer_freq", "1"}};
// What transformers' code does not ask, as it does nothing else, and limits of experts, which it
// has not (github ggml-org/llama.cpp, conversion of BailingMoeV3ForCausalLM; github sgl-project/
// sglang-jax has a copy of configuration_bailing_moe_v3.py).
inline constexpr FamilyKey kLing3Keys[] = {
    {"use_bias", "false"},
    {"use_qkv_bias", "false"},
    {"use_mla_nope", "false"},
    {"mla_use_nope", "false"},
    {"no_kda_lora", "true"},
    {"gated_attention_proj_granularity_type", "\"head_wise\""},
    {"scoring_func", "\"sigmoid\""},
    {"topk_method", "\"noaux_tc\""},
    {"routing_group_score_top_k", "2"},
    {"expert_swiglu_limit_list", "null"},
    {"share_expert_swiglu_limit_list", "null"}};
inline constexpr FamilyKey kHunYuanDenseKeys[] = {{"use_qk_norm", "true"},
                                                  {"use_rotary_pos_emb", "true"},
                                                  {"use_cla", "false"},
                                                  {"use_mla", "false"},
                                                  {"mlp_bias", "false"},
                                                  {"position_embedding_xdrope", "false"},
                                                  {"add_classification_head", "false"}};
// What published configs say that transformers' code does not ask (huggingface
// CohereLabs/c4ai-command-r7b-12-2024, CohereLabs/c4ai-command-r-v01).
inline constexpr FamilyKey kCohereKeys[] = {
    {"use_qk_norm", "false"},
    {"use_parallel_block", "true"},
    {"use_gated_activation", "true"},
    {"layer_norm_bias", "false"},
    {"rotary_pct", "1"},
    {"position_embedding_type", "\"rope_gptj\""},
    {"order_of_interleaved_layers", "\"local_attn_first\""}};

// Keys that are not read: of training, of what the keys above switch off, of pictures.
inline constexpr const char* kGlm4MoeUnread[] = {"router_aux_loss_coef"};
inline constexpr const char* kSolarUnread[] = {"intermediate_size"};
inline constexpr const char* kMellumUnread[] = {"max_window_layers", "mtp_layer_types",
                                                "mtp_mlp_layer_types"};
inline constexpr const char* kMiniMaxUnread[] = {"mlp_intermediate_size"};
// What shared experts are wide shows in the tensors.
inline constexpr const char* kLingUnread[] = {
    "embedding_dropout", "output_dropout",
    "router_dtype",      "moe_shared_expert_intermediate_size",
    "max_window_layers", "mtp_loss_scaling_factor"};
inline constexpr const char* kAfmoeUnread[] = {"use_grouped_mm", "load_balance_coeff"};
// What its experts are wide stands twice; most others say what is computed in f32.
inline constexpr const char* kHy3Unread[] = {"expert_hidden_dim",   "enable_attention_fp32_softmax",
                                             "enable_lm_head_fp32", "enable_moe_fp32_combine",
                                             "use_grouped_mm",      "eod_token_id"};
// Where sinks began, and the layers that guess tokens ahead.
inline constexpr const char* kHy4Unread[] = {"learnable_sink_init", "num_nextn_predict_layers"};
inline constexpr const char* kIndexedUnread[] = {"index_share_for_mtp_iteration",
                                                 "moe_router_dtype"};
inline constexpr const char* kErnieUnread[] = {"moe_capacity"};
inline constexpr const char* kCohereUnread[] = {"model_max_length", "layer_switch",
                                                "use_embedding_sharing", "use_parallel_embedding",
                                                "_sliding_window_pattern"};
// What its experts are wide "intermediate_size" says.
inline constexpr const char* kAriaUnread[] = {"moe_intermediate_size", "moe_aux_loss_coeff",
                                              "moe_z_loss_coeff"};
// Nothing turns, and a head's width is the sum of its parts.
inline constexpr const char* kKimiUnread[] = {"rope_theta", "rope_scaling", "rope_parameters",
                                              "head_dim"};
// What turns the widths of a head's parts say; the rest is of training, and of the layers that
// guess tokens ahead.
inline constexpr const char* kLing3Unread[] = {
    "embedding_dropout", "max_window_layers",     "moe_shared_expert_intermediate_size",
    "mtp_use_kda",       "output_dropout",        "mtp_loss_scaling_factor",
    "rotary_dim",        "partial_rotary_factor", "router_dtype",
    "use_qk_norm"};
inline constexpr const char* kLlama4Unread[] = {"for_llm_compressor"};
// A chunk that no code makes, and the epsilon where it stands under both keys.
inline constexpr const char* kMimoUnread[] = {"attention_chunk_size", "layernorm_epsilon"};
inline constexpr const char* kGraniteHybridUnread[] = {"init_method"};
// Ways to compute it, and how many logits are given.
inline constexpr const char* kJambaUnread[] = {"calc_logits_for_entire_prompt",
                                               "num_logits_to_keep", "use_associative_scan",
                                               "use_mamba_kernels", "use_mambapy"};
// Ways to compute or to draw what is read by other keys, its epsilon under other names, and
// frequencies by which nothing turns. "time_step_min" is of drawing: transformers 5 holds steps
// above it, the makers' code does not (github huggingface/transformers pull 48989).
inline constexpr const char* kNemotronHUnread[] = {"chunk_size",
                                                   "expand",
                                                   "hidden_dropout",
                                                   "mamba_ssm_cache_dtype",
                                                   "moe_shared_expert_overlap",
                                                   "mtp_hybrid_override_pattern",
                                                   "mtp_layers_block_type",
                                                   "norm_eps",
                                                   "num_logits_to_keep",
                                                   "partial_rotary_factor",
                                                   "rescale_prenorm_residual",
                                                   "residual_in_fp32",
                                                   "rms_norm_eps",
                                                   "rope_parameters",
                                                   "rope_scaling",
                                                   "rope_theta",
                                                   "time_step_floor",
                                                   "time_step_max",
                                                   "time_step_min",
                                                   "time_step_rank",
                                                   "use_mamba_kernels",
                                                   "_num_hidden_layers"};
inline constexpr const char* kHunYuanUnread[] = {
    "cla_share_factor", "kv_lora_rank", "q_lora_rank",    "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim",       "n_group",      "topk_group",     "norm_type",        "org_vocab_size",
    "class_num",        "dense_list",   "pool_type",      "skip_cls_token",   "num_media_embeds",
    "xdrope_section",   "eod_token_id", "image_token_id", "pad_id",           "mask_init_id",
    "im_start_id",      "im_end_id",    "im_newline_id",  "text_start_id",    "text_end_id",
    "video_start_id",   "video_end_id"};
inline constexpr Family kMixtral = {.window = FamilyWindow::mistral, .experts = &kMixtralExperts};
inline constexpr Family kPhiMoe = {.biases = FamilyBiases::flag,
                                   .window = FamilyWindow::mistral,
                                   .layer_norms = true,
                                   .phimoe = true,
                                   .experts = &kPhiMoeExperts};
inline constexpr Family kQwen2Moe = {
    .biases = FamilyBiases::qkv_bias, .window = FamilyWindow::never, .experts = &kQwen2Experts};
inline constexpr Family kQwen3Moe = {.biases = FamilyBiases::flag_or_none,
                                     .window = FamilyWindow::never,
                                     .qk_norm = QkNorm::head,
                                     .experts = &kQwen3Experts,
                                     .keys = kQwen3MoeKeys};
inline constexpr Family kDeepSeek = {.biases = FamilyBiases::flag,
                                     .experts = &kFirstDeepSeekExperts,
                                     .keys = kDeepSeekKeys,
                                     .unread = kDeepSeekUnread};
inline constexpr Family kDeepSeekV2 = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::latent,
                                       .experts = &kDeepSeekExperts,
                                       .router = &kDeepSeekV2Router};
inline constexpr Family kDeepSeekV3 = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::latent,
                                       .experts = &kDeepSeekExperts,
                                       .router = &kDeepSeekV3Router};
// DeepSeek-V3.2 and GLM-5 (transformers:deepseek_v32/modeling_deepseek_v32.py, glm_moe_dsa/
// modeling_glm_moe_dsa.py). They differ in their indexers alone.
inline constexpr Family kDeepSeekV32 = {.biases = FamilyBiases::flag,
                                        .head_width = HeadWidth::latent,
                                        .latent_head_dim = LatentHeadDim::unread,
                                        .indexed = true,
                                        .experts = &kIndexedExperts,
                                        .router = &kDeepSeekV3Router,
                                        .keys = kDeepSeekV32Keys,
                                        .unread = kIndexedUnread};
inline constexpr Family kGlmDsa = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::latent,
                                   .latent_head_dim = LatentHeadDim::unread,
                                   .indexed = true,
                                   .shared_indexers = true,
                                   .experts = &kIndexedExperts,
                                   .router = &kDeepSeekV3Router,
                                   .keys = kGlmDsaKeys,
                                   .unread = kIndexedUnread};
// (transformers:longcat_flash/modeling_longcat_flash.py)
inline constexpr Family kLongcatFlash = {.head_width = HeadWidth::latent,
                                         .act_key = nullptr,
                                         .silu = true,
                                         .longcat = true,
                                         .experts = &kLongcatExperts,
                                         .keys = kLongcatKeys};
// (transformers:axk2/modeling_axk2.py)
inline constexpr Family kAxK2 = {.biases = FamilyBiases::flag,
                                 .head_width = HeadWidth::latent,
                                 .latent_head_dim = LatentHeadDim::unread,
                                 .attention_gate = true,
                                 .indexed = true,
                                 .axk2 = true,
                                 .experts = &kIndexedExperts,
                                 .router = &kAxK2Router,
                                 .may_lack_balance = true,
                                 .keys = kAxK2Keys};
// GLM-5's attention with sinks and a gate (transformers:hy_v4/modeling_hy_v4.py).
inline constexpr Family kHy4 = {.biases = FamilyBiases::flag,
                                .head_width = HeadWidth::latent,
                                .latent_head_dim = LatentHeadDim::unread,
                                .attention_gate = true,
                                .sinks = true,
                                .indexed = true,
                                .shared_indexers = true,
                                .streams = true,
                                .experts = &kIndexedExperts,
                                .router = &kDeepSeekV3Router,
                                .unread = kHy4Unread};
// (transformers:kolibri1/modeling_kolibri1.py)
inline constexpr Family kKolibri = {.head_width = HeadWidth::must,
                                    .window = FamilyWindow::listed,
                                    .window_every = 5,
                                    .qk_norm = QkNorm::head,
                                    .rotary = FamilyRotary::windowed_or_all,
                                    .placement = NormPlacement::both,
                                    .experts = &kKolibriExperts,
                                    .may_lack_balance = true,
                                    .keys = kKolibriKeys};
// (transformers:llama4/modeling_llama4.py)
inline constexpr Family kLlama4 = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .qk_norm = QkNorm::bare,
                                   .qk_norm_flag = true,
                                   .rotary = FamilyRotary::by_layer,
                                   .llama4 = true,
                                   .norm_turned = true,
                                   .experts = &kLlama4Experts,
                                   .unread = kLlama4Unread};
// DeepSeek-V3 with a norm behind experts (transformers:axk1/modeling_axk1.py).
inline constexpr Family kAxK1 = {.biases = FamilyBiases::flag_or_none,
                                 .head_width = HeadWidth::latent,
                                 .moe_out_norm = true,
                                 .experts = &kGlmExperts,
                                 .router = &kDeepSeekV3Router,
                                 .keys = kAxK1Keys};
// (transformers:mistral4/modeling_mistral4.py)
inline constexpr Family kMistral4 = {.biases = FamilyBiases::flag_or_none,
                                     .head_width = HeadWidth::latent,
                                     .latent_head_dim = LatentHeadDim::whole,
                                     .query_growth = true,
                                     .experts = &kMistral4Experts,
                                     .may_lack_balance = true,
                                     .keys = kMistral4Keys};

inline constexpr Family kGlm4Moe = {.biases = FamilyBiases::qkv_flag,
                                    .head_width = HeadWidth::must,
                                    .qk_norm = QkNorm::head,
                                    .qk_norm_flag = true,
                                    .rotary = FamilyRotary::half,
                                    .experts = &kDeepSeekExperts,
                                    .router = &kDeepSeekV3Router,
                                    .unread = kGlm4MoeUnread};
inline constexpr Family kSolarOpen = {.biases = FamilyBiases::qkv_flag,
                                      .head_width = HeadWidth::must,
                                      .experts = &kSolarExperts,
                                      .router = &kDeepSeekV3Router,
                                      .keys = kSolarKeys,
                                      .unread = kSolarUnread};
inline constexpr Family kGlm4MoeLite = {.biases = FamilyBiases::flag,
                                        .head_width = HeadWidth::latent,
                                        .experts = &kGlmExperts,
                                        .router = &kDeepSeekV3Router,
                                        .keys = kGlm4MoeLiteKeys};
inline constexpr Family kDots1 = {.biases = FamilyBiases::flag,
                                  .window = FamilyWindow::dots,
                                  .qk_norm = QkNorm::head,
                                  .experts = &kDeepSeekExperts,
                                  .router = &kDots1Router};
inline constexpr Family kMiniMaxM2 = {.head_width = HeadWidth::must,
                                      .qk_norm = QkNorm::full,
                                      .rotary = FamilyRotary::dim,
                                      .experts = &kMixtralExperts,
                                      .router = &kMiniMaxRouter,
                                      .may_lack_balance = true,
                                      .keys = kMiniMaxKeys,
                                      .unread = kMiniMaxUnread};
// MiniMax-Text-01 and MiniMax-M1 (transformers:minimax/modeling_minimax.py). How much of a head
// turns transformers does not ask; the code that lies with their weights does.
inline constexpr Family kMiniMax01 = {.window = FamilyWindow::mistral,
                                      .rotary = FamilyRotary::dim,
                                      .placement = NormPlacement::carried,
                                      .mixers = &kLightningMixers,
                                      .experts = &kMixtralExperts,
                                      .keys = kMiniMax01Keys,
                                      .unread = kMiniMax01Unread};
// (transformers:minimax_m3_vl/modeling_minimax_m3_vl.py)
inline constexpr Family kMiniMaxM3 = {.head_width = HeadWidth::must,
                                      .qk_norm = QkNorm::head,
                                      .rotary = FamilyRotary::dim,
                                      .from_one = true,
                                      .blocks = true,
                                      .experts = &kMiniMaxM3Experts,
                                      .router = &kMiniMaxM3Router,
                                      .may_lack_balance = true,
                                      .keys = kMiniMaxM3Keys};
inline constexpr Family kErnie45Moe = {.experts = &kErnieExperts,
                                       .may_lack_balance = true,
                                       .keys = kErnieKeys,
                                       .unread = kErnieUnread};
// "enable_moe_block" says whether it has experts.
inline constexpr Family kGemma4 = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .window_every = 6,
                                   .window_rope = WindowRope::local,
                                   .qk_norm = QkNorm::head,
                                   .placement = NormPlacement::both,
                                   .act_key = "hidden_activation",
                                   .gemma = FamilyGemma::gemma4,
                                   .tied_unless_said = true,
                                   .experts = &kGemma4Experts,
                                   .may_lack_balance = true};
inline constexpr Family kQwen3Next = {.head_width = HeadWidth::must,
                                      .qk_norm = QkNorm::head,
                                      .rotary = FamilyRotary::quarter,
                                      .from_one = true,
                                      .mixers = &kQwen3NextMixers,
                                      .attention_gate = true,
                                      .experts = &kQwen3NextExperts};
inline constexpr Family kQwen35Moe = {.head_width = HeadWidth::must,
                                      .qk_norm = QkNorm::head,
                                      .rotary = FamilyRotary::quarter,
                                      .from_one = true,
                                      .mixers = &kQwen3NextMixers,
                                      .attention_gate = true,
                                      .experts = &kQwen35Experts,
                                      .keys = kQwen35Keys};
inline constexpr Family kQwen35 = {.head_width = HeadWidth::must,
                                   .qk_norm = QkNorm::head,
                                   .rotary = FamilyRotary::quarter,
                                   .from_one = true,
                                   .mixers = &kQwen3NextMixers,
                                   .attention_gate = true,
                                   .keys = kQwen35Keys};
// Its layers have windows, and route, as lists of them say.
inline constexpr Family kMellum = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .window_every = 1,
                                   .window_rope = WindowRope::listed,
                                   .qk_norm = QkNorm::head,
                                   .experts = &kMellumExperts,
                                   .keys = kMellumKeys,
                                   .unread = kMellumUnread};
inline constexpr Family kLfm2Moe = {.qk_norm = QkNorm::head,
                                    .eps_key = "norm_eps",
                                    .act_key = nullptr,
                                    .silu = true,
                                    .mixers = &kLfm2Mixers,
                                    .tied_unless_said = true,
                                    .experts = &kLfm2Experts,
                                    .router = &kLfm2Router,
                                    .may_lack_balance = true};
inline constexpr Family kHunYuanMoe = {.biases = FamilyBiases::flag,
                                       .qk_norm = QkNorm::head,
                                       .norm_turned = true,
                                       .head_width_too = "attention_head_dim",
                                       .experts = &kHunYuanExperts,
                                       .may_lack_balance = true,
                                       .keys = kHunYuanKeys,
                                       .unread = kHunYuanUnread};
inline constexpr Family kLing2 = {.head_width = HeadWidth::must,
                                  .qk_norm = QkNorm::head,
                                  .qk_norm_flag = true,
                                  .rotary = FamilyRotary::said,
                                  .experts = &kLingExperts,
                                  .router = &kLingRouter,
                                  .keys = kLingKeys,
                                  .unread = kLingUnread};
// Its selection biases are taken as they are: other programs take their mean off (github
// vllm-project/vllm vllm/model_executor/models/sarvam.py), which changes no choice.
inline constexpr Family kSarvamMoe = {.head_width = HeadWidth::must,
                                      .qk_norm = QkNorm::head,
                                      .qk_norm_flag = true,
                                      .experts = &kLingExperts,
                                      .router = &kLingRouter,
                                      .keys = kSarvamKeys,
                                      .unread = kLingUnread};
inline constexpr Family kAfmoe = {.head_width = HeadWidth::must,
                                  .window = FamilyWindow::listed,
                                  .every_key = "global_attn_every_n_layers",
                                  .qk_norm = QkNorm::head,
                                  .rotary = FamilyRotary::windowed,
                                  .placement = NormPlacement::both,
                                  .mup = true,
                                  .attention_gate = true,
                                  .experts = &kAfmoeExperts,
                                  .router = &kAfmoeRouter,
                                  .may_lack_balance = true,
                                  .keys = kAfmoeKeys,
                                  .unread = kAfmoeUnread};
inline constexpr Family kExaoneMoe = {.window = FamilyWindow::listed,
                                      .every_key = "sliding_window_pattern",
                                      .qk_norm = QkNorm::head,
                                      .rotary = FamilyRotary::windowed,
                                      .experts = &kExaoneExperts,
                                      .router = &kDeepSeekV3Router};
inline constexpr Family kHy3 = {.biases = FamilyBiases::flag_or_none,
                                .head_width = HeadWidth::must,
                                .qk_norm = QkNorm::head,
                                .experts = &kHy3Experts,
                                .router = &kHy3Router,
                                .may_lack_balance = true,
                                .keys = kHy3Keys,
                                .unread = kHy3Unread};
inline constexpr Family kFlexOlmo = {.biases = FamilyBiases::flag,
                                     .qk_norm = QkNorm::full,
                                     .placement = NormPlacement::output,
                                     .experts = &kOlmoExperts};
// Its experts are clamped SwiGLU whatever "hidden_act" says, and have biases.
inline constexpr Family kGptOss = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .sinks = true,
                                   .experts = &kGptOssExperts};
// (transformers:mimo_v2_flash/modeling_mimo_v2_flash.py)
inline constexpr Family kMimoV2Flash = {.biases = FamilyBiases::qkv_flag,
                                        .head_width = HeadWidth::must,
                                        .window = FamilyWindow::listed,
                                        .window_rope = WindowRope::parts,
                                        .older_eps_key = "layernorm_epsilon",
                                        .sinks = true,
                                        .mimo = true,
                                        .experts = &kMimoExperts,
                                        .router = &kMimoRouter,
                                        .keys = kMimoKeys,
                                        .unread = kMimoUnread};
// (transformers:laguna/modeling_laguna.py); without "layer_types" no layer has a window.
inline constexpr Family kLaguna = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .window_every = 1,
                                   .window_rope = WindowRope::parts,
                                   .qk_norm = QkNorm::head,
                                   .attention_gate = true,
                                   .laguna = true,
                                   .experts = &kLagunaExperts,
                                   .router = &kLagunaRouter,
                                   .may_lack_balance = true,
                                   .keys = kLagunaKeys};
// Where "layer_types" is missing its code has a list of its own, which no interval says, so that
// the key is needed (transformers:flint/modeling_flint.py).
inline constexpr Family kFlint = {.biases = FamilyBiases::flag,
                                  .head_width = HeadWidth::must,
                                  .window = FamilyWindow::listed,
                                  .every_key = "layer_types",
                                  .qk_norm = QkNorm::head,
                                  .rotary = FamilyRotary::windowed,
                                  .sinks = true,
                                  .experts = &kFlintExperts};
inline constexpr Family kGraniteMoe = {
    .biases = FamilyBiases::flag, .multipliers = true, .experts = &kMixtralExperts};
inline constexpr Family kGraniteMoeShared = {
    .biases = FamilyBiases::flag, .multipliers = true, .experts = &kGraniteSharedExperts};
inline constexpr Family kGraniteMoeSwa = {.biases = FamilyBiases::flag,
                                          .window = FamilyWindow::listed,
                                          .window_every = 4,
                                          .first_full = true,
                                          .rotary = FamilyRotary::bases,
                                          .multipliers = true,
                                          .sinks = true,
                                          .experts = &kGraniteSharedExperts};
// Granite 4 (transformers:granitemoehybrid/modeling_granitemoehybrid.py).
inline constexpr Family kGraniteMoeHybrid = {.biases = FamilyBiases::flag,
                                             .rotary = FamilyRotary::all_or_none,
                                             .silu = true,
                                             .multipliers = true,
                                             .mixers = &kGraniteHybridMixers,
                                             .experts = &kGraniteHybridExperts,
                                             .keys = kGraniteHybridKeys,
                                             .unread = kGraniteHybridUnread};
// Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano (transformers:nemotron_h/modeling_nemotron_h.py).
inline constexpr Family kNemotronH = {.rotary = FamilyRotary::none,
                                      .eps_key = "layer_norm_epsilon",
                                      .act_key = "mlp_hidden_act",
                                      .plain_ffn = true,
                                      .mixers = &kNemotronHMixers,
                                      .head_width_too = "attention_head_dim",
                                      .experts = &kNemotronHExperts,
                                      .router = &kNemotronHRouter,
                                      .keys = kNemotronHKeys,
                                      .unread = kNemotronHUnread};
// (transformers:jamba/modeling_jamba.py)
inline constexpr Family kJamba = {.rotary = FamilyRotary::none,
                                  .silu = true,
                                  .mixers = &kJambaMixers,
                                  .experts = &kJambaExperts,
                                  .keys = kJambaOnly,
                                  .unread = kJambaUnread};
inline constexpr Family kAria = {.biases = FamilyBiases::flag_or_none,
                                 .silu = true,
                                 .experts = &kAriaExperts,
                                 .may_lack_balance = true,
                                 .keys = kAriaKeys,
                                 .unread = kAriaUnread};
inline constexpr Family kHunYuanDense = {.biases = FamilyBiases::flag,
                                         .qk_norm = QkNorm::head,
                                         .norm_turned = true,
                                         .head_width_too = "attention_head_dim",
                                         .keys = kHunYuanDenseKeys,
                                         .unread = kHunYuanUnread};
// (transformers:cohere/modeling_cohere.py, cohere2/modeling_cohere2.py)
inline constexpr Family kCohere = {.biases = FamilyBiases::flag,
                                   .placement = NormPlacement::beside,
                                   .eps_key = "layer_norm_eps",
                                   .layer_norms = true,
                                   .norm_biases = false,
                                   .logit_factor = "logit_scale",
                                   .tied_unless_said = true,
                                   .keys = kCohereKeys,
                                   .unread = kCohereUnread};
inline constexpr Family kCohere2 = {.biases = FamilyBiases::flag,
                                    .head_width = HeadWidth::even,
                                    .window = FamilyWindow::listed,
                                    .every_key = "sliding_window_pattern",
                                    .rotary = FamilyRotary::windowed,
                                    .placement = NormPlacement::beside,
                                    .eps_key = "layer_norm_eps",
                                    .layer_norms = true,
                                    .norm_biases = false,
                                    .logit_factor = "logit_scale",
                                    .tied_unless_said = true,
                                    .keys = kCohereKeys,
                                    .unread = kCohereUnread};
// (transformers:cohere2_moe/modeling_cohere2_moe.py)
inline constexpr Family kCohere2Moe = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::must,
                                       .window = FamilyWindow::listed,
                                       .dense_windows = true,
                                       .every_key = "sliding_window_pattern",
                                       .rotary = FamilyRotary::windowed,
                                       .placement = NormPlacement::beside,
                                       .eps_key = "layer_norm_eps",
                                       .layer_norms = true,
                                       .either_norm = true,
                                       .norm_biases = false,
                                       .logit_factor = "logit_scale",
                                       .tied_unless_said = true,
                                       .experts = &kCohereExperts,
                                       .may_lack_balance = true,
                                       .keys = kCohereKeys,
                                       .unread = kCohereUnread};
// (transformers:kimi_linear/modeling_kimi_linear.py)
inline constexpr Family kKimiLinear = {.head_width = HeadWidth::latent,
                                       .latent_head_dim = LatentHeadDim::unread,
                                       .rotary = FamilyRotary::none,
                                       .context_key = "model_max_length",
                                       .silu = true,
                                       .mixers = &kKimiMixers,
                                       .experts = &kKimiExperts,
                                       .router = &kKimiRouter,
                                       .keys = kKimiKeys,
                                       .unread = kKimiUnread};
// Kimi Linear whose latent attention turns and has gates (transformers:bailing_hybrid/
// modeling_bailing_hybrid.py).
inline constexpr Family kLing3 = {.head_width = HeadWidth::latent,
                                  .latent_head_dim = LatentHeadDim::linear,
                                  .may_lack_query_rank = true,
                                  .other_context_key = "model_max_length",
                                  .silu = true,
                                  .mixers = &kLing3Mixers,
                                  .attention_gate = true,
                                  .head_gates = true,
                                  .experts = &kLing3Experts,
                                  .router = &kLing3Router,
                                  .keys = kLing3Keys,
                                  .unread = kLing3Unread};

}  // namespace moe
