// Every operation of the engine, once. It runs where the run's tensors lie (tensor/device.h):
// ops/cpu computes with oneDNN and Highway kernels, ops/cuda with a GPU's; ops/op_table.h says
// which of them a GPU has.
//
// Conventions. Size letters: N tokens, D model width, F expert width, E experts, K chosen, R rows
// (a row = a token at an expert), H heads, G key/value heads, C head width, V vocabulary, O and I
// the output and input width of a product. Arguments come in the order Run, outputs, inputs, saved,
// scalars. Activation gradients are written (=), parameter gradients accumulated (+=); an op that
// breaks this ends in _acc. "A" is the activation dtype, f32 or bf16; statistics, weights of a
// combine, losses and parameter gradients are f32. Sums run in f32 or wider. An empty Tensor means
// "absent". Ops throw Error when shapes or dtypes do not fit. Law of rows: a row's result does not
// depend on other rows, on how many there are, or on threads. Reductions over rows (parameter
// gradients, losses) promise only: same inputs, same threads, same bits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/rng.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::ops {

// ---- products (ops/cpu/gemm/matmul.cpp) ---------------------------------------------------------
// Rows are grouped: group e owns rows [offsets[e], offsets[e+1]) and meets the matrix w[e]. One
// dense matrix is a bank of one: offsets = {0, M}. The dtype of x (or dy) decides the compute
// dtype; w of any dtype is packed for it: whole when it is trained and its version has moved, else
// an expert at a time when rows meet it, within a limit (ops/memory.h). Quantised w
// multiplies rows that are rounded to blocks of bytes (ops/cpu/quant/quant_product.h) unless the
// run widens it; a gradient goes through its numbers in the compute dtype. Empty groups are legal.
// Where w has a term, all products are those of w + scale b a, and its halves get gradients,
// whether or not w does:
//   y += s (x a^T) b^T,  dx += s (dy b) a,  db += dy^T (s x a^T),  da += (s dy b)^T x

// Rows read where they lie: row r is x[row[r]], or x[r] without a list. Products gather a block of
// them into the cache right before they need it, so that no dispatched copy of the tokens is ever
// written to memory.
struct GatheredRows {
  Tensor x;
  std::span<const int32_t> row;

  GatheredRows() = default;
  GatheredRows(Tensor all) : x(all) {}  // NOLINT: a tensor is its own rows
  GatheredRows(Tensor from, std::span<const int32_t> list) : x(from), row(list) {}
  bool listed() const { return row.data() != nullptr; }
  int64_t rows() const { return listed() ? static_cast<int64_t>(row.size()) : x.rows(); }
  int64_t cols() const { return x.cols(); }
};

// Some things given as {a, b} or as they lie somewhere, for the time of a call.
template <class T>
class List {
 public:
  List(std::initializer_list<T> all) : begin_(std::data(all)), size_(all.size()) {}  // NOLINT
  List(std::span<const T> all) : begin_(all.data()), size_(all.size()) {}            // NOLINT
  const T* begin() const { return begin_; }
  const T* end() const { return begin_ + size_; }
  size_t size() const { return size_; }

 private:
  const T* begin_;
  size_t size_;
};

// The rows as products here like them where several take the same: on a GPU one after another, in
// scratch until the caller rewinds it; on the CPU as they are.
GatheredRows laid_out(Run&, const GatheredRows& rows);

// A matrix and what it makes of the rows (forward) or the gradient of that (backward). Matrices
// that share their rows, as gate and up do, are given together: each block of rows is then fetched
// once for all of them.
struct Operand {
  Param& w;
  Tensor y;
};

// y[r,:] = x[r,:] w[e(r)]^T.  y [R,O] f32 or x's dtype; x [R,I] A; w [O,I] or [E,O,I]
void matmul_forward(Run&, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets);
void matmul_forward(Run&, List<Operand> operands, GatheredRows x, std::span<const int64_t> offsets);
// The same, added to y.
void matmul_forward_acc(Run&, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets);
// The same computed in f32 whatever x is: its rows are widened block by block, so that no wide copy
// is written. matmul_dw does so where dy is f32.  y [R,O] f32
void matmul_forward_f32(Run&, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets);
// dx[r,:] = dy[r,:] w[e(r)].  dx [R,I] f32 or dy's dtype; dy [R,O] A
void matmul_dx(Run&, Tensor dx, GatheredRows dy, Param& w, std::span<const int64_t> offsets);
// dx[r,:] = sum over operands of y[r,:] w[e(r)], in that order, rounded to dx's dtype after each.
void matmul_dx(Run&, Tensor dx, List<Operand> operands, std::span<const int64_t> offsets);
// The same, added to dx. dx has dy's dtype or is f32.
void matmul_dx_acc(Run&, Tensor dx, GatheredRows dy, Param& w, std::span<const int64_t> offsets);
// w.grad[e] += dy_e^T x_e, summed in f32. Nothing happens when w is frozen (no grad); w itself is
// not read and may be of any dtype.
void matmul_dw(Run&, Param& w, GatheredRows dy, GatheredRows x, std::span<const int64_t> offsets);
void matmul_dw(Run&, List<Operand> operands, GatheredRows x, std::span<const int64_t> offsets);

