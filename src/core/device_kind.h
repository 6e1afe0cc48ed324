// What may compute.
#pragma once

#include <cstdint>

namespace moe {

enum class DeviceKind : uint8_t { cpu, cuda };

}  // namespace moe
