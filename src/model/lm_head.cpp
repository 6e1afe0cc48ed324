#include "model/lm_head.h"

#include <array>

#include "model/lm_head_chunks.h"

namespace moe {
namespace {

template <class F>
void each_chunk(int64_t rows, int64_t vocab, F&& f) {
  const int64_t step = logit_chunk_rows(vocab);
  for (int64_t begin = 0; begin < rows; begin += step) f(begin, std::min(begin + step, rows));
}

Tensor part(const Tensor& vector, int64_t begin, int64_t end) {
  return Tensor(vector.as<float>() + begin, DType::f32, {end - begin});
}

// Rows [begin, end) of the teacher's logits, in scratch.
Tensor teacher_logits(Run& run, const LmHeadTeacher& teacher, int64_t begin, int64_t end) {
  Tensor logits = run.scratch.alloc(DType::f32, {end - begin, teacher.head.vocab()});
  lm_head_logits(run, logits, teacher.x.slice_rows(begin, end), teacher.head);
  return logits;
}

}  // namespace

void lm_head_logits(Run& run, Tensor out, Tensor x, const LmHead& head) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  ops::matmul_forward(run, out, x, *head.weight, all);
  if (head.biased()) ops::bias_forward_acc(run, out, *head.bias, {}, all);
  if (head.cap > 0) ops::soft_cap_forward(run, out, out, head.cap);
}

void lm_head_loss_forward(Run& run, Tensor nll, Tensor kl, Tensor x, const LmHead& head,
                          std::span<const int32_t> targets, const LmHeadTeacher& teacher,
                          LmHeadSaved& saved) {
  const int64_t rows = x.rows(), vocab = head.vocab();
  saved = {x, run.saved.alloc(DType::f32, {rows}), {}, teacher, {}};
  if (teacher.present()) saved.teacher_lse = run.saved.alloc(DType::f32, {rows});
  if (rows * vocab * 4 <= kKeptLogitBytes)
    saved.logits = run.saved.alloc(DType::f32, {rows, vocab});
  each_chunk(rows, vocab, [&](int64_t begin, int64_t end) {
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
                           std::span<const int32_t> targets, float scale,
                           const LmHeadSaved& saved) {
  const int64_t rows = saved.x.rows(), vocab = head.vocab();
  each_chunk(rows, vocab, [&](int64_t begin, int64_t end) {
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
      ops::cross_entropy_backward(run, dlogits, logits, lse, wanted, scale);
    } else {
      const Tensor taught = teacher_logits(run, saved.teacher, begin, end);
      ops::divergence_backward(run, dlogits, logits, lse, taught,
                               part(saved.teacher_lse, begin, end), wanted, scale,
                               saved.teacher.share);
    }
    if (head.cap > 0) ops::soft_cap_backward(run, dlogits, dlogits, logits, head.cap);
    if (head.biased()) ops::bias_backward(run, {}, *head.bias, dlogits, {}, all);
    ops::matmul_dx(run, dx.slice_rows(begin, end), dlogits, *head.weight, all);
    ops::matmul_dw(run, *head.weight, dlogits, x, all);
  });
}

}  // namespace moe
