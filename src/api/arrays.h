// The arrays of a call to a moe_layer, by name: numbers in the caller's memory as views.
#pragma once

#include <moe/moe.h>

#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/arena.h"

namespace moe::api {

using Dtypes = std::span<const DType>;
inline constexpr DType kFloats[] = {DType::f32, DType::bf16};
inline constexpr Dtypes kF32 = std::span(kFloats, 1);

// A bank [E,O,I] of which each expert's matrix lies without gaps, the experts where they like.
struct BankArray {
  Tensor value;               // of the first expert on; empty: absent
  std::vector<void*> places;  // [E]
};

// What a call takes is asked for by name and checked then; done() refuses what nobody asked for.
class Arrays {
 public:
  // Any size.
  static constexpr int64_t kAny = -1;
  using Shape = std::initializer_list<int64_t>;

  // `function`: opens every message.
  Arrays(const moe_array* arrays, size_t count, const char* function);

  // Of one of these dtypes, without gaps; absent: empty.
  Tensor find(std::string_view name, Dtypes dtypes, Shape shape);
  // The same, which must be there.
  Tensor take(std::string_view name, Dtypes dtypes, Shape shape);
  BankArray find_bank(std::string_view name, Dtypes dtypes, Shape shape);
  // Whole numbers of low to high, of 32 bits or 64: a copy in `arena`. Absent: empty.
  Tensor find_whole(Arena& arena, std::string_view name, Shape shape, int64_t low, int64_t high);
  // [n] of 64 bits, of those or of 32.
  std::vector<int64_t> wholes(std::string_view name, int64_t size);
  void done() const;

 private:
  const moe_array* look(std::string_view name);
  // With the shape checked.
  const moe_array* look(std::string_view name, Shape shape);
  void need_whole(const moe_array&) const;
  Tensor view(const moe_array&, Dtypes dtypes, int64_t dense_from) const;

  std::span<const moe_array> arrays_;
  std::set<std::string, std::less<>> asked_;
  std::string function_;
};

// Refuses bounds of sequences of so many tokens that do not rise from 0 to their end; none are
// fine.
void check_bounds(std::string_view name, std::span<const int64_t> bounds, int64_t tokens);

}  // namespace moe::api
