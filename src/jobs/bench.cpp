#include "jobs/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "jobs/train_memory.h"
#include "model/cost.h"
#include "ops/devices.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "text/bpe_train.h"
#include "train/trainer.h"

namespace moe {
namespace {

constexpr int kRepeats = 7;
constexpr double kPeakSeconds = 0.5;  // that a peak is measured for

// One timed piece of work: FLOPs of a call, or bytes moved when it is limited by memory.
struct TimedOp {
  std::string name;
  double flops, bytes;
  std::function<void()> call;
};

struct OpsFixture {
  Run run;
  Arena memory;
  DType dtype;
  std::vector<std::unique_ptr<Param>> params;
  OpsFixture(int threads, DType type) : run(threads, type), dtype(type) {}

  Tensor tensor(DType type, int64_t rows, int64_t cols) {
    Tensor t = memory.alloc(type, {rows, cols});
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float x = static_cast<float>(i % 251) / 251 - 0.5f;
      if (type == DType::bf16) t.as<bf16>()[i] = to_bf16(x);
      else t.as<float>()[i] = x;
    }
    return t;
  }
  Param& param(int64_t groups, int64_t out, int64_t in) {
    Param& p = *params.emplace_back(std::make_unique<Param>());
    p.value = tensor(DType::f32, groups * out, in).reshape({groups, out, in});
    p.grad = memory.alloc_zeroed(DType::f32, {groups, out, in});
    return p;
  }
};

// The products of an expert bank of 8 x [1024, 384] over 4096 rows, and of a dense layer, each way.
void add_products(OpsFixture& x, std::vector<TimedOp>& list) {
  struct Shape {
    const char* name;
    int64_t groups, rows, out, in;
  };
  for (const Shape& s : {Shape{"experts 8 x [1024, 384], 4096 rows", 8, 4096, 1024, 384},
                         Shape{"dense [384, 384], 2048 rows", 1, 2048, 384, 384}}) {
    auto offsets = std::make_shared<std::vector<int64_t>>();
    for (int64_t e = 0; e <= s.groups; ++e) offsets->push_back(s.rows * e / s.groups);
    Param& w = x.param(s.groups, s.out, s.in);
    const Tensor in = x.tensor(x.dtype, s.rows, s.in), out = x.tensor(x.dtype, s.rows, s.out);
    const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
    list.push_back({fmt::format("forward  {}", s.name), flops, 0, [&x, &w, in, out, offsets] {
                      ops::matmul_forward(x.run, out, in, w, *offsets);
                    }});
    list.push_back({fmt::format("dx       {}", s.name), flops, 0,
                    [&x, &w, in, out, offsets] { ops::matmul_dx(x.run, in, out, w, *offsets); }});
    list.push_back({fmt::format("dw       {}", s.name), flops, 0,
                    [&x, &w, in, out, offsets] { ops::matmul_dw(x.run, w, out, in, *offsets); }});
  }
}

void add_attention(OpsFixture& x, std::vector<TimedOp>& list) {
  constexpr int64_t kRows = 8, kContext = 256, kHeads = 6, kWidth = 64, kTokens = kRows * kContext;
  auto bounds = std::make_shared<std::vector<int64_t>>();
  auto positions = std::make_shared<std::vector<int32_t>>();
  for (int64_t s = 0; s <= kRows; ++s) bounds->push_back(s * kContext);
  for (int64_t n = 0; n < kTokens; ++n) positions->push_back(static_cast<int32_t>(n % kContext));
  const auto matrix = [&] { return x.tensor(x.dtype, kTokens, kHeads * kWidth); };
  const Tensor q = matrix(), k = matrix(), v = matrix(), o = matrix(), dq = matrix(), dk = matrix(),
               dv = matrix(), lse = x.tensor(DType::f32, kTokens, kHeads);
  const double flops = 4.0 * static_cast<double>(kTokens * kHeads * kWidth) * kContext / 2;
  const auto view = [=] {
    return ops::KvView{k, v, *bounds,
                       std::span<const int64_t>(*bounds).first(static_cast<size_t>(kRows))};
  };
  list.push_back({"attention forward, 8 x 256 tokens, 6 heads of 64", flops, 0, [=, &x] {
                    ops::attention_forward(x.run, o, lse, q, view(), *positions, kHeads, kHeads,
                                           0.125f);
                  }});
  list.push_back({"attention backward", 2.5 * flops, 0, [=, &x] {
                    ops::attention_backward(x.run, dq, dk, dv, o, q, view(), o, lse, *positions,
                                            kHeads, kHeads, 0.125f);
                  }});
}

void add_row_wise(OpsFixture& x, std::vector<TimedOp>& list) {
  constexpr int64_t kTokens = 2048, kWidth = 384, kFfn = 1024, kRows = 4096,
                    kParams = int64_t{1} << 24;
  const double a = static_cast<double>(size_of(x.dtype));
  const Tensor h = x.tensor(DType::f32, kTokens, kWidth), y = x.tensor(x.dtype, kTokens, kWidth),
               rstd = x.memory.alloc(DType::f32, {kTokens});
  Param& weight = *x.params.emplace_back(std::make_unique<Param>());
  weight.value = x.memory.alloc_zeroed(DType::f32, {kWidth});
  list.push_back({"rms_norm 2048 x 384", 0, kTokens * kWidth * (4 + a), [&x, &weight, h, y, rstd] {
                    ops::rms_norm_forward(x.run, y, rstd, h, weight, 1e-5f);
                  }});
  const Tensor gate = x.tensor(x.dtype, kRows, kFfn), up = x.tensor(x.dtype, kRows, kFfn),
               hidden = x.tensor(x.dtype, kRows, kFfn),
               w = x.memory.alloc_zeroed(DType::f32, {kRows});
  list.push_back(
      {"swiglu with weight 4096 x 1024", 0, 3 * kRows * kFfn * a, [&x, hidden, gate, up, w] {
         ops::ffn_act_forward(x.run, hidden, gate, up, w, ops::Act::silu);
       }});
  Param& p = x.param(1, 1, kParams);
  const Tensor m = x.tensor(DType::f32, 1, kParams).reshape({1, 1, kParams}),
               v = x.tensor(DType::f32, 1, kParams).reshape({1, 1, kParams});
  std::fill_n(v.as<float>(), kParams, 1.0f);
  list.push_back({"adamw 16M parameters", 0, 7.0 * 4 * kParams, [&x, &p, m, v] {
                    p.grad_is_zero = false;
                    ops::adamw_step(x.run, p, m, v, {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1});
                  }});
}

// One for each length, in the order in which they are asked for.
std::vector<SpeedOptions> lengths_of(const BenchModelJob& job) {
  validate(job.speed);
  if (job.prompts.empty()) return {job.speed};
  std::vector<SpeedOptions> lengths(job.prompts.size(), job.speed);
  for (size_t i = 0; i < lengths.size(); ++i) {
    lengths[i].prompt = job.prompts[i];
    validate(lengths[i], "prompts");
  }
  return lengths;
}

// Of the tokens that are written behind the prompt.
double mean_context_bytes(const ModelConfig& config, DType dtype, const SpeedOptions& speed) {
  double bytes = 0;
  for (int64_t i = 0; i < speed.tokens; ++i)
    bytes += static_cast<double>(context_bytes(config, dtype, speed.prompt + i));
  return bytes / static_cast<double>(speed.tokens);
}

Json rates_json(int64_t tokens, const std::vector<double>& seconds) {
  const auto n = static_cast<double>(tokens);
  return {{"median", n / median(seconds)},
          {"worst", n / *std::max_element(seconds.begin(), seconds.end())},
          {"seconds", seconds}};
}

}  // namespace

