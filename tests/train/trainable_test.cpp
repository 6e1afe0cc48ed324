// What of a model is trained: routers alone, adapters, or everything; and that an adapter's
// gradient is the derivative of the loss along its numbers.
#include "train/trainable.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "support/files.h"
#include "support/model_check.h"
#include "support/param_named.h"
#include "support/tiny_model.h"
#include "tensor/quant.h"
#include "tensor/quant_grid.h"
#include "tensor/quant_ternary.h"

namespace moe::trainable_test {
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

// params[W] += s B A, whatever W0 is.
template <class T>
void add_terms(std::map<std::string, std::vector<T>>& params, const Trainable& trainable) {
  for (const auto& adapter : trainable.adapters()) {
    auto& w = params.at(adapter->base->name);
    const Tensor a = adapter->a.value, b = adapter->b.value;
    const int64_t cols = a.cols(), rank = b.cols(), experts = a.rank == 3 ? a.shape[0] : 1,
                  out = b.rows() / experts;
    for (int64_t row = 0; row < b.rows(); ++row)
      for (int64_t i = 0; i < cols; ++i)
        for (int64_t k = 0; k < rank; ++k)
          w[static_cast<size_t>(row * cols + i)] +=
              T(static_cast<double>(adapter->term.scale) *
                static_cast<double>(b.as<float>()[row * rank + k]) *
                static_cast<double>(a.as<float>()[(row / out * rank + k) * cols + i]));
  }
}

// The first step of adapters sees the model it starts from; nothing of the model moves, its
// routers' biases neither, and the model with its adapters is the one that has them merged into its
// matrices.
TEST(Trainable, AdaptersStartAtNothingAndMoveNoMatrix) {
  const Corpus corpus = tiny_corpus();
  for (int64_t rank : {1, 3, 8, 40}) {
    auto model = fresh(carved_config()), plain = fresh(carved_config());
    const auto before = numbers_of(*model);
    const TrainOptions options = tuned(Tune::lora, rank);
    std::optional<Trainer> trainer(std::in_place, *model, options, corpus);
    Trainer other(*plain, tiny_options(), corpus);
    EXPECT_TRUE(same_weights(*model, *plain));
    EXPECT_EQ(trainer->step().ce, other.step().ce);
    trainer->step();
    EXPECT_EQ(trainer->trainable().adapters().size(), 2u * (4 + 3 + 3));
    std::set<std::string> adapted;
    for (const auto& adapter : trainer->trainable().adapters()) {
      adapted.insert(adapter->base->name);
      EXPECT_EQ(adapter->base->term, &adapter->term) << adapter->base->name;
      EXPECT_TRUE(adapter->base->grad.empty()) << adapter->base->name;
      EXPECT_GT(norm(values(adapter->b.value)), 0) << adapter->base->name;
    }
    for (const Param* p : model->params())
      EXPECT_EQ(values(p->value), before.at(p->name)) << p->name;

    const double hung = trainer->evaluate(corpus);
    auto wanted = numbers_of(*model);
    add_terms(wanted, trainer->trainable());
    trainer->leave_adapters();
    merge_terms(*model, 2);
    for (const Param* p : model->params()) {
      EXPECT_EQ(p->term, nullptr);
      if (adapted.contains(p->name)) expect_near(p->value, wanted.at(p->name), 1e-6, p->name);
      else EXPECT_EQ(values(p->value), wanted.at(p->name)) << p->name;
    }
    EXPECT_NEAR(Trainer(*model, tiny_options(), corpus).evaluate(corpus), hung, 1e-5 * hung);
  }
}

// Adapters are the trainer's until it leaves them: afterwards the model is what it was.
TEST(Trainable, AdaptersGoWithTheTrainer) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(carved_config());
  {
    Trainer trainer(*model, tuned(Tune::lora), corpus);
    trainer.step();
    EXPECT_FAILS(Trainable(*model, tuned(Tune::lora)), "has an adapter already");
  }
  for (const Param* p : model->params()) EXPECT_EQ(p->term, nullptr) << p->name;
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
  const TwinInput in = input(item, 5);
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time over what the first one left
    trainable.zero_grads();
    train_on(model, run, in, spec);
  }
  const double s = 6.0 / 2;
  auto drawn = twin_params<double>(model);
  add_terms(drawn, trainable);
  ASSERT_GT((TwinModel<double>(item.config, spec, drawn)
                 .run(in, item.config.routing.coef)
                 .smallest_margin),
            1e-4);
  auto params = twin_params<Jet<16>>(model);
  add_terms(params, trainable);
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

