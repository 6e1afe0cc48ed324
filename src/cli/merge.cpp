// Makes one Mixture-of-Experts model of several dense ones, its routers out of prompts.
#include "convert/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/conversion.h"
#include "cli/flags.h"
#include "cli/memory.h"
#include "cli/result_type.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "convert/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/folder/styles.h"
#include "hub/named_models.h"
#include "moe/recipes/wanted_routing.h"
#include "options/common.h"

namespace moe::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string out, base, recipe;
  ResultTypeFlags type;
  MergeOptions options;
  std::vector<std::string> experts;
  int64_t top_k = 2;
  int threads = 0;
  MemoryFlags memory;
  bool json = false;
  Given given;
};

std::string name_of(Gates gates) { return gates_names()[static_cast<size_t>(gates)]; }

struct ExpertFlag {
  std::string model, prompts;  // prompts empty: none were given
};

// MODEL or MODEL:PROMPTS; a name that is there as a whole has no prompts.
ExpertFlag parse_expert(const std::string& text) {
  std::error_code error;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || fs::exists(text, error)) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// A text file has a prompt in each line that is not blank; a .json file {"positive": [...], "negative": [...]}.
GatePrompts read_prompts(const std::string& path, const Tokenizer& tokenizer) {
  std::vector<std::string> positive, negative;
  if (path.ends_with(".json")) {
    const Json json = read_json(path);
    const JsonReader reader(json, path);
    positive = reader.get<std::vector<std::string>>("positive");
    negative = reader.get<std::vector<std::string>>("negative", {});
    reader.refuse_unknown();
  } else {
    std::istringstream lines(read_text(path));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.find_first_not_of(" \t") != std::string::npos) positive.push_back(line);
    }
  }
  if (positive.empty()) fail("{} holds no prompt; a text file has one in each line, a .json file a list \"positive\"", path);
  GatePrompts prompts;
  for (const std::string& text : positive) prompts.positive.push_back(tokenizer.encode_text(text));
  for (const std::string& text : negative) prompts.negative.push_back(tokenizer.encode_text(text));
  for (const auto* list : {&prompts.positive, &prompts.negative})
    for (const std::vector<int32_t>& ids : *list)
      if (ids.empty()) fail("{}: a prompt has no token; leave it out", path);
  return prompts;
}

void check_context(const GatePrompts& prompts, const std::string& path, int64_t context) {
  for (const auto* list : {&prompts.positive, &prompts.negative})
    for (const std::vector<int32_t>& ids : *list)
      if (static_cast<int64_t>(ids.size()) > context) fail("{}: a prompt has {} tokens, but the base reads at most {}; shorten it", path, ids.size(), context);
}

void check_tokenizer(const Tokenizer& base, const Tokenizer& other, const std::string& name) {
  if (base.vocab_size() != other.vocab_size())
    fail_usage("{} does not match the base: its tokenizer has {} tokens, the base's {}", name, other.vocab_size(), base.vocab_size());
  for (int64_t i = 0; i < base.vocab_size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (base.piece(id) != other.piece(id))
      fail_usage("{} does not match the base: token {} is \"{}\", the base's \"{}\"", name, i, printable(other.piece(id), 40), printable(base.piece(id), 40));
  }
}

// All models that are read, each file once.
class Sources {
 public:
  LoadedModel& load(const std::string& path) {
    std::error_code error;
    std::string key = fs::weakly_canonical(path, error).string();
    if (error) key = path;
    const auto found = loaded_.find(key);
    return found != loaded_.end() ? found->second : loaded_.emplace(key, load_model(path, LoadFor::inference)).first->second;
  }

 private:
  std::map<std::string, LoadedModel> loaded_;
};

std::vector<MergeExpert> read_experts(const Flags& f, LoadedModel& base, Sources& sources, Gates gates) {
  std::vector<MergeExpert> experts;
  for (const std::string& text : f.experts) {
    const ExpertFlag flag = parse_expert(text);
    LoadedModel& model = sources.load(flag.model);
    MergeExpert expert{.model = model.model.get(), .name = flag.model, .prompts = {}};
    if (expert.model != base.model.get() && model.model->config().vocab == base.model->config().vocab)
      check_tokenizer(*base.tokenizer, *model.tokenizer, flag.model);
    if (!flag.prompts.empty()) {
      if (gates == Gates::random) fail_usage("--gates random draws the gates, so the prompts of {} have no meaning; leave them out", flag.model);
      expert.prompts = read_prompts(flag.prompts, *base.tokenizer);
      check_context(expert.prompts, flag.prompts, base.model->config().context);
    }
    experts.push_back(std::move(expert));
  }
  return experts;
}

