// The list of a model's parameters: what each is, in which order, and that a config alone gives the
// same list as a model.
#include "model/parameters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "model/model.h"
#include "support/routings.h"

namespace moe::parameters_test {
namespace {

using What = std::tuple<Part, ParamKind, bool>;  // bias

What what_is(const Param& p) { return {p.part, p.kind, p.is_bias()}; }

// A dense layer, then two that route.
ModelConfig small() {
  ModelConfig c;
  c.vocab = 9;
  c.width = 8;
  c.layers = 3;
  c.heads = c.kv_heads = 2;
  c.head_width = 4;
  c.context = 8;
  c.dense_width = 6;
  c.expert_width = 4;
  c.dense_first = 1;
  c.routing = test::small_routing("olmoe", 4, 2);
  return c;
}

// All that a model can have beside its router.
ModelConfig everything() {
  ModelConfig c = small();
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.positions = Positions::learned;
  c.qk_norm = QkNorm::full;
  c.shared_experts = 2;
  c.shared_width = 3;
  c.shared_gate = true;
  return c;
}

// Layer 0 has a window.
ModelConfig values_apart() {
  ModelConfig c = small();
  c.value_width = 6;
  c.attention_sinks = c.window_sinks = true;
  c.attention_window = 3;
  c.window_layers = {0};
  c.full = {.kv_heads = 1};
  return c;
}

// Every kind of model that differs in its parameters.
std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> all = {small(), everything()};
  for (const RoutingOptions& routing : test::small_routings(4, 2))
    for (ModelConfig c : {small(), everything()}) {
      c.routing = routing;
      all.push_back(c);
    }
  ModelConfig c = small();
  c.tied = true;
  c.gated = false;
  c.norm_placement = NormPlacement::post;
  c.expert_down_bias = true;
  all.push_back(c);
  c.moe_layers = {0, 1, 2};
  all.push_back(c);
  ModelConfig normed = small();
  normed.moe_out_norm = true;
  normed.dense_first = 1;
  all.push_back(normed);
  ModelConfig gemma = small();
  gemma.routing = test::small_routing("gemma4", 4, 2);
  gemma.norm_placement = NormPlacement::both;
  gemma.qk_norm = QkNorm::head;
  gemma.value_norm = gemma.layer_scale = gemma.branch_norms = true;
  gemma.shared_experts = gemma.shared_width = 1;
  gemma.attention_window = 3;
  gemma.window_layers = {0};
  gemma.window_rope_theta = 50;
  gemma.full = {.kv_heads = 1, .head_width = 6, .values_of_keys = true};
  all.push_back(gemma);
  ModelConfig behind = small();
  behind.norm_placement = NormPlacement::output;
  behind.states_pre_norm = true;
  all.push_back(behind);
  for (const NormPlacement beside : {NormPlacement::beside, NormPlacement::beside_each}) {
    behind = small();
    behind.norm_placement = beside;
    all.push_back(behind);
  }
  ModelConfig lightning = small();
  lightning.lightning_layers = {0};
  all.push_back(lightning);
  all.push_back(values_apart());
  ModelConfig norms = small();
  norms.norm_gate = 3;
  all.push_back(norms);
  ModelConfig gated = values_apart();
  gated.value_width = 0;
  gated.full = {.heads = 4};
  gated.attention_gate = gated.gate_softplus = gated.head_gates = true;
  all.push_back(gated);
  c.routing = {};
  all.push_back(c);
  c.xielu = true;
  all.push_back(c);
  return all;
}

// The numbers and the order are those of every checkpoint ever written.
TEST(Parameters, NamesAndOrder) {
  std::string names;
  ModelConfig c = everything();
  c.layers = 2;
  const Model model(c);
  for (const Param* p : model.params())
    names += fmt::format("{} {}\n", p->name, describe(p->value));
  const std::string block_of = R"(layers.{0}.norm1.weight f32 [8]
layers.{0}.norm1.bias f32 [8]
layers.{0}.attn.q.weight f32 [8, 8]
layers.{0}.attn.q.bias f32 [8]
layers.{0}.attn.k.weight f32 [8, 8]
layers.{0}.attn.k.bias f32 [8]
layers.{0}.attn.v.weight f32 [8, 8]
layers.{0}.attn.v.bias f32 [8]
layers.{0}.attn.o.weight f32 [8, 8]
layers.{0}.attn.o.bias f32 [8]
layers.{0}.attn.q_norm.weight f32 [8]
layers.{0}.attn.k_norm.weight f32 [8]
layers.{0}.norm2.weight f32 [8]
layers.{0}.norm2.bias f32 [8]
)";
  EXPECT_EQ(names, "embed.weight f32 [9, 8]\npositions.weight f32 [8, 8]\n" +
                       fmt::format(fmt::runtime(block_of), 0) +
                       R"(layers.0.ffn.experts.gate.weight f32 [1, 6, 8]
layers.0.ffn.experts.up.weight f32 [1, 6, 8]
layers.0.ffn.experts.down.weight f32 [1, 8, 6]
layers.0.ffn.experts.gate.bias f32 [1, 6]
layers.0.ffn.experts.up.bias f32 [1, 6]
layers.0.ffn.experts.down.bias f32 [1, 8]
)" + fmt::format(fmt::runtime(block_of), 1) +
                       R"(layers.1.ffn.router.weight f32 [4, 8]
layers.1.ffn.experts.gate.weight f32 [4, 4, 8]
layers.1.ffn.experts.up.weight f32 [4, 4, 8]
layers.1.ffn.experts.down.weight f32 [4, 8, 4]
layers.1.ffn.experts.gate.bias f32 [4, 4]
layers.1.ffn.experts.up.bias f32 [4, 4]
layers.1.ffn.experts.down.bias f32 [4, 8]
layers.1.ffn.shared.gate.weight f32 [1, 6, 8]
layers.1.ffn.shared.up.weight f32 [1, 6, 8]
layers.1.ffn.shared.down.weight f32 [1, 8, 6]
layers.1.ffn.shared.gate.bias f32 [1, 6]
layers.1.ffn.shared.up.bias f32 [1, 6]
layers.1.ffn.shared.down.bias f32 [1, 8]
layers.1.ffn.shared_gate.weight f32 [1, 8]
final_norm.weight f32 [8]
final_norm.bias f32 [8]
head.weight f32 [9, 8]
)");
}

