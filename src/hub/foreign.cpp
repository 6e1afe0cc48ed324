#include "hub/foreign.h"

#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

struct Pattern {
  std::string_view begin, end;
};
// As Hugging Face, Meta, llama.cpp and Keras name them. "model" with an end of its own:
// model.safetensors itself is not foreign.
constexpr Pattern kWeights[] = {{"model-", ".safetensors"},
                                {"model", ".safetensors.index.json"},
                                {"pytorch_model", ".bin"},
                                {"pytorch_model", ".bin.index.json"},
                                {"consolidated", ".pth"},
                                {"", ".pt"},
                                {"", ".ckpt"},
                                {"tf_model", ".h5"},
                                {"flax_model", ".msgpack"},
                                {"", ".gguf"}};

}  // namespace

std::optional<std::string> foreign_weights(const std::string& folder) {
  std::error_code ignored;  // a folder that cannot be read holds nothing that we know of
  std::optional<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    for (const Pattern& p : kWeights)
      if (name.size() >= p.begin.size() + p.end.size() && name.starts_with(p.begin) &&
          name.ends_with(p.end) && (!found || name < *found))
        found = name;
  }
  return found;
}

void check_shadows_nothing(const std::string& folder) {
  if (const std::optional<std::string> weights = foreign_weights(folder);
      weights && !weights->ends_with(".gguf"))
    fail(
        "{} holds another model ({}), and one of the two would not be seen any more; choose "
        "another name or delete it first",
        folder, *weights);
}

void check_holds_no_others(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::exists(folder + "/config.json", ignored)) return;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (const std::string name = entry.path().filename().string();
        !name.starts_with('.') && !name.ends_with(".gguf"))
      fail("{} holds other files and no model ({}); choose a new name or an empty folder", folder,
           printable(name));
}

}  // namespace moe
