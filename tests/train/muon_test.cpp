// Muon: its updates against a transcription in NumPy (tools/golden/muon.py), who takes it, and what
// a run with it keeps.
#include "train/muon.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "model/parameters.h"
#include "ops/memory.h"
#include "support/files.h"
#include "support/processes.h"
#include "support/rowwise.h"
#include "support/tiny_model.h"
#include "train/memory.h"
#include "train/optimizer.h"
#include "train/trainable.h"

namespace moe::muon_test {
namespace {

using namespace test;

TrainOptions muon_options() {
  TrainOptions o = tiny_options();
  o.optimizer = OptimizerKind::muon;
  return o;
}

// A matrix [O,I] or bank [E,O,I] of a layer, without a model.
struct Matrix {
  Matrix(Arena& arena, const std::vector<int64_t>& shape, const std::vector<double>& numbers) {
    param.name = "a matrix";
    param.part = Part::experts;
    param.kind = ParamKind::gate;
    param.layer = 0;
    param.value = shape.size() == 3 ? arena.alloc(DType::f32, {shape[0], shape[1], shape[2]})
                                    : arena.alloc(DType::f32, {shape[0], shape[1]});
    fill(param.value, numbers);
    param.grad = param.value;
    param.grad.data = arena.alloc_bytes(static_cast<size_t>(param.value.bytes()));
  }
  void give(const std::vector<double>& gradient) {
    param.grad_is_zero = false;
    fill(param.grad, gradient);
  }
  Param param;
};

// Three steps with decay and clipping; wide, tall and square matrices, banks, an idle expert.
TEST(Muon, StepsAreThoseOfTheTranscription) {
  const Json file = read_json(MOE_TEST_DATA "/golden/muon.json");
  const Json& hyper = file.at("hyper");
  TrainOptions o = muon_options();
  o.momentum = hyper.at("momentum");
  o.weight_decay = hyper.at("weight_decay");
  o.clip = hyper.at("clip");
  ASSERT_GE(file.at("cases").size(), 6u);
  for (const Json& example : file.at("cases"))
    for (int threads : {1, 2}) {
      const auto name = example.at("name").get<std::string>();
      Arena arena;
      moe::Run run(threads);
      Matrix matrix(arena, example.at("shape"), example.at("value"));
      Optimizer optimizer({&matrix.param}, o);
      int64_t step = 0;
      for (const Json& gradient : example.at("grads")) {
        matrix.give(gradient);
        const double norm = optimizer.grad_norm(run);
        ASSERT_GT(norm, o.clip) << "the gradient must be long enough to be clipped";
        const uint64_t version = matrix.param.version;
        optimizer.update(run, ++step, hyper.at("lr"), norm);
        EXPECT_TRUE(matrix.param.grad_is_zero) << name;
        EXPECT_GT(matrix.param.version, version) << "packed copies would be stale";
      }
      const auto moved = relative_error(values(matrix.param.value),
                                        example.at("value").get<std::vector<double>>());
      EXPECT_GT(moved, 1e-2) << name;
      EXPECT_LE(relative_error(values(matrix.param.value), example.at("after")), 1e-5) << name;
      EXPECT_LE(relative_error(values(optimizer.m(0)), example.at("momentum")), 1e-5) << name;
    }
}

// The iteration makes of bf16's rounding some 2e-2 to 3e-2 of the matrix: as much in NumPy with
// operands that are rounded so.
TEST(Muon, ProductsMayBeOfBf16) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 96}, {96, 48}}) {
    Arena arena;
    moe::Run wide(2), narrow(2, DType::bf16);
    const Tensor a = draw(arena, DType::f32, {3, rows, cols}, 1),
                 b = draw(arena, DType::f32, {3, rows, cols}, 1);
    orthogonalise(wide, {a});
    orthogonalise(narrow, {b});
    const double apart = relative_error(values(b), values(a));
    EXPECT_LE(apart, 4e-2) << rows << " x " << cols;
    if (ops::has_bf16_products()) EXPECT_GT(apart, 1e-5) << "this was not bf16";
  }
}

// All singular values come near 1: 0.68 to 1.13 by the iteration's own figures.
TEST(Muon, SingularValuesComeNearOne) {
  Arena arena;
  moe::Run run(2);
  const Tensor x = draw(arena, DType::f32, {16, 64}, 1);
  orthogonalise(run, {x});
  const std::vector<double> v = values(x);
  double squares = 0;
  for (int64_t i = 0; i < 16; ++i) {
    double length = 0;
    for (int64_t j = 0; j < 64; ++j)
      length += v[static_cast<size_t>(i * 64 + j)] * v[static_cast<size_t>(i * 64 + j)];
    EXPECT_GT(length, 0.4);
    EXPECT_LT(length, 1.4);
    squares += length;
  }
  EXPECT_NEAR(squares / 16, 0.85, 0.25);
}

