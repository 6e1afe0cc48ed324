// The rows: families of transformers (transformers:models/*), those whose code lies with their
// weights, and moe_cpp with two sets of tensor names, nanoMoE's (github wolfecameron/nanoMoE,
// model.py) for what its program can load and those of Hugging Face for everything else.
#include "hub/folder/architectures.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/config_fields.h"
#include "hub/folder/dense_families.h"
#include "hub/folder/families.h"
#include "hub/folder/family_fields.h"

namespace moe {
namespace {

bool routes(const ModelConfig& c) { return find_recipe(c.routing.recipe).has_router(); }

std::string why_not_olmoe(const ModelConfig& c) {
  if (!routes(c)) return "no layer routes";
  if (const std::string has = what_few_have(c, {.clips = true}); !has.empty()) return has;
  if (c.moe_layer_count() != c.layers) return "some layers are dense";
  if (const std::string reason = why_not_plain_routing(c.routing); !reason.empty()) return reason;
  if (c.norm != NormKind::rms || c.norm_placement != NormPlacement::pre)
    return "its norms are not RMSNorms before each sublayer";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (c.attention_window > 0) return "its attention has a window";
  if (c.latent.present()) return "its attention is latent";
  if (c.rotary_width > 0 || !c.nope_layers.empty())
    return "some of a head, or of its layers, does not turn";
  if (!c.multipliers.none()) return "it has multipliers";
  if (c.attention_sinks) return "its attention has sinks";
  if (c.has_states()) return "some of its layers have no attention";
  if (c.attention_gate || c.norm_offset) return "its attention has a gate, or norms count from 1";
  if (c.qk_norm_turned) return "norms of queries and keys see them turned";
  if (c.attention_bias != c.attention_out_bias)
    return "some of the attention's projections have biases and some have none";
  if (c.qk_norm != QkNorm::full)
    return "queries and keys are not normalised over all heads together";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.act != ops::Act::silu || !c.gated)
    return "its experts are not SwiGLU (\"hidden_act\" is not \"silu\")";
  if (c.ffn_bias || c.expert_down_bias) return "its experts have biases";
  if (c.shared_experts > 0) return "it has shared experts";
  if (c.dropout != 0) return "it has dropout";
  return "";
}

// nanoMoE with one expert is a plain GPT, so a dense model of this shape can be said too.
std::string why_not_nanomoe(const ModelConfig& c) {
  if (routes(c) && c.routing.recipe != "nanomoe")
    return fmt::format("recipe '{}' is not nanoMoE's", c.routing.recipe);
  if (const std::string has = what_few_have(c); !has.empty()) return has;
  if (c.dense_first != 0 || !c.moe_layers.empty())
    return "its MoE layers are not every P-th from the first on";
  if (c.norm != NormKind::layer || c.norm_placement != NormPlacement::pre || c.norm_eps != 1e-5f)
    return "its norms are not LayerNorms with epsilon 1e-5 before each sublayer";
  if (c.norm_offset) return "its norms count from 1";
  if (c.norm_bias != c.attention_bias || c.norm_bias != c.attention_out_bias ||
      c.norm_bias != c.ffn_bias || c.expert_down_bias)
    return "some of its parts have biases and some have none";
  if (c.positions != Positions::learned) return "its positions are not learned";
  if (c.attention_window > 0) return "its attention has a window";
  if (!c.multipliers.none()) return "it has multipliers";
  if (c.attention_sinks || c.attention_gate) return "its attention has sinks or a gate";
  if (c.has_states()) return "some of its layers have no attention";
  if (c.qk_norm != QkNorm::none) return "queries and keys are normalised";
  if (c.kv_heads != c.heads) return "heads share keys and values";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.act != ops::Act::gelu || c.gated) return "its FFNs are not plain exact GELU";
  if (c.moe_layer_count() < c.layers && c.dense_width != 4 * c.width)
    return "its dense FFNs are not four times as wide as the model";
  if (c.moe_layer_count() > 0 && c.expert_width != 4 * c.width)
    return "its experts are not four times as wide as the model";
  if (c.shared_experts > 0) return "it has shared experts";
  if (!c.tied) return "its head is not the embedding";
  return "";
}

std::string why_not_moe_cpp(const ModelConfig&) { return ""; }

