// Numbers with their nouns, and lines, for what people read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moe {

std::string counted(int64_t n, std::string_view noun);  // 1 step, 2 steps, 3 batches
std::string human_count(double n);                      // 54.7M
std::string human_bytes(double n);                      // 219 MiB

// `text` broken between words into lines of at most `width` columns, all but the first with
// `indent` spaces before it; the first is taken to start there.
std::string wrapped(const std::string& text, size_t indent, size_t width = 100);

}  // namespace moe
