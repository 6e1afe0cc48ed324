#include "cli/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/train_memory.h"
#include "core/error.h"
#include "core/nearest.h"
#include "hub/named_models.h"
#include "text/bpe_train.h"
#include "text/chat.h"
#include "text/shards.h"

namespace moe::cli {
namespace {

// The weights to start from: drawn, or those of --from, with their tokenizer.
LoadedModel start_model(const TrainFlags& f) {
  LoadedModel start;
  if (f.from.empty()) {
    std::unique_ptr<Tokenizer> tokenizer = f.own_tokenizer ? load_tokenizer(f.model.tokenizer) : choose_tokenizer(f.model.tokenizer, f.data);
    const ModelConfig config = make_config(f.model, tokenizer->vocab_size(), f.train.context);
    check_before_weights(config, f.train, f.memory);
    start.model = std::make_unique<Model>(config);
    start.model->initialise(f.train.seed);
    start.tokenizer = std::move(tokenizer);
  } else {
    check_before_weights(read_model_config(f.from), f.train, f.memory);
    start = load_model(f.from);
    RoutingOptions routing = start.model->config().routing;
    set_losses(routing, f.model);
    start.model->set_losses(routing.coef);
  }
  return start;
}

// Tokens bring their tokenizer, and what a file says of one gives way to it; one that is asked for beside them is checked when they are read.
void settle_tokenizer(bool asked, TrainFlags& f) {
  const std::optional<std::string> folder = first_token_folder(f.data);
  if (!folder) return;
  if (asked && f.model.tokenizer.starts_with("bpe:"))
    fail_usage("{} holds tokens already and brings their tokenizer; leave --tokenizer {} out, or name the text itself", *folder, f.model.tokenizer);
  if (asked) return;
  f.model.tokenizer = *folder;
  f.own_tokenizer = true;
}

// The run keeps its own. A folder's is not looked at: it may be gone by now, and a vocabulary of fewer entries than asked for may be all that the text had.
void check_same_tokenizer(const CLI::App& app, const TrainFlags& f, const Tokenizer& own) {
  if (f.own_tokenizer || app.count("--tokenizer") == 0) return;
  const bool bpe = f.model.tokenizer.starts_with("bpe:");
  int64_t size = std::numeric_limits<int64_t>::max();
  if (bpe) std::from_chars(f.model.tokenizer.data() + 4, f.model.tokenizer.data() + f.model.tokenizer.size(), size);
  if (bpe ? own.ids_are_bytes() || own.vocab_size() > size : f.model.tokenizer == "bytes" && !own.ids_are_bytes())
    fail_usage("cannot resume {}: its tokenizer is {} of {} entries, not {}; leave --tokenizer out or give the same one", f.out, own.spec(), own.vocab_size(),
               printable(f.model.tokenizer));
}

// Options that mean nothing beside what was asked for, or without what they hang on.
void check_tuning(const CLI::App& app, const TrainFlags& f) {
  if (f.train.tune != Tune::all && f.from.empty() && !f.resume)
    fail_usage("--tune {} trains a part of a model that is there already; name it with --from", name_of(f.train.tune));
  if (!tunes_adapters(f.train.tune))
    for (const char* flag : {"--lora-rank", "--lora-alpha"})
      if (app.count(flag) > 0) fail_usage("{} is of adapters, which --tune {} has none of; add --tune lora or leave it out", flag, name_of(f.train.tune));
  if (f.teacher.empty() && app.count("--teacher-weight") > 0) fail_usage("--teacher-weight needs a teacher; name one with --teacher");
  if (app.count("--minutes") > 0 && app.count("--steps") > 0)
    fail_usage("--minutes works out how many steps there are time for; leave --steps out, or --minutes");
  if (app.count("--minutes") > 0 && f.train.minutes <= 0) fail_usage("--minutes is {}; it must be above 0", f.train.minutes);
}

}  // namespace

Training::Training(CLI::App& app, TrainFlags& f) : flags_(f), began_(steady_seconds()) {
  if (app.count("--from") > 0) refuse_model_flags(app);
  warmup_is_flag_ = app.count("--warmup") > 0;
  const bool tokenizer_is_flag = app.count("--tokenizer") > 0;
  apply_files(app, f.model, f.train);
  describes_model_ = describes_model(app);
  const bool names_text = !f.data.empty();
  if (f.out.empty()) fail_usage("--out is missing: name the folder that the model shall be written to");
  if (f.resume && std::filesystem::is_directory(f.out)) lock_.emplace(f.out);
  if (f.resume && holds_model(f.out)) {
    checkpoint_ = load_checkpoint(f.out);
    go_on(app);
    // One that is done needs no text, but another one than its own must not pass unseen.
    if (is_done() && !names_text) return;
  }
  check_tuning(app, f);
  check_complete();
  if (!f.from.empty() && app.count("--tokenizer") > 0) fail_usage("--from brings the tokenizer of its model; leave --tokenizer out");
  settle_tokenizer(tokenizer_is_flag, f);
  if (checkpoint_) check_same_tokenizer(app, f, tokenizer());
  else check_unused(f.out);
  asked_warmup_ = f.train.warmup;
  asked_eval_every_ = f.train.eval_every;
  f.train = resolved(f.train);
  validate(f.train);
  if (!checkpoint_) fresh_ = start_model(f);
  if (!is_done()) read_teacher();
  read_texts();
  if (!is_done()) foretold_ = check_before_training(model().config(), f.train, f.memory, teacher());
}

void Training::check_complete() const {
  const TrainFlags& f = flags_;
  if (f.data.empty() && checkpoint_) fail_usage("--data is missing: {} was written by a version that did not keep its text's name; name it", f.out);
  if (f.data.empty() && f.resume) fail_usage("--data is missing, and {} holds no run to go on with: name a text file or a folder of them", f.out);
  if (f.data.empty()) fail_usage("--data is missing: name a text file or a folder of them");
  if (f.train.hold_out > 0 && !f.eval_data.empty()) fail_usage("--hold-out splits --data itself, so --eval-data has no place beside it; leave one out");
}

void Training::go_on(const CLI::App& app) {
  TrainFlags& f = flags_;
  const Checkpoint& c = *checkpoint_;
  Json options = to_json(c.options);
  const Json asked = to_json(f.train);
  for (const auto& [key, value] : asked.items()) {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option != nullptr && option->count() > 0) options[key] = value;
  }
  f.train = resumed_options(c, train_options_from_json(options, "--resume"));
  if (app.count("--steps") == 0) f.train.steps = c.options.steps;
  check_same_options(c, f.train);
  if (f.from.empty()) f.from = c.from;
  if (is_done()) return;
  // A path that is gone is named beside the flag that gives another one.
  const auto kept = [&](std::vector<std::string>& given, const std::vector<std::string>& paths, const char* flag) {
    if (!given.empty()) return;
    for (const std::string& path : paths)
      if (std::error_code error; !std::filesystem::exists(path, error))
        fail("{} was trained on {}, which is not there any more; name where it is now with {}", f.out, printable(path, 1000), flag);
    given = paths;
  };
  kept(f.data, c.sources.data, "--data");
  if (f.train.hold_out == 0) kept(f.eval_data, c.sources.eval_data, "--eval-data");
  if (f.teacher.empty() && !c.sources.teacher.empty()) {
    std::vector<std::string> teacher;
    kept(teacher, {c.sources.teacher}, "--teacher");
    f.teacher = teacher.front();
  }
}

