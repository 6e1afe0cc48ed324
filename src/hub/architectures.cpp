// The rows: olmoe as transformers has it (transformers:models/olmoe), and moe_cpp with two sets of tensor names, nanoMoE's
// (github wolfecameron/nanoMoE, model.py) for what its program can load and those of Hugging Face for everything else.
#include "hub/architectures.h"

#include "core/error.h"
#include "core/nearest.h"
#include "hub/config_fields.h"

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

bool routes(const ModelConfig& c) { return find_recipe(c.routing.recipe).has_router(); }

std::string why_not_olmoe(const ModelConfig& c) {
  if (!routes(c)) return "no layer routes";
  if (c.moe_layer_count() != c.layers) return "some layers are dense";
  const RoutingSpec spec = train_spec(c.routing);
  const auto* select = std::get_if<TopK>(&spec.select);
  const auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
  if (!std::holds_alternative<NoNoise>(spec.noise) || !std::holds_alternative<SoftmaxScore>(spec.score) || select == nullptr || select->bias ||
      !std::holds_alternative<KeepSecond>(spec.second) || !std::holds_alternative<Dropless>(spec.capacity) || weigh == nullptr || weigh->scale != 1)
    return fmt::format("recipe '{}' routes in another way than by dropless top-k of a softmax", c.routing.recipe);
  if (!c.routing.stages.empty()) return "its routing is a list of stages of its own";
  if (c.norm != NormKind::rms || c.norm_placement != NormPlacement::pre) return "its norms are not RMSNorms before each sublayer";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (c.rope_scaling.kind != RopeScaling::Kind::none) return "its rotary frequencies are scaled";
  if (c.attention_bias != c.attention_out_bias) return "some of the attention's projections have biases and some have none";
  if (c.qk_norm != QkNorm::full) return "queries and keys are not normalised over all heads together";
  if (c.head_width * c.heads != c.width) return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width, c.width);
  if (c.act != ops::Act::silu || !c.gated) return "its experts are not SwiGLU (\"hidden_act\" is not \"silu\")";
  if (c.ffn_bias) return "its experts have biases";
  if (c.shared_experts > 0) return "it has shared experts";
  if (c.dropout != 0) return "it has dropout";
  return "";
}

// nanoMoE with one expert is a plain GPT, so a dense model of this shape can be said too.
std::string why_not_nanomoe(const ModelConfig& c) {
  if (routes(c) && c.routing.recipe != "nanomoe") return fmt::format("recipe '{}' is not nanoMoE's", c.routing.recipe);
  if (c.dense_first != 0 || !c.moe_layers.empty()) return "its MoE layers are not every P-th from the first on";
  if (c.norm != NormKind::layer || c.norm_placement != NormPlacement::pre || c.norm_eps != 1e-5f)
    return "its norms are not LayerNorms with epsilon 1e-5 before each sublayer";
  if (c.norm_bias != c.attention_bias || c.norm_bias != c.attention_out_bias || c.norm_bias != c.ffn_bias)
    return "some of its parts have biases and some have none";
  if (c.positions != Positions::learned) return "its positions are not learned";
  if (c.qk_norm != QkNorm::none) return "queries and keys are normalised";
  if (c.kv_heads != c.heads) return "heads share keys and values";
  if (c.head_width * c.heads != c.width) return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width, c.width);
  if (c.act != ops::Act::gelu || c.gated) return "its FFNs are not plain exact GELU";
  if (c.moe_layer_count() < c.layers && c.dense_width != 4 * c.width) return "its dense FFNs are not four times as wide as the model";
  if (c.moe_layer_count() > 0 && c.expert_width != 4 * c.width) return "its experts are not four times as wide as the model";
  if (c.shared_experts > 0) return "it has shared experts";
  if (!c.tied) return "its head is not the embedding";
  return "";
}

std::string why_not_moe_cpp(const ModelConfig&) { return ""; }

constexpr Architecture kArchitectures[] = {
    {"olmoe", "OlmoeForCausalLM", why_not_olmoe, read_olmoe, write_olmoe, {"OLMoE", kHuggingFaceNames, kTiedHeadName}, false},
    {"moe_cpp", "MoeCppForCausalLM", why_not_nanomoe, read_moe_cpp, write_moe_cpp, {"nanoMoE", kNanoMoeNames, kTiedHeadName}, true},
    {"moe_cpp", "MoeCppForCausalLM", why_not_moe_cpp, read_moe_cpp, write_moe_cpp, {"moe.cpp", kHuggingFaceNames, kTiedHeadName}, false},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture& architecture_of(const ModelConfig& config) {
  for (const Architecture& architecture : kArchitectures)
    if (architecture.why_not(config).empty()) return architecture;
  fail("no architecture can say this model");
}

const Architecture& find_model_type(std::string_view model_type, const std::string& where) {
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == model_type) return architecture;
    if (known.empty() || known.back() != architecture.model_type) known.emplace_back(architecture.model_type);
  }
  fail("{}: \"model_type\" is \"{}\", which this version does not read{}", where, printable(model_type), suggestion(model_type, known));
}

const Architecture& architecture_of(const ModelConfig& config, std::string_view model_type, const std::string& where) {
  std::string reason;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type != model_type) continue;
    reason = architecture.why_not(config);
    if (reason.empty()) return architecture;
  }
  fail("{}: \"model_type\" is \"{}\", which cannot say this model: {}", where, printable(model_type), reason);
}

}  // namespace moe
