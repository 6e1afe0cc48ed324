// The list of a run's options, visited once for each purpose: to JSON, from JSON, and to compare two runs.
#include "train/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"

namespace moe {
namespace {

enum class Effect { mathematics, none };

// f(name, field, effect) for every field.
template <class Options, class F>
void each_field(Options& o, F&& f) {
  f("context", o.context, Effect::mathematics);
  f("batch", o.batch, Effect::mathematics);
  f("accumulate", o.accumulate, Effect::mathematics);
  f("steps", o.steps, Effect::mathematics);
  f("replans", o.replans, Effect::mathematics);
  f("lr", o.lr, Effect::mathematics);
  f("min_lr", o.min_lr, Effect::mathematics);
  f("warmup", o.warmup, Effect::mathematics);
  f("schedule", o.schedule, Effect::mathematics);
  f("lr_times", o.lr_times, Effect::mathematics);
  f("weight_decay", o.weight_decay, Effect::mathematics);
  f("decay_all", o.decay_all, Effect::mathematics);
  f("beta1", o.beta1, Effect::mathematics);
  f("beta2", o.beta2, Effect::mathematics);
  f("eps", o.eps, Effect::mathematics);
  f("clip", o.clip, Effect::mathematics);
  f("seed", o.seed, Effect::mathematics);
  f("dtype", o.dtype, Effect::mathematics);
  f("shuffle", o.shuffle, Effect::mathematics);
  f("mix", o.mix, Effect::mathematics);
  f("hold_out", o.hold_out, Effect::mathematics);
  f("tune", o.tune, Effect::mathematics);
  f("lora_rank", o.lora_rank, Effect::mathematics);
  f("lora_alpha", o.lora_alpha, Effect::mathematics);
  f("teacher_weight", o.teacher_weight, Effect::mathematics);
  f("recompute", o.recompute, Effect::none);
  f("minutes", o.minutes, Effect::none);
  f("save_every", o.save_every, Effect::none);
  f("eval_every", o.eval_every, Effect::none);
  f("keep_best", o.keep_best, Effect::none);
  f("eval_tokens", o.eval_tokens, Effect::none);
  f("threads", o.threads, Effect::none);
}

Json value_of(ScheduleKind x) { return std::string(name_of(x)); }
Json value_of(Tune x) { return std::string(name_of(x)); }
Json value_of(DType x) { return std::string(name_of(x)); }
Json value_of(Shuffle x) { return x == Shuffle::none ? "none" : "epoch"; }
Json value_of(const std::vector<Replan>& x) {
  Json pairs = Json::array();
  for (const Replan& replan : x) pairs.push_back({replan.until, replan.steps});
  return pairs;
}
template <class T>
Json value_of(const std::optional<T>& x) {
  return x ? Json(*x) : Json();
}
template <class T>
Json value_of(const T& x) {
  return x;
}

void read(const JsonReader& in, const char* name, bool& x) { x = in.get<bool>(name, x); }
void read(const JsonReader& in, const char* name, int64_t& x) { x = in.get<int64_t>(name, x); }
void read(const JsonReader& in, const char* name, double& x) { x = in.get<double>(name, x); }
void read(const JsonReader& in, const char* name, int& x) { x = static_cast<int>(in.get_in<int64_t>(name, 0, std::numeric_limits<int>::max(), x)); }
void read(const JsonReader& in, const char* name, uint64_t& x) {
  x = static_cast<uint64_t>(in.get_in<int64_t>(name, 0, std::numeric_limits<int64_t>::max(), static_cast<int64_t>(x)));
}
void read(const JsonReader& in, const char* name, ScheduleKind& x) { x = parse_schedule(in.get<std::string>(name, std::string(name_of(x)))); }
void read(const JsonReader& in, const char* name, Tune& x) { x = parse_tune(in.get<std::string>(name, std::string(name_of(x)))); }
void read(const JsonReader& in, const char* name, DType& x) { x = parse_train_dtype(in.get<std::string>(name, std::string(name_of(x)))); }
void read(const JsonReader& in, const char* name, Shuffle& x) {
  if (in.has(name)) x = parse_shuffle(in.get<std::string>(name));
}
void read(const JsonReader& in, const char* name, std::map<std::string, double>& x) {
  if (!in.has(name)) return;
  const JsonReader numbers = in.object(name);
  for (const std::string& key : numbers.keys()) x[key] = numbers.get<double>(key);
}
void read(const JsonReader& in, const char* name, std::vector<Replan>& x) {
  if (!in.has(name)) return;
  for (const Json& pair : in.value(name)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() || !pair[1].is_number_integer()) fail("{}: each must be [until, steps]", name);
    x.push_back({pair[0].get<int64_t>(), pair[1].get<int64_t>()});
  }
}
template <class T>
void read(const JsonReader& in, const char* name, std::optional<T>& x) {
  if (in.has(name)) x = in.get<T>(name);
}

std::string flag(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

void need_at_least(int64_t value, int64_t least, const char* what) {
  if (value < least) fail_usage("{} is {}; it must be at least {}", what, value, least);
}

// low <= value < high
void need_in(double value, double low, double high, const char* what) {
  if (value >= low && value < high) return;
  if (std::isinf(high)) fail_usage("{} is {}; it must be a number of at least {}", what, value, low);
  fail_usage("{} is {}; it must be at least {} and below {}", what, value, low, high);
}

}  // namespace

ScheduleKind parse_schedule(std::string_view name) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant})
    if (name == name_of(kind)) return kind;
  fail_usage("no schedule is called \"{}\"{}", printable(name), suggestion(name, {"cosine", "linear", "constant"}));
}

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::cosine: return "cosine";
    case ScheduleKind::linear: return "linear";
    case ScheduleKind::constant: return "constant";
  }
  return "";
}