// A family's row: model_type, class, names.
template <const Family& f>
constexpr Architecture family(std::string_view model_type, std::string_view class_name,
                              const TensorNames& names, const TensorNames* mxfp4_names = nullptr,
                              std::span<const TensorNames* const> other_names = {}) {
  return {model_type,
          class_name,
          [](const ModelConfig& c) { return why_not_family(c, f); },
          [](const JsonReader& reader) { return read_family(reader, f); },
          [](Json& json, const ModelConfig& c) { write_family(json, c, f); },
          &names,
          false,
          mxfp4_names,
          other_names};
}

// CWM's class scales frequencies where a config says nothing of them.
constexpr Architecture cwm() {
  Architecture row = family<kCwm>("cwm", "CwmForCausalLM", kLlamaTensors);
  row.read = [](const JsonReader& reader) {
    if (!reader.has("rope_scaling") && !reader.has("rope_parameters"))
      fail("{}: \"rope_parameters\" is missing; add how rotary frequencies are scaled",
           reader.where());
    return read_family(reader, kCwm);
  };
  return row;
}

constexpr const TensorNames* kOfQwen3Moe[] = {&kQwen3VlMoeTensors, &kQwen3MoeFusedTensors};
constexpr const TensorNames* kOfQwen35Moe[] = {&kQwen35MoeApartTensors};
constexpr const TensorNames* kOfGptOss[] = {&kGptOssApartTensors};
constexpr const TensorNames* kOfMellum[] = {&kQwen3MoeFusedTensors};
constexpr const TensorNames* kOfKimi[] = {&kKimiUniformTensors};
constexpr const TensorNames* kOfLing3[] = {&kLing3SavedTensors};
constexpr const TensorNames* kOfDeepSeekV4[] = {&kDeepSeekV4PublishedTensors,
                                                &kDeepSeekV4ModuleTensors};
constexpr const TensorNames* kOfHy4[] = {&kHy4FusedTensors, &kHy4ApartTensors};
constexpr const TensorNames* kOfGptNeox[] = {&kGptNeoxNewerTensors};
constexpr const TensorNames* kOfMiniMaxM3[] = {&kMiniMaxM3PublishedTensors,
                                               &kMiniMaxM3SavedTensors};
constexpr const TensorNames* kOfExaoneMoe[] = {&kDeepSeekTensors};
constexpr const TensorNames* kOfFusedLatent[] = {&kLatentTensors};
constexpr const TensorNames* kOfCohere2Moe[] = {&kCohere2MoeApartTensors};
constexpr const TensorNames* kOfAxK1[] = {&kAxK1ApartTensors};
constexpr const TensorNames* kOfNemotronH[] = {&kNemotronHSavedTensors};
constexpr const TensorNames* kOfOlmoHybrid[] = {&kOlmoHybridOlderTensors, &kOlmoHybridSavedTensors,
                                                &kOlmoHybridWholeTensors};

