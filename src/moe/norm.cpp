#include "moe/norm.h"

namespace moe {

void Norm::forward(Run& run, Tensor y, Tensor x, Saved& saved) {
  saved = {x, {}, run.saved.alloc(DType::f32, {x.rows()})};
  if (kind == NormKind::rms) {
    ops::rms_norm_forward(run, y, saved.rstd, x, weight, eps, offset);
  } else {
    saved.mean = run.saved.alloc(DType::f32, {x.rows()});
    ops::layer_norm_forward(run, y, saved.mean, saved.rstd, x, weight, bias, eps, offset);
  }
}

void Norm::backward(Run& run, Tensor dx, Tensor dy, const Saved& saved) {
  if (kind == NormKind::rms)
    ops::rms_norm_backward(run, dx, weight, dy, saved.x, saved.rstd, offset);
  else ops::layer_norm_backward(run, dx, weight, bias, dy, saved.x, saved.mean, saved.rstd, offset);
}

}  // namespace moe
