// What attention refuses, wherever it runs.
#include <limits>
#include <string_view>

#include "core/error.h"
#include "ops/cpu/attention/tasks.h"
#include "ops/op_checks.h"

namespace moe::ops {
namespace {

void check_matrix(std::string_view op, std::string_view name, const Tensor& t, int64_t rows,
                  int64_t cols, DType dtype) {
  if (t.empty() || t.rank != 2 || t.rows() != rows || t.cols() != cols || t.dtype != dtype)
    fail("{}: {} is {}; expected {} [{}, {}]", op, name, t.empty() ? "absent" : describe(t),
         name_of(dtype), rows, cols);
  if (!is_quantised(dtype) && t.row_bytes % static_cast<int64_t>(size_of(dtype)) != 0)
    fail("{}: the rows of {} lie {} bytes apart, which is no multiple of an element of {}", op,
         name, t.row_bytes, name_of(dtype));
}

void check_float(std::string_view op, std::string_view name, const Tensor& t) {
  if (t.empty() || t.rank != 2)
    fail("{}: {} is {}; expected a matrix", op, name, t.empty() ? "absent" : describe(t));
  if (t.dtype != DType::f32 && t.dtype != DType::bf16)
    fail("{}: {} is {}; only f32 and bf16 can be attended", op, name, describe(t));
}

void check_cached(std::string_view op, std::string_view name, const Tensor& t, int64_t width) {
  if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16 &&
      t.dtype != DType::q8_0)
    fail("{}: {} is {}; only f32, bf16, f16 and q8_0 can be attended", op, name, describe(t));
  if (width % block_of(t.dtype).elements != 0)
    fail("{}: {} is {}, of heads of {} numbers, which are not whole blocks of {}", op, name,
         describe(t), width, block_of(t.dtype).elements);
}

void check_transposed(std::string_view op, const AttentionCall& call) {
  const Tensor& k = call.kv->k;
  const int64_t width = call.kv_heads * call.width();
  if (is_quantised(k.dtype) || !k.dense() || k.shape[1] != width || k.shape[2] != kKeyBlock ||
      k.shape[0] * kKeyBlock < call.kv->rows())
    fail("{}: k is {}; expected {} [{}, {}, {}] without gaps", op, describe(k),
         is_quantised(k.dtype) ? "f32, bf16 or f16" : name_of(k.dtype),
         (call.kv->rows() + kKeyBlock - 1) / kKeyBlock, width, kKeyBlock);
}

void check_by_heads(std::string_view op, const AttentionCall& call) {
  const Tensor& v = call.kv->v;
  if (!v.dense() || v.shape[1] != call.kv_heads || v.shape[2] != kKeyBlock)
    fail("{}: v is {}; expected {} [{}, {}, {}, width] without gaps", op, describe(v),
         name_of(v.dtype), v.shape[0], call.kv_heads, kKeyBlock);
}

void check_values(std::string_view op, const AttentionCall& call) {
  const Tensor& v = call.kv->v;
  if (v.empty() || (v.rank != 2 && v.rank != 4))
    fail("{}: v is {}; expected a matrix, or blocks of it by heads", op,
         v.empty() ? "absent" : describe(v));
  if (call.kv->values_by_heads()) check_by_heads(op, call);
  else if (v.cols() % call.kv_heads != 0)
    fail("{}: v {} cannot be split into {} key/value heads", op, describe(v), call.kv_heads);
  check_cached(op, "v", v, call.value_width());
}

void check_heads(std::string_view op, const AttentionCall& call) {
  const Tensor &q = call.q, &k = call.kv->k, &v = call.kv->v;
  check_float(op, "q", q);
  if (call.heads < 1 || call.kv_heads < 1 || call.heads % call.kv_heads != 0)
    fail(
        "{}: {} query heads cannot share {} key/value heads; choose a number of key/value heads "
        "that divides the heads",
        op, call.heads, call.kv_heads);
  if (!(call.scale > 0))
    fail("{}: scores times {}; the scale of attention must be above 0", op, call.scale);
  if (q.cols() % call.heads != 0)
    fail("{}: q {} cannot be split into {} heads", op, describe(q), call.heads);
  check_values(op, call);
  if (call.kv->keys_transposed()) {
    check_transposed(op, call);
  } else {
    check_matrix(op, "k", k, call.kv->rows(), call.kv_heads * call.width(), k.dtype);
    check_cached(op, "k", k, call.width());
  }
  if (call.kv->keys_transposed() || call.kv->values_by_heads())
    for (const int64_t row : call.kv->first_row)
      if (row % kKeyBlock != 0)
        fail("{}: a sequence has its first key in row {}; {} begin in multiples of {}", op, row,
             call.kv->keys_transposed() ? "transposed keys" : "values by heads", kKeyBlock);
  if (call.window < 0)
    fail("{}: the window is {}; it must be 0 (none) or the number of keys that a query sees", op,
         call.window);
  if (!(call.cap >= 0 && call.cap <= std::numeric_limits<float>::max()))
    fail("{}: scores are held below {}; it must be above 0, or 0 for none", op, call.cap);
  check_matrix(op, "q", q, q.rows(), q.cols(), q.dtype);
  if (v.dtype != k.dtype) fail("{}: v is {} where k is {}", op, describe(v), name_of(k.dtype));
}

// The block tables must lead to rows of the view.
void check_tables(std::string_view op, const KvView& kv, std::span<const int32_t> positions) {
  for (int64_t s = 0; s < kv.sequences(); ++s) {
    const int32_t slot = kv.slots[static_cast<size_t>(s)];
    if (slot < 0 || slot >= std::ssize(kv.tables))
      fail("{}: sequence {} has slot {} of {}", op, s, slot, kv.tables.size());
    const std::span<const int32_t> table = kv.table(s);
    for (const int32_t block : table)
      if (block < 0 || (block + 1) * kKeyBlock > kv.rows())
        fail("{}: slot {} has block {} beside v {}", op, slot, block, describe(kv.v));
    for (int64_t n = kv.bounds[static_cast<size_t>(s)]; n < kv.bounds[static_cast<size_t>(s) + 1];
         ++n)
      if (const int32_t position = positions[static_cast<size_t>(n)];
          position < 0 || position / kKeyBlock >= std::ssize(table))
        fail("{}: query row {} is at position {}, but its slot {} has room for {} only", op, n,
             position, slot, std::ssize(table) * kKeyBlock);
  }
}

// Every query must lie in a sequence, and every key it sees in the view.
void check_rows(std::string_view op, const AttentionCall& call) {
  const KvView& kv = *call.kv;
  const int64_t n_rows = call.q.rows();
  const size_t sequences = kv.tables.empty() ? kv.first_row.size() : kv.slots.size();
  if (kv.bounds.size() != sequences + 1)
    fail("{}: {} bounds for {} sequences; expected one more than sequences", op, kv.bounds.size(),
         sequences);
  if (!kv.tables.empty() && !kv.first_row.empty())
    fail("{}: sequences have one run of rows each or block tables, not both", op);
  if (static_cast<int64_t>(call.positions.size()) != n_rows)
    fail("{}: {} positions for {} query rows", op, call.positions.size(), n_rows);
  if (kv.bounds.front() != 0 || kv.bounds.back() != n_rows)
    fail("{}: the bounds go from {} to {}; expected 0 to {}, the rows of q", op, kv.bounds.front(),
         kv.bounds.back(), n_rows);
  for (size_t s = 0; s < sequences; ++s)
    if (kv.bounds[s] > kv.bounds[s + 1])
      fail("{}: sequence {} has bounds [{}, {}), which go backwards", op, s, kv.bounds[s],
           kv.bounds[s + 1]);
  if (!kv.tables.empty()) return check_tables(op, kv, call.positions);
  for (size_t s = 0; s < sequences; ++s)
    if (kv.first_row[s] < 0)
      fail("{}: sequence {} has its first key in row {}", op, s, kv.first_row[s]);
  for (size_t s = 0; s < kv.first_row.size(); ++s)
    for (int64_t n = kv.bounds[s]; n < kv.bounds[s + 1]; ++n) {
      const int64_t position = call.positions[static_cast<size_t>(n)];
      if (position < 0 || kv.first_row[s] + position >= kv.rows())
        fail(
            "{}: query row {} of sequence {} is at position {}, whose key would be row {} beside v "
            "{}",
            op, n, s, position, kv.first_row[s] + position, describe(kv.v));
    }
}

}  // namespace

