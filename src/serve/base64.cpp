#include "serve/base64.h"

#include <bit>
#include <cstring>

#include "core/base64.h"
#include "core/error.h"

namespace moe::serve {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

std::string to_base64(std::span<const int32_t> numbers) {
  return moe::to_base64(std::string_view(reinterpret_cast<const char*>(numbers.data()),
                                         numbers.size() * sizeof(int32_t)));
}

std::vector<int32_t> from_base64(std::string_view text) {
  const std::string bytes = moe::from_base64(text);
  if (bytes.size() % sizeof(int32_t) != 0)
    fail_usage("{} bytes are no whole numbers of 4 bytes each", bytes.size());
  std::vector<int32_t> numbers(bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace moe::serve
