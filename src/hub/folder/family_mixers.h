// What layers of the families have in place of attention, or beside it, and how their configs say
// it: a row for each way of saying it. family_mixers.cpp asks it; the rows are in mixer_rows.h.
#pragma once

#include <string>

#include "core/json.h"
#include "hub/folder/known_parts.h"
#include "model/config.h"

namespace moe {

struct FamilyMixers {
  // What some layers have in place of attention, in every model of the family or in some;
  // attention: none has anything else.
  Mixer kind = Mixer::attention;
  bool must = true;
  bool channel_decays = false;  // of linear attention: each channel has its own decay
  bool decay_floor = false;     // which may have a floor
  bool multipliers = false;     // parts of layers have multipliers, which the row reads
  KnownParts known = {};        // what else few families' models have and these may have
  // The number of layers and the width of heads, before all other sizes, where more than
  // "num_hidden_layers" and "head_dim" may say them.
  void (*read_sizes)(const JsonReader&, ModelConfig&) = nullptr;
  // The sizes of what mixes tokens, which layers have it, and what else only such a family says of
  // its layers.
  void (*read)(const JsonReader&, ModelConfig&) = nullptr;
  void (*write)(Json&, const ModelConfig&) = nullptr;
  // What of a model that has what the row asks for it cannot say.
  std::string (*why_not)(const ModelConfig&) = nullptr;
};

// Attention in every layer, of which the row of the family says all.
inline constexpr FamilyMixers kAttentionAlone = {};

}  // namespace moe
