#include "jobs/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "convert/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "core/words.h"
#include "hub/folder/styles.h"
#include "hub/named_models.h"
#include "jobs/run_options.h"
#include "model/adapters.h"
#include "moe/recipes/wanted_routing.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

struct ExpertSource {
  std::string model, prompts;  // prompts empty: none were given
};

// MODEL or MODEL:PROMPTS; a name that is there as a whole has no prompts, and neither has one
// whose end is no file but says which .gguf is meant, OWNER/NAME:TYPE.
ExpertSource parse_expert(const std::string& text) {
  std::error_code error;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || fs::exists(text, error)) return {text, ""};
  if (!fs::exists(text.substr(colon + 1), error) && !path_if_here(text).empty()) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// A text file has a prompt in each line that is not blank; a .json file {"positive": [...],
// "negative": [...]}.
GatePrompts read_gate_prompts(const std::string& path, const Tokenizer& tokenizer) {
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
  if (positive.empty())
    fail("{} holds no prompt; a text file has one in each line, a .json file a list \"positive\"",
         path);
  GatePrompts prompts;
  for (const std::string& text : positive) prompts.positive.push_back(tokenizer.encode_text(text));
  for (const std::string& text : negative) prompts.negative.push_back(tokenizer.encode_text(text));
  for (const auto* list : {&prompts.positive, &prompts.negative})
    for (const std::vector<int32_t>& ids : *list)
      if (ids.empty()) fail("{}: a prompt has no token; leave it out", path);
  return prompts;
}

void check_gate_context(const GatePrompts& prompts, const std::string& path, int64_t context) {
  for (const auto* list : {&prompts.positive, &prompts.negative})
    for (const std::vector<int32_t>& ids : *list)
      if (static_cast<int64_t>(ids.size()) > context)
        fail("{}: a prompt has {} tokens, but the base reads at most {}; shorten it", path,
             ids.size(), context);
}

void check_same_tokenizer(const Tokenizer& base, const Tokenizer& other, const std::string& name) {
  if (base.vocab_size() != other.vocab_size())
    fail_usage("{} does not match the base: its tokenizer has {} tokens, the base's {}", name,
               other.vocab_size(), base.vocab_size());
  for (int64_t i = 0; i < base.vocab_size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (base.piece(id) != other.piece(id))
      fail_usage("{} does not match the base: token {} is \"{}\", the base's \"{}\"", name, i,
                 printable(other.piece(id), 40), printable(base.piece(id), 40));
  }
}

// All models that are read, each file once.
class MergeSources {
 public:
  explicit MergeSources(const MemoryLimits& limits) : limits_(limits) {}
  LoadedModel& load(const std::string& path) {
    const auto [found, is_new] = loaded_.try_emplace(place_of(path));
    if (!is_new) return found->second;
    found->second = open_model(path, limits_);
    merge_terms(*found->second.model, 1);
    return found->second;
  }

 private:
  MemoryLimits limits_;
  std::map<fs::path, LoadedModel> loaded_;  // by where they lie
};

std::vector<MergeExpert> read_experts(const MergeJob& job, LoadedModel& base, MergeSources& sources,
                                      Gates gates) {
  std::vector<MergeExpert> experts;
  for (const std::string& text : job.experts) {
    const ExpertSource flag = parse_expert(text);
    LoadedModel& model = sources.load(flag.model);
    MergeExpert expert{.model = model.model.get(), .name = flag.model, .prompts = {}};
    if (expert.model != base.model.get() &&
        model.model->config().vocab == base.model->config().vocab)
      check_same_tokenizer(*base.tokenizer, *model.tokenizer, flag.model);
    if (!flag.prompts.empty()) {
      if (gates == Gates::random)
        fail_usage(
            "@gates random draws the gates, so the prompts of {} have no meaning; leave them out",
            flag.model);
      expert.prompts = read_gate_prompts(flag.prompts, *base.tokenizer);
      check_gate_context(expert.prompts, flag.prompts, base.model->config().context);
    }
    experts.push_back(std::move(expert));
  }
  return experts;
}

MergeOptions merge_options(const MergeJob& job, const ModelConfig& base) {
  MergeOptions o = job.options;
  const auto experts = static_cast<int64_t>(job.experts.size());
  o.routing = routing_for_dense(base, experts, job.top_k, base.layers);
  if (!job.recipe.empty()) {
    WantedRouting wanted;
    wanted.recipe = job.recipe;
    wanted.experts = experts;
    wanted.top_k = job.top_k;
    o.routing = routing_options(wanted, base.layers);
  }
  o.threads = thread_count(job.threads);
  return o;
}

