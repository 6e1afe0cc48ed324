// What the columns of a model's matrices are worth to whoever rounds them: how large the numbers
// are that a text makes them multiply. An error dw in column i of a matrix costs its output
// dw^2 mean(x_i^2), so that is what the quantisers weigh an error by; llama.cpp calls it an
// importance matrix ("imatrix", github ggml-org/llama.cpp, tools/imatrix).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hub/tensor_map.h"

namespace moe {

// Of a tensor of M matrices: one, or those of the experts.
struct ColumnSums {
  std::vector<float> squares;  // [M,I]: of each matrix's rows x, the sum of x_i^2
  // [M]: how many there were; or one number that stands for all, as in files that do not count the
  // experts' rows apart
  std::vector<float> rows;

  float rows_of(int64_t m) const { return rows[rows.size() == 1 ? 0 : static_cast<size_t>(m)]; }
};

struct Importance {
  std::map<std::string, ColumnSums> tensors;  // by the names that the tensors have in a GGUF
  std::vector<std::string> texts;             // that it was measured on
  int64_t windows = 0, window = 0;            // so many windows of so many tokens; 0: not known
};

// How many matrices a tensor of a GGUF holds, and how long their rows are.
struct MatrixShape {
  int64_t matrices, cols;
};
MatrixShape matrices_of(const FileTensor&);

// What to weigh the tensor's errors by, [M,I], all above zero. A matrix that met few rows, or none,
// takes on what the layer's other experts were given, as many times as kPriorRows rows would have
// it: of gate and up, which all read the same stream, column by column; of down, whose columns are
// the expert's own neurons, all columns alike.
constexpr float kPriorRows = 8;
std::vector<float> column_weights(const ColumnSums&, const FileTensor&);

// Fails, naming the tensor, where the sums do not fit it: they are another model's.
void check_fits(const ColumnSums&, const FileTensor&, const std::string& where);

// How many rows each expert of a layer met.
struct LayerRows {
  int64_t layer = 0;
  std::vector<int64_t> rows;  // [E]
};
// Of the layers whose experts are in the importance one by one; empty where it does not tell them
// apart.
std::vector<LayerRows> rows_of_experts(const Importance&, std::span<const FileTensor>);

}  // namespace moe
