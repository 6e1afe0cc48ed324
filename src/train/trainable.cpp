// Which parameters a run moves is decided here by the parts of the model they belong to.
#include "train/trainable.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

constexpr uint64_t kAdapterKey = 0x6c6f7261;  // apart from the keys of steps and weights

bool takes_adapter(const Param& param) { return is_large(param) && param.layer >= 0; }

bool trains_itself(const Param& param, Tune tune) {
  return param.is_trained() &&
         (tune == Tune::all || (tunes_routers(tune) && param.part == Part::router));
}

int64_t adapter_numbers(const Param& param, int64_t rank) {
  const Tensor& w = param.value;
  const int64_t experts = w.rank == 3 ? w.shape[0] : 1;
  return experts * rank * (w.shape[w.rank - 1] + w.shape[w.rank - 2]);
}

// Row offsets of a bank's matrices when its rows are laid end to end.
std::vector<int64_t> row_offsets(const Tensor& bank) {
  const int64_t experts = bank.rank == 3 ? bank.shape[0] : 1, rows = bank.rows() / experts;
  std::vector<int64_t> offsets;
  for (int64_t e = 0; e <= experts; ++e) offsets.push_back(e * rows);
  return offsets;
}

Tensor as_rows(const Tensor& t) { return t.reshape({t.rows(), t.cols()}); }

}  // namespace

Trainable::Trainable(Model& model, const TrainOptions& options)
    : model_(&model),
      scale_(static_cast<float>(options.lora_alpha / static_cast<double>(options.lora_rank))) {
  const bool adapted = tunes_adapters(options.tune);
  model.enable_grads([&](const Param& p) {
    return trains_itself(p, options.tune) || (adapted && takes_adapter(p));
  });
  RngKey key = RngKey::from_seed(options.seed).fold(kAdapterKey);
  for (size_t i = 0; i < model.params().size(); ++i) {
    Param& param = *model.params()[i];
    if (trains_itself(param, options.tune)) params_.push_back(&param);
    else if (adapted && takes_adapter(param)) add_adapter(param, options.lora_rank, key.fold(i));
  }
  if (params_.empty())
    fail_usage("@tune {}: this model has no routers; there is nothing to train",
               name_of(options.tune));
}

void Trainable::add_adapter(Param& base, int64_t rank, RngKey key) {
  const Tensor& w = base.value;
  const int64_t experts = w.rank == 3 ? w.shape[0] : 0, out = w.shape[w.rank - 2], in = w.cols();
  const auto alloc = [&](int64_t rows, int64_t cols) {
    return experts > 0 ? memory_.alloc_zeroed(DType::f32, {experts, rows, cols})
                       : memory_.alloc_zeroed(DType::f32, {rows, cols});
  };
  Adapter& adapter = *adapters_.emplace_back(std::make_unique<Adapter>());
  adapter.base = &base;
  adapter.frozen = alloc(out, in);
  std::memcpy(adapter.frozen.data, w.data, static_cast<size_t>(w.bytes()));
  for (Param* half : {&adapter.a, &adapter.b}) {
    half->part = base.part;
    half->kind = base.kind;
    half->layer = base.layer;
  }
  adapter.a.name = base.name + ".lora_A";
  adapter.b.name = base.name + ".lora_B";
  adapter.a.value = alloc(rank, in);
  adapter.a.grad = alloc(rank, in);
  adapter.b.value = alloc(out, rank);
  adapter.b.grad = alloc(out, rank);
  const float limit = 1 / std::sqrt(static_cast<float>(in));
  float* a = adapter.a.value.as<float>();
  for (int64_t i = 0; i < adapter.a.value.numel(); ++i)
    a[i] = limit * (2 * uniform(key, static_cast<uint64_t>(i)) - 1);
  params_.push_back(&adapter.a);
  params_.push_back(&adapter.b);
}

Tensor Trainable::scaled_b(Run& run, const Adapter& adapter) const {
  const Tensor b = adapter.b.value;
  Tensor scaled = run.scratch.alloc(DType::f32, {b.rows(), b.cols()});
  for (int64_t i = 0; i < b.numel(); ++i) scaled.as<float>()[i] = scale_ * b.as<float>()[i];
  return scaled;
}

void Trainable::gather_grads(Run& run) {
  for (const auto& adapter : adapters_) {
    Adapter& it = *adapter;
    ops::settle_grad(run, *it.base);
    ArenaScope scope(run.scratch);
    const std::vector<int64_t> offsets = row_offsets(it.base->value);
    const Tensor dw = as_rows(it.base->grad), db = as_rows(it.b.grad);
    ops::matmul_forward(run, db, dw, it.a, offsets);
    for (int64_t i = 0; i < db.numel(); ++i) db.as<float>()[i] *= scale_;
    it.b.grad_is_zero = false;
    it.a.grad_is_zero = true;  // what stands there is of the step before
    ops::matmul_dw(run, it.a, scaled_b(run, it), dw, offsets);
    it.base->grad_is_zero = true;
  }
}

void Trainable::apply(Run& run) {
  for (const auto& adapter : adapters_) {
    Adapter& it = *adapter;
    ArenaScope scope(run.scratch);
    std::memcpy(it.base->value.data, it.frozen.data, static_cast<size_t>(it.frozen.bytes()));
    ops::matmul_dx_acc(run, as_rows(it.base->value), scaled_b(run, it), it.a,
                       row_offsets(it.base->value));
    it.base->touched();
  }
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
    else if (tunes_adapters(options.tune) && takes_adapter(*param))
      part->trained += adapter_numbers(*param, options.lora_rank);
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
      bytes.moments += 2 * own;
    } else if (tunes_adapters(options.tune) && takes_adapter(*param)) {
      const int64_t adapter = kF32 * adapter_numbers(*param, options.lora_rank);
      bytes.gradients += own;
      bytes.moments += 2 * adapter;
      bytes.adapters += own + 2 * adapter;
    }
  }
  return bytes;
}

std::vector<double> lr_factors(const std::vector<Param*>& params, const TrainOptions& options) {
  std::vector<double> factors;
  std::vector<std::string> parts;
  for (const Param* param : params) {
    const std::string part(name_of(param->part));
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    const auto named = options.lr_times.find(part);
    factors.push_back(named == options.lr_times.end() ? 1 : named->second);
  }
  for (const auto& [part, times] : options.lr_times)
    if (std::find(parts.begin(), parts.end(), part) == parts.end())
      fail_usage("@lr_times {}={}: no such part is trained; there are {}{}", printable(part), times,
                 fmt::join(parts, ", "), suggestion(part, parts));
  return factors;
}

}  // namespace moe
