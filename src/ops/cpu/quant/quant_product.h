// Products with quantised weights: rows of x become blocks of 32 signed bytes, weights are
// rearranged into panels, and integer dot products of bytes meet the scales in f32. Nothing here
// allocates, throws or starts threads; who calls (matmul.cpp) splits groups of columns, or rows,
// among its own.
//
// A block of x has a scale for each half of 16 numbers, since rounding errs by up to half a scale:
// a large number coarsens no more than its own half. The law of one output (row r, column n): acc =
// 0; for each block b of 32 inner numbers in order, h = 0, 1 its halves,
//   isum[h] = sum over i of half h of (q_w[n,i] - offset) * q_x[r,i]
//     xsum[h] = sum over i of half h of q_x[r,i]      exact in integers
//   acc = fma(scale_w[n,b], fma(scale_x[r,b,1], isum[1], scale_x[r,b,0] * isum[0]), acc)
//     of types that have one scale for 32 numbers
//   acc = fma(scale_w[n,b,h], scale_x[r,b,h] * isum[h], acc), h = 0, then 1
//     of q2_k, q3_k, q6_k, iq1_* and iq2_*, whose panels have a scale for each 16 numbers
//   acc = fma(min_w[n,b], fma(scale_x[r,b,1], xsum[1], scale_x[r,b,0] * xsum[0]), acc)
//     q4_1, q5_1, q4_k, q5_k only
//   acc = fma(min_w[n,b,h], scale_x[r,b,h] * xsum[h], acc), h = 0, then 1
//     q2_k only
// So the bits depend neither on how many rows there are, nor on tiles, threads or the instruction
// set. Rows up to 1e35 overflow nowhere but in acc.
//
// Many rows are multiplied in AMX tiles where the machine has them (quant_amx.cpp): both sides are
// bf16, and acc is one chain over the inner numbers in order, as the tiles add pairs. x is rounded
// to bf16; a weight is cut to it after a multiplication by 1 + 11/4096, which leaves it within 0.7
// units of its last place and where it was if it is a bf16. These bits depend on nothing else
// either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads.h"
#include "ops/cpu/gemm/pack.h"
#include "tensor/dtype.h"
#include "tensor/run.h"

namespace moe::ops {

// inner numbers of a block; each half of them shares a scale of x
constexpr int64_t kQuantBlock = 32;
constexpr int64_t kQuantColumns = 16;  // columns of a panel, one a lane

// Groups of columns: what threads share out. The last one is padded with weights of zero.
constexpr int64_t quant_groups(int64_t out) { return (out + kQuantColumns - 1) / kQuantColumns; }

// ---- weights ------------------------------------------------------------------------------------
// Panels of one matrix [O,I]: those of its groups one after another, each a multiple of 64 bytes,
// aligned to 64 bytes. A run of groups is the panels of a smaller matrix, so a few of them may be
// packed alone.
size_t quant_group_bytes(DType dtype, int64_t in);
inline size_t quant_panels_bytes(DType dtype, int64_t out, int64_t in) {
  return static_cast<size_t>(quant_groups(out)) * quant_group_bytes(dtype, in);
}
// Writes the panels of `groups`. rows [O,I] blocks as GGUF stores them, row n at rows + n *
// row_bytes; `panels` begins with group 0.
void quant_pack(void* panels, DType dtype, const void* rows, int64_t row_bytes, int64_t out,
                int64_t in, Span groups);

// ---- rows of x ----------------------------------------------------------------------------------
// Each row is a record of 64 bytes for each block: 32 bytes and, of each half, scale = amax / 127
// and the sum. A half of zeros has scale 0; one with a number that is not finite has scale NaN, and
// so have all outputs it reaches. `quantised` is aligned to 64 bytes.
size_t quant_rows_bytes(int64_t rows, int64_t in);
// Quantises rows [rows.begin, rows.end) of x, f32 or bf16, to the same places of `quantised`.  x
// [*,I], perhaps gathered by x.row; I a multiple of 32
void quant_rows(void* quantised, Source x, int64_t in, Span rows);

// ---- the product --------------------------------------------------------------------------------
struct QuantOut {
  void* data;      // row r, column n at data + r * stride + n elements
  DType dtype;     // f32 or bf16 (rounded once)
  int64_t stride;  // elements
  bool add;        // += instead of =
};
// What the caller reads next, fetched while the last panels are used up. How memory is used, never
// what is written.
struct QuantNext {
  const char* data = nullptr;
  int64_t bytes = 0;
};
// out[r,n] = x[r] . w[n] for r < rows and the columns of `groups`. Row r of x is record row[r] of
// `quantised`, or r without a list.
void quant_multiply(const QuantOut& out, const void* quantised, const int32_t* row, int64_t rows,
                    const void* panels, DType dtype, int64_t out_cols, int64_t in, Span groups,
                    QuantNext next = {});

// ---- many rows, in tiles ------------------------------------------------------------------------
// Rows from which on tiles are faster, where the machine has them.
constexpr int64_t kFewestTiledRows = 17;
// out[r,n] = x[r] . w[n] as quant_multiply has it, of any number of rows; `tiles` are those of the
// rows (tile_rows() and TilesInUse of gemm/tile_product.h). scratch: quant_tiles_scratch_bytes,
// aligned to 64 bytes
size_t quant_tiles_scratch_bytes();
void quant_multiply_tiles(const QuantOut& out, const void* tiles, int64_t rows, const void* panels,
                          DType dtype, int64_t out_cols, int64_t in, Span groups, QuantNext next,
                          void* scratch);

}  // namespace moe::ops
