// Laws of carving on small random models of every kind of FFN: nothing is lost when all experts
// work, the same command gives the same bits, and what comes out is an ordinary model that is
// saved, loaded, run and trained.
#include "convert/carve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "hub/hub.h"
#include "support/bound_model.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::carve_test {
namespace {

constexpr int64_t kWindow = 64, kWindows = 4;

struct Kind {
  const char* name;
  ops::Act act;
  bool gated, bias;
  NormPlacement placement;
};
const Kind kKinds[] = {
    {"SwiGLU", ops::Act::silu, true, false, NormPlacement::pre},
    {"GELU with biases", ops::Act::gelu, false, true, NormPlacement::pre},
    {"ReLU, post-norm", ops::Act::relu, false, false, NormPlacement::post},
    {"SwiGLU beside attention", ops::Act::silu, true, false, NormPlacement::beside},
    {"GELU with biases beside attention, a norm each", ops::Act::gelu, false, true,
     NormPlacement::beside_each}};

std::unique_ptr<Model> dense_model(const Kind& kind) {
  ModelConfig c;
  c.vocab = 256;
  c.width = 32;
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_width = 16;
  c.context = kWindow;
  c.dense_width = 96;
  c.act = kind.act;
  c.gated = kind.gated;
  c.ffn_bias = kind.bias;
  c.norm_placement = kind.placement;
  c.init.std = 0.2f;
  auto model = std::make_unique<Model>(c);
  model->initialise(3);
  const RngKey key = RngKey::from_seed(9);
  for (Param* p : model->params())  // biases start at zero, and a zero is easily lost
    if (p->role == Role::bias)
      for (int64_t i = 0; i < p->value.numel(); ++i)
        p->value.as<float>()[i] = 0.3f * normal(key, static_cast<uint64_t>(i));
  return model;
}

std::vector<int32_t> text(uint64_t seed, int64_t tokens = kWindow * kWindows) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(seed), i, 256));
  return ids;
}

CarveOptions options(std::string_view method, int64_t shared, int64_t active, int64_t experts) {
  CarveOptions o;
  o.method = method;
  o.shared = shared;
  o.active = active;
  o.experts = experts;
  o.window = kWindow;
  o.windows = kWindows;
  return o;
}

// A forward over sequences of `length` tokens; `read` looks at what it left.
template <class Read>
void with_forward(Model& model, const std::vector<int32_t>& ids, int64_t length, Read&& read) {
  moe::Run run(2);
  std::vector<int32_t> positions(ids.size());
  std::vector<int64_t> bounds = {0};
  for (int64_t i = 0; i < std::ssize(ids); ++i)
    positions[static_cast<size_t>(i)] = static_cast<int32_t>(i % length);
  while (bounds.back() < std::ssize(ids)) bounds.push_back(bounds.back() + length);
  const Batch batch{ids, positions, bounds};
  RoutingSpec spec;
  if (model.config().moe_layer_count() > 0) spec = eval_spec(model.config().routing);
  ModelSaved saved;
  model.forward(run, {.batch = batch, .routing = &spec, .keep = Keep::all}, saved);
  read(run, saved);
}

std::vector<float> logits(Model& model, const std::vector<int32_t>& ids) {
  std::vector<float> out(ids.size() * 256);
  with_forward(model, ids, std::ssize(ids), [&](Run& run, ModelSaved& saved) {
    model.logits(run, Tensor(out.data(), DType::f32, {std::ssize(ids), 256}), saved.hidden);
  });
  return out;
}

// The residual stream after the last block, for the calibration text.
std::vector<double> stream(Model& model) {
  std::vector<double> out;
  with_forward(model, text(1), kWindow,
               [&](Run&, ModelSaved& saved) { out = test::values(saved.h.back()); });
  return out;
}

std::vector<std::vector<double>> params_of(Model& model, const std::string& prefix) {
  std::vector<std::vector<double>> out;
  for (Param* p : model.params())
    if (p->name.starts_with(prefix)) out.push_back(test::values(p->value));
  return out;
}

