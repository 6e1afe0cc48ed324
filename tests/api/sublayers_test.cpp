// Attention and RMS norms over arrays of the caller's: against the scalar twins, and a message for
// whatever does not fit.
#include <moe/moe.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "support/api_array.h"
#include "support/check.h"
#include "support/twins_attention.h"
#include "support/twins_rowwise.h"

namespace moe::test::sublayers_test {
namespace {

using Arrays = std::vector<moe_array>;

// Two sequences; four queries to a token, two keys and values.
struct Attention {
  twin::AttentionShape shape{.heads = 4, .kv_heads = 2, .width = 8, .value_width = 6, .scale = 0.3};
  twin::AttentionRows rows = twin::AttentionRows::of_lengths({70, 5});
  Arena memory;
  DType dtype;
  Tensor q, k, v, dout, o, lse, dq, dk, dv, bounds;
  moe_attention_options options;

  explicit Attention(DType of, int64_t window = 0, double cap = 0) : dtype(of) {
    shape.window = window;
    shape.cap = cap;
    options = {
        .heads = 4, .kv_heads = 2, .scale = 0.3f, .window = window, .cap = static_cast<float>(cap)};
    q = draw(memory, dtype, {75, 32}, 1);
    k = draw(memory, dtype, {75, 16}, 2);
    v = draw(memory, dtype, {75, 12}, 3);
    dout = draw(memory, dtype, {75, 24}, 4);
    o = memory.alloc(dtype, {75, 24});
    lse = memory.alloc(DType::f32, {75, 4});
    dq = memory.alloc(dtype, {75, 32});
    dk = memory.alloc(dtype, {75, 16});
    dv = memory.alloc(dtype, {75, 12});
    bounds = memory.alloc(DType::i32, {3});
    for (int i = 0; i < 3; ++i)
      bounds.as<int32_t>()[i] = static_cast<int32_t>(rows.bounds[static_cast<size_t>(i)]);
  }
  Arrays forward() const {
    return {array("q", q), array("k", k),     array("v", v),
            array("o", o), array("lse", lse), array("bounds", bounds)};
  }
  Arrays backward() const {
    Arrays all = forward();
    for (const auto& [name, t] : {std::pair{"do", dout}, {"dq", dq}, {"dk", dk}, {"dv", dv}})
      all.push_back(array(name, t));
    return all;
  }
};

class OfAttention : public testing::TestWithParam<std::tuple<DType, int64_t, double>> {};

TEST_P(OfAttention, IsTheTwins) {
  const auto [dtype, window, cap] = GetParam();
  const Attention c(dtype, window, cap);
  const Arrays forward = c.forward(), backward = c.backward();
  ASSERT_EQ(moe_attention(forward.data(), forward.size(), &c.options, 2), MOE_OK)
      << moe_last_error();
  const auto q = values(c.q), k = values(c.k), v = values(c.v);
  const auto want = twin::attention_forward(q, k, v, c.rows, c.shape);
  expect_near(values(c.o), want.o, tolerance(dtype), "o");
  expect_near(values(c.lse), want.lse, tolerance(dtype), "lse");
  ASSERT_EQ(moe_attention_backward(backward.data(), backward.size(), &c.options, 2), MOE_OK)
      << moe_last_error();
  const auto grads = twin::attention_backward(values(c.dout), q, k, v, c.rows, c.shape);
  expect_near(values(c.dq), grads.dq, tolerance(dtype), "dq");
  expect_near(values(c.dk), grads.dk, tolerance(dtype), "dk");
  expect_near(values(c.dv), grads.dv, tolerance(dtype), "dv");
}
INSTANTIATE_TEST_SUITE_P(ApiSublayers, OfAttention,
                         testing::Values(std::tuple{DType::f32, 0, 0.0},
                                         std::tuple{DType::f32, 9, 2.0},
                                         std::tuple{DType::bf16, 0, 0.0}));

void expect_refused(moe_status status, const std::string& what) {
  EXPECT_EQ(status, MOE_USAGE);
  EXPECT_NE(std::string(moe_last_error()).find(what), std::string::npos) << moe_last_error();
}

TEST(ApiSublayers, AttentionSaysWhatDoesNotFit) {
  const Attention c(DType::f32);
  const auto refused = [&](Arrays arrays, moe_attention_options options, const std::string& what) {
    expect_refused(moe_attention(arrays.data(), arrays.size(), &options, 1), what);
  };
  moe_attention_options options = c.options;
  options.kv_heads = 3;
  refused(c.forward(), options, "heads is 4 and kv_heads 3; the latter must divide the former");
  options = c.options;
  options.scale = 0;
  refused(c.forward(), options, "scale is 0");
  options = c.options;
  options.heads = 6;
  refused(c.forward(), options, "\"q\" has 32 columns, which are not those of 6 heads");
  options.heads = 8;
  refused(c.forward(), options, "heads of \"q\" have 4 numbers and those of \"k\" 8");
  Arrays arrays = c.forward();
  arrays[1].dtype = MOE_BF16;
  refused(arrays, c.options, "\"k\" is bf16 and \"q\" f32; attention needs one dtype");
  c.bounds.as<int32_t>()[2] = 74;
  refused(c.forward(), c.options, "\"bounds\" must rise from 0 to the 75 tokens");
  c.bounds.as<int32_t>()[2] = 75;
  arrays = c.forward();
  arrays[0].name = "qeury";
  refused(arrays, c.options, "\"q\" is missing");
  arrays = c.backward();
  arrays.erase(arrays.begin() + 4);
  expect_refused(moe_attention_backward(arrays.data(), arrays.size(), &c.options, 1),
                 "\"lse\" is missing");
  arrays = c.forward();
  expect_refused(moe_attention(arrays.data(), arrays.size(), nullptr, 1), "options is NULL");
}

// The last tokens of two texts, whose other keys were read before, as where texts are written.
TEST(ApiSublayers, QueriesAreOfTheLastKeys) {
  const Attention c(DType::f32);
  const auto want = twin::attention_forward(values(c.q), values(c.k), values(c.v), c.rows, c.shape);
  Arena memory;
  const Tensor q = memory.alloc(DType::f32, {4, 32}), o = memory.alloc(DType::f32, {4, 24}),
               bounds = memory.alloc(DType::i32, {3});
  constexpr int64_t kTaken[] = {67, 68, 69, 74};  // three of the first text, one of the second
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 32; ++j) set(q, i, j, get(c.q, kTaken[i], j));
  for (int i = 0; i < 3; ++i) bounds.as<int32_t>()[i] = std::array{0, 3, 4}[static_cast<size_t>(i)];
  Arrays arrays{array("q", q), array("k", c.k),         array("v", c.v),
                array("o", o), array("bounds", bounds), array("key_bounds", c.bounds)};
  ASSERT_EQ(moe_attention(arrays.data(), arrays.size(), &c.options, 2), MOE_OK) << moe_last_error();
  std::vector<double> rows;
  for (const int64_t row : kTaken)
    rows.insert(rows.end(), want.o.begin() + row * 24, want.o.begin() + (row + 1) * 24);
  expect_near(values(o), rows, tolerance(DType::f32), "o");
  arrays.pop_back();
  expect_refused(moe_attention(arrays.data(), arrays.size(), &c.options, 2),
                 "\"q\" has 4 rows in 2 sequences and \"k\" 75 in 0; give \"key_bounds\" of as");
  bounds.as<int32_t>()[1] = 0;  // the second text would have four queries, and five keys
  arrays.push_back(array("key_bounds", c.bounds));
  EXPECT_EQ(moe_attention(arrays.data(), arrays.size(), &c.options, 2), MOE_OK) << moe_last_error();
  c.bounds.as<int32_t>()[1] = 72;
  expect_refused(moe_attention(arrays.data(), arrays.size(), &c.options, 2),
                 "sequence 1 has 4 queries and 3 keys; each query needs its own key");
}

class OfNorms : public testing::TestWithParam<std::tuple<DType, float>> {};

TEST_P(OfNorms, IsTheTwins) {
  const auto [dtype, offset] = GetParam();
  constexpr float kEps = 1e-3f;
  Arena memory;
  const Tensor x = draw(memory, dtype, {21, 24}, 1), weight = draw(memory, DType::f32, {24}, 2),
               dy = draw(memory, dtype, {21, 24}, 3), y = memory.alloc(dtype, {21, 24}),
               rstd = memory.alloc(DType::f32, {21}), dx = memory.alloc(dtype, {21, 24}),
               dweight = memory.alloc(DType::f32, {24});
  const Arrays forward{array("x", x), array("weight", weight), array("y", y), array("rstd", rstd)};
  ASSERT_EQ(moe_rms_norm(forward.data(), forward.size(), kEps, offset, 2), MOE_OK)
      << moe_last_error();
  auto whole = values(weight);
  for (double& w : whole) w += offset;
  expect_near(values(y), twin::rms_norm_forward(values(x), whole, kEps), tolerance(dtype), "y");
  const Arrays backward{array("x", x),   array("weight", weight), array("rstd", rstd),
                        array("dy", dy), array("dx", dx),         array("dweight", dweight)};
  for (int again = 0; again < 2; ++again)  // gradients are written, not added
    ASSERT_EQ(moe_rms_norm_backward(backward.data(), backward.size(), offset, 2), MOE_OK)
        << moe_last_error();
  const auto want = twin::rms_norm_backward(values(dy), values(x), whole, kEps);
  expect_near(values(dx), want.dx, tolerance(dtype), "dx");
  expect_near(values(dweight), want.dweight, tolerance(dtype), "dweight");
}
INSTANTIATE_TEST_SUITE_P(ApiSublayers, OfNorms,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(0.0f, 1.0f)));

TEST(ApiSublayers, NormsSayWhatDoesNotFit) {
  Arena memory;
  const Tensor x = draw(memory, DType::f32, {3, 4}, 1), weight = draw(memory, DType::f32, {5}, 2),
               y = memory.alloc(DType::f32, {3, 4}), rstd = memory.alloc(DType::f32, {3});
  Arrays arrays{array("x", x), array("y", y), array("rstd", rstd), array("weight", weight)};
  expect_refused(moe_rms_norm(arrays.data(), 4, 1e-6f, 0, 1), "weight has the shape [5]");
  EXPECT_EQ(moe_rms_norm(arrays.data(), 3, 1e-6f, 0, 1), MOE_OK) << moe_last_error();
  expect_refused(moe_rms_norm(arrays.data(), 2, 1e-6f, 0, 1), "\"rstd\" is missing");
}

}  // namespace
}  // namespace moe::test::sublayers_test