Peak measure_peak(Run& run) {
  return {run.threads, ops::measure_peak_flops(run, DType::f32, kPeakSeconds),
          ops::has_bf16_products() ? ops::measure_peak_flops(run, DType::bf16, kPeakSeconds) : 0,
          ops::measure_read_bandwidth(run, kPeakSeconds)};
}

Json to_json(const Peak& p) {
  return {{"threads", p.threads},
          {"isa", ops::isa_name()},
          {"f32_flops", p.f32},
          {"bf16_flops", p.bf16},
          {"read_bytes_per_second", p.read}};
}

std::vector<OpTiming> bench_ops(int threads,
                                const std::function<void(const OpTiming&, int threads)>& on_timed) {
  Run probe(thread_count(threads));
  const Peak peak = measure_peak(probe);
  std::vector<OpTiming> done;
  for (DType dtype : {DType::f32, DType::bf16}) {
    OpsFixture fixture(probe.threads, dtype);
    std::vector<TimedOp> list;
    add_products(fixture, list);
    add_attention(fixture, list);
    add_row_wise(fixture, list);
    for (const TimedOp& op : list) {
      op.call();
      std::vector<double> seconds;
      for (int i = 0; i < kRepeats; ++i) {
        const auto start = Clock::now();
        op.call();
        seconds.push_back(seconds_since(start));
      }
      const double s = median(seconds), rate = (op.flops > 0 ? op.flops : op.bytes) / s;
      done.push_back({op.name, dtype, s, op.flops > 0, rate,
                      rate / (op.flops > 0 ? peak.of(dtype) : peak.read)});
      if (on_timed) on_timed(done.back(), probe.threads);
    }
  }
  return done;
}

