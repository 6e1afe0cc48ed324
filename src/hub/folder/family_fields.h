// The keys of config.json of the families (hub/folder/families.h), of GPT-2, of DBRX, of
// GPT-NeoX and Phi, and of DeepSeek-V4.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/json.h"
#include "hub/folder/family.h"

namespace moe {

ModelConfig read_family(const JsonReader&, const Family&);
void write_family(Json&, const ModelConfig&, const Family&);
// What of this model the family cannot say; empty when it can say all.
std::string why_not_family(const ModelConfig&, const Family&);

ModelConfig read_gpt2(const JsonReader&);
void write_gpt2(Json&, const ModelConfig&);
std::string why_not_gpt2(const ModelConfig&);

ModelConfig read_gpt_neox(const JsonReader&);
void write_gpt_neox(Json&, const ModelConfig&);
std::string why_not_gpt_neox(const ModelConfig&);

ModelConfig read_phi(const JsonReader&);
void write_phi(Json&, const ModelConfig&);
std::string why_not_phi(const ModelConfig&);

ModelConfig read_dbrx(const JsonReader&);
void write_dbrx(Json&, const ModelConfig&);
std::string why_not_dbrx(const ModelConfig&);

ModelConfig read_deepseek_v4(const JsonReader&);
void write_deepseek_v4(Json&, const ModelConfig&);
std::string why_not_deepseek_v4(const ModelConfig&);

}  // namespace moe
