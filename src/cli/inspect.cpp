#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/choices.h"
#include "cli/inspect_text.h"
#include "cli/options.h"
#include "cli/presets.h"
#include "cli/replies.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/config_json.h"
#include "hub/gguf_model.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "model/cost.h"
#include "model/variants.h"
#include "text/bpe_train.h"
#include "train/options.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, preset, dtype = "auto";
  TrainingShape training{.batch = 8, .context = 0};
  TextFlags text;
  bool json = false;
};

Json variants_json(const ModelConfig& c) {
  Json rows = Json::array();
  for (const Variant& v : fine_grained_variants(c)) {
    const std::string sets = combinations(v.experts, v.top_k);
    rows.push_back({{"name", v.name},
                    {"is_model", v.is_model},
                    {"experts", v.experts},
                    {"top_k", v.top_k},
                    {"expert_width", v.expert_width},
                    {"shared_experts", v.shared_experts},
                    {"parameters", v.params.total()},
                    {"active", v.params.active()},
                    {"router", v.params[Part::router]},
                    {"combinations", sets.empty() ? Json(nullptr) : Json(sets)},
                    {"combinations_log2", log2_combinations(v.experts, v.top_k)}});
  }
  return rows;
}

Json dense_json(const ModelConfig& c) {
  if (c.moe_layer_count() == 0) return nullptr;
  const auto twin = [](const DenseTwin& t) {
    return Json({{"ffn_width", t.ffn_width}, {"parameters", t.params.total()}, {"flops_per_token", t.flops.forward()}});
  };
  return {{"equal_flops", twin(dense_of_equal_flops(c, c.context))}, {"equal_parameters", twin(dense_of_equal_params(c, c.context))}};
}

// Choices that an evaluation keeps of a token; 0 without MoE layers.
int64_t slots_of(const ModelConfig& c) { return c.moe_layer_count() > 0 ? eval_spec(c.routing).slots() : 0; }

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
  print_part("embedding", p[Part::embedding] + p[Part::positions], p[Part::embedding] + p[Part::positions], 0, cost);
  print_part("attention", p[Part::attention], p[Part::attention], f.projections + f.scores, cost);
  print_part("norms", p[Part::norms], p[Part::norms], 0, cost);
  print_part("dense FFN", p[Part::dense_ffn], p[Part::dense_ffn], f.dense_ffn, cost);
  print_part("router", p[Part::router], p[Part::router], f.router, cost);
  print_part("experts", p[Part::experts], p.experts_active, f.experts, cost);
  print_part("shared", p[Part::shared], p[Part::shared], f.shared, cost);
  print_part("head", p[Part::head], p[Part::head], f.head, cost);
  fmt::print("\nFLOPs a token: {} forward, {} training (sequences of {})\n", human_count(f.forward()), human_count(f.training()), c.context);
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  fmt::print("memory: weights {} f32, {} bf16; cache {} a token in bf16\n", size(cost.memory.weights_f32), size(cost.memory.weights_bf16),
             size(cost.memory.kv_per_token_bf16));
  const TrainingMemory t = count_training_memory(c, shape);
  fmt::print("training in {} on {} x {} tokens{}: {} = masters {} + gradients {} + moments {} + packed {} + activations {} + scratch {}\n",
             name_of(shape.dtype), shape.batch, shape.context, shape.recompute ? " with --recompute" : "", size(t.total()), size(t.masters), size(t.gradients),
             size(t.moments), size(t.packed), size(t.activations), size(t.scratch));
}

// 4426165368 as 4,426,165,368.
std::string grouped(std::string digits) {
  for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, ",");
  return digits;
}

