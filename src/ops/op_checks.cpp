#include "ops/op_checks.h"

#include <algorithm>

#include "core/error.h"
#include "ops/check.h"
#include "tensor/quant_grid.h"
#include "tensor/quant_ternary.h"

namespace moe::ops {
namespace {

template <class T>
bool can_be_read(const Run& run, std::span<const T> list) {
  return !list.empty() && (run.device == nullptr || !run.device->owns(list.data()));
}

bool is_weight(const Tensor& w, int64_t cols) {
  return !w.empty() && is_float(w) && w.dense() && w.numel() == cols;
}
bool fits(const Tensor& t, const Tensor& up) { return same_matrix(t, up) && t.dtype == up.dtype; }
bool is_f32(const Tensor& t) { return !t.empty() && t.dtype == DType::f32 && t.cols() > 0; }

void need_rows(const Run& run, const char* op, const char* list, std::span<const int32_t> rows,
               const Tensor& x) {
  if (!can_be_read(run, rows)) return;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] < 0 || rows[i] >= x.rows())
      fail("{}: {}[{}] = {} is not a row of x {}", op, list, i, rows[i], describe(x));
}

void need_bounds(const Run& run, const char* op, std::span<const int32_t> bounds, const Tensor& y,
                 size_t listed) {
  if (static_cast<int64_t>(bounds.size()) != y.rows() + 1)
    fail("{}: {} bounds for y {}; needs one more than rows", op, bounds.size(), describe(y));
  if (!can_be_read(run, bounds)) return;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int32_t from = bounds[n], to = bounds[n + 1];
    if (from < 0 || to < from || static_cast<size_t>(to) > listed)
      fail("{}: bounds [{}, {}) of y's row {} do not lie in the list of {} rows", op, from, to, n,
           listed);
  }
}

void need_columns(const Run& run, const char* op, std::span<const int64_t> ids, const Tensor& few,
                  const Tensor& all) {
  need(!few.empty() && !all.empty() && few.dtype == all.dtype && few.rows() == all.rows() &&
           few.cols() == static_cast<int64_t>(ids.size()),
       op, "x and y of one dtype and as many rows, with an id for each column",
       {{"few", few}, {"all", all}});
  if (!can_be_read(run, ids)) return;
  for (const int64_t id : ids)
    if (id < 0 || id >= all.cols()) fail("{}: {} is no column of {}", op, id, describe(all));
}

// Of a matrix with `columns` columns, some of each row, in their order.
void need_kept(const char* op, const Tensor& kept, int64_t columns) {
  for (int64_t n = 0; n < kept.rows(); ++n) {
    const int32_t* list = kept.row<int32_t>(n);
    bool rises = list[0] >= 0 && list[kept.cols() - 1] < columns;
    for (int64_t i = 1; i < kept.cols(); ++i) rises &= list[i - 1] < list[i];
    if (!rises) fail("{}: row {} of kept does not rise within [0, {})", op, n, columns);
  }
}
bool are_indices(const Tensor& t, int64_t rows) {
  return !t.empty() && t.dtype == DType::i32 && t.rank == 2 && t.rows() == rows && t.cols() > 0;
}

void need_ids(const Run& run, const char* op, const Param& table, std::span<const int32_t> ids) {
  if (!can_be_read(run, ids)) return;
  const int64_t rows = table.value.rows();
  for (size_t n = 0; n < ids.size(); ++n)
    if (ids[n] < 0 || ids[n] >= rows)
      fail("{}: id {} at position {} is not a row of {} {}", op, ids[n], n, table.name,
           describe(table.value));
}

void need_targets(const Run& run, const char* op, const Tensor& logits,
                  std::span<const int32_t> targets, bool elsewhere) {
  if (static_cast<int64_t>(targets.size()) != logits.rows())
    fail("{}: {} targets for logits {}", op, targets.size(), describe(logits));
  if (!can_be_read(run, targets)) return;
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kIgnoreTarget || (elsewhere && targets[n] == kTargetElsewhere)) continue;
    if (targets[n] < 0 || targets[n] >= logits.cols())
      fail("{}: target {} of row {} is not a column of logits {}", op, targets[n], n,
           describe(logits));
  }
}

}  // namespace

