// How fast the processes of a group reach each other: the body of `moe bench network`.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "core/json.h"

namespace moe {

// One size of exchange, in which every process sends `bytes` to each other one at the same time.
struct NetworkTiming {
  int64_t bytes = 0;
  double seconds = 0;  // of the slowest process, median of some exchanges
  double rate = 0;     // bytes/s that a process sends
};
struct NetworkTimings {
  int processes = 0;
  std::vector<NetworkTiming> sizes;  // from the smallest to the largest
  double latency() const { return sizes.front().seconds; }
  double rate() const { return sizes.back().rate; }
};
// Collective; usage error for a process alone.
NetworkTimings bench_network(const comm::Group&);
Json to_json(const NetworkTimings&);

}  // namespace moe
