#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/choices.h"
#include "cli/command_tree.h"
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

const std::vector<Choice<ops::Act>>& activations() {
  static const std::vector<Choice<ops::Act>> choices = {
      {"silu", ops::Act::silu}, {"gelu", ops::Act::gelu}, {"gelu_tanh", ops::Act::gelu_tanh}, {"relu", ops::Act::relu}};
  return choices;
}
const std::vector<Choice<QkNorm>>& qk_norms() {
  static const std::vector<Choice<QkNorm>> choices = {{"none", QkNorm::none}, {"head", QkNorm::head}, {"full", QkNorm::full}};
  return choices;
}
const std::vector<Choice<NormPlacement>>& norm_placements() {
  static const std::vector<Choice<NormPlacement>> choices = {{"pre", NormPlacement::pre}, {"post", NormPlacement::post}};
  return choices;
}

const std::vector<std::string>& compute_dtypes() {
  static const std::vector<std::string> names = {"auto", "f32", "bf16"};
  return names;
}

const std::vector<std::string>& cache_dtypes() {
  static const std::vector<std::string> names = {"f32", "bf16", "f16", "q8_0"};
  return names;
}

constexpr const char *kModelGroup = "Model", *kRoutingGroup = "Routing";

// What a JSON value would be on the command line; lists give one word an entry, named numbers one a name. Stages may stand in the file as they are.
std::vector<std::string> as_words(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_array()) {
    std::vector<std::string> words;
    for (const Json& entry : value)
      for (std::string& word : as_words(entry, key, where)) words.push_back(std::move(word));
    return words;
  }
  if (value.is_object() && takes_named_numbers(key)) {
    std::vector<std::string> words;
    for (const auto& [name, number] : value.items()) words.push_back(name + "=" + number.dump());
    return words;
  }
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean() || value.is_number() || (value.is_object() && key == "stages")) return {value.dump()};
  fail_usage("{}: \"{}\" must be a string, a number, true, false or a list of these", where, key);
}

// What an option takes, in words, from the name of its type that --help shows.
const char* kind_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT") return "a whole number";
  if (type == "UINT") return "a whole number from 0 to 2^64 - 1";
  if (type == "FLOAT") return "a number";
  return "true or false";
}

// The coefficients of the auxiliary losses; canonical, so that one number means the same in every recipe.
struct LossFlag {
  const char* flag;
  const char* name;  // of each_loss
  const char* meaning;
  std::optional<double>* value;
};
std::array<LossFlag, 6> loss_flags(ModelFlags& f) {
  return {{{"--balance", "balance", "balance loss (1 when balanced, mean over layers)", &f.balance},
           {"--z-loss", "z", "router z-loss (mean over layers)", &f.z_loss},
           {"--importance-loss", "importance", "CV^2 of the summed weights (shazeer)", &f.importance_loss},
           {"--load-loss", "load", "CV^2 of the expected load under the noise (shazeer)", &f.load_loss},
           {"--device-loss", "device", "balance loss over groups of experts (deepseek-v2; 1 when balanced)", &f.device_loss},
           {"--communication-loss", "communication", "balance loss of what groups receive (deepseek-v2; 1 when balanced)", &f.communication_loss}}};
}

// Whether the stages have the loss that each_loss calls so.
bool has_loss(const RoutingSpec& spec, std::string_view name) {
  const AuxLosses& l = spec.losses;
  if (name == "balance") return l.balance.has_value();
  if (name == "device") return l.device.has_value();
  if (name == "communication") return l.communication.has_value();
  if (name == "importance") return l.importance;
  if (name == "load") return l.load;
  return needs_logits(spec.select);
}

// Routed and shared experts, and their widths.
void set_experts(ModelConfig& c, const ModelFlags& f, const Style& style) {
  const Recipe& recipe = chosen_recipe(f.routing);
  c.moe_every = f.moe_every;
  c.dense_first = f.dense_first;
  c.moe_layers = f.moe_layers;
  if (f.moe_every < 1) fail_usage("--moe-every is {}; it must be at least 1", f.moe_every);
  c.routing.recipe = recipe.name;  // which layers are MoE depends on it
  c.routing = routing_options(f.routing, c.moe_layer_count());
  c.routing.noise = !f.no_router_noise;
  c.shared_experts = f.shared_experts.value_or(recipe.shared.experts);
  c.shared_gate = c.shared_experts > 0 && f.shared_gate.value_or(recipe.shared.gate);
  const int64_t widths = recipe.shared.experts > 0 ? recipe.shared.widths : 1;
  const int64_t limit = int64_t{1} << 20, shared = f.shared_width ? 0 : std::clamp<int64_t>(c.shared_experts, 0, limit) * widths;
  c.expert_width = f.expert_width.value_or(default_expert_width(style, f.width, std::clamp<int64_t>(c.routing.top_k, 1, limit) + shared));
  c.shared_width = c.shared_experts > 0 ? f.shared_width.value_or(c.expert_width * widths) : 0;
}

