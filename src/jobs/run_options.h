// The options of a training run: the model, how it is trained, the texts and the folder. And the
// files that may say some of them: presets and --config.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/memory.h"
#include "hub/wanted_model.h"
#include "options/read.h"
#include "train/options.h"

namespace moe {

// What a preset may say: a new model and how it is trained.
struct SetupOptions {
  std::string preset, config, tokenizer = "bytes";
  WantedModel model;
  TrainOptions train;
};
// Of `moe bench train`, which has no text and no folder.
FieldList fields(SetupOptions&);

struct RunOptions : SetupOptions {
  std::vector<std::string> data, eval_data;
  std::string out, from, teacher;
  MemoryLimits memory;
  bool resume = false;
};
FieldList fields(RunOptions&);

// Gives every field of `list`, which is of `setup`, that the caller left open the value that the
// file of `config` and then the preset have for it, and records that in `given`. Unknown names are
// refused with the nearest one. What a file sets also gives way to what makes it meaningless and
// was said before it (by the caller, for a preset by `config` too): its steps to minutes, a warm-up
// as long as all steps, experts to a recipe that has none. Defaults take its place.
void apply_files(FieldList& list, SetupOptions& setup, Given& given);

// The model that a run of this preset would make.
ModelConfig preset_config(const std::string& name);

// Whether any field that describes a model was given, by whomever.
bool describes_model(const FieldList& list, const Given& given);
// Beside weights that are there already, which `because` says: refuses every field of the caller's
// that describes a model, but for the losses' coefficients.
void refuse_model_fields(const FieldList& list, const Given& given, const std::string& because);

// As a run that goes on, from wherever it is called, finds it.
std::string absolute_path(const std::string& path);
// Where the path leads, whatever links and dots are in it; nothing need be there. Of links that
// lead nowhere, their own.
std::filesystem::path place_of(const std::string& path);
// Refuses an OUT among the files of `texts`, folders that are read as a whole; `name` is the field
// that names them, `place` what OUT is called.
void check_outside(const std::string& out, const std::vector<std::string>& texts, const char* name,
                   const std::string& place = field("out"));

}  // namespace moe
