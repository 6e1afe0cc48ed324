#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/options.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/threads.h"
#include "model/cost.h"
#include "ops/ops.h"
#include "text/bpe_train.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace moe::cli {
namespace {

struct Flags {
  ModelFlags model;
  TrainOptions train;
  std::vector<std::string> data, eval_data;
  std::string out, tokenizer = "bytes", from;
  bool resume = false, json = false;
};

constexpr double kPeakSeconds = 0.3;

// The figures behind the progress bar. CE stands apart from the auxiliary losses, which are not part of it.
std::string describe_step(const StepResult& r, const TrainOptions& o, double peak, bool routed) {
  const double left = r.tokens_per_second > 0 ? static_cast<double>((o.steps - r.step) * o.batch * o.accumulate * o.context) / r.tokens_per_second : 0;
  std::string text = fmt::format("ce {:.3f}", r.ce);
  each_loss(r, [&](const char* name, double x) {
    if (x != 0) text += fmt::format("  {} {:.2f}", name, x);
  });
  text += fmt::format("  {} tok/s  {:.0f}% of peak", human_count(r.tokens_per_second), 100 * r.flops_per_second / peak);
  if (routed) text += fmt::format("  MaxVio {:.2f}  dropped {:.1f}%", r.max_vio, 100 * r.dropped);
  return text + fmt::format("  {} left", human_seconds(left));
}

void describe_run(ProgressLine& screen, const Model& model, const Corpus& corpus, const Tokenizer& tokenizer, const TrainOptions& o) {
  const ModelConfig& c = model.config();
  const ModelCost cost = count_cost(c, o.context);
  std::vector<std::string> domains;
  for (const CorpusFile& file : corpus.files()) domains.push_back(file.domain);
  const std::string shown = domains.size() <= 8 ? fmt::format("{}", fmt::join(domains, ", ")) : fmt::format("{} files", domains.size());
  screen.log(fmt::format("data: {} tokens ({})", human_count(static_cast<double>(corpus.size())), shown));
  if (corpus.skipped_binary() + corpus.skipped_empty() > 0)
    screen.log(fmt::format("data: passed over {} binary and {} empty files", corpus.skipped_binary(), corpus.skipped_empty()));
  if (!tokenizer.ids_are_bytes())
    screen.log(fmt::format("tokenizer: {}, {} entries, {:.2f} bytes a token", tokenizer.spec(), tokenizer.vocab_size(),
                           static_cast<double>(corpus.bytes()) / static_cast<double>(corpus.size())));
  screen.log(fmt::format("model: {} parameters, {} active for a token; recipe {}", human_count(static_cast<double>(cost.params.total())),
                         human_count(static_cast<double>(cost.params.active())), c.routing.recipe));
  const int64_t tokens = o.steps * o.batch * o.accumulate * o.context;
  screen.log(fmt::format("run: {} steps of {} tokens, {} tokens in all ({:.2f} passes over the data), {}, {} threads", o.steps,
                         o.batch * o.accumulate * o.context, human_count(static_cast<double>(tokens)),
                         static_cast<double>(tokens) / static_cast<double>(corpus.size()), name_of(o.dtype), o.threads));
  if (o.dtype == DType::bf16 && !ops::has_bf16_products()) screen.log("note: this processor has no bf16 products; they run in f32 and bf16 only saves memory");
}

// The weights to start from: drawn, or those of --from, with their tokenizer.
LoadedModel start_model(const Flags& f) {
  LoadedModel start;
  if (f.from.empty()) {
    std::unique_ptr<Tokenizer> tokenizer = choose_tokenizer(f.tokenizer, f.data);
    start.model = std::make_unique<Model>(make_config(f.model, tokenizer->vocab_size(), f.train.context));
    start.model->initialise(f.train.seed);
    start.tokenizer = std::move(tokenizer);
  } else {
    start = load_model(f.from);
  }
  return start;
}

int run_train(Flags& f, CLI::App& app) {
  apply_files(app, f.model);
  if (f.data.empty()) fail_usage("--data is missing: name a text file or a folder of them");
  if (f.out.empty()) fail_usage("--out is missing: name the folder that the model shall be written to");
  if (!f.from.empty() && app.count("--tokenizer") > 0) fail_usage("--from brings the tokenizer of its model; leave --tokenizer out");
  std::optional<Checkpoint> checkpoint;
  LoadedModel fresh;
  if (f.resume && holds_model(f.out)) {
    checkpoint = load_checkpoint(f.out);
    f.train = resumed_options(*checkpoint, f.train);
  } else {
    check_unused(f.out);
  }
  f.train = resolved(f.train);
  validate(f.train);
  if (checkpoint && checkpoint->step == f.train.steps) {
    fmt::print(stderr, "{} is trained already: step {} of {}\n", f.out, checkpoint->step, f.train.steps);
    return 0;
  }
  if (!checkpoint) fresh = start_model(f);
  const LoadedModel& start = checkpoint ? checkpoint->loaded : fresh;
  const Corpus corpus(f.data, *start.tokenizer);
  const std::optional<Corpus> held_out = f.eval_data.empty() ? std::nullopt : std::make_optional<Corpus>(f.eval_data, *start.tokenizer);
  if (checkpoint) {
    check_resumable(*checkpoint, f.train, data_print(corpus));
    if (f.from.empty()) check_same_model(*checkpoint, make_config(f.model, start.tokenizer->vocab_size(), f.train.context));
  }

  ProgressLine screen;
  describe_run(screen, *start.model, corpus, *start.tokenizer, f.train);
  if (checkpoint) screen.log(fmt::format("resuming {} at step {}", f.out, checkpoint->step));
  Run probe(f.train.threads);
  const double peak = ops::measure_peak_flops(probe, f.train.dtype == DType::bf16 && ops::has_bf16_products() ? DType::bf16 : DType::f32, kPeakSeconds);
  const bool routed = start.model->config().moe_layer_count() > 0;

  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepResult& r) { screen.show(r.step, f.train.steps, describe_step(r, f.train, peak, routed)); };
  callbacks.on_eval = [&](int64_t step, double ce) { screen.log(fmt::format("step {}: held-out ce {:.4f} nats per token", step, ce)); };
  callbacks.on_log = [&](const std::string& line) { screen.log(line); };
  const TrainJob job{f.out, f.train, &corpus, held_out ? &*held_out : nullptr, start.tokenizer.get()};
  const TrainSummary summary = train(*start.model, job, callbacks, watch_interrupts(), checkpoint ? &*checkpoint : nullptr);

