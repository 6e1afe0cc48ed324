// One MoE layer over arrays of the caller's: against a formula in double, wherever the arrays lie,
// and a message for whatever does not fit.
#include <moe/moe.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/api_array.h"
#include "support/check.h"

namespace moe::test::layer_test {
namespace {

constexpr int64_t kTokens = 21, kWidth = 24, kHidden = 20, kExperts = 5, kSlots = 2;

struct Close {
  void operator()(moe_layer* layer) const { moe_layer_close(layer); }
};
using Layer = std::unique_ptr<moe_layer, Close>;

Layer open(const Json& options) {
  moe_layer* layer = nullptr;
  EXPECT_EQ(moe_layer_open(&layer, options.dump().c_str()), MOE_OK) << moe_last_error();
  return Layer(layer);
}
Json sizes() {
  return {{"recipe", "mixtral"},
          {"experts", kExperts},
          {"top_k", kSlots},
          {"hidden_size", kWidth},
          {"moe_intermediate_size", kHidden},
          {"threads", 2}};
}

using Arrays = std::vector<moe_array>;

// Gate and up fused, as transformers has them, and everything a call reads and writes.
struct Case {
  Arena memory;
  Tensor gate_up = draw(memory, DType::f32, {kExperts, 2 * kHidden, kWidth}, 1),
         down = draw(memory, DType::f32, {kExperts, kWidth, kHidden}, 2),
         x = draw(memory, DType::f32, {kTokens, kWidth}, 3),
         weights = draw(memory, DType::f32, {kTokens, kSlots}, 4),
         dy = draw(memory, DType::f32, {kTokens, kWidth}, 5),
         experts = memory.alloc(DType::i32, {kTokens, kSlots}),
         y = memory.alloc(DType::f32, {kTokens, kWidth}),
         dx = memory.alloc(DType::f32, {kTokens, kWidth}),
         dweights = memory.alloc(DType::f32, {kTokens, kSlots}),
         gate = memory.alloc(DType::f32, {kTokens * kSlots, kHidden}),
         up = memory.alloc(DType::f32, {kTokens * kSlots, kHidden}),
         dgate_up = memory.alloc(DType::f32, {kExperts, 2 * kHidden, kWidth}),
         ddown = memory.alloc(DType::f32, {kExperts, kWidth, kHidden});

  Case() {
    // Expert 3 has no tokens; token 2's second choice is not sent, token 4's neither.
    for (int32_t n = 0; n < kTokens; ++n) {
      experts.row<int32_t>(n)[0] = n % 3;
      experts.row<int32_t>(n)[1] = n == 2 ? -1 : n == 4 ? kExperts : 4;
    }
  }
  Arrays bound() const {
    return {array("experts.gate_up.weight", gate_up), array("experts.down.weight", down)};
  }
  Arrays forward() const {
    return {array("x", x), array("experts", experts), array("weights", weights),
            array("y", y), array("gate", gate),       array("up", up)};
  }
  Arrays backward() const {
    return {array("x", x),
            array("experts", experts),
            array("weights", weights),
            array("gate", gate),
            array("up", up),
            array("dy", dy),
            array("dx", dx),
            array("dweights", dweights),
            array("grad.experts.gate_up.weight", dgate_up),
            array("grad.experts.down.weight", ddown)};
  }
  bool sent(int64_t n, int64_t i) const {
    const int32_t e = experts.row<int32_t>(n)[i];
    return e >= 0 && e < kExperts;
  }
};

// sum_n <y_n, dy_n>, and y where it is asked for.
double formula(const Case& c, std::vector<double>* out = nullptr) {
  double sum = 0;
  for (int64_t n = 0; n < kTokens; ++n)
    for (int64_t i = 0; i < kSlots; ++i) {
      if (!c.sent(n, i)) continue;
      const int64_t e = c.experts.row<int32_t>(n)[i];
      std::vector<double> hidden;
      for (int64_t f = 0; f < kHidden; ++f) {
        double g = 0, u = 0;
        for (int64_t d = 0; d < kWidth; ++d) {
          g += double{c.gate_up.at(e).row<float>(f)[d]} * c.x.row<float>(n)[d];
          u += double{c.gate_up.at(e).row<float>(kHidden + f)[d]} * c.x.row<float>(n)[d];
        }
        hidden.push_back(g / (1 + std::exp(-g)) * u);
      }
      for (int64_t d = 0; d < kWidth; ++d) {
        double y = 0;
        for (int64_t f = 0; f < kHidden; ++f)
          y += c.down.at(e).row<float>(d)[f] * hidden[static_cast<size_t>(f)];
        y *= c.weights.row<float>(n)[i];
        sum += y * c.dy.row<float>(n)[d];
        if (out != nullptr) (*out)[static_cast<size_t>(n * kWidth + d)] += y;
      }
    }
  return sum;
}

moe_status bind_arrays(moe_layer* layer, const Arrays& a) {
  return moe_layer_bind(layer, a.data(), a.size());
}

TEST(ApiLayer, ComputesTheExpertsOfGivenChoices) {
  Case c;
  const Layer layer = open(sizes());
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK) << moe_last_error();
  const Arrays forward = c.forward(), backward = c.backward();
  ASSERT_EQ(moe_layer_experts(layer.get(), forward.data(), forward.size()), MOE_OK)
      << moe_last_error();
  std::vector<double> want(static_cast<size_t>(kTokens * kWidth), 0.0);
  formula(c, &want);
  expect_near(values(c.y), want, 1e-5, "y");

