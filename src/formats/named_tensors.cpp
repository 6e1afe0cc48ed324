#include "formats/named_tensors.h"

#include "core/error.h"
#include "core/nearest.h"

namespace moe {

void NamedTensors::add(const std::string& name, Tensor value, const std::string& where) {
  if (!by_name_.emplace(name, tensors_.size()).second)
    fail("{}: tensor \"{}\" is there twice", where, printable(name));
  tensors_.push_back({name, value});
}

Tensor NamedTensors::get(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    fail("{}: there is no tensor \"{}\"{}", path_, printable(name), suggestion(name, names(), 0));
  return tensors_[found->second].value;
}

std::vector<std::string> NamedTensors::names() const {
  std::vector<std::string> out;
  for (const NamedTensor& tensor : tensors_) out.push_back(tensor.name);
  return out;
}

}  // namespace moe
