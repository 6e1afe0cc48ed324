#include "text/call_text.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace moe {

std::optional<OrderedJson> json_of(std::string_view text) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  try {
    return parse_ordered_json(text, "call", kMostBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace moe
