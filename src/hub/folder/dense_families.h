// The dense families of transformers (transformers:models/*) that are built like Llama, a row for
// what sets each apart. Those that share rows of keys with experts of their family stand with them
// in families.h, which says how one is added.
#pragma once

#include "hub/folder/family.h"
#include "hub/folder/mixer_rows.h"

namespace moe {

// How wide FFNs are of LFM2's models without experts (family_mixers.cpp).
int64_t read_lfm2_width(const JsonReader&);
void write_lfm2_width(Json&);

// What the texts of dots.ocr and InternVL say beside Qwen2's.
inline constexpr FamilyKey kQwen2Keys[] = {{"attention_bias", "true"}, {"moe_config", "null"}};
inline constexpr FamilyKey kSeedOssKeys[] = {{"attention_out_bias", "false"},
                                             {"mlp_bias", "false"}};
inline constexpr FamilyKey kErnie45Keys[] = {{"use_bias", "false"}};
inline constexpr FamilyKey kStableLmKeys[] = {{"qk_layernorm", "false"},
                                              {"use_parallel_residual", "false"}};
inline constexpr FamilyKey kHeliumKeys[] = {{"mlp_bias", "false"}};
inline constexpr FamilyKey kCwmKeys[] = {{"mlp_bias", "false"}};
inline constexpr FamilyKey kIQuestCoderKeys[] = {{"clip_qkv", "null"},
                                                 {"use_sliding_window", "false"}};
// Of windows, which have to be off.
inline constexpr const char* kIQuestCoderUnread[] = {"sliding_window", "max_window_layers"};
inline constexpr FamilyKey kLfm2Keys[] = {{"block_use_swiglu", "true"}};
// What published configs say that transformers' code does not ask (huggingface
// microsoft/Phi-4-mini-instruct, bigcode/starcoder2-3b, bigcode/starcoder2-15b).
inline constexpr FamilyKey kPhi3Keys[] = {{"attention_bias", "false"},
                                          {"mlp_bias", "false"},
                                          {"lm_head_bias", "false"},
                                          {"full_attn_mod", "1"},
                                          {"interpolate_factor", "1"}};
inline constexpr FamilyKey kStarcoder2Keys[] = {
    {"mlp_type", "\"default\""}, {"norm_type", "\"layer_norm\""}, {"scale_attn_weights", "true"}};
// Dropouts: there is none here, and they belong to a training.
inline constexpr const char* kResidualDropout[] = {"residual_dropout", "embedding_dropout",
                                                   "hidden_dropout", "resid_pdrop", "embd_pdrop"};
// What the texts of Idefics3 and SmolVLM say of parts that they have not, and of their pictures
// (huggingface HuggingFaceTB/SmolVLM2-500M-Video-Instruct).
inline constexpr FamilyKey kLlamaKeys[] = {{"qk_layer_norms", "false"}, {"use_resampler", "false"}};
inline constexpr const char* kLlamaUnread[] = {"neftune_noise_alpha", "pixel_shuffle_factor",
                                               "perceiver_config", "_flash_attn_2_enabled",
                                               "transformers.js_config"};
// What its configs say of parts that its code has always, or never.
inline constexpr FamilyKey kApertusKeys[] = {
    {"qk_norm", "true"}, {"post_norm", "false"}, {"mlp_bias", "false"}};
// These, what is computed in f32, and its epsilon under other names.
inline constexpr const char* kStarcoder2Unread[] = {
    "residual_dropout",          "embedding_dropout",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    "layer_norm_epsilon",        "rms_norm_eps"};
// What its first configs said a second time, and how its weights were drawn.
inline constexpr const char* kLfm2Unread[] = {"block_dim",      "block_mlp_init_scale",
                                              "block_norm_eps", "block_out_init_scale",
                                              "conv_dim_out",   "block_use_xavier_init",
                                              "conv_dim",       "conv_use_xavier_init",
                                              "full_attn_idxs", "theta"};
// (huggingface google/gemma-2-9b, whose other keys say the same)
inline constexpr const char* kGemma2Unread[] = {"hidden_act", "sliding_window_size"};
// How many logits are worked out, which kernels, and a loss of its training beside the usual one
// (Bamba-9B, by other programs' tests; its own page was not read).
inline constexpr const char* kBambaUnread[] = {"num_logits_to_keep", "use_mamba_kernels",
                                               "z_loss_coefficient"};
// What an earlier name of the family said of a part that all its models have, and how weights are
// drawn.
inline constexpr FamilyKey kOlmoHybridKeys[] = {{"linear_use_gate", "true"}};
inline constexpr const char* kOlmoHybridUnread[] = {"linear_a_log_min", "linear_a_log_max",
                                                    "linear_dt_min", "linear_dt_max",
                                                    "linear_dt_init_floor"};
// What its configs say of parts that its models have always, or never, and how many logits are
// worked out (Falcon-H1-0.5B, by other programs; its own page was not read).
inline constexpr FamilyKey kFalconH1Keys[] = {{"attention_bias", "false"},
                                              {"mlp_bias", "false"},
                                              {"projectors_bias", "false"},
                                              {"attn_layer_indices", "null"},
                                              {"mamba_use_mlp", "true"}};
inline constexpr const char* kFalconH1Unread[] = {"num_logits_to_keep", "mlp_expansion_factor"};
inline constexpr const char* kYoutuUnread[] = {"embedding_initializer_range"};

inline constexpr Family kLlama = {
    .biases = FamilyBiases::flag_later, .keys = kLlamaKeys, .unread = kLlamaUnread};
// (huggingface internlm/internlm3-8b-instruct; transformers 5 names the flags as Llama does, and
// takes one of them without the other for a mistake)
inline constexpr Family kInternLm3 = {.biases = FamilyBiases::two_flags};
// (transformers:iquestcoder/modular_iquestcoder.py)
inline constexpr Family kIQuestCoder = {
    .biases = FamilyBiases::flag_later, .keys = kIQuestCoderKeys, .unread = kIQuestCoderUnread};
inline constexpr Family kMistral = {.window = FamilyWindow::mistral};
// (transformers:ministral/modular_ministral.py)
inline constexpr Family kMinistral = {.window = FamilyWindow::listed, .window_every = 0};
// (transformers:ministral3/modeling_ministral3.py)
inline constexpr Family kMinistral3 = {.window = FamilyWindow::mistral, .query_growth = true};
inline constexpr Family kQwen2 = {
    .biases = FamilyBiases::qkv, .window = FamilyWindow::qwen, .keys = kQwen2Keys};
inline constexpr Family kQwen3 = {.biases = FamilyBiases::flag,
                                  .head_width = HeadWidth::must,
                                  .window = FamilyWindow::qwen,
                                  .qk_norm = QkNorm::head};
// (transformers:olmo/modeling_olmo.py)
inline constexpr Family kOlmo = {.biases = FamilyBiases::flag,
                                 .eps_key = nullptr,
                                 .layer_norms = true,
                                 .norm_biases = false,
                                 .norm_weights = false,
                                 .clip_key = "clip_qkv"};
inline constexpr Family kOlmo2 = {
    .biases = FamilyBiases::flag, .qk_norm = QkNorm::full, .placement = NormPlacement::output};
inline constexpr Family kOlmo3 = {.biases = FamilyBiases::flag,
                                  .window = FamilyWindow::listed,
                                  .window_every = 4,
                                  .window_rope = WindowRope::plain,
                                  .qk_norm = QkNorm::full,
                                  .placement = NormPlacement::output};
inline constexpr Family kGemma2 = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .placement = NormPlacement::both,
                                   .act_key = "hidden_activation",
                                   .gemma = FamilyGemma::gemma2,
                                   .tied_unless_said = true,
                                   .unread = kGemma2Unread};
