// The memory that `moe inspect` estimates from shapes against what a training step really holds.
#include <fmt/format.h>

#include "model/cost.h"
#include "ops/cpu/gemm/packed.h"
#include "support/check.h"
#include "support/processes.h"
#include "support/routings.h"
#include "train/memory.h"
#include "train/trainer.h"

namespace moe::test::memory_test {
namespace {

ModelConfig config_of(const char* recipe) {
  ModelConfig c;
  c.width = 96;
  c.layers = 3;
  c.heads = c.kv_heads = 3;
  c.head_width = 32;
  c.context = 128;
  c.dense_width = 256;
  c.expert_width = 128;
  c.qk_norm = QkNorm::full;
  const Recipe& r = find_recipe(recipe);
  c.routing = default_options(r, r.has_router() ? 6 : 1,
                              r.has_router() ? r.default_top_k > 1 ? 2 : 1 : 1, 3);
  return c;
}

// Text of documents of so many tokens; 0: of one.
Corpus text_of(int64_t document) {
  std::vector<int32_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(1), i, 256));
  if (document == 0) return Corpus(std::move(ids));
  std::vector<uint32_t> ends;
  for (int64_t at = document; at < std::ssize(ids); at += document)
    ends.push_back(static_cast<uint32_t>(at));
  ends.push_back(static_cast<uint32_t>(ids.size()));
  return Corpus(std::move(ids), std::move(ends));
}

void expect_estimated(const std::string& name, const ModelConfig& c, DType dtype, bool recompute,
                      const comm::Layout& layout = {}, int64_t document = 0) {
  Model model(c, Storage::owned, layout.experts());
  model.initialise(1);
  const Corpus corpus = text_of(document);
  TrainOptions o;
  o.context = 128;
  o.batch = 16;
  o.dtype = dtype;
  o.recompute = recompute;
  o.threads = 2;
  o.accumulate = layout.all().size;
  Trainer trainer(model, o, corpus, nullptr, layout);
  trainer.step();
  const TrainingMemory m = count_training_memory(c, {.batch = 16,
                                                     .context = 128,
                                                     .dtype = dtype,
                                                     .recompute = recompute,
                                                     .spread = layout.experts().size,
                                                     .document = document});
  const double ratio = static_cast<double>(trainer.peak_activation_bytes()) /
                       static_cast<double>(m.activations + m.scratch);
  EXPECT_GT(ratio, 0.9) << name;
  EXPECT_LT(ratio, 1.1) << name;
}

