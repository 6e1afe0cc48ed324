#include "model/lm_head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/error.h"
#include "model/lm_head_chunks.h"

namespace moe {
namespace {

template <class F>
void each_chunk(const Run& run, int64_t rows, int64_t vocab, F&& f) {
  const int64_t step =
      run.device == nullptr ? logit_chunk_rows(vocab) : logit_chunk_rows(vocab, kDeviceLogitBytes);
  for (int64_t begin = 0; begin < rows; begin += step) f(begin, std::min(begin + step, rows));
}

Tensor part(const Tensor& vector, int64_t begin, int64_t end) {
  return Tensor(vector.as<float>() + begin, DType::f32, {end - begin});
}

int64_t kept_logit_bytes(const Run& run) {
  if (run.device == nullptr) return kKeptLogitBytes;
  return std::max(kKeptLogitBytes,
                  static_cast<int64_t>(run.device->available()) / kDeviceKeptShare);
}

// Rows [begin, end) of the teacher's logits, in scratch.
Tensor teacher_logits(Run& run, const LmHeadTeacher& teacher, int64_t begin, int64_t end) {
  Tensor logits = run.scratch.alloc(DType::f32, {end - begin, teacher.head.vocab()});
  lm_head_logits(run, logits, teacher.x.slice_rows(begin, end), teacher.head);
  return logits;
}

// A quantised head in training is made wide for every product, which costs more than a few rows'
// products do: it is cut, and all rows meet a slice of it at once.
bool is_cut(const Run& run, const LmHead& head, const LmHeadTeacher& teacher) {
  return run.device == nullptr && run.widen && is_quantised(head.weight->value.dtype) &&
         head.weight->term == nullptr && !head.biased() && !teacher.present();
}

// Entries [begin, end) of the vocabulary.
struct Slice {
  int64_t begin, end;
  Param weight;     // [end - begin, D] of the head's
  Param rows = {};  // [T',D] those of its rows apart that stand in the slice
  OwnRows own = {};
  std::vector<int32_t> targets;  // [N] by their place in the slice