void check_rms_norm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x,
                            const Param& weight) {
  const char* op = "rms_norm_forward";
  need(same_matrix(x, y) && is_float(x) && is_float(y), op, "x and y of one shape, f32 or bf16",
       {{"y", y}, {"x", x}});
  need(is_vector(rstd, x.rows()), op, "rstd [N] f32", {{"rstd", rstd}, {"x", x}});
  need(weight.value.empty() || is_weight(weight.value, x.cols()), op, "weight [D], or none",
       {{"weight", weight.value}, {"x", x}});
}

void check_rms_norm_backward(const Tensor& dx, const Param& weight, const Tensor& dy,
                             const Tensor& x, const Tensor& rstd) {
  const char* op = "rms_norm_backward";
  need(same_matrix(x, dy) && same_matrix(x, dx) && is_float(x) && is_float(dy) && is_float(dx), op,
       "dx, dy and x of one shape, f32 or bf16", {{"dx", dx}, {"dy", dy}, {"x", x}});
  need(is_vector(rstd, x.rows()), op, "rstd [N] f32", {{"rstd", rstd}, {"x", x}});
  need(weight.value.empty() || is_weight(weight.value, x.cols()), op, "weight [D], or none",
       {{"weight", weight.value}, {"x", x}});
  need(weight.grad.empty() || is_vector(weight.grad, x.cols()), op,
       "a weight gradient [D] f32 or none", {{"grad", weight.grad}, {"x", x}});
}

void check_layer_norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd,
                              const Tensor& x, const Param& weight, const Param& bias) {
  const char* op = "layer_norm_forward";
  need(same_matrix(x, y) && is_float(x) && is_float(y), op, "x and y of one shape, f32 or bf16",
       {{"y", y}, {"x", x}});
  need(is_vector(mean, x.rows()) && is_vector(rstd, x.rows()), op, "mean and rstd [N] f32",
       {{"mean", mean}, {"rstd", rstd}, {"x", x}});
  need((weight.value.empty() || is_weight(weight.value, x.cols())) &&
           (!bias.present() || is_weight(bias.value, x.cols())),
       op, "weight and bias [D], or none",
       {{"weight", weight.value}, {"bias", bias.value}, {"x", x}});
}

void check_layer_norm_backward(const Tensor& dx, const Param& weight, const Param& bias,
                               const Tensor& dy, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd) {
  const char* op = "layer_norm_backward";
  need(same_matrix(x, dy) && same_matrix(x, dx) && is_float(x) && is_float(dy) && is_float(dx), op,
       "dx, dy and x of one shape, f32 or bf16", {{"dx", dx}, {"dy", dy}, {"x", x}});
  need(is_vector(mean, x.rows()) && is_vector(rstd, x.rows()), op, "mean and rstd [N] f32",
       {{"mean", mean}, {"rstd", rstd}, {"x", x}});
  need(weight.value.empty() || is_weight(weight.value, x.cols()), op, "weight [D], or none",
       {{"weight", weight.value}, {"x", x}});
  need((weight.grad.empty() || is_vector(weight.grad, x.cols())) &&
           (bias.grad.empty() || is_vector(bias.grad, x.cols())),
       op, "gradients of weight and bias [D] f32 or none",
       {{"weight", weight.grad}, {"bias", bias.grad}, {"x", x}});
}

void check_ffn_act_forward(const Tensor& hidden, const Tensor& gate, const Tensor& up,
                           const Tensor& weight) {
  need(fits(hidden, up) && is_float(up) && (gate.empty() || fits(gate, up)), "ffn_act_forward",
       "hidden, gate (or none) and up of one shape and dtype, f32 or bf16",
       {{"hidden", hidden}, {"gate", gate}, {"up", up}});
  need(weight.empty() || is_vector(weight, up.rows()), "ffn_act_forward", "weight [R] f32 or none",
       {{"weight", weight}, {"up", up}});
}

void check_device_cap(const char* op, float cap) {
  if (cap > 0)
    fail("{}: scores that are held below a cap are not computed on a GPU; leave out the device",
         op);
}

void check_device_type(const char* op, const Tensor& weights) {
  if (grid_format(weights.dtype) != nullptr || is_ternary(weights.dtype))
    fail(
        "{}: weights of {} are not read on a GPU; leave out the device, or convert the model, as "
        "with --quant q3_k_m",
        op, name_of(weights.dtype));
}

