#include "cli/training.h"

#include <limits>

#include "core/error.h"
#include "text/bpe_train.h"

namespace moe::cli {
namespace {

// The weights to start from: drawn, or those of --from, with their tokenizer.
LoadedModel start_model(const TrainFlags& f) {
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

}  // namespace

Training::Training(CLI::App& app, TrainFlags& f) : flags_(f) {
  apply_files(app, f.model);
  if (f.data.empty()) fail_usage("--data is missing: name a text file or a folder of them");
  if (f.out.empty()) fail_usage("--out is missing: name the folder that the model shall be written to");
  if (!f.from.empty() && app.count("--tokenizer") > 0) fail_usage("--from brings the tokenizer of its model; leave --tokenizer out");
  if (f.resume && holds_model(f.out)) {
    checkpoint_ = load_checkpoint(f.out);
    f.train = resumed_options(*checkpoint_, f.train);
  } else {
    check_unused(f.out);
  }
  f.train = resolved(f.train);
  validate(f.train);
  if (is_done()) return;
  if (!checkpoint_) fresh_ = start_model(f);
  read_texts();
}

void Training::read_texts() {
  corpus_.emplace(flags_.data, tokenizer());
  if (!flags_.eval_data.empty()) held_out_.emplace(flags_.eval_data, tokenizer());
  if (!checkpoint_) return;
  check_resumable(*checkpoint_, flags_.train, data_print(*corpus_));
  if (flags_.from.empty()) check_same_model(*checkpoint_, make_config(flags_.model, tokenizer().vocab_size(), flags_.train.context));
}

TrainSummary Training::done() const {
  TrainSummary summary;
  summary.last.step = checkpoint_->step;
  summary.last.tokens = checkpoint_->step * flags_.train.batch * flags_.train.accumulate * flags_.train.context;
  summary.last.seconds = checkpoint_->seconds;
  summary.last.ce = std::numeric_limits<double>::quiet_NaN();
  return summary;
}

TrainSummary Training::run(const TrainCallbacks& callbacks, const std::atomic<bool>& stop) {
  const TrainJob job{flags_.out, flags_.train, &*corpus_, held_out(), start().tokenizer.get()};
  return train(*start().model, job, callbacks, stop, checkpoint_ ? &*checkpoint_ : nullptr);
}

void add_training_options(CLI::App& app, TrainFlags& f) {
  app.add_option("--data", f.data, "text files, or folders of them");
  app.add_option("--out", f.out, "folder for the model, its checkpoints and metrics.jsonl");
  app.add_option("--eval-data", f.eval_data, "held-out text, files or folders");
  app.add_option("--tokenizer", f.tokenizer,
                 "bytes: every byte is a token; bpe:SIZE: byte-level BPE of SIZE entries, learned from --data; or a model folder, for its tokenizer")
      ->capture_default_str();
  app.add_option("--from", f.from, "start from the weights of this model folder");
  add_model_options(app, f.model);
  add_train_options(app, f.train);
  app.add_option("--eval-every", f.train.eval_every, "steps between evaluations; 0: at the end only")->capture_default_str();
  app.add_option("--save-every", f.train.save_every, "steps between checkpoints; 0: at the end only. Also keeps the first weights in OUT/checkpoint-0")
      ->capture_default_str();
  app.add_flag("--resume", f.resume, "go on with the run in OUT; starts it when there is none");
}

}  // namespace moe::cli