// Gemma 2 with norms before sublayers alone (transformers:vaultgemma/modular_vaultgemma.py).
inline constexpr Family kVaultGemma = {.biases = FamilyBiases::flag,
                                       .head_width = HeadWidth::must,
                                       .window = FamilyWindow::listed,
                                       .act_key = "hidden_activation",
                                       .gemma = FamilyGemma::gemma2,
                                       .tied_unless_said = true};
inline constexpr Family kGemma3 = {.biases = FamilyBiases::flag,
                                   .head_width = HeadWidth::must,
                                   .window = FamilyWindow::listed,
                                   .window_every = 6,
                                   .window_rope = WindowRope::local,
                                   .qk_norm = QkNorm::head,
                                   .placement = NormPlacement::both,
                                   .act_key = "hidden_activation",
                                   .gemma = FamilyGemma::gemma3,
                                   .tied_unless_said = true};
inline constexpr Family kSmolLm3 = {.biases = FamilyBiases::flag_later,
                                    .window = FamilyWindow::never,
                                    .rotary = FamilyRotary::by_layer,
                                    .tied_unless_said = true};

// Of the following none has experts.
inline constexpr Family kGranite = {.biases = FamilyBiases::flag_later, .multipliers = true};
// Granite whose logits are multiplied (transformers:hyperclovax/modeling_hyperclovax.py).
inline constexpr Family kHyperClovaX = {.biases = FamilyBiases::flag_later,
                                        .placement = NormPlacement::both,
                                        .post_norm_key = "use_post_norm",
                                        .logit_factor = "logits_scaling",
                                        .multipliers = true,
                                        .unread = kResidualDropout};
