#include "convert/assembly.h"

#include <algorithm>

#include "core/error.h"
#include "tensor/quant.h"

namespace moe {
namespace {

Tensor like(const Tensor& shape, void* data, DType dtype) {
  Tensor t = shape;
  t.data = data;
  t.dtype = dtype;
  t.row_bytes = bytes_of(dtype, t.cols());
  return t;
}

}  // namespace

bool can_be_bank(const Param& to, const std::vector<Tensor>& matrices) {
  return to.value.rank == 3 && std::all_of(matrices.begin(), matrices.end(), [&](const Tensor& m) {
           return m.dtype == matrices[0].dtype && m.dense();
         });
}

std::string_view words_of(Part part) {
  switch (part) {
    case Part::router: return "routers";
    case Part::shared: return "shared experts";
    case Part::dense_ffn: return "FFNs";
    case Part::none:
    case Part::embedding:
    case Part::positions:
    case Part::lm_head: return "embedding and head";
    case Part::norms:
    case Part::attention:
    case Part::experts: break;
  }
  return name_of(part);
}

const Param& source_of(const Param& to, const Model& source) {
  return source_of(to, source, to.part);
}

const Param& source_of(const Param& to, const Model& source, Part part) {
  const Param* from = source.find(part, to.kind, to.layer, to.is_bias());
  if (from == nullptr) fail("there is nothing that could become \"{}\"", to.name);
  return *from;
}

ModelConfig without_experts(ModelConfig dense) {
  if (dense.norm_gate > 0)
    fail_usage(
        "gates stand behind the model's norms, which layers that route have before their FFNs too, "
        "and of those there are none to take; take a model without such gates");
  dense.shared_experts = dense.shared_width = 0;
  dense.shared_gate = dense.shared_average = dense.expert_down_bias = dense.moe_out_norm = false;
  dense.experts_held = false;
  dense.weigh_inputs = dense.shortcut = false;
  return dense;
}

int64_t numbers_of(const Model& model) {
  int64_t numbers = 0;
  for (const Param* param : model.params()) numbers += param->value.numel();
  return numbers;
}

Tensor expert_of(const Param& param, int64_t e) {
  return param.value.rank == 3 ? param.expert(e) : param.value.at(e);
}

void copy_numbers(float* out, const Tensor& from) {
  for (int64_t r = 0; r < from.rows(); ++r)
    dequantise(out + r * from.cols(), static_cast<const char*>(from.data) + r * from.row_bytes,
               from.dtype, from.cols());
}

void Assembly::enter(std::string_view part, const std::string& became, int64_t before,
                     int64_t after) {
  auto row = std::find_if(account_.begin(), account_.end(),
                          [&](const PartFate& f) { return f.part == part && f.became == became; });
  if (row == account_.end()) row = account_.insert(row, {std::string(part), became});
  row->before += before;
  row->after += after;
}

void Assembly::bind(Param& to, Tensor value, std::vector<const void*> places,
                    const std::string& became, int64_t before) {
  if (!to.value.empty())
    fail("the account does not come out: \"{}\" would be given its numbers twice", to.name);
  model_->bind(to, value, std::move(places));
  enter(words_of(to.part), became, before, to.value.numel());
}

void Assembly::view(Param& to, const Param& from, const std::string& became) {
  Tensor value = from.value;
  if (value.rank != to.value.rank || value.shape != to.value.shape)
    fail("\"{}\" is {}, which cannot become {}", from.name, describe(value), describe(to.value));
  bind(to, value, from.places(), became, value.numel());
}

Tensor Assembly::own(Param& to, const std::string& became, int64_t before, DType dtype) {
  bind(to, model_->allocate_like(to.value, dtype), {}, became, before);
  return to.value;
}

void Assembly::start_routers(int64_t layer) {
  for (Param* param : model_->params()) {
    if (param->part != Part::router || !param->value.empty() ||
        (layer >= 0 && param->layer != layer))
      continue;
    const bool one = param->role == Role::norm;
    const Tensor out = own(*param, one ? "1" : "0", 0);
    std::fill_n(out.as<float>(), out.numel(), one ? 1.0f : 0.0f);
  }
}

void Assembly::bank(Param& to, const std::vector<Tensor>& matrices, const std::string& became,
                    int64_t before) {
  const Tensor shape = to.value;
  const int64_t each = shape.numel() / shape.shape[0];
  if (static_cast<int64_t>(matrices.size()) != shape.shape[0])
    fail("\"{}\" has {} experts, but {} are given", to.name, shape.shape[0], matrices.size());
  for (const Tensor& m : matrices)
    if (m.numel() != each || m.cols() != shape.cols())
      fail("an expert of \"{}\" is {}, which does not fit {}", to.name, describe(m),
           describe(shape));
  if (can_be_bank(to, matrices)) {
    std::vector<const void*> places;
    for (const Tensor& m : matrices) places.push_back(m.data);
    const Tensor value = like(shape, matrices[0].data, matrices[0].dtype);
    return bind(to, value, std::move(places), became, before);
  }
  float* out = own(to, became, before).as<float>();
  for (size_t e = 0; e < matrices.size(); ++e)
    copy_numbers(out + static_cast<int64_t>(e) * each, matrices[e]);
}

void Assembly::rows(Param& to, const Param& from, std::span<const int64_t> chosen,
                    const std::string& became) {
  const int64_t each = to.value.numel() / to.value.shape[0];
  float* out = own(to, became, static_cast<int64_t>(chosen.size()) * each).as<float>();
  for (const int64_t row : chosen) {
    if (from.value.rank == 1) *out = from.value.as<float>()[row];
    else copy_numbers(out, from.value.at(row));
    out += each;
  }
}

void Assembly::drop(std::string_view part, const std::string& why, int64_t numbers) {
  enter(part, why, numbers, 0);
}

std::unique_ptr<Model> Assembly::finish(int64_t sources) {
  int64_t before = 0;
  for (const PartFate& fate : account_) before += fate.before;
  for (const Param* param : model_->params())
    if (param->value.empty())
      fail("the account does not come out: nothing became \"{}\"", param->name);
  if (before != sources)
    fail("the account does not come out: {} numbers went in, {} are accounted for", sources,
         before);
  return std::move(model_);
}

}  // namespace moe
