// Which tensor of a model becomes which type when it is converted: a table of the habits of
// llama.cpp (github ggml-org/llama.cpp, src/llama-quant.cpp), so that a file made here is quantised
// where one made there is. docs/quantisation.md says it for users.
#pragma once

#include <optional>
#include <string_view>

#include "hub/gguf/quant_mix.h"
#include "model/model.h"

namespace moe {

// What a parameter is to whoever chooses its type.
enum class WeightKind {
  product,    // matrices that rows are multiplied by: attention, experts, dense FFNs
  embedding,  // a row is looked up
  lm_head,    // makes logits; a tied embedding is one too
  small,      // norms, biases, routers, gates of one row, learned positions: few numbers, and much
              // hangs on each
  sketch,     // scores neurons by their own rows in few bits
  buffer,     // moved by rules in steps too small for half precision
};
WeightKind kind_of(const Model&, const Param&);

// Where the tensors go.
enum class Target { gguf, folder };

struct TypeChoice {
  DType dtype = DType::f32;
  std::string_view why;  // it is not the type that was asked for; empty where it is
};

// What --dtype or --quant asks for.
struct WantedType {
  WantedType(DType type) : dtype(type) {}  // NOLINT(google-explicit-constructor): a type is one
  WantedType(const QuantMix& names_them)
      : dtype(names_them.base), mix(&names_them) {}  // NOLINT(google-explicit-constructor)

  DType dtype;
  const QuantMix* mix = nullptr;  // dtype is what it gives most matrices
};

// The type of a tensor whose rows have `cols` numbers and are `stored` so now; `asked` is what
// --quant or --dtype says, nothing: keep what is there. Not of a sketch.
TypeChoice choose_type(WeightKind, int64_t cols, DType stored, std::optional<DType> asked, Target);
// That of a sketch, whatever is asked for: `own`, sketch_type() of its model, where a file has it.
TypeChoice choose_sketch_type(DType own, int64_t cols, Target);

// Fails (usage) where no file of this kind has weights of this type.
void check_asked(DType asked, Target);

}  // namespace moe
