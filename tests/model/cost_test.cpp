#include "model/cost.h"

#include <gtest/gtest.h>

#include "model/adapters.h"
#include "model/model.h"
#include "support/published.h"
#include "support/routings.h"

namespace moe::cost_test {
namespace {

// Mixtral-8x7B, arXiv 2401.04088, table 1 and its config.json.
ModelConfig mixtral_8x7b() {
  ModelConfig c;
  c.vocab = 32000;
  c.width = 4096;
  c.layers = 32;
  c.heads = 32;
  c.kv_heads = 8;
  c.head_width = 128;
  c.context = 32768;
  c.expert_width = 14336;
  c.routing.recipe = "mixtral";
  c.routing.experts = 8;
  c.routing.top_k = 2;
  return c;
}

// nanoMoE's published configuration (config/train_nano_moe.py): every second layer routes without
// noise, GELU experts, no biases, learned positions, tied head.
ModelConfig nanomoe_published() {
  ModelConfig c;
  c.vocab = 50304;
  c.width = 384;
  c.layers = 6;
  c.heads = c.kv_heads = 6;
  c.head_width = 64;
  c.context = 1024;
  c.norm = NormKind::layer;
  c.positions = Positions::learned;
  c.act = ops::Act::gelu;
  c.gated = false;
  c.tied = true;
  c.dense_width = c.expert_width = 4 * 384;
  c.moe_every = 2;
  c.routing.recipe = "nanomoe";
  c.routing.experts = 8;
  c.routing.top_k = 2;
  c.routing.noise = false;
  return c;
}

TEST(Cost, PublishedTotals) {
  const ParamCount olmoe = count_params(test::olmoe_7b());
  EXPECT_EQ(olmoe.total(), 6919161856);
  EXPECT_EQ(olmoe.active(), 1282017280);
  const ParamCount mixtral = count_params(mixtral_8x7b());
  EXPECT_EQ(mixtral.total(), 46702792704);
  EXPECT_EQ(mixtral.active(), 12879925248);
  const ParamCount nano = count_params(nanomoe_published());
  EXPECT_NEAR(static_cast<double>(nano.total()), 55.11e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(nano.total() - nano[Part::positions]), 54.72e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(nano.active()), 33.88e6, 0.005e6);
}

int64_t built(const ModelConfig& c) {
  const Model model(c);
  int64_t sum = 0;
  for (const Param* p : model.params()) sum += p->value.numel();
  return sum;
}

// Whatever a configuration can say is counted as the model builds it.
TEST(Cost, CountsWhatAModelHolds) {
  ModelConfig c;
  c.vocab = 50;
  c.width = 12;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 6;
  c.context = 16;
  c.dense_width = 20;
  c.expert_width = 10;
  c.routing.recipe = "olmoe";
  c.routing.experts = 5;
  c.routing.top_k = 2;
  const auto check = [&](const char* what) {
    EXPECT_EQ(count_params(c).total(), built(c)) << what;
  };
  check("plain");
  c.dense_first = 1;
  check("a dense layer");
  c.norm = NormKind::layer;
  c.norm_bias = true;
  check("LayerNorm with bias");
  c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  check("biases");
  c.gated = false;
  check("biases without a gate");
  c.qk_norm = QkNorm::head;
  check("QK-norm per head");
  c.qk_norm = QkNorm::full;
  check("QK-norm full");
  c.shared_experts = 2;
  c.shared_width = 7;
  check("shared experts");
  c.shared_gate = true;
  check("a gated shared expert");
  c.norm_placement = NormPlacement::post;
  check("post-norm");
  c.tied = true;
  c.positions = Positions::learned;
  check("tied, learned positions");
  c.routing.recipe = "nanomoe";
  check("learned noise");
  c.routing = {};
  check("dense");
  c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  c.scan_layers = {0, 2};
  check("state spaces");
  c.lightning_layers = {1};
  check("lightning attention");
  c.lightning_layers.clear();
  c.scan = {.heads = 6, .groups = 1, .width = 1, .states = 5, .conv_width = 3, .step_rank = 2};
  check("selective scans");
  c.mixer_only_layers = {0};
  c.ffn_only_layers = {1};
  check("layers of one sublayer");
  c.norm_placement = NormPlacement::both;
  check("layers of one sublayer with norms before and behind");
}

TEST(Cost, CountsTheRouterOfEveryRecipe) {
  ModelConfig c;
  c.vocab = 50;
  c.width = 12;
  c.layers = 3;
  c.heads = c.kv_heads = 2;
  c.head_width = 6;
  c.dense_first = 1;
  for (const RoutingOptions& routing : test::small_routings(6, 2)) {
    c.routing = routing;
    const ParamCount count = count_params(c);
    const Model model(c);
    int64_t trained = 0, buffers = 0, router = 0, multiplied = 0;
    for (const Param* p : model.params()) {
      (p->is_trained() ? trained : buffers) += p->value.numel();
      if (p->is_trained() && p->name.find("router") != std::string::npos) {
        router += p->value.numel();
        if (p->is_matrix()) multiplied += p->value.numel();
      }
      if (is_sketch(*p)) multiplied += p->value.numel();
    }
    EXPECT_EQ(count.total(), trained) << routing.recipe;
    EXPECT_EQ(count.buffers, buffers) << routing.recipe;
    EXPECT_EQ(count[Part::router], router) << routing.recipe;
    EXPECT_EQ(count_flops(c, 64).router, 2.0 * static_cast<double>(multiplied)) << routing.recipe;
    EXPECT_EQ(count_memory(c).weights_bf16, 2 * trained + 4 * buffers)
        << "buffers stay f32: " << routing.recipe;
  }
  c.routing = test::small_routing("hash", 6, 2);
  EXPECT_EQ(count_params(c)[Part::router], 0);
  c.width = 64;
  c.routing = test::small_routing("sketch", 6, 2);
  const ParamCount sketched = count_params(c);
  EXPECT_EQ(sketched.sketch, 2 * 2 * 6 * 64);  // gate and up of two layers
  EXPECT_EQ(count_memory(c).weights_bf16, 2 * sketched.total() + sketched.sketch / 64 * 18);
  c.sketch_bits = 3;  // blocks of 32 in 18 bytes
  EXPECT_EQ(count_params(c).sketch_bytes,
            sketched.sketch / 2 / 64 * 18 + sketched.sketch / 2 / 32 * 18);
  c.width = 12;
  c.routing = test::small_routing("deepseek-v3", 6, 2);
  EXPECT_EQ(count_params(c).buffers, 2 * 6);
}

// A model small enough to add up by hand.
ModelConfig by_hand() {
  ModelConfig c;
  c.vocab = 100;
  c.width = 8;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_width = 4;
  c.dense_width = 16;
  c.expert_width = 12;
  c.dense_first = 1;
  c.routing.recipe = "olmoe";
  c.routing.experts = 4;
  c.routing.top_k = 2;
  return c;
}

// Of a prompt's tokens but the last the last block does keys and values alone.
TEST(Cost, FlopsOfAPrompt) {
  const ModelConfig c = by_hand();
  const FlopCount f = count_flops(c, 64);
  const double spared = 2 * (8 * 8 + 8 * 8) + 4 * 8 * 32 + 2 * 2 * 3 * 8 * 12 + 2 * 8 * 4;
  EXPECT_EQ(prompt_flops(Model(c), 64), 64 * (f.forward() - f.head) + f.head - 63 * spared);
  EXPECT_EQ(prompt_flops(Model(c), 1), count_flops(c, 1).forward());
  // Of two like layers that is half of all but the head, less what makes keys and values; what a
  // router scores by is spared too.
  for (const char* recipe : {"olmoe", "sketch"}) {
    ModelConfig like = c;
    like.dense_first = 0;
    like.expert_width = 1;
    like.routing = test::small_routing(recipe, 6, 2);
    const FlopCount g = count_flops(like, 64);
    const double rest = g.forward() - g.head;
    EXPECT_EQ(prompt_flops(Model(like), 64),
              64 * rest + g.head - 63 * (rest / 2 - 2 * (8 * 4 + 8 * 4)))
        << recipe;
  }
}

TEST(Cost, Flops) {
  const ModelConfig c = by_hand();
  const FlopCount f = count_flops(c, 64);
  EXPECT_EQ(f.projections, 2 * 2 * (8 * 8 + 8 * 4 + 8 * 4 + 8 * 8));
  EXPECT_EQ(f.scores, 4 * 2 * 8 * 32);
  // Of 64 tokens with a window of 16 the first 16 see 8 keys on average and the other 48 see 16.
  ModelConfig windowed = c;
  windowed.attention_window = 16;
  EXPECT_EQ(count_flops(windowed, 64).scores, 4 * 2 * 8 * 14.0);
  windowed.window_layers = {1};
  EXPECT_EQ(count_flops(windowed, 64).scores, 4 * 8 * (32.0 + 14.0));
  windowed.attention_window = 64;
  EXPECT_EQ(count_flops(windowed, 64).scores, f.scores);
  // Of 64 tokens in chunks of 24 two chunks see 12 keys on average, and the other 16 tokens 8.
  windowed.attention_window = 24;
  windowed.window_chunks = true;
  EXPECT_EQ(count_flops(windowed, 64).scores, 4 * 8 * (32.0 + (48 * 12 + 16 * 8) / 64.0));
  EXPECT_EQ(windowed.attention(1).seen_of(24), 24);
  EXPECT_EQ(windowed.attention(1).seen_of(25), 1);
  EXPECT_EQ(windowed.attention(0).seen_of(25), 25);
  EXPECT_EQ(f.dense_ffn, 2 * 3 * 8 * 16);
  EXPECT_EQ(f.experts, 2 * 2 * 3 * 8 * 12);
  EXPECT_EQ(f.router, 2 * 8 * 4);
  EXPECT_EQ(f.head, 2 * 8 * 100);
  EXPECT_EQ(f.shared, 0);
  ModelConfig scanned = c;
  scanned.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3};
  scanned.scan_layers = {0};
  EXPECT_EQ(count_flops(scanned, 64).scores, f.scores / 2 + 4 * 4 * 3 * 5);
  scanned.scan = {
      .heads = 12, .groups = 1, .width = 1, .states = 5, .conv_width = 3, .step_rank = 2};
  EXPECT_EQ(count_flops(scanned, 64).scores, f.scores / 2 + 4 * 12 * 5);
  EXPECT_EQ(count_memory(scanned).state_f32, 4 * (2 * 12 + 12 * 5));
  ModelConfig lightning = c;
  lightning.lightning_layers = {0};
  EXPECT_EQ(count_flops(lightning, 64).scores, f.scores / 2 + 4 * 2 * 4 * 4);
  EXPECT_EQ(count_flops(lightning, 64).projections,
            f.projections / 2 + 2 * 5 * 8 * 8);  // queries, keys, values, gates, and back
  EXPECT_EQ(count_layer_kinds(lightning).linear, 1);
  // The first layer loses its FFN, the second, which routes, its attention and what that keeps.
  ModelConfig halved = c;
  halved.mixer_only_layers = {0};
  halved.ffn_only_layers = {1};
  const FlopCount h = count_flops(halved, 64);
  EXPECT_EQ(h.projections, f.projections / 2);
  EXPECT_EQ(h.scores, f.scores / 2);
  EXPECT_EQ(h.dense_ffn, 0);
  EXPECT_EQ(h.experts, f.experts);
  EXPECT_EQ(h.router, f.router);
  EXPECT_EQ(2 * count_memory(halved).kv_per_token_bf16, count_memory(c).kv_per_token_bf16);
  EXPECT_EQ(f.training(), 3 * f.forward());
}

// More or fewer than the recipe would train with: mixtral's renormalised weights need two.
TEST(Cost, OfAnotherNumberOfExperts) {
  ModelConfig c = by_hand();
  c.routing.recipe = "mixtral";
  const int64_t expert = 3 * 8 * 12;
  for (const int64_t k : {1, 2, 4}) {
    EXPECT_EQ(experts_taken(c, k), k);
    EXPECT_EQ(count_params(c, k).experts_active, k * expert);
    EXPECT_EQ(count_params(c, k).total(), count_params(c).total());
    EXPECT_EQ(count_flops(c, 64, k).experts, static_cast<double>(2 * k * expert));
    EXPECT_EQ(count_flops(c, 64, k).router, count_flops(c, 64).router);
  }
  EXPECT_EQ(experts_taken(c, 0), 2);
  EXPECT_EQ(count_params(c).experts_active, 2 * expert);
}

// They have rows of the router alone, and every choice of one is an expert less that is met.
TEST(Cost, OfZeroExperts) {
  ModelConfig c = by_hand();
  c.routing.recipe = "mixtral";
  const ParamCount without = count_params(c);
  c.routing.zero_experts = c.routing.experts;
  const ParamCount with = count_params(c);
  EXPECT_EQ(with[Part::experts], without[Part::experts]);
  EXPECT_EQ(with[Part::router], 2 * without[Part::router]);
  EXPECT_EQ(2 * with.experts_active, without.experts_active);
  EXPECT_EQ(2 * count_flops(c, 64).experts, static_cast<double>(2 * without.experts_active));
}

// What is not trained has no dW; terms are multiplied forwards, backwards and for their gradients.
TEST(Cost, TrainingFlops) {
  const ModelConfig c = by_hand();
  const FlopCount f = count_flops(c, 64);
  const auto flops = [&](const Model& model, int64_t rows) {
    return training_flops(c, trained_numbers(model), 64, 10, rows);
  };
  Model model(c);
  model.enable_grads();
  EXPECT_DOUBLE_EQ(flops(model, 20), 10 * f.training())
      << "K rows for each token of the one MoE layer";
  EXPECT_DOUBLE_EQ(flops(model, 15), 10 * f.training() - 3 * 5 * (2 * 3 * 8 * 12))
      << "five rows dropped";

  Model frozen(c);
  const double without = 10 * (3 * f.scores + 2 * (f.forward() - f.scores));
  EXPECT_DOUBLE_EQ(flops(frozen, 20), without);
  Adapters terms;
  terms.add(frozen.block(0).ffn.experts.gate, {.rank = 3}, true);  // [1,16,8]
  EXPECT_DOUBLE_EQ(flops(frozen, 20), without + 10 * 6 * 3 * (16 + 8));
  MoeLayer& moe = frozen.block(1).ffn;  // banks [4,12,8]
  terms.add(moe.experts.gate, {.rank = 3}, true);
  const double all = without + 10 * 6 * 3 * (16 + 8) + 20 * 6 * 3 * (12 + 8);
  EXPECT_DOUBLE_EQ(flops(frozen, 20), all);
  terms.add(moe.experts.up, {.rank = 3, .shared = true}, true);
  EXPECT_DOUBLE_EQ(flops(frozen, 20), all + 20 * 6 * 3 * (12 + 8)) << "one pair for all experts";
  terms.take_off();
  EXPECT_DOUBLE_EQ(flops(frozen, 20), without);
}

TEST(Cost, Memory) {
  const ModelConfig c = test::olmoe_7b();
  const MemoryCount m = count_memory(c);
  EXPECT_EQ(m.weights_f32, 4 * count_params(c).total());
  EXPECT_EQ(m.weights_bf16, 2 * count_params(c).total());
  EXPECT_EQ(m.kv_per_token_bf16, 2 * 16 * 2048 * 2);
}

}  // namespace
}  // namespace moe::cost_test
