// The partitions as stages, what a layer gives by a linear map, and the experts' weights cut out of
// the dense ones.
#include "convert/carve_steps.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/threads.h"

namespace moe {
namespace {

// to[e][j,:] = from[0][rows[j],:].  f32
void copy_rows(Param& to, int64_t e, const Param& from, std::span<const int32_t> rows) {
  const Tensor out = to.value.at(e), in = from.value.at(0);
  for (size_t j = 0; j < rows.size(); ++j)
    std::memcpy(out.row<float>(static_cast<int64_t>(j)), in.row<float>(rows[j]),
                static_cast<size_t>(in.cols()) * sizeof(float));
}
// to[e][:,j] = from[rows[j],:]
void turn_rows(Param& to, int64_t e, Tensor from, std::span<const int32_t> rows) {
  const Tensor out = to.value.at(e);
  for (size_t j = 0; j < rows.size(); ++j)
    for (int64_t d = 0; d < out.rows(); ++d) out.row<float>(d)[j] = from.row<float>(rows[j])[d];
}
// to[e,j] = from[0,entries[j]]
void copy_entries(Param& to, int64_t e, const Param& from, std::span<const int32_t> entries) {
  for (size_t j = 0; j < entries.size(); ++j)
    to.value.row<float>(e)[j] = from.value.row<float>(0)[entries[j]];
}

// Expert e of `bank` becomes these neurons, with the bias that stands in this row of the map.
void write_expert(ExpertBank& bank, int64_t e, const Carving& c, std::span<const int32_t> neurons,
                  int64_t bias) {
  const ExpertBank& dense = c.dense;
  if (dense.gate.present()) copy_rows(bank.gate, e, dense.gate, neurons);
  copy_rows(bank.up, e, dense.up, neurons);
  turn_rows(bank.down, e, c.map, neurons);
  if (dense.gate_bias.present()) copy_entries(bank.gate_bias, e, dense.gate_bias, neurons);
  if (dense.up_bias.present()) copy_entries(bank.up_bias, e, dense.up_bias, neurons);
  if (bank.down_bias.present())
    std::memcpy(bank.down_bias.value.row<float>(e), c.map.row<float>(bias),
                static_cast<size_t>(c.map.cols()) * sizeof(float));
}

// How many numbers of the dense model become these. A bias after `down` goes to what is always on,
// else to the experts.
int64_t numbers_before(const Param& to, const Carving& c) {
  if (to.kind != ParamKind::down || !to.is_bias()) return to.value.numel();
  const bool takes_it = (to.part == Part::shared) == c.carved.shared.has_value();
  return takes_it && c.dense.down_bias.present() ? c.dense.down_bias.value.numel() : 0;
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

void start_map(Carving& c) {
  const Tensor down = c.dense.down.value.at(0);  // [D,F]
  const int64_t width = down.rows(), neurons = down.cols();
  c.map = c.run.saved.alloc_zeroed(DType::f32, {neurons + c.biases(), width});
  for (int64_t d = 0; d < width; ++d)
    for (int64_t f = 0; f < neurons; ++f) c.map.row<float>(f)[d] = down.row<float>(d)[f];
  if (!c.dense.down_bias.present()) return;
  const float* bias = c.dense.down_bias.value.as<float>();
  const int64_t shared = neurons + c.shape.experts;
  const float share = c.carved.shared ? 1.0f : 1.0f / static_cast<float>(c.active);
  for (int64_t row = c.carved.shared ? shared : neurons; row < c.map.rows(); ++row)
    for (int64_t d = 0; d < width; ++d) c.map.row<float>(row)[d] = share * bias[d];
}

void Carving::give() {
  const std::array<int64_t, 2> all = {0, tokens()};
  const int64_t neurons = shape.neurons;
  Param columns;
  columns.name = "columns of down";
  columns.value = map.slice_rows(0, neurons);
  ops::matmul_dx(run, given, a.hidden, columns, all);
  if (biases() == 0) return;
  parallel_for(run.threads, tokens(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      float* out = given.row<float>(n);
      const auto add = [&](int64_t row) {
        const float* bias = map.row<float>(neurons + row);
        for (int64_t d = 0; d < map.cols(); ++d) out[d] += bias[d];
      };
      for (int64_t k = 0; k < active; ++k) add(choice.row<int32_t>(n)[k]);
      if (carved.shared) add(shape.experts);
    }
  });
}

void write_experts(const Carving& c, Assembly& to, int64_t layer) {
  for (Param* param : to.model().params())
    if (param->layer == layer && (param->part == Part::experts || param->part == Part::shared) &&
        !param->present())
      to.own(*param, "cut", numbers_before(*param, c));
  MoeLayer& carved = c.carved;
  if (carved.by_neuron) {
    std::memcpy(carved.experts.down.value.data, c.map.data, static_cast<size_t>(c.map.bytes()));
    return;
  }
  const int64_t first = c.shape.neurons;
  for (int64_t e = 0; e < c.shape.experts; ++e)
    write_expert(carved.experts, e, c, c.partition.experts[static_cast<size_t>(e)], first + e);
  if (carved.shared)
    write_expert(*carved.shared, 0, c, c.partition.shared, first + c.shape.experts);
}

void no_fit(Carving&) {}

}  // namespace moe
