// What most families of model folders call their tensors; each table of names has what its family
// calls otherwise, and stands before this one.
#pragma once

#include "hub/tensor_names.h"

namespace moe {

// Names as transformers gives them to Llama-like models; where it has none they are ours in its
// manner.
inline constexpr NameRow kHuggingFaceNames[] = {
    {Part::embedding, ParamKind::weight, "model.embed_tokens.weight"},
    {Part::positions, ParamKind::weight, "model.embed_positions.weight"},
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.input_layernorm.{w}"},
    {Part::norms, ParamKind::mix_gate_down, "model.layers.{i}.input_layernorm.gate_down.weight"},
    {Part::norms, ParamKind::mix_gate_up, "model.layers.{i}.input_layernorm.gate_up.weight"},
    {Part::norms, ParamKind::ffn_gate_down,
     "model.layers.{i}.post_attention_layernorm.gate_down.weight"},
    {Part::norms, ParamKind::ffn_gate_up,
     "model.layers.{i}.post_attention_layernorm.gate_up.weight"},
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.{w}"},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.{w}"},
    {Part::attention, ParamKind::v, "model.layers.{i}.self_attn.v_proj.{w}"},
    {Part::attention, ParamKind::o, "model.layers.{i}.self_attn.o_proj.{w}"},
    {Part::attention, ParamKind::q_norm, "model.layers.{i}.self_attn.q_norm.weight"},
    {Part::attention, ParamKind::k_norm, "model.layers.{i}.self_attn.k_norm.weight"},
    {Part::attention, ParamKind::sinks, "model.layers.{i}.self_attn.sinks", Layout::same, true},
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.o_gate_proj.weight"},
    {Part::attention, ParamKind::linear_q, "model.layers.{i}.linear_attn.in_proj_qkv.weight",
     Layout::fused},
    {Part::attention, ParamKind::linear_k, "model.layers.{i}.linear_attn.in_proj_qkv.weight",
     Layout::fused},
    {Part::attention, ParamKind::linear_v, "model.layers.{i}.linear_attn.in_proj_qkv.weight",
     Layout::fused},
    {Part::attention, ParamKind::linear_z, "model.layers.{i}.linear_attn.in_proj_z.weight"},
    {Part::attention, ParamKind::linear_z_in, "model.layers.{i}.linear_attn.z_in_proj.weight"},
    {Part::attention, ParamKind::linear_a_in, "model.layers.{i}.linear_attn.a_in_proj.weight"},
    {Part::attention, ParamKind::linear_a_out, "model.layers.{i}.linear_attn.a_out_proj.weight"},
    {Part::attention, ParamKind::linear_b, "model.layers.{i}.linear_attn.in_proj_b.weight"},
    {Part::attention, ParamKind::linear_a, "model.layers.{i}.linear_attn.in_proj_a.weight"},
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.linear_attn.conv1d.weight",
     Layout::as_channels},
    {Part::attention, ParamKind::linear_dt_bias, "model.layers.{i}.linear_attn.dt_bias",
     Layout::same, true},
    {Part::attention, ParamKind::linear_a_log, "model.layers.{i}.linear_attn.A_log", Layout::same,
     true},
    {Part::attention, ParamKind::linear_norm, "model.layers.{i}.linear_attn.norm.weight"},
    {Part::attention, ParamKind::linear_o, "model.layers.{i}.linear_attn.out_proj.weight"},
    {Part::attention, ParamKind::conv_b, "model.layers.{i}.conv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv_c, "model.layers.{i}.conv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv_x, "model.layers.{i}.conv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv, "model.layers.{i}.conv.conv.weight", Layout::as_channels},
    {Part::attention, ParamKind::conv_o, "model.layers.{i}.conv.out_proj.weight"},
    {Part::attention, ParamKind::scan_z, "model.layers.{i}.mamba.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::scan_xbc, "model.layers.{i}.mamba.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::scan_dt, "model.layers.{i}.mamba.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::scan_conv, "model.layers.{i}.mamba.conv1d.weight",
     Layout::as_channels},
    {Part::attention, ParamKind::scan_conv, "model.layers.{i}.mamba.conv1d.bias", Layout::same,
     true},
    {Part::attention, ParamKind::scan_dt_bias, "model.layers.{i}.mamba.dt_bias", Layout::same,
     true},
    {Part::attention, ParamKind::scan_a_log, "model.layers.{i}.mamba.A_log", Layout::same, true},
    {Part::attention, ParamKind::scan_skip, "model.layers.{i}.mamba.D", Layout::same, true},
    {Part::attention, ParamKind::scan_norm, "model.layers.{i}.mamba.norm.weight"},
    {Part::attention, ParamKind::scan_o, "model.layers.{i}.mamba.out_proj.weight"},
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.attn_out_layernorm.{w}"},
    {Part::norms, ParamKind::router_norm, "model.layers.{i}.mlp.gate_layernorm.{w}"},
    {Part::norms, ParamKind::experts_norm, "model.layers.{i}.mlp.experts_layernorm.{w}"},
    {Part::norms, ParamKind::experts_out_norm, "model.layers.{i}.mlp.experts_out_layernorm.{w}"},
    {Part::norms, ParamKind::shared_out_norm, "model.layers.{i}.mlp.shared_out_layernorm.{w}"},
    {Part::norms, ParamKind::layer_scale, "model.layers.{i}.layer_scale"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.attn_hc.fn"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.attn_hc.base", Layout::same, true},
    {Part::norms, ParamKind::attn_streams_scale, "model.layers.{i}.attn_hc.scale", Layout::same,
     true},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.ffn_hc.fn"},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.ffn_hc.base", Layout::same, true},
    {Part::norms, ParamKind::ffn_streams_scale, "model.layers.{i}.ffn_hc.scale", Layout::same,
     true},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_fn"},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_base", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "model.hc_head.hc_scale", Layout::same, true},
    {Part::router, ParamKind::scale, "model.layers.{i}.mlp.gate.expert_scale"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.ffn_out_layernorm.{w}"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.post_attention_layernorm.{w}"},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.mlp.gate_proj.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.mlp.up_proj.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.mlp.down_proj.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::xielu_alpha_p, "model.layers.{i}.mlp.act_fn.alpha_p", Layout::same,
     true},
    {Part::dense_ffn, ParamKind::xielu_alpha_n, "model.layers.{i}.mlp.act_fn.alpha_n", Layout::same,
     true},
    {Part::dense_ffn, ParamKind::xielu_beta, "model.layers.{i}.mlp.act_fn.beta", Layout::as_number},
    {Part::dense_ffn, ParamKind::xielu_eps, "model.layers.{i}.mlp.act_fn.eps", Layout::as_number},
    {Part::router, ParamKind::weight, "model.layers.{i}.mlp.gate.{w}"},
    {Part::router, ParamKind::up, "model.layers.{i}.mlp.gate.up.weight"},
    {Part::router, ParamKind::scale, "model.layers.{i}.mlp.gate.scale", Layout::same, true},
    {Part::router, ParamKind::noise, "model.layers.{i}.mlp.gate_noise.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.gate.e_score_correction_bias"},
    {Part::router, ParamKind::threshold, "model.layers.{i}.mlp.gate.e_score_threshold"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.{e}.gate_proj.{w}",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.{e}.up_proj.{w}",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.{e}.down_proj.{w}",
     Layout::per_expert},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_expert.gate_proj.{w}",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.shared_expert.up_proj.{w}",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.shared_expert.down_proj.{w}",
     Layout::bank_of_one},
    {Part::shared, ParamKind::weight, "model.layers.{i}.mlp.shared_expert_gate.weight"},
    {Part::norms, ParamKind::final_norm, "model.norm.{w}"},
    {Part::lm_head, ParamKind::weight, kTiedHeadName},
    {Part::lm_head, ParamKind::weight, "lm_head.bias", Layout::same, true},
};

