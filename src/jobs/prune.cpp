#include "jobs/prune.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "convert/options.h"
#include "core/error.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "model/adapters.h"

namespace moe {
namespace {

Json pruned_layers_json(const std::vector<PrunedLayer>& layers) {
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

}  // namespace

FieldList fields(PruneJob& job) {
  FieldList list, how = fields(job.options);
  list.add("MOE", job.in, fmt::format("a model with experts: {}", kModelIs))
      .positional()
      .required();
  list.add("OUT", job.out, kNewModelHelp).positional().required();
  list.add(how.take({"experts"}));
  list.add(fields(job.calibration, "experts stay by what they do on it"));
  list.add(std::move(how));
  list.add("verify", job.verify,
           "another text, or a folder of them: score it before and after, by the rule of windows "
           "of moe score");
  list.add(fields(job.type));
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

PruneReply prune_model(const PruneJob& job, const Watch& watch) {
  PruneOptions options = job.options;
  options.windows = job.calibration.windows;
  options.threads = thread_count(job.threads);
  check_result_type(job.type, job.out);
  LoadedModel model = open_model(job.in, job.memory.limits);
  merge_terms(*model.model, thread_count(job.threads));
  const ResultType type = result_type(job.type, job.out, model, job.in);
  options.window = calibration_window(job.calibration, model.model->config());
  options.compute = natural_dtype(*model.model);
  check_prune(model.model->config(), options);
  const std::vector<int32_t> ids = read_calibration(job.calibration, model);
  std::optional<VerifyText> verify;
  if (!job.verify.empty()) {
    verify = read_verify(job.verify, model);
    check_not_fitted_to(*verify, ids, *model.tokenizer, watch);
  }
  const ForwardUse use{.model = model.model.get(),
                       .shape = {.tokens = options.window, .dtype = options.compute}};
  prepare_memory(job.in, use, {}, job.memory, marked("lower @window"), watch);
  NewModel out(job.out, watch);
  Pruned pruned;
  {
    const Progress progress = watch.begin();
    options.progress = [&](int64_t done, int64_t total) {
      out.check_stopped();
      progress(done, total, "calibration windows");
    };
    pruned = prune(*model.model, ids, options);
  }
  std::optional<PruneReply::Verified> verified;
  if (verify) {
    prepare_memory(
        job.in, scored_in_turn({model.model.get(), pruned.model.get()}, verify->rule, DType::f32),
        {}, job.memory, marked("leave @verify out"), watch);
    const auto perplexity = [&](Model& scored, const char* which) {
      return score_verify(scored, *model.tokenizer, *verify, options.threads,
                          fmt::format("windows of {}", which), "nothing was written", watch)
          .perplexity;
    };
    const double before = perplexity(*model.model, "before"),
                 after = perplexity(*pruned.model, "after");
    verified = {std::move(*verify), before, after};
  }
  std::vector<ConvertedRow> rows =
      out.save(*pruned.model, *model.tokenizer, type.type, options.threads);
  return {{job.out, pruned.model->config(), type, std::move(rows), std::move(pruned.parts)},
          std::move(pruned.layers),
          options.saliency,
          std::move(verified)};
}

Json to_json(const PruneReply& r, const Spelling& spell) {
  Json reply = to_json(static_cast<const Made&>(r), spell);
  reply["pruned_layers"] = pruned_layers_json(r.layers);
  reply["saliency"] = saliency_names()[static_cast<size_t>(r.saliency)];
  if (r.verified) {
    const VerifyText& text = r.verified->text;
    reply["verify"] = {{"text", text.path},
                       {"windows", text.windows},
                       {"window", text.rule.window},
                       {"before", {{"perplexity", r.verified->before}}},
                       {"after", {{"perplexity", r.verified->after}}}};
  }
  return reply;
}

}  // namespace moe
