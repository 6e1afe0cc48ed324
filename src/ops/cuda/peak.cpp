// What the device can do at most: a large product, and a copy of its memory.
#include <algorithm>
#include <chrono>

#include "ops/cuda/cublas/dense_product.h"

namespace moe::ops::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// The shortest time of a call in so many seconds.
template <class F>
double best_time(Run& run, double seconds, F&& f) {
  f();
  run.device->wait();
  double best = 1e30;
  const auto begin = Clock::now();
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  do {
    const auto start = Clock::now();
    f();
    run.device->wait();
    best = std::min(best, since(start));
  } while (since(begin) < seconds);
  return best;
}

}  // namespace

// Of operands that are no zeros: those would multiply faster.
double measure_peak_flops(Run& run, DType dtype, double seconds) {
  const int64_t n = compute_capability(run) >= 90 ? 8192 : 2048;
  Scratch scratch(run);
  const auto square = [&] { return scratch.alloc(dtype, {n, n}); };
  const Tensor a = square(), b = square(), c = square();
  spread_numbers(run, a);
  spread_numbers(run, b);
  const double time = best_time(run, seconds, [&] {
    if (!dense_product(run, Form::forward, c, a, b, false))
      tile_product(run, Form::forward, c, a, b, {}, false);
  });
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / time;
}

// Bytes read and bytes written.
double measure_read_bandwidth(Run& run, double seconds) {
  const auto bytes = std::min<size_t>(size_t{1} << 30, run.device->available() / 8);
  Scratch scratch(run);
  void *from = scratch.bytes(bytes), *to = scratch.bytes(bytes);
  run.device->fill(from, 1, bytes);
  const double time = best_time(run, seconds, [&] { run.device->copy(to, from, bytes); });
  return 2.0 * static_cast<double>(bytes) / time;
}

}  // namespace moe::ops::cuda
