// --layers of the verbs that give a dense model experts.
#pragma once

#include <string>

#include "convert/layer_choice.h"

namespace moe::cli {

constexpr const char* kLayersHelp = "which layers get experts: every:P (0, P, 2P ...), or a list such as 1,3,8-11; the others stay dense";

// "every:2", or "1,3,8-11". Throws (usage) at anything else; whether there are such layers is not asked here.
LayerChoice parse_layers(const std::string& text);

}  // namespace moe::cli
