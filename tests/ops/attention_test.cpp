// Causal attention: forward and backward against the naive twin, the twin against dual numbers, and
// what is refused.
#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "support/attention_case.h"

namespace moe::test::attention_test {
namespace {

using namespace of_attention;

class AttentionTwin : public OfShapes<std::tuple<DType, AttentionShape, Lengths>> {};

TEST_P(AttentionTwin, forward_and_backward) {
  const auto& [dtype, shape, lengths] = GetParam();
  Case c(lengths, shape, dtype);
  moe::Run run(2);
  c.forward(run);
  const auto q = values(c.q), k = values(c.k), v = values(c.v);
  const auto want = twin::attention_forward(q, k, v, c.rows, shape);
  expect_near(c.o, want.o, tolerance(dtype), "o");
  expect_near(c.lse, want.lse, kTwinF32, "lse");
  c.backward(run);
  const auto grads = twin::attention_backward(values(c.dout), q, k, v, c.rows, shape);
  // A sequence of one token has no gradient through its softmax.
  if (*std::max_element(lengths.begin(), lengths.end()) > 1) {
    expect_near(c.dq, grads.dq, tolerance(dtype), "dq");
    expect_near(c.dk, grads.dk, tolerance(dtype), "dk");
  }
  expect_near(c.dv, grads.dv, tolerance(dtype), "dv");
}

INSTANTIATE_TEST_SUITE_P(
    shapes, AttentionTwin,
    testing::Combine(
        testing::Values(DType::f32, DType::bf16),
        testing::Values(shape_of(4, 4, 16, 16), shape_of(4, 2, 8, 8), shape_of(4, 1, 64, 64),
                        shape_of(3, 1, 20, 33), shape_of(2, 1, 33, 12), shape_of(2, 2, 128, 128),
                        shape_of(1, 1, 256, 256), shape_of(6, 2, 9, 1), shape_of(70, 1, 8, 8),
                        shape_of(2, 2, 1, 5)),
        testing::Values(Lengths{1}, Lengths{7}, Lengths{64}, Lengths{0, 65, 1, 0, 5, 130, 16, 0})));

// Windows of a key, within a block, of a block, over blocks, and longer than the sequence.
INSTANTIATE_TEST_SUITE_P(
    windows, AttentionTwin,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(4, 2, 16, 8, 2), shape_of(4, 2, 16, 8, 17),
                                     shape_of(4, 1, 16, 8, 64), shape_of(3, 3, 20, 33, 65),
                                     shape_of(2, 1, 33, 12, 100), shape_of(70, 1, 8, 8, 130),
                                     shape_of(2, 2, 8, 8, 1000)),
                     testing::Values(Lengths{7}, Lengths{64},
                                     Lengths{0, 65, 1, 0, 5, 330, 16, 0})));

// Over several stretches of keys, whose sums are joined.
INSTANTIATE_TEST_SUITE_P(stretches, AttentionTwin,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(shape_of(4, 2, 16, 8),
                                                          shape_of(2, 1, 33, 12, 700),
                                                          shape_of(2, 2, 9, 8, 0, 1)),
                                          testing::Values(Lengths{1030, 520})));

// Caps that hold scores back much, and one that hardly does.
INSTANTIATE_TEST_SUITE_P(
    caps, AttentionTwin,
    testing::Combine(testing::Values(DType::f32, DType::bf16),
                     testing::Values(shape_of(4, 4, 16, 16, 0, 0.5), shape_of(4, 2, 33, 12, 0, 2),
                                     shape_of(6, 2, 64, 20, 17, 1), shape_of(70, 1, 8, 8, 130, 1.5),
                                     shape_of(2, 1, 128, 128, 0, 50)),
                     testing::Values(Lengths{7}, Lengths{64},
                                     Lengths{0, 65, 1, 0, 5, 330, 16, 0})));

// As wide as latents are.
INSTANTIATE_TEST_SUITE_P(wide, AttentionTwin,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(shape_of(16, 1, 576, 512),
                                                          shape_of(2, 1, 328, 520)),
                                          testing::Values(Lengths{70})));

TEST(Attention, a_window_of_one_token_is_its_own_value) {
  const AttentionShape shape = shape_of(4, 2, 8, 16, 1);
  Case c({130}, shape, DType::f32);
  moe::Run run(2);
  c.forward(run);
  for (int64_t n = 0; n < 130; ++n)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 16; ++i)
        ASSERT_EQ(get(c.o, n, h * 16 + i), get(c.v, n, h / 2 * 16 + i));
}

// A window as long as the sequence is none.
TEST(Attention, a_long_window_changes_no_bit) {
  Case a({150, 64}, shape_of(4, 2, 20, 33), DType::f32),
      b({150, 64}, shape_of(4, 2, 20, 33, 150), DType::f32);
  moe::Run run(2);
  for (Case* c : {&a, &b}) {
    c->forward(run);
    c->backward(run);
  }
  for (const auto& [x, y] :
       {std::pair{a.o, b.o}, {a.lse, b.lse}, {a.dq, b.dq}, {a.dk, b.dk}, {a.dv, b.dv}})
    EXPECT_TRUE(same_bits(x, y));
}