constexpr Architecture kArchitectures[] = {
    {"olmoe", "OlmoeForCausalLM", why_not_olmoe, read_olmoe, write_olmoe, &kOlmoeTensors, false},
    {"moe_cpp", "MoeCppForCausalLM", why_not_nanomoe, read_moe_cpp, write_moe_cpp, &kNanoMoeTensors,
     true},
    family<kLlama>("llama", "LlamaForCausalLM", kLlamaTensors),
    family<kMistral>("mistral", "MistralForCausalLM", kLlamaTensors),
    family<kMinistral3>("ministral3", "Ministral3ForCausalLM", kLlamaTensors),
    family<kQwen2>("qwen2", "Qwen2ForCausalLM", kLlamaTensors),
    family<kQwen3>("qwen3", "Qwen3ForCausalLM", kLlamaTensors),
    family<kMixtral>("mixtral", "MixtralForCausalLM", kMixtralTensors),
    family<kPhiMoe>("phimoe", "PhimoeForCausalLM", kMixtralTensors),
    family<kQwen2Moe>("qwen2_moe", "Qwen2MoeForCausalLM", kLlamaTensors),
    family<kQwen3Moe>("qwen3_moe", "Qwen3MoeForCausalLM", kLlamaTensors, nullptr, kOfQwen3Moe),
    {"gpt2", "GPT2LMHeadModel", why_not_gpt2, read_gpt2, write_gpt2, &kGpt2Tensors, false},
    family<kDeepSeekV3>("deepseek_v3", "DeepseekV3ForCausalLM", kLatentTensors),
    family<kDeepSeekV32>("deepseek_v32", "DeepseekV32ForCausalLM", kIndexedTensors),
    family<kDeepSeekV2>("deepseek_v2", "DeepseekV2ForCausalLM", kLatentTensors),
    family<kKolibri>("kolibri1", "Kolibri1ForCausalLM", kKolibriTensors),
    {"dbrx", "DbrxForCausalLM", why_not_dbrx, read_dbrx, write_dbrx, &kDbrxTensors, false},
    family<kLlama4>("llama4_text", "Llama4ForCausalLM", kLlama4Tensors),
    family<kAxK1>("axk1", "AXK1ForCausalLM", kAxK1Tensors, nullptr, kOfAxK1),
    family<kLongcatFlash>("longcat_flash", "LongcatFlashForCausalLM", kLongcatTensors),
    family<kAxK2>("axk2", "AXK2ForCausalLM", kAxK2Tensors),
    family<kMistral4>("mistral4", "Mistral4ForCausalLM", kFusedLatentTensors, nullptr,
                      kOfFusedLatent),
    family<kGlm4Moe>("glm4_moe", "Glm4MoeForCausalLM", kDeepSeekTensors),
    family<kGlm4MoeLite>("glm4_moe_lite", "Glm4MoeLiteForCausalLM", kLatentTensors),
    family<kGlmDsa>("glm_moe_dsa", "GlmMoeDsaForCausalLM", kPairedIndexedTensors),
    {"deepseek_v4", "DeepseekV4ForCausalLM", why_not_deepseek_v4, read_deepseek_v4,
     write_deepseek_v4, &kDeepSeekV4Tensors, false, nullptr, kOfDeepSeekV4},
    family<kHy4>("hy_v4", "HYV4ForCausalLM", kHy4Tensors, nullptr, kOfHy4),
    family<kDots1>("dots1", "Dots1ForCausalLM", kDeepSeekTensors),
    family<kMiniMax01>("minimax", "MiniMaxForCausalLM", kMiniMaxTensors),
    family<kMiniMaxM2>("minimax_m2", "MiniMaxM2ForCausalLM", kMixtralTensors),
    family<kMiniMaxM3>("minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", kMiniMaxM3Tensors, nullptr,
                       kOfMiniMaxM3),
    family<kErnie45Moe>("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", kErnieTensors),
    family<kOlmo>("olmo", "OlmoForCausalLM", kLlamaTensors),
    family<kOlmo2>("olmo2", "Olmo2ForCausalLM", kOlmo2Tensors),
    family<kOlmo3>("olmo3", "Olmo3ForCausalLM", kOlmo2Tensors),
    family<kGemma2>("gemma2", "Gemma2ForCausalLM", kGemma3Tensors),
    family<kVaultGemma>("vaultgemma", "VaultGemmaForCausalLM", kGemma3Tensors),
    family<kGemma3>("gemma3_text", "Gemma3ForCausalLM", kGemma3Tensors),
    family<kGemma4>("gemma4_text", "Gemma4ForCausalLM", kGemma4Tensors),
    family<kQwen3Next>("qwen3_next", "Qwen3NextForCausalLM", kQwen3NextTensors),
    family<kQwen35Moe>("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", kQwen35MoeTensors, nullptr,
                       kOfQwen35Moe),
    family<kQwen35>("qwen3_5_text", "Qwen3_5ForCausalLM", kQwen35MoeApartTensors),
    family<kLfm2Moe>("lfm2_moe", "Lfm2MoeForCausalLM", kLfm2Tensors),
    family<kHunYuanMoe>("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", kHunYuanTensors),
    family<kFlexOlmo>("flex_olmo", "FlexOlmoForCausalLM", kOlmo2Tensors),
    family<kSolarOpen>("solar_open", "SolarOpenForCausalLM", kDeepSeekTensors),
    family<kMellum>("mellum", "MellumForCausalLM", kLlamaTensors, nullptr, kOfMellum),
    family<kAfmoe>("afmoe", "AfmoeForCausalLM", kAfmoeTensors),
    family<kExaoneMoe>("exaone_moe", "ExaoneMoeForCausalLM", kExaoneMoeTensors, nullptr,
                       kOfExaoneMoe),
    family<kHy3>("hy_v3", "HYV3ForCausalLM", kHy3Tensors),
    family<kAria>("aria_text", "AriaTextForCausalLM", kAriaTensors),
    family<kPhi3>("phi3", "Phi3ForCausalLM", kPhi3Tensors),
    family<kGemma>("gemma", "GemmaForCausalLM", kLlamaTensors),
    family<kGranite>("granite", "GraniteForCausalLM", kLlamaTensors),
    family<kHyperClovaX>("hyperclovax", "HyperCLOVAXForCausalLM", kHyperClovaXTensors),
    family<kGraniteSwa>("granite_swa", "GraniteSWAForCausalLM", kLlamaTensors),
    family<kGlm4>("glm4", "Glm4ForCausalLM", kGlm4Tensors),
    family<kGlm>("glm", "GlmForCausalLM", kGlm4Tensors),
    family<kSeedOss>("seed_oss", "SeedOssForCausalLM", kLlamaTensors),
    family<kExaone4>("exaone4", "Exaone4ForCausalLM", kOlmo2Tensors),
    family<kErnie45>("ernie4_5", "Ernie4_5ForCausalLM", kErnieTensors),
    family<kLfm2>("lfm2", "Lfm2ForCausalLM", kLfm2Tensors),
    family<kHunYuanDense>("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", kHunYuanTensors),
    family<kStableLm>("stablelm", "StableLmForCausalLM", kLlamaTensors),
    family<kJais2>("jais2", "Jais2ForCausalLM", kLlamaTensors),
    family<kStarcoder2>("starcoder2", "Starcoder2ForCausalLM", kStarcoder2Tensors),
    family<kCohere>("cohere", "CohereForCausalLM", kCohereTensors),
    family<kCohere2>("cohere2", "Cohere2ForCausalLM", kCohereTensors),
    family<kCohere2Moe>("cohere2_moe", "Cohere2MoeForCausalLM", kCohere2MoeTensors, nullptr,
                        kOfCohere2Moe),
    family<kHelium>("helium", "HeliumForCausalLM", kHeliumTensors),
    family<kArcee>("arcee", "ArceeForCausalLM", kLlamaTensors),
    family<kNemotron>("nemotron", "NemotronForCausalLM", kLlamaTensors),
    family<kNanoChat>("nanochat", "NanoChatForCausalLM", kNanoChatTensors),
    family<kApertus>("apertus", "ApertusForCausalLM", kApertusTensors),
    family<kMiniCpm3>("minicpm3", "MiniCPM3ForCausalLM", kMiniCpm3Tensors),
    family<kYoutu>("youtu", "YoutuForCausalLM", kLatentTensors),
    family<kKimiLinear>("kimi_linear", "KimiLinearForCausalLM", kKimiTensors, nullptr, kOfKimi),
    family<kLfm3>("lfm3", "Lfm3ForCausalLM", kLfm3Tensors),
    family<kLing3>("bailing_hybrid", "BailingHybridForCausalLM", kLing3Tensors, nullptr, kOfLing3),
    family<kSmolLm3>("smollm3", "SmolLM3ForCausalLM", kLlamaTensors),
    family<kGptOss>("gpt_oss", "GptOssForCausalLM", kGptOssTensors, &kGptOssMxfp4Tensors,
                    kOfGptOss),
    family<kMimoV2Flash>("mimo_v2_flash", "MiMoV2FlashForCausalLM", kMimoTensors),
    family<kLaguna>("laguna", "LagunaForCausalLM", kLagunaTensors),
    family<kFlint>("flint", "FlintForCausalLM", kFlintTensors),
    family<kGraniteMoe>("granitemoe", "GraniteMoeForCausalLM", kGraniteTensors),
    family<kGraniteMoeShared>("granitemoeshared", "GraniteMoeSharedForCausalLM", kGraniteTensors),
    family<kGraniteMoeSwa>("granitemoe_swa", "GraniteMoeSWAForCausalLM", kGraniteSwaTensors),
    family<kGraniteMoeHybrid>("granitemoehybrid", "GraniteMoeHybridForCausalLM", kGraniteTensors),
    family<kNemotronH>("nemotron_h", "NemotronHForCausalLM", kNemotronHTensors, nullptr,
                       kOfNemotronH),
    family<kBamba>("bamba", "BambaForCausalLM", kBambaTensors),
    family<kJamba>("jamba", "JambaForCausalLM", kJambaTensors),
    family<kFalconH1>("falcon_h1", "FalconH1ForCausalLM", kFalconH1Tensors),
    family<kOlmoHybrid>("olmo_hybrid", "OlmoHybridForCausalLM", kOlmoHybridTensors, nullptr,
                        kOfOlmoHybrid),
    family<kMinistral>("ministral", "MinistralForCausalLM", kLlamaTensors),
    cwm(),
    family<kIQuestCoder>("iquestcoder", "IQuestCoderForCausalLM", kLlamaTensors),
    {"gpt_neox", "GPTNeoXForCausalLM", why_not_gpt_neox, read_gpt_neox, write_gpt_neox,
     &kGptNeoxTensors, false, nullptr, kOfGptNeox},
    {"phi", "PhiForCausalLM", why_not_phi, read_phi, write_phi, &kPhiTensors, false},
    {"moe_cpp", "MoeCppForCausalLM", why_not_moe_cpp, read_moe_cpp, write_moe_cpp, &kMoeCppTensors,
     false},
    // Their code lies with their weights, so nothing is gained by giving a new model this form.
    family<kDeepSeek>("deepseek", "DeepseekForCausalLM", kDeepSeekTensors),
    family<kLing2>("bailing_moe_v2", "BailingMoeV2ForCausalLM", kLingTensors),
    family<kSarvamMoe>("sarvam_moe", "SarvamMoEForCausalLM", kLingTensors),
    family<kInternLm3>("internlm3", "InternLM3ForCausalLM", kLlamaTensors),
};