// y[r,:] += weight[r] * bias[e(r),:].  y [R,O] A; bias [O] or [E,O] f32; weight [R] f32 or absent
// (= 1)
void bias_forward_acc(Run&, Tensor y, const Param& bias, Tensor weight,
                      std::span<const int64_t> offsets);
// bias.grad[e,:] += sum over e's rows of weight[r] dy[r,:];  dweight_acc[r] += <dy[r,:],
// bias[e(r),:]> when dweight_acc is given.  dy [R,O] A
void bias_backward(Run&, Tensor dweight_acc, Param& bias, GatheredRows dy, Tensor weight,
                   std::span<const int64_t> offsets);

// ---- row-wise (ops/cpu/rowwise/norm.cpp, elementwise.cpp) ---------------------------------------
// y = x / rms(x) * (offset + weight), rms(x) = sqrt(mean(x^2) + eps).  y [N,D] f32|bf16; rstd [N]
// f32; x [N,D] f32|bf16; weight [D], or absent (= 1 - offset)
void rms_norm_forward(Run&, Tensor y, Tensor rstd, Tensor x, const Param& weight, float eps,
                      float offset = 0);
// dx [N,D] f32|bf16; dy [N,D] f32|bf16 (each its own dtype)
void rms_norm_backward(Run&, Tensor dx, Param& weight, Tensor dy, Tensor x, Tensor rstd,
                       float offset = 0);
// y = (x - mean) * rstd * (offset + weight) + bias.  weight may be absent (= 1 - offset), and bias
void layer_norm_forward(Run&, Tensor y, Tensor mean, Tensor rstd, Tensor x, const Param& weight,
                        const Param& bias, float eps, float offset = 0);
void layer_norm_backward(Run&, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         Tensor mean, Tensor rstd, float offset = 0);

// y = x, between f32 and bf16 (or the same dtype).  [N,D]
void cast(Run&, Tensor y, Tensor x);
// y = a + b; each f32 or bf16; y may be a or b.  [N,D]
void add(Run&, Tensor y, Tensor a, Tensor b);
// y = a * b, one number by one, of one dtype; y may be a or b.  [N,D]
void multiply(Run&, Tensor y, Tensor a, Tensor b);
// y = factor * x, between f32 and bf16 (or the same dtype); y may be x.  [N,D]
void scale(Run&, Tensor y, Tensor x, float factor);
// y = a x + b z; each f32 or bf16; y may be x or z.  [N,D]
void add_scaled(Run&, Tensor y, Tensor x, Tensor z, float a, float b);
// y = cap tanh(x / cap); y may be x.  [N,D] f32
void soft_cap_forward(Run&, Tensor y, Tensor x, float cap);
// dx = dy (1 - (y / cap)^2); dx may be dy.  dx, dy [N,D] f32|bf16, of one dtype; y [N,D] f32
void soft_cap_backward(Run&, Tensor dx, Tensor dy, Tensor y, float cap);
// y = min(max(x, -limit), limit); y may be x.  x, y [N,D] f32|bf16, of one dtype
void clip_forward(Run&, Tensor y, Tensor x, float limit);
// dx = dy where |x| <= limit, else 0; dx may be dy.  all [N,D] f32|bf16, of one dtype
void clip_backward(Run&, Tensor dx, Tensor dy, Tensor x, float limit);
// y = 0
void zero(Run&, Tensor y);

// y = keep(r, c) ? x / (1 - p) : 0, where keep is drawn from (key, r * D + c). With p == 0 or an
// empty key y = x. It is its own backward. y may be x.  [N,D]
void dropout(Run&, Tensor y, Tensor x, float p, RngKey key);

// How fast each pair of a head cos_sin, and what it is multiplied by on the way (model/rope.h makes
// it).
struct RopeFrequencies {
  // [R/2] radians a position, R <= C being how many of a head's numbers turn
  std::vector<double> frequency;
  double factor = 1;
};
// What a pass turns by, the same in all its layers.
struct CosSinTable {
  // [U, R] f32: of each position that occurs, cosines and then sines, times the factor
  Tensor table;
  Tensor slot;  // [N] i32: which of them is a row's
  bool empty() const { return slot.empty(); }
};
// Views into `memory`. positions [N] >= 0
CosSinTable cos_sin_table(Run&, Arena& memory, std::span<const int32_t> positions,
                          const RopeFrequencies& table);
// Turns pairs (c, c + R/2), c < R/2, of each head by positions[n] * frequency[c] and multiplies
// them by the factor, in place; what a head has beyond R stays. `inverse` turns back and multiplies
// by the factor too: the adjoint, so each is the other's backward.  each x [N, H*C] A, C =
// head_width >= R
void rope_acc(Run&, List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin, bool inverse);

// y[n,:] = table[ids[n],:].  y [N,D] f32; table [V,D] of any float or quantised type: what
// dequantise() (tensor/quant.h) makes of the row, or the one of table.own_rows in its place
void embedding_forward(Run&, Tensor y, const Param& table, std::span<const int32_t> ids);
// The same, added to y: learned positions, whose table has no rows apart.
void embedding_forward_acc(Run&, Tensor y, const Param& table, std::span<const int32_t> ids);
// table.grad[ids[n],:] += dy[n,:], rows in order; where a row of table.own_rows stands for that
// one, its gradient gets it.  dy [N,D] f32
void embedding_backward(Run&, Param& table, Tensor dy, std::span<const int32_t> ids);