bool takes_whole_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT");
}

using Names = std::set<std::string>;

// Names of options without their dashes, as a file has them.
Names given_options(const CLI::App& app) {
  Names names;
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0) names.insert(option->get_single_name());
  return names;
}

// Of two options that rule each other out a file's gives way to the one that was said before it.
constexpr std::pair<const char*, const char*> kEitherOr[] = {{"steps", "minutes"}, {"hold-out", "eval-data"}, {"tokenizer", "from"}};

Names ruled_out(const Names& given) {
  Names names;
  for (const auto& [one, other] : kEitherOr) {
    if (given.contains(one)) names.insert(other);
    if (given.contains(other)) names.insert(one);
  }
  return names;
}

// Forgets what a file set beside `before`, what was given before it, where the two do not fit.
void give_way(const Names& before, ModelFlags& f, TrainOptions& t) {
  const auto from_file = [&](const char* name, const char* against) { return before.contains(against) && !before.contains(name); };
  if (from_file("warmup", "steps") && t.warmup && *t.warmup >= t.steps) t.warmup.reset();
  if (from_file("min-lr", "lr") && t.min_lr && *t.min_lr > t.lr) t.min_lr.reset();
  if (!before.contains("recipe")) return;
  const Recipe& recipe = chosen_recipe(f.routing);
  if (from_file("experts", "recipe") && !recipe.has_router()) f.routing.experts.reset();
  if (from_file("top-k", "recipe") && (!recipe.has_router() || recipe.top_k_is_fixed)) f.routing.top_k.reset();
}

// Stages mean recipe custom, before a file read later, such as a preset, names another one.
void settle_recipe(CLI::App& app) {
  const CLI::Option* stages = app.get_option_no_throw("--stages");
  CLI::Option* recipe = app.get_option_no_throw("--recipe");
  if (stages == nullptr || stages->count() == 0 || recipe->count() > 0) return;
  recipe->add_result(std::string(kCustom));
  recipe->run_callback();
}

}  // namespace

std::string whole_number(const std::string& word) {
  const size_t sign = word.starts_with('-') || word.starts_with('+') ? 1 : 0, e = std::min(word.find_first_of("eE"), word.size());
  const size_t point = std::min(word.find('.'), e);
  if (point == word.size()) return word;
  std::string digits = word.substr(sign, point - sign);
  const std::string fraction = point < e ? word.substr(point + 1, e - point - 1) : "";
  digits += fraction;
  int exponent = 0;
  if (e < word.size()) {
    const char *begin = word.data() + e + 1, *end = word.data() + word.size();
    if (begin < end && *begin == '+') ++begin;
    const auto [stop, error] = std::from_chars(begin, end, exponent);
    if (error != std::errc{} || stop != end) return word;
  }
  constexpr int kMost = 40;  // digits: far beyond any whole number that is taken
  const bool is_number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::abs(exponent) > kMost) return word;
  for (int shift = exponent - static_cast<int>(fraction.size()); shift != 0; shift += shift < 0 ? 1 : -1) {
    if (shift > 0) digits += '0';
    else if (digits.ends_with('0')) digits.pop_back();
    else if (!digits.empty()) return word;  // 1.5
  }
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  return word.substr(0, sign) + (first == digits.size() ? "0" : digits.substr(first));
}

void allow_exponents(CLI::App& app) {
  const auto rewrite = [](std::string& word) {
    word = whole_number(word);
    return std::string();
  };
  for (CLI::Option* option : app.get_options())
    if (takes_whole_number(*option)) option->transform(CLI::Validator(rewrite, ""));
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) allow_exponents(*verb);
}

bool takes_named_numbers(std::string_view name) { return name == "mix" || name == "lr-times" || name == "lr_times"; }

