// Learning from another model's predictions: the gradient of (1 - w) ce + w KL(teacher || student)
// against the scalar twins of both models.
#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/model_check.h"
#include "support/tiny_model.h"
#include "train/metrics.h"

namespace moe::teacher_test {
namespace {

using namespace test;

TrainOptions taught(double weight) {
  TrainOptions o = tiny_options();
  o.teacher_weight = weight;
  return o;
}

TEST(Teacher, TheGradientIsThatOfTheTwins) {
  Case item{.name = "taught", .config = small()};
  item.config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
  item.config.routing.coef = {};
  ModelConfig other = small();  // another shape, the same vocabulary
  other.width = 12;
  other.layers = 1;
  other.head_width = 6;
  other.routing = default_options(find_recipe("dense"), 0, 0, 0);
  const RoutingSpec spec = spec_of(item);
  constexpr float kShare = 0.3f;
  Model model(item.config), teacher(other);
  ASSERT_NE(draw_model(model, item, spec), 0u);
  draw_params(teacher, 9);
  TwinInput in = input(item, 5);
  in.targets[2] = in.targets[8] = ops::kIgnoreTarget;
  const double predicted = static_cast<double>(in.targets.size() - 2);

  moe::Run run(2);
  model.enable_grads();
  const Batch batch{in.ids, in.positions, in.bounds};
  const auto tokens = static_cast<int64_t>(in.ids.size());
  ModelSaved taught_by, saved;
  const Tensor nll = run.saved.alloc(DType::f32, {tokens}),
               kl = run.saved.alloc(DType::f32, {tokens});
  teacher.forward(run, {.batch = batch}, taught_by);
  model.forward(run, {.batch = batch, .routing = &spec, .keep = Keep::all}, saved);
  model.loss_forward(run, nll, kl, in.targets, {taught_by.hidden, teacher.lm_head(), kShare},
                     saved);
  model.backward(run, in.targets, static_cast<float>(1 / predicted), {}, saved);

  const auto teacher_params = twin_params<double>(teacher);
  const Matrix<double> p = TwinModel<double>(other, {}, teacher_params).run(in, {}).logits;
  const auto loss_of = [&](const auto& out) {
    auto loss = decltype(out.loss)(1 - static_cast<double>(kShare)) * out.loss;
    for (size_t n = 0; n < p.size(); ++n) {
      if (in.targets[n] < 0) continue;
      const double of_teacher = twin::lse(p[n]);
      const auto of_student = twin::lse(out.logits[n]);
      for (size_t v = 0; v < p[n].size(); ++v)
        loss += decltype(out.loss)(static_cast<double>(kShare) / predicted *
                                   std::exp(p[n][v] - of_teacher)) *
                (decltype(out.loss)(p[n][v] - of_teacher) - (out.logits[n][v] - of_student));
    }
    return loss;
  };
  double got = 0;
  for (int64_t n = 0; n < tokens; ++n)
    got += ((1 - static_cast<double>(kShare)) * values(nll)[static_cast<size_t>(n)] +
            static_cast<double>(kShare) * values(kl)[static_cast<size_t>(n)]) /
           predicted;
  const auto drawn = twin_params<double>(model);
  EXPECT_NEAR(got, loss_of(TwinModel<double>(item.config, spec, drawn).run(in, {})),
              kTwinF32 * got);

  const auto want = twin_gradients(model, spec, in, {}, loss_of);
  for (const Param* param : model.params())
    expect_near(param->grad, want.at(param->name), kTwinF32, "gradient of " + param->name);
}

// The head's logits are made in chunks; with a vocabulary that leaves few rows to a chunk nothing
// may change.
TEST(Teacher, ChunksOfTheHeadChangeNothing) {
  Arena arena;
  moe::Run run(2);
  const int64_t rows = 700, vocab = 30000, width = 8;  // more than is kept, several chunks
  Param head, other;
  head.value = draw(arena, DType::f32, {vocab, width}, 1);
  other.value = draw(arena, DType::f32, {vocab, width}, 2);
  head.grad = arena.alloc_zeroed(DType::f32, {vocab, width});
  const Tensor x = draw(arena, DType::f32, {rows, width}, 3),
               taught_x = draw(arena, DType::f32, {rows, width}, 4);
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < rows; ++n) targets.push_back(static_cast<int32_t>(n * 37 % vocab));
  const auto losses = [&](int64_t begin, int64_t end, Tensor kl, Tensor dx) {
    LmHeadSaved saved;
    const Tensor nll = run.saved.alloc(DType::f32, {end - begin});
    const std::span<const int32_t> some =
        std::span(targets).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    lm_head_loss_forward(run, nll, kl, x.slice_rows(begin, end), {&head}, some,
                         {taught_x.slice_rows(begin, end), {&other}, 0.5f}, saved);
    EXPECT_EQ(saved.logits.empty(), end - begin > 600);
    lm_head_loss_backward(run, dx, {&head}, some, 1, saved);
  };
  const Tensor kl = arena.alloc(DType::f32, {rows}), dx = arena.alloc(DType::f32, {rows, width});
  const Tensor part_kl = arena.alloc(DType::f32, {32}),
               part_dx = arena.alloc(DType::f32, {32, width});
  losses(0, rows, kl, dx);
  losses(320, 352, part_kl, part_dx);
  EXPECT_TRUE(same_bits(part_kl, Tensor(kl.as<float>() + 320, DType::f32, {32})));
  EXPECT_TRUE(same_bits(part_dx, dx.slice_rows(320, 352)));
}

TEST(Teacher, WhoAgreesTeachesNothingAndWhoDoesNotIsFollowed) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config()), same = fresh(plain_config()),
       other = fresh(plain_config(), 8);
  TrainOptions options = taught(1);
  Trainer agreeing(*model, options, corpus, same.get());
  const StepResult first = agreeing.step();
  ASSERT_TRUE(first.kl.has_value());
  EXPECT_EQ(*first.kl, 0);
  EXPECT_LT(first.grad_norm, 1e-5);
  auto student = fresh(plain_config());
  options.steps = 30;
  options.lr = 1e-2;
  Trainer following(*student, options, corpus, other.get());
  const double before = *following.step().kl;
  double after = 0;
  for (int i = 1; i < 30; ++i) after = *following.step().kl;
  EXPECT_GT(before, 1e-3);
  EXPECT_LT(after, 0.7 * before);
}

TEST(Teacher, ItsDivergenceStandsInTheMetrics) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config()), teacher = fresh(plain_config(), 8);
  Trainer with(*model, taught(0.5), corpus, teacher.get());
  const StepResult r = with.step();
  EXPECT_DOUBLE_EQ(Json::parse(metrics_line(r, {})).at("kl").get<double>(), *r.kl);
  auto alone = fresh(plain_config());
  Trainer without(*alone, taught(0.5), corpus);
  const StepResult own = without.step();
  EXPECT_FALSE(Json::parse(metrics_line(own, {})).contains("kl"));
  EXPECT_EQ(own.ce, r.ce) << "ce is the model's own, whoever teaches";
}

TEST(Teacher, AnotherVocabularyIsRefused) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config());
  ModelConfig config = plain_config();
  config.vocab = 300;
  auto teacher = fresh(config);
  EXPECT_FAILS(Trainer(*model, taught(0.5), corpus, teacher.get()),
               "the teacher's vocabulary is 300, the model's 256");
}

}  // namespace
}  // namespace moe::teacher_test