TEST(Parameters, EachIsWhatItsNameSays) {
  const std::map<std::string, Part> parts = {
      {"embed", Part::embedding},
      {"positions", Part::positions},
      {"final_norm", Part::norms},
      {"norm1", Part::norms},
      {"norm2", Part::norms},
      {"norm1_out", Part::norms},
      {"norm2_out", Part::norms},
      {"layer_scale", Part::norms},
      {"attn", Part::attention},
      {"lightning", Part::attention},
      {"ffn.router", Part::router},
      {"ffn.shared", Part::shared},
      {"ffn.shared_gate", Part::shared},
      {"head", Part::lm_head},
  };
  const std::map<std::string, ParamKind> kinds = {
      {"q", ParamKind::q},
      {"k", ParamKind::k},
      {"v", ParamKind::v},
      {"o", ParamKind::o},
      {"q_norm", ParamKind::q_norm},
      {"sinks", ParamKind::sinks},
      {"o_gate", ParamKind::o_gate},
      {"mix_gate_down", ParamKind::mix_gate_down},
      {"mix_gate_up", ParamKind::mix_gate_up},
      {"ffn_gate_down", ParamKind::ffn_gate_down},
      {"ffn_gate_up", ParamKind::ffn_gate_up},
      {"k_norm", ParamKind::k_norm},
      {"gate", ParamKind::gate},
      {"up", ParamKind::up},
      {"down", ParamKind::down},
      {"alpha_p", ParamKind::xielu_alpha_p},
      {"alpha_n", ParamKind::xielu_alpha_n},
      {"beta", ParamKind::xielu_beta},
      {"eps", ParamKind::xielu_eps},
      {"noise", ParamKind::noise},
      {"scale", ParamKind::scale},
      {"threshold", ParamKind::threshold},
      {"norm1", ParamKind::attn_norm},
      {"norm2", ParamKind::ffn_norm},
      {"final_norm", ParamKind::final_norm},
      {"norm1_out", ParamKind::attn_out_norm},
      {"norm2_out", ParamKind::ffn_out_norm},
      {"layer_scale", ParamKind::layer_scale},
      {"router.norm", ParamKind::router_norm},
      {"experts.norm", ParamKind::experts_norm},
      {"experts.norm_out", ParamKind::experts_out_norm},
      {"shared.norm_out", ParamKind::shared_out_norm},
      {"lightning.q", ParamKind::lightning_q},
      {"lightning.k", ParamKind::lightning_k},
      {"lightning.v", ParamKind::lightning_v},
      {"lightning.z", ParamKind::lightning_z},
      {"lightning.o", ParamKind::lightning_o},
      {"lightning.norm", ParamKind::lightning_norm},
  };
  for (const ModelConfig& c : configs()) {
    const Model model(c);
    for (const Param* p : model.params()) {
      const std::string prefix = p->layer < 0 ? "" : fmt::format("layers.{}.", p->layer);
      ASSERT_TRUE(p->name.starts_with(prefix)) << p->name;
      const std::string own = p->name.substr(prefix.size());
      const Part ffn = p->layer >= 0 && c.is_moe(p->layer) ? Part::experts : Part::dense_ffn;
      Part want = ffn;
      for (const auto& [begin, part] : parts)
        if (own == begin || own.starts_with(begin + ".")) want = part;
      if (own.starts_with("ffn.") && own.find(".norm") != std::string::npos) want = Part::norms;
      EXPECT_EQ(p->part, want) << p->name;
      const std::string stem =
          own.ends_with(".weight") || own.ends_with(".bias") ? own.substr(0, own.rfind('.')) : own;
      auto kind = kinds.find(stem.substr(stem.rfind('.') + 1));
      if (stem.starts_with("ffn.") && kinds.contains(stem.substr(4)))
        kind = kinds.find(stem.substr(4));
      if (kinds.contains(stem)) kind = kinds.find(stem);
      const ParamKind of_no_name =
          own.ends_with("router.bias") ? ParamKind::selection_bias : ParamKind::weight;
      EXPECT_EQ(p->kind, kind == kinds.end() ? of_no_name : kind->second) << p->name;
    }
  }
}