TEST(Memory, IsEstimatedFromShapes) {
  for (const char* recipe : {"dense", "olmoe", "nanomoe", "switch"})
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool recompute : {false, true})
        expect_estimated(fmt::format("{} {} recompute {}", recipe, name_of(dtype), recompute),
                         config_of(recipe), dtype, recompute);
  ModelConfig c = config_of("mixtral");
  c.shared_experts = 1;
  c.shared_width = 200;
  c.shared_gate = true;
  c.norm_placement = NormPlacement::post;
  expect_estimated("shared, post-norm", c, DType::f32, false);
  for (const NormPlacement beside : {NormPlacement::beside, NormPlacement::beside_each}) {
    c.norm_placement = beside;
    for (const DType dtype : {DType::f32, DType::bf16})
      expect_estimated("experts beside attention", c, dtype, false);
  }
  c.norm_placement = NormPlacement::carried;
  c.multipliers.attention_sum.added = 0.5f;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(
          fmt::format("residuals that norms give {} recompute {}", name_of(dtype), recompute), c,
          dtype, recompute);
  c.lightning_layers = {0, 1};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(
          fmt::format("lightning attention {} recompute {}", name_of(dtype), recompute), c, dtype,
          recompute);
  c.lightning_layers.clear();
  c.multipliers = {};
  c.norm_placement = NormPlacement::both;
  c.attention_gate = c.head_gates = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated("gates of heads", c, dtype, false);
  c.head_gates = false;
  c.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 24, .value_width = 32, .conv_width = 4};
  c.linear_layers = {0, 1};
  c.qk_norm = QkNorm::head;
  c.qk_norm_turned = true;
  expect_estimated("linear attention, norms of what has turned", c, DType::f32, false);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("linear attention {} recompute {}", name_of(dtype), recompute),
                       c, dtype, recompute);
  c.linear.gate_width = 24;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated(fmt::format("decays of channels {}", name_of(dtype)), c, dtype, false);
  c.linear.gate_width = 0;
  c.linear.channel_decays = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated(fmt::format("decays of the token {}", name_of(dtype)), c, dtype, false);
  c.norm_placement = NormPlacement::output;
  c.states_pre_norm = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated(fmt::format("norms in two places {}", name_of(dtype)), c, dtype, false);
  c.norm_placement = NormPlacement::both;
  c.states_pre_norm = false;
  c.linear = {};
  c.linear_layers.clear();
  c.conv_width = 3;
  c.conv_layers = {0, 1, 2};
  expect_estimated("convolutions", c, DType::f32, false);
  c.conv_width = 0;
  c.conv_layers.clear();
  c.scan = {.heads = 6, .groups = 2, .width = 32, .states = 24, .conv_width = 4, .conv_bias = true};
  c.scan_layers = {0, 1};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("state spaces {} recompute {}", name_of(dtype), recompute), c,
                       dtype, recompute);
  c.mixer_only_layers = {0, 1};
  c.ffn_only_layers = {2};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(
          fmt::format("layers of one sublayer {} recompute {}", name_of(dtype), recompute), c,
          dtype, recompute);
  c = config_of("gemma4");
  c.norm_placement = NormPlacement::both;
  c.qk_norm = QkNorm::head;
  c.value_norm = c.layer_scale = c.branch_norms = true;
  c.shared_experts = 1;
  c.shared_width = 200;
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.window_rope_theta = 500;
  c.full = {.kv_heads = 1, .head_width = 2 * c.head_width, .values_of_keys = true};
  c.logit_cap = 30;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(
          fmt::format("branches with norms {} recompute {}", name_of(dtype), recompute), c, dtype,
          recompute);
}

TEST(Memory, OfStateSpacesBesideAttentionIsEstimatedFromShapes) {
  ModelConfig c = config_of("dense");
  c.scan_layers = {0, 1, 2};
  c.scan_beside = true;
  c.multipliers.scan_out = c.multipliers.attention_out = 0.5f;
  for (const bool norm : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      c.scan = {.heads = 6, .groups = 2, .width = 32, .states = 24, .conv_width = 4, .norm = norm};
      expect_estimated(fmt::format("state spaces beside attention {}", name_of(dtype)), c, dtype,
                       false);
    }
}

TEST(Memory, OfSelectiveScansIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.scan_layers = {0, 1};
  for (const bool norm : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool recompute : {false, true}) {
        c.scan = {.heads = 192,
                  .groups = 1,
                  .width = 1,
                  .states = 16,
                  .conv_width = 4,
                  .norm = norm,
                  .step_rank = 24};
        expect_estimated(fmt::format("selective scans {} recompute {}", name_of(dtype), recompute),
                         c, dtype, recompute);
      }
}

TEST(Memory, OfValuesApartIsEstimatedFromShapes) {
  ModelConfig c = config_of("deepseek-v3");
  c.qk_norm = QkNorm::none;
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.window_rope_theta = 500;
  c.full = {.kv_heads = 1};
  c.value_factor = 0.5f;
  c.attention_sinks = c.window_sinks = true;
  for (const int64_t width : {16, 80})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      c.value_width = width;
      expect_estimated(fmt::format("values of {} {}", width, name_of(dtype)), c, dtype, false);
    }
}

TEST(Memory, OfGatesBehindNormsIsEstimatedFromShapes) {
  ModelConfig c = config_of("deepseek-v3");
  c.qk_norm = QkNorm::none;
  c.dense_first = 1;
  c.norm_gate = 16;
  for (const bool latent : {false, true}) {
    if (latent) {
      c.head_width = 48;
      c.rotary_width = 16;
      c.latent = {.width = 64, .query_width = 48, .value_width = 32, .query_both = true};
      c.attention_gate = true;
    }
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool recompute : {false, true})
        expect_estimated(
            fmt::format("gates, latents {} {} recompute {}", latent, name_of(dtype), recompute), c,
            dtype, recompute);
  }
}