void tell_notes(const Merged& merged, const Watch& watch) {
  for (const std::string& note : merged.notes) watch.tell(fmt::format("note: {}", note));
  const auto worst =
      std::max_element(merged.layers.begin(), merged.layers.end(),
                       [](const auto& a, const auto& b) { return a.condition < b.condition; });
  const auto bad =
      std::count_if(merged.layers.begin(), merged.layers.end(),
                    [](const MergedLayer& l) { return !(l.condition <= kBadCondition); });
  if (bad > 0)
    watch.tell(
        fmt::format("note: the gates of {} of {} are badly conditioned (above {:g}; the worst is "
                    "layer {} with {}): their experts get nearly the same tokens. Prompts that "
                    "differ more, or negative ones, tell them apart",
                    bad, counted(static_cast<int64_t>(merged.layers.size()), "layer"),
                    kBadCondition, worst->layer, condition_in_words(worst->condition)));
}

}  // namespace

std::string condition_in_words(double x) {
  return std::isfinite(x) ? fmt::format("{:.3g}", x) : "infinite";
}

FieldList fields(MergeJob& job) {
  FieldList list, how = fields(job.options);
  list.add("OUT", job.out, kNewModelHelp).positional().required();
  list.add("base", job.in,
           fmt::format("the dense model that gives attention, norms, embeddings and head: {}",
                       kModelIs))
      .required();
  list.add("expert", job.experts,
           "MODEL or MODEL:PROMPTS, once for each expert: a dense model of the same shape and "
           "vocabulary gives its FFNs, and prompts of its kind make its "
           "gates. PROMPTS is a text file with a prompt a line, or a .json file {\"positive\": "
           "[...], \"negative\": [...]}")
      .required()
      .one_each();
  list.add(how.take({"gates"}));
  list.add("top_k", job.top_k, "experts a token takes");
  const std::vector<std::string> names = names_of(recipes());
  list.add("recipe", job.recipe,
           fmt::format("how tokens choose experts: {}; default: the one of models with the same "
                       "attention, weights renormalised",
                       listed(names)))
      .values(names);
  list.add(std::move(how));
  list.add(fields(job.type));
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

void check_given(const MergeJob& job, const Given& given) {
  if (given.has("seed") && job.options.gates != Gates::random)
    fail_usage("@seed is of @gates random, and @gates {} draws nothing; leave it out",
               gates_names()[static_cast<size_t>(job.options.gates)]);
}

MergeReply merge_models(const MergeJob& job, const Watch& watch) {
  const Gates gates = job.options.gates;
  MergeSources sources(job.memory.limits);
  check_result_type(job.type, job.out);
  LoadedModel& base = sources.load(job.in);
  const ResultType type = result_type(job.type, job.out, base, job.in);
  const std::vector<MergeExpert> experts = read_experts(job, base, sources, gates);
  MergeOptions options = merge_options(job, base.model->config());
  const MergeCopies copies = merging_copies(*base.model, experts);
  if (!copies.widened.empty())
    watch.tell(fmt::format("note: {} and take {} of memory; moe convert gives them one type first",
                           copies.widened, human_bytes(static_cast<double>(copies.bytes))));
  MemoryNeed beside;
  beside.add("new weights", copies.bytes);
  const std::string types = copies.widened.empty() ? "take fewer or smaller experts"
                                                   : "convert the experts to one type first";
  int64_t longest = 0;
  for (const MergeExpert& expert : experts)
    for (const auto* list : {&expert.prompts.positive, &expert.prompts.negative})
      for (const std::vector<int32_t>& ids : *list) longest = std::max(longest, std::ssize(ids));
  const ForwardUse use{.model = base.model.get(),
                       .shape = {.tokens = longest, .dtype = DType::f32}};
  if (gates != Gates::random)
    prepare_memory(job.in, use, beside, job.memory, "shorten the prompts, or " + types, watch);
  else check_memory(beside, job.memory, types, watch);
  NewModel out(job.out, watch);
  Merged merged;
  {
    const Progress progress = watch.begin();
    options.progress = [&](int64_t done, int64_t total) {
      out.check_stopped();
      progress(done, total, "prompts");
    };
    merged = merge(*base.model, experts, options);
  }
  tell_notes(merged, watch);
  std::vector<ConvertedRow> rows =
      out.save(*merged.model, *base.tokenizer, type.type, options.threads);
  return {{job.out, merged.model->config(), type, std::move(rows), std::move(merged.parts)},
          gates,
          std::move(merged.layers),
          std::move(merged.notes)};
}

Json to_json(const MergeReply& r, const Spelling& spell) {
  Json reply = to_json(static_cast<const Made&>(r), spell);
  reply["gates"] = gates_names()[static_cast<size_t>(r.gates)];
  reply["notes"] = r.notes;
  for (const MergedLayer& l : r.layers)
    reply["gates_of_layers"].push_back(
        {{"layer", l.layer},
         {"condition", std::isfinite(l.condition) ? Json(l.condition) : Json()}});
  return reply;
}

}  // namespace moe
