// The partitions as stages, and the experts' weights cut out of the dense ones.
#include "convert/carving.h"

#include <algorithm>
#include <cstring>

namespace moe {
namespace {

// to[j,:] = from[rows[j],:].  f32
void copy_rows(Tensor to, Tensor from, std::span<const int32_t> rows) {
  for (size_t j = 0; j < rows.size(); ++j)
    std::memcpy(to.row<float>(static_cast<int64_t>(j)), from.row<float>(rows[j]), static_cast<size_t>(from.cols()) * sizeof(float));
}
// to[:,j] = from[:,columns[j]]
void copy_columns(Tensor to, Tensor from, std::span<const int32_t> columns) {
  for (int64_t r = 0; r < to.rows(); ++r)
    for (size_t j = 0; j < columns.size(); ++j) to.row<float>(r)[j] = from.row<float>(r)[columns[j]];
}

// Expert e of `bank` becomes these neurons, with `share` of the bias after `down`.
void write_expert(ExpertBank& bank, int64_t e, ExpertBank& dense, std::span<const int32_t> neurons, float share) {
  if (dense.gate.present()) copy_rows(bank.gate.value.at(e), dense.gate.value.at(0), neurons);
  copy_rows(bank.up.value.at(e), dense.up.value.at(0), neurons);
  copy_columns(bank.down.value.at(e), dense.down.value.at(0), neurons);
  const auto pick = [&](Param& to, const Param& from) {
    for (size_t j = 0; j < neurons.size() && from.present(); ++j) to.value.row<float>(e)[j] = from.value.row<float>(0)[neurons[j]];
  };
  pick(bank.gate_bias, dense.gate_bias);
  pick(bank.up_bias, dense.up_bias);
  for (int64_t d = 0; d < bank.down.value.shape[1] && dense.down_bias.present(); ++d)
    bank.down_bias.value.row<float>(e)[d] = share * dense.down_bias.value.row<float>(0)[d];
}

void touch(ExpertBank& bank) {
  for (Param* p : {&bank.gate, &bank.up, &bank.down, &bank.gate_bias, &bank.up_bias, &bank.down_bias})
    if (p->present()) p->touched();
}

}  // namespace

const Marks& Carving::marks() {
  if (!known_marks) known_marks = mark_strongest(run, a, dense, options.profile, options.marks);
  return *known_marks;
}

void by_marks(Carving& c) { c.partition = partition_by_marks(c.marks(), c.shape); }
void by_weights(Carving& c) {
  const Param& rows = c.dense.gate.present() ? c.dense.gate : c.dense.up;
  c.partition = partition_by_weights(c.run, c.marks(), rows.value.at(0), c.shape, c.key);
}
void by_chance(Carving& c) { c.partition = partition_at_random(c.shape, c.key); }

void write_slices(Carving& c) {
  const float share = c.carved.shared ? 0.0f : 1.0f / static_cast<float>(c.active);
  for (int64_t e = 0; e < c.shape.experts; ++e) write_expert(c.carved.experts, e, c.dense, c.partition.experts[static_cast<size_t>(e)], share);
  touch(c.carved.experts);
  if (!c.carved.shared) return;
  write_expert(*c.carved.shared, 0, c.dense, c.partition.shared, 1);
  touch(*c.carved.shared);
}

void no_fit(Carving&) {}

}  // namespace moe
