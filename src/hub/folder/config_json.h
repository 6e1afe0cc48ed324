// config.json to ModelConfig and back.
#pragma once

#include <string>
#include <string_view>

#include "model/config.h"

namespace moe {

// `where` names the file in errors. The result is validated.
ModelConfig parse_config(std::string_view json, const std::string& where);
// Deterministic text, keys sorted, ends in a newline.
std::string config_to_json(const ModelConfig&);

}  // namespace moe