// What the classes of these families have as defaults, which the configs of texts within leave out
// (transformers:llama/configuration_llama.py, mistral/configuration_mistral.py,
// qwen2/configuration_qwen2.py).
constexpr std::string_view kLlamaDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": false})";
constexpr std::string_view kMistralDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false})";
constexpr std::string_view kQwen2Defaults =
    R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "tie_word_embeddings": false})";

// Voxtral's own (transformers:voxtral/configuration_voxtral.py), and the others of Llama.
constexpr std::string_view kVoxtralDefaults =
    R"({"vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 100000000.0, "tie_word_embeddings": false})";

// (transformers:granite/configuration_granite.py)
constexpr std::string_view kGraniteDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_bias": false, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
        "attention_multiplier": 1.0, "logits_scaling": 1.0, "tie_word_embeddings": false})";

// (transformers:cohere2/configuration_cohere2.py)
constexpr std::string_view kCohere2Defaults =
    R"({"vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
        "num_hidden_layers": 40, "num_attention_heads": 64, "hidden_act": "silu",
        "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
        "rope_theta": 10000.0, "attention_bias": false, "sliding_window": 4096,
        "sliding_window_pattern": 4, "tie_word_embeddings": true})";

// What DeepSeek-OCR leaves out: what the configuration that lies with its weights has as defaults
// (huggingface deepseek-ai/DeepSeek-OCR).
constexpr std::string_view kDeepSeekOcrDefaults =
    R"({"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_bias": false, "norm_topk_prob": false, "scoring_func": "softmax",
        "moe_layer_freq": 1, "aux_loss_alpha": 0.001, "seq_aux": true,
        "tie_word_embeddings": false})";