Tune parse_tune(std::string_view name) {
  std::vector<std::string> names;
  for (Tune tune : {Tune::all, Tune::router, Tune::lora, Tune::lora_router}) {
    if (name == name_of(tune)) return tune;
    names.emplace_back(name_of(tune));
  }
  fail_usage("--tune is \"{}\"; it is all, router, lora or lora+router{}", printable(name), suggestion(name, names));
}

std::string_view name_of(Tune tune) {
  switch (tune) {
    case Tune::all: return "all";
    case Tune::router: return "router";
    case Tune::lora: return "lora";
    case Tune::lora_router: return "lora+router";
  }
  return "";
}

DType parse_train_dtype(std::string_view name) {
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  fail_usage("training in \"{}\" is not known{}", printable(name), suggestion(name, {"f32", "bf16"}));
}

void validate(const TrainOptions& o) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  need_at_least(o.context, 1, "--context");
  need_at_least(o.batch, 1, "--batch");
  need_at_least(o.accumulate, 1, "--accumulate");
  need_at_least(o.steps, 1, "--steps");
  constexpr int64_t kLimit = int64_t{1} << 20;  // keeps tokens and row numbers far from overflow
  for (int64_t size : {o.context, o.batch, o.accumulate})
    if (size > kLimit) fail_usage("--context, --batch and --accumulate may each be at most {}, not {}", kLimit, size);
  if (o.context * o.batch >= std::numeric_limits<int32_t>::max())
    fail_usage("a micro-batch of {} rows of {} tokens is too large; lower --batch and raise --accumulate", o.batch, o.context);
  if (o.steps > int64_t{1} << 32) fail_usage("--steps is {}; at most {} are possible", o.steps, int64_t{1} << 32);
  if (!(o.lr > 0) || std::isinf(o.lr)) fail_usage("--lr is {}; it must be above 0", o.lr);
  if (o.min_lr) need_in(*o.min_lr, 0, kNoLimit, "--min-lr");
  if (o.min_lr && *o.min_lr > o.lr) fail_usage("--min-lr is {}, above --lr {}; the rate can only fall after the warm-up", *o.min_lr, o.lr);
  if (o.warmup) need_at_least(*o.warmup, 0, "--warmup");
  if (o.warmup && *o.warmup >= o.steps && o.schedule != ScheduleKind::constant)
    fail_usage("--warmup is {} of {} steps, which leaves none at the full rate; lower --warmup or raise --steps", *o.warmup, o.steps);
  for (const Replan& r : o.replans)
    if (r.until < 1 || r.until >= r.steps || r.until >= o.steps)
      fail_usage("replans: a schedule of {} steps cannot have held for {} of {}", r.steps, r.until, o.steps);
  for (const auto& [part, times] : o.lr_times)
    if (!(times > 0) || std::isinf(times)) fail_usage("--lr-times {}={}: it must be above 0", printable(part), times);
  need_in(o.weight_decay, 0, kNoLimit, "--weight-decay");
  need_in(o.beta1, 0, 1, "--beta1");
  need_in(o.beta2, 0, 1, "--beta2");
  if (!(o.eps > 0) || std::isinf(o.eps)) fail_usage("--eps is {}; it must be above 0", o.eps);
  need_in(o.clip, 0, kNoLimit, "--clip");
  if (o.seed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) fail_usage("--seed is {}; it must be below 2^63", o.seed);
  check_weights(o.mix);
  if (o.shuffle == Shuffle::none && changes_anything(o.mix)) fail_usage("--shuffle none reads the text in order; --mix needs --shuffle epoch");
  need_in(o.hold_out, 0, 1, "--hold-out");
  need_at_least(o.lora_rank, 1, "--lora-rank");
  if (o.lora_rank > kLimit) fail_usage("--lora-rank is {}; at most {} are possible", o.lora_rank, kLimit);
  if (!(o.lora_alpha > 0) || std::isinf(o.lora_alpha)) fail_usage("--lora-alpha is {}; it must be above 0", o.lora_alpha);
  if (!(o.teacher_weight > 0 && o.teacher_weight <= 1)) fail_usage("--teacher-weight is {}; it must be above 0 and at most 1", o.teacher_weight);
  need_in(o.minutes, 0, kNoLimit, "--minutes");
  need_at_least(o.save_every, 0, "--save-every");
  if (o.eval_every) need_at_least(*o.eval_every, 0, "--eval-every");
  need_at_least(o.eval_tokens, 0, "--eval-tokens");
  need_at_least(o.threads, 0, "--threads");
  if (o.threads > 1024) fail_usage("--threads is {}; at most 1024 are possible", o.threads);
}

