// Steps of the optimizer. Sums that decide what is reported run in double and in a fixed order.
// Evaluations are in evaluation.cpp.
#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "model/cost.h"
#include "ops/devices.h"
#include "tensor/on_host.h"
#include "train/batch_of.h"
#include "train/pace.h"
#include "train/schedule.h"

namespace moe {

static_assert(kNoTarget == ops::kIgnoreTarget);

namespace {

TrainOptions checked(const Model& model, TrainOptions options, const Corpus& corpus) {
  options.pairs = corpus.pairs() > 0;
  validate(options);
  const ModelConfig& c = model.config();
  if (options.context > c.context)
    fail_usage(
        "@context is {}, but {}", options.context,
        c.ends_at_context()
            ? why_texts_end(c)
            : fmt::format("the model is made for sequences of at most {} tokens", c.context));
  if (c.sparse.present() && options.context > c.sparse.top)
    fail_usage(
        "@context is {}, but beyond {} tokens the attention of the model is sparse, which is not "
        "trained here; give at most {}",
        options.context, c.sparse.top, c.sparse.top);
  return resolved(options);
}

double sum_in_order(const Run& run, const Tensor& of) {
  OnHost host(run);
  const Tensor nll = host.read(of);
  double sum = 0;
  for (int64_t n = 0; n < nll.numel(); ++n) sum += nll.as<float>()[n];
  return sum;
}

bool all_finite(const Tensor& h) {
  for (int64_t n = 0; n < h.rows(); ++n)
    for (int64_t d = 0; d < h.cols(); ++d)
      if (!std::isfinite(h.row<float>(n)[d])) return false;
  return true;
}

// sum += x, entry by entry; an empty sum is zero.
template <class S, class X>
void add_to(std::vector<S>& sum, const std::vector<X>& x) {
  sum.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<S>(x[i]);
}

// All numbers of one type that a step adds up, as one list for one sum over processes.
template <class T, class Sums>
void sum_numbers(const comm::Group& group, Sums& sums) {
  std::vector<T> all;
  sums.each([&](auto& x) {
    if constexpr (std::is_same_v<decltype(x), T&>) all.push_back(x);
  });
  group.sum(all);
  auto next = all.begin();
  sums.each([&](auto& x) {
    if constexpr (std::is_same_v<decltype(x), T&>) x = *next++;
  });
}

constexpr const char* kAgainst = "a lower @lr or a longer @warmup helps against divergence";

std::string diverged(int64_t step, const Error& e) {
  return message("step {}: {}; the weights are those of step {}; {}", step, e.marked(), step - 1,
                 marked(kAgainst));
}

}  // namespace

// What a step adds up over its micro-batches.
struct Trainer::Sums {
  struct Layer {
    int64_t layer = 0;
    LayerStep step;
    int64_t dropped = 0;
  };
  double nll = 0, kl = 0;
  PairSums pairs;
  int64_t predicted = 0, tokens = 0;
  double keys = 0;  // the squares of the sequences' lengths
  // over micro-batches and layers
  double balance = 0, z = 0, device = 0, communication = 0, importance = 0, load = 0;
  std::vector<Layer> layers;
  // [E] a layer; for the step's own micro-batches, whose losses read them (Pass::step_counts)
  std::vector<std::vector<int64_t>> balance_counts;

