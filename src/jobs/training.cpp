#include "jobs/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/config_json.h"
#include "hub/named_models.h"
#include "jobs/launch.h"
#include "jobs/train_memory.h"
#include "ops/devices.h"
#include "text/bpe_train.h"
#include "text/chat.h"
#include "text/loader.h"
#include "text/same_tokens.h"
#include "text/shards.h"
#include "train/hot_experts.h"

namespace moe {
namespace {

std::vector<std::string> absolute_paths(std::vector<std::string> paths) {
  for (std::string& path : paths) path = absolute_path(path);
  return paths;
}

// By their paths; a name is looked up last, as it may be gone by now.
bool is_same_model(const std::string& one, const std::string& other) {
  if (one == other || one.empty() || other.empty()) return one == other;
  return place_of(one) == place_of(other) || place_of(find_model(one)) == place_of(other);
}

}  // namespace

// The weights to start from: drawn, or those of `from`, with their tokenizer.
LoadedModel Training::new_start() const {
  const RunOptions& o = options_;
  LoadedModel start;
  if (o.from.empty()) {
    std::unique_ptr<Tokenizer> tokenizer =
        own_tokenizer_ ? load_tokenizer(o.tokenizer) : choose_tokenizer(o.tokenizer, o.data);
    const ModelConfig config = make_config(o.model, tokenizer->vocab_size(), o.train.context);
    check_before_weights(config, o.train, o.memory);
    start.model = std::make_unique<Model>(config, Storage::owned, layout_.experts());
    start.model->initialise(o.train.seed);
    start.tokenizer = std::move(tokenizer);
  } else {
    check_before_weights(read_model_config(o.from), o.train, o.memory);
    // What adapters hang on stays where it lies.
    start = tunes_adapters(o.train.tune) ? open_model(o.from, o.memory, layout_.experts())
                                         : load_model(o.from, layout_.experts());
    RoutingOptions routing = start.model->config().routing;
    set_losses(routing, o.model);
    start.model->set_losses(routing.coef);
  }
  return start;
}

// Tokens bring their tokenizer, and what a file says of one gives way to it; one that is asked for
// beside them is checked when they are read.
void Training::settle_tokenizer() {
  const std::optional<std::string> folder = first_token_folder(options_.data);
  if (!folder) return;
  const bool is_callers = given_.by_caller("tokenizer");
  if (is_callers && options_.tokenizer.starts_with("bpe:"))
    fail_usage(
        "{} holds tokens already and brings their tokenizer; leave @tokenizer {} out, or name the "
        "text itself",
        *folder, options_.tokenizer);
  if (is_callers) return;
  options_.tokenizer = *folder;
  own_tokenizer_ = true;
}

// The run keeps its own. A folder's is not looked at: it may be gone by now, and a vocabulary of
// fewer entries than asked for may be all that the text had.
void Training::check_same_tokenizer() const {
  if (own_tokenizer_ || !given_.has("tokenizer")) return;
  const std::string& asked = options_.tokenizer;
  const Tokenizer& own = tokenizer();
  const bool bpe = asked.starts_with("bpe:");
  int64_t size = std::numeric_limits<int64_t>::max();
  if (bpe) std::from_chars(asked.data() + 4, asked.data() + asked.size(), size);
  if (bpe ? own.ids_are_bytes() || own.vocab_size() > size
          : asked == "bytes" && !own.ids_are_bytes())
    fail_usage(
        "cannot resume {}: its tokenizer is {} of {} entries, not {}; leave @tokenizer out or give "
        "the same one",
        options_.out, own.spec(), own.vocab_size(), printable(asked));
}

// Options that mean nothing beside what was asked for, or without what they hang on.
void Training::check_tuning() const {
  const TrainOptions& o = options_.train;
  if (o.tune != Tune::all && options_.from.empty() && !options_.resume)
    fail_usage("@tune {} trains a part of a model that is there already; name it with @from",
               name_of(o.tune));
  if (!tunes_adapters(o.tune))
    for (const char* name : {"lora_rank", "lora_alpha", "lora_shared", "tune_tokens"})
      if (given_.has(name))
        fail_usage("{} is of adapters, which @tune {} has none of; add @tune lora or leave it out",
                   field(name), name_of(o.tune));
  if (o.tune != Tune::experts_hot && given_.has("hot_share"))
    fail_usage("@hot_share is of @tune {}; add that or leave it out", name_of(Tune::experts_hot));
  if (options_.teacher.empty() && given_.has("teacher_weight"))
    fail_usage("@teacher_weight needs a teacher; name one with @teacher");
  if (given_.has("minutes") && given_.has("steps"))
    fail_usage(
        "@minutes works out how many steps there are time for; leave @steps out, or @minutes");
  if (given_.has("minutes") && asked_minutes_ <= 0)
    fail_usage("@minutes is {}; it must be above 0", asked_minutes_);
  // A preset's or a file's may stand there for other runs.
  if (given_.by_caller("momentum") && o.optimizer != OptimizerKind::muon)
    fail_usage("@momentum is of @optimizer muon; add that or leave it out");
  if (given_.by_caller("cooldown") && o.schedule != ScheduleKind::wsd)
    fail_usage("@cooldown is of @schedule wsd; add that or leave it out");
  if (given_.by_caller("min_lr") && o.schedule == ScheduleKind::constant)
    fail_usage(
        "@min_lr is where a rate that falls ends, and @schedule constant keeps it at @lr; leave "
        "one of the two out");
  const bool evaluates = o.hold_out > 0 || !options_.eval_data.empty();
  for (const char* name : {"keep_best", "eval_every"})
    if (given_.by_caller(name) && !evaluates && !is_done())
      fail_usage("{} goes by held-out text: add @eval_data or @hold_out", field(name));
}

// The tokens whose rows are trained, each once.
void Training::look_up_tokens() {
  TrainOptions& o = options_.train;
  std::vector<int64_t> ids;
  for (const std::string& name : o.tune_tokens) {
    try {
      ids.push_back(token_named(tokenizer(), name));
    } catch (const Error& e) {
      fail_usage("@tune_tokens {}: {}", printable(name), e.what());
    }
    if (ids.back() >= model().config().vocab)
      fail_usage("@tune_tokens {}: the model's vocabulary has {} tokens", printable(name),
                 model().config().vocab);
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    fail_usage("@tune_tokens: token {} is named twice", *twice);
  o.token_ids = std::move(ids);
}

// What goes with preference pairs, and what with any other text.
void Training::check_pairs() const {
  const RunOptions& o = options_;
  if (!o.train.pairs) {
    if (given_.has("dpo_beta"))
      fail_usage(
          "@dpo_beta is of preference pairs, and @data holds none; leave it out, or give lines "
          "with \"chosen\" and \"rejected\"");
    return;
  }
  if (o.from.empty() && !checkpoint_)
    fail_usage(
        "@data holds preference pairs, which move a model that answers already; name it with "
        "@from");
  if (given_.has("teacher_weight"))
    fail_usage(
        "@teacher_weight has no meaning for preference pairs: @teacher is the reference of their "
        "loss; leave it out, and see @dpo_beta");
  if (changes_anything(o.train.mix))
    fail_usage("@mix weights windows of text, and @data holds preference pairs; leave it out");
  PairIndex(*corpus_, o.train.context);  // fails where none fits
}

Training::Training(RunOptions options, Given given, const comm::Group& group, const Watch& watch,
                   RunLock* lock)
    : options_(std::move(options)),
      given_(std::move(given)),
      group_(group),
      lock_(lock ? *lock : own_lock_),
      began_(steady_seconds()) {
  comm::together(group_, [&] { prepare(watch); });
  // Read from files that each machine may have for itself; who is done waits for nobody.
  comm::check_same(group_, {{"rest of the run", is_done() ? "nothing" : "something"}});
  if (!is_done()) check_alike();
}

void Training::prepare(const Watch& watch) {
  RunOptions& o = options_;
  FieldList list = fields(o);
  if (given_.has("from")) refuse_model_fields(list, given_, marked("@from brings its model"));
  apply_files(list, o, given_);
  asked_minutes_ = o.train.minutes;
  describes_model_ = describes_model(list, given_);
  const bool names_text = !o.data.empty();
  if (o.out.empty())
    fail_usage("@out is missing: name the folder that the model shall be written to");
  comm::need_one_process(group_, o.train.device);
  layout_ = comm::Layout(group_, o.train.expert_parallel);
  if (o.resume && group_.is_first() && std::filesystem::is_directory(o.out)) lock_.take(o.out);
  if (o.resume && holds_model(o.out)) {
    checkpoint_ = load_checkpoint(o.out, layout_.experts(), o.memory);
    owes_evaluation_ = owes_last_evaluation(*checkpoint_);
    go_on();
    // One that is done needs no text, but another one than its own must not pass unseen.
    if (is_done() && !names_text) return;
  }
  check_tuning();
  check_complete();
  if (!o.from.empty() && given_.has("tokenizer"))
    fail_usage("@from brings the tokenizer of its model; leave @tokenizer out");
  settle_tokenizer();
  if (!is_done()) check_place();
  if (checkpoint_) check_same_tokenizer();
  else if (group_.is_first()) check_unused(o.out);
  asked_warmup_ = o.train.warmup;
  asked_eval_every_ = o.train.eval_every;
  if (must_fit()) leave_room_for_warmup(o.train);
  o.train = resolved(o.train);
  validate(o.train);
  if (!checkpoint_) fresh_ = new_start();
  if (!checkpoint_) look_up_tokens();
  if (!is_done()) read_teacher();
  read_texts();
  if (o.train.tune == Tune::experts_hot && !checkpoint_)
    o.train.hot = hot_experts(model(), o.train, *corpus_, watch);
  if (is_done()) return;
  // a pair's texts are rows of their own, which nothing cuts
  const int64_t document = o.train.pairs ? 0 : mean_document(*corpus_, o.train.mix);
  estimated_memory_ = check_before_training(model(), o.train, o.memory, teacher(), document);
}

void Training::check_place() const {
  ops::device_of(options_.train.device);  // fails where there is none
  if (group_.is_first()) check_writable(options_.out);
}

void Training::check_alike() const {
  TrainOptions options = options_.train;
  check_same_launch(group_, fields(options), [&] {
    return comm::Facts{{"model", config_to_json(start().model->config())},
                       {"step", std::to_string(checkpoint_ ? checkpoint_->step : 0)},
                       {"weights", model_print(start().model.get())},
                       {field("data"), data_print(*corpus_, options.mix).hash},
                       {field("eval_data"), held_out_ ? data_print(*held_out_).hash : ""},
                       {field("teacher"), model_print(teacher_.model.get())}};
  });
}

void Training::check_complete() const {
  const RunOptions& f = options_;
  if (f.data.empty() && checkpoint_)
    fail_usage(
        "@data is missing: {} was written by a version that did not keep its text's name; name it",
        f.out);
  if (f.data.empty() && f.resume)
    fail_usage(
        "@data is missing, and {} holds no run to go on with: name a text file or a folder of them",
        f.out);
  if (f.data.empty()) fail_usage("@data is missing: name a text file or a folder of them");
  if (f.train.hold_out > 0 && !f.eval_data.empty())
    fail_usage(
        "@hold_out splits @data itself, so @eval_data has no place beside it; leave one out");
  check_outside(f.out, f.data, "data");
  check_outside(f.out, f.eval_data, "eval_data");
}

void Training::go_on() {
  RunOptions& o = options_;
  const Checkpoint& c = *checkpoint_;
  TrainOptions kept = c.options;
  const int threads = o.train.threads;
  FieldList asked = fields(o.train), goes_on = fields(kept);
  // a file's warm-up may have given way to the minutes
  const bool keeps_warmup = kept.minutes > 0 && !given_.by_caller("warmup");
  for (const Field& one : asked)
    if (given_.has(one.name) && one.name != "minutes" && !(keeps_warmup && one.name == "warmup"))
      goes_on.at(one.name).set(one.get());
  o.train = resumed_options(c, kept);
  // Of this launch; the file fits any.
  if (group_.size > 1 && !given_.has("threads")) o.train.threads = threads;
  if (!given_.has("expert_parallel")) o.train.expert_parallel = 1;
  if (!given_.has("steps")) o.train.steps = c.options.steps;
  check_same_options(c, o.train);
  check_same_start();
  if (is_done()) return;
  // A path that is gone is named beside the field that gives another one.
  const auto known = [&](std::vector<std::string>& given, const std::vector<std::string>& paths,
                         const char* name) {
    if (!given.empty()) return;
    for (const std::string& path : paths)
      if (std::error_code error; !std::filesystem::exists(path, error))
        fail("{} was trained on {}, which is not there any more; name where it is now with {}",
             o.out, printable(path, 1000), field(name));
    given = paths;
  };
  known(o.data, c.sources.data, "data");
  if (o.train.hold_out == 0) known(o.eval_data, c.sources.eval_data, "eval_data");
  if (o.teacher.empty() && !c.sources.teacher.empty()) {
    std::vector<std::string> teacher;
    known(teacher, {c.sources.teacher}, "teacher");
    o.teacher = teacher.front();
  }
}

void Training::check_same_start() {
  RunOptions& o = options_;
  const Checkpoint& c = *checkpoint_;
  if (given_.has("from") && !is_same_model(o.from, c.from))
    fail_usage("cannot resume {}: it began with {}, not with {}; leave @from out or give the same",
               o.out, c.from.empty() ? "drawn weights" : c.from, o.from);
  o.from = c.from;
  ModelConfig asked = c.loaded.model->config();
  if (o.from.empty()) {
    if (describes_model_) asked = make_config(o.model, tokenizer().vocab_size(), o.train.context);
  } else {
    refuse_model_fields(fields(o), given_,
                        fmt::format("{} began with {}, which brings its model", o.out, o.from));
    set_losses(asked.routing, o.model);
  }
  check_same_model(c, asked);
}

void Training::read_teacher() {
  if (!options_.teacher.empty()) {
    teacher_ = open_model(options_.teacher, options_.memory);
    const Tokenizer &own = tokenizer(), &other = *teacher_.tokenizer;
    const int64_t size = model().config().vocab, taught = teacher_.model->config().vocab;
    if (taught != size)
      fail(
          "@teacher {}: its vocabulary is {}, the model's {}; a teacher must predict the same "
          "tokens",
          options_.teacher, taught, size);
    if (own.vocab_size() != other.vocab_size())
      fail(
          "@teacher {}: its tokenizer has {} tokens, the model's {}; a teacher must predict the "
          "same tokens",
          options_.teacher, other.vocab_size(), own.vocab_size());
    if (const auto id = first_other_token(own, other, own.vocab_size()))
      fail(
          "@teacher {}: its token {} is \"{}\", the model's \"{}\"; a teacher must predict the "
          "same tokens",
          options_.teacher, *id, printable(other.piece(*id)), printable(own.piece(*id)));
  }
  if (checkpoint_) check_same_teacher(*checkpoint_, teacher());
}

void Training::fit(int64_t afterwards, const std::atomic<bool>& stop) {
  TrainOptions& o = options_.train;
  deadline_ = Deadline{steady_seconds, began_ + 60 * o.minutes, afterwards};
  o.eval_every = asked_eval_every_;  // the default is a share of the steps
  o.steps = fitted_steps(model(), o, *deadline_, *corpus_, held_out(), teacher(), stop, layout_);
  // a file's gives way
  if (!given_.by_caller("warmup") && asked_warmup_ >= o.steps) asked_warmup_.reset();
  o.warmup = asked_warmup_;  // the default is a share of the steps
  o = resolved(o);
  validate(o);
}

void Training::read_texts() {
  if (options_.train.hold_out > 0) {
    SplitCorpus parts =
        Corpus::split(options_.data, tokenizer(), options_.train.hold_out, Pairs::taken);
    corpus_.emplace(std::move(parts.train));
    held_out_.emplace(std::move(parts.held_out));
  } else {
    corpus_.emplace(options_.data, tokenizer(), Pairs::taken);
    if (!options_.eval_data.empty())
      held_out_.emplace(options_.eval_data, tokenizer(), Pairs::taken);
  }
  options_.train.pairs = corpus_->pairs() > 0;
  check_pairs();
  if (held_out() && !is_done()) check_held_out(*held_out(), options_.train);
  domain_shares(*corpus_, options_.train.context, options_.train.mix);
  if (!checkpoint_) {
    const TrainOptions& o = options_.train;
    // Fails where the text has no window, before anything is said of a run that cannot be.
    static_cast<void>(
        BatchPlan(*corpus_, {o.context, o.batch, o.accumulate}, o.shuffle, o.seed, o.mix));
    const bool talks = corpus_->untrained() > 0 && !options_.train.pairs;
    // A new model may take the tokenizer of tokens, which has the template of another one.
    if (!talks && options_.from.empty()) mark_dialogues(*fresh_.tokenizer, false);
    if (talks && dialogues_of(*fresh_.tokenizer) == Dialogues::none)
      mark_dialogues(*fresh_.tokenizer);
  }
  if (!checkpoint_) return;
  const DataPrint print = data_print(*corpus_, options_.train.mix);
  if (is_done()) return check_same_text(*checkpoint_, print);
  check_resumable(*checkpoint_, options_.train, print, held_out() != nullptr);
}

TrainSummary Training::done() const {
  TrainSummary summary;
  summary.last.step = checkpoint_->step;
  summary.last.tokens = checkpoint_->tokens;
  summary.last.seconds = checkpoint_->seconds;
  summary.last.ce = std::numeric_limits<double>::quiet_NaN();
  return summary;
}

TrainSummary Training::run(const TrainCallbacks& callbacks, const std::atomic<bool>& stop) {
  TrainJob job{options_.out, options_.train, &*corpus_, held_out(), start().tokenizer.get(),
               teacher(),    options_.from,  deadline_};
  // where an adapter's folder, and a run that goes on, find it from wherever they are read
  if (!checkpoint_ && !job.from.empty()) job.from = absolute_path(find_model(job.from));
  job.options.eval_every = asked_eval_every_;
  job.sources = {absolute_paths(options_.data), absolute_paths(options_.eval_data),
                 options_.teacher.empty() ? "" : absolute_path(find_model(options_.teacher))};
  job.lock = &lock_;
  job.layout = layout_;
  return train(*start().model, job, callbacks, stop, checkpoint_ ? &*checkpoint_ : nullptr);
}

}  // namespace moe
