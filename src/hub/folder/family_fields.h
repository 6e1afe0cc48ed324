// The keys of config.json of the families that transformers has
// (transformers:models/*/configuration_*.py) and of the first DeepSeekMoE, whose code lies with its
// weights (huggingface deepseek-ai/deepseek-moe-16b-base).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/json.h"
#include "model/config.h"

namespace moe {

enum class FamilyKind {
  llama,
  mistral,
  qwen2,
  qwen3,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  deepseek,
  deepseek_v2,
  deepseek_v3,
  gpt2
};

ModelConfig read_family(const JsonReader&, FamilyKind);
void write_family(Json&, const ModelConfig&, FamilyKind);
// What of this model the family cannot say; empty when it can say all.
std::string why_not_family(const ModelConfig&, FamilyKind);

}  // namespace moe
