// JSON as it goes over the wire.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/json.h"

namespace moe::serve {

// On one line. Bytes that are no UTF-8 become U+FFFD.
inline std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The same with the order of keys kept.
inline std::string ordered_json_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace moe::serve
