// A GGUF's keys to ModelConfig and back. Keys are those of llama.cpp (github ggml-org/llama.cpp,
// gguf-py/gguf/constants.py; ggml, docs/gguf.md).
#pragma once

#include <vector>

#include "formats/gguf.h"
#include "hub/gguf/gguf_architectures.h"

namespace moe {

struct GgufModelConfig {
  ModelConfig config;
  const GgufArchitecture* architecture = nullptr;
  const TensorNames* tensors = nullptr;  // its own, or those of older files
};

// Validated. Fails, naming the key, where one that changes the mathematics is missing, says what is
// not supported, or is not known.
GgufModelConfig read_gguf_config(const Gguf&);
// What read_gguf_config reads, but for the sizes that are the tensors'.
std::vector<GgufEntry> gguf_config_entries(const GgufArchitecture&, const ModelConfig&);

// What "rope_freqs.weight" holds, [C/2]: by which factor each rotary frequency is divided.
std::vector<float> llama3_factors(const RopeScaling&, float theta, int64_t head_width);

}  // namespace moe
