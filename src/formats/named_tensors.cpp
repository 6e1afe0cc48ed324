#include "formats/named_tensors.h"

#include <utility>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {

void NamedTensors::add(NamedTensor tensor, const std::string& where) {
  if (!by_name_.emplace(tensor.name, tensors_.size()).second)
    fail("{}: tensor \"{}\" is there twice", where, printable(tensor.name));
  tensors_.push_back(std::move(tensor));
}

NamedTensor& NamedTensors::added(std::string_view name) {
  return tensors_[by_name_.find(name)->second];
}

Tensor NamedTensors::get(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    fail("{}: there is no tensor \"{}\"{}", path_, printable(name), suggestion(name, names(), 0));
  const NamedTensor& tensor = tensors_[found->second];
  if (!tensor.unread.empty()) fail("{}: tensor \"{}\": {}", path_, printable(name), tensor.unread);
  return tensor.value;
}

std::vector<std::string> NamedTensors::names() const {
  std::vector<std::string> out;
  for (const NamedTensor& tensor : tensors_) out.push_back(tensor.name);
  return out;
}

}  // namespace moe
