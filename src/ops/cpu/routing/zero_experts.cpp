// What experts that give a token back as it is weigh, and which pairs are left for the others.
#include "ops/cpu/functions.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {

void weigh_zero_experts_forward(Run& run, Tensor zero, Tensor rows, Tensor choice, Tensor kept,
                                Tensor w, int64_t first) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const int32_t *expert = choice.row<int32_t>(n), *stays = kept.row<int32_t>(n);
    int32_t* is_row = rows.row<int32_t>(n);
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) {
      const bool real = expert[i] < first, stayed = stays[i] != 0;
      is_row[i] = real && stayed;
      if (stayed && !real) sum += w.row<float>(n)[i];
    }
    zero.as<float>()[n] = sum;
  });
}

void weigh_zero_experts_backward_acc(Run& run, Tensor dw, Tensor dzero, Tensor choice, Tensor kept,
                                     int64_t first) {
  const int64_t k = choice.cols();
  each_token(run, choice.rows(), [&](int64_t n) {
    const int32_t *expert = choice.row<int32_t>(n), *stays = kept.row<int32_t>(n);
    for (int64_t i = 0; i < k; ++i)
      if (stays[i] != 0 && expert[i] >= first) dw.row<float>(n)[i] += dzero.as<float>()[n];
  });
}

}  // namespace moe::ops::cpu
