// The tables of names of model folders (transformers:models/*, github wolfecameron/nanoMoE
// model.py, huggingface deepseek-ai/deepseek-moe-16b-base modeling_deepseek.py).
#include "hub/tensor_names.h"

#include "hub/common_names.h"

namespace moe {
namespace {

// Mixtral's own, the experts: w1 is the gate, w3 up, w2 down.
constexpr NameRow kMixtralNames[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.block_sparse_moe.gate.weight"},
    // MiniMax-M2's
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.block_sparse_moe.e_score_correction_bias"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
     Layout::per_expert},
};

// ERNIE 4.5's: neighbours are turned, and the selection bias is a row.
constexpr NameRow kErnieOwnNames[] = {
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.weight", Layout::paired},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.weight", Layout::paired},
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.mlp.moe_statics.e_score_correction_bias", Layout::as_row},
};
constexpr auto kErnieNames = joined(kErnieOwnNames, kDeepSeekNames);

// The same with a layer's experts in two tensors.
constexpr auto kFusedLatentNames = joined(kFusedExpertNames, kLatentNames);

// A.X K1's: the same with a norm behind the experts.
constexpr NameRow kAxK1OwnNames[] = {
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_mlp_layernorm.weight"},
};
constexpr auto kAxK1Names = joined(kAxK1OwnNames, kFusedLatentNames);
constexpr auto kAxK1ApartNames = joined(kAxK1OwnNames, kLatentNames);

// Kolibri's, as transformers saves them (transformers:conversion_mapping.py): norms before and
// behind each sublayer.
constexpr NameRow kKolibriOwnNames[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_attn_norm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_ffn_norm.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.moe.router.expert_bias"},
};
constexpr auto kKolibriNames = joined(kKolibriOwnNames, kDeepSeekNames);

// GLM-5's turns neighbours.
constexpr NameRow kPairedIndexerNames[] = {
    {Part::attention, ParamKind::index_q, "model.layers.{i}.self_attn.indexer.wq_b.weight",
     Layout::rotary_first},
    {Part::attention, ParamKind::index_k, "model.layers.{i}.self_attn.indexer.wk.weight",
     Layout::rotary_first},
    {Part::attention, ParamKind::index_k_norm, "model.layers.{i}.self_attn.indexer.k_norm.{w}",
     Layout::rotary_first},
};
// A.X K2's (transformers:conversion_mapping.py): gates behind norms, and that of attention in one
// tensor with queries.
constexpr NameRow kAxK2OwnNames[] = {
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.input_layernorm.norm.weight"},
    {Part::norms, ParamKind::mix_gate_down, "model.layers.{i}.input_layernorm.W_down.weight"},
    {Part::norms, ParamKind::mix_gate_up, "model.layers.{i}.input_layernorm.W_up.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.post_attention_layernorm{g}.weight"},
    {Part::norms, ParamKind::ffn_gate_down,
     "model.layers.{i}.post_attention_layernorm.W_down.weight"},
    {Part::norms, ParamKind::ffn_gate_up, "model.layers.{i}.post_attention_layernorm.W_up.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::gated_latent_heads},
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::gated_latent_heads},
};
constexpr auto kAxK2Names = joined(kAxK2OwnNames, kIndexedNames);
constexpr auto kPairedIndexedNames = joined(kPairedIndexerNames, kIndexedNames);