  ASSERT_EQ(moe_layer_experts_backward(layer.get(), backward.data(), backward.size()), MOE_OK)
      << moe_last_error();
  const auto slope = [&](Tensor of, int64_t at) {
    float& value = of.as<float>()[at];
    const float before = value;
    constexpr float kStep = 1.0f / 256;
    value = before + kStep;
    const double more = formula(c);
    value = before - kStep;
    const double less = formula(c);
    value = before;
    return (more - less) / (2 * kStep);
  };
  const auto check = [&](Tensor of, Tensor grad, const char* name) {
    for (int64_t i = 0; i < of.numel(); i += 1 + of.numel() / 40)
      EXPECT_NEAR(grad.as<float>()[i], slope(of, i), 2e-3) << name << " " << i;
  };
  check(c.x, c.dx, "x");
  check(c.weights, c.dweights, "weights");
  check(c.gate_up, c.dgate_up, "gate and up");
  check(c.down, c.ddown, "down");
  for (double g : values(c.ddown.at(3))) EXPECT_EQ(g, 0.0) << "of an expert without tokens";
}

TEST(ApiLayer, SeesNewNumbersWhenTheyAreBoundAgain) {
  Case c;
  const Layer layer = open(sizes());
  const Arrays forward = c.forward();
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK);
  ASSERT_EQ(moe_layer_experts(layer.get(), forward.data(), forward.size()), MOE_OK);
  const std::vector<double> before = values(c.y);
  for (int64_t i = 0; i < c.down.numel(); ++i) c.down.as<float>()[i] *= 2;
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK);
  ASSERT_EQ(moe_layer_experts(layer.get(), forward.data(), forward.size()), MOE_OK);
  std::vector<double> twice = before;
  for (double& v : twice) v *= 2;
  expect_near(values(c.y), twice, 1e-6, "y");
}

