// The names of Hy4's tensors (transformers:conversion_mapping.py, "hy_v4"): latents and indexers as
// GLM-5's, but that halves turn, behind the rows that do not, and residual streams.
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr NameRow kHy4Own[] = {
    {Part::attention, ParamKind::q_b, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::halves_last},
    {Part::attention, ParamKind::k_rope, "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
     Layout::fused},
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.linear_gate.weight"},
    {Part::attention, ParamKind::sinks, "model.layers.{i}.self_attn.learnable_sink_param",
     Layout::same, true},
    {Part::attention, ParamKind::index_q, "model.layers.{i}.self_attn.indexer.wq_b.weight",
     Layout::index_last},
    {Part::attention, ParamKind::index_k, "model.layers.{i}.self_attn.indexer.wk.weight",
     Layout::index_last},
    {Part::attention, ParamKind::index_k_norm, "model.layers.{i}.self_attn.indexer.k_norm.{w}",
     Layout::index_last},
};
constexpr auto kHy4Common = joined(kHy4Own, kIndexedNames);

// As transformers 5.23 saves them: on the way back its renaming puts "hc_pre" before the layer's
// word, and calls gates of FFNs as attention's.
constexpr NameRow kHy4Saved[] = {
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_pre.hc_attn_layer.hc_fn"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_pre.hc_attn_layer.hc_base",
     Layout::same, true},
    {Part::norms, ParamKind::attn_streams_scale, "model.layers.{i}.hc_pre.hc_attn_layer.hc_scale",
     Layout::same, true},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_pre.hc_mlp_layer.hc_fn"},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_pre.hc_mlp_layer.hc_base",
     Layout::same, true},
    {Part::norms, ParamKind::ffn_streams_scale, "model.layers.{i}.hc_pre.hc_mlp_layer.hc_scale",
     Layout::same, true},
    {Part::norms, ParamKind::end_streams, "model.hc_pre.hc_head.hc_head_fn"},
    {Part::norms, ParamKind::end_streams, "model.hc_pre.hc_head.hc_head_base", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "model.hc_pre.hc_head.hc_head_scale", Layout::same,
     true},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.mlp.linear_gate.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::gate, "model.layers.{i}.mlp.shared_experts.linear_gate.weight",
     Layout::bank_of_one},
};
// And as they are called before that, by the words from which it renames them.
constexpr NameRow kHy4Published[] = {
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_attn_layer.hc_pre.hc_fn"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_attn_layer.hc_pre.hc_base",
     Layout::same, true},
    {Part::norms, ParamKind::attn_streams_scale, "model.layers.{i}.hc_attn_layer.hc_pre.hc_scale",
     Layout::same, true},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_mlp_layer.hc_pre.hc_fn"},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_mlp_layer.hc_pre.hc_base",
     Layout::same, true},
    {Part::norms, ParamKind::ffn_streams_scale, "model.layers.{i}.hc_mlp_layer.hc_pre.hc_scale",
     Layout::same, true},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_pre.hc_head_fn"},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_pre.hc_head_base", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "model.hc_head.hc_pre.hc_head_scale", Layout::same,
     true},
};
constexpr auto kHy4SavedNames = joined(kHy4Saved, joined(kFusedExpertNames, kHy4Common));
constexpr auto kHy4FusedNames = joined(kHy4Published, joined(kFusedExpertNames, kHy4Common));
constexpr auto kHy4ApartNames = joined(kHy4Published, kHy4Common);

}  // namespace

const TensorNames kHy4Tensors = {"Hy4", kHy4SavedNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kHy4FusedTensors = {"Hy4", kHy4FusedNames,   kTiedHeadName, {},
                                      {},    kHuggingFaceNames};
const TensorNames kHy4ApartTensors = {"Hy4", kHy4ApartNames,   kTiedHeadName, {},
                                      {},    kHuggingFaceNames};

}  // namespace moe
