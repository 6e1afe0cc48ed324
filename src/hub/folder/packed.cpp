#include "hub/folder/packed.h"

#include <algorithm>

#include "core/error.h"
#include "core/nearest.h"
#include "tensor/quant.h"

namespace moe {
namespace {

// What compressed-tensors and ModelOpt keep of what goes into a product and comes out, and of
// caches.
constexpr std::string_view kOfActivations[] = {".input_global_scale",
                                               ".input_scale",
                                               "_proj_input_scale",
                                               ".input_zero_point",
                                               ".output_scale",
                                               ".output_zero_point",
                                               ".q_scale",
                                               ".q_zero_point",
                                               ".k_scale",
                                               ".k_zero_point",
                                               ".v_scale",
                                               ".v_zero_point"};

constexpr std::string_view kBias = ".bias", kOfGptq = ".qweight";

std::string with_end(std::string_view name, std::string_view end, std::string_view instead) {
  return std::string(name.substr(0, name.size() - end.size())) + std::string(instead);
}

bool is_one_of(std::span<const DType> types, DType type) {
  return std::ranges::find(types, type) != types.end();
}

const PackedForm* packed_form_of(const Safetensors& file, const NamedTensor& tensor,
                                 Packing::Kind kind) {
  for (const PackedForm& form : packed_forms()) {
    if (form.kind != kind || !form.has_numbers_in(tensor.name, tensor.value.dtype)) continue;
    if (form.types_of_first.empty()) return &form;
    const std::string first = with_end(tensor.name, form.numbers, form.parts[0].ends);
    if (file.contains(first) && is_one_of(form.types_of_first, file.get(first).dtype)) return &form;
  }
  return nullptr;
}

std::string name_of_weight(const NamedTensor& numbers, const PackedForm& form) {
  return with_end(numbers.name, form.numbers, form.weight);
}

// A weight's name without the number of the expert: experts that stand one by one make up one bank,
// whose matrices are multiplied in one type.
std::string bank_of(std::string weight) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = weight.find(kExperts);
  if (at == std::string::npos) return weight;
  const size_t begin = at + kExperts.size(), end = weight.find_first_not_of("0123456789", begin);
  return weight.erase(begin, end == std::string::npos ? end : end - begin);
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
  for (const NamedTensor& tensor : file_->tensors())
    if (const PackedForm* form = packed_form_of(*file_, tensor, packing.kind))
      add_weight(tensor, *form, packing);
    else add_plain(tensor, packing.kind);
  for (const PackedWeight& weight : packed_) {
    if (!weight.in_type_of_bank) continue;
    Tensor& value = added(weight.name).value;
    value.dtype = types_.at(bank_of(weight.name));
    value.row_bytes = bytes_of(value.dtype, value.cols());
  }
}

void UnpackedTensors::add_weight(const NamedTensor& numbers, const PackedForm& form,
                                 const Packing& packing) {
  const PackedParts parts = parts_of(numbers, form);
  const std::string name = name_of_weight(numbers, form);
  if (form.unpack != nullptr) {
    add(name, form.shape(parts), path());
    packed_.push_back({name, false, [parts, make = form.unpack](DType, const MemoryOfWeights& to) {
                         return make(parts, to);
                       }});
    return;
  }
  PackedMatrix matrix = form.read(parts, packing);
  const DType least = least_type(matrix);
  const auto [type, is_new] = types_.try_emplace(bank_of(name), least);
  if (!is_new) type->second = common_type(type->second, least, matrix.wide);
  add(name, weight_of(matrix, least), path());
  packed_.push_back({name, true, [matrix = std::move(matrix)](DType as, const MemoryOfWeights& to) {
                       return moe::unpack(matrix, as, to);
                     }});
}

void UnpackedTensors::add_plain(const NamedTensor& tensor, Packing::Kind kind) {
  const std::string& name = tensor.name;
  if (is_consumed(name, kind)) return;
  add(tensor, path());
  if (kind == Packing::Kind::gptq && name.ends_with(kBias) &&
      file_->contains(with_end(name, kBias, kOfGptq)) && is_all_zeros(tensor.value))
    biases_of_zeros_.push_back(name);
}

void UnpackedTensors::unpack(const IsWanted& is_wanted) {
  const MemoryOfWeights memory = [this](int64_t bytes) { return allocate(bytes); };
  for (PackedWeight& weight : packed_) {
    NamedTensor& tensor = added(weight.name);
    if (is_wanted(weight.name)) tensor.value = weight.unpack(tensor.value.dtype, memory);
    else tensor.unread = "it is packed, and nothing was said to want its numbers";
    weight = {};  // its scales go as the weights come
  }
  packed_.clear();
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
  return (kind == Packing::Kind::compressed || kind == Packing::Kind::modelopt) &&
         std::ranges::any_of(kOfActivations,
                             [&](std::string_view end) { return name.ends_with(end); });
}

PackedParts UnpackedTensors::parts_of(const NamedTensor& numbers, const PackedForm& form) const {
  PackedParts parts{.where = path(), .name = numbers.name, .numbers = file_->get(numbers.name)};
  for (const PackedForm::Part& part : form.parts) {
    if (part.is == nullptr) continue;
    const std::string name = with_end(numbers.name, form.numbers, part.ends);
    if (file_->contains(name)) parts.*part.is = file_->get(name);
    else if (part.needed)
      fail("{}: tensor \"{}\" has no \"{}\" beside it", path(), printable(numbers.name),
           printable(name));
  }
  return parts;
}

void* UnpackedTensors::allocate(int64_t bytes) {
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(
      static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return memory_.back().get();
}

}  // namespace moe
