// The option lists of what a model does with a text, and in what its products run.
#pragma once

#include "infer/generate.h"
#include "options/fields.h"

namespace moe {

// What the products of a loaded model run in.
struct ComputeOptions {
  std::optional<DType> dtype;  // absent: natural_dtype
  int threads = 0;             // 0: all cores
};
FieldList fields(ComputeOptions&);
FieldList fields(SessionOptions&);
// Those of its session among them.
FieldList fields(GenerateOptions&);
void add_top_k_experts(FieldList&, int64_t& top_k_experts);
void add_cache_dtype(FieldList&, std::optional<DType>& dtype);

}  // namespace moe
