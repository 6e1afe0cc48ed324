// Carving by neurons: each is an expert, and the router scores it by a copy of its rows in few
// bits. What counts of a neuron is the length of what it adds, |act(g x) (u x)| |d|, so the copy of
// u is of |d| u. A copy's rounding errors are made good by the columns behind them, at the inputs
// that the layer has on the calibration text (tensor/quant_compensated.h).
//
// An error of u goes into the product as it is, one of g mostly where act is steep, so further bits
// do more for u: docs/internals/tried.md has the trial.
#include <cmath>
#include <numeric>

#include "convert/carve_steps.h"
#include "convert/input_products.h"
#include "convert/least_squares.h"
#include "core/threads.h"
#include "hub/gguf/quant_policy.h"
#include "model/parameters.h"
#include "ops/memory.h"
#include "tensor/quant_compensated.h"

namespace moe {
namespace {

// What rounding a row over the inputs of the layer costs.
struct Inputs {
  std::vector<float> importance;  // [D]
  Tensor shares;                  // [D,D] f32
};

Inputs inputs_of(Carving& c, Arena& memory) {
  const int64_t width = c.a.x.cols();
  Inputs in{.importance = std::vector<float>(static_cast<size_t>(width)),
            .shares = memory.alloc(DType::f32, {width, width})};
  const Tensor products = inner_products(c.run, memory, c.a.x, c.a.x);
  std::vector<int64_t> order(static_cast<size_t>(width));
  std::iota(order.begin(), order.end(), 0);
  error_shares(in.shares, products, c.tokens(), order, c.run.threads);
  double mean = 0;
  for (int64_t d = 0; d < width; ++d)
    mean += static_cast<double>(products.row<float>(d)[d]) / static_cast<double>(width);
  for (int64_t d = 0; d < width; ++d)
    in.importance[static_cast<size_t>(d)] =
        std::max(products.row<float>(d)[d], static_cast<float>(1e-6 * mean) + 1e-30f);
  return in;
}

// to[f] = from[f] times factor[f] in the sketch's type; no factors: 1.  from f32
void write_sketch(Carving& c, Param& to, Tensor from, std::span<const float> factor,
                  const Inputs& in) {
  const int64_t width = from.cols();
  parallel_for(c.run.threads, from.rows(), 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t f = begin; f < end; ++f) {
      const float by = factor.empty() ? 1 : factor[static_cast<size_t>(f)];
      for (int64_t d = 0; d < width; ++d) row[static_cast<size_t>(d)] = by * from.row<float>(f)[d];
      quantise_compensated(static_cast<char*>(to.value.data) + f * to.value.row_bytes,
                           Tensor(row.data(), DType::f32, {1, width}), to.value.dtype,
                           in.importance.data(), in.shares);
    }
  });
  to.touched();
}

// [F] the lengths of the columns of `down` [D,F] f32
std::vector<float> lengths_of_columns(Tensor down) {
  std::vector<double> squares(static_cast<size_t>(down.cols()));
  for (int64_t d = 0; d < down.rows(); ++d)
    for (int64_t f = 0; f < down.cols(); ++f) {
      const auto x = static_cast<double>(down.row<float>(d)[f]);
      squares[static_cast<size_t>(f)] += x * x;
    }
  std::vector<float> lengths(squares.size());
  for (size_t f = 0; f < squares.size(); ++f)
    lengths[f] = static_cast<float>(std::sqrt(squares[f]));
  return lengths;
}

}  // namespace

void by_itself(Carving& c) {
  c.partition.experts.resize(static_cast<size_t>(c.shape.experts));
  for (int64_t e = 0; e < c.shape.experts; ++e)
    c.partition.experts[static_cast<size_t>(e)] = {static_cast<int32_t>(e)};
}

void sketch_router(Carving& c) {
  const ArenaScope scope(c.run.scratch);
  const Inputs in = inputs_of(c, c.run.scratch);
  const std::vector<float> lengths = lengths_of_columns(c.dense.down.value.at(0));
  LogitParams& logit = c.carved.router->logit;
  const Tensor up = c.dense.up.value.at(0);
  if (c.dense.gate.present()) {
    write_sketch(c, logit.weight, c.dense.gate.value.at(0), {}, in);
    write_sketch(c, logit.up, up, lengths, in);
  } else {
    write_sketch(c, logit.weight, up, {}, in);
  }
}

// dense = bytes of a neuron's rows, sketch = bytes of those of its sketch: of F neurons K are read
// whole where K dense + F sketch is at most budget F dense.
SketchBytes sketch_bytes(const ModelConfig& dense, DType weights, int64_t bits) {
  const int64_t matrices = dense.gated ? 3 : 2;
  // Where rows are no whole blocks of a type they are written in another. Only a GGUF has blocks.
  const DType written =
      choose_type(WeightKind::product, dense.width, DType::f32, weights, Target::gguf).dtype;
  ModelConfig config = dense;
  config.sketch_bits = bits;
  int64_t copies = 0;
  const auto add = [&](ParamKind kind) {
    Param sketch;
    sketch.kind = kind;
    sketch.value = Tensor(nullptr, sketch_type(config, sketch), {dense.dense_width, dense.width});
    copies += ops::forward_copy_bytes(sketch, DType::f32).all;
  };
  add(ParamKind::weight);
  if (dense.gated) add(ParamKind::up);
  return {static_cast<double>(matrices * bytes_of(written, dense.width)),
          static_cast<double>(copies) / static_cast<double>(dense.dense_width)};
}

int64_t neurons_for(const ModelConfig& dense, DType weights, double budget, int64_t bits) {
  const auto [row, sketch] = sketch_bytes(dense, weights, bits);
  return std::min(dense.dense_width, static_cast<int64_t>(static_cast<double>(dense.dense_width) *
                                                          (budget - sketch / row)));
}

// How many neurons chosen by 2 bits do as well as one chosen by more, in perplexity of SmolLM2-135M
// (docs/internals/tried.md).
int64_t sketch_bits_for(const ModelConfig& dense, DType weights, double budget) {
  constexpr std::pair<int64_t, double> kWorth[] = {{2, 1}, {3, 1.25}, {4, 1.36}};
  double most = 0;
  int64_t best = 2;
  for (const auto& [bits, worth] : kWorth) {
    const double neurons = worth * static_cast<double>(neurons_for(dense, weights, budget, bits));
    if (neurons <= most) continue;
    most = neurons;
    best = bits;
  }
  return best;
}

}  // namespace moe
