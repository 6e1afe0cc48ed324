// The tables of names of model folders whose layers with a window have parts of their own
// (transformers:conversion_mapping.py): what these do not name is called as Llama's.
#include "hub/tensor_names.h"

namespace moe {
namespace {

constexpr NameRow kMimoNames[] = {
    {Part::attention, ParamKind::sinks, "model.layers.{i}.self_attn.attention_sink_bias",
     Layout::same, true},
};

}  // namespace

const TensorNames kMimoTensors = {"MiMo", kMimoNames, kTiedHeadName, {}, {}, kLlamaTensors.rows};

}  // namespace moe
