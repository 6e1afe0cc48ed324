// The keys of config.json: for each model_type one list of fields that reading and writing both walk.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"

namespace moe {

ModelConfig read_olmoe(const JsonReader&);
void write_olmoe(Json&, const ModelConfig&);
ModelConfig read_moe_cpp(const JsonReader&);
void write_moe_cpp(Json&, const ModelConfig&);

// Keys of Hugging Face configurations that mean nothing for the mathematics of a decoder; accepted and left alone.
const std::vector<std::string>& ignored_config_keys();

}  // namespace moe
