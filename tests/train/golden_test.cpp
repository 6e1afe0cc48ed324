// Runs recorded from other people's programs (tools/golden): nanoMoE's model in PyTorch and
// transformers' OLMoE. Logits, the choice of experts, every gradient of the first step, and ten
// AdamW steps.
#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/tensor_map.h"
#include "support/check.h"
#include "support/files.h"
#include "train/optimizer.h"
#include "train/trainable.h"

namespace moe::test::golden_test {
namespace {

// The weight that a recorded tensor belongs to, empty when it has another prefix or is no weight.
std::string weight_name(const std::string& recorded, const std::string& prefix) {
  if (recorded == "ids" || recorded == "targets" || recorded == "logits") return "";
  if (prefix.empty()) return recorded.starts_with("grad.") ? "" : recorded;
  return recorded.starts_with(prefix) ? recorded.substr(prefix.size()) : "";
}

struct Golden {
  Json about;
  Safetensors tensors;
  ModelConfig config;

  explicit Golden(const std::string& name)
      : about(read_json(MOE_TEST_DATA "/golden/" + name + ".json")),
        tensors(Safetensors::open(MOE_TEST_DATA "/golden/" + name + ".safetensors")) {
    const Json& hyper = about.at("hyper");
    if (about.at("recipe") == "olmoe") {
      config = parse_config(about.at("config").dump(), name);
    } else {
      config = nanomoe(about.at("config"));
    }
    const double layers =
        hyper.at("layer_reduce") == "sum" ? static_cast<double>(config.moe_layer_count()) : 1;
    const double k =
        hyper.at("balance_form") == "nanomoe" ? static_cast<double>(config.routing.top_k) : 1;
    config.routing.coef.balance =
        static_cast<float>(hyper.at("balance_coef").get<double>() * layers * k);
    config.routing.coef.z = static_cast<float>(hyper.at("z_coef").get<double>() * layers);
  }

  static ModelConfig nanomoe(const Json& j) {
    ModelConfig c;
    c.vocab = j.at("vocab_size");
    c.width = j.at("hidden_size");
    c.layers = j.at("num_hidden_layers");
    c.heads = c.kv_heads = j.at("num_attention_heads");
    c.head_width = c.width / c.heads;
    c.context = j.at("max_position_embeddings");
    c.norm = NormKind::layer;
    c.norm_eps = j.at("layer_norm_eps");
    c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = j.at("attention_bias");
    c.positions = Positions::learned;
    c.act = ops::Act::gelu;
    c.gated = false;
    c.tied = true;
    c.dense_width = c.expert_width = j.at("intermediate_size");
    c.moe_every = j.at("moe_every");
    c.routing = default_options(find_recipe("nanomoe"), j.at("num_experts"),
                                j.at("num_experts_per_tok"), c.moe_layer_count());
    c.routing.capacity_factor = j.at("capacity_factor").get<float>();
    c.routing.noise = j.at("noisy_top_k");
    return c;
  }

