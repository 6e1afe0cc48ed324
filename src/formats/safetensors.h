// Reader and writer of safetensors: 8 bytes of header length (little endian), a JSON header {name:
// {dtype, shape, data_offsets}}, the numbers. Format: https://github.com/huggingface/safetensors
// (README, "Format"). Knows no model: names are only names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/mmap.h"
#include "formats/named_tensors.h"
#include "tensor/tensor.h"

namespace moe {

// Everything a file says, checked: nothing in it can make a view leave the file. Tensors stand in
// the order of their data. dtypes F32, BF16, F16, F8_E4M3, U8, I8, I32, I64, rank up to 4; a rank
// of 0 reads as [1]. Of other dtypes of whole bytes it knows names and sizes only: who gets such a
// tensor is refused (NamedTensor::unread), so that a model may have them where nobody reads them.
class Safetensors : public NamedTensors {
 public:
  // A .safetensors file, or a folder holding model.safetensors or model.safetensors.index.json with
  // its shards.
  static Safetensors open(const std::string& path);
  // Bytes that something else owns and that outlive the result; `where` opens every message.
  static Safetensors from_bytes(std::span<const std::byte> bytes, const std::string& where);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void read(std::span<const std::byte> bytes, const std::string& where);
  void read_index(const std::string& folder, const std::string& index_path);

  std::vector<MappedFile> files_;  // own the bytes that the tensors view
  // own tensors that a file stores at an address their dtype cannot be read from
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::map<std::string, std::string> metadata_;
};

// One tensor of a file to be written.
struct SafetensorsItem {
  std::string name;
  Tensor value;  // may be a view of columns; with `produce` only dtype and shape are looked at
  DType dtype;   // in the file: value.dtype, or f32 / bf16 where it can be converted
  // For a tensor that does not exist in the file's layout (transposed, gathered): called once, when
  // its turn comes; the result has value's dtype and shape and stays valid until the next call.
  std::function<Tensor()> produce = {};
  bool number = false;  // [1], which the file has without dimensions, as transformers a buffer
};

// Whole or not at all (core/file.h), streamed: besides the tensors themselves only a small buffer
// is held. Same input, same bytes. Tensors are laid out by element size, largest first, else in the
// order given, so that each is aligned; the data starts at a multiple of 64. "format": "pt" is
// added to the metadata, which transformers asks for.
void write_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {});

// Only calls what produces items, in the order in which write_safetensors does.
void produce_in_order(const std::vector<SafetensorsItem>& items);

// The same file from tensors that grow side by side: their parts are given in any order and go to
// disk at once, so that nothing has to be held.
class SafetensorsWriter {
 public:
  // What will come: of `value` only dtype and shape are looked at, and it is written in that dtype.
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsItem>& items,
                    const std::map<std::string, std::string>& metadata = {});
  // The numbers [first, first + part.numel()) of a tensor, counted row by row; `part` is dense.
  void put(std::string_view name, int64_t first, Tensor part);
  // Fails unless as many numbers were given as were announced.
  void commit();

 private:
  struct Place {
    uint64_t offset;
    Tensor shape;
  };
  std::string path_;
  std::map<std::string, Place, std::less<>> places_;
  uint64_t missing_ = 0;  // bytes not given yet
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace moe
