// The forms in which weights of few bits are published: of which tensors of a folder each makes one
// weight, and the numbers that these mean. Every form is a row of a table; who finds the tensors is
// UnpackedTensors (hub/folder/packed.h).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hub/folder/packed_matrix.h"
#include "hub/folder/packing.h"
#include "tensor/tensor.h"

namespace moe {

// The tensors of one weight; those that the file does not have are absent.
struct PackedParts {
  std::string where;  // opens every message
  std::string name;   // of the tensor of the numbers
  Tensor numbers, scales;
  Tensor scale_of_scales;          // one number
  Tensor zeros;                    // numbers that mean 0
  Tensor groups;                   // of each column the group whose scale it has
  Tensor shape;                    // of the weight
  Tensor map;                      // what each code means
  Tensor outer_scales, outer_map;  // of scales that are codes themselves
  Tensor state;                    // what else there is to know of them, JSON in bytes
  Tensor order;                    // in which the numbers stand
};

struct PackedForm {
  struct Part {
    std::string_view ends;  // of the tensor's name, in place of what that of the numbers ends in
    Tensor PackedParts::*is = nullptr;
    bool needed = true;
  };

  Packing::Kind kind;
  std::string_view numbers;      // what the name of the tensor of the numbers ends in
  std::string_view weight;       // what the weight's name ends in instead
  std::span<const DType> types;  // the tensor of the numbers is known by its type too; empty: any
  Part parts[6];
  // The weight, which views the parts. Fails, naming the tensor, where they do not fit together.
  PackedMatrix (*read)(const PackedParts&, const Packing&);
  // In place of it where the weight has one type whatever else there is: it in that, without its
  // numbers and with them.
  Tensor (*shape)(const PackedParts&) = nullptr;
  Tensor (*unpack)(const PackedParts&, const MemoryOfWeights&) = nullptr;
  // Where two forms are alike in all before: the types of the first part, which tell them apart.
  std::span<const DType> types_of_first = {};

  bool has_numbers_in(std::string_view name, DType) const;
};

std::span<const PackedForm> packed_forms();

}  // namespace moe
