// Names and the tensors they stand for, in the order of their data: what every file of weights is
// to those who read one. The base of Safetensors and Gguf.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace moe {

struct NamedTensor {
  std::string name;
  Tensor value;  // a view; read-only pages when it comes from a file
  // Why its numbers cannot be had, of a type that nothing here reads; `value` is then its bytes.
  std::string unread = {};
};

class NamedTensors {
 public:
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return by_name_.contains(name); }
  // Fails, naming the file and the nearest name, when it is not there, and where it is of a type
  // that nothing here reads.
  Tensor get(std::string_view name) const;
  std::vector<std::string> names() const;
  const std::string& path() const { return path_; }

 protected:
  explicit NamedTensors(std::string path = {}) : path_(std::move(path)) {}
  // Fails, beginning with `where`, when the name is taken.
  void add(NamedTensor tensor, const std::string& where);
  void add(const std::string& name, Tensor value, const std::string& where) {
    add({name, value}, where);
  }
  // One that was added.
  NamedTensor& added(std::string_view name);

  std::string path_;  // opens the messages of get()

 private:
  std::vector<NamedTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace moe