  LmHead head(const LmHead& whole) { return {&weight, nullptr, whole.cap}; }
};

// The rows apart of the whole head that stand in the slice; their gradients are the whole's.
void take_own(Slice& s, const OwnRows& whole) {
  const auto first = std::lower_bound(whole.ids.begin(), whole.ids.end(), s.begin),
             last = std::lower_bound(first, whole.ids.end(), s.end);
  if (first == last) return;
  const int64_t begin = first - whole.ids.begin(), end = last - whole.ids.begin();
  for (auto id = first; id != last; ++id) s.own.ids.push_back(*id - s.begin);
  s.rows.name = whole.rows->name;
  s.rows.bind(whole.rows->value.slice_rows(begin, end));
  if (!whole.rows->grad.empty()) s.rows.grad = whole.rows->grad.slice_rows(begin, end);
  s.own.rows = &s.rows;
  s.weight.own_rows = &s.own;
}

// x [N,D] meets all of them.
template <class F>
void each_slice(const LmHead& head, const Tensor& x, std::span<const int32_t> targets, F&& f) {
  const int64_t step = logit_chunk_columns(x.rows(), bytes_of(x.dtype, x.cols()));
  for (int64_t begin = 0; begin < head.vocab(); begin += step) {
    Slice s{
        .begin = begin, .end = std::min(begin + step, head.vocab()), .weight = {}, .targets = {}};
    s.weight.name = head.weight->name;
    s.weight.bind(head.weight->value.slice_rows(s.begin, s.end));
    if (head.weight->own_rows != nullptr) take_own(s, *head.weight->own_rows);
    for (const int32_t t : targets)
      s.targets.push_back(t == ops::kIgnoreTarget     ? t
                          : t < s.begin || t >= s.end ? ops::kTargetElsewhere
                                                      : static_cast<int32_t>(t - s.begin));
    f(s);
  }
}

Tensor slice_logits(Run& run, const LmHeadSaved& saved, const Slice& s) {
  return saved.logits.empty() ? run.scratch.alloc(DType::f32, {saved.x.rows(), s.end - s.begin})
                              : saved.logits.slice_cols(s.begin, s.end);
}

// dx [N,D] = or += dlogits weight, and the gradients of what is trained. Columns of dlogits [N,V]
// whose rows stand apart are zero afterwards.
void product_backward(Run& run, Tensor dx, Param& weight, Tensor dlogits, Tensor x, bool add) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  Tensor own;
  if (weight.own_rows != nullptr) {
    const OwnRows& rows = *weight.own_rows;
    own = run.scratch.alloc(dlogits.dtype, {x.rows(), std::ssize(rows.ids)});
    ops::take_columns(run, own, dlogits, rows.ids);
    ops::matmul_dw(run, *rows.rows, own, x, all);
  }
  if (add) ops::matmul_dx_acc(run, dx, dlogits, weight, all);
  else ops::matmul_dx(run, dx, dlogits, weight, all);
  if (!own.empty()) ops::matmul_dx_acc(run, dx, own, *weight.own_rows->rows, all);
  ops::matmul_dw(run, weight, dlogits, x, all);
}

// lse of the whole out of those of slices: ln(e^a + e^b).
float add_lse(float a, float b) {
  const double most = std::max(a, b), least = std::min(a, b);
  return static_cast<float>(most + std::log1p(std::exp(least - most)));
}

void cut_loss_forward(Run& run, Tensor nll, const LmHead& head, std::span<const int32_t> targets,
                      const LmHeadSaved& saved) {
  const int64_t rows = saved.x.rows();
  auto *lse = saved.lse.as<float>(), *loss = nll.as<float>();
  each_slice(head, saved.x, targets, [&](Slice& s) {
    ArenaScope scope(run.scratch);
    Tensor logits = slice_logits(run, saved, s);
    lm_head_logits(run, logits, saved.x, s.head(head));
    Tensor part_nll = run.scratch.alloc(DType::f32, {rows}),
           part_lse = run.scratch.alloc(DType::f32, {rows});
    ops::cross_entropy_forward(run, part_nll, part_lse, logits, s.targets);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t t = s.targets[static_cast<size_t>(r)];
      lse[r] = s.begin == 0 ? part_lse.as<float>()[r] : add_lse(lse[r], part_lse.as<float>()[r]);
      if (t >= 0) loss[r] = logits.row<float>(r)[t];
    }
  });
  for (int64_t r = 0; r < rows; ++r)
    loss[r] = targets[static_cast<size_t>(r)] == ops::kIgnoreTarget ? 0.0f : lse[r] - loss[r];
}

// A matrix in few bits is not trained itself.
void cut_loss_backward(Run& run, Tensor dx, const LmHead& head, std::span<const int32_t> targets,
                       float scale, const LmHeadSaved& saved, std::span<const float> weights) {
  if (head.weight->own_rows != nullptr) ops::settle_grad(run, *head.weight->own_rows->rows);
  each_slice(head, saved.x, targets, [&](Slice& s) {
    ArenaScope scope(run.scratch);
    Tensor logits = slice_logits(run, saved, s);
    if (saved.logits.empty()) lm_head_logits(run, logits, saved.x, s.head(head));
    Tensor dlogits = run.scratch.alloc(saved.x.dtype, {logits.rows(), logits.cols()});
    ops::cross_entropy_backward(run, dlogits, logits, saved.lse, s.targets, scale, weights);
    if (head.cap > 0) ops::soft_cap_backward(run, dlogits, dlogits, logits, head.cap);
    product_backward(run, dx, s.weight, dlogits, saved.x, s.begin > 0);
  });
}

}  // namespace

void lm_head_logits(Run& run, Tensor out, Tensor x, const LmHead& head) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  ops::matmul_forward(run, out, x, *head.weight, all);
  if (const OwnRows* own = head.weight->own_rows; own != nullptr && x.rows() > 0) {
    const ArenaScope scope(run.scratch);
    const Tensor few = run.scratch.alloc(DType::f32, {x.rows(), std::ssize(own->ids)});
    ops::matmul_forward_f32(run, few, x, *own->rows, all);
    ops::put_columns(run, out, few, own->ids);
  }
  if (head.biased()) ops::bias_forward_acc(run, out, *head.bias, {}, all);
  if (head.cap > 0) ops::soft_cap_forward(run, out, out, head.cap);
}

