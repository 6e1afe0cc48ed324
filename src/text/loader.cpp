#include "text/loader.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

constexpr uint64_t kRounds = 8;
// Counter of the draw of an epoch's offset; the rounds of the permutation have keys of their own.
constexpr uint64_t kOffset = ~uint64_t{0};

}  // namespace

Shuffle parse_shuffle(std::string_view name) {
  if (name == "none") return Shuffle::none;
  if (name == "epoch") return Shuffle::epoch;
  fail_usage("--shuffle {} is not known{}", printable(name), suggestion(name, {"none", "epoch"}));
}

// (left, right) -> (right, left ^ f(right)) is a bijection whatever f is; so is walking it until it lands in [0, n), since the walk goes around the cycle
// that i lies on. Both halves have `half` bits, so the domain is below 4n and the walk is short.
int64_t permute(RngKey key, int64_t i, int64_t n) {
  const int half = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const auto r = philox(key.fold(round), right);
      const uint64_t mixed = (left ^ (uint64_t{r[0]} << 32 | r[1])) & mask;
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

BatchPlan::BatchPlan(int64_t tokens, BatchShape shape, Shuffle shuffle, uint64_t seed)
    : tokens_(tokens), shape_(shape), shuffle_(shuffle), key_(RngKey::from_seed(seed).fold(0x6C6F61646572)) {  // "loader": a stream of its own
  if (shape.context < 1 || shape.batch < 1 || shape.accumulate < 1)
    fail_usage("context, batch and accumulate must be at least 1; they are {}, {} and {}", shape.context, shape.batch, shape.accumulate);
  if (tokens < shape.context + 1)
    fail("the text has {} tokens, at least {} are needed for a context of {}; give more text or a smaller --context", tokens, shape.context + 1, shape.context);
  windows_ = (tokens - 1) / shape.context;
}

int64_t BatchPlan::start(int64_t step, int64_t a, int64_t b) const {
  const int64_t row = (step * shape_.accumulate + a) * shape_.batch + b;
  const int64_t last = tokens_ - shape_.context - 1;  // the last start that has a target for each token
  if (shuffle_ == Shuffle::none) return row * shape_.context % (last + 1);
  const RngKey key = key_.fold(static_cast<uint64_t>(row / windows_));
  const auto offset = static_cast<int64_t>(uniform_index(key, kOffset, static_cast<uint64_t>(shape_.context)));
  // The offset may push the last window over the end; it is moved back and overlaps its neighbour.
  return std::min(offset + permute(key, row % windows_, windows_) * shape_.context, last);
}

void BatchPlan::fill(const Corpus& corpus, int64_t step, int64_t a, int32_t* ids, int32_t* targets) const {
  std::vector<int32_t> row(static_cast<size_t>(shape_.context) + 1);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    corpus.fill(start(step, a, b), shape_.context + 1, row.data());
    std::copy(row.begin(), row.end() - 1, ids + b * shape_.context);
    std::copy(row.begin() + 1, row.end(), targets + b * shape_.context);
  }
}

}  // namespace moe
