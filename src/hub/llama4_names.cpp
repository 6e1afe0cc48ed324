// The names of Llama 4's text (transformers:llama4/modeling_llama4.py): neighbours are turned, and
// experts have the input dimension first, all gates before all ups.
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr std::string_view kLlama4GateUp = "model.layers.{i}.feed_forward.experts.gate_up_proj";
constexpr NameRow kLlama4Names[] = {
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.{w}", Layout::paired},
    {Part::attention, ParamKind::k, "model.layers.{i}.self_attn.k_proj.{w}", Layout::paired},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.feed_forward.gate_proj.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.feed_forward.up_proj.weight",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.feed_forward.down_proj.weight",
     Layout::bank_of_one},
    {Part::router, ParamKind::weight, "model.layers.{i}.feed_forward.router.weight"},
    {Part::experts, ParamKind::gate, kLlama4GateUp, Layout::stacked_experts},
    {Part::experts, ParamKind::up, kLlama4GateUp, Layout::stacked_experts},
    {Part::experts, ParamKind::down, "model.layers.{i}.feed_forward.experts.down_proj",
     Layout::transposed},
    {Part::shared, ParamKind::gate, "model.layers.{i}.feed_forward.shared_expert.gate_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::up, "model.layers.{i}.feed_forward.shared_expert.up_proj.weight",
     Layout::bank_of_one},
    {Part::shared, ParamKind::down, "model.layers.{i}.feed_forward.shared_expert.down_proj.weight",
     Layout::bank_of_one},
};

}  // namespace

const TensorNames kLlama4Tensors = {"Llama 4", kLlama4Names, kTiedHeadName,
                                    {},        {},           kHuggingFaceNames};

}  // namespace moe