void Training::read_teacher() {
  if (!flags_.teacher.empty()) {
    teacher_ = load_model(flags_.teacher, LoadFor::inference);
    const Tokenizer &own = tokenizer(), &other = *teacher_.tokenizer;
    const int64_t size = model().config().vocab, taught = teacher_.model->config().vocab;
    if (taught != size) fail("--teacher {}: its vocabulary is {}, the model's {}; a teacher must predict the same tokens", flags_.teacher, taught, size);
    if (own.vocab_size() != other.vocab_size())
      fail("--teacher {}: its tokenizer has {} tokens, the model's {}; a teacher must predict the same tokens", flags_.teacher, other.vocab_size(),
           own.vocab_size());
    for (int32_t id = 0; id < own.vocab_size(); ++id)
      if (own.piece(id) != other.piece(id))
        fail("--teacher {}: its token {} is \"{}\", the model's \"{}\"; a teacher must predict the same tokens", flags_.teacher, id, printable(other.piece(id)),
             printable(own.piece(id)));
  }
  if (checkpoint_) check_same_teacher(*checkpoint_, teacher());
}

void Training::fit(int64_t afterwards, const std::atomic<bool>& stop) {
  TrainOptions& o = flags_.train;
  deadline_ = Deadline{steady_seconds, began_ + 60 * o.minutes, afterwards};
  o.eval_every = asked_eval_every_;  // the default is a share of the steps
  o.steps = fitted_steps(model(), o, *deadline_, *corpus_, held_out(), teacher(), stop);
  if (!warmup_is_flag_ && asked_warmup_ >= o.steps) asked_warmup_.reset();
  o.warmup = asked_warmup_;  // the default is a share of the steps
  o = resolved(o);
  validate(o);
}

