// Copies of numbers of any type: in the largest pieces of memory that fit.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

// Bytes of the largest piece, 16, 4, 2 or 1, that the start and the distance of all these rows, and
// all these numbers of bytes, are whole multiples of.
inline int64_t largest_piece(std::initializer_list<Tensor> rows,
                             std::initializer_list<int64_t> bytes) {
  uintptr_t all = 0;
  for (const Tensor& t : rows)
    all |= reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(t.row_bytes);
  for (const int64_t b : bytes) all |= static_cast<uintptr_t>(b);
  for (const int64_t size : {16, 4, 2})
    if (all % static_cast<uintptr_t>(size) == 0) return size;
  return 1;
}

// f(P{}) with a type of that many bytes.
template <class F>
void with_pieces(int64_t bytes, F&& f) {
  if (bytes == 16) f(uint4{});
  else if (bytes == 4) f(uint32_t{});
  else if (bytes == 2) f(uint16_t{});
  else f(uint8_t{});
}

}  // namespace moe::ops::cuda