  // f(x) for every number that is summed over processes.
  template <class F>
  void each(F&& f) {
    for (double* x : {&nll, &kl, &keys, &balance, &z, &device, &communication, &importance, &load})
      f(*x);
    pairs.each(f);
    f(predicted);
    f(tokens);
    for (Layer& l : layers) {
      for (int64_t& count : l.step.counts) f(count);
      for (double& cutoff : l.step.cutoff) f(cutoff);
      f(l.dropped);
    }
  }
  void add(const TextBatch& text) {
    predicted += text.predicted;
    tokens += static_cast<int64_t>(text.ids.size());
    for (size_t s = 0; s + 1 < text.bounds.size(); ++s) {
      const auto length = static_cast<double>(text.bounds[s + 1] - text.bounds[s]);
      keys += length * length;
    }
  }
  void add(const std::vector<LayerRouting>& routing) {
    layers.resize(routing.size());
    balance_counts.resize(routing.size());
    for (size_t i = 0; i < routing.size(); ++i) {
      layers[i].layer = routing[i].layer;
      layers[i].dropped += routing[i].dropped;
      add_to(layers[i].step.counts, routing[i].counts);
      add_to(layers[i].step.cutoff, routing[i].cutoff);
      add_to(balance_counts[i], routing[i].balance_counts);
      const RoutingLosses& l = routing[i].losses;
      balance += l.balance;
      z += l.z;
      device += l.device;
      communication += l.communication;
      importance += l.importance;
      load += l.load;
    }
  }
  // Sums become what Model::end_step takes.
  std::vector<LayerStep> steps(int64_t micro_batches) const {
    std::vector<LayerStep> out;
    for (const Layer& layer : layers) {
      out.push_back(layer.step);
      for (double& cutoff : out.back().cutoff) cutoff /= static_cast<double>(micro_batches);
    }
    return out;
  }
};

Trainer::Trainer(Model& model, const TrainOptions& options, const Corpus& corpus, Model* teacher,
                 const comm::Layout& layout)
    : model_(model),
      teacher_(teacher),
      corpus_(corpus),
      options_(checked(model, options, corpus)),
      layout_(layout),
      plan_(corpus, {options_.context, options_.batch, options_.accumulate}, options_.shuffle,
            options_.seed, options_.mix),
      moe_layers_(model.config().moe_layer_count()),
      run_(options_.threads, options_.dtype, ops::device_of(options_.device)),
      there_(run_.device, {&model, teacher}),
      trainable_(model, options_),
      optimizer_(trainable_.params(), options_,
                 lr_factors(trainable_.params(), options_, model.config().width), layout,
                 run_.saved.device()) {
  run_.widen = true;
  const int processes = layout_.all().size;
  if (options_.accumulate % processes != 0)
    fail_usage("@accumulate is {}, which {} processes cannot share evenly; give a multiple of {}",
               options_.accumulate, processes, processes);
  if (layout_.is_spread() && !trainable_.adapters().empty())
    fail_usage(
        "@tune {} hangs adapters on experts, which are all needed for that; leave "
        "@expert_parallel out",
        name_of(options_.tune));
  if (moe_layers_ > 0) {
    train_routing_ = train_spec(model.config().routing);
    eval_routing_ = eval_spec(model.config().routing);
  }
  if (!teacher_) return;
  const ModelConfig& c = teacher_->config();
  if (c.vocab != model.config().vocab)
    fail("the teacher's vocabulary is {}, the model's {}; a teacher must predict the same tokens",
         c.vocab, model.config().vocab);
  if (c.ends_at_context() && c.context < options_.context)
    fail_usage("@context is {}, but {}", options_.context, why_texts_end(c, "the teacher"));
  if (c.moe_layer_count() > 0) teacher_routing_ = eval_spec(c.routing);
}

int64_t Trainer::peak_activation_bytes() const {
  size_t bytes = run_.saved.peak() + run_.scratch.peak();
  for (const Arena& arena : run_.thread_scratch) bytes += arena.peak();
  return static_cast<int64_t>(bytes);
}

void Trainer::resume_at(int64_t steps_done, double seconds) {
  steps_done_ = steps_done;
  seconds_ = seconds;
  tokens_ = plan_.pairs() ? 0 : steps_done * plan_.tokens(0);
  for (int64_t step = 0; plan_.pairs() && step < steps_done; ++step) tokens_ += plan_.tokens(step);
}

void Trainer::replan(int64_t steps, bool spread_evaluations) {
  options_.replans.push_back({steps_done_, options_.steps});
  options_.steps = steps;
  if (spread_evaluations) options_.eval_every = usual_eval_every(options_);
}

StepResult Trainer::step() {
  try {
    return take_step();
  } catch (const comm::LostError& e) {
    throw comm::LostError(message("step {}: {}; @resume goes on from the last checkpoint",
                                  steps_done_ + 1, e.marked()));
  }
}

StepResult Trainer::take_step() {
  const double start = steady_seconds();
  const auto before = traffic();
  Sums sums;
  double norm = 0;
  const int64_t step = steps_done_ + 1;
  const double lr = learning_rate(options_, step);
  try {
    norm = gradients(sums);
  } catch (const OutOfMemory&) {
    trainable_.zero_grads();
    throw;
  } catch (const comm::LostError&) {
    throw;
  } catch (const comm::SharedError& e) {
    trainable_.zero_grads();
    throw comm::SharedError(diverged(step, e), e.kind());
  } catch (const Error& e) {
    trainable_.zero_grads();
    throw DivergedError(diverged(step, e), e.kind());
  }
  optimizer_.update(run_, step, lr, norm);
  // The load moves a bias or a threshold only of a router that learns itself.
  if (train_routing_ && tunes_whole(options_.tune, Part::router))
    model_.end_step(run_, *train_routing_, sums.steps(options_.accumulate));
  steps_done_ = step;
  tokens_ += sums.tokens;
  const double own_seconds = steady_seconds() - start;
  const double idle = traffic().seconds - before.seconds;
  const double seconds = layout_.all().largest(own_seconds);
  seconds_ += seconds;
  StepResult result = finish(sums, norm, lr, seconds);
  result.exchange = exchanged(before, own_seconds - idle, seconds);
  return result;
}

comm::Link::Traffic Trainer::traffic() const {
  return layout_.all().link ? layout_.all().link->traffic() : comm::Link::Traffic{};
}

std::optional<StepExchange> Trainer::exchanged(const comm::Link::Traffic& before, double computed,
                                               double longest) const {
  const comm::Group& group = layout_.all();
  if (group.size == 1) return std::nullopt;
  const auto size = static_cast<size_t>(group.size), own = static_cast<size_t>(group.rank);
  std::vector<double> sent(size), busy(size), hidden(size);
  const double behind = traffic().hidden - before.hidden,
               waited = traffic().seconds - before.seconds;
  hidden[own] = behind / std::max(behind + waited, 1e-9);
  sent[own] = static_cast<double>(traffic().sent - before.sent);
  busy[own] = computed;
  group.sum(sent);
  group.sum(busy);
  group.sum(hidden);
  StepExchange e;
  for (size_t p = 0; p < size; ++p) {
    e.sent += sent[p] / static_cast<double>(size);
    e.share += (1 - busy[p] / longest) / static_cast<double>(size);
    e.hidden += hidden[p] / static_cast<double>(size);
  }
  const auto slowest = std::max_element(busy.begin(), busy.end());
  e.slowest = static_cast<int>(slowest - busy.begin());
  const double most = *slowest;
  std::sort(busy.begin(), busy.end());
  e.lag = most / std::max(busy[(size - 1) / 2], 1e-9);
  return e;
}

double Trainer::gradients(Sums& sums) {
  const int64_t predicted = plan_.predicted(corpus_, steps_done_);
  step_counts_.clear();
  if (options_.accumulate > 1 && shares() == BalanceLoss::Shares::step) count_step();
  for (int64_t a = layout_.all().rank; a < options_.accumulate; a += layout_.all().size) {
    micro_batch(a, predicted, sums);
    // so far: of the rounds before, of all processes
    if (shares() == BalanceLoss::Shares::running) set_step_counts(sums.balance_counts);
  }
  optimizer_.sum_grads(run_);
  sum_numbers<double>(layout_.all(), sums);
  sum_numbers<int64_t>(layout_.all(), sums);
  return optimizer_.grad_norm(run_);
}

double Trainer::rehearse() {
  if (plan_.pairs() && reference_.empty()) {  // whatever it is, a step takes as long
    reference_ = PairReference(plan_.pairs()->count());
    for (int64_t p = 0; p < plan_.pairs()->count(); ++p) reference_.set(p, 0, 0);
  }
  const double start = steady_seconds();
  Sums sums;
  const double norm = gradients(sums);
  optimizer_.update(run_, 1, 0, norm);
  return layout_.all().largest(steady_seconds() - start);
}

Pass Trainer::pass_of(int64_t a) {
  plan_.fill(corpus_, steps_done_, a, text_);
  return {.batch = batch_of(text_),
          .routing = train_routing_ ? &*train_routing_ : nullptr,
          .key = RngKey::from_seed(options_.seed)
                     .fold(static_cast<uint64_t>(steps_done_))
                     .fold(static_cast<uint64_t>(a))};
}

std::optional<BalanceLoss::Shares> Trainer::shares() const {
  if (!train_routing_ || !train_routing_->losses.balance) return std::nullopt;
  return train_routing_->losses.balance->shares;
}

void Trainer::count_step() {
  Sums counted;
  for (int64_t a = layout_.all().rank; a < options_.accumulate; a += layout_.all().size) {
    ArenaScope scope(run_.saved);
    Pass pass = pass_of(a);
    pass.wanted.balance_counts = true;
    ModelSaved saved;
    forward(pass, saved);
    counted.add(saved.routing);
  }
  set_step_counts(std::move(counted.balance_counts));
}

void Trainer::set_step_counts(std::vector<std::vector<int64_t>> counts) {
  step_counts_ = std::move(counts);
  for (std::vector<int64_t>& of_layer : step_counts_) layout_.all().sum(of_layer);
}

void Trainer::micro_batch(int64_t a, int64_t predicted, Sums& sums) {
  ArenaScope scope(run_.saved);
  Pass pass = pass_of(a);
  pass.keep = options_.recompute ? Keep::inputs : Keep::all;
  pass.step_counts = step_counts_;
  pass.wanted = Wanted::all();
  ModelSaved saved;
  Tensor nll = run_.saved.alloc(DType::f32, {pass.batch.tokens()}), kl;
  if (is_taught()) kl = run_.saved.alloc(DType::f32, {pass.batch.tokens()});
  sums.nll += forward_loss(pass, nll, kl, teach(pass.batch), saved);
  if (is_taught()) sums.kl += sum_in_order(run_, kl);
  std::vector<float> weights;  // [N] of pairs
  if (plan_.pairs()) {
    OnHost host(run_);
    weights = pair_losses(sums.pairs, host.read(nll), text_, reference_, options_.dpo_beta);
  }
  sums.add(text_);
  sums.add(saved.routing);

  // Without a target there is no loss to be scaled, only those of the routing.
  const auto targets =
      static_cast<float>(plan_.pairs() ? plan_.rows_per_step() : std::max<int64_t>(1, predicted));
  const auto share = static_cast<float>(std::max<int64_t>(1, moe_layers_) * options_.accumulate);
  RoutingLosses coef = model_.config().routing.coef;
  each_loss(coef, [&](std::string_view, float& c) { c /= share; });
  model_.backward(run_, text_.targets, 1 / targets, coef, saved, weights);
}

void Trainer::forward(const Pass& pass, ModelSaved& saved) {
  try {
    model_.forward(run_, pass, saved);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const comm::LostError&) {
    throw;
  } catch (const Error&) {
    fail_if_not_finite(pass);
    throw;
  }
}

// Without randomness, and without keeping anything but what its head reads.
LmHeadTeacher Trainer::teach(const Batch& batch) {
  if (!is_taught()) return {};
  LmHeadTeacher out{run_.saved.alloc(run_.compute, {batch.tokens(), teacher_->config().width}),
                    teacher_->lm_head(), static_cast<float>(options_.teacher_weight)};
  ArenaScope scope(run_.saved);
  ModelSaved saved;
  teacher_->forward(
      run_, {.batch = batch, .routing = teacher_routing_ ? &*teacher_routing_ : nullptr}, saved);
  ops::cast(run_, out.x, saved.hidden);
  return out;
}

double Trainer::forward_loss(const Pass& pass, Tensor nll, Tensor kl, const LmHeadTeacher& teacher,
                             ModelSaved& saved) {
  forward(pass, saved);
  model_.loss_forward(run_, nll, kl, text_.targets, teacher, saved);
  const double sum = sum_in_order(run_, nll);
  if (std::isfinite(sum)) return sum;
  fail_if_not_finite(pass);
  fail(
      "the loss is not finite, though the output of every layer is; the head's logits are too "
      "large");
}

double Trainer::evaluation_loss(const Pass& pass, Tensor nll, ModelSaved& saved) {
  try {
    return forward_loss(pass, nll, {}, {}, saved);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const comm::LostError&) {
    throw;
  } catch (const comm::SharedError&) {
    throw;
  } catch (const Error& e) {
    throw DivergedError(message("after step {}: {}; {}", steps_done_, e.marked(), marked(kAgainst)),
                        e.kind());
  }
}

// Runs the same forward again and looks at what comes out of each block.
void Trainer::fail_if_not_finite(const Pass& pass) {
  for (const Param* param : model_.params())
    if (!std::isfinite(ops::sum_squares(run_, param->value)))
      fail("the loss is not finite because {} holds a value that is not", param->name);
  if (layout_.is_spread())  // a forward of this process alone would wait for the others
    fail(
        "the loss is not finite, though every parameter here is; without @expert_parallel the "
        "layer would be named");
  ArenaScope scope(run_.saved);
  int64_t done = -1, broken = -1;
  const std::function<void(int64_t, const Tensor&)> look = [&](int64_t layer, const Tensor& h) {
    done = layer;
    if (broken < 0 && !all_finite(h)) broken = layer;
  };
  Pass again = pass;
  again.keep = Keep::nothing;
  again.wanted = {};
  again.on_block = &look;
  ModelSaved saved;
  try {
    model_.forward(run_, again, saved);
  } catch (const Error&) {
    if (broken < 0) broken = done + 1;
  }
  if (broken >= 0)
    fail("the loss is not finite: the first output that is not is that of layers.{}", broken);
}

StepResult Trainer::finish(const Sums& sums, double grad_norm, double lr, double seconds) const {
  const auto tokens = static_cast<double>(sums.tokens);
  StepResult r;
  r.step = steps_done_;
  r.steps = options_.steps;
  r.tokens = tokens_seen();
  r.seconds = seconds_;
  r.predicted = sums.predicted;
  const auto mean = [&](double sum) {
    return sums.predicted > 0 ? sum / static_cast<double>(sums.predicted)
                              : std::numeric_limits<double>::quiet_NaN();
  };
  r.ce = mean(sums.nll);
  if (options_.pairs) {
    r.ce = sums.pairs.chosen_ce();
    r.pairs = sums.pairs.means();
  }
  if (is_taught()) r.kl = mean(sums.kl);
  const double share = static_cast<double>(std::max<int64_t>(1, moe_layers_) * options_.accumulate);
  r.balance = sums.balance / share;
  r.z = sums.z / share;
  r.device = sums.device / share;
  r.communication = sums.communication / share;
  r.importance = sums.importance / share;
  r.load = sums.load / share;
  r.coef = model_.config().routing.coef;
  r.grad_norm = grad_norm;
  r.lr = lr;
  r.tokens_per_second = tokens / seconds;
  int64_t rows = 0;
  for (const Sums::Layer& layer : sums.layers) {
    // Zero experts, which come last, compute nothing: their load may be any.
    const std::vector<int64_t>& counts = layer.step.counts;
    const auto zero = static_cast<std::ptrdiff_t>(model_.config().routing.zero_experts);
    const int64_t pairs = std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                  computed = std::accumulate(counts.begin(), counts.end() - zero, int64_t{0}),
                  most = *std::max_element(counts.begin(), counts.end() - zero);
    LayerLoad load{
        layer.layer, {}, 0, static_cast<double>(layer.dropped) / static_cast<double>(pairs)};
    for (int64_t count : counts)
      load.load.push_back(static_cast<double>(count) / static_cast<double>(pairs));
    if (computed > 0)
      load.max_vio =
          static_cast<double>(most * (std::ssize(counts) - zero)) / static_cast<double>(computed) -
          1;
    rows += computed - layer.dropped;
    r.max_vio = std::max(r.max_vio, load.max_vio);
    r.dropped += load.dropped / static_cast<double>(sums.layers.size());
    r.layers.push_back(std::move(load));
  }
  // A token attends within its document only; the mean is over tokens.
  r.flops = training_flops(model_.config(), trained_numbers(model_),
                           std::llround(sums.keys / tokens), sums.tokens, rows);
  r.flops_per_second = r.flops / seconds;
  return r;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t fitted_steps(Model& model, const TrainOptions& options, const Deadline& deadline,
                     const Corpus& corpus, const Corpus* held_out, Model* teacher,
                     const std::atomic<bool>& stop, const comm::Layout& layout) {
  constexpr int kSteps = 4;        // the first finds memory cold
  constexpr double kShare = 0.05;  // of the time
  constexpr int64_t kFewest = 2;   // the first tells whether there is time for more after all
  TrainOptions o = options;
  const comm::Group& group = layout.all();
  std::optional<Trainer> trainer;
  comm::together(group, [&] { trainer.emplace(model, o, corpus, teacher, layout); });
  // The reference reads all pairs before the first step, as long as a row each.
  const int64_t before = o.pairs ? 2 * o.context * PairIndex(corpus, o.context).count() : 0;
  Pace pace(o, held_out ? evaluation_tokens(*held_out, o) : 0, deadline.afterwards + before);
  double spent = 0;
  for (int i = 0; i < kSteps && (i < 2 || spent < kShare * 60 * options.minutes); ++i) {
    const double seconds = trainer->rehearse();
    if (group.any(stop))
      throw comm::SharedError(
          "interrupted while it was measured how long a step takes; nothing was written");
    pace.took_step(seconds);
    spent += seconds;
  }
  const double left = group.of_first(deadline.end - deadline.now());
  // Evaluations nobody asked for are spread over the steps, whose number hangs on theirs.
  for (int i = 0; i < 3; ++i) {
    o.eval_every = options.eval_every;
    o = resolved(o);
    o.steps = std::max(pace.steps_within(left, o, 0), kFewest);
  }
  return o.steps;
}

}  // namespace moe
