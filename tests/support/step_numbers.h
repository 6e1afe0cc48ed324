// The steps that a file of JSON lines tells of.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/json.h"
#include "support/files.h"

namespace moe::test {

inline std::vector<int64_t> steps_in(const std::string& path) {
  std::istringstream in(slurp(path));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(in, line);)
    steps.push_back(Json::parse(line).at("step").get<int64_t>());
  return steps;
}

}  // namespace moe::test