// Each expert's matrix moves as it would by itself, to the bit; so many that they are not done at
// once.
TEST(Muon, ExpertsAreMatricesOfTheirOwn) {
  for (const auto& [experts, rows, cols] :
       {std::array<int64_t, 3>{5, 24, 40}, {5, 40, 24}, {3, 700, 600}}) {
    Arena arena;
    moe::Run run(2);
    const Tensor bank = draw(arena, DType::f32, {experts, rows, cols}, 1);
    Matrix all(arena, {experts, rows, cols}, values(bank));
    all.give(values(bank));
    TrainOptions o = muon_options();
    Optimizer of_bank({&all.param}, o);
    of_bank.update(run, 1, 0.1, 1);
    for (int64_t e = 0; e < experts; ++e) {
      Matrix one(arena, {rows, cols}, values(bank.at(e)));
      one.give(values(bank.at(e)));
      Optimizer of_one({&one.param}, o);
      of_one.update(run, 1, 0.1, 1);
      EXPECT_TRUE(same_bits(all.param.value.at(e), one.param.value)) << e << " of " << experts;
    }
  }
}

TEST(Muon, SameForAnyThreads) {
  expect_same_for_any_threads(
      [arena = std::make_shared<Arena>()](moe::Run& run) {
        const Tensor x = draw(*arena, DType::f32, {4, 80, 112}, 1);
        orthogonalise(run, {x});
        return x;
      },
      "wide");
}

// Matrices of attention and FFNs do; embeddings, the head, routers, norms and biases do not.
TEST(Muon, HiddenMatricesTakeIt) {
  ModelConfig c = plain_config();
  c.shared_experts = 1;
  c.shared_width = 24;
  c.shared_gate = true;
  c.moe_every = 2;
  c.attention_gate = true;
  c.linear = {
      .key_heads = 2, .value_heads = 2, .key_width = 16, .value_width = 16, .conv_width = 4};
  c.linear_layers = {1};
  c.attention_bias = true;
  auto model = fresh(c);
  const TrainOptions o = muon_options();
  const Trainable trainable(*model, o);
  const Optimizer optimizer(trainable.params(), o);
  int64_t taken = 0;
  for (size_t i = 0; i < trainable.params().size(); ++i) {
    const Param& p = *trainable.params()[i];
    const bool hidden = p.part == Part::attention || p.part == Part::experts ||
                        p.part == Part::shared || p.part == Part::dense_ffn;
    const bool small = p.kind == ParamKind::linear_a || p.kind == ParamKind::linear_b ||
                       p.kind == ParamKind::linear_conv ||
                       (p.part == Part::shared && p.kind == ParamKind::weight);
    const bool wanted = hidden && p.is_matrix() && !small;
    EXPECT_EQ(takes_muon(p, o), wanted) << p.name;
    EXPECT_EQ(optimizer.keeps_squares(i), !wanted) << p.name;
    EXPECT_EQ(optimizer.v(i).empty(), wanted) << p.name;
    EXPECT_FALSE(optimizer.m(i).empty()) << p.name;
    taken += wanted ? 1 : 0;
  }
  EXPECT_GE(taken, 15);
  for (const Param* p : trainable.params()) EXPECT_FALSE(takes_muon(*p, tiny_options()));
}

TEST(Muon, IsRefusedWhereNoWholeMatrixIsTrained) {
  const Corpus corpus = tiny_corpus();
  for (const Tune tune : {Tune::router, Tune::lora, Tune::lora_router, Tune::lora_norms}) {
    TrainOptions o = muon_options();
    o.tune = tune;
    auto model = fresh(plain_config());
    EXPECT_FAILS(Trainer(*model, o, corpus), "leave optimizer out");
  }
}

// k micro-batches = one batch: of a step of Muon the momentum is the gradient, and the weights
// differ by the rounding of its sums only.
TEST(Muon, AccumulatedMicroBatchesAreOneBatch) {
  const Corpus corpus = tiny_corpus();
  std::vector<std::vector<double>> momentum[2], weights[2];
  for (int split : {0, 1}) {
    TrainOptions o = muon_options();
    o.steps = 1;
    o.warmup = 0;
    o.batch = split ? 1 : 4;
    o.accumulate = split ? 4 : 1;
    auto model = fresh(plain_config());
    Trainer trainer(*model, o, corpus);
    trainer.step();
    const std::vector<Param*>& params = trainer.optimizer().params();
    for (size_t i = 0; i < params.size(); ++i) {
      if (!takes_muon(*params[i], o)) continue;
      momentum[split].push_back(values(trainer.optimizer().m(i)));
      weights[split].push_back(values(params[i]->value));
    }
  }
  ASSERT_GT(momentum[0].size(), 5u);
  for (size_t i = 0; i < momentum[0].size(); ++i) {
    EXPECT_GT(norm(momentum[0][i]), 0);
    EXPECT_LE(relative_error(momentum[1][i], momentum[0][i]), 1e-6) << i;
    EXPECT_LE(relative_error(weights[1][i], weights[0][i]), 1e-5) << i;
  }
}

