// The fields of a run's options, what values they may have, and what the absent ones become.
#include "train/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"

namespace moe {
namespace {

// In the order of the enums' values.
const std::vector<std::string> kSchedules = {"cosine", "linear", "constant", "wsd"};
const std::vector<std::string> kOptimizers = {"adamw", "muon"};
struct TuneRow {
  std::string_view name;
  bool adapters, routers, norms;  // what is trained; routers and norms as they are
  bool rest = false;
};
constexpr TuneRow kTuneRows[] = {
    {"all", false, true, true, true},    {"router", false, true, false},
    {"lora", true, false, false},        {"lora+router", true, true, false},
    {"lora+norms", true, false, true},   {"lora+router+norms", true, true, true},
    {"experts:hot", true, false, false},
};
const std::vector<std::string> kTunes = [] {
  std::vector<std::string> names;
  for (const TuneRow& row : kTuneRows) names.emplace_back(row.name);
  return names;
}();
const TuneRow& row_of(Tune tune) { return kTuneRows[static_cast<size_t>(tune)]; }

const std::vector<std::string> kShuffles = {"none", "epoch"};
const std::vector<std::string> kDtypes = {"f32", "bf16"};  // that products of training run in

FieldValue value_of(std::vector<Replan>& x) {
  const auto get = [&x] {
    Json pairs = Json::array();
    for (const Replan& replan : x) pairs.push_back({replan.until, replan.steps});
    return pairs;
  };
  const auto set = [&x](const Json& pairs) {
    x.clear();
    for (const Json& pair : pairs) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
          !pair[1].is_number_integer())
        fail("replans: each must be [until, steps]");
      x.push_back({pair[0].get<int64_t>(), pair[1].get<int64_t>()});
    }
  };
  return {Field::Kind::json, get, set};
}

FieldValue value_of(std::vector<HotLayer>& x) {
  const auto get = [&x] {
    Json layers = Json::array();
    for (const HotLayer& hot : x) layers.push_back({hot.layer, hot.experts, hot.share});
    return layers;
  };
  const auto set = [&x](const Json& layers) {
    x.clear();
    for (const Json& hot : layers) {
      if (!hot.is_array() || hot.size() != 3 || !hot[0].is_number_integer() || !hot[1].is_array() ||
          !hot[2].is_number())
        fail("hot: each must be [layer, experts, share]");
      for (const Json& expert : hot[1])
        if (!expert.is_number_integer()) fail("hot: experts are numbers");
      x.push_back(
          {hot[0].get<int64_t>(), hot[1].get<std::vector<int64_t>>(), hot[2].get<double>()});
    }
  };
  return {Field::Kind::json, get, set};
}

void need_at_least(int64_t value, int64_t least, const char* name) {
  if (value < least) fail_usage("{} is {}; it must be at least {}", field(name), value, least);
}

// low <= value < high
void need_in(double value, double low, double high, const char* name) {
  if (value >= low && value < high) return;
  if (std::isinf(high))
    fail_usage("{} is {}; it must be a number of at least {}", field(name), value, low);
  fail_usage("{} is {}; it must be at least {} and below {}", field(name), value, low, high);
}