MergeOptions options_of(const Flags& f, const ModelConfig& base) {
  MergeOptions o = f.options;
  const auto experts = static_cast<int64_t>(f.experts.size());
  o.routing = routing_for_dense(base, experts, f.top_k, base.layers);
  if (!f.recipe.empty()) {
    WantedRouting wanted;
    wanted.recipe = f.recipe;
    wanted.experts = experts;
    wanted.top_k = f.top_k;
    o.routing = routing_options(wanted, base.layers);
  }
  o.threads = thread_count(f.threads);
  return o;
}

std::string figure(double x) { return std::isfinite(x) ? fmt::format("{:.3g}", x) : "infinite"; }

void tell_notes(const Merged& merged) {
  for (const std::string& note : merged.notes) tell("note: {}\n", note);
  const auto worst = std::max_element(merged.layers.begin(), merged.layers.end(), [](const auto& a, const auto& b) { return a.condition < b.condition; });
  const auto bad = std::count_if(merged.layers.begin(), merged.layers.end(), [](const MergedLayer& l) { return !(l.condition <= kBadCondition); });
  if (bad > 0)
    tell(
        "note: the gates of {} of {} are badly conditioned (above {:g}; the worst is layer {} with {}): their experts get nearly the same tokens. Prompts that "
        "differ more, or negative ones, tell them apart\n",
        bad, counted(static_cast<int64_t>(merged.layers.size()), "layer"), kBadCondition, worst->layer, figure(worst->condition));
}

int run_merge(const Flags& f) {
  const Gates gates = f.options.gates;
  Sources sources;
  check_result_type(f.type, f.out);
  LoadedModel& base = sources.load(f.base);
  const ResultType type = result_type(f.type, f.out, base, f.base);
  const std::vector<MergeExpert> experts = read_experts(f, base, sources, gates);
  MergeOptions options = options_of(f, base.model->config());
  int64_t longest = 0;
  for (const MergeExpert& expert : experts)
    for (const auto* list : {&expert.prompts.positive, &expert.prompts.negative})
      for (const std::vector<int32_t>& ids : *list) longest = std::max(longest, std::ssize(ids));
  const ForwardUse use{.model = base.model.get(), .shape = {.tokens = longest, .dtype = DType::f32}};
  if (gates != Gates::random) prepare_memory(f.base, use, {}, f.memory, "shorten the prompts");
  else check_memory({}, f.memory, "");
  NewModel out(f.out);
  Merged merged;
  {
    ProgressLine progress;
    options.progress = [&](int64_t done, int64_t total) {
      fail_if_interrupted(f.out);
      progress.show(done, total, "prompts");
    };
    merged = merge(*base.model, experts, options);
  }
  tell_notes(merged);
  const std::vector<ConvertedRow> rows = out.save(*merged.model, *base.tokenizer, type.type, options.threads);
  if (!f.json) {
    print_parts(merged.parts);
    const auto [least, most] =
        std::minmax_element(merged.layers.begin(), merged.layers.end(), [](const auto& a, const auto& b) { return a.condition < b.condition; });
    fmt::print("gates: {}; condition of a layer's gates from {} to {}\n", name_of(gates), figure(least->condition), figure(most->condition));
    fmt::print("{}\n", describe_result(f.out, *merged.model, type.type.dtype));
    print_weights(type, rows);
    return 0;
  }
  Json reply = result_json(f.out, *merged.model, type.type.dtype);
  reply["weights"] = weights_json(type, rows);
  reply["parts"] = to_json(merged.parts);
  reply["gates"] = name_of(gates);
  reply["notes"] = merged.notes;
  for (const MergedLayer& l : merged.layers)
    reply["gates_of_layers"].push_back({{"layer", l.layer}, {"condition", std::isfinite(l.condition) ? Json(l.condition) : Json()}});
  print_json(reply);
  return 0;
}

}  // namespace

Action add_merge(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list, how = fields(f->options);
  list.add("OUT", f->out, kNewModelHelp).positional().required();
  list.add("base", f->base, fmt::format("the dense model that gives attention, norms, embeddings and head: {}", kModelIs)).required();
  list.add("expert", f->experts,
           "MODEL or MODEL:PROMPTS, once for each expert: a dense model of the same shape and vocabulary gives its FFNs, and prompts of its kind make its "
           "gates. PROMPTS is a text file with a prompt a line, or a .json file {\"positive\": [...], \"negative\": [...]}")
      .required()
      .one_each();
  list.add(how.take({"gates"}));
  list.add("top_k", f->top_k, "experts a token takes");
  const std::vector<std::string> names = names_of(recipes());
  list.add("recipe", f->recipe,
           fmt::format("how tokens choose experts: {}; default: the one of models with the same attention, weights renormalised", listed(names)))
      .values(names);
  list.add(std::move(how));
  list.add(fields(f->type));
  add_threads(list, f->threads);
  add_memory(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_merge(*f); };
}

}  // namespace moe::cli