// Figure 2 of DeepSeekMoE for this model, and what its sparse layers buy.
void print_comparison(const ModelConfig& c, const ModelCost& cost) {
  const std::vector<Variant> variants = fine_grained_variants(c);
  if (!variants.empty()) {
    fmt::print("\nthe same experts cut differently: total and active parameters equal but for the router's\n");
    fmt::print("  {:<22}{:>12}{:>8}{:>8}{:>9}{:>9}  {}\n", "", "chosen", "shared", "width", "params", "active", "sets a token can get: C(E, K)");
  }
  for (const Variant& v : variants) {
    const std::string sets = combinations(v.experts, v.top_k);
    const std::string power = fmt::format("2^{:.2f}", log2_combinations(v.experts, v.top_k));
    fmt::print("{} {:<22}{:>12}{:>8}{:>8}{:>9}{:>9}  {}\n", v.is_model ? '*' : ' ', v.name, fmt::format("{} of {}", v.top_k, v.experts), v.shared_experts,
               v.expert_width, human_count(static_cast<double>(v.params.total())), human_count(static_cast<double>(v.params.active())),
               sets.empty() || sets.size() > 18 ? fmt::format("{} ({} digits: --json)", power, sets.empty() ? "too many" : std::to_string(sets.size()))
                                                : fmt::format("{} = {}", power, grouped(sets)));
  }
  const DenseTwin flops = dense_of_equal_flops(c, c.context), params = dense_of_equal_params(c, c.context);
  const auto count = [](auto x) { return human_count(static_cast<double>(x)); };
  fmt::print("\nagainst dense layers of the same FLOPs (width {}): {} parameters where dense has {}, {:.2f} times as many\n", flops.ffn_width,
             count(cost.params.total()), count(flops.params.total()), static_cast<double>(cost.params.total()) / static_cast<double>(flops.params.total()));
  fmt::print("against dense layers of the same parameters (width {}): {} FLOPs a token where dense takes {}, {:.2f} times as few\n", params.ffn_width,
             count(cost.flops.forward()), count(params.flops.forward()), params.flops.forward() / cost.flops.forward());
}

// The model that `moe train --preset` would make.
ModelConfig preset_config(const std::string& name) {
  CLI::App app;
  ModelFlags model;
  TrainOptions train;
  add_model_options(app, model);
  add_train_options(app, train);
  model.preset = name;
  apply_files(app, model, train);
  return make_config(model, vocabulary_of(model.tokenizer), train.context);
}

ModelConfig config_of(const Flags& f) {
  if (f.model.empty() == f.preset.empty()) fail_usage("moe inspect needs a model, or --preset NAME in its place");
  if (!f.preset.empty()) return preset_config(f.preset);
  return read_model_config(f.model);
}

int run_inspect(const CLI::App& app, Flags& f) {
  check_text_options(app, f.text);
  if (!f.text.texts.empty() && f.model.empty()) fail_usage("--text needs a model to run");
  const ModelConfig config = config_of(f);
  const ModelCost cost = count_cost(config, config.context);
  const std::optional<DType> asked = parse_compute_dtype(f.dtype);
  f.training.dtype = asked.value_or(DType::f32);
  if (f.training.context == 0) f.training.context = config.context;
  if (f.training.batch < 1 || f.training.context < 1) fail_usage("--batch and --context must be at least 1");
  if (!f.text.texts.empty() && !f.json) {
    inspect_text(f.model, f.text, asked, nullptr);
    return 0;
  }
  if (f.json) {
    Json reply = inspect_reply(config, f.training);
    if (!f.text.texts.empty()) inspect_text(f.model, f.text, asked, &reply);
    print_json(reply);
    return 0;
  }
  print_text(config, cost, f.training);
  if (config.moe_layer_count() > 0) print_comparison(config, cost);
  return 0;
}

}  // namespace

Json inspect_reply(const ModelConfig& c, const TrainingShape& shape) {
  const ModelCost cost = count_cost(c, c.context);
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
          {"slots", slots_of(c)},
          {"vocab", c.vocab},
          {"context", c.context},
          {"variants", variants_json(c)},
          {"dense", dense_json(c)},
          {"parameters",
           {{"total", p.total()},
            {"active", p.active()},
            {"embedding", p[Part::embedding]},
            {"positions", p[Part::positions]},
            {"head", p[Part::head]},
            {"norms", p[Part::norms]},
            {"attention", p[Part::attention]},
            {"dense_ffn", p[Part::dense_ffn]},
            {"experts", p[Part::experts]},
            {"experts_active", p.experts_active},
            {"shared", p[Part::shared]},
            {"router", p[Part::router]}}},
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

Action add_inspect(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, fmt::format("a model: {}; without --text only its configuration is read", kModelIs));
  app.add_option("--preset", f->preset, fmt::format("or the model of a preset: {}", listed(presets())));
  app.add_option("--batch", f->training.batch, "rows a micro-batch, for the memory of training")->capture_default_str();
  app.add_option("--context", f->training.context, "tokens a row, for the memory of training; 0: the model's")->capture_default_str();
  app.add_option("--dtype", f->dtype, "f32 or bf16 products, for the memory of training (auto: f32) and for --text (auto: as in moe score)")
      ->capture_default_str();
  app.add_flag("--recompute", f->training.recompute, "for the memory of training");
  app.add_flag("--json", f->json, "one JSON object on standard output");
  add_text_options(app, f->text);
  return [f, &app] { return run_inspect(app, *f); };
}

}  // namespace moe::cli
