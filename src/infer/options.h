// The option lists of what a model does with a text, and in what its products run.
#pragma once

#include "infer/draft.h"
#include "infer/generate.h"
#include "options/common.h"
#include "options/fields.h"

namespace moe {

// What the products of a loaded model run in.
struct ComputeOptions {
  std::optional<DType> dtype;  // absent: natural_dtype
  int threads = 0;             // 0: all cores
  DeviceKind device = DeviceKind::cpu;
};
FieldList fields(ComputeOptions&);
// The same of what computes on the CPU alone.
FieldList cpu_fields(ComputeOptions&);
// On a GPU bf16 where weights are of 2 bytes or quantised: it multiplies no blocks of bytes.
DType compute_dtype(const ComputeOptions&, const Model&);
FieldList fields(SessionOptions&);
// Those of its session among them.
FieldList fields(GenerateOptions&);
FieldList fields(DraftOptions&);
void add_top_k_experts(FieldList&, int64_t& top_k_experts);
void add_cache_dtype(FieldList&, std::optional<DType>& dtype);

}  // namespace moe