// ---- expert hidden layer (ops/cpu/rowwise/activation.cpp) ---------------------------------------
// gelu is exact: x/2 (1 + erf(x / sqrt 2)); relu2 is max(x, 0)^2; swiglu_oai is gpt-oss's: m / (1 +
// e^(-1.702 m)) of m = min(x, 7), beside which `up` is held within +-7 and counts one more
// (transformers:gpt_oss/modeling_gpt_oss.py); swiglu_10 is silu of min(x, 10), beside which `up` is
// held within +-10 (transformers:deepseek_v4/modeling_deepseek_v4.py)
enum class Act { silu, gelu, gelu_tanh, relu, swiglu_oai, sigmoid, relu2, swiglu_10 };

// hidden[r,f] = weight[r] * act(gate[r,f]) * up[r,f], with swiglu_oai (up' + 1) in place of up;
// without a gate (absent): weight[r] * act(up[r,f]).  all [R,F] A; weight [R] f32 or absent (= 1)
void ffn_act_forward(Run&, Tensor hidden, Tensor gate, Tensor up, Tensor weight, Act act);
// From dhidden: dgate, dup [R,F] A (dgate absent when gate is), hidden recomputed [R,F] A (for the
// gradient of down), and dweight[r] = sum_f dhidden[r,f] * (hidden[r,f] / weight[r]) without
// dividing (absent when weight is). dgate may be gate's memory, dup up's, hidden dhidden's.
void ffn_act_backward(Run&, Tensor dgate, Tensor dup, Tensor hidden, Tensor dweight, Tensor dhidden,
                      Tensor gate, Tensor up, Tensor weight, Act act);

// ---- xIELU (ops/cpu/rowwise/xielu.cpp) ----------------------------------------------------------
// The activation of FFNs without gates whose two factors are trained (Huang and Schlag, arXiv
// 2411.13010; transformers:activations.py, XIELUActivation). With p = log(1 + e^alpha_p) and n =
// beta + log(1 + e^alpha_n),
//   hidden[r,f] = p x^2 + beta x                          where x = up[r,f] > 0,
//                 n (e^min(x, eps) - 1 - x) + beta x      elsewhere.
// hidden, up [R,F] A; alpha_p, alpha_n, beta, eps [1] f32
void xielu_forward(Run&, Tensor hidden, Tensor up, const Param& alpha_p, const Param& alpha_n,
                   const Param& beta, const Param& eps);
// From dhidden: dup and hidden recomputed [R,F] A, and alpha_p.grad, alpha_n.grad +=. dup may be
// up's memory, hidden dhidden's.
void xielu_backward(Run&, Tensor dup, Tensor hidden, Param& alpha_p, Param& alpha_n, Tensor dhidden,
                    Tensor up, const Param& beta, const Param& eps);

// ---- residual streams (ops/cpu/rowwise/streams.cpp) ---------------------------------------------
// Hyper-connections (arXiv 2409.19606): S residual streams stand beside one another, h [N,SD]. Of a
// token, W weights say what a sublayer sees of them, pre [S], how much of what it gives goes to
// each, post [S], and, where streams mix, how much of stream j becomes stream k, comb [S,S]: W is S
// (only pre), 2 S or (2 + S) S, and w [N,W] holds them one behind another.
struct HyperShape {
  int64_t streams = 0;  // S; 0: there is one residual stream and nothing of this
  bool mixes = false;   // comb is there; else a stream goes on as it is
  float magnitude = 2;  // what post stays below
  float eps = 1e-6f;
  int64_t rounds = 20;  // of dividing comb by sums of its columns and rows

  bool present() const { return streams > 0; }
  int64_t parts() const { return mixes ? 3 : 2; }
  int64_t weights() const { return streams * (mixes ? 2 + streams : 2); }
};
// From z [N,W], with u = scale z + base, each of pre, post and comb having a scale of its own,
//   pre = sigmoid(u) + eps,  post = magnitude sigmoid(u), + eps where nothing mixes,
//   comb = softmax(u) over k + eps, divided by the sums over j, and in each further round by the
//     sums over k and over j, all + eps (Sinkhorn and Knopp; DeepSeek-V4, arXiv 2606.19348, section
//     2.2; without comb Hy4, transformers:hy_v4/modeling_hy_v4.py).
// base [W], scale [1..3] f32; backward: dz written, base.grad and scale.grad +=
void hyper_weights_forward(Run&, Tensor w, Tensor z, const Param& base, const Param& scale,
                           const HyperShape&);
void hyper_weights_backward(Run&, Tensor dz, Param& base, Param& scale, Tensor dw, Tensor z,
                            const HyperShape&);
// x[n] = sum_s pre_s h_s.  x [N,D] f32; backward adds to dh [N,SD] and writes what of dw is pre's
void collapse_streams_forward(Run&, Tensor x, Tensor h, Tensor w);
void collapse_streams_backward_acc(Run&, Tensor dh, Tensor dw, Tensor dx, Tensor h, Tensor w);
// out_k = post_k y + h_k, or + sum_j comb[j,k] h_j where streams mix.  out other memory than h;
// backward writes dh [N,SD] (other memory than dout where streams mix), dy [N,D] and what of dw is
// post's and comb's
void spread_streams_forward(Run&, Tensor out, Tensor h, Tensor y, Tensor w, bool mixes);
void spread_streams_backward(Run&, Tensor dh, Tensor dy, Tensor dw, Tensor dout, Tensor h, Tensor y,
                             Tensor w, bool mixes);

