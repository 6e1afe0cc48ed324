#include "api/arrays.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/nearest.h"

namespace moe::api {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;  // of a size: products of three stay in 64 bits

std::optional<DType> tensor_dtype(moe_dtype dtype) {
  switch (dtype) {
    case MOE_F32: return DType::f32;
    case MOE_BF16: return DType::bf16;
    case MOE_I32: return DType::i32;
    case MOE_I64: return {};
  }
  return {};
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i > 0 ? ", " : "") +
            (shape[i] == Arrays::kAny ? std::string("any") : std::to_string(shape[i]));
  return text + "]";
}

std::string dtype_text(moe_dtype dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "i32", "i64"};
  return dtype >= MOE_F32 && dtype <= MOE_I64 ? kNames[dtype] : "of no known type";
}

int64_t whole_at(const moe_array& a, int64_t at) {
  return a.dtype == MOE_I64 ? static_cast<const int64_t*>(a.data)[at]
                            : static_cast<const int32_t*>(a.data)[at];
}

}  // namespace

Arrays::Arrays(const moe_array* arrays, size_t count, const char* function)
    : arrays_(arrays, count), function_(function) {
  if (count > 0 && arrays == nullptr) fail_usage("{}: arrays is NULL", function_);
  for (const moe_array& a : arrays_) {
    if (a.name == nullptr) fail_usage("{}: an array has no name", function_);
    if (a.rank < 1 || a.rank > 3)
      fail_usage("{}: {} has {} dimensions; 1 to 3 are taken", function_, printable(a.name),
                 a.rank);
    for (int i = 0; i < a.rank; ++i)
      if (a.shape[i] < 0 || a.shape[i] > kLargest || a.stride[i] < 0 || a.stride[i] > kLargest)
        fail_usage("{}: {} has a size of {} and a stride of {}; neither may be negative", function_,
                   printable(a.name), a.shape[i], a.stride[i]);
  }
}

const moe_array* Arrays::look(std::string_view name) {
  asked_.emplace(name);
  for (const moe_array& a : arrays_)
    if (name == a.name) return &a;
  return nullptr;
}

const moe_array* Arrays::look(std::string_view name, Shape shape) {
  const moe_array* a = look(name);
  if (a == nullptr) return nullptr;
  const std::span<const int64_t> is(a->shape, static_cast<size_t>(a->rank));
  if (!std::equal(is.begin(), is.end(), shape.begin(), shape.end(),
                  [](int64_t has, int64_t wants) { return wants == kAny || has == wants; }))
    fail_usage("{}: {} has the shape {}; {} is needed", function_, name, shape_text(is),
               shape_text(shape));
  const bool any = std::none_of(is.begin(), is.end(), [](int64_t n) { return n == 0; });
  if (any && a->data == nullptr) fail_usage("{}: {} has no memory", function_, name);
  return a;
}

// Dimensions from `dense_from` on must lie without gaps.
Tensor Arrays::view(const moe_array& a, Dtypes dtypes, int64_t dense_from) const {
  const std::optional<DType> dtype = tensor_dtype(a.dtype);
  if (!dtype || std::find(dtypes.begin(), dtypes.end(), *dtype) == dtypes.end()) {
    std::string wanted;
    for (DType d : dtypes) wanted += (wanted.empty() ? "" : " or ") + std::string(name_of(d));
    fail_usage("{}: {} is {}; {} is needed", function_, a.name, dtype_text(a.dtype), wanted);
  }
  int64_t next = 1;
  for (int i = a.rank - 1; i >= dense_from; --i) {
    if (a.stride[i] != next && a.shape[i] > 1)
      fail_usage(
          "{}: {} has gaps or lies transposed (dimension {} has a stride of {}, not {}); "
          "pass a contiguous copy",
          function_, a.name, i, a.stride[i], next);
    next *= a.shape[i];
  }
  static char nothing = 0;  // an array of no numbers is not an absent one
  Tensor t(a.data != nullptr ? a.data : &nothing, *dtype, {a.shape[a.rank - 1]});
  t.rank = a.rank;
  std::copy_n(a.shape, a.rank, t.shape.begin());
  t.row_bytes = bytes_of(*dtype, t.cols());
  return t;
}

Tensor Arrays::find(std::string_view name, Dtypes dtypes, Shape shape) {
  const moe_array* a = look(name, shape);
  return a == nullptr ? Tensor{} : view(*a, dtypes, 0);
}

Tensor Arrays::take(std::string_view name, Dtypes dtypes, Shape shape) {
  if (look(name) == nullptr) fail_usage("{}: \"{}\" is missing", function_, name);
  return find(name, dtypes, shape);
}

BankArray Arrays::find_bank(std::string_view name, Dtypes dtypes, Shape shape) {
  const moe_array* a = look(name, shape);
  if (a == nullptr) return {};
  BankArray bank{view(*a, dtypes, 1), {}};
  const int64_t expert_bytes = bytes_of(bank.value.dtype, a->stride[0]);
  for (int64_t e = 0; e < a->shape[0]; ++e)
    bank.places.push_back(static_cast<char*>(bank.value.data) + e * expert_bytes);
  return bank;
}

void Arrays::need_whole(const moe_array& a) const {
  if (a.dtype != MOE_I32 && a.dtype != MOE_I64)
    fail_usage("{}: {} is {}; i32 or i64 is needed", function_, a.name, dtype_text(a.dtype));
}

Tensor Arrays::find_whole(Arena& arena, std::string_view name, Shape shape, int64_t low,
                          int64_t high) {
  const moe_array* a = look(name, shape);
  if (a == nullptr) return {};
  need_whole(*a);
  const int64_t rows = a->rank == 2 ? a->shape[0] : 1, cols = a->shape[a->rank - 1];
  Tensor out =
      a->rank == 2 ? arena.alloc(DType::i32, {rows, cols}) : arena.alloc(DType::i32, {cols});
  auto* to = out.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t at = (a->rank == 2 ? r * a->stride[0] : 0) + c * a->stride[a->rank - 1],
                    value = whole_at(*a, at);
      if (value < low || value > high)
        fail("{}: {} has {} at place {}; {} to {} are taken", function_, name, value, r * cols + c,
             low, high);
      *to++ = static_cast<int32_t>(value);
    }
  return out;
}

std::vector<int64_t> Arrays::wholes(std::string_view name, int64_t size) {
  const moe_array* a = look(name, {size});
  std::vector<int64_t> out;
  if (a == nullptr) return out;
  need_whole(*a);
  for (int64_t i = 0; i < a->shape[0]; ++i) out.push_back(whole_at(*a, i * a->stride[0]));
  return out;
}

void Arrays::done() const {
  for (const moe_array& a : arrays_)
    if (!asked_.contains(a.name))
      fail_usage("{}: no array is called \"{}\" here{}", function_, printable(a.name),
                 suggestion(a.name, {asked_.begin(), asked_.end()}));
}

void check_bounds(std::string_view name, std::span<const int64_t> bounds, int64_t tokens) {
  if (!bounds.empty() && (bounds.size() < 2 || bounds.front() != 0 || bounds.back() != tokens ||
                          !std::is_sorted(bounds.begin(), bounds.end())))
    fail_usage("\"{}\" must rise from 0 to the {} tokens, a number more than sequences", name,
               tokens);
}

}  // namespace moe::api
