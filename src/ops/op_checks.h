// What ops refuse, whichever backend runs them: shapes and dtypes that do not fit, and lists that
// name what is not there. A list on a device was made there and is taken as it is.
#pragma once

#include <cstdint>
#include <span>

#include "ops/check.h"
#include "tensor/run.h"

namespace moe::ops {

void check_rms_norm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x,
                            const Param& weight);
void check_rms_norm_backward(const Tensor& dx, const Param& weight, const Tensor& dy,
                             const Tensor& x, const Tensor& rstd);
void check_layer_norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd,
                              const Tensor& x, const Param& weight, const Param& bias);
void check_layer_norm_backward(const Tensor& dx, const Param& weight, const Param& bias,
                               const Tensor& dy, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd);
void check_ffn_act_forward(const Tensor& hidden, const Tensor& gate, const Tensor& up,
                           const Tensor& weight);
void check_ffn_act_backward(const Tensor& dgate, const Tensor& dup, const Tensor& hidden,
                            const Tensor& dweight, const Tensor& dhidden, const Tensor& gate,
                            const Tensor& up, const Tensor& weight);
// Of attention's scores, whose cap only the CPU has.
void check_device_cap(const char* op, float cap);
// Of weights, whose points of a grid and ternary numbers only the CPU reads.
void check_device_type(const char* op, const Tensor& weights);
void check_newton_schulz(List<Tensor> all, std::span<const NewtonSchulz> steps);
// Newton-Schulz begins with a matrix over its norm and this much, so that zeros stay zeros.
constexpr double kLeastNorm = 1e-7;
void check_cross_entropy_forward(const Run& run, const Tensor& nll, const Tensor& lse,
                                 const Tensor& logits, std::span<const int32_t> targets);
void check_cross_entropy_backward(const Run& run, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& lse, std::span<const int32_t> targets,
                                  std::span<const float> weights);
void check_divergence_forward(const Run& run, const Tensor& kl, const Tensor& teacher_lse,
                              const Tensor& teacher, const Tensor& logits, const Tensor& lse,
                              std::span<const int32_t> targets);
void check_divergence_backward(const Run& run, const Tensor& dlogits, const Tensor& logits,
                               const Tensor& lse, const Tensor& teacher, const Tensor& teacher_lse,
                               std::span<const int32_t> targets);
void check_softmax_forward(const Tensor& s, const Tensor& lse, const Tensor& z);
void check_softmax_backward(const Tensor& dz, const Tensor& ds, const Tensor& dlse,
                            const Tensor& s);
void check_logsumexp_backward(const Tensor& dz, const Tensor& dlse, const Tensor& z,
                              const Tensor& lse);
void check_hyper_weights(const char* op, const Tensor& w, const Tensor& z, const Param& base,
                         const Param& scale, const HyperShape& shape);
// h [N,SD] beside x [N,D] and the weights; `all`: those behind a sublayer too.
void check_streams(const char* op, const Tensor& h, const Tensor& x, const Tensor& w, bool all,
                   bool mixes = false);
void check_sqrt_softplus_forward(const Tensor& s, const Tensor& z);
void check_sqrt_softplus_backward(const Tensor& dz, const Tensor& ds, const Tensor& s,
                                  const Tensor& z);
void check_heads(const char* op, const Tensor& all, const Tensor& shared, const Tensor& own,
                 int64_t heads);
void check_rope(List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin);
void check_dropout(const Tensor& y, const Tensor& x, float p);
void check_sum_rows(const Run& run, const char* op, const Tensor& y, const Tensor& x,
                    std::span<const int32_t> bounds, std::span<const int32_t> row);
void check_gather_rows(const Run& run, const Tensor& y, const Tensor& x,
                       std::span<const int32_t> token);
void check_weigh_rows_forward(const Tensor& y, const GatheredRows& x, const Tensor& weight);
void check_weigh_rows_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                               const GatheredRows& x, const Tensor& weight);
void check_put_columns(const Run& run, const Tensor& y, const Tensor& x,
                       std::span<const int64_t> ids);
void check_take_columns(const Run& run, const Tensor& y, const Tensor& x,
                        std::span<const int64_t> ids);
void check_keep_columns(const Tensor& h, const Tensor& kept);
void check_kept_neurons(const Tensor& y, const Tensor& x, const Param& gate, const Param& up,
                        const Param& down, const Tensor& kept);
void check_top_set(const Tensor& choice, const Tensor& s);
void check_choose_blocks(const Tensor& kept, const Tensor& q, const KvView& keys,
                         std::span<const int32_t> positions, int64_t block, int64_t local);
void check_choose_keys(const Tensor& kept, const Tensor& q, const Tensor& weights,
                       const KvView& keys, std::span<const int32_t> positions);
// Refuses scores of a router, `first` being the first of `tokens` that has one which is not a
// number; `tokens` where there is none.
void need_numbers(int64_t first, int64_t tokens);
void check_embedding(const Run& run, const char* op, const Tensor& y, const Param& table,
                     std::span<const int32_t> ids, bool accumulate);
void check_embedding_backward(const Run& run, const Param& table, const Tensor& dy,
                              std::span<const int32_t> ids);
void check_bias(const Run& run, const char* op, const Param& bias, const GatheredRows& rows,
                const Tensor& weight, std::span<const int64_t> offsets);

}  // namespace moe::ops