// ---- neurons that are chosen one by one (ops/cpu/kept/kept_neurons.cpp) -------------------------
// y[n] = sum over i in kept[n] of a_i down_i, a_i = act(<gate_i, x[n]>) <up_i, x[n]>, with
// swiglu_oai as in ffn_act_forward; without a gate (absent): a_i = act(<up_i, x[n]>). All sums run
// in f32, that over i in an order that hangs on K alone: the law of rows holds in bits. Each of
// the three is of any float or quantised type, and rows that no token keeps are not read; those of
// a model that is only read come from a copy (limit_copies). y [N,D] f32; x [N,D] f32|bf16; gate,
// up, down [F,D] or [1,F,D]: row i is neuron i's, of down what it writes; kept [N,K] i32, each row
// rising
void kept_neurons_forward(Run&, Tensor y, Tensor x, const Param& gate, const Param& up,
                          const Param& down, Tensor kept, Act act);

// ---- dispatch and combine (ops/cpu/rowwise/rows.cpp) --------------------------------------------
// y[r,:] = x[token[r],:], for rows that have to travel; products gather theirs themselves.  y
// [R,D]; x [N,D], same dtype
void gather_rows(Run&, Tensor y, Tensor x, std::span<const int32_t> token);
// y[n,:] = sum over i in [bounds[n], bounds[n+1]) of x[row[i],:], in that order, in f32.  y [N,D]
// f32|bf16; x [R,D] f32|bf16; bounds [N+1]; row [R]
void sum_rows(Run&, Tensor y, Tensor x, std::span<const int32_t> bounds,
              std::span<const int32_t> row);
void sum_rows_acc(Run&, Tensor y, Tensor x, std::span<const int32_t> bounds,
                  std::span<const int32_t> row);
// y[r,:] = weight[r] x[r,:].  y [R,D] f32|bf16; x [R,D], y's dtype; weight [R] f32
void weigh_rows_forward(Run&, Tensor y, GatheredRows x, Tensor weight);
// dx[r,:] = weight[r] dy[r,:]; dweight[r] = <dy[r,:], x[r,:]>, absent where nobody asks. dx may be
// dy.  dx, dy [R,D] f32|bf16, of one dtype; x [R,D] f32|bf16; weight, dweight [R] f32
void weigh_rows_backward(Run&, Tensor dx, Tensor dweight, Tensor dy, GatheredRows x, Tensor weight);

// y[:,ids[t]] = x[:,t].  y [N,V] f32; x [N,T] f32
void put_columns(Run&, Tensor y, Tensor x, std::span<const int64_t> ids);
// y[:,t] = x[:,ids[t]], whose place is zero from then on.  y [N,T]; x [N,V] f32|bf16, y's dtype
void take_columns(Run&, Tensor y, Tensor x, std::span<const int64_t> ids);
// h[n,i] = 0 for every i that is not in kept[n]; in place.  h [N,F] f32|bf16; kept [N,K] i32, each
// row rising
void keep_columns(Run&, Tensor h, Tensor kept);

// ---- heads of shared and own numbers (ops/cpu/rowwise/heads.cpp) --------------------------------
// y[n,h] = (shared[n], own[n,h]).  y [N,H*(R+W)], shared [N,R], own [N,H*W], same dtype
void join_heads(Run&, Tensor y, Tensor shared, Tensor own, int64_t heads);
// Its adjoint: dshared[n] = sum_h of its part of dy[n,h], in f32.  shapes and dtypes as above
void split_heads(Run&, Tensor dshared, Tensor down, Tensor dy, int64_t heads);

// ---- attention (ops/cpu/attention/attention.cpp) ------------------------------------------------
// Where the keys and values of each sequence lie.
// Sequence s owns query rows [bounds[s], bounds[s+1]). In training a sequence's keys are one run of
// rows in Saved (first_row[s] = bounds[s]); in generation they are blocks of 64 rows of a cache, in
// any order, by the block table of the slot that the sequence has. Keys lie as rows, or transposed
// in blocks of 64 rows, which is the way to keep them for queries that come one by one: the key of
// row r is [r / 64, :, r % 64].
constexpr int64_t kKeyBlock = 64;
struct KvView {
  Tensor k;  // [rows, G*C] f32, bf16, f16 or q8_0 (C, Cv multiples of 32); or [rows / 64, G*C, 64]
             // f32, bf16 or f16
  Tensor v;  // [rows, G*Cv], k's dtype; or by heads [rows / 64, G, 64, Cv], on the CPU
  std::span<const int64_t> bounds;  // [S+1] query rows
  // [S], multiples of 64 where keys lie transposed or values by heads; or none, and then
  std::span<const int64_t> first_row;
  std::span<const int32_t> slots = {};  // [S] whose table a sequence has
  // of each slot: the block of rows that holds its positions 0 to 63, 64 to 127, ...
  std::span<const std::vector<int32_t>> tables = {};

