// The names of MiniMax-M3's tensors: as transformers' model of text alone has them, whose FFNs and
// experts have gates and ups in one (transformers:minimax_m3_vl/modeling_minimax_m3_vl.py), and as
// they were published, also as a model of pictures is saved with them (transformers:
// conversion_mapping.py, "minimax_m3_vl").
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr NameRow kM3TextRows[] = {
    {Part::attention, ParamKind::index_q, "model.layers.{i}.self_attn.indexer.q_proj.weight"},
    {Part::attention, ParamKind::index_q_norm, "model.layers.{i}.self_attn.indexer.q_norm.weight"},
    {Part::attention, ParamKind::index_k, "model.layers.{i}.self_attn.indexer.k_proj.weight"},
    {Part::attention, ParamKind::index_k_norm, "model.layers.{i}.self_attn.indexer.k_norm.weight"},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.mlp.gate_up_proj.weight",
     Layout::fused_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.mlp.gate_up_proj.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_experts.gate_up_proj.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.mlp.shared_experts.gate_up_proj.weight",
     Layout::fused_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.mlp.shared_experts.down_proj.weight",
     Layout::bank_of_one},
};
constexpr auto kM3TextNames = joined(kM3TextRows, kFusedExpertNames);

// w1 is the gate, w3 up, w2 down.
constexpr NameRow kM3Rows[] = {
    {Part::attention, ParamKind::index_q, "model.layers.{i}.self_attn.index_q_proj.weight"},
    {Part::attention, ParamKind::index_q_norm, "model.layers.{i}.self_attn.index_q_norm.weight"},
    {Part::attention, ParamKind::index_k, "model.layers.{i}.self_attn.index_k_proj.weight"},
    {Part::attention, ParamKind::index_k_norm, "model.layers.{i}.self_attn.index_k_norm.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.block_sparse_moe.gate.weight"},
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.block_sparse_moe.e_score_correction_bias"},
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
// On the way back transformers takes the bias for a part of the gate.
constexpr NameRow kM3SavedRows[] = {
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.block_sparse_moe.gate.e_score_correction_bias"},
};
constexpr auto kM3SavedNames = joined(kM3SavedRows, kM3Rows);

}  // namespace

const TensorNames kMiniMaxM3Tensors = {"MiniMax-M3", kM3TextNames, kTiedHeadName,
                                       {},           {},           kHuggingFaceNames};
const TensorNames kMiniMaxM3PublishedTensors = {"MiniMax-M3", kM3Rows, kTiedHeadName,
                                                {},           {},      kHuggingFaceNames};
const TensorNames kMiniMaxM3SavedTensors = {"MiniMax-M3", kM3SavedNames,    kTiedHeadName, {},
                                            {},           kHuggingFaceNames};

}  // namespace moe
