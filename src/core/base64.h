// Bytes as text (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace moe {

std::string to_base64(std::string_view bytes);
// Fails (usage) on what is no base64.
std::string from_base64(std::string_view text);

}  // namespace moe
