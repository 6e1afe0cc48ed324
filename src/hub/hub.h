// Model folders as Hugging Face lays them out, and .gguf files; a folder of an adapter
// (hub/adapter.h) stands for the model that it names, with the adapter on it. A model is written as
// the family it was read as, else as the first of hub/folder/architectures.h that can say it; what
// none can keeps the same container with model_type `moe_cpp`. The name tables live in hub/ and
// nowhere else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/memory.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace moe {

struct ModelSource;  // hub/tensor_map.h

// What a checkpoint holds beside the language model of text, such as layers that predict further
// tokens.
struct Beside {
  std::string what;
  std::string example;  // the first of its tensors
  int64_t tensors = 0;
};
enum class BesideText { refuse, leave_out };

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::map<std::string, std::string> metadata;  // of model.safetensors, e.g. "step"
  // what a GGUF says of itself beside texts, as Gguf::stored() gives it
  std::map<std::string, std::string> general;
  std::shared_ptr<const ModelSource> source;  // what it was read from
  std::vector<Beside> left_out;
};

// What a loaded model is for.
enum class LoadFor {
  inference,  // weights keep the dtype of the file and lie in it, mapped, wherever the products can
              // use them so
  training,   // every parameter is f32 in the Model's own memory
};

// MODEL is a folder, a .gguf file (told apart by content) or a name. Refuses, naming file, key or
// tensor: an unknown model_type (nearest offered), a missing key that changes the mathematics, a
// tensor that is missing, has another shape, or that nothing consumes.
// `experts`: whose processes hold the experts (model/model.h); each reads its own.
LoadedModel load_model(const std::string& path, const comm::Group& experts = {});  // for training
// For inference. Copies that products make of its weights may take what `limits` leave for them,
// until who knows more settles it (infer/memory_plan.h).
LoadedModel open_model(const std::string& path, const MemoryLimits& limits,
                       const comm::Group& experts = {}, BesideText = BesideText::refuse);

// The configuration alone, without looking at a weight.
ModelConfig read_model_config(const std::string& path);

// Writes config.json, tokenizer.json and the tokenizer's tokenizer_config.json when they differ
// from what is there, then model.safetensors in one atomic step: the folder is loadable at every
// moment. `dtype` f32 or bf16. Refuses where check_save_target does. `progress` is told before each
// tensor how many numbers are written, of how many; may throw, and then no tensors are there that
// were not there before. Of a model whose experts lie on several processes all of them call it, and
// the first one writes.
void save_model(const std::string& folder, Model&, const Tokenizer&, DType dtype = DType::f32,
                const std::map<std::string, std::string>& metadata = {},
                const std::function<void(int64_t done, int64_t total)>& progress = {});

// The tokenizer's files of a folder, each where it differs from what is there.
void save_tokenizer(const std::string& folder, const Tokenizer&);

// Makes the folder if need be and fails when it holds another model, whose tensors do not fit this
// one's config: replacing it could not be done in one step. A trainer asks before it starts.
void check_save_target(const std::string& folder, Model&);

}  // namespace moe
