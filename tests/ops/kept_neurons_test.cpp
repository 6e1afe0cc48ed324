// A feed-forward network of chosen neurons against plain loops in double, over all types of
// weights, activations and lengths of lists; and the law of rows, which it keeps in bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"
#include "tensor/quant.h"

namespace moe::test::kept_neurons_test {
namespace {

using ops::Act;

constexpr Act kAllActs[] = {Act::silu,       Act::gelu,    Act::gelu_tanh, Act::relu,
                            Act::swiglu_oai, Act::sigmoid, Act::relu2,     Act::swiglu_10};
constexpr DType kWeights[] = {DType::f32,  DType::bf16, DType::f16,  DType::q8_0,  DType::q4_0,
                              DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k,  DType::q5_k,
                              DType::q6_k, DType::q3_k, DType::q2_k, DType::mxfp4, DType::iq4_nl};

// A matrix of one type whose rows have `gap` bytes between them that no number may come from.
struct Weights {
  Weights() = default;
  Weights(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 0)
      : width(cols) {
    param.name = "w";
    param.value = Tensor(nullptr, dtype, {1, rows, cols});
    Tensor& t = param.value;
    t.row_bytes = bytes_of(dtype, cols) + gap;
    t.data = arena.alloc_bytes(static_cast<size_t>(rows * t.row_bytes));
    std::memset(t.data, 0xFF, static_cast<size_t>(rows * t.row_bytes));
    const Tensor drawn =
        draw(arena, DType::f32, {rows, cols}, seed, 1 / std::sqrt(static_cast<float>(cols)));
    for (int64_t i = 0; i < rows; ++i)
      quantise(static_cast<char*>(t.data) + i * t.row_bytes, drawn.row<float>(i), dtype, cols);
  }
  std::vector<double> row(int64_t i) const {
    std::vector<float> numbers(static_cast<size_t>(width));
    const Tensor& t = param.value;
    dequantise(numbers.data(), static_cast<const char*>(t.data) + i * t.row_bytes, t.dtype, width);
    return {numbers.begin(), numbers.end()};
  }

  Param param;
  int64_t width = 0;
};

struct Network {
  Weights gate, up, down;  // gate absent: none
  Act act = Act::silu;

  void forward(moe::Run& run, Tensor y, Tensor x, Tensor kept) const {
    ops::kept_neurons_forward(run, y, x, gate.param, up.param, down.param, kept, act);
  }
  std::vector<double> twin(const Tensor& x, const Tensor& kept) const {
    std::vector<double> y;
    for (int64_t n = 0; n < x.rows(); ++n) {
      std::vector<double> gates, ups, out(static_cast<size_t>(x.cols()));
      const auto k = static_cast<size_t>(kept.cols());
      for (size_t i = 0; i < k; ++i) {
        const auto product = [&](const Weights& w) {
          const auto row = w.row(kept.row<int32_t>(n)[i]);
          double sum = 0;
          for (int64_t c = 0; c < x.cols(); ++c) sum += row[static_cast<size_t>(c)] * get(x, n, c);
          return sum;
        };
        if (gate.param.present()) gates.push_back(product(gate));
        ups.push_back(product(up));
      }
      const auto hidden = twin::ffn_act_forward(gates, ups, {}, k, act);
      for (size_t i = 0; i < k; ++i) {
        const auto row = down.row(kept.row<int32_t>(n)[i]);
        for (size_t c = 0; c < out.size(); ++c) out[c] += hidden[i] * row[c];
      }
      y.insert(y.end(), out.begin(), out.end());
    }
    return y;
  }
};

// K of F for each of so many tokens, each token its own.
Tensor draw_kept(Arena& arena, int64_t tokens, int64_t k, int64_t neurons, uint64_t seed) {
  const Tensor kept = arena.alloc(DType::i32, {tokens, k});
  std::vector<int32_t> all(static_cast<size_t>(neurons));
  for (int64_t n = 0; n < tokens; ++n) {
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < k; ++i)
      std::swap(all[static_cast<size_t>(i)],
                all[static_cast<size_t>(i) + uniform_index(RngKey::from_seed(seed),
                                                           static_cast<uint64_t>(n * neurons + i),
                                                           static_cast<uint64_t>(neurons - i))]);
    std::sort(all.begin(), all.begin() + k);
    std::copy_n(all.begin(), k, kept.row<int32_t>(n));
  }
  return kept;
}

void expect_twin(const Network& network, DType of_x, int64_t k, const std::string& what) {
  moe::Run run(2);
  Arena arena;
  const int64_t tokens = 3, cols = network.up.width, neurons = network.up.param.value.rows();
  const Fenced x(arena, of_x, tokens, cols, 4), y(arena, DType::f32, tokens, cols);
  const Tensor kept = draw_kept(arena, tokens, k, neurons, 5);
  network.forward(run, y.view, x.view, kept);
  expect_near(y.view, network.twin(x.view, kept), kTwinF32, what);
  EXPECT_TRUE(x.intact() && y.intact()) << what;
}

TEST(KeptNeurons, AgreeWithTwinForAllTypes) {
  for (const DType dtype : kWeights)
    for (const DType of_x : kFloats) {
      Arena arena;
      const int64_t cols = 512, neurons = 61;
      const Network network{Weights(arena, dtype, neurons, cols, 1),
                            Weights(arena, dtype, neurons, cols, 2),
                            Weights(arena, dtype, neurons, cols, 3)};
      for (const int64_t k : {int64_t{1}, int64_t{29}, neurons})
        expect_twin(network, of_x, k, fmt::format("{} rows, K = {}", name_of(dtype), k));
    }
}

TEST(KeptNeurons, AgreeWithTwinForAllActivations) {
  for (const Act act : kAllActs)
    for (const bool gated : {false, true}) {
      Arena arena;
      const int64_t cols = 63, neurons = 200;
      const Network network{gated ? Weights(arena, DType::bf16, neurons, cols, 1) : Weights(),
                            Weights(arena, DType::bf16, neurons, cols, 2),
                            Weights(arena, DType::bf16, neurons, cols, 3), act};
      expect_twin(network, DType::f32, 120,
                  fmt::format("act {}, {}", static_cast<int>(act), gated ? "gated" : "plain"));
    }
}

TEST(KeptNeurons, AgreeWithTwinForAllWidths) {
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_1})
    for (const int64_t cols : {1, 7, 31, 32, 33, 96, 160, 385}) {
      if (cols % block_of(dtype).elements != 0) continue;
      Arena arena;
      const int64_t neurons = 45;
      // where rows do not lie at any round address
      const Network network{Weights(arena, dtype, neurons, cols, 1, 2 * block_of(dtype).bytes + 6),
                            Weights(arena, dtype, neurons, cols, 2, 2),
                            Weights(arena, dtype, neurons, cols, 3, 34)};
      for (const int64_t k : {3, 37})
        expect_twin(network, DType::f32, k, fmt::format("{} of width {}", name_of(dtype), cols));
    }
}

