// The tables of names of GPT-NeoX (transformers:gpt_neox/modeling_gpt_neox.py,
// conversion_mapping.py) and of Phi (phi/modeling_phi.py).
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr std::string_view kNeoxQkv = "gpt_neox.layers.{i}.attention.query_key_value.{w}",
                           kNeoxHead = "embed_out.weight";
constexpr NameRow kNeoxNames[] = {
    {Part::embedding, ParamKind::weight, "gpt_neox.embed_in.weight"},
    {Part::norms, ParamKind::attn_norm, "gpt_neox.layers.{i}.input_layernorm.{w}"},
    {Part::attention, ParamKind::q, kNeoxQkv, Layout::qkv_heads},
    {Part::attention, ParamKind::k, kNeoxQkv, Layout::qkv_heads},
    {Part::attention, ParamKind::v, kNeoxQkv, Layout::qkv_heads},
    {Part::attention, ParamKind::o, "gpt_neox.layers.{i}.attention.dense.{w}"},
    {Part::norms, ParamKind::ffn_norm, "gpt_neox.layers.{i}.post_attention_layernorm.{w}"},
    {Part::dense_ffn, ParamKind::up, "gpt_neox.layers.{i}.mlp.dense_h_to_4h.{w}",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "gpt_neox.layers.{i}.mlp.dense_4h_to_h.{w}",
     Layout::bank_of_one},
    {Part::norms, ParamKind::final_norm, "gpt_neox.final_layer_norm.{w}"},
    {Part::lm_head, ParamKind::weight, kNeoxHead},
};
// As transformers 5 has it in memory.
constexpr NameRow kNeoxNewerHead[] = {
    {Part::lm_head, ParamKind::weight, kTiedHeadName},
};
// Masks and frequencies, which its published files hold.
constexpr std::string_view kNeoxTables[] = {"gpt_neox.layers.{i}.attention.bias",
                                            "gpt_neox.layers.{i}.attention.masked_bias",
                                            "gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"};

constexpr NameRow kPhiNames[] = {
    {Part::attention, ParamKind::o, "model.layers.{i}.self_attn.dense.{w}"},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.mlp.fc1.{w}", Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.mlp.fc2.{w}", Layout::bank_of_one},
    {Part::norms, ParamKind::final_norm, "model.final_layernorm.{w}"},
};

}  // namespace

const TensorNames kGptNeoxTensors = {"GPT-NeoX", kNeoxNames, kNeoxHead, kNeoxTables};
const TensorNames kGptNeoxNewerTensors = {"GPT-NeoX", kNeoxNewerHead, kTiedHeadName, kNeoxTables,
                                          {},         kNeoxNames};
const TensorNames kPhiTensors = {"Phi", kPhiNames, kTiedHeadName, {}, {}, kHuggingFaceNames};

}  // namespace moe
