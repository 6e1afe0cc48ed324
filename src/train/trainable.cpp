// Which parameters a run moves is decided here by the parts of the model they belong to.
#include "train/trainable.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/nearest.h"
#include "train/hot_experts.h"
#include "train/muon.h"

namespace moe {
namespace {

constexpr uint64_t kAdapterKey = 0x6c6f7261;  // apart from the keys of steps and weights

bool takes_adapter(const Param& param, Tune tune) {
  if (!tunes_adapters(tune) || !is_hidden_matrix(param) || !param.is_trained()) return false;
  return tune != Tune::experts_hot || param.part == Part::experts;
}

bool trains_itself(const Param& param, Tune tune) {
  return param.is_trained() && tunes_whole(tune, param.part);
}

// Whether rows of tokens are trained of it.
bool has_token_rows(const Param& param, const TrainOptions& o) {
  return tunes_adapters(o.tune) && !o.tune_tokens.empty() && param.is_matrix() &&
         (param.part == Part::embedding || param.part == Part::lm_head);
}

int64_t token_numbers(const Param& param, const TrainOptions& o) {
  return has_token_rows(param, o) ? std::ssize(o.tune_tokens) * param.value.cols() : 0;
}

const HotLayer* hot_of(const Param& param, const TrainOptions& o) {
  const auto found = std::find_if(o.hot.begin(), o.hot.end(),
                                  [&](const HotLayer& hot) { return hot.layer == param.layer; });
  return found == o.hot.end() ? nullptr : &*found;
}

// Pairs that the adapter of a matrix or bank has. Before it is measured which experts are hot, as
// many as there can be: of E experts in the order of their rows, the first ceil(p E) have at least
// the share p.
int64_t pairs_of(const Param& param, const TrainOptions& o) {
  if (param.value.rank < 3) return 1;
  if (o.lora_shared) return 1;
  const int64_t experts = param.value.shape[0];
  if (o.tune != Tune::experts_hot) return experts;
  if (const HotLayer* hot = hot_of(param, o)) return static_cast<int64_t>(hot->experts.size());
  return static_cast<int64_t>(std::ceil(o.hot_share * static_cast<double>(experts)));
}

int64_t adapter_numbers(const Param& param, const TrainOptions& o) {
  const Tensor& w = param.value;
  return pairs_of(param, o) * o.lora_rank * (w.shape[w.rank - 1] + w.shape[w.rank - 2]);
}

// Fails unless there are experts where some are meant, and what was measured is of such a model.
void check_experts(const Model& model, const TrainOptions& o) {
  const ModelConfig& c = model.config();
  if (o.lora_shared && c.moe_layer_count() == 0)
    fail_usage("@lora_shared is of experts; this model is dense and has none: leave it out");
  if (o.tune != Tune::experts_hot) return;
  check_has_experts(c, o);
  if (o.hot.empty())
    fail_usage("@tune {}: it was not measured which experts are hot", name_of(o.tune));
  for (const Param* param : model.params()) {
    if (!takes_adapter(*param, o.tune)) continue;
    const HotLayer* hot = hot_of(*param, o);
    if (hot == nullptr || hot->experts.empty() || hot->experts.front() < 0 ||
        hot->experts.back() >= c.routing.experts ||
        std::adjacent_find(hot->experts.begin(), hot->experts.end(),
                           [](int64_t a, int64_t b) { return a >= b; }) != hot->experts.end())
      fail_usage("@tune {}: the hot experts of layer {} are not of this model", name_of(o.tune),
                 param->layer);
  }
}

// Fails unless the tokens were looked up and are of such a model.
void check_tokens(const Model& model, const TrainOptions& o) {
  if (o.tune_tokens.empty()) return;
  if (o.token_ids.size() != o.tune_tokens.size())
    fail_usage("@tune_tokens: the tokens were not looked up");
  for (const int64_t id : o.token_ids)
    if (id < 0 || id >= model.config().vocab)
      fail_usage("@tune_tokens: {} is no token of this model, whose vocabulary has {}", id,
                 model.config().vocab);
}

}  // namespace

bool moves_whole(const Param& param, Tune tune) {
  return tunes_whole(tune, param.part) && (param.is_trained() || param.part == Part::router);
}

Trainable::Trainable(Model& model) : model_(&model), adapters_(std::make_shared<Adapters>()) {}

Trainable::Trainable(Model& model, const TrainOptions& options) : Trainable(model) {
  check_experts(model, options);
  check_tokens(model, options);
  for (Param* param : model.params())
    if (moves_whole(*param, options.tune)) model.own(*param, options.threads);
  model.enable_grads([&](const Param& p) { return trains_itself(p, options.tune); });
  RngKey key = RngKey::from_seed(options.seed).fold(kAdapterKey);
  for (size_t i = 0; i < model.params().size(); ++i) {
    Param& param = *model.params()[i];
    if (trains_itself(param, options.tune)) params_.push_back(&param);
    else if (takes_adapter(param, options.tune)) add_adapter(param, options, key.fold(i));
    else if (has_token_rows(param, options))
      params_.push_back(&adapters_->add_rows(param, options.token_ids, true).rows);
  }
  if (params_.empty())
    fail_usage("@tune {}: this model has no routers; there is nothing to train",
               name_of(options.tune));
}

Trainable::~Trainable() {
  if (adapters_) adapters_->take_off();
}

void Trainable::leave_adapters() {
  if (!adapters_->empty()) model_->keep(adapters_);
  adapters_ = nullptr;
}

void Trainable::add_adapter(Param& base, const TrainOptions& options, RngKey key) {
  const auto scale =
      static_cast<float>(options.lora_alpha / static_cast<double>(options.lora_rank));
  TermShape shape{.rank = options.lora_rank, .scale = scale, .shared = options.lora_shared};
  if (options.tune == Tune::experts_hot) shape.experts = hot_of(base, options)->experts;
  Adapter& adapter = adapters_->add(base, shape, true);
  const float limit = 1 / std::sqrt(static_cast<float>(base.value.cols()));
  float* a = adapter.a.value.as<float>();
  for (int64_t i = 0; i < adapter.a.value.numel(); ++i)
    a[i] = limit * (2 * uniform(key, static_cast<uint64_t>(i)) - 1);
  params_.push_back(&adapter.a);
  params_.push_back(&adapter.b);
}

void Trainable::zero_grads() {
  for (Param* param : model_->params()) param->grad_is_zero = true;
  for (Param* param : params_) param->grad_is_zero = true;
}

std::vector<TrainedPart> trained_parts(const Model& model, const TrainOptions& options) {
  std::vector<TrainedPart> parts;
  for (const Param* param : model.params()) {
    if (!param->is_trained()) continue;
    const std::string_view name = name_of(param->part);
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&](const TrainedPart& p) { return p.name == name; });
    if (part == parts.end()) part = parts.insert(parts.end(), {name, 0, 0});
    part->total += param->value.numel();
    if (trains_itself(*param, options.tune)) part->trained += param->value.numel();
    else if (takes_adapter(*param, options.tune)) part->trained += adapter_numbers(*param, options);
    else part->trained += token_numbers(*param, options);
  }
  return parts;
}

