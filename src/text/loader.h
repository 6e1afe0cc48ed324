// Which window of the corpus each row of each training step reads, or which preference pairs: a
// pure function of the step, so that resuming needs no cursor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"
#include "text/corpus.h"
#include "text/pair_index.h"

namespace moe {

enum class Shuffle {
  none,   // row r starts at (r * context) mod (tokens - context)
  epoch,  // each epoch visits floor((tokens - 1) / context) windows once, in an order drawn from
          // (seed, epoch), all shifted by an offset drawn with it
};

// How often a domain's windows are visited beside those of weight 1: 2 twice as often, 0 not at
// all. Domains that are not named have weight 1.
using Mix = std::map<std::string, double>;
// Whether it asks for anything but what is there.
bool changes_anything(const Mix& mix);
// A usage error unless the weights are from 0 to 1000.
void check_weights(const Mix& mix);

struct BatchShape {
  int64_t context = 0;     // tokens a row
  int64_t batch = 0;       // rows a micro-batch; of preference pairs: pairs
  int64_t accumulate = 1;  // micro-batches a step
};

// The target of a token whose successor is not learned from or belongs to another document;
// ops::kIgnoreTarget.
constexpr int32_t kNoTarget = -1;

// What a forward reads and what it is to predict: rows of text end to end, cut into sequences where
// documents end.
struct TextBatch {
  std::vector<int32_t> ids, targets;
  std::vector<int32_t> positions;  // in the sequence, from 0
  std::vector<int64_t> bounds{0};  // [S+1] sequence s is [bounds[s], bounds[s+1])
  int64_t predicted = 0;           // targets that are not kNoTarget
  // Of preference pairs: their numbers; sequences 2i and 2i + 1 are the chosen and the rejected
  // text of pairs[i].
  std::vector<int64_t> pairs;

  void clear();
  // A row of tokens [start, start + context) and the targets one token later; start + context lies
  // within the corpus.
  void add_row(const Corpus& corpus, int64_t start, int64_t context);
  // The same over ranges of the corpus laid end to end, each of which ends a document.
  void add_row(const Corpus& corpus, const std::vector<TokenRange>& ranges, int64_t start,
               int64_t context);
  // Both texts of a pair, a sequence each.
  void add_pair(const Corpus& corpus, const PairIndex& index, int64_t pair);

 private:
  // Ids [T+1] with what each is, one row: `ends` and `trained` as the corpus has them.
  void add_tokens(const std::vector<int32_t>& row, const std::vector<uint8_t>& trained,
                  const std::vector<uint8_t>& ends);
};

// A domain's part in an epoch.
struct DomainShare {
  std::string name;
  int64_t tokens = 0;
  int64_t windows = 0;  // it has
  int64_t visits = 0;   // of windows in an epoch
};

class BatchPlan {
 public:
  // Of one text. Fails when there are fewer than context + 1 tokens.
  BatchPlan(int64_t tokens, BatchShape shape, Shuffle shuffle, uint64_t seed);
  // With a mix that changes anything windows stay inside a domain, an epoch has round(weight *
  // windows) of each, and passes over a domain follow each other across epochs, each with an offset
  // and an order of its own. Without one the corpus is one text. Fails on unknown domains, naming
  // the nearest, and on domains that are too short for a window.
  // A corpus of pairs takes no mix; an epoch visits each that fits once, in an order drawn from
  // (seed, epoch).
  BatchPlan(const Corpus& corpus, BatchShape shape, Shuffle shuffle, uint64_t seed, const Mix& mix);

  // First token of row b of micro-batch a of the step, counted in its text: the corpus, or with a
  // mix its domain. Steps count from 0; every row reads [start, start + context] inclusive.
  struct Window {
    size_t source = 0;
    int64_t start = 0;
  };
  Window window(int64_t step, int64_t a, int64_t b) const;
  // The pair that is visited there instead.
  int64_t pair(int64_t step, int64_t a, int64_t b) const;
  const PairIndex* pairs() const { return pairs_ ? &*pairs_ : nullptr; }  // null: none
  // `batch` is cleared first.
  void fill(const Corpus& corpus, int64_t step, int64_t a, TextBatch& batch) const;
  // Targets that all micro-batches of the step predict.
  int64_t predicted(const Corpus& corpus, int64_t step) const;

  // Tokens that a step reads.
  int64_t tokens(int64_t step) const;

  int64_t windows() const { return windows_; }  // visited in an epoch, or pairs
  int64_t rows_per_step() const { return shape_.batch * shape_.accumulate; }

 private:
  struct Source {
    std::vector<TokenRange> ranges;  // empty: the whole corpus
    int64_t tokens = 0;
    int64_t windows = 0;  // it has
    int64_t first = 0;    // its visits are [first, first + visits) of an epoch
    int64_t visits = 0;
  };
  int64_t last_start(const Source& source) const {
    return source.tokens - shape_.context - 1;
  }  // the last that has a target for each token

  BatchPlan(BatchShape shape, Shuffle shuffle, uint64_t seed);
  // Rows and pairs of all steps are counted on.
  int64_t visit(int64_t step, int64_t a, int64_t b) const {
    return (step * shape_.accumulate + a) * shape_.batch + b;
  }

  BatchShape shape_;
  Shuffle shuffle_;
  RngKey key_;
  std::vector<Source> sources_;
  std::optional<PairIndex> pairs_;
  int64_t windows_ = 0;
};

// What an epoch visits of each domain; the rules of BatchPlan.
std::vector<DomainShare> domain_shares(const Corpus& corpus, int64_t context, const Mix& mix);

// Mean tokens of the documents whose ends cut windows, as often as `mix` has them; 0: no end does.
// Of text, not of preference pairs.
int64_t mean_document(const Corpus& corpus, const Mix& mix);

// The image of i under a permutation of [0, n) drawn from the key: a Feistel network whose round
// function is philox, walked until it lands inside. No state, no table. Black and Rogaway, "Ciphers
// with Arbitrary Finite Domains" (2002).
int64_t permute(RngKey key, int64_t i, int64_t n);

}  // namespace moe