void lm_head_loss_forward(Run& run, Tensor nll, Tensor kl, Tensor x, const LmHead& head,
                          std::span<const int32_t> targets, const LmHeadTeacher& teacher,
                          LmHeadSaved& saved) {
  const int64_t rows = x.rows(), vocab = head.vocab();
  saved = {x, run.saved.alloc(DType::f32, {rows}), {}, teacher, {}};
  if (teacher.present()) saved.teacher_lse = run.saved.alloc(DType::f32, {rows});
  if (rows * vocab * 4 <= kept_logit_bytes(run))
    saved.logits = run.saved.alloc(DType::f32, {rows, vocab});
  if (is_cut(run, head, teacher)) return cut_loss_forward(run, nll, head, targets, saved);
  each_chunk(run, rows, vocab, [&](int64_t begin, int64_t end) {
    ArenaScope scope(run.scratch);
    Tensor logits = saved.logits.empty() ? run.scratch.alloc(DType::f32, {end - begin, vocab})
                                         : saved.logits.slice_rows(begin, end);
    lm_head_logits(run, logits, x.slice_rows(begin, end), head);
    const auto wanted =
        targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    ops::cross_entropy_forward(run, part(nll, begin, end), part(saved.lse, begin, end), logits,
                               wanted);
    if (!teacher.present()) return;
    const Tensor taught = teacher_logits(run, teacher, begin, end);
    ops::divergence_forward(run, part(kl, begin, end), part(saved.teacher_lse, begin, end), taught,
                            logits, part(saved.lse, begin, end), wanted);
  });
}

void lm_head_loss_backward(Run& run, Tensor dx, const LmHead& head,
                           std::span<const int32_t> targets, float scale, const LmHeadSaved& saved,
                           std::span<const float> weights) {
  const int64_t rows = saved.x.rows(), vocab = head.vocab();
  if (saved.teacher.present() && !weights.empty())
    fail("lm_head_loss_backward: rows have weights or a teacher, not both");
  if (is_cut(run, head, saved.teacher))
    return cut_loss_backward(run, dx, head, targets, scale, saved, weights);
  each_chunk(run, rows, vocab, [&](int64_t begin, int64_t end) {
    ArenaScope scope(run.scratch);
    const std::array<int64_t, 2> all = {0, end - begin};
    const Tensor x = saved.x.slice_rows(begin, end);
    Tensor logits = saved.logits.empty() ? run.scratch.alloc(DType::f32, {end - begin, vocab})
                                         : saved.logits.slice_rows(begin, end);
    if (saved.logits.empty()) lm_head_logits(run, logits, x, head);
    Tensor dlogits = run.scratch.alloc(x.dtype, {end - begin, vocab});
    const auto wanted =
        targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const Tensor lse = part(saved.lse, begin, end);
    if (!saved.teacher.present()) {
      const auto counted = weights.empty() ? weights
                                           : weights.subspan(static_cast<size_t>(begin),
                                                             static_cast<size_t>(end - begin));
      ops::cross_entropy_backward(run, dlogits, logits, lse, wanted, scale, counted);
    } else {
      const Tensor taught = teacher_logits(run, saved.teacher, begin, end);
      ops::divergence_backward(run, dlogits, logits, lse, taught,
                               part(saved.teacher_lse, begin, end), wanted, scale,
                               saved.teacher.share);
    }
    if (head.cap > 0) ops::soft_cap_backward(run, dlogits, dlogits, logits, head.cap);
    if (head.biased()) ops::bias_backward(run, {}, *head.bias, dlogits, {}, all);
    product_backward(run, dx.slice_rows(begin, end), *head.weight, dlogits, x, false);
  });
}

}  // namespace moe