void add_steps(FieldList& list, TrainOptions& o) {
  list.group("Training");
  list.add("context", o.context, "tokens a row").unit("tokens");
  list.add("batch", o.batch, "rows a micro-batch; of preference pairs: pairs")
      .unit("rows")
      .also({"per_device_train_batch_size"});
  list.add("accumulate", o.accumulate, "micro-batches a step")
      .unit("micro-batches")
      .also({"gradient_accumulation_steps"});
  list.add("steps", o.steps, "optimizer steps").unit("steps").also({"max_steps"});
  list.add("replans", value_of(o.replans), "").recorded_only();
  list.add("lr", o.lr, "highest learning rate").also({"learning_rate"});
  list.add("min_lr", o.min_lr, "learning rate at the end; default: lr / 10, with wsd 0");
  list.add("warmup", o.warmup, "steps of linear warm-up; default: a tenth, at most 100")
      .unit("steps")
      .also({"warmup_steps"});
  list.add("lr_times", o.lr_times,
           "parts of the model that learn at so many times the rate: experts=3 router=3; not "
           "named: 1. Parts: embedding, positions, head, norms, attention, "
           "router, experts, shared, 'dense ffn'")
      .form("PART=FACTOR", "experts=3");
  list.add("lr_width", o.lr_width,
           "the @width that @lr was found at, where this model's is another: matrices that grow "
           "with it then learn at a rate that suits theirs (docs/training.md); 0: @lr is this "
           "model's own");
  list.add_choice("schedule", o.schedule, kSchedules,
                  "cosine, linear, constant, or wsd: constant after the warm-up until the cooldown")
      .also({"lr_scheduler_type"});
  list.add("cooldown", o.cooldown,
           "with @schedule wsd: the share of the steps in which the rate falls, at the end");
  add_optimizer(list, o.optimizer,
                "adamw; muon: the matrices of attention and FFNs move by their orthogonalised "
                "momentum, each expert's by itself, and all else by AdamW at the same rate "
                "(docs/training.md)");
  list.add("momentum", o.momentum, "Muon's");
  list.add("weight_decay", o.weight_decay, "decoupled from the gradient, on matrices only");
  list.add("decay_all", o.decay_all, "decay norms and biases too");
  list.add("beta1", o.beta1, "AdamW's").also({"adam_beta1"});
  list.add("beta2", o.beta2, "AdamW's").also({"adam_beta2"});
  list.add("eps", o.eps, "AdamW's").also({"adam_epsilon"});
  list.add("clip", o.clip, "largest norm of the gradient; 0: no limit").also({"max_grad_norm"});
  list.add("seed", o.seed, "of weights, noise and the order of the data");
  list.add_named(
      "dtype", kDtypes, [&o] { return std::string(name_of(o.dtype)); },
      [&o](const std::string& name) { o.dtype = *dtype_named(name); },
      "f32 or bf16 products (weights stay f32)");
  list.add("recompute", o.recompute,
           "keep less, compute twice: less memory, about a third more time")
      .also({"gradient_checkpointing"})
      .no_mathematics();
  list.add_choice("shuffle", o.shuffle, kShuffles,
                  "epoch (every window once, in random order) or none (in order)");
  list.add("threads", o.threads, "0: all cores").no_mathematics();
  add_device(list, o.device).no_mathematics();
  list.add("expert_parallel", o.expert_parallel,
           "under mpirun: processes that a layer's experts are spread over; 1: each process holds "
           "all of them (docs/cluster.md)")
      .unit("processes")
      .no_mathematics();
}

void add_tuning(FieldList& list, TrainOptions& o) {
  list.group("Recovering and fine-tuning");
  list.add_choice(
      "tune", o.tune, kTunes,
      "what is trained, the rest staying as @from has it: all, router, lora, lora+router, "
      "lora+norms, lora+router+norms or experts:hot (docs/training.md)");
  list.add("lora_rank", o.lora_rank, "rank of an adapter");
  list.add("lora_alpha", o.lora_alpha, "an adapter counts alpha / rank times");
  list.add("lora_shared", o.lora_shared,
           "one adapter that all experts of a layer share in place of one for each");
  list.add("tune_tokens", o.tune_tokens,
           "with adapters: train the rows of these tokens too, those of the embedding and of the "
           "head, as they are, and of no others: names as in the tokenizer ('<|im_start|>'), or "
           "their numbers");
  list.add("token_ids", o.token_ids, "").recorded_only();
  list.add("hot_share", o.hot_share,
           "with @tune experts:hot: of each layer the fewest experts that together get this share "
           "of the rows are trained; above 0 and at most 1");
  list.add("hot", value_of(o.hot), "").recorded_only();
  list.add("teacher_weight", o.teacher_weight,
           "w of the loss (1 - w) ce + w KL(teacher || model), above 0 and at most 1");
  list.add("dpo_beta", o.dpo_beta,
           "of preference pairs: how strongly the trained model is held to the reference, which is "
           "@teacher, else the model as @from has it; the loss of a pair is -log sigmoid(beta x "
           "margin) (DPO)");
  list.add("pairs", o.pairs, "").recorded_only().no_mathematics();
  list.add("minutes", o.minutes,
           "in place of @steps: as many as there is time for, evaluations, saves and the report "
           "included; measured at the start, and fitted again where the "
           "machine gets slower or faster, the schedule with it. A run that is resumed keeps its "
           "steps, whatever this says")
      .unit("minutes")
      .no_default()
      .no_mathematics();
}

