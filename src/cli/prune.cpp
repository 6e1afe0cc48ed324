// Drops the experts of a Mixture-of-Experts model that do least on a text, and prints the damage.
#include "convert/prune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/conversion.h"
#include "cli/flags.h"
#include "cli/result_type.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "convert/options.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "options/common.h"

namespace moe::cli {
namespace {

constexpr size_t kListedExperts = 12;

struct Flags {
  std::string in, out, verify;
  PruneOptions options;
  ResultTypeFlags type;
  CalibrationFlags calibration;
  MemoryFlags memory;
  int threads = 0;
  bool json = false;
  Given given;
};

std::vector<int64_t> dropped(const PrunedLayer& layer) {
  std::vector<int64_t> gone;
  for (int64_t e = 0; e < static_cast<int64_t>(layer.saliency.size()); ++e)
    if (!std::binary_search(layer.kept.begin(), layer.kept.end(), e)) gone.push_back(e);
  return gone;
}

void print_layers(const std::vector<PrunedLayer>& layers) {
  fmt::print("{:>5}  {:>16}  {:>15}  experts that go\n", "layer", "of their choices", "of their output");
  for (const PrunedLayer& layer : layers) {
    std::vector<int64_t> gone = dropped(layer);
    const size_t count = gone.size();
    if (count > kListedExperts) gone.resize(kListedExperts);
    fmt::print("{:>5}  {:>15.1f}%  {:>14.1f}%  {}{}\n", layer.layer, 100 * layer.lost_choices, 100 * layer.lost_output, fmt::join(gone, ", "),
               count > kListedExperts ? fmt::format(" and {} more", count - kListedExperts) : "");
  }
}

Json layers_json(const std::vector<PrunedLayer>& layers) {
  Json rows = Json::array();
  for (const PrunedLayer& l : layers)
    rows.push_back({{"layer", l.layer},
                    {"kept", l.kept},
                    {"saliency", l.saliency},
                    {"tokens", l.tokens},
                    {"lost_choices", l.lost_choices},
                    {"lost_output", l.lost_output}});
  return rows;
}

int run_prune(const Flags& f) {
  PruneOptions options = f.options;
  options.windows = f.calibration.windows;
  options.threads = thread_count(f.threads);
  check_result_type(f.type, f.out);
  LoadedModel model = load_model(f.in, LoadFor::inference);
  const ResultType type = result_type(f.type, f.out, model, f.in);
  options.window = calibration_window(f.calibration, model.model->config());
  options.compute = natural_dtype(*model.model);
  check_prune(model.model->config(), options);
  const std::vector<int32_t> ids = read_calibration(f.calibration, model);
  std::optional<VerifyText> verify;
  if (!f.verify.empty()) {
    verify = read_verify(f.verify, model);
    check_not_fitted_to(*verify, ids, *model.tokenizer);
  }
  const ForwardUse use{.model = model.model.get(), .shape = {.tokens = options.window, .dtype = options.compute}};
  prepare_memory(f.in, use, {}, f.memory, "lower --window");
  NewModel out(f.out);
  Pruned pruned;
  {
    ProgressLine progress;
    options.progress = [&](int64_t done, int64_t total) {
      fail_if_interrupted(f.out);
      progress.show(done, total, "calibration windows");
    };
    pruned = prune(*model.model, ids, options);
  }
  double before = 0, after = 0;
  if (verify) {
    prepare_verify({model.model.get(), pruned.model.get()}, f.in, *verify, f.memory);
    before = perplexity_of(*model.model, *model.tokenizer, *verify, options.threads, "before");
    after = perplexity_of(*pruned.model, *model.tokenizer, *verify, options.threads, "after");
  }
  const std::vector<ConvertedRow> rows = out.save(*pruned.model, *model.tokenizer, type.type, options.threads);
  if (!f.json) {
    print_layers(pruned.layers);
    print_parts(pruned.parts);
    fmt::print("{}\n", describe_result(f.out, *pruned.model, type.type.dtype));
    print_weights(type, rows);
    if (verify) print_verify(*verify, before, after);
    return 0;
  }
  Json reply = result_json(f.out, *pruned.model, type.type.dtype);
  reply["weights"] = weights_json(type, rows);
  reply["parts"] = to_json(pruned.parts);
  reply["pruned_layers"] = layers_json(pruned.layers);
  reply["saliency"] = saliency_names()[static_cast<size_t>(options.saliency)];
  if (verify) reply["verify"] = verify_json(*verify, before, after);
  print_json(reply);
  return 0;
}

}  // namespace

Action add_prune(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list, how = fields(f->options);
  list.add("MOE", f->in, fmt::format("a model with experts: {}", kModelIs)).positional().required();
  list.add("OUT", f->out, kNewModelHelp).positional().required();
  list.add(how.take({"experts"}));
  list.add(fields(f->calibration, "experts stay by what they do on it"));
  list.add(std::move(how));
  list.add("verify", f->verify, "another text, or a folder of them: score it before and after, by the rule of windows of moe score");
  list.add(fields(f->type));
  add_threads(list, f->threads);
  add_memory(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_prune(*f); };
}

}  // namespace moe::cli
