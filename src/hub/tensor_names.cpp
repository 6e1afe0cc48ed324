// The tables of names (transformers:models/*, github wolfecameron/nanoMoE model.py, huggingface deepseek-ai/deepseek-moe-16b-base modeling_deepseek.py).
#include "hub/tensor_names.h"

namespace moe {
namespace {

// Names as transformers gives them to Llama-like models; where it has none they are ours in its manner.
constexpr NameRow kHuggingFaceNames[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"positions.weight", "model.embed_positions.weight"},
    {"layers.{i}.norm1.weight", "model.layers.{i}.input_layernorm.weight"},
    {"layers.{i}.norm1.bias", "model.layers.{i}.input_layernorm.bias"},
    {"layers.{i}.attn.q.weight", "model.layers.{i}.self_attn.q_proj.weight"},
    {"layers.{i}.attn.q.bias", "model.layers.{i}.self_attn.q_proj.bias"},
    {"layers.{i}.attn.k.weight", "model.layers.{i}.self_attn.k_proj.weight"},
    {"layers.{i}.attn.k.bias", "model.layers.{i}.self_attn.k_proj.bias"},
    {"layers.{i}.attn.v.weight", "model.layers.{i}.self_attn.v_proj.weight"},
    {"layers.{i}.attn.v.bias", "model.layers.{i}.self_attn.v_proj.bias"},
    {"layers.{i}.attn.o.weight", "model.layers.{i}.self_attn.o_proj.weight"},
    {"layers.{i}.attn.o.bias", "model.layers.{i}.self_attn.o_proj.bias"},
    {"layers.{i}.attn.q_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"},
    {"layers.{i}.attn.k_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"},
    {"layers.{i}.norm2.weight", "model.layers.{i}.post_attention_layernorm.weight"},
    {"layers.{i}.norm2.bias", "model.layers.{i}.post_attention_layernorm.bias"},
    {"layers.{i}.ffn.experts.gate.weight", "model.layers.{i}.mlp.gate_proj.weight", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.gate.bias", "model.layers.{i}.mlp.gate_proj.bias", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.up.weight", "model.layers.{i}.mlp.up_proj.weight", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.up.bias", "model.layers.{i}.mlp.up_proj.bias", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.down.weight", "model.layers.{i}.mlp.down_proj.weight", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.down.bias", "model.layers.{i}.mlp.down_proj.bias", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.router.weight", "model.layers.{i}.mlp.gate.weight"},
    {"layers.{i}.ffn.router.up.weight", "model.layers.{i}.mlp.gate.up.weight"},
    {"layers.{i}.ffn.router.logit_bias", "model.layers.{i}.mlp.gate.bias"},
    {"layers.{i}.ffn.router.scale", "model.layers.{i}.mlp.gate.scale"},
    {"layers.{i}.ffn.router.noise.weight", "model.layers.{i}.mlp.gate_noise.weight"},
    {"layers.{i}.ffn.router.bias", "model.layers.{i}.mlp.gate.e_score_correction_bias"},
    {"layers.{i}.ffn.router.threshold", "model.layers.{i}.mlp.gate.e_score_threshold"},
    {"layers.{i}.ffn.experts.gate.weight", "model.layers.{i}.mlp.experts.{e}.gate_proj.weight", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.gate.bias", "model.layers.{i}.mlp.experts.{e}.gate_proj.bias", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.up.weight", "model.layers.{i}.mlp.experts.{e}.up_proj.weight", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.up.bias", "model.layers.{i}.mlp.experts.{e}.up_proj.bias", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.down.weight", "model.layers.{i}.mlp.experts.{e}.down_proj.weight", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.down.bias", "model.layers.{i}.mlp.experts.{e}.down_proj.bias", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.shared.gate.weight", "model.layers.{i}.mlp.shared_expert.gate_proj.weight", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.gate.bias", "model.layers.{i}.mlp.shared_expert.gate_proj.bias", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.up.weight", "model.layers.{i}.mlp.shared_expert.up_proj.weight", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.up.bias", "model.layers.{i}.mlp.shared_expert.up_proj.bias", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.down.weight", "model.layers.{i}.mlp.shared_expert.down_proj.weight", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.down.bias", "model.layers.{i}.mlp.shared_expert.down_proj.bias", Layout::bank_of_one},
    {"layers.{i}.ffn.shared_gate.weight", "model.layers.{i}.mlp.shared_expert_gate.weight"},
    {"final_norm.weight", "model.norm.weight"},
    {"final_norm.bias", "model.norm.bias"},
    {"head.weight", kTiedHeadName},
};

// Mixtral's own, the experts: w1 is the gate, w3 up, w2 down.
constexpr NameRow kMixtralNames[] = {
    {"layers.{i}.ffn.router.weight", "model.layers.{i}.block_sparse_moe.gate.weight"},
    {"layers.{i}.ffn.experts.gate.weight", "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.up.weight", "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight", Layout::per_expert, Layers::moe},
    {"layers.{i}.ffn.experts.down.weight", "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight", Layout::per_expert, Layers::moe},
};

// DeepSeek's own: its shared experts are one FFN.
constexpr NameRow kDeepSeekNames[] = {
    {"layers.{i}.ffn.shared.gate.weight", "model.layers.{i}.mlp.shared_experts.gate_proj.weight", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.up.weight", "model.layers.{i}.mlp.shared_experts.up_proj.weight", Layout::bank_of_one},
    {"layers.{i}.ffn.shared.down.weight", "model.layers.{i}.mlp.shared_experts.down_proj.weight", Layout::bank_of_one},
};

// GPT-2's weights are Conv1D's, [in, out].
constexpr NameRow kGpt2Names[] = {
    {"embed.weight", "transformer.wte.weight"},
    {"positions.weight", "transformer.wpe.weight"},
    {"layers.{i}.norm1.weight", "transformer.h.{i}.ln_1.weight"},
    {"layers.{i}.norm1.bias", "transformer.h.{i}.ln_1.bias"},
    {"layers.{i}.attn.q.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused_columns},
    {"layers.{i}.attn.k.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused_columns},
    {"layers.{i}.attn.v.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused_columns},
    {"layers.{i}.attn.q.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.k.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.v.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.o.weight", "transformer.h.{i}.attn.c_proj.weight", Layout::transposed},
    {"layers.{i}.attn.o.bias", "transformer.h.{i}.attn.c_proj.bias"},
    {"layers.{i}.norm2.weight", "transformer.h.{i}.ln_2.weight"},
    {"layers.{i}.norm2.bias", "transformer.h.{i}.ln_2.bias"},
    {"layers.{i}.ffn.experts.up.weight", "transformer.h.{i}.mlp.c_fc.weight", Layout::transposed_one},
    {"layers.{i}.ffn.experts.up.bias", "transformer.h.{i}.mlp.c_fc.bias", Layout::bank_of_one},
    {"layers.{i}.ffn.experts.down.weight", "transformer.h.{i}.mlp.c_proj.weight", Layout::transposed_one},
    {"layers.{i}.ffn.experts.down.bias", "transformer.h.{i}.mlp.c_proj.bias", Layout::bank_of_one},
    {"final_norm.weight", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
    {"head.weight", kTiedHeadName},
};

// nanoMoE's banks put the input dimension first, unlike its Linear layers; q, k and v are one Linear.
constexpr NameRow kNanoMoeNames[] = {
    {"embed.weight", "transformer.wte.weight"},
    {"positions.weight", "transformer.wpe.weight"},
    {"layers.{i}.norm1.weight", "transformer.h.{i}.ln_1.weight"},
    {"layers.{i}.norm1.bias", "transformer.h.{i}.ln_1.bias"},
    {"layers.{i}.attn.q.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused},
    {"layers.{i}.attn.k.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused},
    {"layers.{i}.attn.v.weight", "transformer.h.{i}.attn.c_attn.weight", Layout::fused},
    {"layers.{i}.attn.q.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.k.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.v.bias", "transformer.h.{i}.attn.c_attn.bias", Layout::fused},
    {"layers.{i}.attn.o.weight", "transformer.h.{i}.attn.c_proj.weight"},
    {"layers.{i}.attn.o.bias", "transformer.h.{i}.attn.c_proj.bias"},
    {"layers.{i}.norm2.weight", "transformer.h.{i}.ln_2.weight"},
    {"layers.{i}.norm2.bias", "transformer.h.{i}.ln_2.bias"},
    {"layers.{i}.ffn.experts.up.weight", "transformer.h.{i}.mlp.c_fc.weight", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.up.bias", "transformer.h.{i}.mlp.c_fc.bias", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.down.weight", "transformer.h.{i}.mlp.c_proj.weight", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.experts.down.bias", "transformer.h.{i}.mlp.c_proj.bias", Layout::bank_of_one, Layers::dense},
    {"layers.{i}.ffn.router.weight", "transformer.h.{i}.mlp.router.w_g.weight"},
    {"layers.{i}.ffn.router.noise.weight", "transformer.h.{i}.mlp.router.w_noise.weight"},
    {"layers.{i}.ffn.experts.up.weight", "transformer.h.{i}.mlp.experts.c_fc", Layout::transposed, Layers::moe},
    {"layers.{i}.ffn.experts.up.bias", "transformer.h.{i}.mlp.experts.fc_bias", Layout::bias_rows, Layers::moe},
    {"layers.{i}.ffn.experts.down.weight", "transformer.h.{i}.mlp.experts.c_proj", Layout::transposed, Layers::moe},
    {"layers.{i}.ffn.experts.down.bias", "transformer.h.{i}.mlp.experts.proj_bias", Layout::bias_rows, Layers::moe},
    {"final_norm.weight", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
};

// Tables that older versions of transformers stored.
constexpr std::string_view kRotaryTables[] = {"model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"};
constexpr std::string_view kGpt2Masks[] = {"transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"};

}  // namespace

const TensorNames kOlmoeTensors = {"OLMoE", kHuggingFaceNames, kTiedHeadName};
const TensorNames kMoeCppTensors = {"moe.cpp", kHuggingFaceNames, kTiedHeadName};
const TensorNames kLlamaTensors = {"Llama", kHuggingFaceNames, kTiedHeadName, kRotaryTables};
const TensorNames kMixtralTensors = {"Mixtral", kMixtralNames, kTiedHeadName, kRotaryTables, {}, kHuggingFaceNames};
const TensorNames kDeepSeekTensors = {"DeepSeekMoE", kDeepSeekNames, kTiedHeadName, kRotaryTables, {}, kHuggingFaceNames};
const TensorNames kGpt2Tensors = {"GPT-2", kGpt2Names, kTiedHeadName, kGpt2Masks, "transformer."};
const TensorNames kNanoMoeTensors = {"nanoMoE", kNanoMoeNames, kTiedHeadName};

}  // namespace moe
