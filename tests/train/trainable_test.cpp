// What of a model is trained: routers alone, adapters, or everything; and that an adapter's
// gradient is the derivative of the loss along its numbers.
#include "train/trainable.h"

#include <algorithm>

#include "support/files.h"
#include "support/model_check.h"
#include "support/param_named.h"
#include "support/tiny_model.h"

namespace moe {
namespace {

using namespace test;

TrainOptions tuned(Tune tune, int64_t rank = 3) {
  TrainOptions o = tiny_options();
  o.tune = tune;
  o.lora_rank = rank;
  o.lora_alpha = 6;
  o.weight_decay = 0;
  return o;
}

// Routers with everything they can have: a bias, a scale, and a selection bias that follows the
// load.
ModelConfig carved_config() {
  ModelConfig c = plain_config();
  c.routing = default_options(find_recipe("carved"), 6, 2, 2);
  c.routing.coef = {};
  c.shared_experts = 1;
  c.shared_width = 16;
  return c;
}

std::map<std::string, std::vector<double>> numbers_of(const Model& model) {
  std::map<std::string, std::vector<double>> out;
  for (const Param* p : model.params()) out[p->name] = values(p->value);
  return out;
}

TEST(Trainable, OnlyRoutersMoveAndNothingElseHasAGradient) {
  auto model = fresh(carved_config());
  const auto before = numbers_of(*model);
  const Corpus corpus = tiny_corpus();
  Trainer trainer(*model, tuned(Tune::router), corpus);
  for (int i = 0; i < 3; ++i) EXPECT_GT(trainer.step().grad_norm, 0);
  for (const Param* p : model->params()) {
    const bool router = p->name.find(".ffn.router.") != std::string::npos;
    EXPECT_EQ(!p->grad.empty(), router && p->is_trained()) << p->name;
    EXPECT_EQ(values(p->value) != before.at(p->name), router) << p->name;
  }
}

// The gradient of a router is the same whether or not others have one, to the bit.
TEST(Trainable, AFrozenNeighbourChangesNoGradient) {
  const Corpus corpus = tiny_corpus();
  auto all = fresh(carved_config()), routers = fresh(carved_config());
  TrainOptions options = tuned(Tune::router);
  options.clip = 0;
  Trainer some(*routers, options, corpus);
  options.tune = Tune::all;
  Trainer everything(*all, options, corpus);
  some.step();
  everything.step();
  for (const char* name : {"layers.0.ffn.router.weight", "layers.1.ffn.router.logit_bias",
                           "layers.1.ffn.router.scale"})
    EXPECT_TRUE(same_bits(param_named(*all, name)->value, param_named(*routers, name)->value))
        << name;
}

TEST(Trainable, AModelWithoutRoutersCannotTrainThem) {
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("dense"), 0, 0, 0);
  auto model = fresh(config);
  EXPECT_FAILS(Trainable(*model, tuned(Tune::router)), "tune router: this model has no routers");
}

// The first step of adapters sees the model it starts from, to the bit; later the adapted matrices
// are W0 + s B A and nothing else has moved.
TEST(Trainable, AdaptersStartAtNothingAndMoveOnlyTheirMatrices) {
  const Corpus corpus = tiny_corpus();
  for (int64_t rank : {1, 3, 8}) {
    auto model = fresh(carved_config()), plain = fresh(carved_config());
    const auto before = numbers_of(*model);
    const TrainOptions options = tuned(Tune::lora, rank);
    Trainer trainer(*model, options, corpus), other(*plain, tiny_options(), corpus);
    EXPECT_TRUE(same_weights(*model, *plain));
    EXPECT_EQ(trainer.step().ce, other.step().ce);
    trainer.step();
    size_t adapted = 0;
    for (const auto& adapter : trainer.trainable().adapters()) {
      const std::string& name = adapter->base->name;
      const auto w0 = before.at(name), a = values(adapter->a.value), b = values(adapter->b.value),
                 w = values(adapter->base->value);
      EXPECT_EQ(values(adapter->frozen), w0) << name;
      const size_t cols = static_cast<size_t>(adapter->base->value.cols()),
                   r = static_cast<size_t>(rank);
      const size_t per = adapter->base->value.rank == 3
                             ? static_cast<size_t>(adapter->base->value.shape[1])
                             : w.size() / cols;
      std::vector<double> want = w0;
      for (size_t i = 0; i < want.size(); ++i)
        for (size_t k = 0; k < r; ++k)
          want[i] += 6.0 / static_cast<double>(rank) * b[i / cols * r + k] *
                     a[(i / cols / per * r + k) * cols + i % cols];
      expect_near(w, want, 1e-6, name);
      EXPECT_NE(w, w0) << name;
      ++adapted;
    }
    EXPECT_EQ(adapted, 2u * (4 + 3 + 3));
    for (const Param* p : model->params()) {
      const bool is_adapted =
          p->is_matrix() && (p->name.find(".attn.") != std::string::npos ||
                             p->name.find(".ffn.experts.") != std::string::npos ||
                             p->name.find(".ffn.shared.") != std::string::npos);
      EXPECT_EQ(values(p->value) != before.at(p->name), is_adapted || !p->is_trained()) << p->name;
    }
  }
}

// dL/dA and dL/dB against the twin of the whole model: moving A[k,i] moves W[o,i] by s B[o,k] for
// every o, moving B[o,k] moves W[o,i] by s A[k,i].
TEST(Trainable, TheGradientOfAnAdapterIsThatOfTheTwin) {
  Case item{.name = "adapters", .config = small()};
  item.config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
  weigh_losses(item.config.routing);
  item.config.shared_experts = 1;
  item.config.shared_width = 3;
  const RoutingSpec spec = spec_of(item);
  Model model(item.config);
  ASSERT_NE(draw_model(model, item, spec), 0u);
  TrainOptions options = tuned(Tune::lora, 2);
  moe::Run run(2);
  Trainable trainable(model, options);
  // B is drawn too, small enough that the decisions stay as wide as they were drawn.
  for (const auto& adapter : trainable.adapters()) {
    for (int64_t i = 0; i < adapter->b.value.numel(); ++i)
      adapter->b.value.as<float>()[i] =
          1e-3f * normal(RngKey::from_seed(3), static_cast<uint64_t>(i));
    adapter->b.touched();
  }
  trainable.apply(run);
  const TwinInput in = input(item, 5);
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time over what the first one left
    trainable.zero_grads();
    train_on(model, run, in, spec);
    trainable.gather_grads(run);
  }
  const double s = trainable.scale();
  const auto drawn = twin_params<double>(model);
  ASSERT_GT((TwinModel<double>(item.config, spec, drawn)
                 .run(in, item.config.routing.coef)
                 .smallest_margin),
            1e-4);
  auto params = twin_params<Jet<16>>(model);
  TwinModel<Jet<16>> twin(item.config, spec, params);
  for (const auto& adapter : trainable.adapters()) {
    auto& w = params.at(adapter->base->name);
    const Tensor a = adapter->a.value, b = adapter->b.value;
    const int64_t cols = a.cols(), rank = b.cols(), experts = a.rank == 3 ? a.shape[0] : 1,
                  out = b.rows() / experts;
    // Entry j of A, or of B behind it, as the direction `lane`.
    const auto aim = [&](int64_t j, size_t lane, double unit) {
      if (j < a.numel()) {
        const int64_t e = j / (rank * cols), k = j / cols % rank, i = j % cols;
        for (int64_t o = 0; o < out; ++o)
          w[static_cast<size_t>((e * out + o) * cols + i)].d[lane] =
              unit * s * static_cast<double>(b.as<float>()[(e * out + o) * rank + k]);
      } else {
        const int64_t at = j - a.numel(), row = at / rank, k = at % rank, e = row / out;
        for (int64_t i = 0; i < cols; ++i)
          w[static_cast<size_t>(row * cols + i)].d[lane] =
              unit * s * static_cast<double>(a.as<float>()[(e * rank + k) * cols + i]);
      }
    };
    std::vector<double> want;
    const int64_t all = a.numel() + b.numel();
    for (int64_t begin = 0; begin < all; begin += 16) {
      const int64_t count = std::min<int64_t>(16, all - begin);
      for (int64_t i = 0; i < count; ++i) aim(begin + i, static_cast<size_t>(i), 1);
      const Jet<16> loss = twin.run(in, item.config.routing.coef).loss;
      for (int64_t i = 0; i < count; ++i) {
        want.push_back(loss.d[static_cast<size_t>(i)]);
        aim(begin + i, static_cast<size_t>(i), 0);
      }
    }
    const auto middle = want.begin() + a.numel();
    expect_near(adapter->a.grad, {want.begin(), middle}, kTwinF32,
                "gradient of " + adapter->a.name);
    expect_near(adapter->b.grad, {middle, want.end()}, kTwinF32, "gradient of " + adapter->b.name);
  }
}

TEST(Trainable, PartsAddUpToTheModel) {
  auto model = fresh(carved_config());
  int64_t numbers = 0;
  for (const Param* p : model->params()) numbers += p->is_trained() ? p->value.numel() : 0;
  for (Tune tune : {Tune::all, Tune::router, Tune::lora, Tune::lora_router}) {
    int64_t total = 0, trained = 0, moved = 0;
    for (const TrainedPart& part : trained_parts(*model, tuned(tune))) {
      total += part.total;
      trained += part.trained;
      if (part.name == "router") EXPECT_EQ(part.trained, tune == Tune::lora ? 0 : part.total);
      if (part.name == "norms" || part.name == "embedding")
        EXPECT_EQ(part.trained, tune == Tune::all ? part.total : 0);
    }
    auto again = fresh(carved_config());
    const Trainable trainable(*again, tuned(tune));
    for (const Param* p : trainable.params()) moved += p->value.numel();
    EXPECT_EQ(total, numbers);
    EXPECT_EQ(trained, moved) << name_of(tune);
  }
}

}  // namespace
}  // namespace moe