  bool keys_transposed() const { return k.rank == 3; }
  bool values_by_heads() const { return v.rank == 4; }
  int64_t rows() const { return values_by_heads() ? v.shape[0] * kKeyBlock : v.rows(); }
  int64_t sequences() const { return static_cast<int64_t>(bounds.size()) - 1; }
  std::span<const int32_t> table(int64_t sequence) const {
    return tables[static_cast<size_t>(slots[static_cast<size_t>(sequence)])];
  }
  // Of a sequence's key at a position; those behind it follow, at least as far as the block of 64
  // positions reaches.
  int64_t row(int64_t sequence, int64_t position) const {
    if (!first_row.empty()) return first_row[static_cast<size_t>(sequence)] + position;
    return int64_t{table(sequence)[static_cast<size_t>(position / kKeyBlock)]} * kKeyBlock +
           position % kKeyBlock;
  }
};
// Rows of x to rows `row` [N] of a cache, rounded to its dtype.  cache [rows,W] f32, bf16, f16 or
// q8_0; on the CPU also by heads [rows / 64, G, 64, W / G]; or transposed [rows / 64, W, 64] f32,
// bf16 or f16; x [N,W] f32 or bf16
void store_keys(Run&, Tensor cache, Tensor x, std::span<const int64_t> row);
// Query row n at position p = positions[n] sees keys 0..p, with a window W > 0 only the last W of
// them, p-W+1..p. Keys are walked in fixed blocks of 64 counted from position 0 with a running
// maximum, and stretches of eight blocks are joined in their order, so that neither chunks of
// queries nor threads change a bit. o[n,h] = softmax_p(scale <q[n,h], k[p, h*G/H]>) v. Where k
// and v are bf16 and has_bf16_products(), both products are of bf16: q and the weights of v are
// rounded to it, sums stay f32, and where there are AMX tiles numbers below the normal range are
// taken for zero. With a cap c > 0, on the CPU only, scores s are held below it before
// their softmax, as c tanh(s / c). o [N,H*Cv] A; lse [N,H] f32 (logsumexp of the scaled scores,
// absent when not needed); q [N,H*C] A
void attention_forward(Run&, Tensor o, Tensor lse, Tensor q, const KvView& kv,
                       std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
                       float scale, int64_t window = 0, float cap = 0);
// dq [N,H*C], dk [N,G*C], dv [N,G*Cv] A. Only for kv laid over the batch itself (first_row[s] =
// bounds[s], positions from 0).
void attention_backward(Run&, Tensor dq, Tensor dk, Tensor dv, Tensor do_, Tensor q,
                        const KvView& kv, Tensor o, Tensor lse, std::span<const int32_t> positions,
                        int64_t heads, int64_t kv_heads, float scale, int64_t window = 0,
                        float cap = 0);

// ---- keys that queries choose (ops/cpu/attention/choose.cpp) ------------------------------------
// Query row n at position p scores the keys j of 0..p, of one head: sum_h weights[n,h] max(0,
// <q[n,h], k[j]>), and keeps the K best, of equal ones the earlier; all where there are no more.
// kept [N,K] i32: their positions, rising, and -1 behind them; q [N,H*C] A; weights [N,H] f32; k
// [rows / 64, C, 64] f32, bf16 or f16, of no values
void choose_keys(Run&, Tensor kept, Tensor q, Tensor weights, const KvView& keys,
                 std::span<const int32_t> positions);

// The same of whole blocks of keys, counted from the text's beginning, for each of H heads by
// itself (ops/cpu/attention/choose_blocks.cpp): of those that a query at position p has some of, it
// keeps the B whose best <q[n,h], k[j]>, j <= p, is highest, of equal ones the earlier; all where
// there are no more, and always the last `local`, of which p lies in the last. kept [N,H*B] i32:
// the blocks' numbers, of each head rising, and -1 behind them; q [N,H*C] A; k as above; block, a
// multiple of 64: tokens in one
void choose_blocks(Run&, Tensor kept, Tensor q, const KvView& keys,
                   std::span<const int32_t> positions, int64_t block, int64_t local);

// ---- entries that stand for several tokens (ops/cpu/attention/entries.cpp, pool.cpp) -----------
// What attention gave, o [N,H*C] and its lse [N,H] f32, becomes what it is where query n sees the
// entries kept[n] too, in the same softmax; in place. An entry is the key and the value of all
// heads.  q like o; entries [T,C] f32, bf16 or f16; kept [N,K] i32: rows of theirs, -1 behind them
void attend_entries_acc(Run&, Tensor o, Tensor lse, Tensor q, Tensor entries, Tensor kept,
                        int64_t heads, float scale);
// dq += and dentries = what comes through the entries, of o and lse as they are at the end, from
// which attention_backward makes what comes through the rest. All of one dtype, f32 or bf16.
void attend_entries_backward_acc(Run&, Tensor dq, Tensor dentries, Tensor do_, Tensor q,
                                 Tensor entries, Tensor o, Tensor lse, Tensor kept, int64_t heads,
                                 float scale);
// Entry e of a sequence stands for tokens [e M, (e + 1) M) and has a row of y where the last of
// them is in the batch, e rising. With P = 1 part, W = C,
//   y[c] = sum_j s[j,c] x[j,c],  s = softmax_j(z[j,c] + bias[j mod M,c]),  j over its tokens;
// with 2, W = 2 C, j runs over the M tokens before those too, where there are any: of them the
// first C numbers count, of its own the last C (DeepSeek-V4, arXiv 2606.19348, equations 9 to 12
// and 20 to 23; transformers:deepseek_v4/modeling_deepseek_v4.py, DeepseekV4CSACompressor).
// y [T,C] A; x, z [N,W] A, of one dtype; bias [M,W] f32; positions [N] rise by one in a sequence,
// whose earlier tokens, where there are any, are known by state [P*M,2*W] f32: row p mod P*M has x
// and z of the token at p. It is moved on behind the last token. y is absent where T is 0.
void pool_tokens_forward(Run&, Tensor y, Tensor x, Tensor z, const Param& bias, int64_t parts,
                         std::span<const int64_t> bounds, std::span<const int32_t> positions,
                         std::span<float* const> state);