// What Llama 4's configs were published without (transformers:llama4/configuration_llama4.py).
constexpr std::string_view kLlama4Defaults =
    R"({"attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1,
        "no_rope_layer_interval": 4, "tie_word_embeddings": false})";

// A text within that is read as what it says it is.
constexpr TextWithin as_it_says(std::string_view model_type, std::string_view type,
                                std::string_view defaults, bool ties_by_either = false) {
  return {.model_type = model_type,
          .text_type = type,
          .defaults = defaults,
          .own_type = type,
          .ties_by_either = ties_by_either};
}
// InternVL's as they were published, whose code lies with their weights and takes the head from the
// text (github OpenGVLab/InternVL, internvl_chat).
constexpr TextWithin internvl_chat(std::string_view type, std::string_view defaults) {
  TextWithin row = as_it_says("internvl_chat", type, defaults, true);
  row.key = "llm_config";
  return row;
}
// Qwen2-VL's, which is Qwen2's where every position is that of a text
// (transformers:qwen2_vl/configuration_qwen2_vl.py, qwen2_5_vl/modeling_qwen2_5_vl.py).
constexpr TextWithin qwen2_vl(std::string_view model_type) {
  return {.model_type = model_type,
          .text_type = "qwen2",
          .defaults = "{}",
          .may_stand_around = true,
          .ties_by_either = true};
}
constexpr std::string_view kUntied = R"({"tie_word_embeddings": false})";

