// The table of architectures that a model folder can be written as: what each cannot say, its
// config keys, its tensor names. Adding one is adding a row. A model is saved as the model_type it
// was read as while that can say it; else the order is the order of preference, and the first row
// that can is taken.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "hub/folder/known_parts.h"
#include "hub/folder/packing.h"
#include "hub/tensor_names.h"
#include "model/config.h"

namespace moe {

struct Architecture {
  std::string_view model_type;  // "model_type" of config.json
  std::string_view class_name;  // "architectures" of config.json
  // what of this model it cannot say; empty when it can say all
  std::string (*why_not)(const ModelConfig&);
  ModelConfig (*read)(const JsonReader&);
  void (*write)(Json&, const ModelConfig&);
  const TensorNames* names;
  bool stores_tied_head;  // a tied head is written a second time under its own name; reading takes
                          // it or leaves it
  // The names beside a config that says MXFP4 (hub/folder/packing.h); null: there is none such.
  const TensorNames* mxfp4_names = nullptr;
  // Names, or the same ones for tensors of other shapes, that some of its checkpoints have in place
  // of the first.
  std::span<const TensorNames* const> other_names = {};
};

std::span<const Architecture> architectures();
// The row that a model is saved as.
const Architecture& architecture_of(const ModelConfig&);
// The row whose names stand beside a config.json of this model_type. Fails when the type cannot say
// the model.
const Architecture& architecture_of(const ModelConfig&, std::string_view model_type,
                                    const std::string& where);
// Fails, offering the nearest, when there is no such model_type.
const Architecture& find_model_type(std::string_view model_type, const std::string& where);

// The stages by which Llama 4's routers are read: sigmoids of chosen logits, divided by nothing
// (family_experts.cpp).
std::string llama4_stages();

// What of a routing is not dropless top-k of a softmax, its weights scaled by nothing; empty when
// it is that. For architectures of other programs.
std::string why_not_plain_routing(const RoutingOptions&);

// A config.json, the row that it is of, and how its tensors are called and packed.
struct FolderConfig {
  ModelConfig config;
  const Architecture* architecture = nullptr;
  const TensorNames* names = nullptr;
  Packing packing;
  bool beside_others = false;  // the config of a model of text was a part of it, and so its tensors
};
// A model of pictures and text, whose config has that of the text as "text_config"; or one of
// several such models, whose config has that of the one that writes text under another key. One
// whose text may be of several families has a row for each.
struct TextWithin {
  std::string_view model_type, text_type;
  std::string_view defaults;  // json: of keys that configs were published without
  const char* key = "text_config";
  std::string_view own_type = {};  // that the config of the text says, if it says one; empty: any
  bool may_stand_around = false;   // older configs have the text's keys among their own
  bool ties_by_either = false;     // the head is the embedding where one of both configs says so
};
// The rows of this model_type; the first is that of a text which does not say what it is.
std::vector<const TextWithin*> find_texts_within(std::string_view model_type);
// The model_type by which other programs know the same model, where a checkpoint says another, or
// none beside a class that tells.
std::string usual_model_type(const JsonReader& config);
FolderConfig read_config(std::string_view json, const std::string& where);

}  // namespace moe
