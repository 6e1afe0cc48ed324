#include "jobs/run_options.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/file.h"
#include "core/nearest.h"
#include "hub/named_models.h"
#include "jobs/presets.h"
#include "options/common.h"
#include "text/bpe_train.h"
#include "text/shards.h"

namespace moe {
namespace {

using Names = std::set<std::string, std::less<>>;

// Of two options that rule each other out a file's gives way to the one that was said before it.
constexpr std::pair<const char*, const char*> kEitherOr[] = {
    {"steps", "minutes"}, {"hold_out", "eval_data"}, {"tokenizer", "from"}};

Names ruled_out(const Given& given) {
  Names names;
  for (const auto& [one, other] : kEitherOr) {
    if (given.has(one)) names.insert(other);
    if (given.has(other)) names.insert(one);
  }
  return names;
}

// Forgets what a file set beside `before`, what was given before it, where the two do not fit.
void give_way(const Given& before, SetupOptions& o) {
  const auto from_file = [&](const char* name, const char* against) {
    return before.has(against) && !before.has(name);
  };
  TrainOptions& t = o.train;
  if (from_file("warmup", "steps") && t.warmup && *t.warmup >= t.steps) t.warmup.reset();
  if (from_file("min_lr", "lr") && t.min_lr && *t.min_lr > t.lr) t.min_lr.reset();
  if (!before.has("recipe")) return;
  const Recipe& recipe = chosen_recipe(o.model.routing);
  if (from_file("experts", "recipe") && !recipe.has_router()) o.model.routing.experts.reset();
  if (from_file("zero_experts", "recipe") && !recipe.has_router())
    o.model.routing.zero_experts.reset();
  if (from_file("top_k", "recipe") && (!recipe.has_router() || recipe.top_k_is_fixed))
    o.model.routing.top_k.reset();
}

// Stages mean recipe custom, before a file read later, such as a preset, names another one.
void settle_recipe(SetupOptions& o, Given& given) {
  if (!given.has("stages") || given.has("recipe")) return;
  o.model.routing.recipe = kCustom;
  given.add("recipe", given.by_caller("stages") ? GivenBy::caller : GivenBy::config);
}

FieldList file_fields(SetupOptions& o) {
  FieldList list;
  const std::vector<std::string> names = names_of(presets());
  list.add("preset", o.preset, fmt::format("start from a named set of options: {}", listed(names)))
      .values(names)
      .of_caller();
  list.add("config", o.config, "a JSON file with the same names; flags win over it")
      .path()
      .of_caller();
  list.add("tokenizer", o.tokenizer,
           "bytes: every byte is a token; bpe:SIZE: byte-level BPE of SIZE entries, learned from "
           "@data; or a model folder, for its tokenizer. "
           "Tokens bring their own");
  return list;
}

bool is_of_model(const Field& field) { return field.group == "Model" || field.group == "Routing"; }

}  // namespace

FieldList fields(SetupOptions& o) {
  FieldList list = file_fields(o);
  list.add(fields(o.model));
  list.add(fields(o.train).in_group("Training"));
  return list;
}

FieldList fields(RunOptions& o) {
  FieldList list, train = fields(o.train);
  list.add("data", o.data,
           "text files, .jsonl files (a document, a dialogue or a preference pair a line), folders "
           "of them, or what `moe tokenize` wrote; each file's stem names its domain")
      .path();
  list.add("out", o.out, "folder for the model, its checkpoints and metrics.jsonl").path();
  list.add("eval_data", o.eval_data, "held-out text, as @data").path();
  list.add(train.take({"hold_out", "mix"}));
  list.add("from", o.from,
           fmt::format("start from the weights of this model ({}), whose shape, recipe and "
                       "tokenizer stay; the losses' coefficients may be others. "
                       "Trained weights want a smaller @lr: some 3e-5 to 3e-4 (docs/training.md)",
                       kModelIs))
      .path();
  list.add(file_fields(o));
  list.add(fields(o.model));
  FieldList steps = train.take({"context", "batch", "accumulate", "steps", "minutes"});
  steps.at("minutes").group = steps.at("steps").group;  // where users look for it
  list.add(std::move(steps));
  list.add(train.in_group("Training"));
  list.add(
      train.take({"tune", "lora_rank", "lora_alpha", "lora_shared", "tune_tokens", "hot_share"}));
  list.group("Recovering and fine-tuning");
  list.add("teacher", o.teacher,
           fmt::format("a model of the same vocabulary ({}) to learn from; of preference pairs the "
                       "reference (docs/training.md)",
                       kModelIs))
      .path();
  list.add(train.take({"teacher_weight", "dpo_beta"}));
  list.group("");
  add_memory_limits(list, o.memory);
  list.add(train.in_group(""));
  list.add("resume", o.resume,
           "go on with the run in OUT, whose checkpoint knows text, model and options: nothing "
           "else is needed, and what is given must be the same. Starts the "
           "run when there is none");
  return list;
}

void apply_files(FieldList& list, SetupOptions& o, Given& given) {
  const auto apply = [&](const std::string& json, const std::string& where, GivenBy by) {
    settle_recipe(o, given);
    const Given before = given;
    read_options(list, parse_json(json, where), where, by, given, ruled_out(before));
    give_way(before, o);
  };
  if (!o.config.empty())
    apply(read_text(o.config), field("config") + " " + o.config, GivenBy::config);
  settle_recipe(o, given);
  if (o.preset.empty()) return;
  for (const Preset& preset : presets())
    if (preset.name == o.preset)
      return apply(preset.json, "preset " + preset.name, GivenBy::preset);
  fail_usage("no preset is called '{}'{}", o.preset, suggestion(o.preset, names_of(presets())));
}

ModelConfig preset_config(const std::string& name) {
  SetupOptions setup;
  FieldList list = fields(setup);
  Given given;
  setup.preset = name;
  apply_files(list, setup, given);
  return make_config(setup.model, vocabulary_of(setup.tokenizer), setup.train.context);
}

bool describes_model(const FieldList& list, const Given& given) {
  return std::any_of(list.begin(), list.end(),
                     [&](const Field& f) { return is_of_model(f) && given.has(f.name); });
}

void refuse_model_fields(const FieldList& list, const Given& given, const std::string& because) {
  for (const Field& f : list)
    if (is_of_model(f) && !is_loss_field(f.name) && given.by_caller(f.name))
      fail_usage("{}, so {} has no meaning beside it; leave it out", because, field(f.name));
}

std::string absolute_path(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

std::filesystem::path place_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error),
                              place = std::filesystem::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : place;
}

// Folders of tokens have a list of their files, and of others hidden names are passed over.
void check_outside(const std::string& out, const std::vector<std::string>& texts, const char* name,
                   const std::string& place) {
  std::error_code unseen;
  const std::filesystem::path there = place_of(out);
  for (const std::string& text : texts) {
    if (!std::filesystem::is_directory(text, unseen) || holds_tokens(text)) continue;
    const std::filesystem::path within = there.lexically_relative(place_of(text));
    const auto is_read = [](const std::filesystem::path& part) {
      return part == "." || !part.string().starts_with('.');
    };
    if (!within.empty() && std::all_of(within.begin(), within.end(), is_read))
      fail_usage("{} {} lies in {} {}, whose files the next run would read; choose another {}",
                 place, out, field(name), text, place);
  }
}

}  // namespace moe