// Gemma 3's configs leave out what its class has as defaults (transformers:gemma3/
// configuration_gemma3.py); the text of GLM-4.5V and Qwen3-VL has no words for what it never has
// (glm4v_moe/modeling_glm4v_moe.py, qwen3_vl_moe/modeling_qwen3_vl_moe.py); that of Qwen3-Omni has
// no windows whatever it says, and a head of its own, which its tensors show
// (qwen3_omni_moe/modeling_qwen3_omni_moe.py); that of Qwen2.5-Omni is Qwen2-VL's
// (qwen2_5_omni/modeling_qwen2_5_omni.py), and that of GLM-4.1V GLM-4's, without a word for the
// width of a head (glm4v/modeling_glm4v.py). The code of DeepSeek-OCR and dots.ocr lies with their
// weights and reads the keys that stand around.
constexpr TextWithin kTextWithin[] = {
    {"gemma4", "gemma4_text", "{}"},
    {"qwen3_5", "qwen3_5_text", "{}"},
    {"qwen3_5_moe", "qwen3_5_moe_text", "{}"},
    {"qwen3_vl_moe", "qwen3_moe",
     R"({"use_sliding_window": false, "norm_topk_prob": true, "router_aux_loss_coef": 0})"},
    {"qwen3_omni_moe", "qwen3_omni_moe_thinker", "{}", "thinker_config"},
    {"qwen3_omni_moe_thinker", "qwen3_moe",
     R"({"use_sliding_window": false, "tie_word_embeddings": false})"},
    {"qwen2_5_omni", "qwen2_5_omni_thinker", "{}", "thinker_config"},
    {"qwen2_5_omni_thinker", "qwen2", kUntied},
    as_it_says("qwen2_audio", "qwen2", kQwen2Defaults),
    as_it_says("voxtral", "llama", kVoxtralDefaults),
    {"glm4v_moe", "glm4_moe", R"({"use_qk_norm": false})"},
    {"glm4v", "glm4", R"({"head_dim": 128, "attention_bias": true, "tie_word_embeddings": false})"},
    {"qwen3_vl", "qwen3", R"({"use_sliding_window": false})"},
    qwen2_vl("qwen2_vl"),
    qwen2_vl("qwen2_5_vl"),
    {"deepseek_ocr2", "deepseek",
     R"({"norm_topk_prob": false, "scoring_func": "softmax", "moe_layer_freq": 1,
         "aux_loss_alpha": 0, "seq_aux": false, "tie_word_embeddings": false})"},
    {.model_type = "deepseek_vl_v2",
     .text_type = "deepseek",
     .defaults = kDeepSeekOcrDefaults,
     .may_stand_around = true},
    {.model_type = "dots_ocr",
     .text_type = "qwen2",
     .defaults = kQwen2Defaults,
     .may_stand_around = true},
    as_it_says("lighton_ocr", "qwen3", R"({"tie_word_embeddings": true})"),
    as_it_says("internvl", "qwen2", kUntied),
    as_it_says("internvl", "qwen3", kUntied),
    as_it_says("internvl", "qwen3_moe", kUntied),
    as_it_says("internvl", "gpt_oss", kUntied),
    internvl_chat("qwen2", kQwen2Defaults),
    internvl_chat("llama", kLlamaDefaults),
    internvl_chat("qwen3", kUntied),
    internvl_chat("qwen3_moe", kUntied),
    internvl_chat("gpt_oss", kUntied),
    as_it_says("llava", "llama", kLlamaDefaults, true),
    as_it_says("llava", "mistral", kMistralDefaults, true),
    as_it_says("llava", "qwen2", kQwen2Defaults, true),
    as_it_says("llava_next", "llama", kLlamaDefaults),
    as_it_says("llava_next", "mistral", kMistralDefaults),
    as_it_says("llava_next", "qwen2", kQwen2Defaults),
    as_it_says("llava_next", "granite", kGraniteDefaults),
    as_it_says("llava_onevision", "qwen2", kQwen2Defaults),
    as_it_says("smolvlm", "llama", kLlamaDefaults),
    as_it_says("idefics3", "llama", kLlamaDefaults),
    as_it_says("lfm2_vl", "lfm2", "{}"),
    as_it_says("lfm2-vl", "lfm2", "{}"),
    as_it_says("lfm3_vl", "lfm3", "{}"),
    as_it_says("cohere2_vision", "cohere2", kCohere2Defaults),
    as_it_says("aya_vision", "cohere2", kCohere2Defaults),
    {"kimi_vl", "deepseek_v3", kUntied},
    {"kimi_k25", "deepseek_v3", kUntied},
    {"mistral3", "mistral", R"({"sliding_window": null, "tie_word_embeddings": false})",
     "text_config", "mistral"},
    {"mistral3", "ministral3", R"({"sliding_window": null, "tie_word_embeddings": false})",
     "text_config", "ministral3"},
    as_it_says("mistral3", "mistral4", kUntied),
    {"aria", "aria_text", kUntied},
    {"minimax_m3_vl", "minimax_m3_vl_text", kUntied},
    {"llama4", "llama4_text", kLlama4Defaults},
    {"gemma3", "gemma3_text",
     R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "rope_theta": 1000000.0,
         "sliding_window": 4096, "attention_bias": false, "hidden_size": 2304,
         "intermediate_size": 9216, "num_hidden_layers": 26})"},
};

}  // namespace

