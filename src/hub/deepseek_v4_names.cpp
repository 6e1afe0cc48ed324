// The names of DeepSeek-V4's tensors: as transformers saves them, as they were published
// (transformers:conversion_mapping.py, "deepseek_v4"), and as transformers' modules call them.
// Heads, and what is as wide as one, have the numbers that turn last, in pairs.
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr NameRow kV4Own[] = {
    {Part::attention, ParamKind::q_a, "model.layers.{i}.self_attn.q_a_proj.weight"},
    {Part::attention, ParamKind::q_a_norm, "model.layers.{i}.self_attn.q_a_norm.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, "model.layers.{i}.self_attn.kv_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{i}.self_attn.kv_norm.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::o_a, "model.layers.{i}.self_attn.o_a_proj.weight",
     Layout::bank_turned_rows},
    {Part::attention, ParamKind::o, "model.layers.{i}.self_attn.o_b_proj.weight"},
    {Part::attention, ParamKind::entry_kv, "model.layers.{i}.self_attn.compressor.kv_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::entry_gate,
     "model.layers.{i}.self_attn.compressor.gate_proj.weight", Layout::rotary_last},
    {Part::attention, ParamKind::entry_bias, "model.layers.{i}.self_attn.compressor.position_bias",
     Layout::columns_last, true},
    {Part::attention, ParamKind::entry_norm, "model.layers.{i}.self_attn.compressor.kv_norm.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::entry_index_kv,
     "model.layers.{i}.self_attn.compressor.indexer.kv_proj.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::entry_index_gate,
     "model.layers.{i}.self_attn.compressor.indexer.gate_proj.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::entry_index_bias,
     "model.layers.{i}.self_attn.compressor.indexer.position_bias", Layout::index_columns_last,
     true},
    {Part::attention, ParamKind::entry_index_norm,
     "model.layers.{i}.self_attn.compressor.indexer.kv_norm.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::index_q,
     "model.layers.{i}.self_attn.compressor.indexer.q_b_proj.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::index_weights,
     "model.layers.{i}.self_attn.compressor.indexer.scorer.weights_proj.weight"},
};
constexpr auto kV4Names = joined(kFusedExpertNames, joined(kV4Own, kDeepSeekNames));

// As they were published, but for a prefix that only transformers writes.
constexpr NameRow kV4Short[] = {
    {Part::norms, ParamKind::final_norm, "model.norm.weight"},
    {Part::lm_head, ParamKind::weight, "head.weight"},
    {Part::norms, ParamKind::attn_norm, "model.layers.{i}.attn_norm.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.ffn_norm.weight"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_attn_fn"},
    {Part::norms, ParamKind::attn_streams, "model.layers.{i}.hc_attn_base", Layout::same, true},
    {Part::norms, ParamKind::attn_streams_scale, "model.layers.{i}.hc_attn_scale", Layout::same,
     true},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_ffn_fn"},
    {Part::norms, ParamKind::ffn_streams, "model.layers.{i}.hc_ffn_base", Layout::same, true},
    {Part::norms, ParamKind::ffn_streams_scale, "model.layers.{i}.hc_ffn_scale", Layout::same,
     true},
    {Part::attention, ParamKind::q_a, "model.layers.{i}.attn.wq_a.weight"},
    {Part::attention, ParamKind::q_a_norm, "model.layers.{i}.attn.q_norm.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.attn.wq_b.weight", Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, "model.layers.{i}.attn.wkv.weight", Layout::rotary_last},
    {Part::attention, ParamKind::o_a, "model.layers.{i}.attn.wo_a.weight",
     Layout::bank_turned_rows},
    {Part::attention, ParamKind::o, "model.layers.{i}.attn.wo_b.weight"},
    {Part::attention, ParamKind::sinks, "model.layers.{i}.attn.attn_sink", Layout::same, true},
    {Part::attention, ParamKind::entry_kv, "model.layers.{i}.attn.compressor.wkv.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::entry_gate, "model.layers.{i}.attn.compressor.wgate.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::entry_bias, "model.layers.{i}.attn.compressor.ape",
     Layout::columns_last, true},
    {Part::attention, ParamKind::entry_norm, "model.layers.{i}.attn.compressor.norm.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::entry_index_kv,
     "model.layers.{i}.attn.indexer.compressor.wkv.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::entry_index_gate,
     "model.layers.{i}.attn.indexer.compressor.wgate.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::entry_index_bias, "model.layers.{i}.attn.indexer.compressor.ape",
     Layout::index_columns_last, true},
    {Part::attention, ParamKind::entry_index_norm,
     "model.layers.{i}.attn.indexer.compressor.norm.weight", Layout::index_rotary_last},
    {Part::attention, ParamKind::index_q, "model.layers.{i}.attn.indexer.wq_b.weight",
     Layout::index_rotary_last},
    {Part::attention, ParamKind::index_weights,
     "model.layers.{i}.attn.indexer.weights_proj.weight"},
    {Part::router, ParamKind::weight, "model.layers.{i}.ffn.gate.weight"},
    {Part::router, ParamKind::selection_bias, "model.layers.{i}.ffn.gate.bias"},
    {Part::router, ParamKind::table, "model.layers.{i}.ffn.gate.tid2eid"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.ffn.experts.{e}.w1.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.ffn.experts.{e}.w3.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.ffn.experts.{e}.w2.weight",
     Layout::per_expert},
    {Part::shared, ParamKind::gate, "model.layers.{i}.ffn.shared_experts.w1.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.ffn.shared_experts.w3.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.ffn.shared_experts.w2.weight",
     Layout::bank_of_one},
};
constexpr NameRow kV4PublishedOwn[] = {
    {Part::embedding, ParamKind::weight, "model.embed.weight"},
    {Part::norms, ParamKind::end_streams, "model.hc_head_fn"},
    {Part::norms, ParamKind::end_streams, "model.hc_head_base", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "model.hc_head_scale", Layout::same, true},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{i}.attn.kv_norm.weight",
     Layout::rotary_last},
};
// transformers 5.23 calls so on the way back what it reads by other words.
constexpr NameRow kV4SavedOwn[] = {
    {Part::embedding, ParamKind::weight, "model.embed_tokens.weight"},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_fn"},
    {Part::norms, ParamKind::end_streams, "model.hc_head.hc_base", Layout::same, true},
    {Part::norms, ParamKind::end_streams_scale, "model.hc_head.hc_scale", Layout::same, true},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{i}.attn.norm.weight",
     Layout::rotary_last},
};
constexpr auto kV4Published = joined(kV4PublishedOwn, kV4Short);
constexpr auto kV4Saved = joined(kV4SavedOwn, kV4Short);

}  // namespace

const TensorNames kDeepSeekV4Tensors = {"DeepSeek-V4", kV4Saved, {}, {}, "model."};
const TensorNames kDeepSeekV4PublishedTensors = {"DeepSeek-V4", kV4Published, {}, {}, "model."};
const TensorNames kDeepSeekV4ModuleTensors = {"DeepSeek-V4",    kV4Names, kTiedHeadName, {}, {},
                                              kHuggingFaceNames};

}  // namespace moe