TEST(KeptNeurons, EachMatrixHasItsOwnType) {
  constexpr DType kMixed[][3] = {{DType::q4_1, DType::q8_0, DType::bf16},
                                 {DType::f32, DType::q4_0, DType::q6_k},
                                 {DType::q5_0, DType::bf16, DType::q4_1},
                                 {DType::f16, DType::q4_k, DType::f32}};
  for (const auto& types : kMixed) {
    Arena arena;
    const int64_t cols = 256, neurons = 90;
    const Network network{Weights(arena, types[0], neurons, cols, 1),
                          Weights(arena, types[1], neurons, cols, 2),
                          Weights(arena, types[2], neurons, cols, 3)};
    expect_twin(network, DType::bf16, 50, fmt::format("{} gate", name_of(types[0])));
  }
}

TEST(KeptNeurons, LawOfRows) {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_1, DType::q6_k}) {
    Arena arena;
    const int64_t cols = 256, neurons = 150;
    const Network network{Weights(arena, dtype, neurons, cols, 1),
                          Weights(arena, dtype, neurons, cols, 2),
                          Weights(arena, dtype, neurons, cols, 3), Act::gelu};
    const Tensor pool = draw(arena, DType::f32, {300, cols}, 6),
                 lists = draw_kept(arena, 300, 70, neurons, 7);
    const auto rows = [&](moe::Run& run, std::span<const int32_t> which) {
      const Tensor y = run.saved.alloc(DType::f32, {static_cast<int64_t>(which.size()), cols});
      network.forward(run, y, pick(run.saved, pool, which), pick(run.saved, lists, which));
      return y;
    };
    if (dtype == DType::q8_0) expect_law_of_rows(rows, "kept neurons");
    moe::Run one(1);
    std::vector<int32_t> some(40);
    std::iota(some.begin(), some.end(), 100);
    const Tensor want = rows(one, some);
    for (const int32_t n : {0, 17, 39})
      EXPECT_TRUE(same_bits(rows(one, std::span(&some[static_cast<size_t>(n)], 1)),
                            want.slice_rows(n, n + 1)))
          << name_of(dtype) << ", row " << n;
  }
}

TEST(KeptNeurons, ThreadsChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_k}) {
    Arena weights;
    const int64_t cols = 512, neurons = 700;
    const Network network{Weights(weights, dtype, neurons, cols, 1),
                          Weights(weights, dtype, neurons, cols, 2),
                          Weights(weights, dtype, neurons, cols, 3)};
    for (const int64_t k : {1, 2, 5, 64, 333, 700})
      for (const int64_t tokens : {1, 2, 9, 40}) {
        Arena arena;
        const Tensor x = draw(arena, DType::bf16, {tokens, cols}, 4),
                     kept = draw_kept(arena, tokens, k, neurons, 5),
                     want = arena.alloc(DType::f32, {tokens, cols}),
                     got = arena.alloc(DType::f32, {tokens, cols});
        moe::Run one(1);
        network.forward(one, want, x, kept);
        for (const int threads : {2, 3, 4, 7}) {
          moe::Run run(threads);
          network.forward(run, got, x, kept);
          EXPECT_TRUE(same_bits(got, want))
              << name_of(dtype) << ", K = " << k << ", " << threads << " threads";
        }
      }
  }
}