TEST(ApiLayer, RoutesLogitsAndGivesTheirGradient) {
  Arena memory;
  const Layer layer = open({{"recipe", "mixtral"}, {"experts", kExperts}, {"top_k", kSlots}});
  const Tensor logits = draw(memory, DType::f32, {kTokens, kExperts}, 1),
               experts = memory.alloc(DType::i32, {kTokens, kSlots}),
               weights = memory.alloc(DType::f32, {kTokens, kSlots}),
               losses = memory.alloc(DType::f32, {6}),
               dweights = draw(memory, DType::f32, {kTokens, kSlots}, 2),
               dlogits = memory.alloc(DType::f32, {kTokens, kExperts});
  Arrays call = {array("logits", logits), array("experts", experts), array("weights", weights),
                 array("losses", losses)};
  const auto value = [&] {
    EXPECT_EQ(moe_layer_route(layer.get(), call.data(), call.size(), 1, 0), MOE_OK)
        << moe_last_error();
    double sum = losses.as<float>()[1];  // z
    for (int64_t i = 0; i < weights.numel(); ++i)
      sum += double{weights.as<float>()[i]} * dweights.as<float>()[i];
    return sum;
  };
  value();
  for (int64_t n = 0; n < kTokens; ++n)
    EXPECT_NEAR(weights.row<float>(n)[0] + weights.row<float>(n)[1], 1, 1e-6);
  Tensor dlosses = memory.alloc_zeroed(DType::f32, {6});
  dlosses.as<float>()[1] = 1;
  const Arrays back = {array("logits", logits), array("dweights", dweights),
                       array("dlosses", dlosses), array("dlogits", dlogits)};
  ASSERT_EQ(moe_layer_route_backward(layer.get(), back.data(), back.size(), 1, 0), MOE_OK)
      << moe_last_error();
  for (int64_t i = 0; i < logits.numel(); i += 7) {
    float& at = logits.as<float>()[i];
    const float before = at;
    at = before + 1e-2f;
    const double more = value();
    at = before - 1e-2f;
    const double less = value();
    at = before;
    EXPECT_NEAR(dlogits.as<float>()[i], (more - less) / 2e-2, 2e-3) << i;
  }
}

TEST(ApiLayer, TellsWhatItIs) {
  const Layer layer = open({{"recipe", "deepseek-v3"}, {"experts", 8}, {"hidden_size", 16}});
  char* text = nullptr;
  ASSERT_EQ(moe_layer_inspect(layer.get(), &text), MOE_OK);
  const Json about = Json::parse(text);
  moe_free(text);
  EXPECT_EQ(about.at("params").at(0).at("name"), "router.weight");
  EXPECT_EQ(about.at("params").at(0).at("shape"), Json({8, 16}));
  EXPECT_EQ(about.at("params").at(1).at("name"), "router.bias");
  EXPECT_EQ(about.at("params").at(1).at("trained"), false);
  EXPECT_TRUE(about.at("losses").contains("balance"));
  EXPECT_EQ(about.at("sum_over_layers"), true);
}

TEST(ApiLayer, RefusesWhatDoesNotFit) {
  Case c;
  const Layer layer = open(sizes());
  const auto refused = [&](Arrays call, const std::string& what) {
    EXPECT_EQ(moe_layer_experts(layer.get(), call.data(), call.size()), MOE_USAGE);
    EXPECT_NE(std::string(moe_last_error()).find(what), std::string::npos) << moe_last_error();
  };
  refused(c.forward(), "\"experts.gate.weight\" is not bound; moe_layer_bind() comes first");
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK);
  Arrays call = c.forward();
  call.erase(call.begin());
  refused(call, "moe_layer_experts: \"x\" is missing");
  call = c.forward();
  call[3].name = "z";
  refused(call, "\"y\" is missing");
  call = c.forward();
  call.push_back(array("wieghts", c.weights));
  refused(call, "no array is called \"wieghts\" here; did you mean \"weights\"?");
  call = c.forward();
  call[0].shape[1] = 7;
  refused(call, "x has the shape [21, 7]; [any, 24] is needed");
  call = c.forward();
  call[0].stride[1] = 2;
  refused(call, "x has gaps or lies transposed");
  call = c.forward();
  call[2].stride[0] = 5;
  refused(call, "weights has gaps or lies transposed (dimension 0 has a stride of 5, not 2)");
  call = c.forward();
  call[0].dtype = MOE_I64;
  refused(call, "x is i64; f32 or bf16 is needed");
  call = c.forward();
  call[0].data = nullptr;
  refused(call, "x has no memory");
  call = c.forward();
  call[1].shape[0] = -3;
  refused(call, "neither may be negative");
  call = c.forward();
  call[0].rank = 4;
  refused(call, "x has 4 dimensions; 1 to 3 are taken");
  EXPECT_EQ(moe_layer_experts(layer.get(), nullptr, 2), MOE_USAGE);
  EXPECT_EQ(moe_layer_experts(nullptr, call.data(), call.size()), MOE_USAGE);
  moe_layer* none = nullptr;
  EXPECT_EQ(moe_layer_open(&none, R"({"recipe": "mixtal"})"), MOE_USAGE);
  EXPECT_EQ(none, nullptr);
}

