// Models with lightning attention against the scalar twin, in which every token asks every one
// before it: loss and every gradient, over texts of more than a chunk too; the rates at which heads
// forget; and with what it does not go together.
#include "model/lightning.h"

#include <set>

#include "core/error.h"
#include "model/model.h"
#include "model/parameters.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/routings.h"

namespace moe::test::lightning_test {
namespace {

// As the family's: below attention, residuals that norms give.
ModelConfig config_of(const std::vector<int64_t>& layers, bool routed = false) {
  ModelConfig c = small();
  if (routed) c.routing = small_routing("mixtral", 4, 2), weigh_losses(c.routing);
  c.norm_placement = NormPlacement::carried;
  c.multipliers.attention_sum = {.kept = 1.7f, .added = 0.6f};
  c.multipliers.lightning_sum = {.kept = 0.9f, .added = 1.2f};
  c.multipliers.ffn_sum = {.kept = 0.8f, .added = 1.3f};
  c.lightning_layers = layers;
  // A first token's output is <q, k> v, whose norm loses as many digits as <q, k> has lost where
  // its epsilon is small.
  c.lightning_norm_eps = 0.05f;
  return c;
}

TEST(Lightning, LossAndEveryGradientMatchTheTwin) {
  expect_gradients({.name = "lightning below attention", .config = config_of({0}, true)});
  ModelConfig c = config_of({0, 1}, true);
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 3;
  c.positions = Positions::learned;
  expect_gradients({.name = "lightning everywhere", .config = c});
  c = config_of({1});
  c.norm_placement = NormPlacement::pre;
  c.multipliers = {};
  c.act = ops::Act::gelu;
  c.dropout = 0.2f;
  expect_gradients(
      {.name = "lightning above attention by GELU, dropped", .config = c, .random = true});
}

// A text of more than a chunk, and one beside it.
TEST(Lightning, OfTextsOfMoreThanAChunkMatchesTheTwin) {
  const ModelConfig c = config_of({0, 1});
  Model model(c);
  draw_params(model, 3);
  model.enable_grads();
  const Case item{.name = "long", .config = c};
  const int64_t first = ops::kDeltaChunk + 5, tokens = first + 20;
  TwinInput in;
  in.bounds = {0, first, tokens};
  for (int64_t i = 0; i < tokens; ++i) {
    const auto key = static_cast<uint64_t>(i);
    in.ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(1), key, 9)));
    in.targets.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(2), key, 9)));
    in.positions.push_back(static_cast<int32_t>(i < first ? i : i - first));
  }
  const RoutingSpec spec = spec_of(item);
  moe::Run run(2);
  const Trained got = train_once(model, run, in, spec);
  const auto params = twin_params<double>(model);
  const double want = TwinModel<double>(c, spec, params).run(in, {}).ce;
  EXPECT_NEAR(got.ce, want, kTwinF32 * want);
  for (const auto& [name, gradient] : twin_gradients(model, spec, in))
    expect_near(param_named(model, name)->grad, gradient, kTwinF32, name);
}

// Half, a quarter, ... of eight heads; lower layers forget more, and the last one next to nothing.
TEST(Lightning, HeadsForgetAtTheRatesOfTheFamily) {
  EXPECT_NEAR(lightning_slope(0, 8, 0, 4), 0.5 * 1.00001, 1e-12);
  EXPECT_NEAR(lightning_slope(7, 8, 0, 4), 0x1p-8 * 1.00001, 1e-12);
  EXPECT_NEAR(lightning_slope(0, 2, 1, 3), 0x1p-4 * (1 - 1 / 2.00001 + 1e-5), 1e-12);
  EXPECT_NEAR(lightning_slope(1, 2, 2, 3), 0x1p-8 * (1 - 2 / 2.00001 + 1e-5), 1e-14);
  EXPECT_NEAR(lightning_slope(1, 2, 0, 1), 0x1p-8 * 1.00001, 1e-12) << "a layer alone";
  EXPECT_GT(lightning_slope(63, 64, 79, 80), 0);
  Block first, last;
  const ModelConfig c = config_of({0, 1});
  list_block(c, 0, first, [](Param&) {});
  list_block(c, 1, last, [](Param&) {});
  ASSERT_TRUE(first.lightning && last.lightning);
  ASSERT_EQ(std::ssize(first.lightning->log_slopes), c.heads);
  EXPECT_FLOAT_EQ(std::exp(first.lightning->log_slopes[1]),
                  static_cast<float>(lightning_slope(1, 2, 0, 2)));
  EXPECT_LT(last.lightning->log_slopes[0], first.lightning->log_slopes[0]);
}

TEST(Lightning, HasParametersOfItsOwn) {
  const Model model(config_of({0}));
  std::set<std::string> large, own;
  for (const Param* p : model.params()) {
    const std::string begin = "layers.0.lightning.";
    if (!p->name.starts_with(begin)) continue;
    EXPECT_EQ(p->part, Part::attention) << p->name;
    own.insert(p->name.substr(begin.size()));
    if (is_hidden_matrix(*p)) large.insert(p->name.substr(begin.size()));
    EXPECT_FALSE(is_multiplied_in_f32(*p)) << p->name;
  }
  std::set<std::string> want = {"q.weight", "k.weight", "v.weight", "z.weight", "o.weight"};
  EXPECT_EQ(large, want);
  want.insert("norm.weight");
  EXPECT_EQ(own, want);
  EXPECT_EQ(model.config().state_numbers(0), 2 * 4 * 4);
  EXPECT_EQ(model.config().state_numbers(1), 0);
  EXPECT_EQ(model.find(Part::attention, ParamKind::q, 0), nullptr);
}

TEST(Lightning, DoesNotGoWithWhatItHasNoPlaceFor) {
  const auto refused = [](auto&& change, const char* why) {
    ModelConfig c = config_of({0});
    change(c);
    EXPECT_FAILS(validate(c), why);
  };
  refused([](ModelConfig& c) { c.lightning_layers = {2}; }, "as one of lightning attention but");
  refused([](ModelConfig& c) { c.conv_layers = {0}, c.conv_width = 3; }, "something else");
  refused([](ModelConfig& c) { c.act = ops::Act::swiglu_oai; }, "of a single number");
  refused([](ModelConfig& c) { c.norm_offset = true; }, "do not count from 1");
  refused([](ModelConfig& c) { c.lightning_norm_eps = 0; }, "must be above 0");
  refused([](ModelConfig& c) { c.multipliers.lightning_sum.added = -1; }, "lightning attention");
  refused([](ModelConfig& c) { c.heads = c.kv_heads = 8192, c.head_width = 2; }, "8192 heads");
}

}  // namespace
}  // namespace moe::test::lightning_test
