// Published configs of families, and changes to them.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/json.h"
#include "hub/folder/config_json.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test {

inline Json published(const std::string& name) {
  return read_json(std::string(MOE_TEST_DATA) + "/../fuzz/seeds/config/published_" + name +
                   ".json");
}
inline ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }
inline Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}
inline Json without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

// Read, it is the same model.
inline void expect_same(const Json& json, const ModelConfig& as) {
  EXPECT_EQ(config_to_json(parse(json)), config_to_json(as)) << json.dump();
}

inline void expect_needed(const Json& given, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    EXPECT_FAILS(parse(without(given, key)), fmt::format("\"{}\" is missing", key));
}

inline void expect_refused(const Json& given,
                           std::initializer_list<std::pair<const char*, Json>> words) {
  for (const auto& word : words)
    EXPECT_FAILS(parse(with(given, word.first, word.second)),
                 fmt::format("\"{}\" is {}; ", word.first, word.second.dump()));
}

}  // namespace moe::test
