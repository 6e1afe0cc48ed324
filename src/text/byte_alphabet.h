// The alphabet in which byte-level tokenizers write bytes as printable characters (GPT-2's
// encoder.py, bytes_to_unicode).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace moe {

// Each byte as one character, in UTF-8. Printable Latin-1 bytes stand for themselves, the others
// take U+0100, U+0101, ... in order.
const std::array<std::string, 256>& byte_alphabet();

std::string to_alphabet(std::string_view bytes);
// The bytes a token stands for; nothing when one of its characters is outside the alphabet.
std::optional<std::string> from_alphabet(std::string_view token);

}  // namespace moe
