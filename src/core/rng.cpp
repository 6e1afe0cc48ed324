#include "core/rng.h"

#include <cmath>
#include <numbers>

namespace moe {
namespace {

// splitmix64's finaliser: a bijection that spreads every input bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t never_zero(uint64_t x) { return x == 0 ? 1 : x; }

__extension__ using Uint128 = unsigned __int128;

struct Wide {
  uint32_t high, low;
};

Wide multiply(uint32_t a, uint32_t b) {
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

double normal_from(uint32_t a, uint32_t b) {
  const double u = (a + 1.0) / 4294967296.0;  // in (0, 1], so that the logarithm exists
  const double v = b / 4294967296.0;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace

// Mixed twice: fold() joins value and mix(part + 1) by a symmetric operation, so a value of
// mix(seed) would make seed and part exchangeable.
RngKey RngKey::from_seed(uint64_t seed) { return {never_zero(mix(mix(seed)))}; }

RngKey RngKey::fold(uint64_t part) const { return {never_zero(mix(value ^ mix(part + 1)))}; }

std::array<uint32_t, 4> philox(RngKey key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key.value), k1 = static_cast<uint32_t>(key.value >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               0, 0};
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = multiply(0xD2511F53u, c[0]), p1 = multiply(0xCD9E8D57u, c[2]);
    c = {p1.high ^ c[1] ^ k0, p1.low, p0.high ^ c[3] ^ k1, p0.low};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

float uniform(RngKey key, uint64_t counter) {
  return static_cast<float>(philox(key, counter)[0] >> 8) * 0x1p-24f;
}

uint64_t uniform_index(RngKey key, uint64_t counter, uint64_t n) {
  const auto r = philox(key, counter);
  const uint64_t bits = uint64_t{r[0]} << 32 | r[1];
  return static_cast<uint64_t>((static_cast<Uint128>(bits) * n) >> 64);
}

float normal(RngKey key, uint64_t counter) {
  const auto r = philox(key, counter);
  return static_cast<float>(normal_from(r[0], r[1]));
}

float truncated_normal(RngKey key, uint64_t counter, float cut) {
  for (uint64_t attempt = 0;; ++attempt) {
    const auto r = philox(key.fold(attempt), counter);
    const double z = normal_from(r[0], r[1]);
    if (std::abs(z) <= cut) return static_cast<float>(z);
  }
}

}  // namespace moe
