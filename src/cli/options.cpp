#include "cli/options.h"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/presets.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "hub/styles.h"
#include "hub/tensor_map.h"

namespace moe::cli {
namespace {

template <class T>
std::vector<std::string> names_of(const std::vector<T>& table) {
  std::vector<std::string> names;
  for (const T& row : table) names.emplace_back(row.name);
  return names;
}

template <class T>
std::string listed(const std::vector<T>& table) {
  return fmt::format("{}", fmt::join(names_of(table), ", "));
}

// A named value of an enum, as flags spell it.
template <class T>
struct Choice {
  std::string_view name;
  T value;
};

template <class T>
T choose(std::string_view name, const char* flag, const std::vector<Choice<T>>& choices) {
  for (const Choice<T>& c : choices)
    if (c.name == name) return c.value;
  fail_usage("{} has no value '{}'{}", flag, name, suggestion(name, names_of(choices)));
}

// What a JSON value would be on the command line; lists give one word an entry.
std::vector<std::string> as_words(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_array()) {
    std::vector<std::string> words;
    for (const Json& entry : value)
      for (std::string& word : as_words(entry, key, where)) words.push_back(std::move(word));
    return words;
  }
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean() || value.is_number()) return {value.dump()};
  fail_usage("{}: \"{}\" must be a string, a number, true, false or a list of these", where, key);
}

void apply_json(CLI::App& app, const std::string& text, const std::string& where) {
  const Json object = parse_json(text, where);
  if (!object.is_object()) fail_usage("{}: expected a JSON object of options, as in {{\"layers\": 4}}", where);
  std::vector<std::string> known;
  const auto from_files = [](const std::string& name) { return name != "config" && name != "preset" && name != "help"; };
  for (const CLI::Option* option : app.get_options())
    if (from_files(option->get_single_name())) known.push_back(option->get_single_name());
  for (const auto& [key, value] : object.items()) {
    std::string flag = key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    CLI::Option* option = app.get_option_no_throw("--" + flag);
    if (option != nullptr && !from_files(flag)) fail_usage("{}: \"{}\" can only stand on the command line", where, key);
    if (option == nullptr) fail_usage("{}: no option is called \"{}\"{}", where, printable(key), suggestion(flag, known));
    if (option->count() > 0) continue;  // the command line, or a file read before this one, wins
    try {
      for (const std::string& word : as_words(value, key, where)) option->add_result(word);
      option->run_callback();
    } catch (const CLI::Error& error) {
      fail_usage("{}: {}", where, error.what());
    }
  }
}

}  // namespace

void add_model_options(CLI::App& app, ModelFlags& f) {
  app.add_option("--preset", f.preset, fmt::format("start from a named set of options: {}", listed(presets())))->group("Options");
  app.add_option("--config", f.config_file, "a JSON file with the same names; flags win over it")->group("Options");
  const std::string model = "Model";
  app.add_option("--architecture", f.architecture, fmt::format("{}; default: the one the recipe comes from", listed(styles())))->group(model);
  app.add_option("--layers", f.layers, "decoder blocks")->group(model)->capture_default_str();
  app.add_option("--width", f.width, "model width D")->group(model)->capture_default_str();
  app.add_option("--heads", f.heads, "attention heads")->group(model)->capture_default_str();
  app.add_option("--kv-heads", f.kv_heads, "key/value heads; default: as many as heads")->group(model);
  app.add_option("--head-width", f.head_width, "width of a head; default: width / heads")->group(model);
  app.add_option("--dense-width", f.dense_width, "FFN width of dense layers; default: 4 D (GELU) or 8/3 D (SwiGLU)")->group(model);
  app.add_option("--activation", f.activation, "silu, gelu, gelu_tanh or relu")->group(model);
  app.add_option("--qk-norm", f.qk_norm, "none, head or full: RMSNorm of queries and keys")->group(model);
  app.add_option("--norm-placement", f.norm_placement, "pre or post")->group(model);
  app.add_option("--bias", f.bias, "true or false: biases in norms, attention and experts (gpt2)")->group(model);
  app.add_option("--tied", f.tied, "true or false: the head is the embedding")->group(model);
  app.add_option("--rope-theta", f.rope_theta, "base of rotary positions")->group(model);
  app.add_option("--dropout", f.dropout, "on the embedding and on what each sublayer adds")->group(model)->capture_default_str();
  const std::string routing = "Routing";
  app.add_option("--recipe", f.recipe, fmt::format("how tokens choose experts: {}", listed(recipes())))->group(routing)->capture_default_str();
  app.add_option("--experts", f.experts, "routed experts a layer; default: the recipe's")->group(routing);
  app.add_option("--top-k", f.top_k, "experts a token takes; default: the recipe's")->group(routing);
  app.add_option("--expert-width", f.expert_width, "FFN width of an expert; default: so that the chosen ones together are one dense FFN (gpt2: each as wide)")
      ->group(routing);
  app.add_option("--shared-experts", f.shared_experts, "experts that every token takes")->group(routing)->capture_default_str();
  app.add_option("--shared-width", f.shared_width, "FFN width of a shared expert; default: the routed experts'")->group(routing);
  app.add_flag("--shared-gate", f.shared_gate, "weigh the shared experts by a sigmoid of the token")->group(routing);
  app.add_option("--moe-every", f.moe_every, "MoE at layers i with i mod P = 0")->group(routing)->capture_default_str();
  app.add_option("--dense-first", f.dense_first, "the first layers stay dense")->group(routing)->capture_default_str();
  app.add_option("--moe-layers", f.moe_layers, "or just these layers, e.g. 1,3,5")->delimiter(',')->group(routing);
  app.add_option("--capacity-factor", f.capacity_factor, "buffer of an expert in training, for recipes that drop")->group(routing);
  app.add_option("--capacity-factor-eval", f.capacity_factor_eval, "the same when scoring --routing as-trained")->group(routing);
  app.add_option("--balance", f.balance, "coefficient of the balance loss (1 when balanced, mean over layers); default: the recipe's")->group(routing);
  app.add_option("--z-loss", f.z_loss, "coefficient of the router z-loss (mean over layers); default: the recipe's")->group(routing);
  app.add_option("--norm-topk-prob", f.norm_topk_prob, "true or false, where the recipe leaves it open (olmoe)")->group(routing);
  app.add_flag("--no-router-noise", f.no_router_noise, "train without the recipe's noise")->group(routing);
}

