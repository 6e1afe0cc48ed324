// A hash that is the same on every machine and in every version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe {

struct Fnv1a {
  uint64_t value = 0xcbf29ce484222325u;
  void add(const void* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) add_byte(static_cast<const unsigned char*>(bytes)[i]);
  }
  void add(uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) add_byte(number >> (8 * byte) & 0xff);
  }
  void add_byte(uint64_t byte) { value = (value ^ byte) * 0x100000001b3u; }
};

}  // namespace moe
