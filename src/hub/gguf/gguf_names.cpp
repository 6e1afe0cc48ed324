// The tables of names of GGUF files (github ggml-org/llama.cpp gguf-py/gguf/constants.py).
#include "hub/tensor_names.h"

namespace moe {
namespace {

// llama.cpp's names, whatever the architecture; ours in its manner where it has none. What an
// architecture of its cannot have no model of it has (hub/gguf/gguf_first_rows.h).
constexpr NameRow kGgufNames[] = {
    {Part::embedding, ParamKind::weight, "token_embd.weight"},
    {Part::positions, ParamKind::weight, "position_embd.weight"},
    {Part::norms, ParamKind::attn_norm, "blk.{i}.attn_norm.{w}"},
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.{w}"},
    {Part::attention, ParamKind::k, "blk.{i}.attn_k.{w}"},
    {Part::attention, ParamKind::v, "blk.{i}.attn_v.{w}"},
    {Part::attention, ParamKind::o, "blk.{i}.attn_output.{w}"},
    {Part::attention, ParamKind::q_a, "blk.{i}.attn_q_a.weight"},
    {Part::attention, ParamKind::q_a_norm, "blk.{i}.attn_q_a_norm.weight"},
    {Part::attention, ParamKind::q_b, "blk.{i}.attn_q_b.weight", Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, "blk.{i}.attn_kv_a_mqa.weight", Layout::fused},
    {Part::attention, ParamKind::k_rope, "blk.{i}.attn_kv_a_mqa.weight", Layout::fused_rotary},
    {Part::attention, ParamKind::kv_a_norm, "blk.{i}.attn_kv_a_norm.weight"},
    {Part::attention, ParamKind::k_b, "blk.{i}.attn_kv_b.weight", Layout::fused_heads},
    {Part::attention, ParamKind::v_b, "blk.{i}.attn_kv_b.weight", Layout::fused_heads},
    {Part::attention, ParamKind::index_q, "blk.{i}.indexer.attn_q_b.weight"},
    {Part::attention, ParamKind::index_q_norm, "blk.{i}.indexer.q_norm.weight"},
    {Part::attention, ParamKind::index_k, "blk.{i}.indexer.attn_k.weight"},
    {Part::attention, ParamKind::index_k_norm, "blk.{i}.indexer.k_norm.{w}"},
    {Part::attention, ParamKind::index_weights, "blk.{i}.indexer.proj.weight"},
    {Part::attention, ParamKind::q_norm, "blk.{i}.attn_q_norm.weight"},
    {Part::attention, ParamKind::k_norm, "blk.{i}.attn_k_norm.weight"},
    {Part::attention, ParamKind::sinks, "blk.{i}.attn_sinks.weight", Layout::same, true},
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_o_gate.weight"},
    {Part::norms, ParamKind::mix_gate_down, "blk.{i}.attn_norm_gate_down.weight"},
    {Part::norms, ParamKind::mix_gate_up, "blk.{i}.attn_norm_gate_up.weight"},
    {Part::norms, ParamKind::ffn_gate_down, "blk.{i}.ffn_norm_gate_down.weight"},
    {Part::norms, ParamKind::ffn_gate_up, "blk.{i}.ffn_norm_gate_up.weight"},
    {Part::attention, ParamKind::linear_q, "blk.{i}.attn_qkv.weight", Layout::fused},
    {Part::attention, ParamKind::linear_k, "blk.{i}.attn_qkv.weight", Layout::fused},
    {Part::attention, ParamKind::linear_v, "blk.{i}.attn_qkv.weight", Layout::fused},
    {Part::attention, ParamKind::linear_z, "blk.{i}.attn_gate.weight"},
    {Part::attention, ParamKind::linear_z_in, "blk.{i}.attn_gate_in.weight"},
    {Part::attention, ParamKind::linear_a_in, "blk.{i}.ssm_alpha_in.weight"},
    {Part::attention, ParamKind::linear_a_out, "blk.{i}.ssm_alpha_out.weight"},
    {Part::attention, ParamKind::linear_b, "blk.{i}.ssm_beta.weight"},
    {Part::attention, ParamKind::linear_a, "blk.{i}.ssm_alpha.weight"},
    {Part::attention, ParamKind::linear_conv, "blk.{i}.ssm_conv1d.weight"},
    {Part::attention, ParamKind::linear_dt_bias, "blk.{i}.ssm_dt.bias", Layout::same, true},
    {Part::attention, ParamKind::linear_a_log, "blk.{i}.ssm_a", Layout::minus_exp, true},
    {Part::attention, ParamKind::linear_norm, "blk.{i}.ssm_norm.weight"},
    {Part::attention, ParamKind::linear_o, "blk.{i}.ssm_out.weight"},
    {Part::attention, ParamKind::conv_b, "blk.{i}.shortconv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv_c, "blk.{i}.shortconv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv_x, "blk.{i}.shortconv.in_proj.weight", Layout::fused},
    {Part::attention, ParamKind::conv, "blk.{i}.shortconv.conv.weight"},
    {Part::attention, ParamKind::conv_o, "blk.{i}.shortconv.out_proj.weight"},
    {Part::attention, ParamKind::lightning_q, "blk.{i}.attn_qkv.weight", Layout::qkv_heads},
    {Part::attention, ParamKind::lightning_k, "blk.{i}.attn_qkv.weight", Layout::qkv_heads},
    {Part::attention, ParamKind::lightning_v, "blk.{i}.attn_qkv.weight", Layout::qkv_heads},
    {Part::attention, ParamKind::lightning_z, "blk.{i}.attn_gate.weight"},
    {Part::attention, ParamKind::lightning_norm, "blk.{i}.attn_norm_2.weight"},
    {Part::attention, ParamKind::lightning_o, "blk.{i}.attn_output.weight"},
    // steps stand apart from what may be in few bits
    {Part::attention, ParamKind::scan_z, "blk.{i}.ssm_in.weight", Layout::fused},
    {Part::attention, ParamKind::scan_xbc, "blk.{i}.ssm_in.weight", Layout::fused},
    {Part::attention, ParamKind::scan_dt, "blk.{i}.ssm_dt.weight"},
    {Part::attention, ParamKind::scan_conv, "blk.{i}.ssm_conv1d.{w}"},
    {Part::attention, ParamKind::scan_dt_bias, "blk.{i}.ssm_dt.bias", Layout::same, true},
    {Part::attention, ParamKind::scan_a_log, "blk.{i}.ssm_a", Layout::minus_exp, true},
    {Part::attention, ParamKind::scan_skip, "blk.{i}.ssm_d", Layout::same, true},
    {Part::attention, ParamKind::scan_norm, "blk.{i}.ssm_norm.weight"},
    {Part::attention, ParamKind::scan_o, "blk.{i}.ssm_out.weight"},
    {Part::attention, ParamKind::scan_x, "blk.{i}.ssm_in.weight", Layout::fused},
    {Part::attention, ParamKind::scan_made, "blk.{i}.ssm_x.weight"},
    {Part::attention, ParamKind::scan_step_norm, "blk.{i}.ssm_dt_norm.weight"},
    {Part::attention, ParamKind::scan_b_norm, "blk.{i}.ssm_b_norm.weight"},
    {Part::attention, ParamKind::scan_c_norm, "blk.{i}.ssm_c_norm.weight"},
    {Part::attention, ParamKind::scan_step, "blk.{i}.ssm_dt.weight"},
    {Part::norms, ParamKind::attn_out_norm, "blk.{i}.post_attention_norm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "blk.{i}.post_ffw_norm.weight"},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.ffn_norm.{w}"},
    {Part::dense_ffn, ParamKind::gate, "blk.{i}.ffn_gate.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "blk.{i}.ffn_up.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "blk.{i}.ffn_down.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::xielu_alpha_p, "blk.{i}.ffn_xielu.alpha_p", Layout::same, true},
    {Part::dense_ffn, ParamKind::xielu_alpha_n, "blk.{i}.ffn_xielu.alpha_n", Layout::same, true},
    {Part::dense_ffn, ParamKind::xielu_beta, "blk.{i}.ffn_xielu.beta"},
    {Part::dense_ffn, ParamKind::xielu_eps, "blk.{i}.ffn_xielu.eps"},
    {Part::router, ParamKind::weight, "blk.{i}.ffn_gate_inp.{w}"},
    {Part::router, ParamKind::up, "blk.{i}.ffn_gate_inp_up.weight"},
    {Part::router, ParamKind::scale, "blk.{i}.ffn_gate_inp.scale", Layout::same, true},
    {Part::router, ParamKind::scale, "blk.{i}.ffn_down_exps.scale"},
    {Part::norms, ParamKind::router_norm, "blk.{i}.ffn_gate_inp_norm.{w}"},
    {Part::norms, ParamKind::experts_norm, "blk.{i}.pre_ffw_norm_2.{w}"},
    {Part::norms, ParamKind::experts_out_norm, "blk.{i}.post_ffw_norm_2.{w}"},
    {Part::norms, ParamKind::shared_out_norm, "blk.{i}.post_ffw_norm_1.{w}"},
    {Part::norms, ParamKind::layer_scale, "blk.{i}.layer_output_scale.weight"},
    {Part::norms, ParamKind::attn_streams, "blk.{i}.hc_attn_fn.weight"},
    {Part::norms, ParamKind::attn_streams, "blk.{i}.hc_attn_base.weight", Layout::same, true},
    {Part::norms, ParamKind::attn_streams_scale, "blk.{i}.hc_attn_scale.weight", Layout::same,
     true},
    {Part::norms, ParamKind::ffn_streams, "blk.{i}.hc_ffn_fn.weight"},
    {Part::norms, ParamKind::ffn_streams, "blk.{i}.hc_ffn_base.weight", Layout::same, true},
    {Part::norms, ParamKind::ffn_streams_scale, "blk.{i}.hc_ffn_scale.weight", Layout::same, true},
    {Part::norms, ParamKind::end_streams, "output_hc_fn.weight"},
    {Part::norms, ParamKind::end_streams, "output_hc_base.weight", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "output_hc_scale.weight", Layout::same, true},
    {Part::router, ParamKind::noise, "blk.{i}.ffn_gate_inp_noise.weight"},
    {Part::router, ParamKind::selection_bias, "blk.{i}.exp_probs_b.bias"},
    {Part::router, ParamKind::threshold, "blk.{i}.exp_probs_threshold.bias"},
    {Part::router, ParamKind::table, "blk.{i}.ffn_gate_table.weight"},
    {Part::attention, ParamKind::o_a, "blk.{i}.attn_output_a.weight"},
    {Part::attention, ParamKind::entry_kv, "blk.{i}.attn_entry_kv.weight"},
    {Part::attention, ParamKind::entry_gate, "blk.{i}.attn_entry_gate.weight"},
    {Part::attention, ParamKind::entry_bias, "blk.{i}.attn_entry_gate.bias", Layout::same, true},
    {Part::attention, ParamKind::entry_norm, "blk.{i}.attn_entry_norm.weight"},
    {Part::attention, ParamKind::entry_index_kv, "blk.{i}.indexer.entry_kv.weight"},
    {Part::attention, ParamKind::entry_index_gate, "blk.{i}.indexer.entry_gate.weight"},
    {Part::attention, ParamKind::entry_index_bias, "blk.{i}.indexer.entry_gate.bias", Layout::same,
     true},
    {Part::attention, ParamKind::entry_index_norm, "blk.{i}.indexer.entry_norm.weight"},
    {Part::experts, ParamKind::gate, "blk.{i}.ffn_gate_exps.{w}"},
    {Part::experts, ParamKind::up, "blk.{i}.ffn_up_exps.{w}"},
    {Part::experts, ParamKind::down, "blk.{i}.ffn_down_exps.{w}"},
    {Part::shared, ParamKind::gate, "blk.{i}.ffn_gate_shexp.{w}", Layout::bank_of_one},
    {Part::shared, ParamKind::up, "blk.{i}.ffn_up_shexp.{w}", Layout::bank_of_one},
    {Part::shared, ParamKind::down, "blk.{i}.ffn_down_shexp.{w}", Layout::bank_of_one},
    {Part::shared, ParamKind::weight, "blk.{i}.ffn_gate_inp_shexp.weight", Layout::bank_of_one},
    {Part::norms, ParamKind::final_norm, "output_norm.{w}"},
    {Part::lm_head, ParamKind::weight, kGgufHead},
    {Part::lm_head, ParamKind::weight, "output.bias", Layout::same, true},
};

// Where llama.cpp rotates neighbours, for which its converter reorders the rows of queries and
// keys.
constexpr NameRow kGgufPaired[] = {
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.{w}", Layout::paired},
    {Part::attention, ParamKind::k, "blk.{i}.attn_k.{w}", Layout::paired},
};

// Where a state space is made of the token by one matrix, steps too.
constexpr NameRow kGgufStates[] = {
    {Part::attention, ParamKind::scan_dt, "blk.{i}.ssm_in.weight", Layout::fused},
    {Part::attention, ParamKind::scan_a_log, "blk.{i}.ssm_a", Layout::minus_exp_rows, true},
    {Part::attention, ParamKind::scan_skip, "blk.{i}.ssm_d", Layout::as_column, true},
    {Part::attention, ParamKind::scan_norm, "blk.{i}.ssm_norm.weight", Layout::as_groups},
};
constexpr auto kGgufHybrid = joined(kGgufStates, kGgufPaired);
// Nemotron-H's: the one norm of a layer has the name of attention's.
constexpr NameRow kGgufOneNorm[] = {
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.attn_norm.weight"},
};
constexpr auto kGgufHalves = joined(kGgufStates, kGgufOneNorm);

// Falcon-H1's, whose second norm stands there without the word that it is a weight (github
// ggml-org/llama.cpp gguf-py/gguf/tensor_mapping.py).
constexpr NameRow kGgufBareNorm[] = {
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.ffn_norm"},
};
constexpr auto kGgufFalconH1 = joined(kGgufStates, kGgufBareNorm);

constexpr NameRow kGgufFused[] = {
    {Part::attention, ParamKind::q, "blk.{i}.attn_qkv.{w}", Layout::fused},
    {Part::attention, ParamKind::k, "blk.{i}.attn_qkv.{w}", Layout::fused},
    {Part::attention, ParamKind::v, "blk.{i}.attn_qkv.{w}", Layout::fused},
};

// Queries that are made of the token itself turn as those that are made of latents do.
constexpr NameRow kGgufOlderLatent[] = {
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.weight", Layout::rotary_last},
};

// A matrix of keys and one of values, which llama.cpp multiplies head by head.
constexpr NameRow kGgufLatent[] = {
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.weight", Layout::rotary_last},
    {Part::attention, ParamKind::k_b, "blk.{i}.attn_k_b.weight", Layout::by_head_transposed},
    {Part::attention, ParamKind::v_b, "blk.{i}.attn_v_b.weight", Layout::by_head},
};

// Kimi Linear's: its layers of linear attention share names with those of attention.
constexpr NameRow kGgufKimi[] = {
    {Part::attention, ParamKind::linear_q, "blk.{i}.attn_q.weight"},
    {Part::attention, ParamKind::linear_k, "blk.{i}.attn_k.weight"},
    {Part::attention, ParamKind::linear_v, "blk.{i}.attn_v.weight"},
    {Part::attention, ParamKind::linear_z_in, "blk.{i}.ssm_g_a.weight"},
    {Part::attention, ParamKind::linear_z, "blk.{i}.ssm_g_b.weight"},
    {Part::attention, ParamKind::linear_a_in, "blk.{i}.ssm_f_a.weight"},
    {Part::attention, ParamKind::linear_a_out, "blk.{i}.ssm_f_b.weight"},
    {Part::attention, ParamKind::linear_conv, "blk.{i}.ssm_conv1d_{p}.weight",
     Layout::channels_apart},
    {Part::attention, ParamKind::linear_a_log, "blk.{i}.ssm_a", Layout::minus_exp_rows, true},
    {Part::attention, ParamKind::linear_o, "blk.{i}.attn_output.weight"},
};
constexpr auto kGgufKimiLatent = joined(kGgufKimi, kGgufLatent);
// Ling 3.0's, whose decays and gates are made by whole matrices.
constexpr NameRow kGgufLing3[] = {
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_gate.weight"},
    {Part::attention, ParamKind::linear_z, "blk.{i}.ssm_g_a.weight"},
    {Part::attention, ParamKind::linear_a_out, "blk.{i}.ssm_f_a.weight"},
    {Part::attention, ParamKind::linear_a_log, "blk.{i}.ssm_a", Layout::exp_rows, true},
};
constexpr auto kGgufLing3Latent = joined(kGgufLing3, kGgufKimiLatent);

// The indexers of GLM-5, which turn neighbours.
constexpr NameRow kGgufPairedIndexer[] = {
    {Part::attention, ParamKind::index_q, "blk.{i}.indexer.attn_q_b.weight", Layout::rotary_first},
    {Part::attention, ParamKind::index_k, "blk.{i}.indexer.attn_k.weight", Layout::rotary_first},
    {Part::attention, ParamKind::index_k_norm, "blk.{i}.indexer.k_norm.{w}", Layout::rotary_first},
};
constexpr auto kGgufIndexed = joined(kGgufPairedIndexer, kGgufLatent);
constexpr auto kGgufOlderIndexed = joined(kGgufPairedIndexer, kGgufOlderLatent);

// Hy4's, which turn neighbours behind the rows that do not turn.
constexpr NameRow kGgufHy4[] = {
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_gate.weight"},
    {Part::attention, ParamKind::index_q, "blk.{i}.indexer.attn_q_b.weight",
     Layout::index_pairs_last},
    {Part::attention, ParamKind::index_k, "blk.{i}.indexer.attn_k.weight",
     Layout::index_pairs_last},
    {Part::attention, ParamKind::index_k_norm, "blk.{i}.indexer.k_norm.{w}",
     Layout::index_pairs_last},
};
constexpr auto kGgufHy4Indexed = joined(kGgufHy4, kGgufLatent);

constexpr NameRow kGgufAfterAttention[] = {
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.post_attention_norm.weight"},
};

constexpr NameRow kGgufOutputNorm[] = {
    {Part::norms, ParamKind::attn_norm, "blk.{i}.post_attention_norm.weight"},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.post_ffw_norm.weight"},
};

// MiniMax-M3's, whose norms' 1 is part of their weights in the file.
constexpr NameRow kGgufBlocks[] = {
    {Part::norms, ParamKind::attn_norm, "blk.{i}.attn_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.ffn_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q_norm, "blk.{i}.attn_q_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::k_norm, "blk.{i}.attn_k_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::final_norm, "output_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::index_q, "blk.{i}.indexer.q_proj.weight"},
    {Part::attention, ParamKind::index_q_norm, "blk.{i}.indexer.q_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::index_k, "blk.{i}.indexer.k_proj.weight"},
    {Part::attention, ParamKind::index_k_norm, "blk.{i}.indexer.k_norm.weight", Layout::plus_one},
};

// The same of Gemma 3's.
constexpr NameRow kGgufGemma3[] = {
    {Part::norms, ParamKind::attn_norm, "blk.{i}.attn_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.ffn_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::attn_out_norm, "blk.{i}.post_attention_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::ffn_out_norm, "blk.{i}.post_ffw_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q_norm, "blk.{i}.attn_q_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::k_norm, "blk.{i}.attn_k_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::final_norm, "output_norm.weight", Layout::plus_one},
};
// What stands beside the experts of Gemma 4 has a dense FFN's names, and its router's norm the name
// of a scale.
constexpr NameRow kGgufGemma4[] = {
    {Part::shared, ParamKind::gate, "blk.{i}.ffn_gate.weight", Layout::bank_of_one},
    {Part::shared, ParamKind::up, "blk.{i}.ffn_up.weight", Layout::bank_of_one},
    {Part::shared, ParamKind::down, "blk.{i}.ffn_down.weight", Layout::bank_of_one},
    {Part::norms, ParamKind::router_norm, "blk.{i}.ffn_gate_inp.scale"},
};
constexpr NameRow kGgufFusedExperts[] = {
    {Part::experts, ParamKind::gate, "blk.{i}.ffn_gate_up_exps.weight", Layout::fused_experts},
    {Part::experts, ParamKind::up, "blk.{i}.ffn_gate_up_exps.weight", Layout::fused_experts},
};
constexpr auto kGgufGemma4Fused = joined(kGgufGemma4, kGgufFusedExperts);
constexpr NameRow kGgufQwen35[] = {
    {Part::norms, ParamKind::attn_norm, "blk.{i}.attn_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.post_attention_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q_norm, "blk.{i}.attn_q_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::k_norm, "blk.{i}.attn_k_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::final_norm, "output_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.weight", Layout::gated_heads},
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_q.weight", Layout::gated_heads},
    {Part::attention, ParamKind::linear_v, "blk.{i}.attn_qkv.weight", Layout::tiled},
    {Part::attention, ParamKind::linear_z, "blk.{i}.attn_gate.weight", Layout::tiled},
    {Part::attention, ParamKind::linear_b, "blk.{i}.ssm_beta.weight", Layout::tiled},
    {Part::attention, ParamKind::linear_a, "blk.{i}.ssm_alpha.weight", Layout::tiled},
    {Part::attention, ParamKind::linear_conv, "blk.{i}.ssm_conv1d.weight", Layout::tiled},
    {Part::attention, ParamKind::linear_dt_bias, "blk.{i}.ssm_dt.bias", Layout::tiled, true},
    {Part::attention, ParamKind::linear_a_log, "blk.{i}.ssm_a", Layout::tiled, true},
    {Part::attention, ParamKind::linear_o, "blk.{i}.ssm_out.weight", Layout::tiled},
};

// GLM-4's, whose q and k llama.cpp turns by neighbours.
constexpr NameRow kGgufFusedFfn[] = {
    {Part::dense_ffn, ParamKind::gate, "blk.{i}.ffn_up.weight", Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::up, "blk.{i}.ffn_up.weight", Layout::fused_of_one},
};
constexpr auto kGgufGlm4 = joined(kGgufPaired, kGgufFusedFfn);
// The first GLM-4's files may have queries, keys and values in one.
constexpr NameRow kGgufFusedPaired[] = {
    {Part::attention, ParamKind::q, "blk.{i}.attn_qkv.{w}", Layout::fused_paired},
    {Part::attention, ParamKind::k, "blk.{i}.attn_qkv.{w}", Layout::fused_paired},
    {Part::attention, ParamKind::v, "blk.{i}.attn_qkv.{w}", Layout::fused},
};
constexpr auto kGgufChatGlm = joined(kGgufFusedPaired, kGgufFusedFfn);
constexpr auto kGgufPhi3 = joined(kGgufFused, kGgufFusedFfn);

// Named after what it is not: it is the norm behind the last layer.
constexpr NameRow kGgufLfm2[] = {
    {Part::norms, ParamKind::final_norm, "token_embd_norm.weight"},
};
constexpr NameRow kGgufHy3[] = {
    {Part::router, ParamKind::selection_bias, "blk.{i}.exp_probs_b"},
};
constexpr NameRow kGgufAfmoe[] = {
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_gate.weight"},
};
constexpr NameRow kGgufQwen3Next[] = {
    {Part::norms, ParamKind::attn_norm, "blk.{i}.attn_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::ffn_norm, "blk.{i}.post_attention_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q_norm, "blk.{i}.attn_q_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::k_norm, "blk.{i}.attn_k_norm.weight", Layout::plus_one},
    {Part::norms, ParamKind::final_norm, "output_norm.weight", Layout::plus_one},
    {Part::attention, ParamKind::q, "blk.{i}.attn_q.weight", Layout::gated_heads},
    {Part::attention, ParamKind::o_gate, "blk.{i}.attn_q.weight", Layout::gated_heads},
    {Part::attention, ParamKind::linear_b, "blk.{i}.ssm_ba.weight", Layout::linear_heads},
    {Part::attention, ParamKind::linear_a, "blk.{i}.ssm_ba.weight", Layout::linear_heads},
};

// Factors of the rotary frequencies that Llama 3's converter stores; what they say is in the config
// (hub/gguf/gguf_config.cpp).
constexpr std::string_view kRopeFactors[] = {"rope_freqs.weight"};
// The same of Phi-3, of short texts and of long ones.
constexpr std::string_view kRopeFactorsByLength[] = {"rope_factors_short.weight",
                                                     "rope_factors_long.weight"};

}  // namespace

const TensorNames kGgufTensors = {"llama.cpp", kGgufNames, kGgufHead};
const TensorNames kGgufPairedTensors = {"llama.cpp", kGgufPaired, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufLlamaTensors = {"llama.cpp",  kGgufPaired, kGgufHead,
                                       kRopeFactors, {},          kGgufNames};
const TensorNames kGgufFusedTensors = {"llama.cpp", kGgufFused, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufLatentTensors = {"llama.cpp", kGgufLatent, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufKimiTensors = {"llama.cpp", kGgufKimiLatent, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufLing3Tensors = {"llama.cpp", kGgufLing3Latent, kGgufHead, {},
                                       {},          kGgufNames};
const TensorNames kGgufHybridTensors = {"llama.cpp", kGgufHybrid, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufHalvesTensors = {"llama.cpp", kGgufHalves, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufFalconH1Tensors = {.title = "llama.cpp",
                                          .rows = kGgufFalconH1,
                                          .tied_head = kGgufHead,
                                          .otherwise = kGgufNames,
                                          .folds = true};
const TensorNames kGgufIndexedTensors = {"llama.cpp", kGgufIndexed, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufHy4Tensors = {"llama.cpp", kGgufHy4Indexed, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufOlderIndexedTensors = {"llama.cpp", kGgufOlderIndexed, kGgufHead, {},
                                              {},          kGgufNames};
const TensorNames kGgufOlderLatentTensors = {"llama.cpp", kGgufOlderLatent, kGgufHead, {},
                                             {},          kGgufNames};
const TensorNames kGgufAfterAttentionTensors = {"llama.cpp", kGgufAfterAttention, kGgufHead, {},
                                                {},          kGgufNames};
const TensorNames kGgufQwen3NextTensors = {"llama.cpp", kGgufQwen3Next, kGgufHead, {},
                                           {},          kGgufNames};
const TensorNames kGgufQwen35Tensors = {"llama.cpp", kGgufQwen35, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufGemma3Tensors = {"llama.cpp", kGgufGemma3, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufGemma4Tensors = {"llama.cpp",  kGgufGemma4, kGgufHead,
                                        kRopeFactors, {},          kGgufNames};
const TensorNames kGgufGemma4FusedTensors = {"llama.cpp", kGgufGemma4Fused, kGgufHead, kRopeFactors,
                                             {},          kGgufNames};
const TensorNames kGgufLfm2Tensors = {"llama.cpp", kGgufLfm2, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufGlm4Tensors = {"llama.cpp", kGgufGlm4, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufPhi3Tensors = {"llama.cpp",          kGgufPhi3, kGgufHead,
                                      kRopeFactorsByLength, {},        kGgufNames};
const TensorNames kGgufHy3Tensors = {"llama.cpp", kGgufHy3, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufChatGlmTensors = {"llama.cpp", kGgufChatGlm, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufAfmoeTensors = {"llama.cpp", kGgufAfmoe, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufBlockTensors = {"llama.cpp", kGgufBlocks, kGgufHead, {}, {}, kGgufNames};
const TensorNames kGgufExaone4Tensors = {"llama.cpp", kGgufOutputNorm, kGgufHead, kRopeFactors,
                                         {},          kGgufNames};
const TensorNames kGgufOutputNormTensors = {"llama.cpp", kGgufOutputNorm, kGgufHead, {},
                                            {},          kGgufNames};

}  // namespace moe
