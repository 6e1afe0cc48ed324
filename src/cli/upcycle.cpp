// Makes a Mixture-of-Experts model of a dense one whose FFN is copied, and says how far it computes what the dense one does.
#include "convert/upcycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/conversion.h"
#include "cli/flags.h"
#include "cli/memory.h"
#include "cli/result_type.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "convert/logit_difference.h"
#include "convert/options.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/folder/styles.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "moe/recipes/wanted_routing.h"
#include "options/common.h"

namespace moe::cli {
namespace {

// Read by both models to see how far their logits are apart.
constexpr std::string_view kProbe = "The router sends each token to a few experts, and what they say is added up.";
constexpr int64_t kProbeTokens = 64;

struct Flags {
  std::string in, out;
  ResultTypeFlags type;
  WantedRouting routing;
  UpcycleOptions options;
  int threads = 0;
  MemoryFlags memory;
  bool json = false;
  Given given;
};

// A routing whose recipe nobody named is the one of models with this attention, renormalised.
RoutingOptions routing_of(const Flags& f, const ModelConfig& dense, int64_t moe_layers) {
  if (!f.routing.experts) fail_usage("--experts is missing: how many experts each layer gets");
  const RoutingOptions natural = routing_for_dense(dense, *f.routing.experts, 1, moe_layers);
  const bool is_named = !f.routing.recipe.empty() || !f.routing.stages.empty();
  WantedRouting named = f.routing;
  if (!is_named) named.recipe = natural.recipe;
  if (!named.top_k && !chosen_recipe(named).top_k_is_fixed) named.top_k = std::min(2 * f.options.granularity, *f.routing.experts);
  if (is_named) return routing_options(named, moe_layers);
  RoutingOptions options = routing_options(named, moe_layers);
  if (!options.norm_topk_prob) options.norm_topk_prob = natural.norm_topk_prob;
  return options;
}

UpcycleOptions options_of(const Flags& f, const ModelConfig& dense) {
  UpcycleOptions o = f.options;
  o.layers.check(dense.layers);
  o.routing = routing_of(f, dense, o.layers.count(dense.layers));
  return o;
}

LogitDifference probe(LoadedModel& dense, Model& moe, int threads) {
  std::vector<int32_t> ids = dense.tokenizer->encode_text(kProbe);
  ids.resize(static_cast<size_t>(std::min({static_cast<int64_t>(ids.size()), kProbeTokens, dense.model->config().context})));
  Run run(threads, DType::f32);
  return compare_logits(*dense.model, moe, run, ids);
}

void print_result(const Flags& f, const Upcycled& up, const LogitDifference& d, const ResultType& type, const std::vector<ConvertedRow>& rows) {
  print_parts(up.parts);
  fmt::print("{}\n", describe_result(f.out, *up.model, type.type.dtype));
  print_weights(type, rows);
  const std::string measured =
      fmt::format("largest logit difference over {}: {:.2g}, the largest logit being {:.3g}", counted(d.tokens, "token"), d.largest, d.largest_logit);
  if (up.why_not_exact.empty()) {
    fmt::print("step 0 computes what the dense model does: a token's weights count as 1 together ({})\n", measured);
    return;
  }
  fmt::print("step 0 is not the dense model: {} ({})\n", in_flags(up.why_not_exact), measured);
  if (up.weight_sum != 1)
    fmt::print("a token whose logits are alike gets weights of {:.4g} together, so down was multiplied by {:.4g}\n", up.weight_sum, up.down_scale);
}

// Views of the file, but for quantised ones: products with those round their rows, and so would hide how near the two models are.
LoadedModel load_dense(const std::string& path) {
  LoadedModel dense = load_model(path, LoadFor::inference);
  return mostly_quantised(*dense.model) ? load_model(path, LoadFor::training) : std::move(dense);
}

int run_upcycle(const Flags& f) {
  const int threads = thread_count(f.threads);
  check_result_type(f.type, f.out);
  LoadedModel dense = load_dense(f.in);
  const ResultType type = result_type(f.type, f.out, dense, f.in);
  const UpcycleOptions options = options_of(f, dense.model->config());
  upcycled_config(dense.model->config(), options);  // usage errors before anything is made
  MemoryNeed weights;
  weights.add("new weights", upcycling_bytes(dense.model->config(), options));
  check_memory(weights, f.memory, "lower --experts, or leave --noise out");
  NewModel out(f.out);
  Upcycled up = upcycle(*dense.model, options, threads);
  fail_if_interrupted(f.out);
  const ForwardShape probed{.tokens = kProbeTokens, .dtype = DType::f32};
  const ForwardUse uses[] = {{.model = dense.model.get(), .shape = probed}, {.model = up.model.get(), .shape = {.tokens = 1, .dtype = DType::f32}}};  // in turn
  prepare_memory(f.in, uses, {}, f.memory, "take a smaller model");
  const LogitDifference difference = probe(dense, *up.model, threads);
  const std::vector<ConvertedRow> rows = out.save(*up.model, *dense.tokenizer, type.type, threads);
  if (!f.json) {
    print_result(f, up, difference, type, rows);
    return 0;
  }
  Json reply = result_json(f.out, *up.model, type.type.dtype);
  reply["weights"] = weights_json(type, rows);
  reply["parts"] = to_json(up.parts);
  reply["granularity"] = options.granularity;
  reply["weight_sum"] = up.weight_sum;
  reply["down_scale"] = up.down_scale;
  reply["step_0"] = {{"equals_dense", up.why_not_exact.empty()},
                     {"why_not", in_flags(up.why_not_exact)},
                     {"tokens", difference.tokens},
                     {"largest_difference", difference.largest},
                     {"largest_logit", difference.largest_logit}};
  print_json(reply);
  return 0;
}

}  // namespace

Action add_upcycle(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("DENSE", f->in, fmt::format("a dense model: {}", kModelIs)).positional().required();
  list.add("OUT", f->out, kNewModelHelp).positional().required();
  list.add(fields(f->routing));
  list.at("recipe").help = fmt::format(
      "how tokens choose experts: {}; default: the one of models with the same attention, weights renormalised so that they add up to 1 and step 0 "
      "computes what the dense model does",
      listed(names_of(recipes())));
  list.at("experts").help = "experts of each MoE layer, all shards counted";
  list.at("experts").required = true;
  list.at("top_k").help = marked("experts a token takes; default: 2 copies, that is 2 times @granularity, or the number that the recipe fixes");
  list.add(fields(f->options));
  list.add(fields(f->type));
  add_threads(list, f->threads);
  add_memory(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_upcycle(*f); };
}

}  // namespace moe::cli