Json to_json(const OpTiming& op) {
  return {{"op", op.name},
          {"dtype", name_of(op.dtype)},
          {"ms", op.seconds * 1e3},
          {op.is_arithmetic ? "flops_per_second" : "bytes_per_second", op.rate},
          {"share_of_peak", op.share}};
}

FieldList fields(BenchTrainJob& job) {
  FieldList list = fields(job.setup);
  add_memory(list, job.memory, false);
  list.add("warmup_steps", job.warmup_steps, "steps before the timed ones");
  return list;
}

double StepTimings::tokens_per_second() const { return tokens / median(ms) * 1e3; }

StepTimings bench_train(BenchTrainJob job, Given& given, const Watch& watch) {
  SetupOptions& o = job.setup;
  FieldList list = fields(o);
  const int64_t steps = o.train.steps;
  apply_files(list, o, given);
  if (!given.by_caller("steps")) o.train.steps = steps;  // a preset's are those of a whole run
  // and so is its warm-up
  if (!given.by_caller("warmup") && o.train.warmup >= o.train.steps) o.train.warmup.reset();
  const int64_t vocab = vocabulary_of(o.tokenizer);
  o.train = resolved(o.train);
  o.train.steps += job.warmup_steps;
  validate(o.train);
  const ModelConfig config = make_config(o.model, vocab, o.train.context);
  const int64_t tokens_read = 4 * o.train.batch * o.train.accumulate * o.train.context + 1;
  MemoryNeed beside;
  beside.add("text",
             2 * tokens_read *
                 static_cast<int64_t>(sizeof(int32_t)));  // the ids, and the corpus made of them
  check_before_weights(config, o.train, job.memory.limits, beside);
  Model model(config);
  model.initialise(o.train.seed);
  std::vector<int32_t> ids(static_cast<size_t>(tokens_read));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(o.train.seed), i, vocab));
  const Corpus corpus(std::move(ids));
  const std::string estimated = check_before_training(model, o.train, job.memory.limits);
  if (job.memory.show) watch.tell("memory: " + estimated);
  Trainer trainer(model, o.train, corpus);
  Run probe(o.train.threads, o.train.dtype, trainer.run().device);
  const double peak = ops::measure_peak_flops(probe, o.train.dtype, kPeakSeconds);
  StepTimings done{
      .tokens = static_cast<double>(o.train.batch * o.train.accumulate * o.train.context),
      .peak = peak,
      .dtype = o.train.dtype,
      .threads = o.train.threads};
  for (int64_t i = 0; i < o.train.steps; ++i) {
    const auto start = Clock::now();
    const StepResult step = trainer.step();
    const double seconds = seconds_since(start);
    if (i < job.warmup_steps) continue;
    done.ms.push_back(seconds * 1e3);
    done.share.push_back(step.flops / seconds / peak);
  }
  return done;
}

Json to_json(const StepTimings& t) {
  return {{"ms_per_step", t.ms},
          {"median_ms", median(t.ms)},
          {"tokens_per_second", t.tokens_per_second()},
          {"share_of_peak", median(t.share)},
          {"peak_flops", t.peak}};
}

FieldList fields(BenchModelJob& job) {
  FieldList list;
  list.add("MODEL", job.model,
           fmt::format("a model ({}): how fast it reads a prompt and writes tokens; or one of the "
                       "words below",
                       kModelIs))
      .positional();
  list.add(fields(job.speed));
  list.add(
      "prompts", job.prompts,
      "lengths of prompts that are timed one after another, each with @tokens behind it, instead "
      "of @prompt: 512,8192");
  add_top_k_experts(list, job.top_k_experts);
  add_cache_dtype(list, job.cache_dtype);
  list.add(fields(job.compute));
  add_memory(list, job.memory);
  add_hot_set(list, job.memory);
  return list;
}

