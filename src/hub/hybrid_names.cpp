// The tables of names of families whose layers have attention or something else in its place, and
// an FFN behind either (transformers:models/*).
#include "hub/common_names.h"
#include "hub/tensor_names.h"

namespace moe {
namespace {

// Bamba's, and Falcon-H1's.
constexpr NameRow kBambaNames[] = {
    {Part::norms, ParamKind::ffn_norm, "model.layers.{i}.pre_ff_layernorm.{w}"},
    {Part::dense_ffn, ParamKind::gate, "model.layers.{i}.feed_forward.gate_proj.{w}",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::up, "model.layers.{i}.feed_forward.up_proj.{w}",
     Layout::bank_of_one},
    {Part::dense_ffn, ParamKind::down, "model.layers.{i}.feed_forward.down_proj.{w}",
     Layout::bank_of_one},
    {Part::norms, ParamKind::final_norm, "model.final_layernorm.{w}"},
};

// Jamba's besides.
constexpr NameRow kJambaOwn[] = {
    {Part::attention, ParamKind::scan_dt_bias, "model.layers.{i}.mamba.dt_proj.bias", Layout::same,
     true},
    {Part::router, ParamKind::weight, "model.layers.{i}.feed_forward.router.weight"},
    {Part::experts, ParamKind::gate, "model.layers.{i}.feed_forward.experts.{e}.gate_proj.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::up, "model.layers.{i}.feed_forward.experts.{e}.up_proj.weight",
     Layout::per_expert},
    {Part::experts, ParamKind::down, "model.layers.{i}.feed_forward.experts.{e}.down_proj.weight",
     Layout::per_expert},
};
constexpr auto kJambaNames = joined(kJambaOwn, kBambaNames);

// OLMo Hybrid's: layers of linear attention have norms before sublayers, which are called as
// Llama's are, the others have theirs behind.
constexpr NameRow kOlmoHybridNames[] = {
    {Part::norms, ParamKind::attn_out_norm, "model.layers.{i}.post_attention_layernorm.{w}"},
    {Part::norms, ParamKind::ffn_out_norm, "model.layers.{i}.post_feedforward_layernorm.{w}"},
    {Part::attention, ParamKind::linear_q, "model.layers.{i}.linear_attn.q_proj.weight"},
    {Part::attention, ParamKind::linear_k, "model.layers.{i}.linear_attn.k_proj.weight"},
    {Part::attention, ParamKind::linear_v, "model.layers.{i}.linear_attn.v_proj.weight"},
    {Part::attention, ParamKind::linear_z, "model.layers.{i}.linear_attn.g_proj.weight"},
    {Part::attention, ParamKind::linear_b, "model.layers.{i}.linear_attn.b_proj.weight"},
    {Part::attention, ParamKind::linear_a, "model.layers.{i}.linear_attn.a_proj.weight"},
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.linear_attn.{p}_conv1d.weight",
     Layout::channels_apart},
    {Part::attention, ParamKind::linear_norm, "model.layers.{i}.linear_attn.o_norm.weight"},
    {Part::attention, ParamKind::linear_o, "model.layers.{i}.linear_attn.o_proj.weight"},
};
// Other names of norms, under which some were published (transformers:conversion_mapping.py).
constexpr std::string_view kBeforeLinear = "model.layers.{i}.attention_layer_norm.{w}",
                           kBeforeFfn = "model.layers.{i}.feedforward_layer_norm.{w}";
constexpr NameRow kOlmoHybridOlderOwn[] = {
    {Part::norms, ParamKind::attn_norm, kBeforeLinear},
    {Part::norms, ParamKind::ffn_norm, kBeforeFfn},
};
constexpr auto kOlmoHybridOlderNames = joined(kOlmoHybridOlderOwn, kOlmoHybridNames);
// As transformers 5 saves them: it gives these names back by what the norms are called in its code,
// the second to one behind attention too, and cuts the convolution into thirds.
constexpr NameRow kOlmoHybridSavedOwn[] = {
    {Part::norms, ParamKind::attn_norm, kBeforeLinear},
    {Part::norms, ParamKind::ffn_norm, kBeforeFfn},
    {Part::norms, ParamKind::attn_out_norm, kBeforeFfn},
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.linear_attn.{p}_conv1d.weight",
     Layout::channels_cut},
};
constexpr auto kOlmoHybridSavedNames = joined(kOlmoHybridSavedOwn, kOlmoHybridNames);
// As its code calls them, where it gives no name back.
constexpr NameRow kOlmoHybridWholeOwn[] = {
    {Part::attention, ParamKind::linear_conv, "model.layers.{i}.linear_attn.conv1d.weight",
     Layout::as_channels},
};
constexpr auto kOlmoHybridWholeNames = joined(kOlmoHybridWholeOwn, kOlmoHybridNames);

}  // namespace

const TensorNames kBambaTensors = {"Bamba", kBambaNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kJambaTensors = {"Jamba", kJambaNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kFalconH1Tensors = {"Falcon-H1", kBambaNames, kTiedHeadName,
                                      {},          {},          kHuggingFaceNames};
const TensorNames kOlmoHybridTensors = {"OLMo Hybrid",    kOlmoHybridNames, kTiedHeadName, {}, {},
                                        kHuggingFaceNames};
const TensorNames kOlmoHybridOlderTensors = {
    "OLMo Hybrid", kOlmoHybridOlderNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kOlmoHybridSavedTensors = {
    "OLMo Hybrid", kOlmoHybridSavedNames, kTiedHeadName, {}, {}, kHuggingFaceNames};
const TensorNames kOlmoHybridWholeTensors = {
    "OLMo Hybrid", kOlmoHybridWholeNames, kTiedHeadName, {}, {}, kHuggingFaceNames};

}  // namespace moe
