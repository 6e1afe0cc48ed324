// What the columns of a model's matrices multiply, against sums by hand.
#include "convert/input_squares.h"

#include <cmath>
#include <numeric>

#include "convert/models.h"
#include "hub/gguf/gguf_model.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"
#include "support/param_named.h"

namespace moe::test::input_squares_test {
namespace {

ModelConfig moe_config() {
  ModelConfig c = dense_config();
  c.layers = 2;
  c.vocab = 256;  // of the tokenizer that a GGUF takes
  c.routing = default_options(find_recipe("mixtral"), 4, 2, c.layers);
  return c;
}

// Sums of a pass of the model over some text.
void watch(InputSquares& squares, Model& model, int threads, DType dtype = DType::f32) {
  const std::vector<int32_t> ids = some_ids();
  Run run(threads, dtype);
  run.observer = &squares;
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> bounds = {0, std::ssize(ids)};
  const RoutingSpec spec = eval_spec(model.config().routing);
  ModelSaved saved;
  model.forward(run, {.batch = {ids, positions, bounds, {}}, .routing = &spec}, saved);
}

TEST(InputSquares, AreThoseOfTheRows) {
  Param w;
  w.name = "w";
  w.part = Part::experts;
  std::vector<float> numbers(2 * 3 * 2, 1.0f), x = {1, 2, 3, 4, 5, 6}, y(4 * 3);
  w.bind(Tensor(numbers.data(), DType::f32, {2, 3, 2}));
  const std::vector<int32_t> rows = {0, 2, 2, 1};
  const std::vector<int64_t> offsets = {0, 3, 4};
  moe::Run run(2);
  InputSquares squares;
  run.observer = &squares;
  ops::matmul_forward(run, Tensor(y.data(), DType::f32, {4, 3}),
                      {Tensor(x.data(), DType::f32, {3, 2}), rows}, w, offsets);
  FileTensor tensor{.name = "t", .shape = {2, 3, 2}, .pieces = {{.param = &w}}};
  const Importance got = squares.of(std::span(&tensor, 1));
  EXPECT_EQ(got.tensors.at("t").squares, (std::vector<float>{1 + 25 + 25, 4 + 36 + 36, 9, 16}));
  EXPECT_EQ(got.tensors.at("t").rows, (std::vector<float>{3, 1}));
}

// Every matrix of the file but the head has its sums, all tokens pass through each of the dense
// ones, and K of the experts' rows are each token's.
TEST(InputSquares, KnowsEveryMatrixOfAModel) {
  const auto model = drawn_model(moe_config());
  InputSquares squares;
  watch(squares, *model, 2);
  const std::vector<FileTensor> tensors = gguf_target(*model, *make_tokenizer("bytes")).tensors;
  const Importance got = squares.of(tensors);
  int experts = 0;
  for (const FileTensor& tensor : tensors) {
    const Param& param = *tensor.pieces[0].param;
    const bool wanted =
        param.is_matrix() && (param.part == Part::attention || param.part == Part::experts);
    EXPECT_EQ(got.tensors.contains(tensor.name), wanted) << tensor.name;
    if (!wanted) continue;
    const ColumnSums& sums = got.tensors.at(tensor.name);
    EXPECT_EQ(std::accumulate(sums.rows.begin(), sums.rows.end(), 0.0f),
              param.part == Part::experts ? 48 : 24)
        << tensor.name;
    experts += param.part == Part::experts ? 1 : 0;
  }
  EXPECT_EQ(experts, 6);
  EXPECT_EQ(got.tensors.at("blk.0.ffn_up_exps.weight").squares,
            got.tensors.at("blk.0.ffn_gate_exps.weight").squares);
}

TEST(InputSquares, DoNotHangOnThreads) {
  const auto model = drawn_model(moe_config());
  const std::vector<FileTensor> tensors = gguf_target(*model, *make_tokenizer("bytes")).tensors;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    InputSquares one, three;
    watch(one, *model, 1, dtype);
    watch(three, *model, 3, dtype);
    const Importance a = one.of(tensors), b = three.of(tensors);
    for (const auto& [name, sums] : a.tensors)
      EXPECT_EQ(sums.squares, b.tensors.at(name).squares) << name;
  }
}

}  // namespace
}  // namespace moe::test::input_squares_test