void check_ffn_act_backward(const Tensor& dgate, const Tensor& dup, const Tensor& hidden,
                            const Tensor& dweight, const Tensor& dhidden, const Tensor& gate,
                            const Tensor& up, const Tensor& weight) {
  const char* op = "ffn_act_backward";
  need(is_float(up) && fits(dup, up) && fits(hidden, up) && fits(dhidden, up), op,
       "dup, hidden, dhidden and up of one shape and dtype, f32 or bf16",
       {{"dup", dup}, {"hidden", hidden}, {"dhidden", dhidden}, {"up", up}});
  need(gate.empty() ? dgate.empty() : fits(gate, up) && fits(dgate, up), op,
       "gate and dgate like up, or neither", {{"dgate", dgate}, {"gate", gate}, {"up", up}});
  need(weight.empty()
           ? dweight.empty()
           : is_vector(weight, up.rows()) && (dweight.empty() || is_vector(dweight, up.rows())),
       op, "weight and dweight [R] f32, or no dweight, or neither",
       {{"dweight", dweight}, {"weight", weight}, {"up", up}});
}

void check_newton_schulz(List<Tensor> all, std::span<const NewtonSchulz> steps) {
  for (const Tensor& x : all) {
    need(!x.empty() && x.dtype == DType::f32 && x.dense() && (x.rank == 2 || x.rank == 3),
         "newton_schulz", "x [O, I] or [E, O, I] f32 without gaps", {{"x", x}});
    need(!steps.empty(), "newton_schulz", "a step or more", {{"x", x}});
  }
}

void check_cross_entropy_forward(const Run& run, const Tensor& nll, const Tensor& lse,
                                 const Tensor& logits, std::span<const int32_t> targets) {
  const char* op = "cross_entropy_forward";
  need(!logits.empty() && logits.dtype == DType::f32 && logits.cols() > 0, op, "logits [N,V] f32",
       {{"logits", logits}});
  need(is_vector(nll, logits.rows()) && is_vector(lse, logits.rows()), op, "nll and lse [N] f32",
       {{"nll", nll}, {"lse", lse}, {"logits", logits}});
  need_targets(run, op, logits, targets, true);
}

void check_cross_entropy_backward(const Run& run, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& lse, std::span<const int32_t> targets,
                                  std::span<const float> weights) {
  const char* op = "cross_entropy_backward";
  need(same_matrix(dlogits, logits) && logits.dtype == DType::f32 && is_float(dlogits), op,
       "logits [N,V] f32 and dlogits of its shape, f32 or bf16",
       {{"dlogits", dlogits}, {"logits", logits}});
  need(is_vector(lse, logits.rows()), op, "lse [N] f32", {{"lse", lse}, {"logits", logits}});
  need(dlogits.data != logits.data || dlogits.dtype == DType::f32, op,
       "memory of its own for bf16 dlogits", {{"dlogits", dlogits}, {"logits", logits}});
  need_targets(run, op, logits, targets, true);
  if (!weights.empty() && weights.size() != targets.size())
    fail("{}: {} weights for {} targets", op, weights.size(), targets.size());
}

void check_divergence_forward(const Run& run, const Tensor& kl, const Tensor& teacher_lse,
                              const Tensor& teacher, const Tensor& logits, const Tensor& lse,
                              std::span<const int32_t> targets) {
  const char* op = "divergence_forward";
  need(!logits.empty() && logits.dtype == DType::f32 && logits.cols() > 0 &&
           same_matrix(teacher, logits) && teacher.dtype == DType::f32,
       op, "teacher and logits [N,V] f32", {{"teacher", teacher}, {"logits", logits}});
  need(is_vector(kl, logits.rows()) && is_vector(teacher_lse, logits.rows()) &&
           is_vector(lse, logits.rows()),
       op, "kl, teacher_lse and lse [N] f32",
       {{"kl", kl}, {"teacher_lse", teacher_lse}, {"lse", lse}, {"logits", logits}});
  need_targets(run, op, logits, targets, false);
}

void check_divergence_backward(const Run& run, const Tensor& dlogits, const Tensor& logits,
                               const Tensor& lse, const Tensor& teacher, const Tensor& teacher_lse,
                               std::span<const int32_t> targets) {
  const char* op = "divergence_backward";
  need(same_matrix(dlogits, logits) && logits.dtype == DType::f32 && is_float(dlogits) &&
           same_matrix(teacher, logits) && teacher.dtype == DType::f32,
       op, "logits and teacher [N,V] f32 and dlogits of their shape, f32 or bf16",
       {{"dlogits", dlogits}, {"logits", logits}, {"teacher", teacher}});
  need(is_vector(lse, logits.rows()) && is_vector(teacher_lse, logits.rows()), op,
       "lse and teacher_lse [N] f32",
       {{"lse", lse}, {"teacher_lse", teacher_lse}, {"logits", logits}});
  need(dlogits.data != logits.data || dlogits.dtype == DType::f32, op,
       "memory of its own for bf16 dlogits", {{"dlogits", dlogits}, {"logits", logits}});
  need_targets(run, op, logits, targets, false);
}

