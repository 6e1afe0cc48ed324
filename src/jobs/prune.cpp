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
  list.add(fields(job.heal));
  list.add(fields(job.type));
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

void check_given(const PruneJob& job, const Given& given) { check_heal(job.heal, job, given); }

namespace {

// The model before, and after as it was written, rounded to the type of its file.
PruneReply::Verified score_both(const PruneJob& job, const LoadedModel& before, VerifyText text,
                                const Watch& watch) {
  const bool stays = job.heal.minutes == 0;  // what is to be healed goes again with what fails
  const LoadedModel after = open_model(job.out, job.memory.limits);
  prepare_memory(
      job.in, scored_in_turn({before.model.get(), after.model.get()}, text.rule, DType::f32), {},
      job.memory, marked(stays ? "leave @verify out; the model is written" : "leave @verify out"),
      watch);
  const auto perplexity = [&](const LoadedModel& scored, const VerifyText& own, const char* which) {
    return score_verify(*scored.model, *scored.tokenizer, own, thread_count(job.threads),
                        fmt::format("windows of {}", which),
                        stays ? "the model is written" : "nothing was written", watch)
        .perplexity;
  };
  PruneReply::Verified v;
  v.before = perplexity(before, text, "before");
  v.after = perplexity(after, read_verify(job.verify, after, text.rule), "after");
  v.text = std::move(text);
  return v;
}

PruneReply prune_only(const PruneJob& job, const Watch& watch) {
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
  const CalibrationText calibration = read_calibration(job.calibration, model, Windows::spread);
  std::optional<VerifyText> verify;
  if (!job.verify.empty()) {
    verify = read_verify(job.verify, model);
    // The windows are spread over all of the text.
    check_not_fitted_to(*verify, calibration.all, *model.tokenizer, watch);
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
    pruned = prune(*model.model, calibration.windows, options);
  }
  std::vector<ConvertedRow> rows =
      out.save(*pruned.model, *model.tokenizer, type.type, options.threads);
  PruneReply reply{
      {job.out, pruned.model->config(), type, std::move(rows), std::move(pruned.parts)},
      std::move(pruned.layers),
      options.saliency,
      {},
      {}};
  pruned.model.reset();  // what was written is scored
  if (verify) reply.verified = score_both(job, model, std::move(*verify), watch);
  return reply;
}

// Everything that healing stands on, before anything is pruned. The text that judges is none that
// heals.
void check_before_healing(const PruneJob& job, const std::string& in, const Watch& watch) {
  const LoadedModel model = open_model(in, job.memory.limits);
  check_heal_texts(job.heal, job, job.calibration.text, model);
  if (job.verify.empty()) return;
  const VerifyText verify = read_verify(job.verify, model);
  for (const std::string& path : job.heal.data)
    check_not_fitted_to(verify, read_ids(path, *model.tokenizer), *model.tokenizer, watch);
}

}  // namespace

PruneReply prune_model(const PruneJob& job, const Watch& watch) {
  if (job.heal.minutes == 0) return prune_only(job, watch);
  PruneJob damage = job;
  damage.in = find_model(job.in);
  check_before_healing(job, damage.in, watch);
  { const NewModel free(job.out, watch); }  // fails where something is there
  Damaged damaged(job.out);
  damage.out = damaged_folder(job.out);
  PruneReply reply = prune_only(damage, watch);
  reply.healed = heal(job.heal, job, damage.in, job.calibration.text, damaged, watch);
  reply.out = job.out;
  if (reply.verified) {
    const LoadedModel model = open_model(job.out, job.memory.limits);
    const VerifyText text = read_verify(job.verify, model);
    reply.verified->healed =
        score_verify(*model.model, *model.tokenizer, text, thread_count(job.threads),
                     "windows of what was healed", "the model is written", watch)
            .perplexity;
  }
  return reply;
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
    if (r.verified->healed) reply["verify"]["healed"] = {{"perplexity", *r.verified->healed}};
  }
  if (r.healed) reply["healed"] = to_json(*r.healed);
  return reply;
}

}  // namespace moe
