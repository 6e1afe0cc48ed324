// The keys of config.json: for each model_type one list of fields that reading and writing both
// walk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "model/config.h"

namespace moe {

ModelConfig read_olmoe(const JsonReader&);
void write_olmoe(Json&, const ModelConfig&);
ModelConfig read_moe_cpp(const JsonReader&);
void write_moe_cpp(Json&, const ModelConfig&);

// Whether a recipe renormalises the chosen weights where the config says nothing.
bool renormalises(std::string_view recipe);
// A coefficient that another program states in units of its own: ours / unit. Both ways exact where
// a decimal of it can be.
float read_coefficient(const JsonReader&, const char* key, double unit);
void write_coefficient(Json&, const char* key, float ours, double unit);
// transformers has defaults of its own for these; id 1, say, would get no gradient.
void write_token_ids(Json&);

// Keys of Hugging Face configurations that mean nothing for the mathematics of a decoder; accepted
// and left alone. Layers that predict further tokens show in the tensors.
const std::vector<std::string>& ignored_config_keys();

}  // namespace moe
