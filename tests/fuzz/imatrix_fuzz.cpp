// Files of importance in both forms. What is accepted has whole matrices of numbers that can weigh.
#include "hub/gguf/imatrix.h"

#include <cmath>

#include "fuzz/fuzz.h"

namespace {

void check(const moe::Importance& importance) {
  for (const auto& [name, sums] : importance.tensors) {
    moe::fuzz::demand(!sums.rows.empty() && sums.squares.size() % sums.rows.size() == 0);
    for (const float x : sums.squares) moe::fuzz::demand(std::isfinite(x) && x >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  moe::fuzz::accept_or_refuse([&] { check(moe::read_importance_dat(bytes, "fuzz")); });
  moe::fuzz::accept_or_refuse(
      [&] { check(moe::read_importance(moe::Gguf::from_bytes(bytes, "fuzz"), "fuzz")); });
  return 0;
}