std::string usual_model_type(const JsonReader& config) {
  constexpr const char *kType = "model_type", *kClasses = "architectures";
  // Ling 2.0 says the type of Ling 1.0, another model, and its class writes none (huggingface
  // inclusionAI/Ling-flash-2.0, yujiepan/ring-tiny-random).
  const bool ling2 =
      config.has(kClasses) && config.value(kClasses) == Json::array({"BailingMoeV2ForCausalLM"});
  if (ling2 && config.get<std::string>(kType, "bailing_moe") == "bailing_moe")
    return "bailing_moe_v2";
  std::string type = config.get<std::string>(kType);
  // (huggingface moonshotai/Kimi-K2-Instruct, whose class is DeepSeek-V3's)
  if (type == "kimi_k2") return "deepseek_v3";
  // (transformers:auto/configuration_auto.py)
  if (type == "mistral" && config.has("layer_types")) return "ministral";
  // (huggingface MiniMaxAI/MiniMax-Text-01, MiniMaxAI/MiniMax-M1-80k)
  if (type == "minimax_text_01" || type == "minimax_m1") return "minimax";
  // (github sgl-project/sglang-jax, configs of Ling 3.0)
  return type == "bailing_moe_v3" ? "bailing_hybrid" : type;
}

std::vector<const TextWithin*> find_texts_within(std::string_view model_type) {
  std::vector<const TextWithin*> rows;
  for (const TextWithin& row : kTextWithin)
    if (row.model_type == model_type) rows.push_back(&row);
  return rows;
}

std::span<const Architecture> architectures() { return kArchitectures; }

std::string why_not_plain_routing(const RoutingOptions& routing) {
  const RoutingSpec spec = train_spec(routing);
  const auto* select = std::get_if<TopK>(&spec.select);
  const auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  if (linear == nullptr || linear->bias || !std::holds_alternative<NoNoise>(spec.noise) ||
      !std::holds_alternative<SoftmaxScore>(spec.score) || select == nullptr || select->bias ||
      !std::holds_alternative<KeepSecond>(spec.second) ||
      !std::holds_alternative<Dropless>(spec.capacity) || weigh == nullptr || weigh->scale != 1)
    return fmt::format("recipe '{}' routes in another way than by dropless top-k of a softmax",
                       routing.recipe);
  if (!routing.stages.empty()) return "its routing is a list of stages of its own";
  return "";
}