// Kimi Linear's (huggingface moonshotai/Kimi-Linear-48B-A3B-Instruct), latents as above: the
// experts w1 (gate), w3 (up) and w2 (down).
constexpr NameRow kKimiNames[] = {
    {Part::attention, ParamKind::linear_q, "model.layers.{i}.self_attn.q_proj.weight"},
    {Part::attention, ParamKind::linear_k, "model.layers.{i}.self_attn.k_proj.weight"},
    {Part::attention, ParamKind::linear_v, "model.layers.{i}.self_attn.v_proj.weight"},
    {Part::attention, ParamKind::linear_z_in, "model.layers.{i}.self_attn.g_a_proj.weight"},
    {Part::attention, ParamKind::linear_z, "model.layers.{i}.self_attn.g_b_proj.weight"},
    {Part::attention, ParamKind::linear_a_in, "model.layers.{i}.self_attn.f_a_proj.weight"},
    {Part::attention, ParamKind::linear_a_out, "model.layers.{i}.self_attn.f_b_proj.weight"},
    {Part::attention, ParamKind::linear_b, "model.layers.{i}.self_attn.b_proj.weight"},
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.self_attn.{p}_conv1d.weight",
     Layout::channels_apart},
    {Part::attention, ParamKind::linear_dt_bias, "model.layers.{i}.self_attn.dt_bias", Layout::same,
     true},
    {Part::attention, ParamKind::linear_a_log, "model.layers.{i}.self_attn.A_log",
     Layout::as_states, true},
    {Part::attention, ParamKind::linear_norm, "model.layers.{i}.self_attn.o_norm.weight"},
    {Part::attention, ParamKind::linear_o, "model.layers.{i}.self_attn.o_proj.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.block_sparse_moe.gate.weight"},
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.block_sparse_moe.gate.e_score_correction_bias"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
     Layout::per_expert},
    {Part::shared, ParamKind::gate,
     "model.layers.{i}.block_sparse_moe.shared_experts.gate_proj.weight", Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.block_sparse_moe.shared_experts.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down,
     "model.layers.{i}.block_sparse_moe.shared_experts.down_proj.weight", Layout::bank_of_one},
};
constexpr auto kKimiAllNames = joined(kKimiNames, kLatentNames);
// As transformers saves them, dense FFNs are called as those of experts (transformers:
// conversion_mapping.py).
constexpr NameRow kKimiDenseNames[] = {
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.block_sparse_moe.gate_proj.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.block_sparse_moe.up_proj.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.block_sparse_moe.down_proj.weight",
     Layout::bank_of_one},
};
constexpr auto kKimiUniformNames = joined(kKimiDenseNames, joined(kKimiNames, kLatentNames));

// OLMo 2's: its norms are of what a sublayer gives.
constexpr NameRow kOlmo2Names[] = {
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.post_attention_layernorm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.post_feedforward_layernorm.weight"},
};

// Aria's: the input dimension first, all gates before all ups.
constexpr NameRow kAriaOwnNames[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.weight"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.fc1.weight",
     Layout::stacked_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.fc1.weight",
     Layout::stacked_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.fc2.weight", Layout::transposed},
};
constexpr auto kAriaNames = joined(kAriaOwnNames, kDeepSeekNames);

// Phi-3's: projections from the same in one matrix.
constexpr std::string_view kPhi3Qkv = "model.layers.{i}.self_attn.qkv_proj.weight",
                           kGateUp = "model.layers.{i}.mlp.gate_up_proj.weight";
constexpr NameRow kPhi3Names[] = {
    {Part::attention, ParamKind::q, kPhi3Qkv, Layout::fused},
    {Part::attention, ParamKind::k, kPhi3Qkv, Layout::fused},
    {Part::attention, ParamKind::v, kPhi3Qkv, Layout::fused},
    {Part::dense_ffn, ParamKind::gate, kGateUp, Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::up, kGateUp, Layout::fused_of_one},
};

// GLM-4's: neighbours are turned; of those without experts the later ones have norms before and
// behind each sublayer.
constexpr NameRow kGlm4Names[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_self_attn_layernorm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_mlp_layernorm.weight"},
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.{w}", Layout::paired},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.{w}", Layout::paired},
    {Part::dense_ffn, ParamKind::gate, kGateUp, Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::up, kGateUp, Layout::fused_of_one},
};

constexpr NameRow kHyperClovaXNames[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_norm1.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_norm2.weight"},
};

// Cohere's and Helium's: neighbours are turned.
constexpr NameRow kPairedNames[] = {
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.{w}", Layout::paired},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.{w}", Layout::paired},
};

// Those of Cohere with experts, in two tensors a layer or one by one.
constexpr auto kCohere2MoeApartNames = joined(kPairedNames, kDeepSeekNames);
constexpr auto kCohere2MoeNames = joined(kFusedExpertNames, kCohere2MoeApartNames);

