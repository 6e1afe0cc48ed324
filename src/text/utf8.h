// One step of UTF-8 decoding, as strict as Unicode's table 3-7: no overlong forms, no surrogates,
// nothing above U+10FFFF.
#pragma once

#include <string>
#include <string_view>

namespace moe {

struct Utf8Step {
  enum class Kind {
    character,  // `length` bytes are one character
    broken,     // the first `length` bytes can never become one (a maximal ill-formed part)
    cut,        // all bytes there are begin one that is not complete
  };
  Kind kind;
  int length;
};

// `bytes` must not be empty.
Utf8Step utf8_step(std::string_view bytes);

// Whether no character before it goes on with this byte.
constexpr bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// The bytes of the white space (Unicode's White_Space) that `text` begins with, one character; 0
// where there is none.
size_t space_length(std::string_view text);

// A file's name as tables, JSON and pages can hold it: UTF-8 on one line. Control characters, and
// bytes that are no character, become U+FFFD.
std::string readable_name(std::string_view name);

}  // namespace moe