CLI::Option* add_named_numbers(CLI::App& app, const char* flag, std::map<std::string, double>& numbers, const char* form, const char* example,
                               const std::string& help) {
  const auto read = [flag, form, example, &numbers](const std::vector<std::string>& words) {
    numbers.clear();
    for (const std::string& word : words) {
      const size_t equals = word.rfind('=');  // a name may hold one itself
      double number = 0;
      const char* end = word.data() + word.size();
      const auto [stop, error] = equals == std::string::npos || equals == 0 ? std::from_chars_result{end, std::errc::invalid_argument}
                                                                            : std::from_chars(word.data() + equals + 1, end, number);
      if (error != std::errc{} || stop != end) fail_usage("{} {}: expected {}, such as {}", flag, printable(word), form, example);
      const std::string name = word.substr(0, equals);
      if (!numbers.try_emplace(name, number).second) fail_usage("{} names \"{}\" twice", flag, printable(name));
    }
  };
  return app.add_option_function<std::vector<std::string>>(flag, read, help)->type_name(form);
}

void add_model_options(CLI::App& app, ModelFlags& f) {
  takes(app.add_option("--preset", f.preset, fmt::format("start from a named set of options: {}", listed(presets())))->group("Options"), names_of(presets()));
  app.add_option("--config", f.config_file, "a JSON file with the same names; flags win over it")->group("Options");
  app.add_option("--tokenizer", f.tokenizer,
                 "bytes: every byte is a token; bpe:SIZE: byte-level BPE of SIZE entries, learned from --data; or a model folder, for its tokenizer. "
                 "Tokens bring their own")
      ->group("Options")
      ->capture_default_str();
  const std::string model = kModelGroup;
  takes(app.add_option("--architecture", f.architecture, fmt::format("{}; default: the one the recipe comes from", listed(styles())))->group(model),
        names_of(styles()));
  app.add_option("--layers", f.layers, "decoder blocks")->group(model)->capture_default_str();
  app.add_option("--width", f.width, "model width D")->group(model)->capture_default_str();
  app.add_option("--heads", f.heads, "attention heads")->group(model)->capture_default_str();
  app.add_option("--kv-heads", f.kv_heads, "key/value heads; default: as many as heads")->group(model);
  app.add_option("--head-width", f.head_width, "width of a head; default: width / heads")->group(model);
  app.add_option("--dense-width", f.dense_width, "FFN width of dense layers; default: 4 D (GELU) or 8/3 D (SwiGLU)")->group(model);
  takes(app.add_option("--activation", f.activation, "silu, gelu, gelu_tanh or relu")->group(model), names_of(activations()));
  takes(app.add_option("--qk-norm", f.qk_norm, "none, head or full: RMSNorm of queries and keys")->group(model), names_of(qk_norms()));
  takes(app.add_option("--norm-placement", f.norm_placement, "pre or post")->group(model), names_of(norm_placements()));
  app.add_option("--bias", f.bias, "true or false: biases in norms, attention and experts (gpt2)")->group(model);
  app.add_option("--tied", f.tied, "true or false: the head is the embedding")->group(model);
  app.add_option("--rope-theta", f.rope_theta, "base of rotary positions")->group(model);
  app.add_option("--dropout", f.dropout, "on the embedding and on what each sublayer adds")->group(model)->capture_default_str();
  const std::string routing = kRoutingGroup;
  add_routing_options(app, f.routing, routing);
  app.add_option("--expert-width", f.expert_width,
                 "FFN width of an expert; default: so that those a token meets, shared ones too, together are one dense FFN (gpt2: each as wide)")
      ->group(routing);
  app.add_option("--shared-experts", f.shared_experts, "experts that every token takes; default: the recipe's")->group(routing);
  app.add_option("--shared-width", f.shared_width, "FFN width of a shared expert; default: the routed experts', or the recipe's multiple of it")
      ->group(routing);
  // Not bound to the optional, which CLI11 would set to false where the flag is absent.
  app.add_flag_function(
         "--shared-gate", [&f](int64_t given) { f.shared_gate = given > 0; }, "weigh the shared experts by a sigmoid of the token; default: as the recipe does")
      ->group(routing);
  app.add_option("--moe-every", f.moe_every, "MoE at layers i with i mod P = 0")->group(routing)->capture_default_str();
  app.add_option("--dense-first", f.dense_first, "the first layers stay dense")->group(routing)->capture_default_str();
  app.add_option("--moe-layers", f.moe_layers, "or just these layers, e.g. 1,3,5")->delimiter(',')->group(routing);
  for (const LossFlag& loss : loss_flags(f))
    app.add_option(loss.flag, *loss.value, fmt::format("coefficient of the {}; default: the recipe's", loss.meaning))->group(routing);
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
  add_named_numbers(app, "--lr-times", t.lr_times, "PART=FACTOR", "experts=3",
                    "parts of the model that learn at so many times the rate: experts=3 router=3; not named: 1. Parts: embedding, positions, head, norms, "
                    "attention, router, experts, shared, 'dense ffn'")
      ->group(group);
  takes(app.add_option_function<std::string>(
               "--schedule", [&t](const std::string& name) { t.schedule = parse_schedule(name); }, "cosine, linear or constant; default: cosine")
            ->group(group),
        {"cosine", "linear", "constant"});
  app.add_option("--weight-decay", t.weight_decay, "AdamW's, on matrices only")->group(group)->capture_default_str();
  app.add_flag("--decay-all", t.decay_all, "decay norms and biases too")->group(group);
  app.add_option("--beta1", t.beta1, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--beta2", t.beta2, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--eps", t.eps, "AdamW's")->group(group)->capture_default_str();
  app.add_option("--clip", t.clip, "largest norm of the gradient; 0: no limit")->group(group)->capture_default_str();
  add_seed(app, t.seed, "of weights, noise and the order of the data")->group(group);
  takes(app.add_option_function<std::string>(
               "--dtype", [&t](const std::string& name) { t.dtype = parse_train_dtype(name); }, "f32 or bf16 products (weights stay f32); default: f32")
            ->group(group),
        {"f32", "bf16"});
  app.add_flag("--recompute", t.recompute, "keep less, compute twice: less memory, about a third more time")->group(group);
  takes(app.add_option_function<std::string>(
               "--shuffle", [&t](const std::string& name) { t.shuffle = parse_shuffle(name); },
               "epoch (every window once, in random order) or none (in order); default: epoch")
            ->group(group),
        {"epoch", "none"});
  app.add_option("--threads", t.threads, "0: all cores")->group(group)->capture_default_str();
}

CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& of_what) {
  const auto unsigned_only = [](const std::string& word) { return word.starts_with('-') ? fmt::format("{} is no number from 0 to 2^64 - 1", word) : ""; };
  return app.add_option("--seed", seed, of_what)->check(unsigned_only)->capture_default_str();
}

int thread_count(int asked) {
  constexpr int kMost = 1024;
  if (asked < 0 || asked > kMost) fail_usage("--threads is {}; it must be 0 (all cores) to {}", asked, kMost);
  return asked > 0 ? asked : available_threads();
}

void add_compute_options(CLI::App& app, ComputeFlags& f) {
  takes(app.add_option("--dtype", f.dtype, "f32 or bf16 products; auto: bf16 where most weights are of 2 bytes and this machine multiplies bf16, else f32")
            ->capture_default_str(),
        compute_dtypes());
  app.add_option("--threads", f.threads, "0: all cores")->capture_default_str();
}

std::optional<DType> parse_compute_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  fail_usage("--dtype is \"{}\"{}", printable(name), suggestion(name, compute_dtypes()));
}

void add_cache_dtype(CLI::App& app, std::string& dtype) {
  takes(
      app.add_option("--cache-dtype", dtype,
                     "how keys and values are kept: f32, bf16, f16 or q8_0; default: for quantised weights bf16 where the machine multiplies it, else f16; for "
                     "others as the products compute"),
      cache_dtypes());
}

std::optional<DType> parse_cache_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (std::find(cache_dtypes().begin(), cache_dtypes().end(), name) == cache_dtypes().end())
    fail_usage("--cache-dtype is \"{}\"{}", printable(name), suggestion(name, cache_dtypes()));
  return dtype_named(name);
}

void apply_json(CLI::App& app, const std::string& text, const std::string& where, const std::vector<std::string>& refused) {
  const Names passed_over = ruled_out(given_options(app));
  const Json object = parse_json(text, where);
  if (!object.is_object()) fail_usage("{}: expected a JSON object of options, as in {{\"layers\": 4}}", where);
  std::vector<std::string> known;
  const auto is_open = [&](const std::string& name) { return std::find(refused.begin(), refused.end(), name) == refused.end(); };
  for (const CLI::Option* option : app.get_options())
    if (is_open(option->get_single_name())) known.push_back(option->get_single_name());
  for (const auto& [key, value] : object.items()) {
    std::string flag = key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    CLI::Option* option = app.get_option_no_throw("--" + flag);
    if (option != nullptr && !is_open(flag)) fail_usage("{}: \"{}\" can only stand on the command line", where, key);
    if (option == nullptr) fail_usage("{}: no option is called \"{}\"{}", where, printable(key), suggestion(flag, known));
    if (option->count() > 0 || passed_over.contains(flag)) continue;  // the command line, or a file read before this one, wins
    try {
      const std::vector<std::string> words = as_words(value, key, where);
      if (words.empty() && option->get_expected_max() > 1) continue;  // an empty list, or no names: as if left out
      for (const std::string& word : words) option->add_result(takes_whole_number(*option) ? whole_number(word) : word);
      option->run_callback();
    } catch (const CLI::ConversionError&) {
      if (value.is_number_integer()) fail_usage("{}: \"{}\" is {}, which is out of range", where, printable(key), value.dump());
      fail_usage("{}: \"{}\" is {}; {} is needed", where, printable(key), printable(value.dump()), kind_of(*option));
    } catch (const CLI::Error& error) {
      fail_usage("{}: {}", where, error.what());
    }
  }
}