TEST(Muon, LossFalls) {
  const Corpus corpus = tiny_corpus();
  for (DType dtype : {DType::f32, DType::bf16}) {
    TrainOptions o = muon_options();
    o.dtype = dtype;
    o.steps = 60;
    auto model = fresh(noisy_config());
    Trainer trainer(*model, o, corpus);
    const double first = trainer.step().ce;
    for (int i = 1; i < 59; ++i) trainer.step();
    EXPECT_NEAR(first, std::log(256.0), 0.1);
    EXPECT_LT(trainer.step().ce, 2.5) << name_of(dtype);
  }
}

// Processes have shares of the momentum that cut through matrices and banks, and all of them the
// same weights.
TEST(Muon, ProcessesTrainAsOne) {
  const Corpus corpus = tiny_corpus();
  TrainOptions o = muon_options();
  o.batch = 1;
  o.accumulate = 4;
  o.threads = 1;
  auto alone = fresh(plain_config());
  Trainer trainer(*alone, o, corpus);
  for (int i = 0; i < 2; ++i) trainer.step();
  for (const auto& [size, spread] : {std::pair<int, int>{2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
    SCOPED_TRACE(fmt::format("{} processes, experts over {}", size, spread));
    std::vector<std::unique_ptr<Model>> models(static_cast<size_t>(size));
    run_processes(size, [&, spread = spread](const comm::Group& group) {
      const comm::Layout layout(group, spread);
      auto model = fresh(plain_config(), 7, layout.experts());
      Trainer shared(*model, o, corpus, nullptr, layout);
      for (int i = 0; i < 2; ++i) shared.step();
      for (size_t i = 0; i < model->params().size(); ++i) {
        const Param &got = *model->params()[i], &want = *alone->params()[i];
        const int64_t one = got.value.numel() / got.value.shape[0], first = got.share.first * one;
        std::vector<double> here = values(want.value);
        here = {here.begin() + first, here.begin() + first + got.value.numel()};
        EXPECT_LE(relative_error(values(got.value), here), 1e-4) << got.name;
      }
      models[static_cast<size_t>(group.rank)] = std::move(model);
    });
    for (int p = spread; p < size; ++p)
      EXPECT_TRUE(
          same_weights(*models[static_cast<size_t>(p)], *models[static_cast<size_t>(p % spread)]));
  }
}

// One moment in memory in place of two, and the scratch of the products.
TEST(Muon, ItsMemoryIsEstimated) {
  ModelConfig c = plain_config();
  c.width = 96;
  c.expert_width = c.dense_width = 160;
  TrainOptions o = muon_options();
  auto model = fresh(c);
  const Trainable trainable(*model, o);
  const Optimizer optimizer(trainable.params(), o);
  int64_t moments = 0;
  for (size_t i = 0; i < trainable.params().size(); ++i)
    moments += optimizer.m(i).bytes() + (optimizer.keeps_squares(i) ? optimizer.v(i).bytes() : 0);
  const Model shapes(c, Storage::bound);
  EXPECT_EQ(trained_bytes(shapes, resolved(o)).moments, moments);
  EXPECT_LT(moments, trained_bytes(shapes, resolved(tiny_options())).moments);
  for (DType dtype : {DType::f32, DType::bf16}) {
    moe::Run run(1, dtype);
    std::vector<Tensor> all;
    for (Param* p : trainable.params()) {
      if (!takes_muon(*p, o)) continue;
      ops::settle_grad(run, *p);
      all.push_back(p->grad);
    }
    const std::span<const Tensor> grads(all);
    const int64_t estimated = ops::newton_schulz_bytes(grads, dtype, 1);
    orthogonalise(run, grads);
    const size_t taken = run.scratch.peak() + run.thread_scratch[0].peak();
    const double ratio = static_cast<double>(taken) / static_cast<double>(estimated);
    EXPECT_GT(ratio, 0.9) << name_of(dtype);
    EXPECT_LT(ratio, 1.6) << name_of(dtype) << ": products take some themselves";
    o.dtype = dtype;
    EXPECT_GE(training_memory(c, {.batch = 1, .context = 1, .dtype = dtype}, o.optimizer).scratch,
              estimated);
  }
}

}  // namespace
}  // namespace moe::muon_test