inline constexpr Family kGraniteSwa = {.biases = FamilyBiases::flag_later,
                                       .window = FamilyWindow::listed,
                                       .window_every = 4,
                                       .first_full = true,
                                       .rotary = FamilyRotary::bases,
                                       .multipliers = true,
                                       .sinks = true};
inline constexpr Family kPhi3 = {.window = FamilyWindow::mistral,
                                 .rotary = FamilyRotary::all,
                                 .longrope = true,
                                 .keys = kPhi3Keys,
                                 .unread = kResidualDropout};
inline constexpr Family kGlm = {
    .biases = FamilyBiases::qkv_flag, .head_width = HeadWidth::must, .rotary = FamilyRotary::half};
inline constexpr Family kGlm4 = {.biases = FamilyBiases::qkv_flag,
                                 .head_width = HeadWidth::must,
                                 .rotary = FamilyRotary::half,
                                 .placement = NormPlacement::both};
inline constexpr Family kSeedOss = {.biases = FamilyBiases::qkv_flag,
                                    .head_width = HeadWidth::must,
                                    .keys = kSeedOssKeys,
                                    .unread = kResidualDropout};
inline constexpr Family kErnie45 = {
    .head_width = HeadWidth::must, .tied_unless_said = true, .keys = kErnie45Keys};
inline constexpr Family kExaone4 = {.window = FamilyWindow::listed,
                                    .every_key = "sliding_window_pattern",
                                    .qk_norm = QkNorm::head,
                                    .rotary = FamilyRotary::windowed_or_all,
                                    .placement = NormPlacement::output};
inline constexpr Family kLfm2 = {.qk_norm = QkNorm::head,
                                 .eps_key = "norm_eps",
                                 .act_key = nullptr,
                                 .silu = true,
                                 .mixers = &kLfm2Mixers,
                                 .tied_unless_said = true,
                                 .read_width = read_lfm2_width,
                                 .write_width = write_lfm2_width,
                                 .keys = kLfm2Keys,
                                 .unread = kLfm2Unread};
// (transformers:lfm3/modeling_lfm3.py)
inline constexpr Family kLfm3 = {.biases = FamilyBiases::flag_or_none,
                                 .head_width = HeadWidth::must,
                                 .window = FamilyWindow::own,
                                 .window_rope = WindowRope::listed,
                                 .qk_norm = QkNorm::head,
                                 .placement = NormPlacement::both,
                                 .post_norm_key = "use_sandwich_norm",
                                 .eps_key = "norm_eps",
                                 .act_key = nullptr,
                                 .silu = true,
                                 .mixers = &kLfm3Mixers,
                                 .attention_gate = true,
                                 .head_gates = true,
                                 .gate_key = "use_attention_gate",
                                 .tied_unless_said = true};
inline constexpr Family kGemma = {.biases = FamilyBiases::flag,
                                  .head_width = HeadWidth::must,
                                  .act_key = nullptr,
                                  .gemma = FamilyGemma::gemma,
                                  .tied_unless_said = true};
inline constexpr Family kStableLm = {.biases = FamilyBiases::use_qkv,
                                     .head_width = HeadWidth::even,
                                     .rotary = FamilyRotary::quarter,
                                     .eps_key = "layer_norm_eps",
                                     .layer_norms = true,
                                     .keys = kStableLmKeys,
                                     .unread = kResidualDropout};