TrainOptions with_tokens(TrainOptions o, std::vector<int64_t> ids) {
  for (const int64_t id : ids) o.tune_tokens.push_back(std::to_string(id));
  o.token_ids = std::move(ids);
  return o;
}

// The gradient of the rows of tokens against the twin, whose embedding and head have them in their
// places: of a tied head they get both.
TEST(Trainable, TheGradientOfTokenRowsIsThatOfTheTwin) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    Case item{.name = "tokens", .config = small()};
    item.config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
    item.config.tied = tied;
    weigh_losses(item.config.routing);
    const RoutingSpec spec = spec_of(item);
    Model model(item.config);
    ASSERT_NE(draw_model(model, item, spec), 0u);
    const auto before = numbers_of(model);
    const TwinInput in = input(item, 5);
    moe::Run run(2);
    const int64_t first = std::min(in.ids[0], 7);
    Trainable trainable(model, with_tokens(tuned(Tune::lora, 2), {first, first + 1}));
    ASSERT_EQ(trainable.token_rows().size(), tied ? 1u : 2u);
    auto params = twin_params<Jet<16>>(model);
    for (const auto& made : trainable.token_rows()) {
      float* x = made->rows.value.as<float>();
      auto& table = params.at(made->base->name);
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t id = made->own.ids[static_cast<size_t>(i / 8)];
        auto& of_twin = table[static_cast<size_t>(id * 8 + i % 8)];
        EXPECT_EQ(static_cast<double>(x[i]), of_twin.v) << "they start as they are";
        x[i] += 1e-3f * normal(RngKey::from_seed(3), static_cast<uint64_t>(i));
        of_twin = static_cast<double>(x[i]);
      }
      made->rows.touched();
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second time over what the first one left
      trainable.zero_grads();
      train_on(model, run, in, spec);
    }
    for (const auto& made : trainable.token_rows()) {
      auto& table = params.at(made->base->name);
      const auto aim = [&](double by) {
        for (int64_t i = 0; i < 16; ++i)
          table[static_cast<size_t>(made->own.ids[static_cast<size_t>(i / 8)] * 8 + i % 8)]
              .d[static_cast<size_t>(i)] = by;
      };
      aim(1);
      const auto twin =
          TwinModel<Jet<16>>(item.config, spec, params).run(in, item.config.routing.coef);
      aim(0);
      ASSERT_GT(twin.smallest_margin, 1e-4);
      const std::vector<double> want(std::begin(twin.loss.d), std::end(twin.loss.d));
      ASSERT_GT(norm(want), 0);
      expect_near(made->rows.grad, want, kTwinF32, "gradient of " + made->rows.name);
    }
    for (const Param* p : model.params()) {
      EXPECT_TRUE(p->grad.empty()) << p->name;
      EXPECT_EQ(values(p->value), before.at(p->name)) << p->name;
    }
  }
}

// Only those rows move; merged they are the rows of the embedding and of the head.
TEST(Trainable, TokenRowsAreMergedInTheirPlaces) {
  const Corpus corpus = tiny_corpus();
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    ModelConfig config = carved_config();
    config.tied = tied;
    auto model = fresh(config);
    const auto before = numbers_of(*model);
    std::optional<Trainer> trainer(std::in_place, *model,
                                   with_tokens(tuned(Tune::lora), {'e', 't'}), corpus);
    for (int i = 0; i < 3; ++i) trainer->step();
    EXPECT_FAILS(Trainable(*model, with_tokens(tuned(Tune::lora), {1})), "adapter already");
    const double hung = trainer->evaluate(corpus);
    trainer->leave_adapters();
    merge_terms(*model, 2);
    for (const Param* p : model->params()) {
      if (p->part != Part::embedding && p->part != Part::lm_head) continue;
      EXPECT_EQ(p->own_rows, nullptr);
      for (int64_t id = 0; id < 256; ++id) {
        const auto row = values(p->value.slice_rows(id, id + 1));
        const auto was = before.at(p->name).begin() + id * 32;
        EXPECT_EQ(std::equal(row.begin(), row.end(), was), id != 'e' && id != 't') << id;
      }
    }
    EXPECT_NEAR(Trainer(*model, tiny_options(), corpus).evaluate(corpus), hung, 1e-5 * hung);
  }
}

TEST(Trainable, TokensThatAreNotTheModelsAreRefused) {
  auto model = fresh(carved_config());
  EXPECT_FAILS(Trainable(*model, with_tokens(tuned(Tune::lora), {3, 256})),
               "256 is no token of this model, whose vocabulary has 256");
  TrainOptions options = tuned(Tune::lora);
  options.tune_tokens = {"t"};
  EXPECT_FAILS(Trainable(*model, options), "the tokens were not looked up");
}