void add_bookkeeping(FieldList& list, TrainOptions& o) {
  list.group("");
  list.add(
      "hold_out", o.hold_out,
      "hold out this share of the text of @data, in blocks of up to 8 KiB that are chosen by a "
      "hash of their content; 0.05: a twentieth");
  list.add("mix", o.mix,
           "how often a domain is visited beside the others: german=2 twice as often, notes=0 not "
           "at all; not named: 1")
      .form("DOMAIN=WEIGHT", "german=2");
  list.add("eval_every", o.eval_every,
           "steps between evaluations; 0: at the end only; default: ten a run, fewer where they "
           "would take more than a tenth of the time")
      .unit("steps")
      .also({"eval_steps"})
      .no_mathematics();
  list.add("save_every", o.save_every,
           "steps between checkpoints; 0: at the end only. Also keeps the first weights in "
           "OUT/checkpoint-0")
      .unit("steps")
      .also({"save_steps"})
      .no_mathematics();
  list.add("keep_best", o.keep_best,
           "keep the weights of the lowest held-out loss in OUT/best, a model folder of its own: "
           "as much disk again as OUT/model.safetensors")
      .no_mathematics();
  list.add("keep_stable", o.keep_stable,
           "with @schedule wsd: keep the run as it is when the cooldown begins in OUT/stable, from "
           "which runs of more @steps go on (docs/training.md)")
      .no_mathematics();
  list.add("eval_tokens", o.eval_tokens, "").recorded_only().no_mathematics();
}

}  // namespace

std::string_view name_of(ScheduleKind kind) { return kSchedules[static_cast<size_t>(kind)]; }
std::string_view name_of(OptimizerKind kind) { return kOptimizers[static_cast<size_t>(kind)]; }
std::string_view name_of(Tune tune) { return row_of(tune).name; }
bool tunes_adapters(Tune tune) { return row_of(tune).adapters; }
bool tunes_whole(Tune tune, Part part) {
  const TuneRow& row = row_of(tune);
  return part == Part::router ? row.routers : part == Part::norms ? row.norms : row.rest;
}

void add_optimizer(FieldList& list, OptimizerKind& optimizer, std::string_view help) {
  list.add_choice("optimizer", optimizer, kOptimizers, help);
}

FieldList fields(TrainOptions& o) {
  FieldList list;
  add_steps(list, o);
  add_tuning(list, o);
  add_bookkeeping(list, o);
  return list;
}

