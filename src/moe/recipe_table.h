// The rows of the recipe table (moe/recipes.h); included by recipes.cpp only.
#pragma once

#include <vector>

#include "moe/recipes.h"

namespace moe {

std::vector<Recipe> make_recipe_table();

}  // namespace moe
