// The names of DBRX (transformers:dbrx/modeling_dbrx.py): queries, keys and values in one matrix,
// the experts of a layer below each other, those of the way down with the input dimension first.
#include "hub/tensor_names.h"

namespace moe {
namespace {

constexpr std::string_view kDbrxQkv = "transformer.blocks.{i}.norm_attn_norm.attn.Wqkv.weight";
constexpr NameRow kDbrxNames[] = {
    {Part::embedding, ParamKind::weight, "transformer.wte.weight"},
    {Part::norms, ParamKind::attn_norm, "transformer.blocks.{i}.norm_attn_norm.norm_1.weight"},
    {Part::attention, ParamKind::q, kDbrxQkv, Layout::fused},
    {Part::attention, ParamKind::k, kDbrxQkv, Layout::fused},
    {Part::attention, ParamKind::v, kDbrxQkv, Layout::fused},
    {Part::attention, ParamKind::o, "transformer.blocks.{i}.norm_attn_norm.attn.out_proj.weight"},
    {Part::norms, ParamKind::ffn_norm, "transformer.blocks.{i}.norm_attn_norm.norm_2.weight"},
    {Part::router, ParamKind::weight, "transformer.blocks.{i}.ffn.router.layer.weight"},
    {Part::experts, ParamKind::gate, "transformer.blocks.{i}.ffn.experts.mlp.w1",
     Layout::bank_rows},
    {Part::experts, ParamKind::up, "transformer.blocks.{i}.ffn.experts.mlp.v1", Layout::bank_rows},
    {Part::experts, ParamKind::down, "transformer.blocks.{i}.ffn.experts.mlp.w2",
     Layout::bank_columns},
    {Part::norms, ParamKind::final_norm, "transformer.norm_f.weight"},
    {Part::lm_head, ParamKind::weight, "lm_head.weight"},
};

}  // namespace

const TensorNames kDbrxTensors = {"DBRX", kDbrxNames, ""};

}  // namespace moe