  if (summary.interrupted) screen.log(fmt::format("interrupted: step {} is saved in {}; the same command with --resume goes on", summary.last.step, f.out));
  else screen.log(fmt::format("done: {} steps in {}; the model is in {}", summary.last.step, human_seconds(summary.last.seconds), f.out));
  if (f.json) {
    Json reply = {{"out", f.out},          {"step", summary.last.step},         {"tokens", summary.last.tokens}, {"seconds", summary.last.seconds},
                  {"ce", summary.last.ce}, {"interrupted", summary.interrupted}};
    if (summary.eval_ce) reply["eval_ce"] = *summary.eval_ce;
    fmt::print("{}\n", reply.dump());
  }
  return 0;
}

}  // namespace

Action add_train(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("--data", f->data, "text files, or folders of them");
  app.add_option("--out", f->out, "folder for the model, its checkpoints and metrics.jsonl");
  app.add_option("--eval-data", f->eval_data, "held-out text, files or folders");
  app.add_option("--tokenizer", f->tokenizer,
                 "bytes: every byte is a token; bpe:SIZE: byte-level BPE of SIZE entries, learned from --data; or a model folder, for its tokenizer")
      ->capture_default_str();
  app.add_option("--from", f->from, "start from the weights of this model folder");
  add_model_options(app, f->model);
  add_train_options(app, f->train);
  app.add_option("--eval-every", f->train.eval_every, "steps between evaluations; 0: at the end only")->capture_default_str();
  app.add_option("--save-every", f->train.save_every, "steps between checkpoints; 0: at the end only. Also keeps the first weights in OUT/checkpoint-0")
      ->capture_default_str();
  app.add_flag("--resume", f->resume, "go on with the run in OUT; starts it when there is none");
  app.add_flag("--json", f->json, "one JSON object on standard output at the end");
  return [f, &app] { return run_train(*f, app); };
}

}  // namespace moe::cli