void check_forward(const AttentionCall& call) {
  constexpr std::string_view op = "attention_forward";
  check_heads(op, call);
  check_rows(op, call);
  check_matrix(op, "o", call.o, call.q.rows(), call.heads * call.value_width(), call.q.dtype);
  if (!call.lse.empty()) check_matrix(op, "lse", call.lse, call.q.rows(), call.heads, DType::f32);
}

void check_backward(const AttentionCall& call) {
  constexpr std::string_view op = "attention_backward";
  check_heads(op, call);
  check_rows(op, call);
  if (!call.kv->tables.empty())
    fail("{}: the keys lie in a cache; only a batch over itself has gradients", op);
  check_matrix(op, "k", call.kv->k, call.q.rows(), call.kv->k.cols(), call.q.dtype);
  check_matrix(op, "v", call.kv->v, call.q.rows(), call.kv->v.cols(), call.q.dtype);
  check_matrix(op, "o", call.o, call.q.rows(), call.heads * call.value_width(), call.q.dtype);
  check_matrix(op, "do", call.do_, call.q.rows(), call.heads * call.value_width(), call.q.dtype);
  check_matrix(op, "lse", call.lse, call.q.rows(), call.heads, DType::f32);
  check_matrix(op, "dq", call.dq, call.q.rows(), call.q.cols(), call.q.dtype);
  check_matrix(op, "dk", call.dk, call.q.rows(), call.kv->k.cols(), call.q.dtype);
  check_matrix(op, "dv", call.dv, call.q.rows(), call.kv->v.cols(), call.q.dtype);
  for (size_t s = 0; s < call.kv->first_row.size(); ++s) {
    if (call.kv->first_row[s] != call.kv->bounds[s])
      fail(
          "{}: the keys of sequence {} begin in row {}, its queries in row {}; only a batch over "
          "itself has gradients",
          op, s, call.kv->first_row[s], call.kv->bounds[s]);
    for (int64_t n = call.kv->bounds[s]; n < call.kv->bounds[s + 1]; ++n)
      if (call.positions[static_cast<size_t>(n)] != n - call.kv->bounds[s])
        fail("{}: query row {} is at position {}; the positions of sequence {} must count from 0",
             op, n, call.positions[static_cast<size_t>(n)], s);
  }
}

}  // namespace moe::ops
