// Which window of the corpus each row of each training step reads: a pure function of the step, so that resuming needs no cursor.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/rng.h"
#include "text/corpus.h"

namespace moe {

enum class Shuffle {
  none,   // row r starts at (r * context) mod (tokens - context)
  epoch,  // each epoch visits floor((tokens - 1) / context) windows once, in an order drawn from (seed, epoch), all shifted by an offset drawn with it
};
// "none" or "epoch"; anything else is a usage error.
Shuffle parse_shuffle(std::string_view name);

struct BatchShape {
  int64_t context = 0;     // tokens a row
  int64_t batch = 0;       // rows a micro-batch
  int64_t accumulate = 1;  // micro-batches a step
};

class BatchPlan {
 public:
  // Fails when there are fewer than context + 1 tokens.
  BatchPlan(int64_t tokens, BatchShape shape, Shuffle shuffle, uint64_t seed);

  // First token of row b of micro-batch a of the step. Steps count from 0; every row reads [start, start + context] inclusive.
  int64_t start(int64_t step, int64_t a, int64_t b) const;
  // ids, targets: [batch * context]; targets are ids one token later.
  void fill(const Corpus& corpus, int64_t step, int64_t a, int32_t* ids, int32_t* targets) const;

  int64_t windows() const { return windows_; }  // of an epoch
  int64_t rows_per_step() const { return shape_.batch * shape_.accumulate; }
  int64_t tokens_per_step() const { return rows_per_step() * shape_.context; }

 private:
  int64_t tokens_;
  BatchShape shape_;
  Shuffle shuffle_;
  RngKey key_;
  int64_t windows_;
};

// The image of i under a permutation of [0, n) drawn from the key: a Feistel network whose round function is philox, walked until it lands inside.
// No state, no table. Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002).
int64_t permute(RngKey key, int64_t i, int64_t n);

}  // namespace moe
