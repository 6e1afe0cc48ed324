// What this machine can do: instruction set, rate of multiplications out of registers, rate of
// reading memory. The yardsticks of every share of peak.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/machine.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

#include "core/clock.h"
#include "core/threads.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// 12 independent chains of a = a * b + c hide the latency of two units, up to 6 cycles each. Each
// starts from its own number of sink [16], or the compiler would see that they are equal and
// compute one. Returns the operations done; sink[0] keeps the work alive.
int64_t FmaLoop(int64_t rounds, float* sink) {
  const DF32 d;
  const float b_value = sink[12], c_value = sink[13];
  const VF32 b = hn::Set(d, b_value), c = hn::Set(d, c_value);
  auto a0 = hn::Set(d, sink[0]), a1 = hn::Set(d, sink[1]), a2 = hn::Set(d, sink[2]),
       a3 = hn::Set(d, sink[3]), a4 = hn::Set(d, sink[4]), a5 = hn::Set(d, sink[5]);
  auto a6 = hn::Set(d, sink[6]), a7 = hn::Set(d, sink[7]), a8 = hn::Set(d, sink[8]),
       a9 = hn::Set(d, sink[9]), a10 = hn::Set(d, sink[10]), a11 = hn::Set(d, sink[11]);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, b, c), a1 = hn::MulAdd(a1, b, c), a2 = hn::MulAdd(a2, b, c),
    a3 = hn::MulAdd(a3, b, c);
    a4 = hn::MulAdd(a4, b, c), a5 = hn::MulAdd(a5, b, c), a6 = hn::MulAdd(a6, b, c),
    a7 = hn::MulAdd(a7, b, c);
    a8 = hn::MulAdd(a8, b, c), a9 = hn::MulAdd(a9, b, c), a10 = hn::MulAdd(a10, b, c),
    a11 = hn::MulAdd(a11, b, c);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  sink[0] = SumLanesFixed(d, hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))));
  return rounds * 12 * 2 * static_cast<int64_t>(hn::Lanes(d));
}

// All words combined by exclusive or, so that every one has to be read.
uint64_t FoldWords(const uint64_t* p, int64_t n) {
  const hn::ScalableTag<uint64_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, p + i));
    b = hn::Xor(b, hn::LoadU(d, p + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, p + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, p + i + 3 * lanes));
  }
  alignas(64) uint64_t folded[8];
  hn::StoreU(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)), d, folded);
  for (int64_t i = 1; i < lanes; ++i) folded[0] ^= folded[i];
  return folded[0];
}

// Newer versions of Highway have three names for NEON, by what else a compiler may use.
const char* TargetHere() { return HWY_ARCH_ARM_A64 ? "NEON" : hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(FmaLoop);
HWY_EXPORT(FoldWords);
HWY_EXPORT(TargetHere);

#if defined(__x86_64__)
// The same loop on pairs of bf16; Highway 1.0.3 has no name for this instruction.
__attribute__((target("avx512f,avx512bf16"))) int64_t dpbf16_loop(int64_t rounds, float* sink) {
  const __m512bh x = (__m512bh)_mm512_set1_ps(sink[12]), y = (__m512bh)_mm512_set1_ps(sink[13]);
  __m512 a[12];
  for (int j = 0; j < 12; ++j) a[j] = _mm512_set1_ps(sink[j]);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) a[j] = _mm512_dpbf16_ps(a[j], x, y);
  }
  __m512 sum = _mm512_setzero_ps();
  for (const __m512& v : a) sum = _mm512_add_ps(sum, v);
  sink[0] = _mm512_reduce_add_ps(sum);
  return rounds * 12 * 2 * 32;
}