void check_softmax_forward(const Tensor& s, const Tensor& lse, const Tensor& z) {
  const char* op = "softmax_forward";
  need(is_f32(z) && (s.empty() || (is_f32(s) && same_matrix(s, z))), op,
       "z [N,E] f32 and s of its shape", {{"s", s}, {"z", z}});
  need(lse.empty() || is_vector(lse, z.rows()), op, "lse [N] f32", {{"lse", lse}, {"z", z}});
}

void check_hyper_weights(const char* op, const Tensor& w, const Tensor& z, const Param& base,
                         const Param& scale, const HyperShape& shape) {
  const int64_t parts = scale.value.numel(), streams = shape.streams,
                weights = streams * (parts == 3 ? 2 + streams : parts);
  need(streams > 0 && parts >= 1 && parts <= 3 && is_f32(w) && is_f32(z) && same_matrix(w, z) &&
           z.cols() == weights && is_vector(base.value, weights) && is_vector(scale.value, parts),
       op, "w and z [N,W], base [W], scale [1..3] f32",
       {{"w", w}, {"z", z}, {"base", base.value}, {"scale", scale.value}});
}

void check_streams(const char* op, const Tensor& h, const Tensor& x, const Tensor& w, bool all,
                   bool mixes) {
  const int64_t streams = x.cols() > 0 ? h.cols() / x.cols() : 0,
                least = streams * (!all    ? 1
                                   : mixes ? 2 + streams
                                           : 2);
  need(is_f32(h) && is_f32(x) && is_f32(w) && h.rows() == x.rows() && w.rows() == x.rows() &&
           streams > 0 && h.cols() == streams * x.cols() && w.cols() >= least,
       op, "streams [N,SD], x [N,D] and weights [N,W] f32", {{"h", h}, {"x", x}, {"w", w}});
}

void check_sqrt_softplus_forward(const Tensor& s, const Tensor& z) {
  need(is_f32(s) && is_f32(z) && same_matrix(s, z), "sqrt_softplus_forward", "s and z [N,E] f32",
       {{"s", s}, {"z", z}});
}

void check_sqrt_softplus_backward(const Tensor& dz, const Tensor& ds, const Tensor& s,
                                  const Tensor& z) {
  need(is_f32(dz) && is_f32(ds) && is_f32(s) && is_f32(z) && same_matrix(dz, z) &&
           same_matrix(ds, z) && same_matrix(s, z),
       "sqrt_softplus_backward", "dz, ds, s and z [N,E] f32",
       {{"dz", dz}, {"ds", ds}, {"s", s}, {"z", z}});
}

void check_softmax_backward(const Tensor& dz, const Tensor& ds, const Tensor& dlse,
                            const Tensor& s) {
  const char* op = "softmax_backward";
  need(is_f32(dz) && is_f32(ds) && is_f32(s) && same_matrix(dz, s) && same_matrix(ds, s), op,
       "dz, ds and s [N,E] f32", {{"dz", dz}, {"ds", ds}, {"s", s}});
  need(dlse.empty() || is_vector(dlse, s.rows()), op, "dlse [N] f32", {{"dlse", dlse}, {"s", s}});
}

void check_logsumexp_backward(const Tensor& dz, const Tensor& dlse, const Tensor& z,
                              const Tensor& lse) {
  const char* op = "logsumexp_backward_acc";
  need(is_f32(dz) && is_f32(z) && same_matrix(dz, z), op, "dz and z [N,E] f32",
       {{"dz", dz}, {"z", z}});
  need(is_vector(dlse, z.rows()) && is_vector(lse, z.rows()), op, "dlse and lse [N] f32",
       {{"dlse", dlse}, {"lse", lse}, {"z", z}});
}