// Weights that are only read are copied, as far as the limit of copies allows.
TEST(KeptNeurons, CopiesOfBoundWeightsChangeNoBit) {
  for (const bool gated : {false, true}) {
    Arena arena;
    const int64_t cols = 96, neurons = 70, k = 29, tokens = 3;
    const int64_t gap = 10;
    Network network{gated ? Weights(arena, DType::q8_0, neurons, cols, 1) : Weights(),
                    Weights(arena, DType::bf16, neurons, cols, 2, gap),
                    Weights(arena, DType::q4_1, neurons, cols, 3)};
    const Tensor x = draw(arena, DType::f32, {tokens, cols}, 4),
                 kept = draw_kept(arena, tokens, k, neurons, 5);
    moe::Run run(2);
    const auto result = [&] {
      const Tensor y = arena.alloc(DType::f32, {tokens, cols});
      network.forward(run, y, x, kept);
      return y;
    };
    std::vector<moe::Param*> params;
    int64_t bytes = 0;
    for (Weights* w : {&network.gate, &network.up, &network.down})
      if (w->param.present()) {
        params.push_back(&w->param);
        bytes += ops::kept_copy_bytes(w->param);
      }
    const Tensor want = result();
    EXPECT_EQ(ops::copies_taken(params), 0) << "of weights that may be trained";

    for (moe::Param* w : params) w->bind(w->value);
    EXPECT_TRUE(same_bits(result(), want));
    EXPECT_EQ(ops::copies_taken(params), 0) << "of weights whose copies have no limit";
    ops::limit_copies(params, bytes - 1);
    EXPECT_TRUE(same_bits(result(), want));
    EXPECT_EQ(ops::copies_taken(params), 0);
    ops::limit_copies(params, bytes);
    EXPECT_TRUE(same_bits(result(), want));
    EXPECT_EQ(ops::copies_taken(params), bytes);

    // A copy of what was there before is made again.
    Param& up = network.up.param;
    const Weights other(arena, DType::bf16, neurons, cols, 6, gap);
    up.bind(other.param.value);
    const Tensor changed = result();
    EXPECT_FALSE(same_bits(changed, want));
    expect_near(changed, network.twin(x, kept), kTwinF32, "after a change");
    EXPECT_EQ(ops::copies_taken(params), bytes);
  }
}

TEST(KeptNeurons, NumbersThatAreNoneShow) {
  moe::Run run(1);
  Arena arena;
  const Network network{Weights(arena, DType::bf16, 20, 64, 1),
                        Weights(arena, DType::bf16, 20, 64, 2),
                        Weights(arena, DType::bf16, 20, 64, 3), Act::relu};
  const Tensor x = draw(arena, DType::f32, {2, 64}, 4), y = arena.alloc(DType::f32, {2, 64}),
               kept = draw_kept(arena, 2, 7, 20, 5);
  set(x, 0, 5, NAN);
  network.forward(run, y, x, kept);
  EXPECT_TRUE(std::isnan(get(y, 0, 0)) && !std::isnan(get(y, 1, 0)));
}

TEST(KeptNeurons, RefuseWhatDoesNotFit) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {2, 64}, 1), y = draw(arena, DType::f32, {2, 64}, 1),
               kept = draw_kept(arena, 2, 7, 20, 5);
  const Weights w(arena, DType::bf16, 20, 64, 1), fewer(arena, DType::bf16, 19, 64, 1),
      narrow(arena, DType::bf16, 20, 63, 1);
  const auto refused = [&](Tensor to, Tensor from, const Weights& gate, const Weights& down,
                           Tensor list) {
    EXPECT_THROW(
        ops::kept_neurons_forward(run, to, from, gate.param, w.param, down.param, list, Act::silu),
        Error);
  };
  refused(draw(arena, DType::bf16, {2, 64}, 1), x, w, w, kept);
  refused(y, draw(arena, DType::f32, {3, 64}, 1), w, w, kept);
  refused(y, x, fewer, w, kept);
  refused(y, x, w, narrow, kept);
  refused(y, x, w, Weights(), kept);
  refused(y, x, w, w, draw_kept(arena, 3, 7, 20, 5));
  refused(y, x, w, w, draw(arena, DType::f32, {2, 7}, 1));
  const int32_t sixth = kept.row<int32_t>(1)[6];
  for (const int32_t wrong : {-1, 20, kept.row<int32_t>(1)[5]}) {
    kept.row<int32_t>(1)[6] = wrong;
    refused(y, x, w, w, kept);
  }
  kept.row<int32_t>(1)[6] = sixth;
  ops::kept_neurons_forward(run, y, x, Param(), w.param, w.param, kept, Act::silu);
}

}  // namespace
}  // namespace moe::test::kept_neurons_test
