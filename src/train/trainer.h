// One optimizer step, evaluation, and the loop that joins them with metrics and checkpoints. Prints
// nothing: what happens is told through callbacks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/layout.h"
#include "core/error.h"
#include "model/model.h"
#include "text/corpus.h"
#include "text/loader.h"
#include "text/tokenizer.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/preference.h"
#include "train/trainable.h"

namespace moe {

// Routing of one MoE layer over a whole step.
struct LayerLoad {
  int64_t layer = 0;
  // [E] share of the choices, before any drop, zero experts last; sums to 1
  std::vector<double> load;
  double max_vio = 0;  // max(count) / mean(count) - 1 of experts with weights (arXiv 2408.15664)
  double dropped = 0;  // share of the choices that found their expert full
};

// What several processes did beside computing in a step.
struct StepExchange {
  double sent = 0;    // bytes to other processes, mean of the processes
  double share = 0;   // of the step's time that was spent in exchanges and waiting for others, mean
  double hidden = 0;  // of the exchanges' time, in which the process computed, mean
  int slowest = 0;    // the process that computed longest,
  double lag = 1;     // so many times as long as the one in the middle
};

struct Evaluation {
  double ce = 0;                     // mean nats per predicted token; of pairs: of chosen replies
  std::optional<PairFigures> pairs;  // absent: other text
  double loss() const { return pairs ? pairs->loss : ce; }
};

struct StepResult {
  int64_t step = 0;   // steps taken, this one included
  int64_t steps = 0;  // that the run is to take
  // until it is over, with evaluations, saves and what comes after; train() knows
  double seconds_left = 0;
  int64_t tokens = 0;     // read so far
  int64_t predicted = 0;  // targets of this step: its tokens, less those that are not learned from
                          // and those at the end of a document
  double seconds = 0;     // spent in steps so far, earlier sessions of a resumed run included
  // mean nats per predicted token of this step, of pairs per token of the chosen replies; NaN where
  // there is none
  double ce = 0;
  std::optional<PairFigures> pairs;  // of this step's preference pairs; absent: other text
  double loss() const { return pairs ? pairs->loss : ce; }
  // likewise, the divergence from the teacher, where there is one: KL(teacher || student)
  std::optional<double> kl;
  // The auxiliary losses, each a mean over MoE layers and micro-batches, not part of ce; 0 where
  // the recipe has none. For each_loss (moe/losses/aux_loss.h).
  double balance = 0;  // 1 when balanced
  double z = 0;
  double device = 0;
  double communication = 0;
  double importance = 0;
  double load = 0;
  RoutingLosses coef;    // what they are multiplied by in the loss
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double tokens_per_second = 0;
  double flops = 0;  // of this step, over the rows the experts kept (model/cost.h)
  double flops_per_second = 0;
  std::vector<LayerLoad> layers;         // MoE layers in order
  std::optional<StepExchange> exchange;  // absent for a process alone
  double max_vio = 0;                    // largest of the layers
  double dropped = 0;                    // mean of the layers
};

// The loss or a gradient of a step is not finite, or the loss of an evaluation.
class DivergedError : public Error {
 public:
  using Error::Error;
};

// Owns the moments, adapters and all activation memory; views the model, the corpus and the
// teacher, which must outlive it.
//
// Processes that train together have the same model, options and corpus. The micro-batches of a
// step are dealt out to them in rounds, each micro-batch as a whole, so that what ties its tokens
// together (capacity, noise, experts that choose, a loss's own counts) is the same however many
// processes there are. What they give is then summed over processes in one place, and from there on
// all of them do the same with the same numbers. Where experts are spread over processes
// (comm/layout.h), each keeps and moves its own. step, rehearse and evaluate are collective
// (comm/group.h).
class Trainer {
 public:
  // Gives gradients to what options.tune names. Usage errors when the options do not fit the model
  // or the group. A teacher has the model's vocabulary; it routes as in an evaluation, and the loss
  // is (1 - w) ce + w kl with w = options.teacher_weight. Of a corpus of pairs the loss is that of
  // train/preference.h, and the teacher, where there is one, is the reference.
  Trainer(Model&, const TrainOptions&, const Corpus&, Model* teacher = nullptr,
          const comm::Layout& layout = {});

