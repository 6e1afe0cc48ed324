// The losses that multiply a share of the load by a probability: over experts, over devices, and
// over the devices a token is sent to. All are
//   sum over tokens n and experts e of slope[scope of n, e] * p[n, e]
// with slopes that are constants for the gradient: (1/N) E f_e for the balance loss, as the mean
// over scopes is weighted by their tokens, and (1/N) f_d for every expert e of device d for the
// others. So the slopes are all that differs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "moe/losses/loss_parts.h"
#include "ops/routing.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;

struct Slopes {
  std::vector<int64_t> bounds;  // scope i is the tokens [bounds[i], bounds[i+1])
  std::span<double> of;         // [scopes,E] in `made`, or in run.scratch, until that is rewound
  std::vector<double> made;
  int64_t experts;

  Slopes(const Routing& in, const Pass& pass, const Scope& scope)
      : bounds(scope_bounds(scope, pass.batch.bounds, in.tokens())), experts(in.experts) {}
  Slopes(Slopes&&) = default;  // `made` stays where it is
  // On the CPU, all 0.
  void make_here() {
    made.assign(scopes() * static_cast<size_t>(experts), 0.0);
    of = made;
  }
  // Where the run computes.
  void make_there(Run& run) {
    const size_t count = scopes() * static_cast<size_t>(experts);
    of = {static_cast<double*>(run.scratch.alloc_bytes(count * sizeof(double))), count};
  }
  size_t scopes() const { return bounds.size() - 1; }
  double* row(size_t scope) { return of.data() + scope * static_cast<size_t>(experts); }
  int64_t tokens() const { return bounds.back(); }
};

ops::ShareOf share_of(Probs probs) {
  switch (probs) {
    case Probs::scores: return ops::ShareOf::scores;
    case Probs::normalised_scores: return ops::ShareOf::normalised_scores;
    case Probs::softmax: return ops::ShareOf::softmax;
    case Probs::chosen_weights: return ops::ShareOf::chosen_weights;
  }
  return ops::ShareOf::scores;
}

ops::TokenShares shares_of(const Routing& in, Probs probs) {
  return {share_of(probs), in.scores, in.weights, in.choice, in.selected};
}

void forward(Run& run, Tensor value, const Routing& in, Probs probs, const Slopes& slopes) {
  ops::slopes_forward(run, value, shares_of(in, probs), slopes.bounds, slopes.of);
}

void backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& in, Probs probs,
                  const Slopes& slopes, double coef) {
  ops::slopes_backward_acc(run, ds, dw, shares_of(in, probs), slopes.bounds, slopes.of, coef);
}

// The experts of every token whose counts are meant, in the first `cols` columns.
struct Counted {
  Tensor choice, selected;  // [N,K] i32; selected absent: all of them
  int64_t cols;
};
// What is not in the routing lives in run.scratch; the caller rewinds.
Counted counted_choices(Run& run, const Routing& in, Counts counts) {
  if (counts == Counts::first_choice) return {in.choice, in.selected, 1};
  if (counts == Counts::all_choices) return {in.choice, in.selected, in.choice.cols()};
  const Counted best{run.scratch.alloc(DType::i32, {in.tokens(), in.slots()}), {}, in.slots()};
  ops::top_experts(run, best.choice, in.scores, {});
  return best;
}

// Pairs of each scope in run.scratch; the caller rewinds.  [scopes,E] i32
Tensor counts_of(Run& run, const Slopes& slopes, const Counted& from) {
  const auto scopes = static_cast<int64_t>(slopes.scopes());
  const Tensor counts = run.scratch.alloc(DType::i32, {scopes, slopes.experts});
  for (int64_t s = 0; s < scopes; ++s) {
    const auto part = [&](const Tensor& t) {
      return t.empty() ? t
                       : t.slice_rows(slopes.bounds[static_cast<size_t>(s)],
                                      slopes.bounds[static_cast<size_t>(s) + 1]);
    };
    ops::count_pairs(run, counts.at(s), part(from.choice), part(from.selected), from.cols);
  }
  return counts;
}

double experts_a_token(const Slopes& slopes) {
  return static_cast<double>(slopes.experts) / static_cast<double>(slopes.tokens());
}

// (E/N) f_e, in run.scratch; the caller rewinds.
Slopes balance_slopes(Run& run, const Routing& in, const Pass& pass, const BalanceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  const std::span<const int64_t> other = loss.shares == BalanceLoss::Shares::own
                                             ? std::span<const int64_t>{}
                                             : pass.step_counts_of(in.index);
  const bool counts_own = loss.shares == BalanceLoss::Shares::own ||
                          loss.shares == BalanceLoss::Shares::running || other.empty();
  Tensor counts;
  if (counts_own && slopes.scopes() == 1 && !in.balance_counts.empty())
    counts = in.balance_counts.reshape({1, in.experts});
  else if (counts_own) counts = counts_of(run, slopes, counted_choices(run, in, loss.counts));
  slopes.make_there(run);
  ops::slopes_of_counts(run, slopes.of, counts, other, experts_a_token(slopes));
  return slopes;
}