TEST(ApiLayer, ABackwardNeedsTheGateOfItsForward) {
  Case c;
  const Layer layer = open(sizes());
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK);
  for (const char* name : {"gate", "up"}) {
    Arrays call = c.backward();
    std::erase_if(call, [&](const moe_array& a) { return std::string(a.name) == name; });
    EXPECT_EQ(moe_layer_experts_backward(layer.get(), call.data(), call.size()), MOE_USAGE);
    EXPECT_NE(std::string(moe_last_error()).find("\"" + std::string(name) + "\" is missing"),
              std::string::npos)
        << moe_last_error();
  }
}

// Everything but router.weight is left out, of recipes that have more.
TEST(ApiLayer, RefusesToRouteByWhatIsNotBound) {
  Arena memory;
  const Tensor x = draw(memory, DType::f32, {kTokens, kWidth}, 1),
               router = draw(memory, DType::f32, {kExperts, kWidth}, 2),
               experts = memory.alloc(DType::i32, {kTokens, kSlots}),
               weights = memory.alloc(DType::f32, {kTokens, kSlots});
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"gemma4", "router.scale"},
      {"cmoe", "router.up.weight"},
      {"shazeer", "router.noise.weight"},
      {"deepseek-v3", "router.bias"}};
  for (const auto& row : cases) {
    const char* const recipe = row.first;  // clang 14 lets no lambda have part of a pair
    const Layer layer = open(
        {{"recipe", recipe}, {"experts", kExperts}, {"top_k", kSlots}, {"hidden_size", kWidth}});
    const Arrays call = {array("x", x), array("experts", experts), array("weights", weights)};
    const auto refused = [&](const std::string& name) {
      EXPECT_EQ(moe_layer_route(layer.get(), call.data(), call.size(), 1, 7), MOE_USAGE) << recipe;
      EXPECT_NE(std::string(moe_last_error()).find("\"" + name + "\" is not bound"),
                std::string::npos)
          << moe_last_error();
    };
    refused("router.weight");
    ASSERT_EQ(bind_arrays(layer.get(), {array("router.weight", router)}), MOE_OK);
    refused(row.second);
  }
}

TEST(ApiLayer, ARefusedBindChangesNothing) {
  Case c;
  const Layer layer = open(sizes());
  const Arrays forward = c.forward();
  ASSERT_EQ(bind_arrays(layer.get(), c.bound()), MOE_OK);
  ASSERT_EQ(moe_layer_experts(layer.get(), forward.data(), forward.size()), MOE_OK);
  const std::vector<double> before = values(c.y);
  const Tensor other = draw(c.memory, DType::f32, {kExperts, 2 * kHidden, kWidth}, 9);
  EXPECT_EQ(bind_arrays(layer.get(), {array("experts.gate_up.weight", other),
                                      array("experts.dwon.weight", c.down)}),
            MOE_USAGE);
  Arrays wrong = {array("experts.gate_up.weight", other), array("experts.down.weight", c.down)};
  wrong[1].shape[1] = 7;
  EXPECT_EQ(bind_arrays(layer.get(), wrong), MOE_USAGE);
  ASSERT_EQ(moe_layer_experts(layer.get(), forward.data(), forward.size()), MOE_OK);
  EXPECT_EQ(values(c.y), before);
}

}  // namespace
}  // namespace moe::test::layer_test
