// Recorded choices in a whole model: a model's own record changes no bit, another's gives what the
// scalar twin gives with those choices, loss and gradients; recomputation, pieces and neighbours
// change nothing; what does not fit is refused by layer and token.
#include "support/files.h"
#include "support/model_check.h"
#include "support/records.h"
#include "support/routings.h"

namespace moe::test::replay_test {
namespace {

constexpr int64_t kExperts = 8;

ModelConfig config_of(const RoutingOptions& routing) {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 32;
  c.heads = c.kv_heads = 2;
  c.head_width = 16;
  c.context = 200;
  c.expert_width = 24;
  c.routing = routing;
  return c;
}

// Tight where the recipe has a capacity, so that evaluation as trained drops pairs.
std::vector<RoutingOptions> routings() {
  std::vector<RoutingOptions> all = small_routings(kExperts, 2);
  for (RoutingOptions& o : all)
    if (const Recipe recipe = resolved_recipe(o);
        std::holds_alternative<BufferCapacity>(recipe.train.capacity)) {
      o.capacity_factor = 0.4f;
      if (std::holds_alternative<BufferCapacity>(recipe.eval_as_trained))
        o.capacity_factor_eval = 0.4f;
    }
  return all;
}

TwinInput text(const ModelConfig& c, std::vector<int64_t> bounds, uint64_t seed) {
  TwinInput in;
  in.bounds = std::move(bounds);
  for (size_t s = 0; s + 1 < in.bounds.size(); ++s)
    for (int64_t i = in.bounds[s]; i < in.bounds[s + 1]; ++i) {
      const RngKey key = RngKey::from_seed(seed);
      in.ids.push_back(static_cast<int32_t>(
          uniform_index(key, static_cast<uint64_t>(i), static_cast<uint64_t>(c.vocab))));
      in.targets.push_back(static_cast<int32_t>(
          uniform_index(key.fold(1), static_cast<uint64_t>(i), static_cast<uint64_t>(c.vocab))));
      in.positions.push_back(static_cast<int32_t>(i - in.bounds[s]));
    }
  return in;
}

// One forward with its losses, and backward where the model has gradients.
struct Outcome {
  std::vector<double> nll;  // [N]
  std::vector<LayerRouting> routing;
  Record record;
  std::vector<std::vector<double>> gradients;  // of every trained parameter
};
Outcome outcome(Model& model, const TwinInput& in, const RoutingSpec& spec, Keep keep, DType dtype,
                Record* given, bool backward) {
  Outcome out;
  moe::Run run(2, dtype);
  std::vector<Tensor> recorded;
  if (given) recorded = given->all();
  const auto listen = out.record.listener();
  ModelSaved saved;
  model.forward(run,
                {.batch = {in.ids, in.positions, in.bounds},
                 .routing = &spec,
                 .keep = keep,
                 .key = in.key,
                 .recorded = given ? &recorded : nullptr,
                 .wanted = Wanted::all(),
                 .on_routing = &listen},
                saved);
  Tensor nll = run.saved.alloc(DType::f32, {std::ssize(in.ids)});
  model.loss_forward(run, nll, in.targets, saved);
  out.nll = values(nll);
  out.routing = saved.routing;
  if (!backward) return out;
  zero_grads(model);
  model.backward(run, in.targets, 0.01f, model.config().routing.coef, saved);
  for (const Param* p : model.params())
    if (!p->grad.empty()) out.gradients.push_back(values(p->grad));
  return out;
}

void expect_own_choices(const Outcome& replayed, const Outcome& first, const std::string& name) {
  EXPECT_EQ(replayed.nll, first.nll) << name;
  EXPECT_EQ(replayed.record.entries, first.record.entries) << name;
  EXPECT_EQ(replayed.record.own, first.record.chosen()) << name;
  int64_t agreed = 0;
  for (const auto& layer : replayed.record.agreed)
    for (const int32_t n : layer) agreed += n;
  EXPECT_EQ(agreed, first.record.chosen()) << name;
}

TEST(Replay, AModelsOwnRecordChangesNoBitOfItsEvaluation) {
  int dropping = 0, leaving_out = 0;
  for (const RoutingOptions& options : routings())
    for (const EvalRouting routing :
         {EvalRouting::dropless, EvalRouting::as_trained, EvalRouting::threshold})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        RoutingSpec spec;
        try {
          spec = eval_spec(options, routing);
        } catch (const Error&) {
          continue;  // this recipe is not evaluated so
        }
        const ModelConfig config = config_of(options);
        Model model(config);
        draw_params(model, 5);
        const TwinInput in = text(config, {0, 40, 41, 60}, 3);
        Outcome first = outcome(model, in, spec, Keep::nothing, dtype, nullptr, false);
        dropping += first.record.not_sent() > 0;
        leaving_out += first.record.chosen() < 60 * 2 * spec.slots();
        expect_own_choices(
            outcome(model, in, spec, Keep::nothing, dtype, &first.record, false), first,
            fmt::format("{} {} {}", options.recipe, static_cast<int>(routing), name_of(dtype)));
      }
  EXPECT_GE(dropping, 8);
  EXPECT_GE(leaving_out, 4);
}

// With noise, second choices sent at random, and drops: losses and gradients too, whether blocks
// are kept or run again.
TEST(Replay, AModelsOwnRecordChangesNoBitOfItsTraining) {
  for (const RoutingOptions& options : routings()) {
    ModelConfig config = config_of(options);
    weigh_losses(config.routing);
    const RoutingSpec spec = train_spec(config.routing);
    Model model(config);
    model.enable_grads();
    draw_params(model, 6);
    TwinInput in = text(config, {0, 40, 41, 60}, 4);
    in.key = RngKey::from_seed(9);
    Outcome first = outcome(model, in, spec, Keep::all, DType::f32, nullptr, true);
    for (const Keep keep : {Keep::all, Keep::inputs}) {
      const Outcome again = outcome(model, in, spec, keep, DType::f32, &first.record, true);
      expect_own_choices(again, first, options.recipe);
      EXPECT_EQ(again.gradients, first.gradients) << options.recipe;
      for (size_t i = 0; i < first.routing.size(); ++i) {
        EXPECT_EQ(numbers(again.routing[i].losses), numbers(first.routing[i].losses))
            << options.recipe;
        EXPECT_EQ(again.routing[i].balance_counts, first.routing[i].balance_counts)
            << options.recipe;
        EXPECT_EQ(again.routing[i].cutoff, first.routing[i].cutoff) << options.recipe;
        // Pairs that a policy did not send count as chosen here, for the record does not say why
        // they were not sent.
        if (std::holds_alternative<KeepSecond>(spec.second)) {
          EXPECT_EQ(again.routing[i].counts, first.routing[i].counts) << options.recipe;
          EXPECT_EQ(again.routing[i].dropped, first.routing[i].dropped) << options.recipe;
        }
      }
    }
  }
}

// Choices that no router made. Renormalised weights and the losses of every recipe, with tokens
// that have one expert, none, or some that were not sent.
TEST(Replay, LossAndEveryGradientWithGivenChoicesMatchTheTwin) {
  for (const RoutingOptions& options : small_routings(4, 2)) {
    Case item{
        .name = options.recipe + ", replaying", .config = small(), .drops = true, .replayed = true};
    item.config.routing = options;
    weigh_losses(item.config.routing);
    const RoutingSpec spec = spec_of(item);
    item.random = std::holds_alternative<LearnedNoise>(spec.noise) ||
                  std::holds_alternative<RandomSecond>(spec.second);
    expect_gradients(item);
  }
}

TEST(Replay, RecomputingGivesTheSameBitsAsKeepingWithGivenChoices) {
  for (const RoutingOptions& options : small_routings(4, 2)) {
    Case item{.name = options.recipe, .config = small(), .random = true, .replayed = true};
    item.config.routing = options;
    weigh_losses(item.config.routing);
    const RoutingSpec spec = spec_of(item);
    const TwinInput in = input(item, 3);
    Model model(item.config);
    model.enable_grads();
    draw_params(model, 3);
    moe::Run run(2);
    std::vector<std::vector<double>> gradients[2];
    for (const Keep keep : {Keep::all, Keep::inputs}) {
      train_once(model, run, in, spec, keep);
      for (const Param* p : model.params())
        if (!p->grad.empty()) gradients[keep == Keep::inputs].push_back(values(p->grad));
    }
    EXPECT_EQ(gradients[0], gradients[1]) << item.name;
  }
}

// Once the choices are given, a token's row depends on itself alone even where a capacity or the
// experts' own choice tied it to others; only a softmax over an expert's tokens still does.
TEST(Replay, PiecesAndNeighboursChangeNoBit) {
  if (!ops::products_keep_row_bits(DType::f32))
    GTEST_SKIP() << "products here keep a row to 1e-5 only";
  for (const RoutingOptions& options : routings()) {
    const ModelConfig config = config_of(options);
    const RoutingSpec spec = eval_spec(options, EvalRouting::as_trained);
    Model model(config);
    draw_params(model, 7);
    const TwinInput in = text(config, {0, 70, 71, 100}, 5);
    Outcome whole = outcome(model, in, spec, Keep::nothing, DType::f32, nullptr, false);
    bool same = true;
    for (const int64_t piece : {1, 7, 64})
      for (size_t s = 0; s + 1 < in.bounds.size(); ++s) {
        const int64_t begin = in.bounds[s], end = in.bounds[s + 1];
        KvCache cache(config, DType::f32, end - begin);
        const std::vector<int32_t> slots = {cache.open()};
        cache.extend(slots[0], end - begin);
        for (int64_t at = begin; at < end; at += piece) {
          const int64_t stop = std::min(end, at + piece);
          const auto part = [&](const std::vector<int32_t>& v) {
            return std::span(v).subspan(static_cast<size_t>(at), static_cast<size_t>(stop - at));
          };
          const std::vector<int64_t> bounds = {0, stop - at};
          const Batch batch{part(in.ids), part(in.positions), bounds, slots};
          const std::vector<Tensor> recorded = whole.record.rows(at, stop);
          moe::Run run(2);
          ModelSaved saved;
          model.forward(run,
                        {.batch = batch, .routing = &spec, .cache = &cache, .recorded = &recorded},
                        saved);
          Tensor nll = run.saved.alloc(DType::f32, {stop - at});
          model.loss_forward(run, nll, part(in.targets), saved);
          same &=
              values(nll) == std::vector<double>(whole.nll.begin() + at, whole.nll.begin() + stop);
        }
      }
    EXPECT_EQ(same, !std::holds_alternative<TokenSoftmax>(spec.weigh)) << options.recipe;
  }
}

TEST(Replay, AnothersChoicesChangeTheResultAndAreCounted) {
  const RoutingOptions options = small_routing("olmoe", kExperts, 2);
  const ModelConfig config = config_of(options);
  const RoutingSpec spec = eval_spec(options);
  Model a(config), b(config);
  draw_params(a, 1);
  draw_params(b, 2);
  const TwinInput in = text(config, {0, 100}, 6);
  Outcome of_a = outcome(a, in, spec, Keep::nothing, DType::f32, nullptr, false),
          of_b = outcome(b, in, spec, Keep::nothing, DType::f32, nullptr, false);
  const Outcome replayed = outcome(b, in, spec, Keep::nothing, DType::f32, &of_a.record, false);
  EXPECT_NE(replayed.nll, of_b.nll);
  EXPECT_EQ(replayed.record.entries, of_a.record.entries);
  // Before the first MoE layer nothing is replayed yet, so there b's own choice is the one it made
  // alone.
  for (size_t n = 0; n < 100; ++n) {
    int32_t both = 0;
    for (size_t i = 0; i < 2; ++i)
      for (size_t j = 0; j < 2; ++j)
        both += of_a.record.entries[0][2 * n + i] == of_b.record.entries[0][2 * n + j];
    EXPECT_EQ(replayed.record.agreed[0][n], both) << n;
  }
  EXPECT_EQ(replayed.record.own, 100 * 2 * 2);
}

TEST(Replay, RefusesByLayerAndTokenWhatDoesNotFit) {
  ModelConfig config = config_of(small_routing("olmoe", kExperts, 1));
  config.layers = 3;
  config.moe_layers = {0, 2};
  const RoutingSpec spec = eval_spec(config.routing);
  Model model(config);
  draw_params(model, 1);
  const TwinInput in = text(config, {0, 30}, 6);
  const Outcome first = outcome(model, in, spec, Keep::nothing, DType::f32, nullptr, false);
  const auto refused = [&](Record record, const char* part) {
    EXPECT_FAILS(outcome(model, in, spec, Keep::nothing, DType::f32, &record, false), part);
  };
  Record bad = first.record;
  bad.entries[1][2 * 17] = 8;
  refused(bad, "layer 2: token 17 of 30 has expert 8 at rank 0, but there are 8 experts");
  bad = first.record;
  bad.entries[0][2 * 4] = not_sent(bad.entries[0][2 * 4 + 1]);
  refused(bad, "layer 0: token 4 of 30");
  bad = first.record;
  bad.entries[1].resize(2 * 29);
  refused(bad, "layer 2 is i32 [29, 2]");
  bad = first.record;
  bad.entries.pop_back();
  refused(bad, "of 1 layers, the model has 2");
}

}  // namespace
}  // namespace moe::test::replay_test
