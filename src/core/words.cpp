#include "core/words.h"

#include <fmt/format.h>

namespace moe {

std::string counted(int64_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

}  // namespace moe
