// Whose model lies in a folder: what other programs, and other forms of ours, call their weights.
#pragma once

#include <optional>
#include <string>

namespace moe {

// A file of weights in the folder that our own model.safetensors would shadow, or be shadowed by:
// shards, PyTorch's, TensorFlow's, Flax's, GGUF. Nothing where there is none; our checkpoints'
// trainer-<step>.safetensors is none, nor is what lies in folders within.
std::optional<std::string> foreign_weights(const std::string& folder);

// Fails where a model.safetensors written there would shadow such weights, or be shadowed. GGUF
// files, which have names of their own, may stay.
void check_shadows_nothing(const std::string& folder);
// Fails for a folder of other things than a model: a model's files would be strewn among them.
void check_holds_no_others(const std::string& folder);

}  // namespace moe
