// The names of tensors of families that came later than those of hub/tensor_names.cpp: Ling 3.0 and
// LFM3 (transformers:conversion_mapping.py, "bailing_hybrid", "lfm3").
#include "hub/common_names.h"

namespace moe {
namespace {

// Its latent attention, whose projection back is called otherwise than that of linear attention.
constexpr NameRow kLing3Rows[] = {
    {Part::embedding, ParamKind::weight, "model.word_embeddings.weight"},
    {Part::attention, ParamKind::q_a, "model.layers.{i}.attention.q_a_proj.weight"},
    {Part::attention, ParamKind::q_a_norm, "model.layers.{i}.attention.q_a_layernorm.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.attention.q_b_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::q, "model.layers.{i}.attention.q_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, "model.layers.{i}.attention.kv_a_proj_with_mqa.weight",
     Layout::fused},
    {Part::attention, ParamKind::k_rope, "model.layers.{i}.attention.kv_a_proj_with_mqa.weight",
     Layout::fused_rotary},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{i}.attention.kv_a_layernorm.weight"},
    {Part::attention, ParamKind::k_b, "model.layers.{i}.attention.kv_b_proj.weight",
     Layout::fused_heads},
    {Part::attention, ParamKind::v_b, "model.layers.{i}.attention.kv_b_proj.weight",
     Layout::fused_heads},
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.attention.g_proj.weight"},
    {Part::attention, ParamKind::o, "model.layers.{i}.attention.dense.weight"},
    {Part::attention, ParamKind::linear_q, "model.layers.{i}.attention.q_proj.weight"},
    {Part::attention, ParamKind::linear_k, "model.layers.{i}.attention.k_proj.weight"},
    {Part::attention, ParamKind::linear_v, "model.layers.{i}.attention.v_proj.weight"},
    {Part::attention, ParamKind::linear_z, "model.layers.{i}.attention.g_proj.weight"},
    {Part::attention, ParamKind::linear_a_out, "model.layers.{i}.attention.f_proj.weight"},
    {Part::attention, ParamKind::linear_b, "model.layers.{i}.attention.b_proj.weight"},
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.attention.{p}_conv1d.weight",
     Layout::channels_apart},
    {Part::attention, ParamKind::linear_dt_bias, "model.layers.{i}.attention.dt_bias", Layout::same,
     true},
    {Part::attention, ParamKind::linear_a_log, "model.layers.{i}.attention.A_log", Layout::same,
     true},
    {Part::attention, ParamKind::linear_norm, "model.layers.{i}.attention.o_norm.weight"},
    {Part::attention, ParamKind::linear_o, "model.layers.{i}.attention.o_proj.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.mlp.gate.expert_bias"},
};
constexpr auto kLing3Own = joined(kLing3Rows, kDeepSeekNames);
// As transformers saves them, both projections back are called alike.
constexpr NameRow kLing3Dense[] = {
    {Part::attention, ParamKind::linear_o, "model.layers.{i}.attention.dense.weight"},
};
constexpr auto kLing3Saved = joined(kLing3Dense, kLing3Own);

// LFM3's: norms before and behind each sublayer, a gate of attention that its code calls otherwise.
constexpr NameRow kLfm3Rows[] = {
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.gate_proj.weight"},
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_operator_norm.weight"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_ffn_norm.weight"},
};
constexpr auto kLfm3Own = joined(kLfm3Rows, kLfmNames);

}  // namespace

const TensorNames kLing3Tensors = {"Ling 3.0", kLing3Own, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kLing3SavedTensors = {"Ling 3.0", kLing3Saved, kTiedHeadName,
                                        {},         {},          kHuggingFaceNames};

const TensorNames kLfm3Tensors = {"LFM3", kLfm3Own, kTiedHeadName, {}, {}, kHuggingFaceNames};

}  // namespace moe
