// How the columns of what matrices multiply go together, against sums by hand; and what that says
// of rounding errors, against the inverse itself.
#include "convert/input_products.h"

#include <numeric>

#include "convert/input_squares.h"
#include "convert/models.h"
#include "hub/gguf/gguf_model.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"

namespace moe::test::input_products_test {
namespace {

// What the shares of a column do: where it is off, and all later columns move by them, no other
// move of those would cost less.
TEST(InputProducts, LaterColumnsMoveAsIsBest) {
  constexpr int64_t kN = 7, kTokens = 40;
  std::vector<float> x(kTokens * kN), products(kN * kN), shares(kN * kN);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = normal(RngKey::from_seed(4), i) + (i % kN > 0 ? 0.7f * x[i - 1] : 0);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kN; ++i)
      for (int64_t k = 0; k < kN; ++k)
        products[static_cast<size_t>(i * kN + k)] +=
            x[static_cast<size_t>(t * kN + i)] * x[static_cast<size_t>(t * kN + k)];
  std::vector<int64_t> order(kN);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[1], order[5]);  // columns that stand otherwise in the file
  error_shares(Tensor(shares.data(), DType::f32, {kN, kN}),
               Tensor(products.data(), DType::f32, {kN, kN}), kTokens, order, 1);

  double mean = 0;
  for (int64_t i = 0; i < kN; ++i) mean += double{products[static_cast<size_t>(i * kN + i)]} / kN;
  const auto h = [&](int64_t i, int64_t k) {
    return double{products[static_cast<size_t>(order[static_cast<size_t>(i)] * kN +
                                               order[static_cast<size_t>(k)])]} +
           (i == k ? mean * (0.01 + 0.1 * kN / kTokens) : 0);
  };
  // The gradient of the cost e H e^T, column j being off by 1, is zero in every later column.
  for (int64_t j = 0; j < kN; ++j) {
    std::vector<double> e(kN, 0.0);
    e[static_cast<size_t>(j)] = 1;
    for (int64_t k = j + 1; k < kN; ++k)
      e[static_cast<size_t>(k)] = double{shares[static_cast<size_t>(j * kN + k)]};
    for (int64_t k = j + 1; k < kN; ++k) {
      double gradient = 0;
      for (int64_t i = 0; i < kN; ++i) gradient += h(k, i) * e[static_cast<size_t>(i)];
      EXPECT_NEAR(gradient, 0, 1e-4 * mean) << j << ", " << k;
    }
    for (int64_t k = 0; k <= j; ++k) EXPECT_EQ(shares[static_cast<size_t>(j * kN + k)], 0);
  }
}

TEST(InputProducts, OfEachExpertsDownAndOfALayersGates) {
  ModelConfig c = dense_config();
  c.layers = 2;
  c.vocab = 256;
  c.routing = default_options(find_recipe("mixtral"), 4, 2, c.layers);
  const auto model = drawn_model(c);
  InputSquares squares;
  InputProducts products(squares);
  const std::vector<int32_t> ids = some_ids();
  moe::Run run(2);
  run.observer = &products;
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> bounds = {0, std::ssize(ids)};
  const RoutingSpec spec = eval_spec(c.routing);
  ModelSaved saved;
  model->forward(run, {.batch = {ids, positions, bounds, {}}, .routing = &spec}, saved);

  const std::vector<FileTensor> tensors = gguf_target(*model, *make_tokenizer("bytes")).tensors;
  const Importance sums = squares.of(tensors);
  const auto shares_of = [&](const std::string& name, int64_t m) {
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const FileTensor& t) { return t.name == name; });
    const Tensor shares = products.of(*tensor, m, 1);
    return shares.empty() ? std::vector<double>() : values(shares);
  };
  EXPECT_FALSE(sums.tensors.empty()) << "who comes behind is told too";
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                           "output.weight", "token_embd.weight"})
    EXPECT_TRUE(shares_of(name, 0).empty()) << name;
  EXPECT_FALSE(shares_of("blk.0.attn_output.weight", 0).empty());
  const std::vector<double> gate = shares_of("blk.1.ffn_gate_exps.weight", 0);
  EXPECT_EQ(gate, shares_of("blk.1.ffn_gate_exps.weight", 3)) << "one stream";
  EXPECT_EQ(gate, shares_of("blk.1.ffn_up_exps.weight", 1));
  EXPECT_NE(gate, shares_of("blk.0.ffn_up_exps.weight", 1));
  const std::vector<double> down = shares_of("blk.1.ffn_down_exps.weight", 0);
  EXPECT_NE(down, shares_of("blk.1.ffn_down_exps.weight", 1)) << "its own neurons";
  EXPECT_EQ(down, shares_of("blk.1.ffn_down_exps.weight", 0)) << "made again, the same";
  EXPECT_GE(input_products_bytes(*model), 4 * 2 * (c.width * c.width));
}

}  // namespace
}  // namespace moe::test::input_products_test