  // The log-probabilities that the reference gives to the replies of the pairs that the run reads,
  // and to those of `held_out` (null: none), which evaluations then take: by the teacher, else by
  // the model, which is to be as the run starts from it. Called before the first step; nothing to
  // do without pairs. Fails when `stop` is set. Collective.
  void take_reference(const Corpus* held_out, const std::atomic<bool>& stop);
  // Makes room for them instead, for who has them from a checkpoint.
  void expect_reference(const Corpus* held_out);
  // Whether it knows those of all pairs that the run comes to.
  bool has_reference() const;
  // Of the corpus and of held-out text; empty without pairs.
  const PairReference& reference() const { return reference_; }
  const PairReference& held_out_reference() const { return held_out_reference_; }

  // The next step. Fails (DivergedError) with step, layer and tensor named when the loss or a
  // gradient is not finite; the weights are then those of the step before. Its seconds are those of
  // the slowest process.
  StepResult step();
  // Seconds of a step whose learning rate is 0, so weights and buffers stay as they are; the
  // moments do not, so this trainer is for nothing else.
  double rehearse();
  // Mean nats per predicted token over windows of `context` predictions that follow each other
  // without overlap; where options.eval_tokens allows fewer, over that many of them, evenly spread
  // so that each file has its share. Routed as default_eval says: without drops or noise. Fails
  // when the text is shorter than a window or nothing in it is to be predicted, and (DivergedError)
  // when the loss is not finite. Of pairs as many as have that many tokens at most, evenly spread.
  // `stop`, where it is given, ends it between two batches, set in any process; there is no number
  // then.
  double evaluate(const Corpus& held_out) { return evaluate(held_out, nullptr)->loss(); }
  std::optional<Evaluation> evaluate(const Corpus& held_out, const std::atomic<bool>* stop);

  int64_t steps_done() const { return steps_done_; }
  int64_t tokens_seen() const { return tokens_; }
  double seconds() const { return seconds_; }
  // Bytes of activations and scratch at the fullest moment so far.
  int64_t peak_activation_bytes() const;
  Model& model() { return model_; }
  Optimizer& optimizer() { return optimizer_; }
  const Run& run() const { return run_; }
  const Optimizer& optimizer() const { return optimizer_; }
  void leave_adapters() { trainable_.leave_adapters(); }  // at the end of the run
  const Trainable& trainable() const { return trainable_; }
  const TrainOptions& options() const { return options_; }  // resolved
  const comm::Layout& layout() const { return layout_; }
  // After the weights and moments were loaded.
  void resume_at(int64_t steps_done, double seconds);
  // From now on the schedule falls to its end at another step; evaluations nobody asked for are
  // spread anew.
  void replan(int64_t steps, bool spread_evaluations);

 private:
  struct Sums;
  StepResult take_step();
  // Forward and backward of all micro-batches of the next step, over all processes; the norm of the
  // gradient.
  double gradients(Sums& sums);
  // Of micro-batch a of the next step, in training; its text is text_ until the next.
  Pass pass_of(int64_t a);
  // Adds the gradient of its share of the mean over the step's targets, of which there are
  // `predicted`.
  void micro_batch(int64_t a, int64_t predicted, Sums& sums);
  // Fills step_counts_ with what the balance loss counts in all micro-batches of the next step, by
  // forwards that leave nothing behind.
  void count_step();
  // step_counts_ becomes the sum over processes of `counts` [E] a layer.
  void set_step_counts(std::vector<std::vector<int64_t>> counts);
  std::optional<BalanceLoss::Shares> shares() const;  // of the balance loss, where it has one
  void forward(const Pass& pass, ModelSaved& saved);
  // The teacher's view of a micro-batch, in run_.saved; nobody where there is no teacher.
  LmHeadTeacher teach(const Batch& batch);
  // The sum of nll [N] over text_; fails when it is not finite. kl [N] beside a teacher.
  double forward_loss(const Pass& pass, Tensor nll, Tensor kl, const LmHeadTeacher& teacher,
                      ModelSaved& saved);
  // The same of an evaluation: any failure of the numbers is a divergence.
  double evaluation_loss(const Pass& pass, Tensor nll, ModelSaved& saved);
  bool is_taught() const { return teacher_ != nullptr && !options_.pairs; }
  // Fills `reference` for the pairs of `wanted`.
  void take_reference(PairReference& reference, const Corpus& text, const PairIndex& index,
                      const std::vector<int64_t>& wanted, const std::atomic<bool>& stop);
  // The pairs of the corpus that the run comes to.
  std::vector<int64_t> pairs_to_read(bool of_any_steps) const;
  void fail_if_not_finite(const Pass& pass);
  StepResult finish(const Sums& sums, double grad_norm, double lr, double seconds) const;
  comm::Link::Traffic traffic() const;
  // Of a step in which this process computed for `computed` seconds, and that took `longest`.
  // Collective.
  std::optional<StepExchange> exchanged(const comm::Link::Traffic& before, double computed,
                                        double longest) const;

