// How the entry points of ops refuse what does not fit.
#pragma once

#include <initializer_list>

#include "ops/ops.h"

namespace moe::ops {

struct Named {
  const char* name;
  Tensor tensor;
};

// Throws Error: "<op>: needs <rule>; got <name> <shape>, ...".
[[noreturn]] void refuse(const char* op, const char* rule, std::initializer_list<Named> got);

inline void need(bool ok, const char* op, const char* rule, std::initializer_list<Named> got) {
  if (!ok) refuse(op, rule, got);
}

inline bool is_float(const Tensor& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; }
inline bool same_matrix(const Tensor& a, const Tensor& b) {
  return !a.empty() && !b.empty() && a.rows() == b.rows() && a.cols() == b.cols();
}
// A vector of n f32 without gaps.
inline bool is_vector(const Tensor& t, int64_t n) {
  return !t.empty() && t.dtype == DType::f32 && t.dense() && t.numel() == n;
}

// Refuses a list that names rows which are not there.
void need_listed(const char* op, const GatheredRows& rows);

}  // namespace moe::ops