std::string what_few_have(const ModelConfig& c, KnownParts known) {
  if (!known.halves && c.has_halves()) return kHalvesInWords;
  if (!known.shared_latents && c.latent.shared)
    return "one key of a token is its value too, for all heads";
  if (!known.shared_latents && !c.table_layers.empty())
    return "a table says the experts of tokens in some of its layers";
  if (!known.head_gates && c.head_gates) return "its attention has one gate a head";
  if (!known.scan_beside && c.scan_beside) return "attention stands beside its state spaces";
  if (!known.selective && c.scan.selective())
    return "steps of its state spaces are made of few numbers, one for each value";
  if (!known.scan_beside && !c.scan.selective() && c.scan.present() && !c.scan.norm)
    return "what its state spaces give is not normalised";
  if (!known.scan_beside && !c.multipliers.none_in_layers())
    return "parts of its layers have multipliers";
  if (!known.states_pre_norm && c.states_pre_norm)
    return "norms of its layers without attention stand elsewhere than the others";
  if (!known.states_pre_norm && c.linear.negative)
    return "strengths of its linear attention are up to 2";
  if (!known.states_pre_norm && c.linear.norm_eps > 0)
    return "the norm in its linear attention has an epsilon of its own";
  if (!known.head_bias && c.head_bias) return "its head has a bias";
  if (!known.longrope && c.rope_scaling.kind == RopeScaling::Kind::longrope)
    return "long texts turn by other frequencies";
  if (!known.query_growth && c.query_growth.present())
    return "its queries grow with their positions";
  if (!known.shared_average && c.shared_average)
    return "its shared experts are averaged with the others";
  if (!known.clips && c.qkv_clip > 0) return "its queries, keys and values are clipped";
  if (!known.llama4 && c.window_chunks) return "its attention is cut into chunks";
  if (!known.llama4 && c.weigh_inputs) return "weights multiply what its experts are given";
  if (!known.moe_out_norm && c.moe_out_norm) return "what its experts give is normalised";
  if (!known.streams && c.hyper.present()) return "it has several residual streams";
  if (!known.streams && c.experts_held) return "its routed experts are held at 10";
  if (!known.streams && c.sparse.norm_eps != 1e-6f) return "norms of its indexers are others";
  if (!known.blocks && c.sparse.block > 0) return "its attention sees blocks that it chooses";
  if (!known.caps && c.score_cap > 0) return "its attention's scores are held back";
  if (!known.xielu && c.xielu) return "factors of its activation are learned";
  if (!known.bare_norms && !c.norm_weights) return "its norms have no weights";
  if (!known.nanochat && c.embedding_norm) return "its embedding is normalised";
  if (!known.longcat && c.routing.zero_experts > 0) return "some of its experts are zero ones";
  if (!known.longcat && c.shortcut) return "what its experts give joins behind the next layer";
  if (!known.longcat && (c.latent.factor != 1 || c.latent.query_factor != 1))
    return "its latents have factors";
  if (!known.norm_gates && c.norm_gate > 0) return "gates stand behind its norms";
  if (!known.norm_gates && c.latent.query_both)
    return "its queries are made of latents before their norm too";
  if (!known.softplus_gates && c.gate_softplus) return "gates of its attention are no sigmoids";
  if (!known.heads_apart && c.full.heads > 0)
    return "layers without a window have another number of heads";
  if (!known.values_apart && c.value_width > 0) return "its values are not as wide as its keys";
  if (!known.values_apart && c.value_factor != 1) return "its values have a factor";
  if (!known.values_apart && c.window_sinks) return "layers with a window alone have sinks";
  if (!known.parts_apart && c.window_rotary_width > 0)
    return "layers with a window turn another part of a head";
  if (known.gemma4) return "";
  if (c.branch_norms) return "its router and its experts have norms of their own";
  const FullAttention& full = c.full;
  if (full.head_width > 0 || full.values_of_keys || (full.kv_heads > 0 && !known.kv_heads_apart))
    return "layers without a window have heads of their own";
  if (c.value_norm) return "its values are normalised";
  if (c.layer_scale) return "its layers have a scale";
  if (!known.caps && !known.nanochat && c.logit_cap > 0) return "its logits are held back";
  return !known.proportional && c.rope_scaling.kind == RopeScaling::Kind::proportional
             ? "a share of each head turns"
             : "";
}

const Architecture& architecture_of(const ModelConfig& config) {
  const auto can = [&](const Architecture& row) { return row.why_not(config).empty(); };
  for (const Architecture& row : kArchitectures)
    if (row.model_type == config.model_type && can(row)) return row;
  for (const Architecture& row : kArchitectures)
    if (can(row)) return row;
  fail("no architecture supports this model");
}

const Architecture& find_model_type(std::string_view model_type, const std::string& where) {
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == model_type) return architecture;
    if (std::find(known.begin(), known.end(), architecture.model_type) == known.end())
      known.emplace_back(architecture.model_type);
  }
  for (const TextWithin& row : kTextWithin)
    if (std::find(known.begin(), known.end(), row.model_type) == known.end())
      known.emplace_back(row.model_type);
  const std::string near = suggestion(model_type, known, 0);  // all of them fill a screen
  fail("{}: \"model_type\" is \"{}\", which this version does not read{}", where,
       printable(model_type), near.empty() ? "; docs/families.md lists those that it reads" : near);
}

const Architecture& architecture_of(const ModelConfig& config, std::string_view model_type,
                                    const std::string& where) {
  std::string reason;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type != model_type) continue;
    reason = architecture.why_not(config);
    if (reason.empty()) return architecture;
  }
  fail("{}: \"model_type\" is \"{}\", which cannot say this model: {}", where,
       printable(model_type), reason);
}

}  // namespace moe
