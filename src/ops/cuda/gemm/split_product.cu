// A number of f32 has 24 bits, one of bf16 8: x = hi + mid + lo, each a bf16, with nothing left
// over but what is below bf16's smallest, 2^-133. Products of bf16 are exact in f32, so tensor
// cores make products of f32 out of those of the parts. What they do not do is round a sum: they
// cut it off, by one sign, and the error grows with its length. Worked out for a cut every 16
// numbers it is 1e-6 after 1,000 numbers and 2e-5 after 16,000, where a chain in f32 has 6e-7 and
// 2e-6. Long sums are therefore made in pieces, and the pieces added in f32.
#include "ops/cuda/gemm/split_product.h"

#include <algorithm>
#include <cmath>

#include "ops/cuda/cublas/dense_product.h"

namespace moe::ops::cuda {
namespace {

constexpr int64_t kDeep = 512;    // numbers of a piece of a sum: 5e-7 of it are cut off
constexpr int64_t kFewest = 256;  // rows and columns that are worth the copies
constexpr int64_t kTile = 128;    // cuBLAS's tiles of a product have this side, or less
constexpr int kThreads = 256;

// ---- numbers to parts ---------------------------------------------------------------------------

enum Part : uint8_t { hi, mid, lo };

// Which part stands in each block of a stack of copies; the last block is always hi.
struct Stack {
  int blocks;
  Part part[6];
};
constexpr Stack kParts = {3, {lo, mid, hi}};
// Left and right operand of the six products that reach the last bit of f32, small ones first so
// that only the sum of the large ones, hi hi, is cut off where it counts.
constexpr Stack kLeft = {6, {mid, lo, hi, mid, hi, hi}};
constexpr Stack kRight = {6, {mid, hi, lo, hi, mid, hi}};

__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }

// hi = x, mid = x - hi, lo = x - hi - mid, each rounded to bf16. A number next to the largest is
// cut off instead, as it would round to infinity.
__device__ inline void part_number(float (&part)[3], float x) {
  part[hi] = to_f32(to_bf16(x));
  if (!is_finite(part[hi])) part[hi] = __uint_as_float(__float_as_uint(x) & 0xFFFF0000u);
  part[mid] = to_f32(to_bf16(x - part[hi]));
  part[lo] = x - part[hi] - part[mid];
}

// to[block b][r,c] = the part of x[r,c] that stands there. What is no finite number stands in the
// last block alone, the others have 0: else its products with parts of either sign would cancel.
__global__ void split_kernel(Rows<bf16> to, int64_t block_size, Rows<float> x, int64_t rows,
                             int64_t cols, Stack stack) {
  begin_in_turn();
  const int64_t wide = cols / kStep, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * wide; i += step) {
    const int64_t r = i / wide, c = i % wide * kStep;
    float own[kStep], part[kStep][3];
    load_step(own, x.row(r) + c);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      if (is_finite(own[k])) part_number(part[k], own[k]);
      else part[k][hi] = part[k][mid] = part[k][lo] = 0;
    }
    for (int b = 0; b < stack.blocks; ++b) {
      const Part p = stack.part[b];
      const bool last = b + 1 == stack.blocks;
      float out[kStep];
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        out[k] = p == hi ? part[k][hi] : p == mid ? part[k][mid] : part[k][lo];
        if (last && !is_finite(own[k])) out[k] = own[k];
      }
      store_step(to.row(r) + b * block_size + c, out);
    }
  }
}

// Blocks one under the other, or side by side.  x [R,C] -> [B R,C] or [R,B C]
Tensor split(Run& run, Scratch& scratch, const Tensor& x, const Stack& stack, bool side_by_side) {
  const int64_t rows = x.rows(), cols = x.cols(), blocks = stack.blocks;
  const Tensor to = scratch.alloc(
      DType::bf16, {side_by_side ? rows : blocks * rows, side_by_side ? blocks * cols : cols});
  launch(run, split_kernel, dim3(walking_blocks(run, rows * cols / kStep, kThreads)),
         dim3(kThreads), 0, Rows<bf16>(to), side_by_side ? cols : rows * cols, Rows<float>(x), rows,
         cols, stack);
  return to;
}

// ---- sums of parts ------------------------------------------------------------------------------

// Where the sums with lo, mid and hi of c[r,c] lie, for each of `lanes` shares of the sum.
struct Sums {
  const float* data;
  int64_t lanes, lane_size, part_size, row_size;
};

