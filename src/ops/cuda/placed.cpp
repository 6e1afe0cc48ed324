#include "ops/cuda/placed.h"

#include <cstring>

namespace moe::ops::cuda {
namespace {

// Rows without gaps.
Tensor like(Arena& arena, const Tensor& t) {
  Tensor copy = t;
  copy.row_bytes = bytes_of(t.dtype, t.cols());
  copy.data = arena.alloc_bytes(static_cast<size_t>(copy.bytes()));
  return copy;
}

}  // namespace

Placement::~Placement() {
  for (const auto& p : params_) {
    if (!p->value.empty()) {
      if (p->bound) p->param->bind(p->old_value, p->places);
      else p->param->own(p->old_value);
    }
    p->param->grad = p->old_grad;
  }
}

// Numbers of one tensor to where another's are; row by row where there are gaps.
void Placement::move(const Tensor& to, const Tensor& from) {
  const bool up = run_.device->owns(to.data), down = run_.device->owns(from.data);
  const auto bring = [&](void* there, const void* here, size_t bytes) {
    if (up && down) run_.device->copy(there, here, bytes);
    else if (up) run_.device->upload(there, here, bytes);
    else if (down) run_.device->download(there, here, bytes);
    else std::memcpy(there, here, bytes);
  };
  if (to.dense() && from.dense()) return bring(to.data, from.data, static_cast<size_t>(to.bytes()));
  const auto bytes = static_cast<size_t>(bytes_of(to.dtype, to.cols()));
  for (int64_t r = 0; r < to.rows(); ++r)
    bring(static_cast<char*>(to.data) + r * to.row_bytes,
          static_cast<const char*>(from.data) + r * from.row_bytes, bytes);
}

Tensor Placement::at(const Tensor& t) {
  if (t.empty() || is_there(t.data)) return t;
  for (const Moved& m : moved_)
    if (m.original.data == t.data && m.original.row_bytes == t.row_bytes &&
        m.original.numel() == t.numel() && m.original.dtype == t.dtype) {
      Tensor copy = t;
      copy.data = m.copy.data;
      copy.row_bytes = m.copy.row_bytes * t.cols() / m.original.cols();
      return copy;
    }
  const Tensor copy = like(memory(), t);
  move(copy, t);
  moved_.push_back({t, copy});
  return copy;
}

GatheredRows Placement::at(const GatheredRows& rows) {
  GatheredRows there(at(rows.x), at(rows.row));
  return rows.listed() ? there : GatheredRows(there.x);
}

Param& Placement::at(Param& param) {
  if (param.term != nullptr) at(*param.term->a), at(*param.term->b);
  if (param.own_rows != nullptr) at(*param.own_rows->rows);
  const bool value = !param.value.empty() && !is_there(param.expert(0).data),
             grad = !param.grad.empty() && !is_there(param.expert_grad(0).data);
  if (!value && !grad) return param;
  auto moved = std::make_unique<MovedParam>(
      MovedParam{&param, {}, {}, param.value, param.grad, param.places(), param.is_bound()});
  if (value) {
    moved->value = like(memory(), param.value);
    for (int64_t e = 0; e < param.value.matrices(); ++e)
      move(moved->value.matrix(e), param.expert(e));
  }
  if (grad) {
    moved->grad = like(memory(), param.grad);
    for (int64_t e = 0; e < param.grad.matrices(); ++e)
      move(moved->grad.matrix(e), param.expert_grad(e));
  }
  if (value && param.is_bound()) param.bind(moved->value);
  else if (value) param.own(moved->value);
  if (grad) param.grad = moved->grad;
  params_.push_back(std::move(moved));
  return param;
}

List<Operand> Placement::at(const List<Operand>& all) {
  auto moved = std::make_unique<std::vector<Operand>>();
  for (const Operand& o : all) moved->push_back({at(o.w), at(o.y)});
  operands_.push_back(std::move(moved));
  return std::span<const Operand>(*operands_.back());
}

List<Tensor> Placement::at(const List<Tensor>& all) {
  auto moved = std::make_unique<std::vector<Tensor>>();
  for (const Tensor& t : all) moved->push_back(at(t));
  tensors_.push_back(std::move(moved));
  return std::span<const Tensor>(*tensors_.back());
}

RoutingPlan Placement::at(const RoutingPlan& plan) {
  return {at(plan.token), at(plan.offsets), at(plan.bounds),
          at(plan.row),   at(plan.pair),    at(plan.weight)};
}

KvView Placement::at(const KvView& kv) {
  KvView there = kv;
  there.k = at(kv.k);
  there.v = at(kv.v);
  return there;
}

void Placement::result(RoutingPlan& plan) {
  if (run_.saved.device() != nullptr) return;
  const auto list = [&](auto from) {
    using T = std::remove_const_t<typename decltype(from)::value_type>;
    auto* to = static_cast<T*>(run_.saved.alloc_bytes(from.size_bytes()));
    run_.device->download(to, from.data(), from.size_bytes());
    return decltype(from)(to, from.size());
  };
  plan = {list(plan.token), list(plan.offsets), list(plan.bounds),
          list(plan.row),   list(plan.pair),    plan.weight};
  const Tensor weight = run_.saved.alloc(DType::f32, {plan.weight.numel()});
  move(weight, plan.weight);
  plan.weight = weight;
}

void Placement::finish() {
  for (const Moved& m : moved_) move(m.original, m.copy);
  for (const auto& p : params_) {
    const bool written = !p->value.empty() && !p->bound;
    if (written) move(p->old_value, p->value);
    if (p->grad.empty()) continue;
    p->param->grad = p->old_grad;
    for (int64_t e = 0; e < p->grad.matrices(); ++e)
      move(p->param->expert_grad(e), p->grad.matrix(e));
  }
}

}  // namespace moe::ops::cuda
