// How each parameter lies in a file: its name, its shape there, and in which order its rows stand
// (hub/tensor_names.h has the rows that say so).
#pragma once

#include <string>
#include <vector>

#include "hub/tensor_map.h"

namespace moe {

// A name for a layer: "blk.{i}.attn_q.weight" and the like filled in.
std::string name_of_layer(std::string_view pattern, int64_t layer);
// The same for every layer, and for its zero experts where the pattern names them.
std::vector<std::string> names_of_all(std::string_view pattern, const ModelConfig&);

std::vector<int64_t> shape_of(const Tensor&);

// Fails, naming the parameter, where no row names it.
const NameRow& row_of(const TensorNames&, const Param&);
// Adds to the map what of the file the parameter is: tensors of its own, or pieces of tensors that
// are there.
void add_piece(std::vector<FileTensor>& map, const NameRow&, Param&, const ModelConfig&);

// Gives the pieces their factors, of a file whose weights hold the config's multipliers
// (folded.cpp).
void fold_multipliers(std::vector<FileTensor>& map, const ModelConfig&);

}  // namespace moe
