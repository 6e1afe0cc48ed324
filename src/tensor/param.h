// A trained tensor: the truth, its gradient, and a derived copy in the layout and dtype that the products want.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/arena.h"
#include "tensor/pages.h"
#include "tensor/tensor.h"

namespace moe {

// Copies of single experts, each made when rows first meet it, in room reserved for all of them. Opaque to everyone but ops, whose threads write under a lock
// and look without one: `begun` tells that the rest stands, a version that the copy does; both are read and written as atomics (std::atomic_ref).
struct ExpertCopies {
  bool begun = false;
  Pages room;
  int64_t expert_bytes = 0;
  std::vector<uint64_t> version;  // [E] of the value that is packed; 0: never packed, and no memory taken
};

// Weights of a product, packed by ops for one dtype. A cache: it may be dropped at any time and is rebuilt when `version` falls behind. What is trained is
// packed as a whole, since every step packs it anew; what only lies in a file, an expert at a time. Versions are atomics as in ExpertCopies.
struct Packed {
  ExpertCopies forward_experts, backward_experts;
  Arena memory{0};
  void* forward = nullptr;  // opaque to everyone but ops
  void* backward = nullptr;
  uint64_t forward_version = 0;  // 0: never packed
  uint64_t backward_version = 0;
};

// How much memory the packed copies of weights that are never trained may take together, of all threads that run the model. What does not fit is packed anew
// each time it is used.
struct PackBudget {
  std::atomic<int64_t> limit = INT64_MAX;  // bytes
  std::atomic<int64_t> used = 0;

  bool has_room(int64_t bytes) const { return used + bytes <= limit; }
};

// What a parameter is for: decides its initial values, whether it is trained and whether it takes weight decay.
enum class Role : uint8_t {
  matrix,    // embeddings, projections, routers, experts
  residual,  // a matrix that writes into the residual stream
  norm,      // starts at one
  bias,      // starts at zero
  buffer,    // starts at zero; saved and loaded with the model, but moved by a rule of its own: no gradient, no moments, no decay
};

// What it is in its model, which model/parameters.h lists: the part it belongs to, and which of that part's parameters it is.
enum class Part : uint8_t;
enum class ParamKind : uint8_t;

// Matrices are stored as Hugging Face stores Linear weights, [out, in]; banks of experts put the expert first, [E, out, in].
struct Param {
  std::string name;  // e.g. "layers.0.ffn.experts.gate.weight": for files and messages; what it is say the next four
  Part part{};       // none: of no model
  ParamKind kind{};
  int64_t layer = -1;  // -1: of none
  Role role = Role::matrix;
  Tensor value;  // f32 master when training, owned by the Model; else of any dtype, perhaps a view of a mapped file that the Model keeps
  // [E] where each expert's matrix lies, when a file stores them apart; empty: one after another in `value`. Such a parameter is read by expert() only.
  std::vector<const void*> pieces;
  Tensor grad;  // f32, shape of value; empty = frozen; owned by the Model
  // What stands in grad counts as zero: whoever adds to it calls ops::settle_grad or writes. Saves a pass over memory that would only store zeros.
  bool grad_is_zero = false;
  uint64_t version = 1;  // raised by whoever writes `value`
  Packed packed_f32, packed_bf16;
  ExpertCopies packed_blocks;    // of a quantised value, for products with its blocks
  PackBudget* budget = nullptr;  // the Model's; null: no limit

  bool is_matrix() const { return role == Role::matrix || role == Role::residual; }
  bool is_trained() const { return role != Role::buffer; }
  bool is_bias() const { return role == Role::bias; }
  bool present() const { return !value.empty(); }
  // [O,I]: matrix e of a bank [E,O,I]; the whole of a matrix [O,I], which is a bank of one.
  Tensor expert(int64_t e) const {
    Tensor matrix = value.rank == 3 ? value.at(e) : value;
    if (!pieces.empty()) matrix.data = const_cast<void*>(pieces[static_cast<size_t>(e)]);
    return matrix;
  }
  void touched() { ++version; }
};

}  // namespace moe