// One pair for a layer's experts is what one for each is when all are the same: the same loss, and
// its gradient is the sum of theirs.
TEST(Trainable, ASharedAdapterIsTheSameOneForEachExpert) {
  const Corpus corpus = tiny_corpus();
  for (const Tune tune : {Tune::lora, Tune::experts_hot})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(tune), name_of(dtype)));
      ModelConfig config = plain_config();
      config.routing = default_options(find_recipe("olmoe"), 5, 2, 2);
      auto one = fresh(config), five = fresh(config);
      TrainOptions options = tuned(tune);
      options.dtype = dtype;
      options.clip = 0;
      if (tune == Tune::experts_hot) options.hot = {{0, {1, 4}, 0.5}, {1, {0, 2, 3}, 0.5}};
      Trainer each(*five, options, corpus);
      options.lora_shared = true;
      Trainer shared(*one, options, corpus);
      const auto narrow = shared.trainable().adapters(), wide = each.trainable().adapters();
      ASSERT_EQ(narrow.size(), wide.size());
      for (size_t i = 0; i < narrow.size(); ++i)
        for (const auto half : {&Adapter::a, &Adapter::b}) {
          Param &from = (*narrow[i]).*half, &to = (*wide[i]).*half;
          EXPECT_EQ(from.value.rank, 2);
          for (int64_t j = 0; j < from.value.numel(); ++j)
            from.value.as<float>()[j] =
                0.1f * normal(RngKey::from_seed(i), static_cast<uint64_t>(j));
          for (int64_t j = 0; j < to.value.numel(); ++j)
            to.value.as<float>()[j] = from.value.as<float>()[j % from.value.numel()];
          from.touched();
          to.touched();
        }
      const double want = each.step().ce;
      EXPECT_NEAR(shared.step().ce, want, (dtype == DType::f32 ? 1e-6 : 2e-3) * want);
      for (size_t i = 0; i < narrow.size(); ++i)
        for (const auto half : {&Adapter::a, &Adapter::b}) {
          const Param &from = (*narrow[i]).*half, &to = (*wide[i]).*half;
          std::vector<double> sum(static_cast<size_t>(from.value.numel()));
          const auto all = values(to.grad);
          for (size_t j = 0; j < all.size(); ++j) sum[j % sum.size()] += all[j];
          expect_near(from.grad, sum, dtype == DType::f32 ? kTwinF32 : kTwinBf16, from.name);
        }
    }
}

TEST(Trainable, ADenseModelHasNoExpertsToShareAnAdapter) {
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("dense"), 0, 0, 0);
  auto model = fresh(config);
  TrainOptions options = tuned(Tune::lora);
  options.lora_shared = true;
  EXPECT_FAILS(Trainable(*model, options), "lora_shared is of experts; this model is dense");
}

// A model whose matrices are quantised, with random bytes where a type is only read, and one that
// has their numbers in f32.
struct Pair {
  std::unique_ptr<Model> lean, wide;
};
Pair quantised_pair(const ModelConfig& config, DType dtype) {
  Pair pair{std::make_unique<Model>(config, Storage::bound), fresh(config)};
  for (size_t i = 0; i < pair.wide->params().size(); ++i) {
    Param &lean = *pair.lean->params()[i], &wide = *pair.wide->params()[i];
    const Tensor w = wide.value;
    if (!wide.is_matrix() || wide.part == Part::router) {
      pair.lean->bind(lean, w);
      continue;
    }
    const int64_t bytes = bytes_of(dtype, w.numel());
    auto blocks = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(bytes));
    if (dtype == DType::q3_k || dtype == DType::q2_k || grid_format(dtype) != nullptr ||
        is_ternary(dtype))
      for (size_t k = 0; k < blocks->size(); ++k)  // scales of at most 2^-8
        (*blocks)[k] = static_cast<uint8_t>(uniform_index(RngKey::from_seed(i), k, 256) & 0x1b);
    else quantise(blocks->data(), w.as<float>(), dtype, w.numel());
    dequantise(w.as<float>(), blocks->data(), dtype, w.numel());
    wide.touched();
    pair.lean->keep(blocks);
    pair.lean->bind(lean, w.rank == 3
                              ? Tensor(blocks->data(), dtype, {w.shape[0], w.shape[1], w.shape[2]})
                              : Tensor(blocks->data(), dtype, {w.shape[0], w.shape[1]}));
  }
  return pair;
}

