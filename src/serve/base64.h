// Whole numbers as text, as JSON carries arrays: little-endian int32 in base64 (RFC 4648).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe::serve {

std::string to_base64(std::span<const int32_t> numbers);
// Fails (usage) on what is no base64, or does not hold whole numbers.
std::vector<int32_t> from_base64(std::string_view text);

}  // namespace moe::serve
