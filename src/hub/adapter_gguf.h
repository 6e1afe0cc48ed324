// Low-rank adapters as llama.cpp keeps them (`--lora`): one GGUF file. Format: github
// ggml-org/llama.cpp, src/llama-adapter.cpp and convert_lora_to_gguf.py.
//
//   general.type "adapter", general.architecture the model's, adapter.type "lora",
//   adapter.lora.alpha
//   <tensor>.lora_a [r,I], <tensor>.lora_b [O,r], of a bank of experts [E,r,I] and [E,O,r]:
//     W += alpha / r * B A, <tensor> as in the model's own GGUF, rows in its order; of an expert
//     that has no pair both are zero
#pragma once

#include <string>

#include "formats/gguf.h"
#include "hub/adapter.h"

namespace moe {

// Whole or not at all. Refuses what the form cannot say: tensors that are stored whole, rows of
// tokens, matrices that have no pair of rows and columns there. All pairs have one factor, alpha /
// rank of `file`. Of a model that llama.cpp does not run only moe reads it.
void save_gguf_adapter(const std::string& path, Model&, const AdapterFile& file);
// A GGUF file that says it is one.
bool is_gguf_adapter(const std::string& path);
// Hangs it on a model. Refuses, naming file and tensor: another kind
// of file, another architecture, names or shapes that are not the model's, half a pair, numbers
// that are not finite.
AttachedAdapter attach_gguf_adapter(Model&, const std::string& path);
AttachedAdapter attach_gguf_adapter(Model&, const Gguf& file);

}  // namespace moe