// StarCoder2's: FFNs without gates.
constexpr NameRow kStarcoder2Names[] = {
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.mlp.c_fc.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.mlp.c_proj.{w}", Layout::bank_of_one},
};

// NanoChat's: heads turn the other way, FFNs have no gates.
constexpr NameRow kNanoChatNames[] = {
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.{w}", Layout::swapped},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.{w}", Layout::swapped},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.mlp.fc1.weight", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.mlp.fc2.weight", Layout::bank_of_one},
};

// Gemma 2's and 3's: norms before and behind each sublayer.
constexpr NameRow kGemma3Names[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_attention_layernorm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.pre_feedforward_layernorm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_feedforward_layernorm.weight"},
};

constexpr NameRow kGemma4Names[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_attention_layernorm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.pre_feedforward_layernorm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_feedforward_layernorm.weight"},
    {Part::norms, ParamKind::experts_norm, "model.layers.{i}.pre_feedforward_layernorm_2.weight"},
    {Part::norms, ParamKind::experts_out_norm,
     "model.layers.{i}.post_feedforward_layernorm_2.weight"},
    {Part::norms, ParamKind::shared_out_norm,
     "model.layers.{i}.post_feedforward_layernorm_1.weight"},
    {Part::norms, ParamKind::router_norm, "model.layers.{i}.router.scale"},
    {Part::norms, ParamKind::layer_scale, "model.layers.{i}.layer_scalar"},
    {Part::router, ParamKind::weight, "model.layers.{i}.router.proj.weight"},
    {Part::router, ParamKind::scale, "model.layers.{i}.router.per_expert_scale"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.experts.gate_up_proj", Layout::fused_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.experts.down_proj"},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.gate_proj.weight", Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.up_proj.weight", Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.down_proj.weight", Layout::bank_of_one},
};

// LFM2's.
constexpr NameRow kLfm2OwnNames[] = {
    {Part::attention, ParamKind::o, "model.layers.{i}.self_attn.out_proj.weight"},
    {Part::attention, ParamKind::q_norm, "model.layers.{i}.self_attn.q_layernorm.weight"},
    {Part::attention, ParamKind::k_norm, "model.layers.{i}.self_attn.k_layernorm.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.feed_forward.gate.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.feed_forward.expert_bias"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.feed_forward.experts.{e}.w1.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.feed_forward.experts.{e}.w3.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.feed_forward.experts.{e}.w2.weight",
     Layout::per_expert},
};
constexpr auto kLfm2Names = joined(kLfm2OwnNames, kLfmNames);

// Hunyuan's.
constexpr NameRow kHunYuanNames[] = {
    {Part::attention, ParamKind::q_norm, "model.layers.{i}.self_attn.query_layernorm.weight"},
    {Part::attention, ParamKind::k_norm, "model.layers.{i}.self_attn.key_layernorm.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.gate.wg.weight"},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_mlp.gate_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.shared_mlp.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.shared_mlp.down_proj.weight",
     Layout::bank_of_one},
};

// Ling 2.0's (github inclusionAI/Ling-V2 models/modeling_bailing_moe_v2.py).
constexpr std::string_view kLingQkv = "model.layers.{i}.attention.query_key_value.weight";
constexpr NameRow kLingOwnNames[] = {
    {Part::embedding, ParamKind::weight, "model.word_embeddings.weight"},
    {Part::attention, ParamKind::q, kLingQkv, Layout::fused},
    {Part::attention, ParamKind::k, kLingQkv, Layout::fused},
    {Part::attention, ParamKind::v, kLingQkv, Layout::fused},
    {Part::attention, ParamKind::o, "model.layers.{i}.attention.dense.weight"},
    {Part::attention, ParamKind::q_norm, "model.layers.{i}.attention.query_layernorm.weight"},
    {Part::attention, ParamKind::k_norm, "model.layers.{i}.attention.key_layernorm.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.gate.expert_bias"},
};
constexpr auto kLingNames = joined(kLingOwnNames, kDeepSeekNames);

