// The rows of the recipe table (moe/recipes/recipes.h); included by recipes.cpp only.
#pragma once

#include <vector>

#include "moe/recipes/recipes.h"

namespace moe {

std::vector<Recipe> make_recipe_table();

}  // namespace moe