void add_train_options(CLI::App& app, TrainOptions& t) {
  const std::string group = "Training";
  app.add_option("--context", t.context, "tokens a row")->group(group)->capture_default_str();
  app.add_option("--batch", t.batch, "rows a micro-batch")->group(group)->capture_default_str();
  app.add_option("--accumulate", t.accumulate, "micro-batches a step")->group(group)->capture_default_str();
  app.add_option("--steps", t.steps, "optimizer steps")->group(group)->capture_default_str();
  app.add_option("--lr", t.lr, "highest learning rate")->group(group)->capture_default_str();
  app.add_option("--min-lr", t.min_lr, "learning rate at the end; default: lr / 10")->group(group);
  app.add_option("--warmup", t.warmup, "steps of linear warm-up; default: a tenth, at most 100")->group(group);
  app.add_option_function<std::string>(
         "--schedule", [&t](const std::string& name) { t.schedule = parse_schedule(name); }, "cosine, linear or constant; default: cosine")
      ->group(group);
  app.add_option("--weight-decay", t.weight_decay, "AdamW's, on matrices only")->group(group)->capture_default_str();
  app.add_flag("--decay-all", t.decay_all, "decay norms and biases too")->group(group);
  app.add_option("--beta1", t.beta1, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--beta2", t.beta2, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--eps", t.eps, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--clip", t.clip, "largest norm of the gradient; 0: no limit")->group(group)->capture_default_str();
  app.add_option("--seed", t.seed, "of weights, noise and the order of the data")->group(group)->capture_default_str();
  app.add_option_function<std::string>(
         "--dtype", [&t](const std::string& name) { t.dtype = parse_train_dtype(name); }, "f32 or bf16 products (weights stay f32); default: f32")
      ->group(group);
  app.add_flag("--recompute", t.recompute, "keep less, compute twice: less memory, about a third more time")->group(group);
  app.add_option_function<std::string>(
         "--shuffle", [&t](const std::string& name) { t.shuffle = parse_shuffle(name); },
         "epoch (every window once, in random order) or none (in order); default: epoch")
      ->group(group);
  app.add_option("--threads", t.threads, "0: all cores")->group(group)->capture_default_str();
}

int thread_count(int asked) {
  constexpr int kMost = 1024;
  if (asked < 0 || asked > kMost) fail_usage("--threads is {}; it must be 0 (all cores) to {}", asked, kMost);
  return asked > 0 ? asked : available_threads();
}

void apply_files(CLI::App& app, const ModelFlags& flags) {
  if (!flags.config_file.empty()) apply_json(app, read_text(flags.config_file), "--config " + flags.config_file);
  if (flags.preset.empty()) return;
  for (const Preset& preset : presets())
    if (preset.name == flags.preset) return apply_json(app, preset.json, "preset " + preset.name);
  fail_usage("no preset is called '{}'{}", flags.preset, suggestion(flags.preset, names_of(presets())));
}

ModelConfig make_config(const ModelFlags& f, int64_t vocab, int64_t context) {
  const Recipe& recipe = find_recipe(f.recipe);
  const Style& style = find_style(f.architecture.empty() ? style_of_recipe(f.recipe) : std::string_view(f.architecture));
  ModelConfig c = style.parts;
  c.vocab = vocab;
  c.context = context;
  c.layers = f.layers;
  c.width = f.width;
  c.heads = f.heads;
  c.kv_heads = f.kv_heads.value_or(f.heads);
  // Before anything is computed from them; validate() sees the rest.
  static constexpr int64_t kLimit = int64_t{1} << 24;
  const auto check_size = [](const char* flag, int64_t value) {
    if (value < 1 || value > kLimit) fail_usage("{} is {}; it must be at least 1 and at most {}", flag, value, kLimit);
  };
  check_size("--layers", f.layers);
  check_size("--width", f.width);
  check_size("--heads", f.heads);
  if (!f.head_width && f.width % f.heads != 0)
    fail_usage("{} heads do not divide a width of {}; change --heads or --width, or give --head-width", f.heads, f.width);
  c.head_width = f.head_width.value_or(f.width / f.heads);
  c.dense_width = f.dense_width.value_or(default_dense_width(style, f.width));
  if (f.activation)
    c.act = choose<ops::Act>(*f.activation, "--activation",
                             {{"silu", ops::Act::silu}, {"gelu", ops::Act::gelu}, {"gelu_tanh", ops::Act::gelu_tanh}, {"relu", ops::Act::relu}});
  if (f.qk_norm) c.qk_norm = choose<QkNorm>(*f.qk_norm, "--qk-norm", {{"none", QkNorm::none}, {"head", QkNorm::head}, {"full", QkNorm::full}});
  if (f.norm_placement)
    c.norm_placement = choose<NormPlacement>(*f.norm_placement, "--norm-placement", {{"pre", NormPlacement::pre}, {"post", NormPlacement::post}});
  if (f.bias) {
    c.attention_bias = c.ffn_bias = *f.bias;
    c.norm_bias = *f.bias && c.norm == NormKind::layer;
  }
  if (f.tied) c.tied = *f.tied;
  if (f.rope_theta) c.rope_theta = static_cast<float>(*f.rope_theta);
  c.dropout = static_cast<float>(f.dropout);

  const int64_t experts = f.experts.value_or(recipe.has_router() ? recipe.default_experts : 1), top_k = f.top_k.value_or(recipe.default_top_k);
  if (!recipe.has_router() && experts > 1) fail_usage("recipe 'dense' has one expert, not {}; name a --recipe that routes, e.g. olmoe", experts);
  c.moe_every = f.moe_every;
  c.dense_first = f.dense_first;
  c.moe_layers = f.moe_layers;
  c.routing.recipe = f.recipe;
  c.expert_width = f.expert_width.value_or(default_expert_width(style, f.width, std::max<int64_t>(1, top_k)));
  c.shared_experts = f.shared_experts;
  c.shared_width = f.shared_experts > 0 ? f.shared_width.value_or(c.expert_width) : 0;
  c.shared_gate = f.shared_gate;
  if (f.moe_every < 1) fail_usage("--moe-every is {}; it must be at least 1", f.moe_every);
  c.routing = default_options(recipe, experts, top_k, c.moe_layer_count());
  c.routing.norm_topk_prob = f.norm_topk_prob;
  c.routing.noise = !f.no_router_noise;
  if (f.capacity_factor) c.routing.capacity_factor = static_cast<float>(*f.capacity_factor);
  if (f.capacity_factor_eval) c.routing.capacity_factor_eval = static_cast<float>(*f.capacity_factor_eval);
  if (f.balance) c.routing.balance_coef = static_cast<float>(*f.balance);
  if (f.z_loss) c.routing.z_coef = static_cast<float>(*f.z_loss);
  for (const auto& [flag, value] : {std::pair{"--balance", c.routing.balance_coef}, std::pair{"--z-loss", c.routing.z_coef}})
    if (!(value >= 0) || std::isinf(value)) fail_usage("{} is {}; it must be 0 (off) or above", flag, value);
  validate(c);
  constexpr double kMostParameters = 1e12;  // far beyond any machine, far below an overflow of sizes
  if (const double size = parameter_count(c); size > kMostParameters)
    fail_usage("this model would have {:.2g} parameters, at most {:.0g} are possible; lower --width, --layers, --experts or --expert-width", size,
               kMostParameters);
  return c;
}

}  // namespace moe::cli
