// Drops the experts of a Mixture-of-Experts model that do least on a text, and prints the damage.
#include "convert/prune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/choices.h"
#include "cli/command_tree.h"
#include "cli/conversion.h"
#include "cli/options.h"
#include "cli/result_type.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/named_models.h"
#include "infer/evaluation.h"

namespace moe::cli {
namespace {

constexpr size_t kListedExperts = 12;

struct Flags {
  std::string in, out, saliency = "output", verify;
  ResultTypeFlags type;
  CalibrationFlags calibration;
  MemoryFlags memory;
  int64_t experts = 0;
  int threads = 0;
  bool json = false;
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
  PruneOptions options{.experts = f.experts,
                       .saliency = choose<Saliency>(f.saliency, "--saliency", saliency_names()),
                       .windows = f.calibration.windows,
                       .threads = thread_count(f.threads)};
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
  reply["saliency"] = f.saliency;
  if (verify) reply["verify"] = verify_json(*verify, before, after);
  print_json(reply);
  return 0;
}

}  // namespace

Action add_prune(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MOE", f->in, fmt::format("a model with experts: {}", kModelIs))->required();
  app.add_option("OUT", f->out, kNewModelHelp)->required();
  app.add_option("--experts", f->experts, "how many experts stay in each MoE layer, at least as many as a token takes")->required();
  add_calibration_options(app, f->calibration, "experts stay by what they do on it");
  takes(
      app.add_option("--saliency", f->saliency,
                     "what an expert counts, over the tokens that choose it: output, the sum of what it adds (its weight times the norm of its output); mean, "
                     "the mean of that (REAP); frequency, how many they are")
          ->capture_default_str(),
      saliency_names());
  app.add_option("--verify", f->verify, "another text, or a folder of them: score it before and after, by the rule of windows of moe score");
  add_result_type_options(app, f->type);
  app.add_option("--threads", f->threads, "0: all cores")->capture_default_str();
  add_memory_options(app, f->memory);
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_prune(*f); };
}

}  // namespace moe::cli
