// The table of architectures that a model folder can be written as: what each cannot say, its config keys, its tensor names. Adding one is adding a row.
// A model is saved as the model_type it was read as while that can say it; else the order is the order of preference, and the first row that can is taken.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "core/json.h"
#include "model/config.h"

namespace moe {

// How a parameter lies in the file. E experts, D model, F expert width.
enum class Layout {
  same,            // the same shape
  per_expert,      // [E,...] as E tensors [...], {e} in the name
  bank_of_one,     // [1,...] as one tensor [...]
  transposed,      // [E,F,D] as one tensor [E,D,F], [O,I] as [I,O]
  transposed_one,  // [1,F,D] as one tensor [D,F]
  bias_rows,       // [E,F] as one tensor [E,1,F]
  fused,           // rows of one tensor, in the order in which the Model lists the parameters (q, k, v)
  fused_columns,   // the same of transposed matrices: columns of one tensor [I,O]
  paired,          // rows of each head in pairs (0, C/2), (1, C/2 + 1), ..., as a rotary embedding of neighbours wants them
};

// Which layers a name holds for; names without {i} have no layer.
enum class Layers { all, dense, moe };

struct NameRow {
  std::string_view ours;  // parameter of the Model; {i} stands for the layer
  std::string_view file;  // tensor in the file; {i} layer, {e} expert
  Layout layout = Layout::same;
  Layers layers = Layers::all;
};

// The names of a kind of file.
struct TensorNames {
  std::string_view title;  // for messages
  std::span<const NameRow> rows;
  std::string_view tied_head;                      // under which a tied head may stand a second time; empty: it has no second name
  std::span<const std::string_view> buffers = {};  // tables that some writers store and that follow from the config: read over, never written
  std::string_view prefix = {};                    // that some writers leave off every name
  std::span<const NameRow> otherwise = {};         // what `rows` do not name
};

struct Architecture {
  std::string_view model_type;                 // "model_type" of config.json
  std::string_view class_name;                 // "architectures" of config.json
  std::string (*why_not)(const ModelConfig&);  // what of this model it cannot say; empty when it can say all
  ModelConfig (*read)(const JsonReader&);
  void (*write)(Json&, const ModelConfig&);
  const TensorNames* names;
  bool stores_tied_head;  // a tied head is written a second time under its own name; reading takes it or leaves it
};

constexpr std::string_view kTiedHeadName = "lm_head.weight";

std::span<const Architecture> architectures();
// The row that a model is saved as.
const Architecture& architecture_of(const ModelConfig&);
// The row whose names stand beside a config.json of this model_type. Fails when the type cannot say the model.
const Architecture& architecture_of(const ModelConfig&, std::string_view model_type, const std::string& where);
// Fails, offering the nearest, when there is no such model_type.
const Architecture& find_model_type(std::string_view model_type, const std::string& where);

// What of a routing is not dropless top-k of a softmax, its weights scaled by nothing; empty when it is that. For architectures of other programs.
std::string why_not_plain_routing(const RoutingOptions&);

// A config.json and the row whose names its tensors have.
struct FolderConfig {
  ModelConfig config;
  const Architecture* architecture = nullptr;
};
FolderConfig read_config(std::string_view json, const std::string& where);

}  // namespace moe