// Trinity's: norms before and behind each sublayer, a gate of attention beside its projections.
constexpr NameRow kAfmoeOwnNames[] = {
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.gate_proj.weight"},
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_attention_layernorm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.pre_mlp_layernorm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_mlp_layernorm.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.gate.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.expert_bias"},
};
constexpr auto kAfmoeNames = joined(kAfmoeOwnNames, kDeepSeekNames);

// K-EXAONE's, as published and as transformers saves them (transformers:conversion_mapping.py).
constexpr NameRow kExaoneMoeOwnNames[] = {
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.e_score_correction_bias"},
};
constexpr auto kExaoneMoeNames = joined(kExaoneMoeOwnNames, kDeepSeekNames);

// Hy3's, as published and as transformers saves them (transformers:conversion_mapping.py).
constexpr NameRow kHy3Names[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.gate.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.expert_bias"},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_mlp.gate_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.shared_mlp.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.shared_mlp.down_proj.weight",
     Layout::bank_of_one},
};

// Qwen3-Next's: attention with a gate, and linear attention whose projections lie key head by key
// head.
constexpr std::string_view kLinearQkvz = "model.layers.{i}.linear_attn.in_proj_qkvz.weight",
                           kLinearBa = "model.layers.{i}.linear_attn.in_proj_ba.weight",
                           kGatedQueries = "model.layers.{i}.self_attn.q_proj.weight";
constexpr NameRow kQwen3NextNames[] = {
    {Part::attention, ParamKind::q, kGatedQueries, Layout::gated_heads},
    {Part::attention, ParamKind::o_gate, kGatedQueries, Layout::gated_heads},
    {Part::attention, ParamKind::linear_q, kLinearQkvz, Layout::linear_heads},
    {Part::attention, ParamKind::linear_k, kLinearQkvz, Layout::linear_heads},
    {Part::attention, ParamKind::linear_v, kLinearQkvz, Layout::linear_heads},
    {Part::attention, ParamKind::linear_z, kLinearQkvz, Layout::linear_heads},
    {Part::attention, ParamKind::linear_b, kLinearBa, Layout::linear_heads},
    {Part::attention, ParamKind::linear_a, kLinearBa, Layout::linear_heads},
};

// Qwen3.5's: linear attention as kHuggingFaceNames has it; experts in one tensor, or apart.
constexpr NameRow kQwen35ApartNames[] = {
    {Part::attention, ParamKind::q, kGatedQueries, Layout::gated_heads},
    {Part::attention, ParamKind::o_gate, kGatedQueries, Layout::gated_heads},
};
constexpr auto kQwen35Names = joined(kQwen35ApartNames, kFusedExpertNames);

// Qwen3-VL's as they were published: the input dimension first, all gates before all ups.
constexpr NameRow kQwen3VlMoeNames[] = {
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::stacked_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::stacked_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj", Layout::transposed},
};

// Granite's own, the experts; without those Granite 4 has the shared FFN alone.
constexpr NameRow kGraniteNames[] = {
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.shared_mlp.output_linear.weight",
     Layout::bank_of_one},
    {Part::router, ParamKind::weight, "model.layers.{i}.block_sparse_moe.router.layer.weight"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.block_sparse_moe.input_linear.weight",
     Layout::fused_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.block_sparse_moe.input_linear.weight",
     Layout::fused_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.block_sparse_moe.output_linear.weight"},
    {Part::shared, ParamKind::gate, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.shared_mlp.output_linear.weight",
     Layout::bank_of_one},
};