// c = (c +) sum_l hi + (sum_l mid + sum_l lo). Where hi is infinite or no number it is the answer:
// of what is infinite mid and lo may have the other sign.
__global__ void sum_kernel(Rows<float> to, Sums sums, int64_t rows, int64_t cols, bool add) {
  begin_in_turn();
  const int64_t wide = cols / kStep, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * wide; i += step) {
    const int64_t r = i / wide, c = i % wide * kStep;
    float sum[3][kStep] = {}, out[kStep];
#pragma unroll
    for (int p = 0; p < 3; ++p)
      for (int64_t l = 0; l < sums.lanes; ++l) {
        float one[kStep];
        load_step(one, sums.data + l * sums.lane_size + p * sums.part_size + r * sums.row_size + c);
#pragma unroll
        for (int k = 0; k < kStep; ++k) sum[p][k] += one[k];
      }
    if (add) load_step(out, to.row(r) + c);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      const float high = sum[2][k], all = is_finite(high) ? high + (sum[1][k] + sum[0][k]) : high;
      out[k] = add ? out[k] + all : all;
    }
    store_step(to.row(r) + c, out);
  }
}

Tensor summed_over(const Tensor& t, Form form, int64_t begin, int64_t end) {
  return form == Form::dw ? t.slice_rows(begin, end) : t.slice_cols(begin, end);
}

// c[l] = or += the share l of the sum, `deep` numbers.  c [L,R,C]; forward and dw, a and b bf16
void multiply_shares(Run& run, Form form, Tensor c, Tensor a, Tensor b, int64_t deep, bool add) {
  const int64_t lanes = c.shape[0];
  if (dense_product(run, form, c, a, b, add, lanes)) return;
  for (int64_t l = 0; l < lanes; ++l)
    tile_product(run, form, c.at(l), summed_over(a, form, l * deep, (l + 1) * deep),
                 summed_over(b, form, l * deep, (l + 1) * deep), {}, add);
}

// Sums over pieces of kDeep numbers, as many at once as keep the device busy: each round adds one
// piece to each of the lanes.  -> [L,R,C]
Tensor multiply_pieces(Run& run, Scratch& scratch, Form form, Tensor a, Tensor b) {
  const bool down = form == Form::dw;
  const int64_t rows = down ? a.cols() : a.rows(), cols = down ? b.cols() : b.rows(),
                deep = down ? a.rows() : a.cols();
  const int64_t tiles = (rows + kTile - 1) / kTile * ((cols + kTile - 1) / kTile);
  const int64_t most = std::max<int64_t>(deep / kDeep, 1),
                lanes = std::clamp<int64_t>(2 * multiprocessors(run) / tiles, 1, most);
  const Tensor sums = scratch.alloc(DType::f32, {lanes, rows, cols});
  for (int64_t begin = 0; begin < deep;) {
    const int64_t piece = std::min(deep - begin, kDeep),
                  at_once = std::min((deep - begin) / piece, lanes), end = begin + at_once * piece;
    multiply_shares(run, form, Tensor(sums.data, DType::f32, {at_once, rows, cols}),
                    summed_over(a, form, begin, end), summed_over(b, form, begin, end), piece,
                    begin > 0);
    begin = end;
  }
  return sums;
}

}  // namespace

bool split_fits(Form form, const Tensor& c, const Tensor& a, const Tensor& b, int64_t rows) {
  const bool forward = form == Form::forward, dx = form == Form::dx;
  const Tensor &narrow = forward ? b : a, &other = forward ? a : b;
  const int64_t in = b.cols(), out = forward ? c.cols() : a.cols();
  if (c.dtype != DType::f32 || narrow.dtype != DType::f32 ||
      other.dtype != (dx ? DType::f32 : DType::bf16))
    return false;
  // What is copied then takes no more memory than the wide operand, or dx, in f32.
  const bool worth = rows >= kFewest && in >= kFewest && 3 * out <= std::min(rows, in);
  return worth && (!dx || out <= kDeep) && out % kStep == 0 && rows_in_steps({a, b, c});
}

void split_product(Run& run, Form form, Tensor c, Tensor a, Tensor b, bool add) {
  Scratch scratch(run);
  const int64_t in = b.cols(), out = form == Form::forward ? c.cols() : a.cols();
  if (form != Form::forward) a = split(run, scratch, a, form == Form::dx ? kLeft : kParts, true);
  if (form != Form::dw) b = split(run, scratch, b, form == Form::dx ? kRight : kParts, false);
  if (form == Form::dx) {  // the blocks are one sum
    if (!dense_product(run, form, c, a, b, add)) tile_product(run, form, c, a, b, {}, add);
    return;
  }
  const Tensor sums = multiply_pieces(run, scratch, form, a, b);
  const bool forward = form == Form::forward;
  const Tensor to = forward ? c : Tensor(c.data, c.dtype, {out, in});
  const int64_t width = sums.cols();
  const Sums from{sums.as<float>(), sums.shape[0], sums.shape[1] * width,
                  forward ? out : out * width, width};
  launch(run, sum_kernel, dim3(walking_blocks(run, to.numel() / kStep, kThreads)), dim3(kThreads),
         0, Rows<float>(to), from, to.rows(), to.cols(), add);
}

}  // namespace moe::ops::cuda