// dx, dz [N,W] written, 0 of tokens that no entry stands for; bias.grad +=. Without states.
void pool_tokens_backward(Run&, Tensor dx, Tensor dz, Param& bias, Tensor dy, Tensor x, Tensor z,
                          int64_t parts, std::span<const int64_t> bounds,
                          std::span<const int32_t> positions);

// ---- sinks (ops/cpu/attention/sinks.cpp) --------------------------------------------------------
// What attention_forward gave becomes what it is where each head has a score more, sinks[h], that
// takes a share of the weights and gives nothing: o[n,h] /= 1 + e^(sinks[h] - lse[n,h]), and the
// score is added to lse. In place.  o [N,H*Cv] f32 or bf16; lse [N,H], sinks [H] f32
void attention_sinks(Run&, Tensor o, Tensor lse, const Param& sinks);
// sinks.grad[h] -= sum_n e^(sinks[h] - lse[n,h]) <do[n,h], o[n,h]>, of o and lse as they are after
// attention_sinks, from which attention_backward makes the other gradients.  do_ like o
void attention_sinks_backward(Run&, Param& sinks, Tensor do_, Tensor o, Tensor lse);

// ---- gates of heads (ops/cpu/attention/head_gates.cpp) ------------------------------------------
// y[n,g,c] = s(gate[n,g]) o[n,g,c]: a number of the gate weighs W of o, those of a head
// (transformers:bailing_hybrid/modeling_bailing_hybrid.py) or one, by s(z) = 1 / (1 + e^-z) or
// log(1 + e^z) (transformers:laguna/modeling_laguna.py, LagunaAttention). y, o [N,G*W] f32 or bf16,
// gate [N,G] f32; y may be o's memory
enum class GateCurve { sigmoid, softplus };
void head_gates_forward(Run&, Tensor y, Tensor o, Tensor gate, GateCurve);
// From dy: do_, y recomputed (for the gradient of the projection back) like o, and dgate like gate.
// do_ may be dy's memory.
void head_gates_backward(Run&, Tensor do_, Tensor dgate, Tensor y, Tensor dy, Tensor o, Tensor gate,
                         GateCurve);

// ---- layers that keep a state (ops/cpu/recurrent) -----------------------------------------------
// Rows [bounds[s], bounds[s+1]) are sequence s in order. state[s] is what is kept of the rows
// before them and is moved on behind the last one; without states nothing is before and nothing
// kept.

// What follows a convolution.
enum class ConvAct { none, silu };
// y[n,c] = act(bias[c] + sum_j weight[c,j] x[n - (J-1) + j, c]).  y, x [N,C] A; weight [C,J] f32;
// bias [C] f32 or absent; state [J-1,C] f32: the last rows of x
void short_conv_forward(Run&, Tensor y, Tensor x, const Param& weight, const Param& bias,
                        std::span<const int64_t> bounds, std::span<float* const> state, ConvAct);
// dx [N,C]; dy like y; without states
void short_conv_backward(Run&, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         std::span<const int64_t> bounds, ConvAct);

// log_decay[n,c] = -e^a_log[h] log(1 + e^(a[n,c] + dt_bias[c])), h being the head of c;
// strength[n,h] = most / (1 + e^-b[n,h]). With a floor < 0 log_decay[n,c] = floor / (1 +
// e^-(e^a_log[h] (a[n,c] + dt_bias[c]))) instead, which stays above it
// (transformers:bailing_hybrid/ modeling_bailing_hybrid.py, BailingHybridForgetGate).  a, log_decay
// [N,H], or [N,H*C] of channels, b, strength [N,H], dt_bias as wide as a, a_log [H]; all f32
void delta_gates_forward(Run&, Tensor log_decay, Tensor strength, Tensor a, Tensor b,
                         const Param& a_log, const Param& dt_bias, float most, float floor);
// da, db, and what the two parameters get; da may be dlog_decay's memory, db dstrength's.
void delta_gates_backward(Run&, Tensor da, Tensor db, Param& a_log, Param& dt_bias,
                          Tensor dlog_decay, Tensor dstrength, Tensor a, Tensor b, float most,
                          float floor);

// H value heads of Cv, G key heads of C; value head h has the queries and keys of key head h G / H.
struct DeltaHeads {
  int64_t key_heads, value_heads, key_width, value_width;
  bool by_channel = false;  // each of a head's C channels has its own decay