// Nemotron-H's: each layer has one norm and one of what the other families call by names of its
// own.
constexpr NameRow kNemotronHNames[] = {
    {Part::embedding, ParamKind::weight, "backbone.embeddings.weight"},
    {Part::norms, ParamKind::attn_norm, "backbone.layers.{i}.norm.weight"},
    {Part::norms, ParamKind::ffn_norm, "backbone.layers.{i}.norm.weight"},
    {Part::norms, ParamKind::final_norm, "backbone.norm_f.weight"},
    {Part::attention, ParamKind::q, "backbone.layers.{i}.mixer.q_proj.weight"},
    {Part::attention, ParamKind::k, "backbone.layers.{i}.mixer.k_proj.weight"},
    {Part::attention, ParamKind::v, "backbone.layers.{i}.mixer.v_proj.weight"},
    {Part::attention, ParamKind::o, "backbone.layers.{i}.mixer.o_proj.weight"},
    {Part::attention, ParamKind::scan_z, "backbone.layers.{i}.mixer.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::scan_xbc, "backbone.layers.{i}.mixer.in_proj.weight",
     Layout::fused},
    {Part::attention, ParamKind::scan_dt, "backbone.layers.{i}.mixer.in_proj.weight",
     Layout::fused},
    {Part::attention, ParamKind::scan_conv, "backbone.layers.{i}.mixer.conv1d.weight",
     Layout::as_channels},
    {Part::attention, ParamKind::scan_conv, "backbone.layers.{i}.mixer.conv1d.bias", Layout::same,
     true},
    {Part::attention, ParamKind::scan_dt_bias, "backbone.layers.{i}.mixer.dt_bias", Layout::same,
     true},
    {Part::attention, ParamKind::scan_a_log, "backbone.layers.{i}.mixer.A_log", Layout::same, true},
    {Part::attention, ParamKind::scan_skip, "backbone.layers.{i}.mixer.D", Layout::same, true},
    {Part::attention, ParamKind::scan_norm, "backbone.layers.{i}.mixer.norm.weight"},
    {Part::attention, ParamKind::scan_o, "backbone.layers.{i}.mixer.out_proj.weight"},
    {Part::dense_ffn, ParamKind::up, "backbone.layers.{i}.mixer.up_proj.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "backbone.layers.{i}.mixer.down_proj.weight",
     Layout::bank_of_one},
    {Part::router, ParamKind::weight, "backbone.layers.{i}.mixer.gate.weight"},
    {Part::router, ParamKind::selection_bias,
     "backbone.layers.{i}.mixer.gate.e_score_correction_bias"},
    {Part::experts, ParamKind::up, "backbone.layers.{i}.mixer.experts.{e}.up_proj.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "backbone.layers.{i}.mixer.experts.{e}.down_proj.weight",
     Layout::per_expert},
    {Part::shared, ParamKind::up, "backbone.layers.{i}.mixer.shared_experts.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "backbone.layers.{i}.mixer.shared_experts.down_proj.weight",
     Layout::bank_of_one},
    {Part::lm_head, ParamKind::weight, kTiedHeadName},
};
// The one name that transformers 5 may change where it saves them, beside their prefix, which is
// "model." in its own code (transformers:conversion_mapping.py).
constexpr NameRow kNemotronHSavedNames[] = {
    {Part::embedding, ParamKind::weight, "backbone.embedding.weight"},
};

// Of those with windows, as published and as transformers saves them.
constexpr NameRow kGraniteSwaNames[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.block_sparse_moe.router.weight"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.block_sparse_moe.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.block_sparse_moe.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.block_sparse_moe.experts.down_proj"},
    {Part::shared, ParamKind::gate, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.shared_mlp.input_linear.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.shared_mlp.output_linear.weight",
     Layout::bank_of_one},
};

// Apertus's own, the norms (transformers:apertus/modeling_apertus.py).
constexpr NameRow kApertusNames[] = {
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.attention_layernorm.{w}"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.feedforward_layernorm.{w}"},
};

// gpt-oss's own, the experts: the input dimension first, gates and ups in turns.
constexpr NameRow kGptOssNames[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.{w}"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::interleaved_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::interleaved_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj", Layout::transposed},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj_bias",
     Layout::interleaved_experts, true},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj_bias",
     Layout::interleaved_experts, true},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj_bias", Layout::same,
     true},
};