TEST(Memory, OfSharedLatentsAndEntriesIsEstimatedFromShapes) {
  ModelConfig c = config_of("deepseek-v3");
  c.qk_norm = QkNorm::none;
  c.heads = 4;
  c.kv_heads = 1;
  c.head_width = 48;
  c.rotary_width = 16;
  c.latent = {.width = 48,
              .query_width = 40,
              .value_width = 48,
              .shared = true,
              .out_groups = 2,
              .out_width = 32};
  c.attention_sinks = true;
  c.attention_window = 64;
  c.window_rope_theta = 500;
  for (const bool entries : {false, true}) {
    if (entries) {
      c.heavy = {.tokens = 32};
      c.heavy_layers = {1};
      c.light = {.tokens = 4, .top = 16, .heads = 2, .width = 24};
      c.light_layers = {2};
    }
    for (const DType dtype : {DType::f32, DType::bf16})
      expect_estimated(fmt::format("shared latents, entries {} {}", entries, name_of(dtype)), c,
                       dtype, false);
  }
}

TEST(Memory, OfSoftplusGatesIsEstimatedFromShapes) {
  ModelConfig c = config_of("deepseek-v3");
  c.qk_norm = QkNorm::head;
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.full = {.heads = 9};
  c.attention_gate = c.gate_softplus = true;
  for (const bool of_heads : {true, false})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      c.head_gates = of_heads;
      expect_estimated(fmt::format("gates of heads {} {}", of_heads, name_of(dtype)), c, dtype,
                       false);
    }
}