void check_heads(const char* op, const Tensor& all, const Tensor& shared, const Tensor& own,
                 int64_t heads) {
  const bool there = !all.empty() && !shared.empty() && !own.empty() && heads > 0;
  need(there && is_float(all) && shared.dtype == all.dtype && own.dtype == all.dtype &&
           shared.rows() == all.rows() && own.rows() == all.rows() && own.cols() % heads == 0 &&
           all.cols() == heads * shared.cols() + own.cols(),
       op, "[N,H*(R+W)], [N,R] and [N,H*W] of one dtype, f32 or bf16",
       {{"all", all}, {"shared", shared}, {"own", own}});
}

void check_rope(List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin) {
  const int64_t rotary = cos_sin.table.cols();
  for (const Tensor& x : all) {
    need(!x.empty() && is_float(x) && x.rows() == cos_sin.slot.numel(), "rope",
         "x [N, H*C] f32 or bf16 with a place in the table for each row",
         {{"x", x}, {"slot", cos_sin.slot}});
    need(head_width >= rotary && x.cols() % head_width == 0, "rope",
         "heads of head_width, which the table fits in", {{"x", x}, {"table", cos_sin.table}});
  }
}

void check_dropout(const Tensor& y, const Tensor& x, float p) {
  need(same_matrix(x, y) && is_float(x) && is_float(y), "dropout",
       "x and y of one shape, f32 or bf16", {{"y", y}, {"x", x}});
  need(p >= 0 && p < 1, "dropout", "a probability p in [0, 1)", {{"x", x}});
}

void check_sum_rows(const Run& run, const char* op, const Tensor& y, const Tensor& x,
                    std::span<const int32_t> bounds, std::span<const int32_t> row) {
  need(!y.empty() && !x.empty() && is_float(y) && is_float(x) && x.cols() == y.cols(), op,
       "x and y of one width, f32 or bf16", {{"y", y}, {"x", x}});
  need_bounds(run, op, bounds, y, row.size());
  need_rows(run, op, "row", row, x);
}

void check_gather_rows(const Run& run, const Tensor& y, const Tensor& x,
                       std::span<const int32_t> token) {
  const char* op = "gather_rows";
  need(!y.empty() && !x.empty() && x.dtype == y.dtype && x.cols() == y.cols() &&
           y.rows() == static_cast<int64_t>(token.size()),
       op, "x and y of one width and dtype, with a token for each row of y", {{"y", y}, {"x", x}});
  need_rows(run, op, "token", token, x);
}

namespace {

// Rows of x like those of y, and a weight for each.
void need_weighed(const char* op, const Tensor& y, const GatheredRows& x, const Tensor& weight) {
  need(!y.empty() && !x.x.empty() && is_float(y) && is_float(x.x) && x.cols() == y.cols() &&
           x.rows() == y.rows() && is_vector(weight, y.rows()),
       op, "as many rows as weights, of one width, f32 or bf16; weights [R] f32",
       {{"rows", y}, {"x", x.x}, {"weight", weight}});
  need_listed(op, x);
}

}  // namespace

void check_weigh_rows_forward(const Tensor& y, const GatheredRows& x, const Tensor& weight) {
  const char* op = "weigh_rows_forward";
  need_weighed(op, y, x, weight);
  need(x.x.dtype == y.dtype, op, "x and y of one dtype", {{"y", y}, {"x", x.x}});
}

void check_weigh_rows_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                               const GatheredRows& x, const Tensor& weight) {
  const char* op = "weigh_rows_backward";
  need_weighed(op, dy, x, weight);
  need(fits(dx, dy) && (dweight.empty() || is_vector(dweight, dy.rows())), op,
       "dx like dy, dweight [R] f32 or none", {{"dx", dx}, {"dweight", dweight}, {"dy", dy}});
}

void check_put_columns(const Run& run, const Tensor& y, const Tensor& x,
                       std::span<const int64_t> ids) {
  const char* op = "put_columns";
  need_columns(run, op, ids, x, y);
  need(y.dtype == DType::f32, op, "f32", {{"y", y}});
}

void check_take_columns(const Run& run, const Tensor& y, const Tensor& x,
                        std::span<const int64_t> ids) {
  const char* op = "take_columns";
  need_columns(run, op, ids, y, x);
  need(is_float(x), op, "f32 or bf16", {{"x", x}});
}

void check_keep_columns(const Tensor& h, const Tensor& kept) {
  const char* op = "keep_columns";
  need(!h.empty() && is_float(h) && are_indices(kept, h.rows()), op,
       "h [N,F] f32 or bf16, kept [N,K] i32", {{"h", h}, {"kept", kept}});
  need_kept(op, kept, h.cols());
}