  int64_t decays() const { return by_channel ? key_width : 1; }  // of a value head
};
// Tokens between two of the states that backward starts from.
constexpr int64_t kDeltaChunk = 64;
// Their number.
int64_t delta_chunks(std::span<const int64_t> bounds);
// The gated delta rule (arXiv 2412.06464, equation 10; transformers:qwen3_next/
// modeling_qwen3_next.py, torch_recurrent_gated_delta_rule). With q, k of length 1, q also over
// sqrt(C), and of each head a matrix S [C,Cv]:
//   S = e^log_decay S;  S = S + k (strength (v - S^T k))^T;  o = S^T q.
// With a decay of each channel row c of S goes by e^log_decay[c] (Kimi Delta Attention, arXiv
// 2510.26692; transformers:kimi_linear/modeling_kimi_linear.py,
// recurrent_kimi_delta_attention).
// o [N,H*Cv], qkv [N,2*G*C+H*Cv] A: queries, keys, values; log_decay [N,H], or [N,H*C] of
// channels, strength [N,H] f32; chunks [delta_chunks,H*C*Cv] f32: the states before each chunk of
// tokens, absent where no backward follows; state [H,C,Cv] f32
void delta_rule_forward(Run&, Tensor o, Tensor chunks, Tensor qkv, Tensor log_decay,
                        Tensor strength, const DeltaHeads&, std::span<const int64_t> bounds,
                        std::span<float* const> state);
// dqkv like qkv; dlog_decay, dstrength like log_decay, strength; do_ like o; without states
void delta_rule_backward(Run&, Tensor dqkv, Tensor dlog_decay, Tensor dstrength, Tensor do_,
                         Tensor chunks, Tensor qkv, Tensor log_decay, Tensor strength,
                         const DeltaHeads&, std::span<const int64_t> bounds);

// H heads of P values; head h reads and writes its state by B and C, of C numbers, of group
// h G / H.
struct StateHeads {
  int64_t heads, groups, width, states;  // H, G, P, C
};
// Mamba-2's state space (arXiv 2405.21060, section 7; transformers:granitemoehybrid/
// modeling_granitemoehybrid.py, mamba2_selective_state_update). With a matrix S [P,C] of each head:
//   step = log(1 + e^(dt + dt_bias));  S = e^(-e^a_log step) S + step x B^T;  y = S C + skip x.
// y [N,H*P], xbc [N,H*P+2*G*C] A: values, B, C; dt [N,H] f32; a_log, dt_bias, skip [H] f32; chunks
// [delta_chunks,H*P*C] f32: the states before each chunk of kDeltaChunk tokens, absent where no
// backward follows; state [H,P,C] f32
void state_space_forward(Run&, Tensor y, Tensor chunks, Tensor xbc, Tensor dt, const Param& a_log,
                         const Param& dt_bias, const Param& skip, const StateHeads&,
                         std::span<const int64_t> bounds, std::span<float* const> state);
// dxbc like xbc, ddt like dt; dy like y; without states
void state_space_backward(Run&, Tensor dxbc, Tensor ddt, Param& a_log, Param& dt_bias, Param& skip,
                          Tensor dy, Tensor chunks, Tensor xbc, Tensor dt, const StateHeads&,
                          std::span<const int64_t> bounds);

// Channels that are one job's; what B and C get is summed over such blocks in order.
constexpr int64_t kSelectiveBlock = 64;
// Mamba-1's selective scan (arXiv 2312.00752, algorithm 2; transformers:mamba/modeling_mamba.py,
// mamba_selective_scan). Each of I channels keeps C numbers S; B and C are the same for all of
// them:
//   step = log(1 + e^(dt + dt_bias));  S = e^(-e^a_log step) S + step x B;  y = <S, C> + skip x.
// y, x, dt [N,I], bc [N,2*C] A: B, C; a_log [I,C], dt_bias, skip [I] f32; chunks
// [delta_chunks,C*I] f32: the states before each chunk of kDeltaChunk tokens, absent where no
// backward follows; state [C,I] f32
void selective_scan_forward(Run&, Tensor y, Tensor chunks, Tensor x, Tensor dt, Tensor bc,
                            const Param& a_log, const Param& dt_bias, const Param& skip,
                            std::span<const int64_t> bounds, std::span<float* const> state);
// dx, ddt, dbc like x, dt, bc; dy like y; without states
void selective_scan_backward(Run&, Tensor dx, Tensor ddt, Tensor dbc, Param& a_log, Param& dt_bias,
                             Param& skip, Tensor dy, Tensor chunks, Tensor x, Tensor dt, Tensor bc,
                             std::span<const int64_t> bounds);

// ---- softmax of rows (ops/cpu/rowwise/softmax.cpp) ----------------------------------------------
// s[n,e] = e^(z[n,e] - lse[n]), lse[n] =
// logsumexp_e z[n,e].  s, z [N,E] f32, s may be z; lse [N] f32; s or lse may be absent
void softmax_forward(Run&, Tensor s, Tensor lse, Tensor z);
// dz[n,e] = s[n,e] (ds[n,e] - <ds[n], s[n]> + dlse[n]).  dz, ds, s [N,E] f32, dz may be ds; dlse
// [N] f32 or absent (= 0)
void softmax_backward(Run&, Tensor dz, Tensor ds, Tensor dlse, Tensor s);
// dz[n,e] += dlse[n] e^(z[n,e] - lse[n]): the same where no softmax was kept.  dz, z [N,E] f32;
// dlse, lse [N] f32
void logsumexp_backward_acc(Run&, Tensor dz, Tensor dlse, Tensor z, Tensor lse);

