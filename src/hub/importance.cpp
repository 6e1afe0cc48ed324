#include "hub/importance.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace moe {
namespace {

// Of the mean weight of a matrix; no column counts less, so that numbers which no row of the text
// met are not rounded to anything.
constexpr float kLeastShare = 1e-4f;

void weigh_matrix(std::span<float> weights, std::span<const float> squares, float rows,
                  std::span<const float> prior) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = (squares[i] + kPriorRows * prior[i]) / (rows + kPriorRows);
    sum += weights[i];
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(weights.size()));
  // All alike where nothing is known, or too small for f32 to tell.
  if (!(mean > 1e-30f)) return std::fill(weights.begin(), weights.end(), 1.0f);
  for (float& w : weights) w = std::max(w, kLeastShare * mean);
}

}  // namespace

MatrixShape matrices_of(const FileTensor& tensor) {
  const size_t rank = tensor.shape.size();
  return {rank == 3 ? tensor.shape[0] : 1, tensor.shape.back()};
}

std::vector<float> column_weights(const ColumnSums& sums, const FileTensor& tensor) {
  const auto [matrices, cols] = matrices_of(tensor);
  const auto n = static_cast<size_t>(cols);
  std::vector<float> weights(static_cast<size_t>(matrices) * n);
  const bool own_columns = tensor.pieces[0].param->kind == ParamKind::down;
  // [I]: what a row brings, over all matrices.
  std::vector<double> all(n, 0.0);
  double rows = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    rows += sums.rows_of(m);
    for (size_t i = 0; i < n; ++i) all[i] += sums.squares[static_cast<size_t>(m) * n + i];
  }
  std::vector<float> prior(n, 0.0f);
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    prior[i] = rows > 0 ? static_cast<float>(all[i] / rows) : 0.0f;
    mean += prior[i] / static_cast<double>(n);
  }
  if (own_columns) std::fill(prior.begin(), prior.end(), static_cast<float>(mean));
  for (int64_t m = 0; m < matrices; ++m) {
    const auto at = static_cast<size_t>(m) * n;
    weigh_matrix(std::span(weights).subspan(at, n), std::span(sums.squares).subspan(at, n),
                 sums.rows_of(m), prior);
  }
  return weights;
}

void check_fits(const ColumnSums& sums, const FileTensor& tensor, const std::string& where) {
  const auto [matrices, cols] = matrices_of(tensor);
  if ((std::ssize(sums.rows) != matrices && sums.rows.size() != 1) ||
      std::ssize(sums.squares) != matrices * cols)
    fail(
        "{}: the importance of \"{}\" is of {} matrices with {} columns in all, and the tensor has "
        "{} with {} each; it is another model's",
        where, tensor.name, sums.rows.size(), sums.squares.size(), matrices, cols);
}

std::vector<LayerRows> rows_of_experts(const Importance& importance,
                                       std::span<const FileTensor> tensors) {
  std::vector<LayerRows> layers;
  for (const FileTensor& tensor : tensors) {
    const Param& param = *tensor.pieces[0].param;
    const auto found = importance.tensors.find(tensor.name);
    if (param.part != Part::experts || found == importance.tensors.end() ||
        std::ssize(found->second.rows) != matrices_of(tensor).matrices)
      continue;
    if (std::any_of(layers.begin(), layers.end(),
                    [&](const LayerRows& known) { return known.layer == param.layer; }))
      continue;
    LayerRows layer{param.layer, {}};
    for (const float rows : found->second.rows) layer.rows.push_back(std::llround(rows));
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace moe
