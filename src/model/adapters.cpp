#include "model/adapters.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/threads.h"
#include "tensor/quant.h"

namespace moe {

Adapter& Adapters::add(Param& base, const TermShape& shape, bool grads) {
  if (base.term != nullptr)
    fail("{} has an adapter already; merge that one first (convert with it as @adapter)",
         base.name);
  const Tensor& w = base.value;
  LowRankTerm term{nullptr, nullptr, shape.scale, shape.experts};
  if (w.rank == 3 && std::ssize(term.experts) == w.shape[0]) term.experts.clear();
  const int64_t each = term.experts.empty() ? w.shape[0] : std::ssize(term.experts),
                pairs = w.rank < 3 || shape.shared ? 0 : each;
  const auto alloc = [&](int64_t rows, int64_t cols) {
    return pairs > 0 ? memory_.alloc_zeroed(DType::f32, {pairs, rows, cols})
                     : memory_.alloc_zeroed(DType::f32, {rows, cols});
  };
  Adapter& adapter = *all_.emplace_back(std::make_unique<Adapter>());
  adapter.base = &base;
  adapter.a.name = base.name + ".lora_A";
  adapter.b.name = base.name + ".lora_B";
  adapter.a.value = alloc(shape.rank, w.cols());
  adapter.b.value = alloc(w.shape[w.rank - 2], shape.rank);
  for (Param* half : {&adapter.a, &adapter.b}) {
    half->part = base.part;
    half->kind = base.kind;
    half->layer = base.layer;
    if (grads) half->grad = alloc(half->value.shape[half->value.rank - 2], half->value.cols());
  }
  term.a = &adapter.a;
  term.b = &adapter.b;
  adapter.term = std::move(term);
  base.term = &adapter.term;
  return adapter;
}

TokenRows& Adapters::add_rows(Param& base, std::vector<int64_t> ids, bool grads) {
  if (base.own_rows != nullptr)
    fail("{} has rows of an adapter already; merge that one first (convert with it as @adapter)",
         base.name);
  const Tensor& w = base.value;
  TokenRows& made = *rows_.emplace_back(std::make_unique<TokenRows>());
  made.base = &base;
  made.rows.name = base.name + ".token_rows";
  made.rows.part = base.part;
  made.rows.kind = base.kind;
  made.rows.value = memory_.alloc_zeroed(DType::f32, {std::ssize(ids), w.cols()});
  if (grads) made.rows.grad = memory_.alloc_zeroed(DType::f32, {std::ssize(ids), w.cols()});
  for (int64_t t = 0; t < std::ssize(ids); ++t)
    dequantise(made.rows.value.row<float>(t),
               static_cast<const char*>(w.data) + ids[static_cast<size_t>(t)] * w.row_bytes,
               w.dtype, w.cols());
  made.own = {&made.rows, std::move(ids)};
  base.own_rows = &made.own;
  return made;
}

void Adapters::take_off() {
  for (const auto& adapter : all_) adapter->base->term = nullptr;
  for (const auto& made : rows_) made->base->own_rows = nullptr;
}

void Adapters::hang() {
  for (const auto& adapter : all_) adapter->base->term = &adapter->term;
  for (const auto& made : rows_) made->base->own_rows = &made->own;
}

int32_t AdapterChoice::add(std::shared_ptr<Adapters> adapters) {
  adapters->take_off();
  all_.push_back(std::move(adapters));
  return count();
}

void AdapterChoice::choose(int32_t which) {
  if (which == chosen_) return;
  if (chosen_ > 0) all_[static_cast<size_t>(chosen_ - 1)]->take_off();
  if (which > 0) all_[static_cast<size_t>(which - 1)]->hang();
  chosen_ = which;
}

void merge_terms(Model& model, int threads) {
  for (Param* param : model.params()) {
    if (!param->is_adapted()) continue;
    model.own(*param, threads);
    const Tensor w = param->value;
    const int64_t rows = w.rows() / w.matrices();
    parallel_for(threads, w.rows(), 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        adapt_row({w.as<float>() + r * w.cols(), static_cast<size_t>(w.cols())}, *param, r / rows,
                  r % rows);
    });
    param->term = nullptr;
    param->own_rows = nullptr;
    param->touched();
  }
}

void adapt_row(std::span<float> row, const Param& w, int64_t expert, int64_t o) {
  if (w.own_rows != nullptr)
    if (const int64_t place = w.own_rows->place_of(o); place >= 0)
      std::copy_n(w.own_rows->rows->value.row<float>(place), row.size(), row.begin());
  if (w.term == nullptr) return;
  const int64_t pair = w.term->pair_of(expert);
  if (pair < 0) return;
  const Tensor a = w.term->a->expert(pair), b = w.term->b->expert(pair);
  for (int64_t k = 0; k < b.cols(); ++k) {
    const float by = w.term->scale * b.row<float>(o)[k];
    const float* from = a.row<float>(k);
    for (size_t i = 0; i < row.size(); ++i) row[i] += by * from[i];
  }
}

}  // namespace moe