  // A model that holds the recorded tensors whose names begin with `prefix`: the weights, or the
  // gradients where the engine keeps the weights.
  std::unique_ptr<Model> load(const std::string& prefix) const {
    TempFolder folder;
    std::vector<SafetensorsItem> items;
    for (const NamedTensor& t : tensors.tensors())
      if (const std::string name = weight_name(t.name, prefix); !name.empty())
        items.push_back({name, t.value, t.value.dtype, {}});
    write_safetensors(folder / "model.safetensors", items);
    auto model = std::make_unique<Model>(config);
    const Safetensors file = Safetensors::open(folder / "model.safetensors");
    const std::vector<FileTensor> map = map_tensors(architecture_of(config), *model);
    check_account(map, file);
    bind_tensors(map, file, *model, LoadFor::training);
    return model;
  }
};

struct Step {
  double ce = 0, balance = 0, z = 0, dropped = 0;
};

// Forward and backward of one recorded batch; gradients are added to the model's.
Step forward_backward(Model& model, Run& run, const Golden& golden, int64_t step,
                      ModelSaved& saved) {
  const Json& hyper = golden.about.at("hyper");
  const int64_t rows = hyper.at("batch"), context = hyper.at("context"), tokens = rows * context;
  const int32_t* ids = golden.tensors.get("ids").as<int32_t>() + step * tokens;
  const int32_t* targets = golden.tensors.get("targets").as<int32_t>() + step * tokens;
  std::vector<int32_t> positions;
  std::vector<int64_t> bounds;
  for (int64_t n = 0; n < tokens; ++n) positions.push_back(static_cast<int32_t>(n % context));
  for (int64_t s = 0; s <= rows; ++s) bounds.push_back(s * context);
  const Batch batch{{ids, static_cast<size_t>(tokens)}, positions, bounds};
  const RoutingSpec spec = train_spec(model.config().routing);
  Tensor nll = run.saved.alloc(DType::f32, {tokens});
  const RngKey key =
      RngKey::from_seed(golden.about.at("seed").get<uint64_t>())
          .fold(static_cast<uint64_t>(step));  // the recorded noise is drawn under the same key
  model.forward(
      run,
      {.batch = batch, .routing = &spec, .keep = Keep::all, .key = key, .wanted = Wanted::all()},
      saved);
  model.loss_forward(run, nll, {targets, static_cast<size_t>(tokens)}, saved);
  Step result;
  for (double v : values(nll)) result.ce += v / static_cast<double>(tokens);
  const auto layers = static_cast<float>(saved.routing.size());
  for (const LayerRouting& layer : saved.routing) {
    result.balance += layer.losses.balance;
    result.z += layer.losses.z;
    result.dropped += static_cast<double>(layer.dropped);
  }
  RoutingLosses coef = model.config().routing.coef;
  each_loss(coef, [&](std::string_view, float& c) { c /= layers; });
  model.backward(run, {targets, static_cast<size_t>(tokens)}, 1 / static_cast<float>(tokens), coef,
                 saved);
  return result;
}

void expect_routing(const Golden& golden, const ModelSaved& saved) {
  size_t at = 0;
  for (const Json& layer : golden.about.at("routing")) {
    const Router::Saved& router = saved.blocks[layer.at("layer").get<size_t>()].ffn.router;
    const RoutingPlan& plan = saved.blocks[layer.at("layer").get<size_t>()].ffn.plan;
    const std::set<int32_t> kept(plan.pair.begin(), plan.pair.end());
    for (int64_t n = 0; n < router.choice.rows(); ++n)
      for (int64_t i = 0; i < router.choice.cols(); ++i) {
        EXPECT_EQ(
            router.choice.row<int32_t>(n)[i],
            layer.at("experts").at(static_cast<size_t>(n)).at(static_cast<size_t>(i)).get<int>());
        EXPECT_EQ(
            kept.count(static_cast<int32_t>(n * router.choice.cols() + i)),
            layer.at("kept").at(static_cast<size_t>(n)).at(static_cast<size_t>(i)).get<size_t>());
      }
    ++at;
  }
  EXPECT_EQ(at, saved.routing.size());
}

TrainOptions options_of(const Json& hyper) {
  TrainOptions o;
  o.steps = hyper.at("steps");
  o.lr = hyper.at("lr");
  o.min_lr = o.lr;
  o.schedule = ScheduleKind::constant;
  o.warmup = 0;
  o.beta1 = hyper.at("beta1");
  o.beta2 = hyper.at("beta2");
  o.eps = hyper.at("eps");
  o.weight_decay = hyper.at("weight_decay");
  o.decay_all = hyper.at("decay") == "all";
  o.clip = hyper.at("clip");
  return o;
}

class GoldenRun : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenRun, FirstStepMatches) {
  const Golden golden(GetParam());
  const std::unique_ptr<Model> loaded = golden.load(""), gradients = golden.load("grad.");
  Model& model = *loaded;
  model.enable_grads();
  moe::Run run(2);
  ModelSaved saved;
  forward_backward(model, run, golden, 0, saved);
  expect_routing(golden, saved);
  const Tensor want = golden.tensors.get("logits");
  Tensor logits = run.saved.alloc(DType::f32, {want.rows(), want.cols()});
  model.logits(run, logits, saved.hidden);
  expect_near(logits, values(want), kTwinF32, "logits");
  for (size_t i = 0; i < model.params().size(); ++i) {
    const Param& p = *model.params()[i];
    const std::vector<double> gradient = values(gradients->params()[i]->value);
    // The bias of the keys moves every score of a query alike, which softmax does not see: recorded
    // in double it is rounding, 1e-17.
    if (norm(gradient) < 1e-12) {
      EXPECT_NE(p.name.find("attn.k.bias"), std::string::npos) << p.name << " has no gradient";
      EXPECT_LT(norm(values(p.grad)), 1e-6) << p.name;
      continue;
    }
    expect_near(p.grad, gradient, kTwinF32, "gradient of " + p.name);
  }
}

TEST_P(GoldenRun, TenStepsFollow) {
  const Golden golden(GetParam());
  const Json& hyper = golden.about.at("hyper");
  const std::unique_ptr<Model> loaded = golden.load("");
  Model& model = *loaded;
  moe::Run run(2);
  Optimizer optimizer(Trainable(model, options_of(hyper)).params(), options_of(hyper));
  for (int64_t step = 0; step < hyper.at("steps").get<int64_t>(); ++step) {
    ArenaScope scope(run.saved);
    ModelSaved saved;
    const Step got = forward_backward(model, run, golden, step, saved);
    const Json& want = golden.about.at("steps").at(static_cast<size_t>(step));
    const double norm = optimizer.grad_norm(run);
    // The recorded losses are in the recipe's own convention: nanoMoE adds layers up and its
    // balanced loss is k.
    const double layers = static_cast<double>(saved.routing.size()),
                 k = static_cast<double>(model.config().routing.top_k);
    const double balance =
        hyper.at("balance_form") == "nanomoe" ? got.balance * k : got.balance / layers;
    const double z = hyper.at("layer_reduce") == "sum" ? got.z : got.z / layers;
    EXPECT_NEAR(got.ce, want.at("ce").get<double>(), kGoldenLoss) << "step " << step;
    EXPECT_NEAR(balance, want.at("balance").get<double>(), kGoldenLoss * balance)
        << "step " << step;
    EXPECT_NEAR(z, want.at("z").get<double>(), kGoldenLoss * z) << "step " << step;
    EXPECT_NEAR(norm, want.at("grad_norm").get<double>(), kGoldenLoss * norm) << "step " << step;
    EXPECT_EQ(got.dropped, want.at("dropped").get<double>()) << "step " << step;
    optimizer.update(run, step + 1, hyper.at("lr"), norm);
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenRun,
                         ::testing::Values("nanomoe_bias", "nanomoe_nobias", "nanomoe_noise",
                                           "olmoe_mha", "olmoe_gqa"),
                         [](const auto& item) { return std::string(item.param); });

}  // namespace
}  // namespace moe::test::golden_test