TEST(Parameters, EachIsFoundByWhatItIs) {
  for (const ModelConfig& c : configs()) {
    const Model model(c), other(c, Storage::bound);
    std::set<std::pair<What, int64_t>> seen;
    for (size_t i = 0; i < model.params().size(); ++i) {
      const Param& p = *model.params()[i];
      EXPECT_TRUE(seen.insert({what_is(p), p.layer}).second) << p.name << " is what another is";
      EXPECT_EQ(model.find(p.part, p.kind, p.layer, p.is_bias()), &p) << p.name;
      EXPECT_EQ(other.find(p), other.params()[i]) << p.name;
      EXPECT_EQ(other.params()[i]->name, p.name);
    }
  }
  EXPECT_EQ(Model(small()).find(Part::positions, ParamKind::weight), nullptr);
  EXPECT_EQ(Model(small()).find(Part::router, ParamKind::weight, 0), nullptr) << "a dense layer";
}

TEST(Parameters, AConfigAloneListsWhatAModelHolds) {
  for (const ModelConfig& c : configs()) {
    std::map<What, int64_t> want, got;
    const Model model(c);
    for (const Param* p : model.params()) want[what_is(*p)] += p->value.numel();
    each_param(c, [&](const Param& p, int64_t layers) {
      EXPECT_TRUE(p.value.empty());
      got[what_is(p)] += layers * p.value.numel();
    });
    EXPECT_EQ(got, want) << c.routing.recipe;
  }
}

