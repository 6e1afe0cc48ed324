// Which norms a block has, asked of the config alone: whoever lists parameters and whoever counts a
// pass's memory must say the same.
#pragma once

#include "model/config.h"

namespace moe {

// Whether attention and FFN see the same residual stream.
inline bool is_beside(NormPlacement placement) {
  return placement == NormPlacement::beside || placement == NormPlacement::beside_each;
}

// Whether a norm stands behind the layer's FFN beside the one before it.
inline bool has_ffn_out_norm(const ModelConfig& c, int64_t layer) {
  return c.norm_placement == NormPlacement::both ? c.has_ffn(layer)
                                                 : c.moe_out_norm && c.is_moe(layer);
}

}  // namespace moe
