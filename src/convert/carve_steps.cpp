// The partitions as stages, and the experts' weights cut out of the dense ones.
#include "convert/carve_steps.h"

#include <algorithm>
#include <cstring>

namespace moe {
namespace {

// to[e][j,:] = from[0][rows[j],:].  f32
void copy_rows(Param& to, int64_t e, const Param& from, std::span<const int32_t> rows) {
  const Tensor out = to.value.at(e), in = from.value.at(0);
  for (size_t j = 0; j < rows.size(); ++j)
    std::memcpy(out.row<float>(static_cast<int64_t>(j)), in.row<float>(rows[j]),
                static_cast<size_t>(in.cols()) * sizeof(float));
  to.touched();
}
// to[e][:,j] = from[0][:,columns[j]]
void copy_columns(Param& to, int64_t e, const Param& from, std::span<const int32_t> columns) {
  const Tensor out = to.value.at(e), in = from.value.at(0);
  for (int64_t r = 0; r < out.rows(); ++r)
    for (size_t j = 0; j < columns.size(); ++j) out.row<float>(r)[j] = in.row<float>(r)[columns[j]];
  to.touched();
}
// to[e,j] = from[0,entries[j]]
void copy_entries(Param& to, int64_t e, const Param& from, std::span<const int32_t> entries) {
  for (size_t j = 0; j < entries.size(); ++j)
    to.value.row<float>(e)[j] = from.value.row<float>(0)[entries[j]];
  to.touched();
}

// Expert e of `bank` becomes these neurons, with `share` of the bias after `down`.
void write_expert(ExpertBank& bank, int64_t e, const ExpertBank& dense,
                  std::span<const int32_t> neurons, float share) {
  if (dense.gate.present()) copy_rows(bank.gate, e, dense.gate, neurons);
  copy_rows(bank.up, e, dense.up, neurons);
  copy_columns(bank.down, e, dense.down, neurons);
  if (dense.gate_bias.present()) copy_entries(bank.gate_bias, e, dense.gate_bias, neurons);
  if (dense.up_bias.present()) copy_entries(bank.up_bias, e, dense.up_bias, neurons);
  if (!dense.down_bias.present()) return;
  for (int64_t d = 0; d < bank.down.value.shape[1]; ++d)
    bank.down_bias.value.row<float>(e)[d] = share * dense.down_bias.value.row<float>(0)[d];
  bank.down_bias.touched();
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

namespace {

// to[0] = from[0] transposed.  [1,D,F] f32
void turn(Param& to, const Param& from) {
  const Tensor out = to.value.at(0), in = from.value.at(0);
  for (int64_t d = 0; d < in.rows(); ++d)
    for (int64_t f = 0; f < in.cols(); ++f) out.row<float>(f)[d] = in.row<float>(d)[f];
  to.touched();
}

void copy_whole(Param& to, const Param& from) {
  std::memcpy(to.value.data, from.value.data, static_cast<size_t>(from.value.bytes()));
  to.touched();
}

}  // namespace

void Carving::forward(Tensor y, const std::function<void(int64_t, const MoeLayer::Saved&)>& see) {
  const std::span<const int64_t> bounds = pass.batch.bounds;
  // The scores of all neurons of all tokens would fill gigabytes.
  const size_t sequences = carved.by_neuron ? 1 : bounds.size() - 1;
  for (size_t s = 0; s + 1 < bounds.size(); s += sequences) {
    const ArenaScope scope(run.saved);
    const int64_t begin = bounds[s], end = bounds[s + sequences];
    std::vector<int64_t> own;
    for (size_t i = s; i <= s + sequences; ++i) own.push_back(bounds[i] - begin);
    Pass piece = pass;
    const auto part = [&](std::span<const int32_t> all) {
      return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    };
    piece.batch = {part(pass.batch.ids), part(pass.batch.positions), own};
    MoeLayer::Saved saved;
    carved.forward(run, y.slice_rows(begin, end), a.x.slice_rows(begin, end), {}, piece, saved);
    see(begin, saved);
  }
}

void write_slices(Carving& c) {
  if (c.carved.by_neuron) {
    if (c.dense.gate.present()) copy_whole(c.carved.experts.gate, c.dense.gate);
    copy_whole(c.carved.experts.up, c.dense.up);
    return turn(c.carved.experts.down, c.dense.down);
  }
  const float share = c.carved.shared ? 0.0f : 1.0f / static_cast<float>(c.active);
  for (int64_t e = 0; e < c.shape.experts; ++e)
    write_expert(c.carved.experts, e, c.dense, c.partition.experts[static_cast<size_t>(e)], share);
  if (c.carved.shared) write_expert(*c.carved.shared, 0, c.dense, c.partition.shared, 1);
}

void no_fit(Carving&) {}

}  // namespace moe
