// A training run as flags and files describe it: the body of `moe train`. Prints nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/memory.h"
#include "cli/options.h"
#include "train/checkpoint.h"
#include "train/run_lock.h"
#include "train/trainer.h"

namespace moe::cli {

struct TrainFlags {
  ModelFlags model;
  TrainOptions train;
  std::vector<std::string> data, eval_data;
  std::string out, from, teacher;
  MemoryFlags memory;
  bool own_tokenizer = false;  // the texts are tokens already, whose folder brings it
  bool resume = false;
};

// Adds every option of a run to `app`, writing to `flags`, which must outlive the parse.
void add_training_options(CLI::App& app, TrainFlags& flags);

// Everything a run needs, read and checked; nothing is written before run(). Owns model, tokenizer and texts.
class Training {
 public:
  // Applies --config and --preset to what `app` has parsed into `flags`. Usage errors name the flag.
  Training(CLI::App& app, TrainFlags& flags);

  // The run in OUT was there already and has taken all its steps.
  bool is_done() const { return checkpoint_ && checkpoint_->step == flags_.train.steps; }
  // What is known of that run; its last ce is not and is NaN.
  TrainSummary done() const;
  // With --minutes a new run measures first how long a step takes, and settles how many there is time for; before that the number of steps has no meaning.
  bool must_fit() const { return !checkpoint_ && flags_.train.minutes > 0; }
  // `afterwards`: tokens that a report is going to read; `stop` ends the measuring with an error.
  void fit(int64_t afterwards, const std::atomic<bool>& stop);
  TrainSummary run(const TrainCallbacks&, const std::atomic<bool>& stop);

  const std::string& out() const { return flags_.out; }
  const TrainOptions& options() const { return flags_.train; }  // resolved
  Model& model() { return *start().model; }
  const Tokenizer& tokenizer() const { return *start().tokenizer; }
  const Corpus& corpus() const { return *corpus_; }                             // not when is_done()
  const Corpus* held_out() const { return held_out_ ? &*held_out_ : nullptr; }  // null: none was given
  Model* teacher() { return teacher_.model.get(); }                             // null: there is none
  const std::string& teacher_path() const { return flags_.teacher; }
  const std::string& foretold() const { return foretold_; }  // of its memory, in words; not when is_done()
  bool from_weights() const { return !flags_.from.empty(); }
  std::optional<int64_t> resumed_from() const { return checkpoint_ ? std::optional(checkpoint_->step) : std::nullopt; }

 private:
  const LoadedModel& start() const { return checkpoint_ ? checkpoint_->loaded : fresh_; }
  // Takes from the run in OUT what neither command line nor files say.
  void go_on(const CLI::App& app);
  void check_complete() const;
  void read_teacher();
  void read_texts();

  TrainFlags& flags_;
  std::optional<RunLock> lock_;  // of a folder that is there, before its checkpoint is read
  std::optional<Checkpoint> checkpoint_;
  LoadedModel fresh_;    // without a checkpoint
  LoadedModel teacher_;  // empty: none
  double began_;         // seconds of the steady clock
  std::optional<Deadline> deadline_;
  std::optional<int64_t> asked_warmup_, asked_eval_every_;
  bool describes_model_ = false;  // some option or file does
  bool warmup_is_flag_ = false;   // and no file's, which gives way where --minutes leaves fewer steps
  std::string foretold_;
  std::optional<Corpus> corpus_, held_out_;
};

}  // namespace moe::cli