void Training::read_texts() {
  if (flags_.train.hold_out > 0) {
    SplitCorpus parts = Corpus::split(flags_.data, tokenizer(), flags_.train.hold_out);
    corpus_.emplace(std::move(parts.train));
    held_out_.emplace(std::move(parts.held_out));
  } else {
    corpus_.emplace(flags_.data, tokenizer());
    if (!flags_.eval_data.empty()) held_out_.emplace(flags_.eval_data, tokenizer());
  }
  domain_shares(*corpus_, flags_.train.context, flags_.train.mix);
  if (!checkpoint_ && corpus_->untrained() > 0) mark_dialogues(*fresh_.tokenizer);
  if (!checkpoint_) return;
  const DataPrint print = data_print(*corpus_, flags_.train.mix);
  if (is_done()) return check_same_text(*checkpoint_, print);
  check_resumable(*checkpoint_, flags_.train, print);
  ModelConfig asked = checkpoint_->loaded.model->config();
  if (flags_.from.empty() && !describes_model_) return;
  if (flags_.from.empty()) asked = make_config(flags_.model, tokenizer().vocab_size(), flags_.train.context);
  else set_losses(asked.routing, flags_.model);
  check_same_model(*checkpoint_, asked);
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
  const auto absolute = [](std::vector<std::string> paths) {
    for (std::string& path : paths) path = std::filesystem::absolute(path).lexically_normal().string();
    return paths;
  };
  TrainJob job{flags_.out, flags_.train, &*corpus_, held_out(), start().tokenizer.get(), teacher(), flags_.from, deadline_};
  job.options.eval_every = asked_eval_every_;
  job.sources = {absolute(flags_.data), absolute(flags_.eval_data), flags_.teacher.empty() ? "" : absolute({flags_.teacher}).front()};
  job.lock = lock_ ? &*lock_ : nullptr;
  return train(*start().model, job, callbacks, stop, checkpoint_ ? &*checkpoint_ : nullptr);
}

namespace {

void add_tuning_options(CLI::App& app, TrainFlags& f) {
  const std::string group = "Recovering and fine-tuning";
  takes(
      app.add_option_function<std::string>(
             "--tune", [&f](const std::string& name) { f.train.tune = parse_tune(name); },
             "what is trained: all; router: the routers with their biases and scales; lora: low-rank adapters of the matrices of attention and FFNs, which are "
             "also left in OUT/adapter as PEFT has them; lora+router: both. The rest stays as --from has it. Default: all")
          ->group(group),
      {"all", "router", "lora", "lora+router"});
  app.add_option("--lora-rank", f.train.lora_rank, "rank of an adapter")->group(group)->capture_default_str();
  app.add_option("--lora-alpha", f.train.lora_alpha, "an adapter counts alpha / rank times")->group(group)->capture_default_str();
  app.add_option(
         "--teacher", f.teacher,
         fmt::format("a model of the same vocabulary ({}), whose predictions are learned too: the loss is (1 - w) ce + w KL(teacher || model)", kModelIs))
      ->group(group);
  app.add_option("--teacher-weight", f.train.teacher_weight, "that w, above 0 and at most 1")->group(group)->capture_default_str();
  app.add_option(
         "--minutes", f.train.minutes,
         "in place of --steps: as many as there is time for, evaluations, saves and the report included; measured at the start, and fitted again where the "
         "machine gets slower or faster, the schedule with it")
      ->group(group);
}

}  // namespace

void add_training_options(CLI::App& app, TrainFlags& f) {
  app.add_option(
      "--data", f.data,
      "text files, .jsonl files (a document or a dialogue a line), folders of them, or what `moe tokenize` wrote; each file's stem names its domain");
  app.add_option("--out", f.out, "folder for the model, its checkpoints and metrics.jsonl");
  app.add_option("--eval-data", f.eval_data, "held-out text, as --data");
  app.add_option("--hold-out", f.train.hold_out, "hold out this share of the documents of --data, chosen by a hash of their content; 0.05: a twentieth")
      ->capture_default_str();
  add_named_numbers(app, "--mix", f.train.mix, "DOMAIN=WEIGHT", "german=2",
                    "how often a domain is visited beside the others: german=2 twice as often, notes=0 not at all; not named: 1");
  app.add_option("--from", f.from,
                 fmt::format("start from the weights of this model ({}), whose shape, recipe and tokenizer stay; the losses' coefficients may be others. "
                             "Trained weights want a smaller --lr: some 3e-5 to 3e-4 (docs/training.md)",
                             kModelIs));
  add_model_options(app, f.model);
  add_train_options(app, f.train);
  add_tuning_options(app, f);
  add_memory_limits(app, f.memory);
  app.add_option("--eval-every", f.train.eval_every,
                 "steps between evaluations; 0: at the end only; default: ten a run, fewer where they would take more than a tenth of the time");
  app.add_option("--save-every", f.train.save_every, "steps between checkpoints; 0: at the end only. Also keeps the first weights in OUT/checkpoint-0")
      ->capture_default_str();
  app.add_flag("--keep-best", f.train.keep_best,
               "keep the weights of the lowest held-out loss in OUT/best, a model folder of its own: as much disk again as OUT/model.safetensors");
  app.add_flag(
      "--resume", f.resume,
      "go on with the run in OUT, whose checkpoint knows text, model and options: nothing else is needed, and what is given must be the same. Starts the run "
      "when there is none");
}

}  // namespace moe::cli
