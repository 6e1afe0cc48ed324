// Numbers with their nouns, for what people read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moe {

std::string counted(int64_t n, std::string_view noun);  // 1 step, 2 steps
std::string human_count(double n);                      // 54.7M
std::string human_bytes(double n);                      // 219 MiB

}  // namespace moe
