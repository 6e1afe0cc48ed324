// The tables of names of families whose layers have attention or something else in its place, and
// an FFN behind either (transformers:models/*).
#include "hub/common_names.h"
#include "hub/tensor_names.h"

namespace moe {
namespace {

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

}  // namespace

const TensorNames kBambaTensors = {"Bamba", kBambaNames, kTiedHeadName, {}, {}, kHuggingFaceNames};

}  // namespace moe