  Model& model_;
  Model* teacher_;  // null: there is none
  const Corpus& corpus_;
  TrainOptions options_;
  comm::Layout layout_;
  BatchPlan plan_;  // of all processes
  // absent: a dense model
  std::optional<RoutingSpec> train_routing_, eval_routing_, teacher_routing_;
  int64_t moe_layers_ = 0;
  Run run_;
  ModelsOn there_;  // where the run computes
  Trainable trainable_;
  Optimizer optimizer_;
  TextBatch text_;  // of the micro-batch under way
  PairReference reference_, held_out_reference_;
  // of Pass, for the micro-batch under way; empty: none are known
  std::vector<std::vector<int64_t>> step_counts_;
  int64_t steps_done_ = 0, tokens_ = 0;
  double seconds_ = 0;
};

// Fails when the text is too short for one window of `context` predictions, or nothing in the
// windows of an evaluation is to be predicted.
void check_held_out(const Corpus& held_out, const TrainOptions&);

// Tokens that an evaluation reads.
int64_t evaluation_tokens(const Corpus& held_out, const TrainOptions&);

// The clock of a run: seconds since some moment, which never jumps.
double steady_seconds();

// Where options.minutes ends, and how the time is told.
struct Deadline {
  std::function<double()> now;  // seconds since any moment
  double end = 0;               // when all is to be over
  int64_t afterwards = 0;       // tokens that are read once the run is over, by a report
};

// How many steps fit until then, at least two, with their evaluations: as long as a step takes
// here, measured on three that leave the model as it is, fewer where those would take more than a
// twentieth of the time. Fails when `stop` is set. Collective.
int64_t fitted_steps(Model&, const TrainOptions&, const Deadline&, const Corpus&,
                     const Corpus* held_out, Model* teacher, const std::atomic<bool>& stop,
                     const comm::Layout& layout = {});

struct Alarm;

struct TrainCallbacks {
  std::function<void(const StepResult&)> on_step;
  std::function<void(const Alarm&)> on_alarm;  // of the last step (train/alarms.h); recoveries too
  Spelling spell;  // of the options that alarms name, here and in metrics.jsonl; absent: as fields
  std::function<void(int64_t step, const Evaluation&)> on_eval;
  std::function<void(int64_t step, const std::string& folder)> on_save;
  // each step's line of metrics.jsonl, once it is written
  std::function<void(const std::string&)> on_metrics;
  std::function<void(const std::string&)> on_log;  // one line for a person
};

// What the user named, for going on without naming it again: absolute paths.
struct RunSources {
  std::vector<std::string> data, eval_data;
  std::string teacher;  // empty: none
};

class RunLock;

struct TrainJob {
  std::string out;  // folder; created if it is not there
  TrainOptions options;
  const Corpus* corpus = nullptr;
  const Corpus* held_out = nullptr;  // absent: no evaluation
  const Tokenizer* tokenizer = nullptr;
  Model* teacher = nullptr;  // absent: none
  std::string from = {};     // the model that the run starts from, for the adapters' configuration;
                             // empty: drawn weights
  // With one the number of steps is fitted to the time again whenever the end would be off by a
  // fiftieth of options.minutes.
  std::optional<Deadline> deadline = {};
  RunSources sources = {};
  RunLock* lock = nullptr;  // of OUT, which train() takes where it is not held; null: its own
  // All its processes call train() with the same job. The first one writes files and looks out for
  // alarms.
  comm::Layout layout = {};
};

struct BestEvaluation {
  int64_t step = 0;
  double loss = 0;
};

struct TrainSummary {
  StepResult last;
  std::optional<BestEvaluation> best;  // of the whole run, earlier sessions included
  std::optional<Evaluation> eval;      // the last one
  int64_t alarms = 0;                  // of this session, recoveries not counted
  bool interrupted = false;
};

struct Checkpoint;

// Where a run with options.keep_best keeps the weights of the lowest held-out loss.
std::string best_folder(const std::string& out);
// Where one with options.keep_stable keeps the checkpoint of the step before its cooldown.
std::string stable_folder(const std::string& out);

// Trains to options.steps or until `stop` is set, which ends the run after the step under way;
// either way the last state is saved. Without `resume` the model's weights are the start and OUT
// must not hold a model yet; with it (train/checkpoint.h) the model is the checkpoint's, and an
// evaluation that was cut short comes before any step.
TrainSummary train(Model&, const TrainJob&, const TrainCallbacks&, const std::atomic<bool>& stop,
                   const Checkpoint* resume = nullptr);

}  // namespace moe