TEST(Memory, OfExpertsNormedAndAveragedIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.dense_first = 1;
  c.shared_experts = 1;
  c.shared_width = 200;
  c.shared_average = c.moe_out_norm = true;
  c.routing.recipe = "custom";
  c.routing.coef = {};
  c.routing.stages = R"({"score": "raw", "weigh": {"type": "sigmoids", "renormalise": true}})";
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

// A token's every choice may be an expert with weights, so all of them are estimated.
TEST(Memory, OfZeroExpertsIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.routing.experts = 15;
  c.routing.zero_experts = 1;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

TEST(Memory, OfExpertsThatJoinLaterIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.layers = 4;
  c.moe_layers = {0, 2};
  c.shared_experts = 1;
  c.shared_width = 200;
  c.shortcut = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

TEST(Memory, OfResidualStreamsIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.hyper = {.streams = 4};
  for (const bool mixes : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool recompute : {false, true}) {
        c.hyper.mixes = mixes;
        expect_estimated(fmt::format("mixed {} {} recompute {}", mixes, name_of(dtype), recompute),
                         c, dtype, recompute);
      }
}

TEST(Memory, OfExpertsWhoseInputIsWeighedIsEstimatedFromShapes) {
  ModelConfig c = config_of("mixtral");
  c.weigh_inputs = true;
  c.nope_layers = {1};
  c.query_growth = {.beta = 0.1f, .context = 64, .where_still = true};
  c.qk_norm = QkNorm::bare;
  c.qk_norm_turned = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

TEST(Memory, OfClippedQueriesIsEstimatedFromShapes) {
  ModelConfig c = config_of("olmoe");
  c.qkv_clip = 1;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

TEST(Memory, OfXieluIsEstimatedFromShapes) {
  ModelConfig c = config_of("dense");
  c.gated = false;
  c.xielu = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recompute : {false, true})
      expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                       recompute);
}

// What many narrow experts give is f32 and wider than all that their backward holds in bf16.
TEST(Memory, OfNarrowExpertsIsEstimatedFromShapes) {
  ModelConfig c = config_of("olmoe");
  c.routing = default_options(find_recipe("olmoe"), 48, 24, 3);
  c.expert_width = 8;
  for (const bool recompute : {false, true})
    expect_estimated(fmt::format("narrow experts, recompute {}", recompute), c, DType::bf16,
                     recompute);
}

// What the products of a step packed.
int64_t packed_bytes(const ModelConfig& c, DType dtype, const comm::Layout& layout = {}) {
  Model model(c, Storage::owned, layout.experts());
  model.initialise(1);
  TrainOptions o;
  o.context = 16;
  o.batch = 2;
  o.dtype = dtype;
  o.threads = 2;
  o.accumulate = layout.all().size;
  const Corpus corpus = text_of(0);
  Trainer trainer(model, o, corpus, nullptr, layout);
  trainer.step();
  int64_t bytes = 0;
  for (const Param* param : model.params())
    if (auto* packed = dynamic_cast<ops::PackedWeight*>(param->derived.get()))
      for (const auto& directions : packed->copies)
        for (const ops::PackedWeight::Copies& copies : directions)
          bytes += static_cast<int64_t>(copies.whole.memory.peak());
  return bytes;
}

// One for the product forward and one for that backward, of the type that they are computed in, in
// blocks that experts of 8 do not fill.
TEST(Memory, OfPackedCopiesIsWhatProductsTake) {
  const auto expect_packed = [](const std::string& name, const ModelConfig& c) {
    for (const DType dtype : {DType::f32, DType::bf16})
      EXPECT_EQ(count_training_memory(c, {.dtype = dtype}).copies, packed_bytes(c, dtype))
          << name << ' ' << name_of(dtype);
  };
  ModelConfig c = config_of("olmoe");
  expect_packed("wide experts", c);
  c.expert_width = 8;
  c.shared_experts = 1;
  c.shared_width = 40;
  c.shared_gate = true;
  expect_packed("narrow experts", c);
  c.tied = !c.tied;
  expect_packed("the other head", c);
  c.qk_norm = QkNorm::none;
  c.latent = {.width = 48, .query_width = 40, .value_width = 32};
  c.rotary_width = 16;
  expect_packed("latent attention", c);
  c = config_of("dense");  // more neurons than a product of few columns takes
  c.routing = default_options(find_recipe("sketch"), 64, 16, 3);
  c.expert_width = 1;
  ASSERT_TRUE(c.by_neuron());
  expect_packed("a sketch", c);
}

// Five experts lie on two processes as two and three.
TEST(Memory, OfPackedCopiesIsThatOfTheProcessWithMostExperts) {
  ModelConfig c = config_of("olmoe");
  c.routing = default_options(find_recipe("olmoe"), 5, 5, 3);
  const int64_t estimated = count_training_memory(c, {.spread = 2}).copies;
  run_processes(2, [&](const comm::Group& group) {
    const int64_t bytes = packed_bytes(c, DType::f32, comm::Layout(group, 2));
    if (group.rank == 1) EXPECT_EQ(estimated, bytes);
    else EXPECT_GT(estimated, bytes);
  });
}

// How many pairs a router that knows nothing yet drops is luck; with buffers that hold all of them,
// or that all are full, it is known.
TEST(Memory, OfEveryRecipeIsEstimatedFromShapes) {
  for (const RoutingOptions& routing : small_routings(6, 3)) {
    ModelConfig c = config_of("dense");
    c.routing = routing;
    if (!std::holds_alternative<BufferCapacity>(train_spec(routing).capacity)) {
      expect_estimated(routing.recipe, c, DType::f32, false);
      continue;
    }
    for (const float factor : {100.0f, 0.3f}) {
      c.routing.capacity_factor = factor;
      expect_estimated(fmt::format("{}, capacity factor {}", routing.recipe, factor), c, DType::f32,
                       false);
    }
  }
}

// A row of documents of four tokens is as many sequences, each with buffers of at least four pairs
// an expert: nothing is dropped, whatever the factor is.
TEST(Memory, OfRowsOfManyDocumentsIsEstimatedFromShapes) {
  constexpr int64_t kDocument = 4;
  ModelConfig c = config_of("dense");
  for (const RoutingOptions& routing : small_routings(6, 3)) {
    c.routing = routing;
    if (std::holds_alternative<BufferCapacity>(train_spec(routing).capacity))
      c.routing.capacity_factor = 0.3f;
    expect_estimated(routing.recipe, c, DType::f32, false, {}, kDocument);
  }
  c = config_of("mixtral");
  c.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 24, .value_width = 32, .conv_width = 4};
  c.linear_layers = {0, 1};
  c.qk_norm = QkNorm::head;
  expect_estimated("linear attention", c, DType::f32, false, {}, kDocument);
  c.linear = {};
  c.linear_layers.clear();
  c.scan = {.heads = 6, .groups = 1, .width = 32, .states = 24, .conv_width = 4};
  c.scan_layers = {0, 1};
  expect_estimated("state spaces", c, DType::f32, false, {}, kDocument);
}

// 64 experts have places for 320 of the 512 pairs of a sequence of 256 tokens, and for all of eight
// sequences of 32.
TEST(Memory, GrowsWithTheSequencesOfARowWhereBuffersAreOfASequence) {
  ModelConfig c = config_of("dense");
  c.expert_width = 512;
  c.routing = default_options(find_recipe("st-moe"), 64, 2, 3);
  const auto estimated = [&](int64_t document) {
    const TrainingMemory m =
        count_training_memory(c, {.batch = 16, .context = 256, .document = document});
    return static_cast<double>(m.activations + m.scratch);
  };
  EXPECT_GT(estimated(32), 1.25 * estimated(0));
  EXPECT_EQ(estimated(100000), estimated(0)) << "long documents hardly ever end in a row";
  for (const int64_t document : {1, 2, 7, 300}) EXPECT_GE(estimated(document), estimated(0));
  // The run's own estimate takes the same.
  TrainOptions o;
  o.batch = 16;
  EXPECT_GT(training_need(c, o, Held::nothing, nullptr, false, 32).total(),
            training_need(c, o, Held::nothing).total());
}

// Gradients, moments and adapters by name, against what a trainer makes.
TEST(Memory, WhatIsTrainedIsEstimatedForEveryTune) {
  const ModelConfig c = config_of("olmoe");
  for (const Tune tune : {Tune::all, Tune::router, Tune::lora, Tune::lora_router, Tune::lora_norms,
                          Tune::experts_hot}) {
    TrainOptions o;
    o.tune = tune;
    for (int64_t l = 0; tune == Tune::experts_hot && l < c.layers; ++l)
      o.hot.push_back({l, {1, 2 + l}, 0.5});
    o.context = 128;
    for (const bool shared : {false, true}) {
      o.lora_shared = shared && tunes_adapters(tune);
      if (!shared && tunes_adapters(tune)) o.tune_tokens = {"3", "5"}, o.token_ids = {3, 5};
      Model model(c);
      model.initialise(1);
      const Model shapes(c, Storage::bound);
      const TrainedBytes estimated = trained_bytes(shapes, resolved(o));
      const Trainable trainable(model, resolved(o));
      int64_t gradients = 0, moments = 0, adapters = 0;
      for (const Param* param : model.params())
        gradients += param->grad.empty() ? 0 : param->grad.bytes();
      for (const Param* param : trainable.params()) moments += 2 * param->value.bytes();
      for (const auto& a : trainable.adapters())
        adapters += a->a.value.bytes() + a->a.grad.bytes() + a->b.value.bytes() + a->b.grad.bytes();
      for (const auto& made : trainable.token_rows())
        adapters += made->rows.value.bytes() + made->rows.grad.bytes();
      EXPECT_EQ(estimated.gradients, gradients) << name_of(tune);
      EXPECT_EQ(estimated.moments, moments) << name_of(tune);
      EXPECT_EQ(estimated.adapters, adapters) << name_of(tune);
    }
  }
}

// From the configuration alone as from the options of a run.
TEST(Memory, MuonKeepsOneMomentOfMatrices) {
  const ModelConfig c = config_of("olmoe");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainOptions o;
    o.context = 128;
    o.batch = 2;
    o.dtype = dtype;
    const TrainingShape shape{.batch = o.batch, .context = o.context, .dtype = dtype};
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
      o.optimizer = kind;
      const MemoryNeed need = training_need(c, o, Held::nothing);
      const TrainingMemory counted = training_memory(c, shape, kind);
      for (const MemoryNeed::Part& part : need.parts) {
        if (part.name == "moments") EXPECT_EQ(part.bytes, counted.moments) << name_of(kind);
        if (part.name == "packed") EXPECT_EQ(part.bytes, counted.copies) << name_of(kind);
        if (part.name == "scratch") EXPECT_EQ(part.bytes, counted.scratch) << name_of(kind);
      }
    }
    const ParamCount p = count_params(c);
    const int64_t saved = training_memory(c, shape, OptimizerKind::adamw).moments -
                          training_memory(c, shape, OptimizerKind::muon).moments;
    EXPECT_GE(saved, 4 * p[Part::experts]);
    EXPECT_LE(saved, 4 * (p[Part::experts] + p[Part::attention]));
  }
}