// (1/N) times the mean of E f_e over the expert's device.
Slopes device_slopes(Run& run, const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  const int64_t of_device = in.experts / loss.devices;
  slopes.make_here();
  {
    const ArenaScope scope(run.scratch);
    OnHost host(run);
    const Tensor counts = counts_of(run, slopes, {in.choice, in.selected, in.choice.cols()});
    ops::slopes_of_counts(run.device == nullptr ? run : run.on_cpu(), slopes.of, host.read(counts),
                          {}, experts_a_token(slopes));
  }
  for (size_t s = 0; s < slopes.scopes(); ++s) {
    double* row = slopes.row(s);
    for (double* first = row; first < row + in.experts; first += of_device)
      std::fill_n(first, of_device,
                  std::accumulate(first, first + of_device, 0.0) / static_cast<double>(of_device));
  }
  return slopes;
}

// (1/N) (D/M) times the share of the scope's tokens that have an expert on the expert's device.
Slopes communication_slopes(Run& run, const Routing& in, const Pass& pass, const DeviceLoss& loss) {
  Slopes slopes(in, pass, loss.scope);
  slopes.make_here();
  OnHost host(run);
  const Tensor choice = host.read(in.choice), selected = host.read(in.selected);
  const int64_t of_device = in.experts / loss.devices;
  // [D] the token counted last; tokens counted
  std::vector<int64_t> last(static_cast<size_t>(loss.devices), -1), sent(last.size());
  for (size_t s = 0; s < slopes.scopes(); ++s) {
    std::fill(sent.begin(), sent.end(), 0);
    for (int64_t n = slopes.bounds[s]; n < slopes.bounds[s + 1]; ++n)
      for (int64_t i = 0; i < in.choice.cols(); ++i) {
        const auto device = static_cast<size_t>(choice.row<int32_t>(n)[i] / of_device);
        if (selected.row<int32_t>(n)[i] == 0 || last[device] == n) continue;
        last[device] = n;
        ++sent[device];
      }
    const double scope_tokens = static_cast<double>(slopes.bounds[s + 1] - slopes.bounds[s]);
    const double unit =
        static_cast<double>(loss.devices) /
        (static_cast<double>(loss.at_most) * scope_tokens * static_cast<double>(slopes.tokens()));
    for (int64_t e = 0; e < in.experts; ++e)
      slopes.row(s)[e] = unit * static_cast<double>(sent[static_cast<size_t>(e / of_device)]);
  }
  return slopes;
}

}  // namespace

void count_for_balance(Run& run, Tensor counts, const Routing& in, const BalanceLoss& loss) {
  ArenaScope scope(run.scratch);
  const Counted from = counted_choices(run, in, loss.counts);
  ops::count_pairs(run, counts, from.choice, from.selected, from.cols);
}

void balance_forward(Run& run, Tensor value, const Routing& in, const Pass& pass,
                     const BalanceLoss& loss) {
  const ArenaScope scope(run.scratch);
  forward(run, value, in, loss.probs, balance_slopes(run, in, pass, loss));
}
void balance_backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& in, const Pass& pass,
                          const BalanceLoss& loss, float coef) {
  const ArenaScope scope(run.scratch);
  backward_acc(run, ds, dw, in, loss.probs, balance_slopes(run, in, pass, loss), coef);
}

void device_forward(Run& run, Tensor value, const Routing& in, const Pass& pass,
                    const DeviceLoss& loss) {
  forward(run, value, in, Probs::normalised_scores, device_slopes(run, in, pass, loss));
}
void device_backward_acc(Run& run, Tensor ds, const Routing& in, const Pass& pass,
                         const DeviceLoss& loss, float coef) {
  backward_acc(run, ds, {}, in, Probs::normalised_scores, device_slopes(run, in, pass, loss), coef);
}

void communication_forward(Run& run, Tensor value, const Routing& in, const Pass& pass,
                           const DeviceLoss& loss) {
  forward(run, value, in, Probs::normalised_scores, communication_slopes(run, in, pass, loss));
}
void communication_backward_acc(Run& run, Tensor ds, const Routing& in, const Pass& pass,
                                const DeviceLoss& loss, float coef) {
  backward_acc(run, ds, {}, in, Probs::normalised_scores, communication_slopes(run, in, pass, loss),
               coef);
}

}  // namespace moe