void check_kept_neurons(const Tensor& y, const Tensor& x, const Param& gate, const Param& up,
                        const Param& down, const Tensor& kept) {
  const char* op = "kept_neurons_forward";
  need(same_matrix(x, y) && is_float(x) && y.dtype == DType::f32 && are_indices(kept, x.rows()), op,
       "y [N,D] f32, x [N,D] f32 or bf16, kept [N,K] i32", {{"y", y}, {"x", x}, {"kept", kept}});
  for (const Param* p : {&gate, &up, &down}) {
    const Tensor& w = p->value;
    if (p == &gate && w.empty()) continue;
    need(!w.empty() && holds_weights(w.dtype) && (w.rank == 2 || (w.rank == 3 && w.shape[0] == 1)),
         op, "weights [F,D] or [1,F,D] of floats or blocks", {{p->name.c_str(), w}});
    need(w.cols() == x.cols() && w.rows() == up.value.rows() &&
             w.cols() % block_of(w.dtype).elements == 0,
         op, "weights of one shape, as wide as x, in rows of whole blocks",
         {{p->name.c_str(), w}, {"up", up.value}, {"x", x}});
    need(!p->is_adapted(), op, "weights without a term beside them", {{p->name.c_str(), w}});
  }
  need_kept(op, kept, up.value.rows());
}

void check_top_set(const Tensor& choice, const Tensor& s) {
  need(is_f32(s) && are_indices(choice, s.rows()) && choice.cols() <= s.cols(), "top_set",
       "s [N,E] f32, choice [N,K] i32, K <= E", {{"choice", choice}, {"s", s}});
}

namespace {

// Keys of which queries choose, and a place among them for each query.
void need_chosen(const char* op, const Tensor& q, const KvView& keys,
                 std::span<const int32_t> positions) {
  const Tensor& k = keys.k;
  const size_t sequences = keys.tables.empty() ? keys.first_row.size() : keys.slots.size();
  if (keys.bounds.size() != sequences + 1 || keys.bounds.front() != 0 ||
      keys.bounds.back() != q.rows() || static_cast<int64_t>(positions.size()) != q.rows())
    fail("{}: {} sequences, {} bounds and {} positions for {} query rows", op, sequences,
         keys.bounds.size(), positions.size(), q.rows());
  for (int64_t s = 0; s < keys.sequences(); ++s)
    for (int64_t n = keys.bounds[static_cast<size_t>(s)];
         n < keys.bounds[static_cast<size_t>(s) + 1]; ++n) {
      const int64_t position = positions[static_cast<size_t>(n)];
      const bool listed = position >= 0 &&
                          (keys.tables.empty() || position / kKeyBlock < std::ssize(keys.table(s)));
      if (!listed || keys.row(s, position / kKeyBlock * kKeyBlock) % kKeyBlock != 0 ||
          keys.row(s, position) / kKeyBlock >= k.shape[0])
        fail("{}: query row {} is at position {}, whose key has no place in k {}", op, n, position,
             describe(k));
    }
}

// [blocks, C, 64]
bool are_chosen_of(const Tensor& k) {
  return !k.empty() && k.rank == 3 && k.dense() && k.shape[2] == kKeyBlock &&
         (is_float(k) || k.dtype == DType::f16);
}

}  // namespace

void check_choose_blocks(const Tensor& kept, const Tensor& q, const KvView& keys,
                         std::span<const int32_t> positions, int64_t block, int64_t local) {
  const char* op = "choose_blocks";
  const Tensor& k = keys.k;
  need(are_chosen_of(k) && is_float(q) && q.cols() > 0 && q.cols() % k.shape[1] == 0, op,
       "keys f32, bf16 or f16 [blocks, C, 64] without gaps, q f32 or bf16 of heads of C numbers",
       {{"k", k}, {"q", q}});
  const int64_t heads = q.cols() / k.shape[1];
  need(kept.dtype == DType::i32 && kept.rows() == q.rows() && kept.cols() > 0 &&
           kept.cols() % heads == 0,
       op, "a row of i32 to choose into for each of q's, of as much room for each head",
       {{"kept", kept}, {"q", q}});
  if (block < 1 || block % kKeyBlock != 0 || local < 1 || local > kept.cols() / heads)
    fail(
        "{}: blocks are of {} keys and {} of {} are always chosen; expected a multiple of {}, and "
        "1 or more",
        op, block, local, kept.cols() / heads, kKeyBlock);
  need_chosen(op, q, keys, positions);
}