// Every token goes to every expert, so that processes have the same number of rows.
TEST(Memory, IsEstimatedWhereExpertsAreSpread) {
  ModelConfig c = config_of("olmoe");
  c.routing.top_k = c.routing.experts;
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool recompute : {false, true})
      run_processes(2, [&](const comm::Group& group) {
        expect_estimated(fmt::format("{} recompute {}", name_of(dtype), recompute), c, dtype,
                         recompute, comm::Layout(group, 2));
      });
  TrainOptions o;
  o.batch = 1;
  o.context = 16;
  const TrainingMemory whole = count_training_memory(c, {}),
                       spread = count_training_memory(c, {.spread = 2});
  const int64_t experts = count_params(c)[Part::experts];
  EXPECT_EQ(whole.masters - spread.masters, 4 * experts / 2);
  EXPECT_EQ(whole.moments - spread.moments, 8 * experts / 2);
  const int64_t held = training_need(c, o, Held::nothing).total();
  o.expert_parallel = 2;
  EXPECT_LT(training_need(c, o, Held::nothing).total(), held);
}

TEST(Memory, TheBatchThatIsAdvisedFits) {
  const ModelConfig c = config_of("olmoe");
  TrainOptions o;
  o.context = 128;
  o.batch = 5000;
  constexpr int64_t kLeft = int64_t{200} << 20;
  EXPECT_GT(training_need(c, o, Held::nothing).total(), kLeft);
  const std::string advice = spelled(training_advice(c, o, Held::nothing, {}, kLeft));
  ASSERT_TRUE(advice.starts_with("lower batch (now 5000) to ")) << advice;
  const int64_t batch = std::stoll(advice.substr(26)),
                times = std::stoll(advice.substr(advice.rfind("to ") + 3));
  EXPECT_GE(batch * times, 5000);
  o.batch = batch;
  EXPECT_LE(training_need(c, o, Held::nothing).total(), kLeft);
  o.batch = batch + 1;
  EXPECT_GT(training_need(c, o, Held::nothing).total(), kLeft) << "a larger one would have done";
  EXPECT_EQ(training_need(c, o, Held::nothing).total() - training_need(c, o, Held::weights).total(),
            4 * (count_params(c).total() + count_params(c).buffers));
  EXPECT_NE(training_advice(c, o, Held::nothing, {}, 1000).find("smaller model"),
            std::string::npos);
  o.batch = 64;
  EXPECT_NE(spelled(training_advice(c, o, Held::nothing, {},
                                    training_need(c, o, Held::nothing).total() - 1))
                .find("or add recompute"),
            std::string::npos);
}

TEST(Memory, RecomputingKeepsAThirdOfTheActivations) {
  ModelConfig c = config_of("olmoe");
  c.layers = 6;
  const TrainingShape keep{.batch = 16, .context = 128},
      recompute{.batch = 16, .context = 128, .recompute = true};
  EXPECT_LT(static_cast<double>(count_training_memory(c, recompute).activations),
            0.35 * static_cast<double>(count_training_memory(c, keep).activations));
}

}  // namespace
}  // namespace moe::test::memory_test
