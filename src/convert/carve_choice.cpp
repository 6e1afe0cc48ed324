// The router of a layer that is carved, over the text, and how its choices compare with those of
// the largest sums of |hidden|.
#include <algorithm>
#include <numeric>

#include "convert/carve_steps.h"
#include "core/threads.h"

namespace moe {
namespace {

class Agreement {
 public:
  explicit Agreement(const Carving& c)
      : c_(c), slices_(c.shape.experts + 1), slice_of_(c.partition.expert_of()) {
    for (int32_t& s : slice_of_) s = s < 0 ? static_cast<int32_t>(c.shape.experts) : s;
  }

  // choice [*,A] of tokens from `first` on
  void see(int64_t first, Tensor choice) {
    // Ranking each neuron of each token would take as long as all the rest.
    const int64_t step = c_.carved.by_neuron ? kEvery : 1, experts = slices_ - 1;
    Activations some;
    const int64_t count = (choice.rows() + step - 1) / step;
    some.hidden = c_.a.hidden.slice_rows(first, first + choice.rows());
    some.hidden.row_bytes *= step;
    some.hidden.shape[0] = count;
    some.up = some.x = some.hidden;
    const std::vector<float> mass = slice_mass(c_.run, some, slice_of_, slices_);
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int64_t n = 0; n < count; ++n) {
      const float* m = mass.data() + n * slices_;
      all_ += std::accumulate(m, m + slices_, 0.0);
      shared_ += static_cast<double>(m[experts]);
      std::iota(order.begin(), order.end(), 0);
      const auto cut = order.begin() + c_.active;
      const auto first_is_better = [&](int32_t a, int32_t b) {
        return m[a] != m[b] ? m[a] > m[b] : a < b;
      };
      std::nth_element(order.begin(), cut, order.end(), first_is_better);
      std::vector<bool> best(order.size());
      std::for_each(order.begin(), cut, [&](int32_t e) { best[static_cast<size_t>(e)] = true; });
      const int32_t* chosen = choice.row<int32_t>(n * step);
      for (int64_t k = 0; k < c_.active; ++k) agreed_ += best[static_cast<size_t>(chosen[k])];
    }
    tokens_ += count;
  }
  double share() const {
    return static_cast<double>(agreed_) / static_cast<double>(tokens_ * c_.active);
  }
  double shared_mass() const { return all_ > 0 ? shared_ / all_ : 0; }

 private:
  static constexpr int64_t kEvery = 16;  // tokens of which one is looked at
  const Carving& c_;
  int64_t slices_;
  std::vector<int32_t> slice_of_;
  double all_ = 0, shared_ = 0;
  int64_t agreed_ = 0, tokens_ = 0;
};

// hidden[n,f] = 0 where neuron f is of an expert that token n did not choose.  hidden [*,F] A;
// choice [*,A]; expert_of [F], -1: always on
template <class T>
void keep_chosen(Run& run, Tensor hidden, Tensor choice, std::span<const int32_t> expert_of,
                 int64_t experts) {
  parallel_for(run.threads, choice.rows(), 16, [&](int64_t begin, int64_t end, int) {
    std::vector<char> works(static_cast<size_t>(experts + 1));  // [0]: what is always on
    for (int64_t n = begin; n < end; ++n) {
      std::fill(works.begin() + 1, works.end(), char{0});
      works[0] = 1;
      for (int64_t k = 0; k < choice.cols(); ++k)
        works[static_cast<size_t>(choice.row<int32_t>(n)[k]) + 1] = 1;
      T* row = hidden.row<T>(n);
      for (size_t f = 0; f < expert_of.size(); ++f)
        if (works[static_cast<size_t>(expert_of[f] + 1)] == 0) row[f] = T{};
    }
  });
}

}  // namespace

Choices choose_experts(Carving& c) {
  Run& run = c.run;
  if (c.biases() > 0) c.choice = run.saved.alloc(DType::i32, {c.tokens(), c.active});
  const std::vector<int32_t> expert_of = c.partition.expert_of();
  Choices made{.counts = std::vector<int64_t>(static_cast<size_t>(c.shape.experts))};
  Agreement agreed(c);
  const std::span<const int64_t> bounds = c.pass.batch.bounds;
  // The scores of all neurons of all tokens would fill gigabytes.
  const size_t sequences = c.carved.by_neuron ? 1 : bounds.size() - 1;
  for (size_t s = 0; s + 1 < bounds.size(); s += sequences) {
    const ArenaScope scope(run.saved);
    const int64_t begin = bounds[s], end = bounds[s + sequences];
    std::vector<int64_t> own;
    for (size_t i = s; i <= s + sequences; ++i) own.push_back(bounds[i] - begin);
    Pass piece = c.pass;
    const auto part = [&](std::span<const int32_t> all) {
      return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    };
    piece.batch = {part(c.pass.batch.ids), part(c.pass.batch.positions), own};
    Routing routing;
    c.carved.router->choose(run, c.a.x.slice_rows(begin, end), piece, {}, routing);
    for (int64_t e = 0; e < c.shape.experts; ++e)
      made.counts[static_cast<size_t>(e)] += routing.counts.as<int32_t>()[e];
    agreed.see(begin, routing.choice);
    const Tensor hidden = c.a.hidden.slice_rows(begin, end);
    if (hidden.dtype == DType::bf16)
      keep_chosen<bf16>(run, hidden, routing.choice, expert_of, c.shape.experts);
    else keep_chosen<float>(run, hidden, routing.choice, expert_of, c.shape.experts);
    for (int64_t n = begin; n < end && !c.choice.empty(); ++n)
      std::copy_n(routing.choice.row<int32_t>(n - begin), c.active, c.choice.row<int32_t>(n));
  }
  made.shared_mass = agreed.shared_mass();
  made.agreement = agreed.share();
  return made;
}

}  // namespace moe