// The same in AMX tiles: an instruction adds 32 products to each of 16 x 16 sums. Six chains hide
// its latency. oneDNN has asked the system for the tiles.
__attribute__((target("amx-tile,amx-bf16"))) int64_t tile_loop(int64_t rounds, float* sink) {
  _tile_loadconfig(&kFullTiles);
  // GCC's tile intrinsics are statements.
  // clang-format off
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 6, 7); _tile_dpbf16ps(1, 6, 7); _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7); _tile_dpbf16ps(4, 6, 7); _tile_dpbf16ps(5, 6, 7);
  }
  // clang-format on
  alignas(64) float sums[16 * 16];
  _tile_stored(0, sums, 64);
  _tile_release();
  sink[0] += sums[0];
  return rounds * 6 * 2 * 16 * 16 * 32;
}
#else
int64_t dpbf16_loop(int64_t rounds, float* sink) {
  return HWY_DYNAMIC_DISPATCH(FmaLoop)(rounds, sink);
}
int64_t tile_loop(int64_t rounds, float* sink) { return dpbf16_loop(rounds, sink); }
#endif

int64_t cache_bytes() {
  const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return l3 > 0 ? l3 : 0;
}

}  // namespace

bool has_bf16_products() {
  choose_isa();
  static const bool has = [] {
    // A set's number holds the bits of every set that it includes, so this stays true of later
    // ones, which not every oneDNN has a name for.
    constexpr int kNeeded = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  }();
  return has;
}

const char* isa_name() {
  choose_isa();
  return HWY_DYNAMIC_DISPATCH(TargetHere)();
}

double cpu::measure_peak_flops(Run& run, DType dtype, double seconds) {
  choose_isa();
  const bool halves = dtype == DType::bf16 && has_bf16_products(), tiles = halves && has_tiles();
  // some half a millisecond or less
  constexpr int64_t kRounds = 1 << 16, kTileRounds = kRounds / 16;
  std::vector<double> rates(static_cast<size_t>(run.threads), 0.0);
#pragma omp parallel num_threads(run.threads)
  {
    alignas(64) float sink[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0.5f, 1.0f};
    const auto spin = [&] {
      if (tiles) return tile_loop(kTileRounds, sink);
      return halves ? dpbf16_loop(kRounds, sink) : HWY_DYNAMIC_DISPATCH(FmaLoop)(kRounds, sink);
    };
    spin();
#pragma omp barrier
    // The best of many short stretches: beside other programs, too, there are some that had the
    // core for themselves.
    constexpr double kStretch = 0.5e-3;
    double& best = rates[static_cast<size_t>(omp_get_thread_num())];
    for (const auto start = Clock::now(); seconds_since(start) < seconds;) {
      const auto begin = Clock::now();
      int64_t done = 0;
      do done += spin();
      while (seconds_since(begin) < kStretch);
      best = std::max(best, static_cast<double>(done) / seconds_since(begin));
    }
  }
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

int64_t read_buffer_bytes() {
  constexpr int64_t kLeast = int64_t{256} << 20, kMost = int64_t{1} << 30;
  return std::clamp(4 * cache_bytes(), kLeast, kMost);
}

double cpu::measure_read_bandwidth(Run& run, double seconds) {
  choose_isa();
  constexpr int64_t kPiece = 1 << 16;  // words between looks at the clock
  const int64_t words = read_buffer_bytes() / 8;
  Arena memory;
  auto* data = static_cast<uint64_t*>(memory.alloc_bytes(static_cast<size_t>(words) * 8));
  std::vector<double> rates(static_cast<size_t>(run.threads), 0.0);
  std::atomic<uint64_t> sink{0};
#pragma omp parallel num_threads(run.threads)
  {
    const Span mine = partition(words, omp_get_thread_num(), omp_get_num_threads());
    std::memset(data + mine.begin, 1, static_cast<size_t>(mine.end - mine.begin) * 8);
#pragma omp barrier
    const auto start = Clock::now();
    int64_t done = 0, at = mine.begin;
    uint64_t sum = 0;
    while (seconds_since(start) < seconds) {
      const int64_t n = std::min(kPiece, mine.end - at);
      sum += HWY_DYNAMIC_DISPATCH(FoldWords)(data + at, n);
      done += n * 8;
      at = at + n < mine.end ? at + n : mine.begin;
    }
    sink += sum;
    rates[static_cast<size_t>(omp_get_thread_num())] =
        static_cast<double>(done) / seconds_since(start);
  }
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace moe::ops
#endif  // HWY_ONCE