// The same where hub/folder/packed.h has unpacked them: the output dimension first, all gates
// before all ups; biases as above.
constexpr NameRow kGptOssMxfp4Names[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.{w}"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj_bias",
     Layout::interleaved_experts, true},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj_bias",
     Layout::interleaved_experts, true},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj_bias", Layout::same,
     true},
};

// The same with experts one by one, as unsloth saves them in bitsandbytes' types: gates and ups in
// turns, the output dimension first (github unslothai/unsloth-zoo, temporary_patches/gpt_oss.py).
constexpr std::string_view kGateUpApart = "model.layers.{i}.mlp.experts.gate_up_projs.{e}.{w}";
constexpr NameRow kGptOssApartNames[] = {
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.router.linear.{w}"},
    {Part::experts, ParamKind::gate, kGateUpApart, Layout::interleaved_apart},
    {Part::experts, ParamKind::up, kGateUpApart, Layout::interleaved_apart},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_projs.{e}.{w}",
     Layout::per_expert},
};

// GPT-2's weights are Conv1D's, [in, out].
constexpr NameRow kGpt2Names[] = {
    {Part::embedding, ParamKind::weight, "transformer.wte.weight"},
    {Part::positions, ParamKind::weight, "transformer.wpe.weight"},
    {Part::norms, ParamKind::attn_norm, "transformer.h.{i}.ln_1.{w}"},
    {Part::attention, ParamKind::q, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused_columns},
    {Part::attention, ParamKind::k, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused_columns},
    {Part::attention, ParamKind::v, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused_columns},
    {Part::attention, ParamKind::o, "transformer.h.{i}.attn.c_proj.{w}", Layout::transposed},
    {Part::norms, ParamKind::ffn_norm, "transformer.h.{i}.ln_2.{w}"},
    {Part::dense_ffn, ParamKind::up, "transformer.h.{i}.mlp.c_fc.{w}", Layout::transposed_one},
    {Part::dense_ffn, ParamKind::down, "transformer.h.{i}.mlp.c_proj.{w}", Layout::transposed_one},
    {Part::norms, ParamKind::final_norm, "transformer.ln_f.{w}"},
    {Part::lm_head, ParamKind::weight, kTiedHeadName},
};

// nanoMoE's banks put the input dimension first, unlike its Linear layers; q, k and v are one
// Linear.
constexpr NameRow kNanoMoeNames[] = {
    {Part::embedding, ParamKind::weight, "transformer.wte.weight"},
    {Part::positions, ParamKind::weight, "transformer.wpe.weight"},
    {Part::norms, ParamKind::attn_norm, "transformer.h.{i}.ln_1.{w}"},
    {Part::attention, ParamKind::q, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused},
    {Part::attention, ParamKind::k, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused},
    {Part::attention, ParamKind::v, "transformer.h.{i}.attn.c_attn.{w}", Layout::fused},
    {Part::attention, ParamKind::o, "transformer.h.{i}.attn.c_proj.{w}"},
    {Part::norms, ParamKind::ffn_norm, "transformer.h.{i}.ln_2.{w}"},
    {Part::dense_ffn, ParamKind::up, "transformer.h.{i}.mlp.c_fc.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "transformer.h.{i}.mlp.c_proj.{w}", Layout::bank_of_one},
    {Part::router, ParamKind::weight, "transformer.h.{i}.mlp.router.w_g.weight"},
    {Part::router, ParamKind::noise, "transformer.h.{i}.mlp.router.w_noise.weight"},
    {Part::experts, ParamKind::up, "transformer.h.{i}.mlp.experts.c_fc", Layout::transposed},
    {Part::experts, ParamKind::up, "transformer.h.{i}.mlp.experts.fc_bias", Layout::bias_rows,
     true},
    {Part::experts, ParamKind::down, "transformer.h.{i}.mlp.experts.c_proj", Layout::transposed},
    {Part::experts, ParamKind::down, "transformer.h.{i}.mlp.experts.proj_bias", Layout::bias_rows,
     true},
    {Part::norms, ParamKind::final_norm, "transformer.ln_f.{w}"},
};

// Tables that older versions of transformers stored.
constexpr std::string_view kRotaryTables[] = {"model.layers.{i}.self_attn.rotary_emb.inv_freq",
                                              "model.rotary_emb.inv_freq"};
// Of lightning attention the rates at which heads forget and powers of them, which transformers
// stores.
constexpr std::string_view kLightningTables[] = {
    "model.layers.{i}.self_attn.slope_rate", "model.layers.{i}.self_attn.query_decay",
    "model.layers.{i}.self_attn.key_decay", "model.layers.{i}.self_attn.diagonal_decay"};
constexpr std::string_view kGpt2Masks[] = {"transformer.h.{i}.attn.bias",
                                           "transformer.h.{i}.attn.masked_bias"};

}  // namespace

