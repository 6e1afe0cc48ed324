// Reader and writer of GGUF, llama.cpp's file of weights: typed metadata, then tensors (github
// ggml-org/ggml, docs/gguf.md). Knows no model: keys are only keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/mmap.h"
#include "formats/named_tensors.h"

namespace moe {

// A metadata value. Integers of any width are int64_t (a u64 beyond it is refused), floats double.
// Arrays are of one kind; arrays of arrays are refused.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<bool>,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

// Everything a file says, checked: nothing in it can make a view leave the file. A tensor's shape
// is in our order, rows of [.., cols]: GGUF's dimensions reversed, so that
// `blk.0.ffn_up_exps.weight` is [E,F,D]. Versions 2 and 3, little endian; alignment as the file
// says.
class Gguf : public NamedTensors {
 public:
  // A file, or the first of several ("NAME-00001-of-00003.gguf") with the others beside it, which
  // then are one.
  static Gguf open(const std::string& path);
  // Bytes that something else owns and that outlive the result; `where` opens every message.
  static Gguf from_bytes(std::span<const std::byte> bytes, const std::string& where);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  bool has(std::string_view key) const { return metadata_.contains(key); }
  // Typed reading. Each fails, naming file, key and what stands there, when the key is missing or
  // of another kind.
  bool flag(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  double number(std::string_view key) const;  // an integer counts too; must be finite
  const std::string& text(std::string_view key) const;
  const std::vector<std::string>& texts(std::string_view key) const;
  const std::vector<int64_t>& integers(std::string_view key) const;
  const std::vector<double>& numbers(std::string_view key) const;
  const std::vector<bool>& flags(std::string_view key) const;
  // The bytes of a key's value as they stand in the file, its type in front.
  std::string_view stored(std::string_view key) const;

 private:
  static Gguf open_one(const std::string& path);
  void read(std::span<const std::byte> bytes);
  void read_others();
  const GgufValue& value(std::string_view key) const;
  template <class T>
  const T& typed(std::string_view key, const char* wanted) const;

  MappedFile file_;
  std::vector<Gguf> others_;  // behind the first of several files
  // own tensors that a file stores at an address their dtype cannot be read from
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string_view, std::string_view> stored_;  // by the same keys, which are views
};

// A metadata entry to be written, with the type that GGUF has for it where llama.cpp insists on
// one.
struct GgufEntry {
  enum class Type {
    u16,
    u32,
    i32,
    f32,
    boolean,
    string,
    u64,
    strings,
    f32s,
    i32s,
    u32s,
    u8s,
    booleans,
    as_stored  // a string: what Gguf::stored() gives
  };
  std::string key;
  Type type;
  GgufValue value;
};

// One tensor of a file to be written.
struct GgufItem {
  std::string name;
  DType dtype;                 // in the file
  std::vector<int64_t> shape;  // in our order
  // Called once for each part of the tensor when its turn comes, parts in order, until all rows are
  // there: rows of f32 that the writer quantises, or of `dtype` as they are. The result stays valid
  // until the next call.
  std::function<Tensor(int64_t part)> produce;
};

// Whole or not at all (core/file.h), streamed: besides one part of one tensor only a small buffer
// is held. Same input, same bytes; threads share the quantising.
void write_gguf(const std::string& path, const std::vector<GgufEntry>& metadata,
                const std::vector<GgufItem>& items, int threads = 1);

// Where tensors go that are to lie in files of at most so many bytes of them each, a larger tensor
// in one of its own: NAME-00001-of-00003.gguf and so on for a path NAME.gguf, or that path alone
// where all fit or `most` is 0.
struct GgufPart {
  std::string path;
  size_t begin, end;  // which of the items
};
std::vector<GgufPart> gguf_parts(const std::string& path, const std::vector<GgufItem>& items,
                                 int64_t most);
// The same as write_gguf in such files. The first one, which opens all, takes its name last, and an
// earlier one of its name is gone before the others are replaced.
void write_gguf(const std::vector<GgufPart>& parts, std::vector<GgufEntry> metadata,
                const std::vector<GgufItem>& items, int threads = 1);

}  // namespace moe
