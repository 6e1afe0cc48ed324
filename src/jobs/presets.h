// The presets of share/presets/*.json, compiled in (cmake/presets.cmake).
#pragma once

#include <string>
#include <vector>

namespace moe {

struct Preset {
  std::string name;
  std::string json;  // the options of `moe train`, as --config takes them
};

const std::vector<Preset>& presets();

}  // namespace moe