const TensorNames kOlmoeTensors = {"OLMoE", kHuggingFaceNames, kTiedHeadName};
const TensorNames kMoeCppTensors = {"moe.cpp", kHuggingFaceNames, kTiedHeadName, {},
                                    {},        kIndexedNames};
const TensorNames kLlamaTensors = {"Llama", kHuggingFaceNames, kTiedHeadName, kRotaryTables};
const TensorNames kMixtralTensors = {"Mixtral", kMixtralNames,    kTiedHeadName, kRotaryTables,
                                     {},        kHuggingFaceNames};
const TensorNames kMiniMaxTensors = {"MiniMax", kMixtralNames,    kTiedHeadName, kLightningTables,
                                     {},        kHuggingFaceNames};
const TensorNames kDeepSeekTensors = {
    "DeepSeekMoE", kDeepSeekNames, kTiedHeadName, kRotaryTables, {}, kHuggingFaceNames};
const TensorNames kErnieTensors = {"ERNIE 4.5", kErnieNames, kTiedHeadName,
                                   {},          {},          kHuggingFaceNames};
const TensorNames kLatentTensors = {"DeepSeek-V2", kLatentNames, kTiedHeadName,
                                    kRotaryTables, {},           kHuggingFaceNames};
const TensorNames kFusedLatentTensors = {
    "Mistral 4", kFusedLatentNames, kTiedHeadName, kRotaryTables, {}, kHuggingFaceNames};