TEST(Parameters, OfValuesApart) {
  const Model model(values_apart());
  const auto shape_of = [&](const char* name) {
    for (const Param* p : model.params())
      if (p->name == name) return describe(p->value);
    return std::string("none");
  };
  EXPECT_EQ(shape_of("layers.0.attn.sinks"), "f32 [2]");
  EXPECT_EQ(shape_of("layers.1.attn.sinks"), "none");
  EXPECT_EQ(shape_of("layers.0.attn.k.weight"), "f32 [8, 8]");
  EXPECT_EQ(shape_of("layers.1.attn.k.weight"), "f32 [4, 8]");
  EXPECT_EQ(shape_of("layers.0.attn.v.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape_of("layers.1.attn.v.weight"), "f32 [6, 8]");
  EXPECT_EQ(shape_of("layers.1.attn.o.weight"), "f32 [8, 12]");
  for (const auto change :
       {+[](ModelConfig& of) { of.value_factor = 0; },
        +[](ModelConfig& of) { of.value_width = -1; },
        +[](ModelConfig& of) { of.attention_sinks = false; },
        +[](ModelConfig& of) { of.full.head_width = 6, of.window_rope_theta = 50; },
        +[](ModelConfig& of) { of.window_rotary_width = 2; },
        +[](ModelConfig& of) { of.norm_weights = false; }}) {
    ModelConfig other = values_apart();
    change(other);
    EXPECT_THROW(Model{other}, Error);
  }
}

// Each layer of xIELU has two numbers that are trained, of which its factors begin at 0.8, and two
// that stay. Gates and experts it does without.
TEST(Parameters, OfXielu) {
  ModelConfig c = small();
  c.routing = {};
  c.gated = false;
  c.xielu = true;
  Model model(c);
  model.initialise(1);
  const auto number = [&](ParamKind kind, bool bias) {
    const Param* p = model.find(Part::dense_ffn, kind, 1, bias);
    EXPECT_EQ(p->is_trained(), bias) << p->name;
    EXPECT_EQ(p->value.numel(), 1);
    return *p->value.as<float>();
  };
  const float beta = number(ParamKind::xielu_beta, false),
              p = number(ParamKind::xielu_alpha_p, true),
              n = number(ParamKind::xielu_alpha_n, true);
  EXPECT_EQ(beta, 0.5f);
  EXPECT_EQ(number(ParamKind::xielu_eps, false), -1e-6f);
  EXPECT_NEAR(std::log1p(std::exp(p)), 0.8f, 1e-6f);
  EXPECT_NEAR(beta + std::log1p(std::exp(n)), 0.8f, 1e-6f);
  for (const auto change : {+[](ModelConfig& of) { of.gated = true; },
                            +[](ModelConfig& of) { of.routing = small().routing; }}) {
    ModelConfig other = c;
    change(other);
    EXPECT_THROW(Model{other}, Error);
  }
}

// Only norms of the model's width without biases, or of a head's, can do without a weight.
TEST(Parameters, NormsMayHaveNone) {
  ModelConfig c = small();
  c.qk_norm = QkNorm::head;
  c.norm_weights = false;
  c.embedding_norm = true;
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    c.norm = kind;
    const Model model(c);
    for (const Param* p : model.params()) EXPECT_NE(p->role, Role::norm) << p->name;
  }
  for (const auto change : {+[](ModelConfig& of) { of.norm_bias = true; },
                            +[](ModelConfig& of) { of.norm_offset = true; },
                            +[](ModelConfig& of) { of.qk_norm = QkNorm::full; }}) {
    ModelConfig other = c;
    change(other);
    EXPECT_THROW(Model{other}, Error);
  }
}

// Bare norms of queries and keys have none, and stand where something turns.
TEST(Parameters, BareNormsAreOfLayersThatTurn) {
  ModelConfig c = small();
  c.qk_norm = QkNorm::bare;
  c.nope_layers = {0};
  Model model(c);
  EXPECT_FALSE(model.block(0).attention.q_norm || model.block(0).attention.k_norm);
  EXPECT_TRUE(model.block(1).attention.q_norm && model.block(1).attention.k_norm);
  for (const Param* p : model.params()) EXPECT_NE(p->kind, ParamKind::q_norm) << p->name;
  c.positions = Positions::learned;
  EXPECT_THROW(Model{c}, Error);
}

TEST(Parameters, LargeOnes) {
  std::set<std::string> large;
  ModelConfig c = everything();
  c.layers = 2;
  const Model model(c);
  for (const Param* p : model.params())
    if (is_large(*p)) large.insert(p->name);
  std::set<std::string> want = {"embed.weight", "head.weight"};
  for (const char* of_both : {"attn.q", "attn.k", "attn.v", "attn.o", "ffn.experts.gate",
                              "ffn.experts.up", "ffn.experts.down"})
    for (const int layer : {0, 1}) want.insert(fmt::format("layers.{}.{}.weight", layer, of_both));
  for (const char* shared : {"gate", "up", "down"})
    want.insert(fmt::format("layers.1.ffn.shared.{}.weight", shared));
  EXPECT_EQ(large, want);
}

// What makes steps is multiplied in f32, and a convolution is no product.
TEST(Parameters, OfAStateSpace) {
  ModelConfig c = small();
  c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  c.scan_layers = {1};
  const Model model(c), other(c, Storage::bound);
  std::set<std::string> large, in_f32, own;
  for (const Param* p : model.params()) {
    EXPECT_EQ(model.find(*p), p) << p->name;
    EXPECT_EQ(other.find(*p)->name, p->name);
    const std::string begin = "layers.1.scan.";
    if (!p->name.starts_with(begin)) continue;
    EXPECT_EQ(p->part, Part::attention) << p->name;
    const std::string name = p->name.substr(begin.size());
    own.insert(name);
    if (is_hidden_matrix(*p)) large.insert(name);
    if (is_multiplied_in_f32(*p)) in_f32.insert(name);
    EXPECT_EQ(is_convolution(*p) && p->is_matrix(), name == "conv.weight");
  }
  EXPECT_EQ(large, (std::set<std::string>{"z.weight", "xbc.weight", "o.weight"}));
  EXPECT_EQ(in_f32, (std::set<std::string>{"dt.weight"}));
  EXPECT_EQ(
      own, (std::set<std::string>{"z.weight", "xbc.weight", "dt.weight", "conv.weight", "conv.bias",
                                  "dt_bias", "a_log", "skip", "norm.weight", "o.weight"}));
  c.scan.conv_bias = false;
  EXPECT_EQ(Model(c).params().size(), model.params().size() - 1);
}

// Nothing of a selective scan is multiplied in f32; what a channel keeps decays by numbers that are
// no matrix.
TEST(Parameters, OfASelectiveScan) {
  ModelConfig c = small();
  c.scan = {.heads = 6,
            .groups = 1,
            .width = 1,
            .states = 5,
            .conv_width = 3,
            .conv_bias = true,
            .step_rank = 2};
  c.scan_layers = {1};
  const Model model(c), other(c, Storage::bound);
  std::set<std::string> large, own;
  for (const Param* p : model.params()) {
    EXPECT_EQ(model.find(*p), p) << p->name;
    EXPECT_EQ(other.find(*p)->name, p->name);
    const std::string begin = "layers.1.scan.";
    if (!p->name.starts_with(begin)) continue;
    const std::string name = p->name.substr(begin.size());
    own.insert(name);
    if (is_hidden_matrix(*p)) large.insert(name);
    EXPECT_FALSE(is_multiplied_in_f32(*p)) << name;
    EXPECT_EQ(is_convolution(*p) && p->is_matrix(), name == "conv.weight");
  }
  EXPECT_EQ(large, (std::set<std::string>{"x.weight", "z.weight", "made.weight", "step.weight",
                                          "o.weight"}));
  std::set<std::string> all = large;
  all.insert({"conv.weight", "conv.bias", "step_norm.weight", "b_norm.weight", "c_norm.weight",
              "dt_bias", "a_log", "skip"});
  EXPECT_EQ(own, all);
  c.scan.norm = false;
  EXPECT_EQ(Model(c).params().size(), model.params().size() - 3);
}

// A sublayer that is not there has no norm either.
TEST(Parameters, OfLayersOfOneSublayer) {
  ModelConfig c = small();
  c.mixer_only_layers = {1};
  c.ffn_only_layers = {2};
  const Model model(c);
  std::set<std::string> mixer, ffn;
  for (const Param* p : model.params()) {
    if (p->layer == 1) mixer.insert(p->name.substr(std::string("layers.1.").size()));
    if (p->layer == 2) ffn.insert(p->name.substr(std::string("layers.2.").size()));
  }
  EXPECT_EQ(mixer, (std::set<std::string>{"norm1.weight", "attn.q.weight", "attn.k.weight",
                                          "attn.v.weight", "attn.o.weight"}));
  EXPECT_EQ(ffn,
            (std::set<std::string>{"norm2.weight", "ffn.router.weight", "ffn.experts.gate.weight",
                                   "ffn.experts.up.weight", "ffn.experts.down.weight"}));
  EXPECT_EQ(c.sublayers(), 4);
  EXPECT_EQ(c.moe_layer_count(), 1);
  EXPECT_EQ(c.dense_layer_count(), 1);  // the first
  c.norm_placement = NormPlacement::both;
  EXPECT_EQ(Model(c).params().size(), model.params().size() + 4);
}

// What a layer cannot be at once, and what no model can be.
TEST(Parameters, LayersOfOneSublayerHaveOne) {
  const ModelConfig plain = small();
  for (const auto change :
       {+[](ModelConfig& of) { of.mixer_only_layers = {1}, of.ffn_only_layers = {1}; },
        +[](ModelConfig& of) {
          of.ffn_only_layers = {0, 1, 2};
        },
        +[](ModelConfig& of) {
          of.mixer_only_layers = {0, 1, 2};
        },  // none is left that routes
        +[](ModelConfig& of) { of.mixer_only_layers = {3}; },
        +[](ModelConfig& of) { of.mixer_only_layers = of.moe_layers = {2}; },
        +[](ModelConfig& of) { of.ffn_only_layers = of.conv_layers = {2}, of.conv_width = 3; },
        +[](ModelConfig& of) {
          of.ffn_only_layers = {2}, of.norm_placement = NormPlacement::beside;
        },
        +[](ModelConfig& of) {
          of.ffn_only_layers = {2}, of.norm_placement = NormPlacement::beside_each;
        }}) {
    ModelConfig other = plain;
    change(other);
    EXPECT_THROW(Model{other}, Error);
  }
}

TEST(Parameters, PartsHaveNames) {
  std::set<std::string_view> names;
  for (int part = 0; part <= static_cast<int>(Part::lm_head); ++part)
    EXPECT_TRUE(names.insert(name_of(static_cast<Part>(part))).second) << part;
  EXPECT_FALSE(names.contains(""));
}

}  // namespace
}  // namespace moe::parameters_test