double largest_gap(const std::vector<float>& a, const std::vector<float>& b) {
  double gap = 0;
  for (size_t i = 0; i < a.size(); ++i)
    gap = std::max(gap, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return gap;
}

// Of slices; sketch_test.cpp has the others.
std::vector<std::string> slice_methods() {
  std::vector<std::string> names;
  for (const CarveMethod& method : carve_methods())
    if (!method.by_neuron) names.emplace_back(method.name);
  return names;
}

// Every method, and every router and fit with the partition it is least made for.
std::vector<CarveOptions> all_ways(int64_t shared, int64_t active, int64_t experts) {
  std::vector<CarveOptions> ways;
  for (const std::string& method : slice_methods())
    ways.push_back(options(method, shared, active, experts));
  for (const std::string& router : carve_routers()) {
    ways.push_back(options("kmeans", shared, active, experts));
    ways.back().router = router;
  }
  for (const std::string& fit : carve_fits()) {
    ways.push_back(options("cmoe", shared, active, experts));
    ways.back().fit = fit;
  }
  ways.push_back(options("cmoe", shared, active, experts));
  ways.back().profile = Profile::raw;
  return ways;
}

std::string described(const Kind& kind, const CarveOptions& o) {
  return fmt::format("{}: method {}, router {}, fit {}, S{}A{}E{}", kind.name, o.method, o.router,
                     o.fit, o.shared, o.active, o.experts);
}

TEST(Carve, AllExpertsActiveGiveTheDenseModel) {
  const std::vector<int32_t> ids = text(5, 50);
  for (const Kind& kind : kKinds) {
    const auto dense = dense_model(kind);
    const std::vector<float> want = logits(*dense, ids);
    double size = 0;
    for (float z : want) size = std::max(size, std::fabs(static_cast<double>(z)));
    EXPECT_GT(size, 0.5) << "logits this small prove nothing";
    for (int64_t shared : {0, 2})
      for (const CarveOptions& o : all_ways(shared, 6 - shared, 6)) {
        SCOPED_TRACE(described(kind, o));
        moe::Run run(2);
        const CarveResult carved = carve(run, *dense, text(1), o);
        EXPECT_LT(largest_gap(logits(*carved.model, ids), want), 1e-4);
        for (const CarvedLayer& l : carved.layers) {
          EXPECT_LT(l.error, 1e-4);
          EXPECT_DOUBLE_EQ(l.agreement, 1);
          EXPECT_DOUBLE_EQ(l.largest_load, 1);
        }
      }
  }
}

// A config may say how experts would be of which the model has none.
TEST(Carve, TakesNothingOfExpertsThatTheDenseModelHasNot) {
  ModelConfig c = dense_model(kKinds[0])->config();
  c.shared_gate = c.shared_average = c.moe_out_norm = c.weigh_inputs = true;
  Model dense(c);
  dense.initialise(3);
  const std::vector<int32_t> ids = text(5, 50);
  for (const int64_t shared : {0, 2}) {
    moe::Run run(2);
    const CarveResult carved = carve(run, dense, text(1), options("cmoe", shared, 6 - shared, 6));
    EXPECT_LT(largest_gap(logits(*carved.model, ids), logits(dense, ids)), 1e-4) << shared;
  }
}

// Two experts cannot stand for five: what is left out must show.
TEST(Carve, FewerExpertsGiveSomethingElse) {
  const std::vector<int32_t> ids = text(5, 50);
  for (const Kind& kind : kKinds) {
    const auto dense = dense_model(kind);
    for (const CarveOptions& o : all_ways(1, 2, 6)) {
      SCOPED_TRACE(described(kind, o));
      moe::Run run(2);
      const CarveResult carved = carve(run, *dense, text(1), o);
      EXPECT_GT(largest_gap(logits(*carved.model, ids), logits(*dense, ids)), 1e-2);
      ASSERT_EQ(carved.layers.size(), 2u);
      for (const CarvedLayer& l : carved.layers) {
        EXPECT_GT(l.error, 1e-3);
        EXPECT_LT(l.error, 1.5);
        EXPECT_GT(l.shared_mass, 0.05);
        EXPECT_GE(l.agreement, 0);
        EXPECT_LE(l.agreement, 1);
        EXPECT_GE(l.largest_load, 1);
        EXPECT_LE(l.smallest_load, 1);
      }
    }
  }
}

// Each neuron's rows and column stand in one slice, unless a fit has moved the column.
TEST(Carve, EveryNeuronIsInOneSlice) {
  for (const Kind& kind : kKinds)
    for (const std::string& method : slice_methods()) {
      SCOPED_TRACE(std::string(kind.name) + ", " + method);
      const auto dense = dense_model(kind);
      CarveOptions o = options(method, 2, 1, 6);
      o.fit = "none";
      moe::Run run(2);
      const CarveResult carved = carve(run, *dense, text(1), o);
      for (int64_t layer = 0; layer < 2; ++layer) {
        const ExpertBank& whole = dense->block(layer).ffn.experts;
        MoeLayer& ffn = carved.model->block(layer).ffn;
        std::vector<int> seen(96, 0);
        const auto check = [&](const ExpertBank& bank, int64_t e) {
          for (int64_t j = 0; j < bank.width(); ++j)
            for (int64_t f = 0; f < 96; ++f) {
              bool same = true;
              for (int64_t d = 0; d < 32 && same; ++d) {
                same =
                    test::get(bank.up.value.at(e), j, d) == test::get(whole.up.value.at(0), f, d) &&
                    test::get(bank.down.value.at(e), d, j) ==
                        test::get(whole.down.value.at(0), d, f);
                if (kind.gated)
                  same = same && test::get(bank.gate.value.at(e), j, d) ==
                                     test::get(whole.gate.value.at(0), f, d);
              }
              if (same && kind.bias)
                same = test::get(bank.up_bias.value, e, j) == test::get(whole.up_bias.value, 0, f);
              seen[static_cast<size_t>(f)] += same;
            }
        };
        for (int64_t e = 0; e < 4; ++e) check(ffn.experts, e);
        check(*ffn.shared, 0);
        for (int count : seen) EXPECT_EQ(count, 1);
      }
    }
}

// A layer that is not asked for stays as it is, and those after it are carved at what it gives
// them.
TEST(Carve, LayersThatAreNotAskedForStay) {
  const auto dense = dense_model(kKinds[0]), bare = dense_model(kKinds[0]);
  Param& down = bare->block(1).ffn.experts.down;
  std::fill_n(down.value.as<float>(), down.value.numel(), 0.0f);
  down.touched();
  const std::vector<double> with_ffn = stream(*dense), without = stream(*bare);
  for (const std::string& method : slice_methods()) {
    SCOPED_TRACE(method);
    CarveOptions o = options(method, 1, 2, 6);
    moe::Run run(2);
    const CarveResult both = carve(run, *dense, text(1), o);
    o.layers.listed = {1};
    const CarveResult last = carve(run, *dense, text(1), o);
    o.layers = {.every = 2};
    const CarveResult first = carve(run, *dense, text(1), o);

    ASSERT_EQ(last.layers.size(), 1u);
    EXPECT_EQ(last.layers[0].layer, 1);
    EXPECT_EQ(params_of(*last.model, "layers.0."), params_of(*dense, "layers.0."));
    EXPECT_NEAR(last.layers[0].error,
                test::relative_error(stream(*last.model), with_ffn) /
                    test::relative_error(without, with_ffn),
                1e-4);
    ASSERT_EQ(first.layers.size(), 1u);
    EXPECT_EQ(params_of(*first.model, "layers.0."), params_of(*both.model, "layers.0."));
    EXPECT_EQ(params_of(*first.model, "layers.1."), params_of(*dense, "layers.1."));
    EXPECT_DOUBLE_EQ(active_ffn_share(dense->config(), o), 0.75);
  }
}

TEST(Carve, SameCommandSameBits) {
  for (const std::string& method : slice_methods()) {
    SCOPED_TRACE(method);
    const auto dense = dense_model(kKinds[0]);
    std::vector<std::vector<std::vector<double>>> found;
    for (int i = 0; i < 2; ++i) {
      moe::Run run(2);
      found.push_back(params_of(*carve(run, *dense, text(1), options(method, 1, 2, 6)).model, ""));
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

// What a method is said not to read changes no bit.
TEST(Carve, SaysWhatAMethodReads) {
  const auto dense = dense_model(kKinds[0]);
  const auto numbers = [&](const CarveOptions& o) {
    moe::Run run(2);
    return params_of(*carve(run, *dense, text(1), o).model, "");
  };
  for (const CarveOptions& way : all_ways(1, 2, 6)) {
    SCOPED_TRACE(described(kKinds[0], way));
    const auto before = numbers(way);
    CarveOptions other = way;
    other.seed = 2;
    if (!draws(way)) EXPECT_EQ(numbers(other), before);
    else if (way.method == "random") EXPECT_NE(numbers(other), before);
    other = way;
    other.marks = 30;
    other.profile = way.profile == Profile::raw ? Profile::cosine : Profile::raw;
    if (!marks_neurons(way)) EXPECT_EQ(numbers(other), before);
    else if (way.method == "cmoe") EXPECT_NE(numbers(other), before);
  }
  CarveOptions o = options("fitted", 1, 2, 6);
  EXPECT_FALSE(marks_neurons(o));
  o.marks = 97;
  check_carve(dense->config(), o);
  o.router = "analytic";
  EXPECT_TRUE(marks_neurons(o));
  o.method = "sketch";
  o.router = "";
  EXPECT_FALSE(marks_neurons(o) || draws(o));
}

TEST(Carve, TheDenseModelStaysAsItIs) {
  const auto dense = dense_model(kKinds[0]), fresh = dense_model(kKinds[0]);
  moe::Run run(2);
  carve(run, *dense, text(1), options("fitted", 1, 2, 6));
  for (size_t i = 0; i < dense->params().size(); ++i)
    EXPECT_EQ(test::values(dense->params()[i]->value), test::values(fresh->params()[i]->value));
}

// One whose weights lie in a file gives the bits that the same numbers in memory give, and is bound
// to the file again.
TEST(Carve, AModelInAFileIsCarvedAsOneInMemory) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const auto drawn = dense_model(kind), bound = test::bound_like(*drawn, DType::bf16),
               owned = test::bound_like(*drawn, DType::bf16);
    for (Param* p : owned->params()) owned->own(*p);
    moe::Run run(2);
    CarveOptions o = options("fitted", 1, 2, 6);
    o.layers.listed = {1};
    const CarveResult a = carve(run, *owned, text(1), o), b = carve(run, *bound, text(1), o);
    EXPECT_EQ(params_of(*a.model, ""), params_of(*b.model, ""));
    EXPECT_EQ(a.layers[0].error, b.layers[0].error);
    const Param &before = bound->block(1).ffn.experts.up,
                &stayed = b.model->block(0).ffn.experts.up;
    EXPECT_TRUE(before.is_bound());
    EXPECT_EQ(before.value.dtype, DType::bf16);
    EXPECT_EQ(stayed.value.data, bound->block(0).ffn.experts.up.value.data);
  }
}

// Least squares cannot do worse at what it minimises than where it starts.
TEST(Carve, ARefitLosesLessThanNone) {
  const auto dense = dense_model(kKinds[0]);
  double with = 0, without = 0;
  for (const char* fit : {"refit", "none"}) {
    CarveOptions o = options("cmoe", 1, 2, 6);
    o.fit = fit;
    moe::Run run(2);
    (std::string_view(fit) == "none" ? without : with) =
        carve(run, *dense, text(1), o).layers[0].error;
  }
  EXPECT_LT(with, 0.95 * without);
}

TEST(Carve, IsSavedWithItsSelectionBiasAndLoadedAgain) {
  for (const Kind& kind : kKinds)
    for (const std::string& method : slice_methods()) {
      SCOPED_TRACE(std::string(kind.name) + ", " + method);
      const auto dense = dense_model(kind);
      moe::Run run(2);
      const CarveResult carved = carve(run, *dense, text(1), options(method, 1, 2, 6));
      Param& bias = carved.model->block(1).ffn.router->bias;
      ASSERT_TRUE(bias.present());
      EXPECT_EQ(bias.role, Role::buffer);
      for (int64_t e = 0; e < 5; ++e) bias.value.as<float>()[e] = 0.01f * static_cast<float>(e);
      const test::TempFolder folder;
      save_model(folder / "m", *carved.model, *make_tokenizer("bytes"));
      const LoadedModel again = open_model(folder / "m", {});
      EXPECT_EQ(test::values(test::param_named(*again.model, bias.name)->value),
                test::values(bias.value));
      EXPECT_EQ(logits(*again.model, text(5, 40)), logits(*carved.model, text(5, 40)));
    }
}

TEST(Carve, TrainsAStepInWhichEveryPartLearns) {
  for (const Kind& kind : kKinds)
    for (const std::string& method : slice_methods()) {
      SCOPED_TRACE(std::string(kind.name) + ", " + method);
      const auto dense = dense_model(kind);
      moe::Run run(2);
      const CarveResult carved = carve(run, *dense, text(1), options(method, 1, 2, 6));
      Model& model = *carved.model;
      for (Param* p : model.params()) model.own(*p);
      for (int64_t layer = 0; layer < 2;
           ++layer) {  // a scale of 0 gives the router no gradient, which is CMoE's start
        Param& scale = model.block(layer).ffn.router->scale;
        for (int64_t e = 0; e < 5; ++e) scale.value.as<float>()[e] = 0.1f;
        scale.touched();
      }
      model.enable_grads();
      const std::vector<int32_t> ids = text(7, kWindow);
      std::vector<int32_t> positions(ids.size()), targets(ids.begin() + 1, ids.end());
      std::iota(positions.begin(), positions.end(), 0);
      targets.push_back(ops::kIgnoreTarget);
      const std::vector<int64_t> bounds = {0, kWindow};
      const Batch batch{ids, positions, bounds};
      const RoutingSpec spec = train_spec(model.config().routing);
      ModelSaved saved;
      model.forward(run, {.batch = batch, .routing = &spec, .keep = Keep::all}, saved);
      std::vector<float> nll(ids.size());
      model.loss_forward(run, Tensor(nll.data(), DType::f32, {kWindow}), targets, saved);
      model.backward(run, targets, 1.0f / kWindow, {}, saved);
      for (Param* p : model.params()) {
        if (!p->is_trained()) continue;
        ops::settle_grad(run, *p);
        EXPECT_GT(ops::sum_squares(run, p->grad), 0) << p->name;
      }
    }
}

TEST(Carve, StopsWhereTheListenerThrows) {
  const auto dense = dense_model(kKinds[0]);
  moe::Run run(2);
  int layers = 0;
  const std::string said = test::message_of([&] {
    carve(run, *dense, text(1), options("cmoe", 1, 2, 6), {.on_layer = [&](const CarvedLayer&) {
            ++layers;
            fail("enough");
          }});
  });
  EXPECT_EQ(said, "enough");
  EXPECT_EQ(layers, 1);
}

TEST(Carve, RefusesWeightsThatAreNotFinite) {
  for (const std::string& method : slice_methods())
    for (const float bad : {NAN, INFINITY}) {
      const auto dense = dense_model(kKinds[0]);
      dense->block(1).ffn.experts.up.value.as<float>()[5] = bad;
      moe::Run run(2);
      EXPECT_NE(test::message_of([&] {
                  carve(run, *dense, text(1), options(method, 1, 2, 6));
                }).find("what the FFN of layer 1 gives on the calibration text is not finite"),
                std::string::npos)
          << method;
    }
}

TEST(Carve, RefusesWhatHasNoMeaning) {
  const auto dense = dense_model(kKinds[0]);
  const auto refused = [&](CarveOptions o) {
    return test::message_of([&] { check_carve(dense->config(), o); });
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refused(options("cmoe", 1, 2, 7)), "take one of 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96");
  has(refused(options("cmoe", 3, 4, 6)), "at most 3 active");
  has(refused(options("cmoe", 6, 1, 6)), "shared 6");
  has(refused(options("cmoe", 1, 0, 6)), "active is 0");
  has(refused(options("cmoe", -1, 2, 6)), "shared is -1");
  has(refused(options("cmoe", 0, 1, 1)), "experts is 1");
  has(refused(options("kmean", 1, 2, 6)), "kmeans");
  CarveOptions o = options("cmoe", 1, 2, 6);
  o.router = "analytical";
  has(refused(o), "analytic");
  o.router = "sketch";  // of single neurons
  has(refused(o), "no router of carving is called 'sketch'");
  o = options("cmoe", 1, 2, 6);
  o.fit = "refitt";
  has(refused(o), "refit");
  o = options("cmoe", 1, 2, 6);
  o.marks = 97;
  has(refused(o), "marks is 97");
  o = options("cmoe", 1, 2, 6);
  o.layers.listed = {0, 2};
  has(refused(o), "no layer 2; the model has layers 0 to 1");
  o = options("cmoe", 1, 2, 6);
  o.layers.every = 0;
  has(refused(o), "every:0");
  ModelConfig both = dense->config(), carried = both, times = both, scaled = both;
  both.norm_placement = NormPlacement::both;
  carried.norm_placement = NormPlacement::carried;
  times.multipliers.residual = 0.5f;
  scaled.layer_scale = true;
  for (const ModelConfig& c : {both, carried, times})
    has(test::message_of([&] { check_carve(c, options("cmoe", 1, 2, 6)); }),
        "does not add what its FFNs give as it is");
  has(test::message_of([&] { check_carve(scaled, options("cmoe", 1, 2, 6)); }),
      "multiplied by a number of its own");
  ModelConfig xielu = dense->config();
  xielu.gated = false;
  xielu.xielu = true;
  has(test::message_of([&] { check_carve(xielu, options("cmoe", 1, 2, 6)); }),
      "xIELU, learns two numbers in each layer");
  ModelConfig halves = dense->config();
  halves.mixer_only_layers = {0};
  has(test::message_of([&] { check_carve(halves, options("cmoe", 1, 2, 6)); }),
      "attention or an FFN alone");
  ModelConfig learned = dense->config();
  learned.positions = Positions::learned;
  o = options("cmoe", 1, 2, 6);
  o.window = learned.context + 1;
  has(test::message_of([&] { check_carve(learned, o); }), "the model has learned positions");
  o.window = learned.context;
  check_carve(learned, o);
  moe::Run run(1);
  has(test::message_of([&] { carve(run, *dense, text(1, 255), options("cmoe", 1, 2, 6)); }),
      "255 tokens, and 4 windows of 64 need 256");
  const CarveResult carved = carve(run, *dense, text(1), options("cmoe", 1, 2, 6));
  has(test::message_of([&] { check_carve(carved.model->config(), options("cmoe", 1, 2, 6)); }),
      "routes already");
}

// Neurons are sorted by a map that foresees all of them, which stands in memory whatever is fitted
// afterwards.
TEST(Carve, EstimatesWhatSortingNeuronsTakes) {
  ModelConfig dense = dense_model(kKinds[0])->config();
  dense.width = 512;
  dense.dense_width = 2048;
  const auto need = [&](std::string_view method, const char* fit, const char* router) {
    CarveOptions o = options(method, 2, 2, 8);
    o.fit = fit;
    o.router = router;
    return carving_need(dense, o, DType::f32).total();
  };
  const int64_t sorted = need("fitted", "none", ""), unsorted = need("random", "none", "energy");
  EXPECT_GE(sorted - unsorted, 16 * dense.width * dense.dense_width);
  // The fit comes after it and takes more.
  EXPECT_EQ(need("fitted", "refit", ""), need("random", "refit", "energy"));
  EXPECT_GT(need("fitted", "refit", ""), sorted);
}

}  // namespace
}  // namespace moe::carve_test
