#include "hub/gguf/quant_policy.h"

#include <cassert>

#include "core/error.h"

namespace moe {
namespace {

constexpr std::string_view kSmall = "norms, biases, routers and positions stay f32";
constexpr std::string_view kSketch = "a router's sketch is of that type";
constexpr std::string_view kHead = "the head keeps more bits";
constexpr std::string_view kNot256 = "rows are no multiple of 256";
constexpr std::string_view kNot64 = "rows are no multiple of 64";
constexpr std::string_view kNot32 = "rows are no multiple of 32";

bool fits(DType dtype, int64_t cols) { return cols % block_of(dtype).elements == 0; }

// The type whose blocks are smaller and whose error is about that of the one that does not fit.
DType smaller_blocks(DType dtype) {
  switch (dtype) {
    case DType::q2_0:
    case DType::q2_k:
    case DType::q3_k: return DType::q4_0;
    case DType::q4_k: return DType::q5_0;
    case DType::iq4_xs: return DType::iq4_nl;
    case DType::q5_k: return DType::q5_1;
    case DType::q6_k: return DType::q8_0;
    default: return DType::f16;
  }
}

std::string_view no_multiple_of(int64_t block) {
  return block == 256 ? kNot256 : block == 64 ? kNot64 : kNot32;
}

TypeChoice fitting(TypeChoice choice, int64_t cols) {
  while (!fits(choice.dtype, cols)) {
    choice.why = no_multiple_of(block_of(choice.dtype).elements);
    choice.dtype = smaller_blocks(choice.dtype);
  }
  return choice;
}

}  // namespace

WeightKind kind_of(const Model& model, const Param& param) {
  if (is_sketch(param)) return WeightKind::sketch;
  if (param.is_buffer()) return WeightKind::buffer;
  if (!is_large(param)) return WeightKind::small;
  if (param.part == Part::embedding)
    return model.config().tied ? WeightKind::lm_head : WeightKind::embedding;
  return param.part == Part::lm_head ? WeightKind::lm_head : WeightKind::product;
}

TypeChoice choose_type(WeightKind kind, int64_t cols, DType stored, std::optional<DType> asked,
                       Target target) {
  assert(kind != WeightKind::sketch);
  if (kind == WeightKind::buffer) return {DType::f32, kSmall};
  if (target == Target::folder) {
    if (asked) return {*asked, ""};
    // Nothing is rounded that nobody asked to round.
    if (is_quantised(stored)) return {DType::f32, "a folder holds no quantised tensors"};
    return {stored, ""};
  }
  if (kind == WeightKind::small) return {DType::f32, kSmall};
  if (!asked) return {stored, ""};
  if (!is_quantised(*asked)) return {*asked, ""};
  if (kind != WeightKind::lm_head || *asked == DType::q8_0 || *asked == DType::q6_k)
    return fitting({*asked, ""}, cols);
  const TypeChoice head = fitting({DType::q6_k, kHead}, cols);
  return {head.dtype, head.dtype == DType::q6_k || head.dtype == DType::q8_0 ? kHead : head.why};
}

TypeChoice choose_sketch_type(DType own, int64_t cols, Target target) {
  if (target == Target::folder) return {DType::f32, kSketch};
  if (!fits(own, cols)) return {DType::f32, no_multiple_of(block_of(own).elements)};
  return {own, kSketch};
}

void check_asked(DType asked, Target target) {
  if (target == Target::folder && is_quantised(asked))
    fail_usage(
        "a folder holds f32, bf16 or f16, not {}; give OUT a name that ends in .gguf, or leave "
        "@quant out and choose @dtype",
        name_of(asked));
}

}  // namespace moe