TEST(Attention, twin_backward_is_the_derivative) {
  for (const auto& [window, cap] : {std::pair{0, 0.0}, {2, 0.0}, {0, 0.7}, {2, 1.5}}) {
    const AttentionShape shape = shape_of(4, 2, 3, 2, window, cap);
    Case c({3, 1, 0, 4}, shape, DType::f32);
    const auto q = values(c.q), k = values(c.k), v = values(c.v), dout = values(c.dout);
    const auto grads = twin::attention_backward(dout, q, k, v, c.rows, shape);
    const auto to_dual = [](const std::vector<double>& x) {
      return std::vector<Dual<double>>(x.begin(), x.end());
    };
    const auto qd = to_dual(q), kd = to_dual(k), vd = to_dual(v);
    // d<dout, o> / dx[i] for each element of one input.
    const auto derivative = [&](size_t which, size_t size) {
      std::vector<double> out(size);
      for (size_t i = 0; i < size; ++i) {
        auto inputs = std::array{qd, kd, vd};
        inputs[which][i].d = 1;
        const auto o = twin::attention_forward(inputs[0], inputs[1], inputs[2], c.rows, shape).o;
        for (size_t j = 0; j < o.size(); ++j) out[i] += dout[j] * o[j].d;
      }
      return out;
    };
    expect_near(grads.dq, derivative(0, q.size()), kTwinDual, "dq");
    expect_near(grads.dk, derivative(1, k.size()), kTwinDual, "dk");
    expect_near(grads.dv, derivative(2, v.size()), kTwinDual, "dv");
  }
}

// Small integers make the scores exact, so that only the softmax is on trial: differences of
// hundreds, all of it shifted by 10^4.
TEST(Attention, large_scores) {
  const AttentionShape shape{2, 1, 16, 16, 0.5};
  Case c({150}, shape, DType::f32);
  const RngKey key = RngKey::from_seed(5);
  for (int64_t n = 0; n < 150; ++n) {
    for (int64_t i = 0; i < 32; ++i)
      set(c.q, n, i,
          i % 16 == 0
              ? 200.0f
              : static_cast<float>(uniform_index(key, static_cast<uint64_t>(n * 64 + i), 17)) - 8);
    for (int64_t i = 0; i < 16; ++i)
      set(c.k, n, i,
          i == 0
              ? 100.0f
              : static_cast<float>(uniform_index(key, static_cast<uint64_t>(n * 64 + 32 + i), 17)) -
                    8);
  }
  moe::Run run(2);
  c.forward(run);
  c.backward(run);
  const auto q = values(c.q), k = values(c.k), v = values(c.v);
  const auto want = twin::attention_forward(q, k, v, c.rows, shape);
  EXPECT_GT(*std::min_element(want.lse.begin(), want.lse.end()), 9000);
  expect_near(c.o, want.o, kTwinF32, "o");
  expect_near(c.lse, want.lse, kTwinF32, "lse");
  for (const Tensor& t : {c.dq, c.dk, c.dv})
    for (double x : values(t)) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, empty_batch_and_absent_lse) {
  moe::Run run(2);
  Case none({0, 0}, shape_of(2, 1, 8, 8), DType::f32);
  EXPECT_NO_THROW(none.forward(run));
  EXPECT_NO_THROW(none.backward(run));
  Case a({70}, shape_of(2, 1, 8, 8), DType::f32), b({70}, shape_of(2, 1, 8, 8), DType::f32);
  a.forward(run);
  b.lse = Tensor();
  b.forward(run);
  EXPECT_TRUE(same_bits(a.o, b.o));
}

// ---- entry checks -------------------------------------------------------------------------------

