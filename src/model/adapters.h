// Low-rank terms that hang on a model's matrices (tensor/param.h), with the numbers of their
// halves, and rows of its embedding and head that stand apart. While they hang there every product
// with such a matrix is that with the matrix and its term, and every lookup takes the row apart, in
// training, evaluation and generation alike; the matrix itself is only read, and may lie in a file
// in whatever type.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "tensor/arena.h"

namespace moe {

struct Adapter {
  Param* base = nullptr;  // [O,I] or [E,O,I]
  // [r,I] and [O,r], or of a bank [P,r,I] and [P,O,r] unless they are shared; called as base, with
  // ".lora_A" and ".lora_B"
  Param a, b;
  LowRankTerm term;
};

// Rows of tokens.
struct TokenRows {
  Param* base = nullptr;  // [V,D] the embedding, or a head of its own
  Param rows;             // [T,D]; called as base, with ".token_rows"
  OwnRows own;
};

struct TermShape {
  int64_t rank = 0;
  float scale = 1;
  std::vector<int64_t> experts = {};  // of a bank, as LowRankTerm has them
  bool shared = false;                // of a bank: one pair for all its experts, or for `experts`
};

class Adapters {
 public:
  // Hangs a term of zeros on `base`; `grads`: its halves get gradients. Fails where one hangs
  // there.
  Adapter& add(Param& base, const TermShape&, bool grads);
  // Puts these rows of `base` apart, as they are; ids [T] ascending. Fails where some are apart.
  TokenRows& add_rows(Param& base, std::vector<int64_t> ids, bool grads);
  std::span<const std::unique_ptr<Adapter>> all() const { return all_; }
  std::span<const std::unique_ptr<TokenRows>> rows() const { return rows_; }
  bool empty() const { return all_.empty() && rows_.empty(); }
  // Takes them off, and leaves the matrices as they were; hangs them there again.
  void take_off();
  void hang();

 private:
  Arena memory_;
  std::vector<std::unique_ptr<Adapter>> all_;
  std::vector<std::unique_ptr<TokenRows>> rows_;
};

// Several adapters of one model, which outlives this, of which at most one hangs on it at a time:
// what was chosen last, also when this is gone.
class AdapterChoice {
 public:
  // Takes off what hangs on the model, and returns its number: 1 for the first.
  int32_t add(std::shared_ptr<Adapters>);
  // 0: none of them, the model as it is.
  void choose(int32_t which);
  int32_t count() const { return static_cast<int32_t>(all_.size()); }

 private:
  std::vector<std::shared_ptr<Adapters>> all_;
  int32_t chosen_ = 0;
};

// Every matrix with its term or its rows apart in it, as f32 in the Model's memory, and those taken
// off: for who reads matrices themselves.
void merge_terms(Model&, int threads);

// row [I], which holds row o of w's expert e (0 of a matrix), becomes what products take it for: +=
// that row of its term, or the row apart; nothing where there is neither. Sums in f32, the r
// numbers in order.
void adapt_row(std::span<float> row, const Param& w, int64_t expert, int64_t o);

}  // namespace moe
