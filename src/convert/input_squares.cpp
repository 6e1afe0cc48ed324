#include "convert/input_squares.h"

#include "convert/matrix_source.h"
#include "core/threads.h"
#include "model/parameters.h"
#include "ops/ops.h"

namespace moe {
namespace {

// sums [I] += the squares of rows [begin, end), columns [c0, c1).
template <class T>
void add_squares(double* sums, const ops::GatheredRows& x, int64_t begin, int64_t end, int64_t c0,
                 int64_t c1) {
  for (int64_t r = begin; r < end; ++r) {
    const T* row = x.x.row<T>(x.listed() ? x.row[static_cast<size_t>(r)] : r);
    for (int64_t c = c0; c < c1; ++c) {
      const double v = to_f32(row[c]);
      sums[c] += v * v;
    }
  }
}

}  // namespace

bool is_weighed(const Param& w) {
  return w.part != Part::none && w.part != Part::lm_head && w.part != Part::embedding;
}

void InputSquares::observe(Run& run, std::span<const Param* const> weights,
                           const ops::GatheredRows& x, std::span<const int64_t> offsets) {
  if (!is_weighed(*weights[0])) return;
  std::shared_ptr<Sums>& sums = sums_[weights[0]];
  const auto cols = static_cast<size_t>(x.cols());
  if (sums == nullptr) {
    sums = std::make_shared<Sums>();
    sums->rows.resize(offsets.size() - 1);
    sums->squares.resize((offsets.size() - 1) * cols);
  }
  for (const Param* w : weights) sums_[w] = sums;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    sums->rows[e] += static_cast<double>(offsets[e + 1] - offsets[e]);
  parallel_for(run.threads, x.cols(), 64, [&](int64_t c0, int64_t c1, int) {
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      double* to = sums->squares.data() + e * cols;
      if (x.x.dtype == DType::bf16) add_squares<bf16>(to, x, offsets[e], offsets[e + 1], c0, c1);
      else add_squares<float>(to, x, offsets[e], offsets[e + 1], c0, c1);
    }
  });
}

Importance InputSquares::of(std::span<const FileTensor> tensors) const {
  Importance out;
  for (const FileTensor& tensor : tensors) {
    if (tensor.pieces.empty() || tensor.shape.size() < 2) continue;
    const auto [matrices, cols] = matrices_of(tensor);
    ColumnSums sums;
    for (int64_t m = 0; m < matrices; ++m) {
      const MatrixSource source = source_of(tensor, m);
      const auto found = source.piece == nullptr ? sums_.end() : sums_.find(source.piece->param);
      if (found == sums_.end()) break;
      const Sums& seen = *found->second;
      const double* from = seen.squares.data() + source.matrix * static_cast<size_t>(cols);
      sums.squares.insert(sums.squares.end(), from, from + cols);
      columns_to_file(std::span(sums.squares).last(static_cast<size_t>(cols)), *source.piece);
      sums.rows.push_back(static_cast<float>(seen.rows[source.matrix]));
    }
    if (std::ssize(sums.rows) == matrices) out.tensors.emplace(tensor.name, std::move(sums));
  }
  return out;
}

int64_t input_squares_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const Param* param : model.params())
    if (param->is_matrix() && param->value.rank >= 2)
      bytes += param->value.numel() / param->value.shape[param->value.rank - 2] * 8;
  return bytes;
}

}  // namespace moe
