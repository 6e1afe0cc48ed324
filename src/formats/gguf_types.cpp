#include "formats/gguf_types.h"

#include <vector>

#include "core/error.h"

namespace moe::gguf {
namespace {

struct Type {
  uint32_t number;
  std::string_view name;
  std::optional<DType> dtype;
};
// ggml.h, enum ggml_type; the missing numbers were given up.
constexpr Type kTypes[] = {
    {0, "F32", DType::f32},
    {1, "F16", DType::f16},
    {2, "Q4_0", DType::q4_0},
    {3, "Q4_1", DType::q4_1},
    {6, "Q5_0", DType::q5_0},
    {7, "Q5_1", DType::q5_1},
    {8, "Q8_0", DType::q8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", DType::q2_k},
    {11, "Q3_K", DType::q3_k},
    {12, "Q4_K", DType::q4_k},
    {13, "Q5_K", DType::q5_k},
    {14, "Q6_K", DType::q6_k},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", DType::iq2_xxs},
    {17, "IQ2_XS", DType::iq2_xs},
    {18, "IQ3_XXS", DType::iq3_xxs},
    {19, "IQ1_S", DType::iq1_s},
    {20, "IQ4_NL", DType::iq4_nl},
    {21, "IQ3_S", DType::iq3_s},
    {22, "IQ2_S", DType::iq2_s},
    {23, "IQ4_XS", DType::iq4_xs},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", DType::i32},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", DType::iq1_m},
    {30, "BF16", DType::bf16},
    {34, "TQ1_0", DType::tq1_0},
    {35, "TQ2_0", DType::tq2_0},
    {39, "MXFP4", DType::mxfp4},
    {40, "NVFP4", {}},
    {41, "Q1_0", DType::q1_0},
    {42, "Q2_0", DType::q2_0},
};

}  // namespace

std::optional<DType> dtype_of_number(uint32_t number) {
  for (const Type& type : kTypes)
    if (type.number == number) return type.dtype;
  return std::nullopt;
}

uint32_t number_of(DType dtype) {
  for (const Type& type : kTypes)
    if (type.dtype == dtype) return type.number;
  fail("GGUF cannot hold {}", name_of(dtype));
}

std::string read_types() {
  std::vector<std::string_view> names;
  for (const Type& type : kTypes)
    if (type.dtype) names.push_back(type.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string part_name(std::string_view name, int64_t part, int64_t parts) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name, part + 1, parts);
}

std::string name_of_number(uint32_t number) {
  for (const Type& type : kTypes)
    if (type.number == number) return std::string(type.name);
  return fmt::format("type {}", number);
}

}  // namespace moe::gguf
