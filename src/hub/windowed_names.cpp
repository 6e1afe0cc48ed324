// The tables of names of model folders whose layers with a window have parts of their own
// (transformers:conversion_mapping.py): what these do not name is called as Llama's.
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr NameRow kMimoNames[] = {
    {Part::attention, ParamKind::sinks, "model.layers.{i}.self_attn.attention_sink_bias",
     Layout::same, true},
};

// Its one shared expert is called as Qwen2-MoE's.
constexpr NameRow kLagunaNames[] = {
    {Part::attention, ParamKind::o_gate, "model.layers.{i}.self_attn.g_proj.weight"},
    {Part::router, ParamKind::selection_bias,
     "model.layers.{i}.mlp.experts.e_score_correction_bias"},
};

// Flint's shared expert is called so too.
constexpr NameRow kFlintNames[] = {
    {Part::attention, ParamKind::sinks, "model.layers.{i}.self_attn.softmax_offset", Layout::same,
     true},
};

}  // namespace

const TensorNames kFlintTensors = {"Flint", kFlintNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kMimoTensors = {"MiMo", kMimoNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kLagunaTensors = {"Laguna", kLagunaNames, kTiedHeadName,
                                    {},       {},           kHuggingFaceNames};

}  // namespace moe
