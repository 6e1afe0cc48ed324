// Direct preference optimisation (Rafailov et al., arXiv 2305.18290, equation 7): the loss of a
// pair of replies to one prompt out of their log-probabilities. With m = beta ((log p(chosen) - log
// ref(chosen)) - (log p(rejected) - log ref(rejected))), the margin, it is -log sigmoid(m); the
// log-probability of a reply is the sum over its tokens. `ref` is the reference, a model that the
// trained one shall stay close to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"
#include "text/loader.h"

namespace moe {

// Means over pairs.
struct PairFigures {
  double loss = 0;
  double margin = 0;
  double accuracy = 0;  // share of the pairs whose margin is above 0
};

// What they are made of: sums over pairs.
struct PairSums {
  double loss = 0, margin = 0;
  int64_t preferred = 0;  // pairs whose margin is above 0
  int64_t pairs = 0;
  double chosen_nll = 0;  // of the tokens of the chosen replies
  int64_t chosen_tokens = 0;

  // f(x) for every number.
  template <class F>
  void each(F&& f) {
    for (double* x : {&loss, &margin, &chosen_nll}) f(*x);
    for (int64_t* x : {&preferred, &pairs, &chosen_tokens}) f(*x);
  }
  PairFigures means() const;
  double chosen_ce() const;  // nats per token; NaN where there is none
};

// Log-probabilities of the replies of pairs, once taken.
class PairReference {
 public:
  PairReference() = default;
  explicit PairReference(int64_t pairs);

  bool has(int64_t pair) const;
  // [2] of the chosen and of the rejected reply
  const float* at(int64_t pair) const { return numbers_.data() + 2 * pair; }
  void set(int64_t pair, float chosen, float rejected);
  bool empty() const { return numbers_.empty(); }
  // [P,2] f32: a view of these numbers, for a checkpoint, which writes them too
  Tensor view() const;

 private:
  mutable std::vector<float> numbers_;  // 1, which no log-probability is: not taken
};

// log p of the replies of pair i of a batch: chosen, rejected.  nll [N] f32 over the batch
struct PairLogProbs {
  float chosen = 0, rejected = 0;
};
PairLogProbs pair_log_probs(const Tensor& nll, const TextBatch& batch, size_t i);

// Adds the losses of a batch of pairs to `sums`. Returns the derivative of their sum by nll[n], for
// every token: [N] beta sigmoid(-m) in chosen texts, -beta sigmoid(-m) in rejected ones. Fails
// where the reference of a pair was not taken.
std::vector<float> pair_losses(PairSums& sums, const Tensor& nll, const TextBatch& batch,
                               const PairReference& reference, double beta);

}  // namespace moe