TrainedBytes trained_bytes(const Model& shapes, const TrainOptions& options) {
  TrainedBytes bytes;
  constexpr int64_t kF32 = 4;
  for (const Param* param : shapes.params()) {
    const int64_t own = kF32 * param->value.numel();
    if (trains_itself(*param, options.tune)) {
      bytes.gradients += own;
      bytes.moments += (takes_muon(*param, options) ? 1 : 2) * own;
    } else {
      const int64_t adapter =
          kF32 * (takes_adapter(*param, options.tune) ? adapter_numbers(*param, options)
                                                      : token_numbers(*param, options));
      bytes.moments += 2 * adapter;
      bytes.adapters += 2 * adapter;
    }
  }
  return bytes;
}

namespace {

// Embeddings and positions are rows that are looked up, not multiplied by.
bool grows_with_width(const Param& p) {
  return p.is_matrix() && p.part != Part::embedding && p.part != Part::positions &&
         !is_convolution(p);
}

double width_factor(const Param& p, const TrainOptions& options, int64_t width) {
  if (options.lr_width == 0 || !grows_with_width(p)) return 1;
  const double ratio = static_cast<double>(options.lr_width) / static_cast<double>(width);
  return takes_muon(p, options) ? std::sqrt(ratio) : ratio;
}

}  // namespace

std::vector<double> lr_factors(const std::vector<Param*>& params, const TrainOptions& options,
                               int64_t width) {
  std::vector<double> factors;
  std::vector<std::string> parts;
  for (const Param* param : params) {
    const std::string part(name_of(param->part));
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    const auto named = options.lr_times.find(part);
    factors.push_back((named == options.lr_times.end() ? 1 : named->second) *
                      width_factor(*param, options, width));
  }
  for (const auto& [part, times] : options.lr_times)
    if (std::find(parts.begin(), parts.end(), part) == parts.end())
      fail_usage("@lr_times {}={}: no such part is trained; there are {}{}", printable(part), times,
                 fmt::join(parts, ", "), suggestion(part, parts));
  return factors;
}

}  // namespace moe
