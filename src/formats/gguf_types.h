// The numbers that GGUF writes for types of values and tensors (github ggml-org/ggml, docs/gguf.md
// and include/ggml.h). Shared by reader and writer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace moe::gguf {

constexpr std::string_view kMagic = "GGUF";
// written; 2 differs from it in nothing that a little-endian file shows
constexpr uint32_t kVersion = 3;
constexpr uint64_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";
// Of one of several files that are one (github ggml-org/llama.cpp, tools/gguf-split): which, from 0
// on, of how many, and how many tensors they hold together.
constexpr std::string_view kPartKey = "split.no", kPartsKey = "split.count",
                           kPartTensorsKey = "split.tensors.count";
constexpr int64_t kMaxParts = 65535;  // as the keys count
// "NAME-00002-of-00003.gguf"
std::string part_name(std::string_view name, int64_t part, int64_t parts);
constexpr int kMaxRank = 4;

// Types of metadata values.
enum class Kind : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};
constexpr uint32_t kKinds = 13;

// The type of a tensor with this number; nothing when it is not supported here.
std::optional<DType> dtype_of_number(uint32_t number);
// Fails for a type that GGUF has no number for here.
uint32_t number_of(DType dtype);
// "IQ2_XS", or "type 77" where no type of that number is known.
std::string name_of_number(uint32_t number);
// Names of the types that are read, as in "F32, F16".
std::string read_types();

}  // namespace moe::gguf
