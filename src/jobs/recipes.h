// The routing recipes as `moe recipes` and moe_recipes() tell them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "moe/recipes/recipes.h"

namespace moe {

// A loss of a recipe that has a coefficient: as the source states it, in the canonical form, and
// both in words.
struct StatedLoss {
  std::string name;
  float stated = 0, canonical = 0;
  std::string in_words;
};
std::vector<StatedLoss> stated_losses(const Recipe&);

// Whether a token's routing depends on later ones: yes, when evaluated (training looks ahead), or
// no.
std::string_view causal_word(const Recipe&);

Json recipe_json(const Recipe&);
std::string recipes_reply();

}  // namespace moe
