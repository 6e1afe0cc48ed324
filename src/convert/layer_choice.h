// Which layers of a dense model get experts; the others stay as they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace moe {

struct LayerChoice {
  int64_t every = 1;            // layers i with i mod `every` == 0 ...
  std::vector<int64_t> listed;  // ... unless they are listed here, in order and each once

  // How many they are in this dense model, whose layers may lack an FFN.
  int64_t count(const ModelConfig& dense) const;
  // Throws (usage) where a model of so many layers has no such ones.
  void check(int64_t layers) const;
  // Makes the layers MoE layers of `config`, whose recipe is the caller's affair.
  void set(ModelConfig& config) const;
};

// "every:2", or "1,3,8-11", as a choice is written. Throws (usage) at anything else; whether there
// are such layers is not asked here.
LayerChoice parse_layers(const std::string& text);
std::string to_text(const LayerChoice&);

}  // namespace moe
