#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/texts/tables.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_model.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "jobs/inspect_text.h"
#include "jobs/presets.h"
#include "jobs/replies.h"
#include "jobs/run_options.h"
#include "jobs/train_memory.h"
#include "model/cost.h"
#include "model/variants.h"
#include "train/memory.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, preset;
  std::optional<DType> dtype;
  TrainingShape training{.batch = 8, .context = 0};
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t lora_rank = 0;
  bool lora_shared = false;
  std::optional<double> hot_share;
  InspectTextJob text;
  bool json = false;
  Given given;
};

void print_part(const char* name, int64_t params, int64_t active, double flops,
                const ModelCost& cost) {
  if (params == 0 && flops == 0) return;
  fmt::print("  {:<12}{:>10} {:>10} {:>6.1f}%{:>10} {:>6.1f}%\n", name,
             human_count(static_cast<double>(params)), human_count(static_cast<double>(active)),
             100.0 * static_cast<double>(active) / static_cast<double>(cost.params.active()),
             human_count(flops), 100 * flops / cost.flops.forward());
}

std::string size(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

std::string shape_words(const TrainingShape& s) {
  return fmt::format("in {} on {} x {} tokens{}", name_of(s.dtype), s.batch, s.context,
                     s.recompute ? " with --recompute" : "");
}

void print_training(const ModelConfig& c, const TrainingShape& shape, OptimizerKind optimizer) {
  const TrainingMemory t = training_memory(c, shape, optimizer);
  fmt::print(
      "training {}{}: {} = masters {} + gradients {} + moments {} + packed {} + activations {} + "
      "scratch {}\n",
      shape_words(shape), optimizer == OptimizerKind::muon ? " by Muon" : "", size(t.total()),
      size(t.masters), size(t.gradients), size(t.moments), size(t.copies), size(t.activations),
      size(t.scratch));
}

void print_adapters(const Flags& f, const MemoryNeed& need) {
  fmt::print("training adapters of rank {} {}{}: {}\n", f.lora_rank,
             f.hot_share ? "of hot experts, at most, " : "", shape_words(f.training),
             describe(need, resident_memory()));
}

// What layers have that is not attention and an FFN, each behind the other.
void print_layer_kinds(const ModelConfig& c) {
  const LayerKinds kinds = count_layer_kinds(c);
  for (const auto& [layers, what] :
       {std::pair(kinds.linear, "linear attention"), std::pair(kinds.conv, "a gated convolution"),
        std::pair(kinds.scan, "a state space")})
    if (layers > 0)
      fmt::print("{} of {} layers have {} in place of attention\n", layers, c.layers, what);
  if (c.has_halves())
    fmt::print("layers of one sublayer alone: {} without an FFN, {} that are an FFN\n",
               kinds.mixer_alone, kinds.ffn_alone);
}

void print_text(const ModelConfig& c, const ModelCost& cost) {
  const ParamCount& p = cost.params;
  const FlopCount& f = cost.flops;
  fmt::print("{} layers of width {}, {} heads ({} key/value) of {}, vocabulary {}, context {}\n",
             c.layers, c.width, c.heads, c.kv_heads, c.head_width, c.vocab, c.context);
  if (c.value_width > 0) fmt::print("values of a head: {}\n", c.value_width);
  int64_t full = 0;  // the first layer without a window
  while (full + 1 < c.layers && c.has_window(full)) ++full;
  if (const AttentionShape shape = c.attention(full); c.full.present())
    fmt::print("layers without a window: {} heads ({} key/value) of {}{}\n", shape.heads,
               shape.kv_heads, shape.key_width,
               shape.values_of_keys ? ", values made of what keys are" : "");
  print_layer_kinds(c);
  if (c.moe_layer_count() > 0)
    fmt::print(
        "{} MoE layers: recipe {}, {} of {} experts of width {}{} a token{}\n", c.moe_layer_count(),
        c.routing.recipe, c.routing.top_k, c.routing.experts, c.expert_width,
        c.routing.zero_experts > 0 ? fmt::format(" and {} zero ones", c.routing.zero_experts) : "",
        c.shared_experts > 0
            ? fmt::format(", {} shared of width {}{}", c.shared_experts, c.shared_width,
                          c.shared_average ? ", averaged with these" : "")
            : "");
  fmt::print("parameters: {} in all, {} active for a token ({:.1f}%)\n\n",
             human_count(static_cast<double>(p.total())),
             human_count(static_cast<double>(p.active())),
             100.0 * static_cast<double>(p.active()) / static_cast<double>(p.total()));
  fmt::print("  {:<12}{:>10} {:>10} {:>7}{:>10} {:>7}\n", "part", "params", "active", "share",
             "FLOPs", "share");
  print_part("embedding", p[Part::embedding] + p[Part::positions],
             p[Part::embedding] + p[Part::positions], 0, cost);
  print_part("attention", p[Part::attention], p[Part::attention], f.projections + f.scores, cost);
  print_part("norms", p[Part::norms], p[Part::norms], 0, cost);
  print_part("dense FFN", p[Part::dense_ffn], p[Part::dense_ffn], f.dense_ffn, cost);
  print_part("router", p[Part::router], p[Part::router], f.router, cost);
  print_part("experts", p[Part::experts], p.experts_active, f.experts, cost);
  print_part("shared", p[Part::shared], p[Part::shared], f.shared, cost);
  print_part("head", p[Part::lm_head], p[Part::lm_head], f.head, cost);
  fmt::print("\nFLOPs a token: {} forward, {} training (sequences of {})\n",
             human_count(f.forward()), human_count(f.training()), c.context);
  fmt::print("memory: weights {} f32, {} bf16; cache {} a token in bf16{}\n",
             size(cost.memory.weights_f32), size(cost.memory.weights_bf16),
             size(cost.memory.kv_per_token_bf16),
             cost.memory.state_f32 > 0
                 ? fmt::format(", {} a sequence in f32", size(cost.memory.state_f32))
                 : "");
}

// 4426165368 as 4,426,165,368.
std::string grouped(std::string digits) {
  for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

// Figure 2 of DeepSeekMoE for this model, and what its sparse layers buy.
void print_comparison(const ModelConfig& c, const ModelCost& cost) {
  const std::vector<Variant> variants = fine_grained_variants(c);
  if (!variants.empty()) {
    fmt::print(
        "\nthe same experts cut differently: total and active parameters equal but for the "
        "router's\n");
    fmt::print("  {:<22}{:>12}{:>8}{:>8}{:>9}{:>9}  {}\n", "", "chosen", "shared", "width",
               "params", "active", "sets a token can get: C(E, K)");
  }
  for (const Variant& v : variants) {
    const std::string sets = combinations(v.experts, v.top_k);
    const std::string power = fmt::format("2^{:.2f}", log2_combinations(v.experts, v.top_k));
    fmt::print("{} {:<22}{:>12}{:>8}{:>8}{:>9}{:>9}  {}\n", v.is_model ? '*' : ' ', v.name,
               fmt::format("{} of {}", v.top_k, v.experts), v.shared_experts, v.expert_width,
               human_count(static_cast<double>(v.params.total())),
               human_count(static_cast<double>(v.params.active())),
               sets.empty() || sets.size() > 18
                   ? fmt::format("{} ({} digits: --json)", power,
                                 sets.empty() ? "too many" : std::to_string(sets.size()))
                   : fmt::format("{} = {}", power, grouped(sets)));
  }
  const DenseTwin flops = dense_of_equal_flops(c, c.context),
                  params = dense_of_equal_params(c, c.context);
  const auto count = [](auto x) { return human_count(static_cast<double>(x)); };
  fmt::print(
      "\nagainst dense layers of the same FLOPs (width {}): {} parameters where dense has {}, "
      "{:.2f} times as many\n",
      flops.ffn_width, count(cost.params.total()), count(flops.params.total()),
      static_cast<double>(cost.params.total()) / static_cast<double>(flops.params.total()));
  fmt::print(
      "against dense layers of the same parameters (width {}): {} FLOPs a token where dense takes "
      "{}, {:.2f} times as few\n",
      params.ffn_width, count(cost.flops.forward()), count(params.flops.forward()),
      params.flops.forward() / cost.flops.forward());
}

ModelConfig config_of(const Flags& f) {
  if (f.model.empty() && f.preset.empty())
    fail_usage("moe inspect needs a model, or --preset NAME in its place");
  if (!f.model.empty() && !f.preset.empty())
    fail_usage("a model and --preset both say what to inspect; give one of them");
  if (!f.preset.empty()) return preset_config(f.preset);
  return read_model_config(f.model);
}

int run_inspect_text(const Flags& f) {
  const InspectedText found = inspect_text(f.text, on_screen());
  fmt::print("{}", routing_tables(found.report, found.history ? &*found.history : nullptr));
  if (!found.report.moe_layers.empty())
    fmt::print(
        "\nmore by --json and --html FILE: loads, co-activation, every expert of every text, "
        "sample texts\n");
  if (!f.text.html.empty()) fmt::print("the page is in {}\n", f.text.html);
  if (!f.text.pictures.empty()) fmt::print("the pictures are in {}\n", f.text.pictures);
  return 0;
}

// What training adapters takes, where that is asked for: of a model whose weights are there.
std::optional<MemoryNeed> adapters_of(const Flags& f) {
  if (f.lora_rank == 0 && (f.hot_share || f.lora_shared))
    fail_usage("{} is of adapters; add --lora-rank", f.hot_share ? "--hot-share" : "--lora-shared");
  if (f.lora_rank == 0) return std::nullopt;
  if (f.optimizer == OptimizerKind::muon)
    fail_usage("--optimizer muon moves whole matrices, and --lora-rank trains none; leave one out");
  if (f.lora_rank < 0) fail_usage("--lora-rank must be at least 1");
  if (f.model.empty()) fail_usage("--lora-rank needs a model with weights");
  TrainOptions options;
  options.tune = f.hot_share ? Tune::experts_hot : Tune::lora;
  if (f.hot_share) options.hot_share = *f.hot_share;
  options.lora_rank = f.lora_rank;
  options.batch = f.training.batch;
  options.context = f.training.context;
  options.dtype = f.training.dtype;
  options.recompute = f.training.recompute;
  options.lora_shared = f.lora_shared;
  const LoadedModel loaded = open_model(f.model, {});
  if ((f.hot_share || f.lora_shared) && loaded.model->config().moe_layer_count() == 0)
    fail_usage("{} is of experts; this model is dense",
               f.hot_share ? "--hot-share" : "--lora-shared");
  validate(options);
  return adapter_need(*loaded.model, options);
}

int run_inspect(Flags& f) {
  check_given(f.text, f.given);
  const bool has_text = !f.text.texts.empty();
  if (has_text && f.model.empty()) fail_usage("--text needs a model to run");
  const ModelConfig config = config_of(f);
  f.training.dtype = f.dtype.value_or(DType::f32);
  if (f.training.context == 0) f.training.context = config.context;
  if (f.training.batch < 1 || f.training.context < 1)
    fail_usage("--batch and --context must be at least 1");
  f.text.model = f.model;
  f.text.dtype = f.dtype;
  const std::optional<MemoryNeed> of_adapters = adapters_of(f);
  if (f.json) {
    Json reply = inspect_reply(config, f.training, f.optimizer);
    for (const MemoryNeed::Part& part : of_adapters ? of_adapters->parts : MemoryNeed{}.parts)
      reply["bytes"]["adapters"][part.name] = part.bytes;
    if (has_text) add_to_json(reply, inspect_text(f.text, on_screen()));
    print_json(reply);
    return 0;
  }
  if (has_text) return run_inspect_text(f);
  const ModelCost cost = count_cost(config, config.context);
  print_text(config, cost);
  if (of_adapters) print_adapters(f, *of_adapters);
  else print_training(config, f.training, f.optimizer);
  if (config.moe_layer_count() > 0) print_comparison(config, cost);
  return 0;
}

}  // namespace

Action add_inspect(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("MODEL", f->model,
           fmt::format("a model: {}; without @text only its configuration is read", kModelIs))
      .positional();
  const std::vector<std::string> names = names_of(presets());
  list.add("preset", f->preset, fmt::format("or the model of a preset: {}", listed(names)))
      .values(names);
  list.add("batch", f->training.batch, "rows a micro-batch, for the memory of training");
  list.add("context", f->training.context,
           "tokens a row, for the memory of training; 0: the model's");
  list.add_named(
      "dtype", {"auto", "f32", "bf16"},
      [f] { return f->dtype ? std::string(name_of(*f->dtype)) : "auto"; },
      [f](const std::string& name) { f->dtype = dtype_named(name); },
      "f32 or bf16 products, for the memory of training (auto: f32) and for @text (auto: as in moe "
      "score)");
  list.add("recompute", f->training.recompute, "for the memory of training");
  add_optimizer(list, f->optimizer,
                "for the memory of training: adamw keeps two moments, muon one of the matrices of "
                "attention and FFNs");
  list.add("lora_rank", f->lora_rank,
           "for the memory of training: adapters of this rank over the weights as they lie in "
           "their file (moe train @tune lora); 0: all weights");
  list.add("lora_shared", f->lora_shared,
           "with @lora_rank: one adapter that all experts of a layer share");
  list.add("hot_share", f->hot_share,
           "with @lora_rank: of hot experts only, that get this share of the rows (moe train @tune "
           "experts:hot), at most");
  list.add("json", f->json, "one JSON object on standard output");
  list.add(fields(f->text));
  add_flags(app, std::move(list), f->given);
  return [f] { return run_inspect(*f); };
}

}  // namespace moe::cli