// ---- loss (ops/cpu/rowwise/loss.cpp) ------------------------------------------------------------
constexpr int32_t kIgnoreTarget = -1;
// The logits are a part of the vocabulary, and the target is not in it: as if its logit were 0.
constexpr int32_t kTargetElsewhere = -2;
// nll[n] = lse[n] - logits[n, targets[n]], 0 where the target is kIgnoreTarget; lse[n] =
// logsumexp_v logits[n,v].  nll, lse [N] f32; logits [N,V] f32
void cross_entropy_forward(Run&, Tensor nll, Tensor lse, Tensor logits,
                           std::span<const int32_t> targets);
// dlogits[n,v] = scale * weights[n] * (exp(logits[n,v] - lse[n]) - [v == targets[n]]), 0 for
// ignored rows; lse is that of the whole vocabulary.  dlogits [N,V] A (may be logits' memory when
// f32); weights [N], of either sign; empty: all 1
void cross_entropy_backward(Run&, Tensor dlogits, Tensor logits, Tensor lse,
                            std::span<const int32_t> targets, float scale,
                            std::span<const float> weights = {});
// Beside a teacher's logits, with p = e^(teacher - teacher_lse) and q = e^(logits - lse) over the
// same vocabulary: kl[n] = sum_v p[n,v] (log p[n,v] - log q[n,v]), 0 where the target is
// kIgnoreTarget; teacher_lse[n] = logsumexp_v teacher[n,v]. kl, teacher_lse, lse [N] f32; teacher,
// logits [N,V] f32
void divergence_forward(Run&, Tensor kl, Tensor teacher_lse, Tensor teacher, Tensor logits,
                        Tensor lse, std::span<const int32_t> targets);
// The gradient of scale * sum_n ((1 - share) nll[n] + share kl[n]): dlogits = scale * (q - (1 -
// share) [v == targets[n]] - share p), 0 for ignored rows. dlogits [N,V] A (may be logits' memory
// when f32)
void divergence_backward(Run&, Tensor dlogits, Tensor logits, Tensor lse, Tensor teacher,
                         Tensor teacher_lse, std::span<const int32_t> targets, float scale,
                         float share);

// ---- optimizer (ops/cpu/rowwise/optimizer.cpp) --------------------------------------------------
// Sum of squares in double over fixed blocks. Infinite or NaN input gives a result that is not
// finite.
double sum_squares(Run&, Tensor x);
// mean [1] f32: the same over the number of numbers.
void mean_square(Run&, Tensor mean, Tensor x);
// The same of several: sums[i] of all[i]. Waits once for a device.
void sums_of_squares(Run&, std::span<double> sums, List<Tensor> all);
struct AdamW {
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;      // 1 for the first update
  float grad_scale;  // the gradient is multiplied by this first (clipping)
};
// Decoupled decay as in PyTorch: value *= 1 - lr*wd; m, v moments; value -= lr * mhat / (sqrt(vhat)
// + eps). All f32, one shape. Afterwards the gradient counts as zero, the version is raised, and
// the packed copies that were in use are packed anew, each block of rows while it is still in the
// cache.
void adamw_step(Run&, Param& param, Tensor m, Tensor v, const AdamW&);
// The same of some numbers of a parameter, without what is said behind "Afterwards".
void adamw_step(Run&, Tensor value, Tensor m, Tensor v, Tensor grad, const AdamW&);
// X = a X + b (X X^T) X + c (X X^T)^2 X, step after step, of each matrix x and each of a bank by
// itself, from X = x / (|x| + 1e-7), in place. Operands of products are of run.compute, sums f32. A
// matrix of zeros stays one.  all: [O,I] or [E,O,I] f32
struct NewtonSchulz {
  float a, b, c;
};
void newton_schulz(Run&, List<Tensor> all, std::span<const NewtonSchulz> steps);
// Stores the zeros of a gradient that only counts as zero, so that its memory can be read.
void settle_grad(Run&, Param& param);

// ---- what the machine can do (ops/cpu/machine.cpp) ----------------------------------------------
bool has_bf16_products();  // AVX512-BF16 or better; below it bf16 is a storage type and products
                           // run in f32
// Whether the law of rows holds in bits for products of rows in `dtype` here. oneDNN's kernels
// below AVX2 do not promise it; there it holds to 1e-5. Nor do bf16 products where there are AMX
// tiles: those of one to four rows take vectors, and agree with those of more rows, which keep
// their bits, to the rounding of bf16.
bool products_keep_row_bits(DType dtype);
// Whether quantised weights meet groups of many rows, 17 and more, as bf16 in AMX tiles, whatever
// the rows are. The law of rows then holds in bits among such groups and among smaller ones, and to
// rounding between the two; elsewhere it holds in bits always.
bool quantised_products_in_tiles();
const char* isa_name();  // of the Highway kernels: "AVX3" (AVX-512), "AVX2", on ARM "NEON", or
                         // the compiler's baseline: "SSE2", with Debian 12's Highway "SCALAR"
// FMA rate of a register-only loop on all threads, in FLOP/s, measured for `seconds`. dtype: of the
// products; bf16 where the machine multiplies it, else f32
double measure_peak_flops(Run&, DType dtype, double seconds);
// The same of the integer products that quantised weights are multiplied by: multiplications
// and additions of bytes a second (VPDPBUSD, else VPMADDUBSW with an addition); 0 without either.
double measure_peak_int8(Run&, double seconds);
// Bytes/s of reading a buffer larger than the caches on all threads.
double measure_read_bandwidth(Run&, double seconds);

}  // namespace moe::ops
