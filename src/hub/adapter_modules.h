// What the pairs of an adapter's file belong to: modules, which are one matrix of the model or
// several stacked. For adapter.cpp and adapter_gguf.cpp, whose files differ in names and forms.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "hub/adapter.h"
#include "hub/tensor_map.h"

namespace moe {

// One matrix of the model in a module.
struct Member {
  Param* param = nullptr;
  int64_t expert = 0;
  int64_t rows = 0, cols = 0;
  int64_t begin = 0;  // row of the module at which its own begin, or those that they are among
  RowOrder order = {};

  int64_t row_in_file(int64_t r) const { return begin + order.file_row(r); }
};
// What one pair belongs to: matrices of one width, stacked.
struct Module {
  std::string name;
  std::vector<Member> members;
  int64_t out = 0;
};
// Of every tensor of the map that holds matrices, in its order; rows of a module are in the file's.
// Each expert of a bank is a module, NAME.EXPERT.
std::vector<Module> modules_of(const std::vector<FileTensor>& map);

// The pairs of a model, by matrix.
using Pairs = std::map<const Param*, const LowRank*>;
// Of a module: A of those of its members that have one end to end, B along a diagonal. 0: none has.
int64_t rank_of(const Module&, const Pairs&);
// A [r,I] and B [O,r] of a module, in `room`, which both may share; valid until its next use. Where
// `rank` is more than rank_of(), what is left is zero.
using Room = std::shared_ptr<std::vector<float>>;
Tensor stacked_a(const Module&, const Pairs&, int64_t rank, const Room&);
Tensor stacked_b(const Module&, const Pairs&, int64_t rank, const Room&);

// A matrix of a file, f32, bf16 or f16, as f32.
std::vector<float> floats_of(const Tensor&);

// A pair as a file has it.
struct FoundPair {
  const Module* module;
  std::vector<float> a, b;  // [r,I], [O,r]
  int64_t rank;
  float scale;
};
// Hangs them on the model, which keeps them.
AttachedAdapter hang_pairs(Model&, const std::vector<FoundPair>&);

}  // namespace moe
