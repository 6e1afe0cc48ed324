// The names of MiniCPM3 (transformers:minicpm3/modeling_minicpm3.py): latents as DeepSeek-V2's, but
// that halves turn, behind the rows that do not.
#include "hub/common_names.h"

namespace moe {
namespace {

constexpr NameRow kMiniCpm3Own[] = {
    {Part::attention, ParamKind::q, "model.layers.{i}.self_attn.q_proj.weight",
     Layout::halves_last},
    {Part::attention, ParamKind::q_b, "model.layers.{i}.self_attn.q_b_proj.weight",
     Layout::halves_last},
    {Part::attention, ParamKind::k_rope, "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
     Layout::fused},
};
constexpr auto kMiniCpm3Names = joined(kMiniCpm3Own, kLatentNames);

}  // namespace

const TensorNames kMiniCpm3Tensors = {"MiniCPM3", kMiniCpm3Names,   kTiedHeadName, {},
                                      {},         kHuggingFaceNames};

}  // namespace moe
