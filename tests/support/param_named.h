// A model's parameter by its name, as tests write it down.
#pragma once

#include <string_view>

#include "model/model.h"

namespace moe::test {

// Null where the model has none.
inline Param* param_named(const Model& model, std::string_view name) {
  for (Param* param : model.params())
    if (param->name == name) return param;
  return nullptr;
}

}  // namespace moe::test
