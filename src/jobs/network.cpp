#include "jobs/network.h"

#include <nlohmann/json.hpp>
#include <span>

#include "core/clock.h"
#include "core/error.h"
#include "evaluate/speed.h"

namespace moe {
namespace {

constexpr int64_t kExchanged[] = {8, 64 << 10, 1 << 20, 8 << 20};
constexpr int kTimes = 9;

NetworkTiming time_exchange(const comm::Group& group, int64_t bytes) {
  const auto others = static_cast<size_t>(group.size), size = static_cast<size_t>(bytes);
  std::vector<std::byte> out(size), in(others * size);
  std::vector<std::span<const std::byte>> send(others);
  std::vector<std::span<std::byte>> receive(others);
  for (size_t p = 0; p < others; ++p)
    if (p != static_cast<size_t>(group.rank)) {
      send[p] = out;
      receive[p] = std::span(in).subspan(p * size, size);
    }
  std::vector<double> seconds;
  for (int i = -1; i < kTimes; ++i) {  // the first one opens connections
    group.any(false);                  // all begin together
    const auto start = Clock::now();
    group.link->exchange(send, receive);
    const double slowest = group.largest(seconds_since(start));
    if (i >= 0) seconds.push_back(slowest);
  }
  NetworkTiming t{.bytes = bytes, .seconds = median(seconds)};
  t.rate = static_cast<double>(bytes) * (group.size - 1) / t.seconds;
  return t;
}

}  // namespace

NetworkTimings bench_network(const comm::Group& group) {
  if (group.size == 1)
    fail_usage("a network is measured by several processes; start them with mpirun");
  NetworkTimings done{.processes = group.size};
  for (int64_t bytes : kExchanged) done.sizes.push_back(time_exchange(group, bytes));
  return done;
}

Json to_json(const NetworkTimings& t) {
  Json sizes = Json::array();
  for (const NetworkTiming& s : t.sizes)
    sizes.push_back({{"bytes", s.bytes}, {"seconds", s.seconds}, {"bytes_per_second", s.rate}});
  return {{"processes", t.processes},
          {"latency_seconds", t.latency()},
          {"bytes_per_second", t.rate()},
          {"sizes", std::move(sizes)}};
}

}  // namespace moe