class OverQuantised : public testing::TestWithParam<DType> {};

// What adapters learn over weights in few bits is what they learn over the same numbers in f32.
TEST_P(OverQuantised, AdaptersLearnTheSame) {
  ModelConfig config = plain_config();
  config.width = config.expert_width = 256;
  config.head_width = 128;
  config.layers = 1;
  config.routing = default_options(find_recipe("olmoe"), 3, 2, 1);
  config.routing.coef = {};
  const Corpus corpus = tiny_corpus();
  for (const DType compute : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    const Pair pair = quantised_pair(config, GetParam());
    TrainOptions options = with_tokens(tuned(Tune::lora), {'e', 't'});
    options.dtype = compute;
    options.batch = 1;
    options.steps = 10;
    options.lr = 1e-3;
    Trainer lean(*pair.lean, options, corpus), wide(*pair.wide, options, corpus);
    for (Trainer* trainer : {&lean, &wide})
      for (const auto& adapter : trainer->trainable().adapters()) {
        for (int64_t i = 0; i < adapter->b.value.numel(); ++i)
          adapter->b.value.as<float>()[i] =
              1e-2f * normal(RngKey::from_seed(3), static_cast<uint64_t>(i));
        adapter->b.touched();
      }
    for (int step = 0; step < 10; ++step) {
      const double want = wide.step().ce;
      EXPECT_NEAR(lean.step().ce, want, 1e-3 * want) << step;
      const auto got = lean.trainable().adapters(), wanted = wide.trainable().adapters();
      for (size_t i = 0; step == 0 && i < wanted.size(); ++i)
        for (const auto half : {&Adapter::a, &Adapter::b})
          expect_near(((*got[i]).*half).grad, values(((*wanted[i]).*half).grad),
                      compute == DType::f32 ? kTwinF32 : kTwinBf16, ((*wanted[i]).*half).name);
      for (size_t i = 0; step == 0 && i < 2; ++i)
        expect_near(lean.trainable().token_rows()[i]->rows.grad,
                    values(wide.trainable().token_rows()[i]->rows.grad),
                    compute == DType::f32 ? kTwinF32 : kTwinBf16, "rows of tokens");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OverQuantised,
                         testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0,
                                         DType::q5_1, DType::q4_k, DType::q5_k, DType::q6_k,
                                         DType::mxfp4, DType::iq4_nl, DType::iq4_xs, DType::q3_k,
                                         DType::q2_k, DType::q2_0, DType::iq1_m, DType::iq2_xs,
                                         DType::iq3_xxs, DType::tq1_0),
                         [](const auto& item) { return std::string(name_of(item.param)); });

TEST(Trainable, PartsAddUpToTheModel) {
  auto model = fresh(carved_config());
  int64_t numbers = 0;
  for (const Param* p : model->params()) numbers += p->is_trained() ? p->value.numel() : 0;
  for (Tune tune : {Tune::all, Tune::router, Tune::lora, Tune::lora_router, Tune::lora_norms,
                    Tune::lora_router_norms, Tune::experts_hot}) {
    const bool tokens = tunes_adapters(tune);
    int64_t total = 0, trained = 0, moved = 0;
    TrainOptions options = tuned(tune);
    if (tokens) options = with_tokens(options, {3, 5, 8});
    if (tune == Tune::experts_hot) options.hot = {{0, {1, 4}, 0.5}, {1, {0, 2, 3}, 0.5}};
    for (const TrainedPart& part : trained_parts(*model, options)) {
      total += part.total;
      trained += part.trained;
      const std::string name(name_of(tune));
      const auto names = [&](const char* what) { return name.find(what) != std::string::npos; };
      if (part.name == "router")
        EXPECT_EQ(part.trained, tune == Tune::all || names("router") ? part.total : 0);
      if (part.name == "norms")
        EXPECT_EQ(part.trained, tune == Tune::all || names("norms") ? part.total : 0);
      if (part.name == "attention" && tune == Tune::experts_hot) EXPECT_EQ(part.trained, 0);
      if (part.name == "embedding")
        EXPECT_EQ(part.trained, tune == Tune::all ? part.total : tokens ? 3 * 32 : 0);
    }
    auto again = fresh(carved_config());
    const Trainable trainable(*again, options);
    for (const Param* p : trainable.params()) moved += p->value.numel();
    EXPECT_EQ(total, numbers);
    EXPECT_EQ(trained, moved) << name_of(tune);
  }
}

}  // namespace
}  // namespace moe::trainable_test