inline constexpr Family kStarcoder2 = {.biases = FamilyBiases::use_all,
                                       .window = FamilyWindow::mistral,
                                       .eps_key = "norm_epsilon",
                                       .layer_norms = true,
                                       .plain_ffn = true,
                                       .tied_unless_said = true,
                                       .keys = kStarcoder2Keys,
                                       .unread = kStarcoder2Unread};
// Its projection back is as wide as the model, and never has a bias (transformers:helium/
// modeling_helium.py).
inline constexpr Family kHelium = {
    .biases = FamilyBiases::qkv_flag, .head_width = HeadWidth::even, .keys = kHeliumKeys};
// (transformers:arcee/modeling_arcee.py)
inline constexpr Family kArcee = {
    .biases = FamilyBiases::flag_later, .plain_ffn = true, .relu2 = true};
// (transformers:nemotron/modeling_nemotron.py; of its configs github NVIDIA/NeMo,
// scripts/checkpoint_converters/convert_nemotron_nemo_to_hf.py)
inline constexpr Family kNemotron = {.biases = FamilyBiases::flag_later,
                                     .rotary = FamilyRotary::half,
                                     .eps_key = "norm_eps",
                                     .layer_norms = true,
                                     .from_one = true,
                                     .plain_ffn = true,
                                     .relu2 = true,
                                     .head_width_too = "kv_channels"};
// (transformers:jais2/modular_jais2.py)
inline constexpr Family kJais2 = {.biases = FamilyBiases::both,
                                  .eps_key = "layer_norm_eps",
                                  .layer_norms = true,
                                  .plain_ffn = true,
                                  .relu2 = true};
// Llama 3 with windows (transformers:cwm/modular_cwm.py).
inline constexpr Family kCwm = {.head_width = HeadWidth::must,
                                .window = FamilyWindow::listed,
                                .window_every = 4,
                                .first_full = true,
                                .needs_begin = true,
                                .keys = kCwmKeys};
// (transformers:nanochat/modeling_nanochat.py)
inline constexpr Family kNanoChat = {.biases = FamilyBiases::flag_or_none,
                                     .qk_norm = QkNorm::head,
                                     .norm_weights = false,
                                     .plain_ffn = true,
                                     .relu2 = true,
                                     .nanochat = true,
                                     .norm_turned = true};
// (transformers:apertus/modeling_apertus.py)
inline constexpr Family kApertus = {.biases = FamilyBiases::flag,
                                    .qk_norm = QkNorm::head,
                                    .act_key = nullptr,
                                    .plain_ffn = true,
                                    .xielu = true,
                                    .keys = kApertusKeys,
                                    .unread = kResidualDropout};
// (transformers:bamba/modeling_bamba.py)
inline constexpr Family kBamba = {.biases = FamilyBiases::flag_later,
                                  .rotary = FamilyRotary::half,
                                  .silu = true,
                                  .mixers = &kBambaMixers,
                                  .unread = kBambaUnread};
// (transformers:olmo_hybrid/modeling_olmo_hybrid.py)
inline constexpr Family kOlmoHybrid = {.biases = FamilyBiases::flag,
                                       .qk_norm = QkNorm::full,
                                       .rotary = FamilyRotary::null_base,
                                       .placement = NormPlacement::output,
                                       .silu = true,
                                       .mixers = &kOlmoHybridMixers,
                                       .keys = kOlmoHybridKeys,
                                       .unread = kOlmoHybridUnread};
// (transformers:falcon_h1/modeling_falcon_h1.py)
inline constexpr Family kFalconH1 = {.logit_factor = "lm_head_multiplier",
                                     .silu = true,
                                     .mixers = &kFalconH1Mixers,
                                     .keys = kFalconH1Keys,
                                     .unread = kFalconH1Unread};
// (transformers:minicpm3/modular_minicpm3.py)
inline constexpr Family kMiniCpm3 = {.biases = FamilyBiases::flag_or_none,
                                     .head_width = HeadWidth::latent,
                                     .longrope = true,
                                     .minicpm = true,
                                     .tied_unless_said = true};
inline constexpr Family kYoutu = {
    .biases = FamilyBiases::flag, .head_width = HeadWidth::latent, .unread = kYoutuUnread};

}  // namespace moe
