// The gradients of attention over a batch itself, in f32: what attention_backward.cu's kernels are
// given. With p = e^(scale <q,k> - lse) and delta = <do, o>:
//   dv = sum p do;  ds = p (<do, v> - delta) scale;  dq = sum ds k;  dk = sum ds q
// One kernel owns columns and walks their keys for dq, the other owns keys and walks the columns
// that see them for dk and dv, so that each number is one thread's sum in one order.
#pragma once

#include "ops/cuda/attention/attend.h"

namespace moe::ops::cuda {

// Rows of heads, `row` bytes apart.
struct HeadRows {
  char* data;
  int64_t row;
  bool steps;  // heads are whole pieces of 8 numbers that begin at multiples of 16 bytes

  HeadRows(const Tensor& t, int64_t width)
      : data(static_cast<char*>(t.data)),
        row(t.row_bytes),
        steps(width % kStep == 0 && t.row_bytes % 16 == 0 &&
              reinterpret_cast<uintptr_t>(t.data) % 16 == 0) {}
};

struct Gradient {
  HeadRows q, k, v, o, dout, dq, dk, dv;
  const float* lse;  // [N,H], rows `lse_row` floats apart
  float* delta;      // [N,H]
  int64_t lse_row, rows;
  int group, kv_heads, width, value_width, window;
  float scale;
};

// Some of a sequence's columns and the positions of the keys that they see; or keys, by position,
// and the columns that see them. All ranges [begin, end).
struct GradientTile {
  int64_t first_row;  // of the sequence
  int32_t begin, end, from, to;
};

// Fills delta, then dq of tiles of `own` columns, dk and dv of tiles of `own` keys.
void take_delta(Run&, const Gradient&, DType);
void gradient_of_queries(Run&, const Gradient&, DType, int own, std::span<const GradientTile>);
void gradient_of_keys(Run&, const Gradient&, DType, int own, std::span<const GradientTile>);
// Shared memory that these take for `own` rows.
size_t gradient_shared(int own, int width, int value_width);

}  // namespace moe::ops::cuda