void validate(const TrainOptions& o) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  need_at_least(o.context, 1, "context");
  need_at_least(o.batch, 1, "batch");
  need_at_least(o.accumulate, 1, "accumulate");
  need_at_least(o.steps, 1, "steps");
  constexpr int64_t kLimit = int64_t{1} << 20;  // keeps tokens and row numbers far from overflow
  for (int64_t size : {o.context, o.batch, o.accumulate})
    if (size > kLimit)
      fail_usage("@context, @batch and @accumulate may each be at most {}, not {}", kLimit, size);
  if (o.context * rows_of(o) >= std::numeric_limits<int32_t>::max())
    fail_usage(
        "a micro-batch of {} rows of {} tokens is too large; lower @batch and raise @accumulate",
        o.batch, o.context);
  if (o.steps > kMostSteps)
    fail_usage("@steps is {}; at most {} are possible", o.steps, kMostSteps);
  if (!(o.lr > 0) || std::isinf(o.lr)) fail_usage("@lr is {}; it must be above 0", o.lr);
  if (o.min_lr) need_in(*o.min_lr, 0, kNoLimit, "min_lr");
  if (o.min_lr && *o.min_lr > o.lr)
    fail_usage("@min_lr is {}, above @lr {}; the rate can only fall after the warm-up", *o.min_lr,
               o.lr);
  if (o.warmup) need_at_least(*o.warmup, 0, "warmup");
  if (o.warmup && *o.warmup >= o.steps && o.schedule != ScheduleKind::constant)
    fail_usage(
        "@warmup is {} of {} steps, which leaves none at the full rate; lower @warmup or raise "
        "@steps",
        *o.warmup, o.steps);
  need_in(o.cooldown, 0, 1, "cooldown");
  if (o.keep_stable && o.schedule != ScheduleKind::wsd)
    fail_usage("@keep_stable is of @schedule wsd; with {} leave it out", name_of(o.schedule));
  for (const Replan& r : o.replans)
    if (r.until < 1 || r.until >= r.steps || r.until >= o.steps)
      fail_usage("replans: a schedule of {} steps cannot have held for {} of {}", r.steps, r.until,
                 o.steps);
  for (const auto& [part, times] : o.lr_times)
    if (!(times > 0) || std::isinf(times))
      fail_usage("@lr_times {}={}: it must be above 0", printable(part), times);
  need_in(o.lr_width, 0, 1 << 20, "lr_width");
  if (o.lr_width > 0 && tunes_adapters(o.tune))
    fail_usage("@lr_width is of whole matrices, and @tune {} trains adapters; leave it out",
               name_of(o.tune));
  need_in(o.momentum, 0, 1, "momentum");
  need_in(o.weight_decay, 0, kNoLimit, "weight_decay");
  need_in(o.beta1, 0, 1, "beta1");
  need_in(o.beta2, 0, 1, "beta2");
  if (!(o.eps > 0) || std::isinf(o.eps)) fail_usage("@eps is {}; it must be above 0", o.eps);
  need_in(o.clip, 0, kNoLimit, "clip");
  if (o.seed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail_usage("@seed is {}; it must be below 2^63", o.seed);
  check_weights(o.mix);
  if (o.shuffle == Shuffle::none && changes_anything(o.mix))
    fail_usage("@shuffle none reads the text in order; @mix needs @shuffle epoch");
  need_in(o.hold_out, 0, 1, "hold_out");
  need_at_least(o.lora_rank, 1, "lora_rank");
  if (o.lora_rank > kLimit)
    fail_usage("@lora_rank is {}; at most {} are possible", o.lora_rank, kLimit);
  if (!(o.lora_alpha > 0) || std::isinf(o.lora_alpha))
    fail_usage("@lora_alpha is {}; it must be above 0", o.lora_alpha);
  if (!(o.hot_share > 0 && o.hot_share <= 1))
    fail_usage("@hot_share is {}; it must be above 0 and at most 1", o.hot_share);
  if (!(o.teacher_weight > 0 && o.teacher_weight <= 1))
    fail_usage("@teacher_weight is {}; it must be above 0 and at most 1", o.teacher_weight);
  if (!(o.dpo_beta > 0) || std::isinf(o.dpo_beta))
    fail_usage("@dpo_beta is {}; it must be above 0", o.dpo_beta);
  need_in(o.minutes, 0, kNoLimit, "minutes");
  need_at_least(o.save_every, 0, "save_every");
  if (o.eval_every) need_at_least(*o.eval_every, 0, "eval_every");
  need_at_least(o.eval_tokens, 0, "eval_tokens");
  need_at_least(o.threads, 0, "threads");
  need_at_least(o.expert_parallel, 1, "expert_parallel");
  if (o.threads > 1024) fail_usage("@threads is {}; at most 1024 are possible", o.threads);
}

TrainOptions resolved(TrainOptions o) {
  if (!o.min_lr) o.min_lr = o.schedule == ScheduleKind::wsd ? 0 : o.lr / 10;
  if (!o.warmup) o.warmup = std::min<int64_t>(100, o.steps / 10);
  if (!o.eval_every) o.eval_every = usual_eval_every(o);
  if (o.threads == 0) o.threads = available_threads();
  return o;
}

void leave_room_for_warmup(TrainOptions& o) {
  o.steps = std::max(o.steps, std::min(o.warmup.value_or(0), kMostSteps - 1) + 1);
}

int64_t usual_eval_every(const TrainOptions& o) {
  constexpr double kMost = 10, kShare = 0.1, kForward = 1.0 / 3;  // a forward is a third of a step
  const double trained =
      static_cast<double>(o.steps) * static_cast<double>(rows_of(o) * o.accumulate * o.context);
  const double count =
      o.eval_tokens == 0
          ? kMost
          : std::min(kMost, std::floor(kShare * trained /
                                       (kForward * static_cast<double>(o.eval_tokens))));
  return count < 2 ? 0 : static_cast<int64_t>(std::ceil(static_cast<double>(o.steps) / count));
}

std::vector<std::string> mathematical_differences(TrainOptions saved, TrainOptions wanted) {
  FieldList now = fields(wanted);
  std::vector<std::string> out;
  for (const Field& was : fields(saved)) {
    const Json old = was.get(), value = now.at(was.name).get();
    if (was.is_mathematics && old != value)
      out.push_back(
          fmt::format("{} was {} and is now {}", field(was.name), old.dump(), value.dump()));
  }
  return out;
}

}  // namespace moe