TrainOptions resolved(TrainOptions o) {
  if (!o.min_lr) o.min_lr = o.lr / 10;
  if (!o.warmup) o.warmup = std::min<int64_t>(100, o.steps / 10);
  if (!o.eval_every) o.eval_every = usual_eval_every(o);
  if (o.threads == 0) o.threads = available_threads();
  return o;
}

int64_t usual_eval_every(const TrainOptions& o) {
  constexpr double kMost = 10, kShare = 0.1, kForward = 1.0 / 3;  // a forward is a third of a step
  const double trained = static_cast<double>(o.steps) * static_cast<double>(o.batch * o.accumulate * o.context);
  const double count = o.eval_tokens == 0 ? kMost : std::min(kMost, std::floor(kShare * trained / (kForward * static_cast<double>(o.eval_tokens))));
  return count < 2 ? 0 : static_cast<int64_t>(std::ceil(static_cast<double>(o.steps) / count));
}

std::vector<std::string> mathematical_differences(const TrainOptions& saved, const TrainOptions& wanted) {
  const Json now = to_json(wanted);
  std::vector<std::string> out;
  each_field(saved, [&](const char* name, const auto& value, Effect effect) {
    const Json old = value_of(value);
    if (effect == Effect::mathematics && old != now.at(name))
      out.push_back(fmt::format("{} was {} and is now {}", flag(name), old.dump(), now.at(name).dump()));
  });
  return out;
}

Json to_json(const TrainOptions& options) {
  Json out = Json::object();
  each_field(options, [&](const char* name, const auto& value, Effect) { out[name] = value_of(value); });
  return out;
}

TrainOptions train_options_from_json(const Json& json, const std::string& where) {
  const JsonReader in(json, where);
  TrainOptions options;
  each_field(options, [&](const char* name, auto& value, Effect) { read(in, name, value); });
  in.refuse_unknown();
  return options;
}

}  // namespace moe