void apply_files(CLI::App& app, ModelFlags& flags, TrainOptions& train) {
  const auto apply = [&](const std::string& json, const std::string& where) {
    settle_recipe(app);
    const Names before = given_options(app);
    apply_json(app, json, where, {"config", "preset", "help"});
    give_way(before, flags, train);
  };
  if (!flags.config_file.empty()) apply(read_text(flags.config_file), "--config " + flags.config_file);
  settle_recipe(app);
  if (flags.preset.empty()) return;
  for (const Preset& preset : presets())
    if (preset.name == flags.preset) return apply(preset.json, "preset " + preset.name);
  fail_usage("no preset is called '{}'{}", flags.preset, suggestion(flags.preset, names_of(presets())));
}

void set_losses(RoutingOptions& options, ModelFlags f) {
  const Recipe& recipe = find_recipe(options.recipe);
  for (const LossFlag& loss : loss_flags(f)) {
    if (!*loss.value) continue;
    const double x = **loss.value;
    if (!(x >= 0) || x > FLT_MAX) fail_usage("{} is {}; it must be 0 (off) or above", loss.flag, x);
    if (x > 0 && recipe.has_router() && !has_loss(train_spec(options), loss.name))
      fail_usage("recipe '{}' has no such loss, so {} {} has no meaning; leave it out, or add the loss in --stages of recipe custom", recipe.name, loss.flag,
                 x);
    each_loss(options.coef, [&](std::string_view name, float& coef) {
      if (name == loss.name) coef = static_cast<float>(x);
    });
  }
}

bool describes_model(const CLI::App& app) {
  const std::vector<const CLI::Option*> options = app.get_options();
  return std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->count() > 0 && (option->get_group() == kModelGroup || option->get_group() == kRoutingGroup);
  });
}

void refuse_model_flags(const CLI::App& app) {
  ModelFlags unused;
  const auto losses = loss_flags(unused);
  for (const CLI::Option* option : app.get_options()) {
    const bool describes = option->get_group() == kModelGroup || option->get_group() == kRoutingGroup;
    const bool is_loss = std::any_of(losses.begin(), losses.end(), [&](const LossFlag& loss) { return option->get_name() == loss.flag; });
    if (describes && !is_loss && option->count() > 0) fail_usage("--from brings its model, so {} has no meaning beside it; leave it out", option->get_name());
  }
}

ModelConfig make_config(const ModelFlags& f, int64_t vocab, int64_t context) {
  const Style& style = find_style(f.architecture.empty() ? style_of_recipe(chosen_recipe(f.routing).name) : std::string_view(f.architecture));
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
  if (f.activation) c.act = choose(*f.activation, "--activation", activations());
  if (f.qk_norm) c.qk_norm = choose(*f.qk_norm, "--qk-norm", qk_norms());
  if (f.norm_placement) c.norm_placement = choose(*f.norm_placement, "--norm-placement", norm_placements());
  if (f.bias) {
    c.attention_bias = c.attention_out_bias = c.ffn_bias = *f.bias;
    c.norm_bias = *f.bias && c.norm == NormKind::layer;
  }
  if (f.tied) c.tied = *f.tied;
  if (f.rope_theta) c.rope_theta = static_cast<float>(*f.rope_theta);
  c.dropout = static_cast<float>(f.dropout);

  set_experts(c, f, style);
  validate(c);
  set_losses(c.routing, f);
  constexpr double kMostParameters = 1e12;  // far beyond any machine, far below an overflow of sizes
  if (const double size = parameter_count(c); size > kMostParameters)
    fail_usage("this model would have {:.2g} parameters, at most {:.0g} are possible; lower --width, --layers, --experts or --expert-width", size,
               kMostParameters);
  return c;
}

}  // namespace moe::cli
