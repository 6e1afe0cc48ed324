#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/config_json.h"
#include "hub/hub.h"
#include "model/cost.h"
#include "train/options.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, dtype = "f32";
  TrainingShape training{.batch = 8, .context = 0};
  bool json = false;
};

Json to_json(const ModelConfig& c, const ModelCost& cost, const TrainingShape& shape) {
  const TrainingMemory t = count_training_memory(c, shape);
  const ParamCount& p = cost.params;
  const FlopCount& f = cost.flops;
  const MemoryCount& m = cost.memory;
  return {{"recipe", c.routing.recipe},
          {"layers", c.layers},
          {"moe_layers", c.moe_layer_count()},
          {"width", c.width},
          {"experts", c.routing.experts},
          {"top_k", c.routing.top_k},
          {"vocab", c.vocab},
          {"context", c.context},
          {"parameters",
           {{"total", p.total()},
            {"active", p.active()},
            {"embedding", p.embedding},
            {"positions", p.positions},
            {"head", p.head},
            {"norms", p.norms},
            {"attention", p.attention},
            {"dense_ffn", p.dense_ffn},
            {"experts", p.experts},
            {"experts_active", p.experts_active},
            {"shared", p.shared},
            {"router", p.router}}},
          {"flops_per_token",
           {{"forward", f.forward()},
            {"training", f.training()},
            {"projections", f.projections},
            {"scores", f.scores},
            {"dense_ffn", f.dense_ffn},
            {"experts", f.experts},
            {"shared", f.shared},
            {"router", f.router},
            {"head", f.head}}},
          {"bytes",
           {{"weights_f32", m.weights_f32},
            {"weights_bf16", m.weights_bf16},
            {"kv_per_token_bf16", m.kv_per_token_bf16},
            {"training",
             {{"batch", shape.batch},
              {"context", shape.context},
              {"dtype", name_of(shape.dtype)},
              {"recompute", shape.recompute},
              {"total", t.total()},
              {"masters", t.masters},
              {"gradients", t.gradients},
              {"moments", t.moments},
              {"packed", t.packed},
              {"activations", t.activations},
              {"scratch", t.scratch}}}}}};
}

void print_part(const char* name, int64_t params, int64_t active, double flops, const ModelCost& cost) {
  if (params == 0 && flops == 0) return;
  fmt::print("  {:<12}{:>10} {:>10} {:>6.1f}%{:>10} {:>6.1f}%\n", name, human_count(static_cast<double>(params)), human_count(static_cast<double>(active)),
             100.0 * static_cast<double>(active) / static_cast<double>(cost.params.active()), human_count(flops), 100 * flops / cost.flops.forward());
}

void print_text(const ModelConfig& c, const ModelCost& cost, const TrainingShape& shape) {
  const ParamCount& p = cost.params;
  const FlopCount& f = cost.flops;
  fmt::print("{} layers of width {}, {} heads ({} key/value) of {}, vocabulary {}, context {}\n", c.layers, c.width, c.heads, c.kv_heads, c.head_width, c.vocab,
             c.context);
  if (c.moe_layer_count() > 0)
    fmt::print("{} MoE layers: recipe {}, {} of {} experts of width {} a token{}\n", c.moe_layer_count(), c.routing.recipe, c.routing.top_k, c.routing.experts,
               c.expert_width, c.shared_experts > 0 ? fmt::format(", {} shared of width {}", c.shared_experts, c.shared_width) : "");
  fmt::print("parameters: {} in all, {} active for a token ({:.1f}%)\n\n", human_count(static_cast<double>(p.total())),
             human_count(static_cast<double>(p.active())), 100.0 * static_cast<double>(p.active()) / static_cast<double>(p.total()));
  fmt::print("  {:<12}{:>10} {:>10} {:>7}{:>10} {:>7}\n", "part", "params", "active", "share", "FLOPs", "share");
  print_part("embedding", p.embedding + p.positions, p.embedding + p.positions, 0, cost);
  print_part("attention", p.attention, p.attention, f.projections + f.scores, cost);
  print_part("norms", p.norms, p.norms, 0, cost);
  print_part("dense FFN", p.dense_ffn, p.dense_ffn, f.dense_ffn, cost);
  print_part("router", p.router, p.router, f.router, cost);
  print_part("experts", p.experts, p.experts_active, f.experts, cost);
  print_part("shared", p.shared, p.shared, f.shared, cost);
  print_part("head", p.head, p.head, f.head, cost);
  fmt::print("\nFLOPs a token: {} forward, {} training (sequences of {})\n", human_count(f.forward()), human_count(f.training()), c.context);
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  fmt::print("memory: weights {} f32, {} bf16; cache {} a token in bf16\n", size(cost.memory.weights_f32), size(cost.memory.weights_bf16),
             size(cost.memory.kv_per_token_bf16));
  const TrainingMemory t = count_training_memory(c, shape);
  fmt::print("training in {} on {} x {} tokens{}: {} = masters {} + gradients {} + moments {} + packed {} + activations {} + scratch {}\n",
             name_of(shape.dtype), shape.batch, shape.context, shape.recompute ? " with --recompute" : "", size(t.total()), size(t.masters), size(t.gradients),
             size(t.moments), size(t.packed), size(t.activations), size(t.scratch));
}

int run_inspect(Flags& f) {
  const std::string path = f.model + "/config.json";
  const ModelConfig config = parse_config(read_text(path), path);
  const ModelCost cost = count_cost(config, config.context);
  f.training.dtype = parse_train_dtype(f.dtype);
  if (f.training.context == 0) f.training.context = config.context;
  if (f.training.batch < 1 || f.training.context < 1) fail_usage("--batch and --context must be at least 1");
  if (f.json) fmt::print("{}\n", to_json(config, cost, f.training).dump());
  else print_text(config, cost, f.training);
  return 0;
}

}  // namespace

Action add_inspect(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, "a model folder; only its config.json is read")->required();
  app.add_option("--batch", f->training.batch, "rows a micro-batch, for the memory of training")->capture_default_str();
  app.add_option("--context", f->training.context, "tokens a row, for the memory of training; 0: the model's")->capture_default_str();
  app.add_option("--dtype", f->dtype, "f32 or bf16 products, for the memory of training")->capture_default_str();
  app.add_flag("--recompute", f->training.recompute, "for the memory of training");
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_inspect(*f); };
}

}  // namespace moe::cli