const TensorNames kAxK1Tensors = {"A.X K1", kAxK1Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kAxK1ApartTensors = {"A.X K1", kAxK1ApartNames,  kTiedHeadName, {},
                                       {},       kHuggingFaceNames};
const TensorNames kAxK2Tensors = {"A.X K2", kAxK2Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kKolibriTensors = {"Kolibri", kKolibriNames,    kTiedHeadName, {},
                                     {},        kHuggingFaceNames};
const TensorNames kIndexedTensors = {"DeepSeek-V3.2",  kIndexedNames, kTiedHeadName, {}, {},
                                     kHuggingFaceNames};
const TensorNames kPairedIndexedTensors = {"GLM-5", kPairedIndexedNames, kTiedHeadName, {},
                                           {},      kHuggingFaceNames};
const TensorNames kOlmo2Tensors = {"OLMo 2", kOlmo2Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kAriaTensors = {"Aria", kAriaNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kPhi3Tensors = {"Phi-3", kPhi3Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kGlm4Tensors = {"GLM-4", kGlm4Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kHyperClovaXTensors = {"HyperCLOVA X",   kHyperClovaXNames, kTiedHeadName, {}, {},
                                         kHuggingFaceNames};
const TensorNames kCohereTensors = {"Cohere",      kPairedNames, kTiedHeadName,
                                    kRotaryTables, {},           kHuggingFaceNames};
const TensorNames kCohere2MoeTensors = {
    "Cohere with experts", kCohere2MoeNames, kTiedHeadName, kRotaryTables, {}, kHuggingFaceNames};
const TensorNames kCohere2MoeApartTensors = {
    "Cohere with experts", kCohere2MoeApartNames, kTiedHeadName, kRotaryTables, {},
    kHuggingFaceNames};
const TensorNames kHeliumTensors = {"Helium",      kPairedNames, kTiedHeadName,
                                    kRotaryTables, {},           kHuggingFaceNames};
const TensorNames kStarcoder2Tensors = {"StarCoder2", kStarcoder2Names, kTiedHeadName, {},
                                        {},           kHuggingFaceNames};
const TensorNames kNanoChatTensors = {"NanoChat", kNanoChatNames,   kTiedHeadName, {},
                                      {},         kHuggingFaceNames};
const TensorNames kApertusTensors = {"Apertus", kApertusNames,    kTiedHeadName, {},
                                     {},        kHuggingFaceNames};
const TensorNames kLfm2Tensors = {"LFM2", kLfm2Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kHunYuanTensors = {"Hunyuan", kHunYuanNames,    kTiedHeadName, {},
                                     {},        kHuggingFaceNames};
const TensorNames kLingTensors = {"Ling", kLingNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kAfmoeTensors = {"Trinity", kAfmoeNames, kTiedHeadName,
                                   {},        {},          kHuggingFaceNames};
const TensorNames kExaoneMoeTensors = {"K-EXAONE", kExaoneMoeNames,  kTiedHeadName, {},
                                       {},         kHuggingFaceNames};
const TensorNames kHy3Tensors = {"Hy3", kHy3Names, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kKimiTensors = {"Kimi Linear",    kKimiAllNames, kTiedHeadName, {}, {},
                                  kHuggingFaceNames};
const TensorNames kKimiUniformTensors = {"Kimi Linear",    kKimiUniformNames, kTiedHeadName, {}, {},
                                         kHuggingFaceNames};
const TensorNames kGemma3Tensors = {"Gemma 3", kGemma3Names, kTiedHeadName,
                                    {},        {},           kHuggingFaceNames};
const TensorNames kGemma4Tensors = {"Gemma 4", kGemma4Names, kTiedHeadName,
                                    {},        {},           kHuggingFaceNames};
const TensorNames kQwen3NextTensors = {"Qwen3-Next", kQwen3NextNames,  kTiedHeadName, {},
                                       {},           kHuggingFaceNames};
const TensorNames kQwen35MoeTensors = {"Qwen3.5", kQwen35Names, kTiedHeadName,
                                       {},        {},           kHuggingFaceNames};
const TensorNames kQwen35MoeApartTensors = {"Qwen3.5", kQwen35ApartNames, kTiedHeadName, {},
                                            {},        kHuggingFaceNames};
const TensorNames kQwen3MoeFusedTensors = {"Qwen3-MoE", kFusedExpertNames, kTiedHeadName, {},
                                           {},          kHuggingFaceNames};
const TensorNames kQwen3VlMoeTensors = {"Qwen3-VL", kQwen3VlMoeNames, kTiedHeadName, {},
                                        {},         kHuggingFaceNames};
const TensorNames kGraniteTensors = {"Granite", kGraniteNames,    kTiedHeadName, {},
                                     {},        kHuggingFaceNames};
const TensorNames kGraniteSwaTensors = {
    "Granite with windows", kGraniteSwaNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kNemotronHTensors = {
    "Nemotron-H", kNemotronHNames, kTiedHeadName, {}, "backbone.", {}, "model."};
const TensorNames kNemotronHSavedTensors = {"Nemotron-H", kNemotronHSavedNames, kTiedHeadName, {},
                                            "backbone.",  kNemotronHNames,      "model."};
const TensorNames kGptOssTensors = {"gpt-oss", kGptOssNames, kTiedHeadName,
                                    {},        {},           kHuggingFaceNames};
const TensorNames kGptOssMxfp4Tensors = {"gpt-oss", kGptOssMxfp4Names, kTiedHeadName, {},
                                         {},        kHuggingFaceNames};
const TensorNames kGptOssApartTensors = {"gpt-oss", kGptOssApartNames, kTiedHeadName, {},
                                         {},        kHuggingFaceNames};
const TensorNames kGpt2Tensors = {"GPT-2", kGpt2Names, kTiedHeadName, kGpt2Masks, "transformer."};
const TensorNames kNanoMoeTensors = {"nanoMoE", kNanoMoeNames, kTiedHeadName};

}  // namespace moe