// DeepSeek's own and others': shared experts are one FFN.
inline constexpr NameRow kDeepSeekNames[] = {
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_experts.gate_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.shared_experts.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.shared_experts.down_proj.weight",
     Layout::bank_of_one},
};

// DeepSeek-V2's and its successors': latent attention, and the shared experts of the first.
inline constexpr NameRow kLatentOwnNames[] = {
    {Part::attention, ParamKind::q_a, "model.layers.{i}.self_attn.q_a_proj.weight"},
    {Part::attention, ParamKind::q_a_norm, "model.layers.{i}.self_attn.q_a_layernorm.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
     Layout::fused},
    {Part::attention, ParamKind::k_rope, "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
     Layout::fused_rotary},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{i}.self_attn.kv_a_layernorm.weight"},
    {Part::attention, ParamKind::k_b, "model.layers.{i}.self_attn.kv_b_proj.weight",
     Layout::fused_heads},
    {Part::attention, ParamKind::v_b, "model.layers.{i}.self_attn.kv_b_proj.weight",
     Layout::fused_heads},
};
inline constexpr auto kLatentNames = joined(kLatentOwnNames, kDeepSeekNames);

// A layer's experts in two tensors, as Mistral 4's were published and as transformers
// 5 holds those of most families.
inline constexpr NameRow kFusedExpertNames[] = {
    {Part::experts, ParamKind::gate, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::up, "model.layers.{i}.mlp.experts.gate_up_proj",
     Layout::fused_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.mlp.experts.down_proj"},
};

// An indexer's, beside latents: DeepSeek-V3.2's, which turns halves. Its queries have no norm,
// which those of indexers that choose blocks have.
inline constexpr NameRow kIndexerNames[] = {
    {Part::attention, ParamKind::index_q, "model.layers.{i}.self_attn.indexer.wq_b.weight"},
    {Part::attention, ParamKind::index_q_norm, "model.layers.{i}.self_attn.indexer.q_norm.weight"},
    {Part::attention, ParamKind::index_k, "model.layers.{i}.self_attn.indexer.wk.weight"},
    {Part::attention, ParamKind::index_k_norm, "model.layers.{i}.self_attn.indexer.k_norm.{w}"},
    {Part::attention, ParamKind::index_weights,
     "model.layers.{i}.self_attn.indexer.weights_proj.weight"},
};
inline constexpr auto kIndexedNames = joined(kIndexerNames, kLatentNames);

// LFM2's and LFM3's: w1 is the gate, w3 up, w2 down.
inline constexpr NameRow kLfmNames[] = {
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.operator_norm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.ffn_norm.weight"},
    {Part::norms, ParamKind::final_norm, "model.embedding_norm.weight"},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.feed_forward.w1.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.feed_forward.w3.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.feed_forward.w2.weight",
     Layout::bank_of_one},
};

}  // namespace moe