void check_choose_keys(const Tensor& kept, const Tensor& q, const Tensor& weights,
                       const KvView& keys, std::span<const int32_t> positions) {
  const char* op = "choose_keys";
  const Tensor& k = keys.k;
  need(is_float(q) && weights.dtype == DType::f32 && kept.dtype == DType::i32 && kept.cols() > 0 &&
           weights.cols() > 0 && kept.rows() == q.rows() && weights.rows() == q.rows(),
       op, "q f32 or bf16 with a row of i32 to choose into and one of f32 weights for each of its",
       {{"kept", kept}, {"q", q}, {"weights", weights}});
  need(are_chosen_of(k) && q.cols() == weights.cols() * k.shape[1], op,
       "keys f32, bf16 or f16 [blocks, C, 64] without gaps, C numbers for each weight's head",
       {{"k", k}, {"q", q}, {"weights", weights}});
  need_chosen(op, q, keys, positions);
}

void need_numbers(int64_t first, int64_t tokens) {
  if (first < tokens)
    fail(
        "the router's score of token {} of {} is not a number: the model diverged before this "
        "layer; lower the learning rate or raise @clip's grip",
        first, tokens);
}

void check_embedding(const Run& run, const char* op, const Tensor& y, const Param& table,
                     std::span<const int32_t> ids, bool accumulate) {
  const Tensor& value = table.value;
  need(!y.empty() && y.dtype == DType::f32 && y.rows() == static_cast<int64_t>(ids.size()), op,
       "y [N,D] f32 with an id for each row", {{"y", y}});
  need(table.present() && holds_weights(value.dtype) && value.cols() == y.cols(), op,
       "table [V,D] of floats or blocks", {{"y", y}, {"table", value}});
  need(value.cols() % block_of(value.dtype).elements == 0, op, "rows of whole blocks",
       {{"table", value}});
  need_ids(run, op, table, ids);
  need(table.own_rows == nullptr || !accumulate, op, "a table without rows apart",
       {{"table", value}});
}

void check_embedding_backward(const Run& run, const Param& table, const Tensor& dy,
                              std::span<const int32_t> ids) {
  const char* op = "embedding_backward";
  need(!dy.empty() && dy.dtype == DType::f32 && dy.rows() == static_cast<int64_t>(ids.size()), op,
       "dy [N,D] f32 with an id for each row", {{"dy", dy}});
  need_ids(run, op, table, ids);
  const Param* own = table.own_rows != nullptr ? table.own_rows->rows : nullptr;
  for (const Param* p : {&table, own}) {
    if (p == nullptr || p->grad.empty()) continue;
    need(same_matrix(p->value, p->grad) && p->grad.dtype == DType::f32 &&
             p->grad.cols() == dy.cols(),
         op, "a gradient [V,D] f32", {{"dy", dy}, {"grad", p->grad}, {"table", p->value}});
  }
}

void check_bias(const Run& run, const char* op, const Param& bias, const GatheredRows& rows,
                const Tensor& weight, std::span<const int64_t> offsets) {
  const Tensor &b = bias.value, &y = rows.x;
  const bool has_bias =
      !b.empty() && b.dtype == DType::f32 && b.dense() && (b.rank == 1 || b.rank == 2);
  need(has_bias && !y.empty() && is_float(y) && y.cols() == b.cols(), op,
       "rows [R, O] f32 or bf16, bias [O] or [E, O] f32", {{"rows", y}, {bias.name.c_str(), b}});
  if (can_be_read(run, rows.row)) need_listed(op, rows);
  need(weight.empty() || is_vector(weight, rows.rows()), op, "weight [R] f32 or none",
       {{"weight", weight}, {"rows", y}});
  bool fits = offsets.size() == static_cast<size_t>(b.rows()) + 1;
  // On a device those of one bank are not read.
  if (fits && (run.device == nullptr || (offsets.size() > 2 && can_be_read(run, offsets))))
    fits = offsets.front() == 0 && offsets.back() == rows.rows() &&
           std::is_sorted(offsets.begin(), offsets.end());
  need(fits, op, "offsets [E + 1] that rise from 0 to the number of rows",
       {{"rows", y}, {bias.name.c_str(), b}});
}

}  // namespace moe::ops
