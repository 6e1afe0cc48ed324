#include "hub/folder/packed.h"

#include <algorithm>

#include "core/error.h"
#include "core/nearest.h"
#include "tensor/quant.h"

namespace moe {
namespace {

// What compressed-tensors keeps of what goes into a product and comes out, and of caches.
constexpr std::string_view kOfActivations[] = {
    ".input_scale",  ".input_zero_point", ".output_scale", ".output_zero_point", ".q_scale",
    ".q_zero_point", ".k_scale",          ".k_zero_point", ".v_scale",           ".v_zero_point"};

constexpr std::string_view kBias = ".bias", kOfGptq = ".qweight";

std::string with_end(std::string_view name, std::string_view end, std::string_view instead) {
  return std::string(name.substr(0, name.size() - end.size())) + std::string(instead);
}

const PackedForm* packed_form_of(const NamedTensor& tensor, Packing::Kind kind) {
  for (const PackedForm& form : packed_forms())
    if (form.kind == kind && form.has_numbers_in(tensor.name, tensor.value.dtype)) return &form;
  return nullptr;
}

bool is_all_zeros(const Tensor& t) {
  if (!holds_weights(t.dtype)) return false;
  std::vector<float> numbers(static_cast<size_t>(t.numel()));
  dequantise(numbers.data(), t.data, t.dtype, t.numel());
  return std::ranges::all_of(numbers, [](float x) { return x == 0; });
}

}  // namespace

UnpackedTensors::UnpackedTensors(std::shared_ptr<const Safetensors> file, const Packing& packing)
    : NamedTensors(file->path()), file_(std::move(file)) {
  for (const NamedTensor& tensor : file_->tensors()) {
    const std::string& name = tensor.name;
    if (const PackedForm* form = packed_form_of(tensor, packing.kind)) {
      add_packed(tensor, *form, packing);
      continue;
    }
    if (is_consumed(name, packing.kind)) continue;
    add(tensor, path());
    if (packing.kind == Packing::Kind::gptq && name.ends_with(kBias) &&
        file_->contains(with_end(name, kBias, kOfGptq)) && is_all_zeros(tensor.value))
      biases_of_zeros_.push_back(name);
  }
}

// Whether the tensor is a part of a weight whose numbers are another, or changes no weight. Fails
// for a part without numbers.
bool UnpackedTensors::is_consumed(std::string_view name, Packing::Kind kind) const {
  std::string alone;  // the weight that a part without numbers would be of
  for (const PackedForm& form : packed_forms())
    for (const PackedForm::Part& part : form.parts) {
      if (form.kind != kind || part.is == nullptr || !name.ends_with(part.ends)) continue;
      const std::string numbers = with_end(name, part.ends, form.numbers);
      if (file_->contains(numbers) && form.has_numbers_in(numbers, file_->get(numbers).dtype))
        return true;
      alone = with_end(name, part.ends, form.weight);
    }
  if (!alone.empty())
    fail("{}: tensor \"{}\" has no packed \"{}\" beside it", path(), printable(name),
         printable(alone));
  return kind == Packing::Kind::compressed &&
         std::ranges::any_of(kOfActivations,
                             [&](std::string_view end) { return name.ends_with(end); });
}

void UnpackedTensors::add_packed(const NamedTensor& numbers, const PackedForm& form,
                                 const Packing& packing) {
  PackedParts parts{.where = path(), .name = numbers.name, .numbers = file_->get(numbers.name)};
  for (const PackedForm::Part& part : form.parts) {
    if (part.is == nullptr) continue;
    const std::string name = with_end(numbers.name, form.numbers, part.ends);
    if (file_->contains(name)) parts.*part.is = file_->get(name);
    else if (part.needed)
      fail("{}: tensor \"{}\" has no \"{}\" beside it", path(), printable(numbers.name),
           printable(name));
  }
  add(with_end(numbers.name, form.numbers, form.weight),
      form.unpack(parts, packing, [this](int64_t bytes) { return allocate(bytes); }), path());
}

void* UnpackedTensors::allocate(int64_t bytes) {
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(
      static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return memory_.back().get();
}

}  // namespace moe