ModelTimings bench_model(const BenchModelJob& job, const Watch& watch) {
  const std::vector<SpeedOptions> wanted = lengths_of(job);
  SessionOptions options{.top_k_experts = job.top_k_experts, .cache_dtype = job.cache_dtype};
  const auto start = Clock::now();
  const LoadedModel loaded = open_model(job.model, job.memory.limits);
  Model& model = *loaded.model;
  const ModelConfig& config = model.config();
  const int64_t top_k = experts_taken(config, job.top_k_experts);
  int64_t longest = 0;
  for (const SpeedOptions& speed : wanted) {
    validate(speed, config);
    longest = std::max(longest, speed.prompt);
  }
  const double load = seconds_since(start);
  Run run(thread_count(job.compute.threads), compute_dtype(job.compute, model),
          ops::device_of(job.compute.device));
  MemoryNeed beside;
  beside.add("measuring", ops::read_buffer_bytes());
  const int64_t capacity = longest + job.speed.tokens;
  const bool large =
      prepare_memory(job.model, session_use(model, options, run.compute, longest, capacity), beside,
                     job.memory, marked("lower @prompt or @tokens"), watch);
  model.move_to(run.device);
  Session session(model, run, capacity, options);
  ModelTimings done{.model = job.model,
                    .dtype = run.compute,
                    .cache_dtype = cache_dtype(options, model, run.compute),
                    .load_seconds = load};
  const auto weights = static_cast<double>(decode_bytes(model, top_k));
  for (const SpeedOptions& speed : wanted) {
    SpeedProbe probe(model, session, speed);
    if (done.lengths.empty())
      probe.warm_up([&] { done.first_token_seconds = seconds_since(start); });
    for (int64_t i = 0; i < speed.repeats; ++i) probe.measure();
    done.lengths.push_back({.speed = probe.speed(),
                            .flops_per_token = prompt_flops(model, speed.prompt, top_k) /
                                               static_cast<double>(speed.prompt),
                            .weight_bytes = weights,
                            .cache_bytes = mean_context_bytes(config, done.cache_dtype, speed)});
  }
  done.peak = measure_peak(run);
  const bool quantised = run.device == nullptr && mostly_quantised(model),
             in_tiles = quantised && ops::quantised_products_in_tiles();
  const double integers = quantised && !in_tiles ? ops::measure_peak_int8(run, kPeakSeconds) : 0;
  const DType products = in_tiles ? DType::bf16 : run.compute;
  done.products = integers > 0 ? "int8" : name_of(products);
  done.limit = integers > 0 ? integers : done.peak.of(products);
  if (large || job.memory.hot_set) done.hot = hot_set(model, session.runner().expert_rows());
  return done;
}

Json to_json(const ModelTimings& t) {
  Json lengths = Json::array();
  for (const LengthTimings& at : t.lengths)
    lengths.push_back(
        {{"prompt", at.speed.prompt},
         {"tokens", at.speed.tokens},
         {"prompt_tokens_per_second", rates_json(at.speed.prompt, at.speed.prompt_seconds)},
         {"decode_tokens_per_second", rates_json(at.speed.tokens, at.speed.decode_seconds)},
         {"operations_per_token", at.flops_per_token},
         {"share_of_peak", at.flops() / t.limit},
         {"bytes_per_token", at.weight_bytes},
         {"cache_bytes_per_token", at.cache_bytes},
         {"share_of_read_rate", at.read() / t.peak.read},
         {"joins_per_token", at.speed.joins_per_token()}});
  Json reply = {{"model", t.model},
                {"threads", t.peak.threads},
                {"dtype", name_of(t.dtype)},
                {"cache_dtype", name_of(t.cache_dtype)},
                {"lengths", lengths},
                {"load_seconds", t.load_seconds},
                {"first_token_seconds", t.first_token_seconds},
                {"read_bytes_per_second", t.peak.read},
                {"products", t.products},
                {"peak_flops", t.limit}};
  if (t.hot) reply["hot_set"] = to_json(*t.hot);
  return reply;
}

}  // namespace moe