template <class Spoil>
void expect_refused(const std::string& word, Spoil&& spoil) {
  for (const bool backward : {false, true}) {
    Case c({5, 6}, shape_of(4, 2, 8, 16), DType::f32);
    moe::Run run(1);
    c.forward(run);
    spoil(c);
    try {
      if (backward) c.backward(run);
      else c.forward(run);
      ADD_FAILURE() << "accepted: " << word << (backward ? " (backward)" : " (forward)");
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(Attention, refuses_what_does_not_fit) {
  expect_refused("3 key/value heads", [](Case& c) { c.shape.kv_heads = 3; });
  expect_refused("0 query heads", [](Case& c) { c.shape.heads = 0; });
  expect_refused("q f32 [11, 32] cannot be split into 6 heads", [](Case& c) { c.shape.heads = 6; });
  expect_refused("o is f32", [](Case& c) { c.o = c.o.slice_cols(0, 63); });
  expect_refused("k is f32", [](Case& c) { c.k = c.k.slice_cols(0, 8); });
  expect_refused("q is absent", [](Case& c) { c.q = Tensor(); });
  expect_refused("v is bf16", [](Case& c) { c.v = c.arena.alloc(DType::bf16, {11, 32}); });
  expect_refused("k is i32", [](Case& c) { c.k = c.arena.alloc(DType::i32, {11, 16}); });
  expect_refused("lse is f32", [](Case& c) { c.lse = c.lse.slice_rows(0, 10); });
  expect_refused("10 positions", [](Case& c) { c.rows.positions.pop_back(); });
  expect_refused("the bounds go from 0 to 10", [](Case& c) { c.rows.bounds.back() = 10; });
  expect_refused("go backwards", [](Case& c) { c.rows.bounds[1] = 12; });
  expect_refused("bounds for 1 sequences", [](Case& c) { c.rows.first_row.pop_back(); });
  expect_refused("would be row 11", [](Case& c) { c.rows.positions.back() = 6; });
  expect_refused("position -1", [](Case& c) { c.rows.positions[3] = -1; });
  for (const double scale : {-1.0, 0.0, std::nan("")})
    expect_refused("the scale of attention", [&](Case& c) { c.shape.scale = scale; });
  expect_refused("the window is -1", [](Case& c) { c.shape.window = -1; });
  for (const double cap : {-1.0, std::nan(""), HUGE_VAL})
    expect_refused("scores are held below", [&](Case& c) { c.shape.cap = cap; });
  expect_refused("first key in row -5", [](Case& c) { c.rows.first_row[1] = -5; });
}

TEST(Attention, refuses_transposed_keys_that_do_not_fit) {
  const auto refused = [](const std::string& word, auto&& spoil) {
    Case c({5, 6}, shape_of(4, 2, 8, 16), DType::f32);
    c.rows.first_row[1] = 0;
    c.k = key_blocks(c.arena, DType::f32, 11, 16);
    spoil(c);
    moe::Run run(1);
    try {
      c.forward(run);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused("first key in row 5; transposed keys begin in multiples of 64",
          [](Case& c) { c.rows.first_row[1] = 5; });
  refused("k is f32 [1, 8, 64]; expected f32 [1, 16, 64]",
          [](Case& c) { c.k = key_blocks(c.arena, DType::f32, 11, 8); });
  refused("k is f32 [1, 16, 32]; expected f32 [1, 16, 64]", [](Case& c) {
    c.k = c.arena.alloc(DType::f32, {1, 16, 32});
  });
  refused("v is bf16", [](Case& c) { c.v = c.arena.alloc(DType::bf16, {11, 32}); });
}

TEST(Attention, refuses_tables_that_lead_nowhere) {
  const auto refused = [](const std::string& word, std::vector<int32_t> slots,
                          std::vector<std::vector<int32_t>> tables, bool runs_too = false) {
    Case c({5, 70}, shape_of(4, 2, 8, 16), DType::f32);
    Arena arena;
    const Tensor keys = key_blocks(arena, DType::f32, 192, 16),
                 cached = arena.alloc_zeroed(DType::f32, {192, 32});
    moe::Run run(1);
    try {
      ops::attention_forward(
          run, c.o, c.lse, c.q,
          {keys, cached, c.rows.bounds,
           runs_too ? std::vector<int64_t>{0, 64} : std::vector<int64_t>{}, slots, tables},
          c.rows.positions, 4, 2, 1);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused("3 bounds for 1 sequences", {0}, {{0}, {1, 2}});
  refused("slot 2 of 2", {0, 2}, {{0}, {1, 2}});
  refused("slot 1 has block 3", {0, 1}, {{0}, {1, 3}});
  refused("slot 0 has block -1", {0, 1}, {{-1}, {1, 2}});
  refused("query row 69 is at position 64, but its slot 1 has room for 64 only", {0, 1},
          {{0}, {1}});
  refused("not both", {0, 1}, {{0}, {1, 2}}, true);
}

TEST(Attention, a_gpu_refuses_a_cap) {
  if (device_of_tests == nullptr) GTEST_SKIP() << "no GPU here";
  expect_refused("leave out the device", [](Case& c) { c.shape.cap = 5; });
}

TEST(Attention, only_a_batch_over_itself_has_gradients) {
  const auto refused = [](auto&& spoil) {
    Case c({5, 6}, shape_of(4, 2, 8, 8), DType::f32);
    moe::Run run(1);
    c.forward(run);
    spoil(c);
    EXPECT_NO_THROW(c.forward(run));
    EXPECT_THROW(c.backward(run), Error);
  };
  refused([](Case& c) { c.rows.first_row[1] = 3; });
  refused([](Case& c) { c.rows.positions[2] = 1; });
}

}  // namespace
}  // namespace moe::test::attention_test
