// The names of tensors of a family each of whose layers is two of ours (transformers:longcat_flash/
// modeling_longcat_flash.py): the FFN of the first stands beside its experts.
#include "hub/tensor_names.h"

namespace moe {
namespace {

constexpr std::string_view kLongcatKv = "model.layers.{h}.self_attn.{s}.kv_a_proj_with_mqa.weight",
                           kLongcatKvB = "model.layers.{h}.self_attn.{s}.kv_b_proj.weight",
                           kLongcatGate = "model.layers.{h}.mlps.{s}.gate_proj.weight",
                           kLongcatUp = "model.layers.{h}.mlps.{s}.up_proj.weight",
                           kLongcatDown = "model.layers.{h}.mlps.{s}.down_proj.weight";
constexpr NameRow kLongcatNames[] = {
    {Part::embedding, ParamKind::weight, "model.embed_tokens.weight"},
    {Part::norms, ParamKind::attn_norm, "model.layers.{h}.input_layernorm.{s}.weight"},
    {Part::norms, ParamKind::ffn_norm, "model.layers.{h}.post_attention_layernorm.{s}.weight"},
    {Part::attention, ParamKind::q_a, "model.layers.{h}.self_attn.{s}.q_a_proj.weight"},
    {Part::attention, ParamKind::q_a_norm, "model.layers.{h}.self_attn.{s}.q_a_layernorm.weight"},
    {Part::attention, ParamKind::q_b, "model.layers.{h}.self_attn.{s}.q_b_proj.weight",
     Layout::rotary_last},
    {Part::attention, ParamKind::kv_a, kLongcatKv, Layout::fused},
    {Part::attention, ParamKind::k_rope, kLongcatKv, Layout::fused_rotary},
    {Part::attention, ParamKind::kv_a_norm, "model.layers.{h}.self_attn.{s}.kv_a_layernorm.weight"},
    {Part::attention, ParamKind::k_b, kLongcatKvB, Layout::fused_heads},
    {Part::attention, ParamKind::v_b, kLongcatKvB, Layout::fused_heads},
    {Part::attention, ParamKind::o, "model.layers.{h}.self_attn.{s}.o_proj.weight"},
    {Part::dense_ffn, ParamKind::gate, kLongcatGate, Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, kLongcatUp, Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, kLongcatDown, Layout::bank_of_one},
    {Part::shared, ParamKind::gate, kLongcatGate, Layout::bank_of_one},
    {Part::shared, ParamKind::up, kLongcatUp, Layout::bank_of_one},
    {Part::shared, ParamKind::down, kLongcatDown, Layout::bank_of_one},
    {Part::router, ParamKind::weight, "model.layers.{h}.mlp.router.classifier.weight"},
    {Part::router, ParamKind::selection_bias,
     "model.layers.{h}.mlp.router.e_score_correction_bias"},
    {Part::experts, ParamKind::gate, "model.layers.{h}.mlp.experts.{e}.gate_proj.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{h}.mlp.experts.{e}.up_proj.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{h}.mlp.experts.{e}.down_proj.weight",
     Layout::per_expert},
    {Part::norms, ParamKind::final_norm, "model.norm.weight"},
    {Part::lm_head, ParamKind::weight, kTiedHeadName},
};
// transformers' class has and saves them, and its code does not read them.
constexpr std::string_view kLongcatUnread[] = {
    "model.layers.{h}.mlp.experts.{z}.gate_proj.weight",
    "model.layers.{h}.mlp.experts.{z}.up_proj.weight",
};

}  // namespace

const TensorNames kLongcatTensors = {"LongCat-Flash", kLongcatNames, kTiedHeadName, kLongcatUnread};

}  // namespace moe
