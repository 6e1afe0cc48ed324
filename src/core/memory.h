// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moe {

// Bytes: what the system has left without swapping (MemAvailable), or what the limits of the control groups leave, where that is less. Pages of mapped files
// count as free, as the kernel drops them when it has to. INT64_MAX where the system does not say. `root`: where /proc and /sys lie, for tests.
int64_t available_memory(const std::string& root = "");

// "4G", "512M", "1.5G", "1000000": a number of bytes, or of KiB, MiB, GiB, TiB behind it. Fails (usage), naming `flag`.
int64_t parse_bytes(std::string_view text, const char* flag);

}  // namespace moe
