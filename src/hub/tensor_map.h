// Which tensor of a file is which part of which parameter. Loading and saving walk the same map, made from an architecture's rows of names.
#pragma once

#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "hub/architectures.h"
#include "model/model.h"

namespace moe {

// One tensor as it lies in the file: its parts one after another along the rows.
struct FileTensor {
  struct Part {
    Param* param = nullptr;
    Tensor value;            // dense view of the parameter or of one expert of it; owned by the Model
    bool transpose = false;  // the last two dimensions trade places in the file
  };

  std::string name;
  std::vector<int64_t> shape;
  std::vector<Part> parts;
  bool alias = false;  // the tied head: a second name for what another tensor holds
};

// Every parameter stands in the map once. Fails, naming it, when the rows do not name a parameter.
std::vector<FileTensor> map_tensors(const Architecture&, Model&);

// How many numbers a Model of this config holds, without making one. A double, so that hostile sizes cannot overflow.
double parameter_count(const ModelConfig&);

// Fails, naming the tensor, unless the file holds exactly the map's tensors, each in its shape. An alias may be missing.
void check_account(const std::vector<FileTensor>&, const NamedTensors&);
// Fills the parameters; the account must have been checked. bf16 and f16 become f32. An alias must hold the numbers of what it is an alias of.
void read_tensors(const std::vector<FileTensor>&, const NamedTensors&);
// The items to write, in the order of the map, buffers always in f32; they view the Model's memory and share one buffer, so they are for one write at a time.
std::vector<SafetensorsItem> items_of(const std::vector<FileTensor>&, DType dtype, bool with_alias);

}  // namespace moe
