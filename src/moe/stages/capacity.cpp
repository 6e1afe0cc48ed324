// Which pairs find room. Places are given out one pair at a time in the order of the stage, so what
// is kept never depends on threads; orders that look at weights or draws sort whole numbers whose
// lower half is the pair's own index, so that no two are equal.
#include "moe/stages/capacity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/json.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

using Order = BufferCapacity::Order;

// What places are given out in: the pairs of one scope, and the room that is left for them.
struct Placing {
  Tensor kept, choice, selected, w;  // [N,K]
  const BufferCapacity& buffer;
  RngKey key;
  int64_t zero_from;            // experts from there on take whatever comes
  int64_t slots = 0;            // places of one expert
  std::vector<int64_t> used{};  // [E] of them taken
  int64_t dropped = 0;

  void operator()(int64_t n, int64_t i) {
    const bool asked = selected.row<int32_t>(n)[i] != 0;
    const int32_t expert = choice.row<int32_t>(n)[i];
    int64_t& taken = used[static_cast<size_t>(expert)];
    const bool fits = taken < slots || expert >= zero_from;
    kept.row<int32_t>(n)[i] = asked && fits;
    dropped += asked && !fits;
    if (asked || buffer.skipped_take_room) taken += fits;
  }
};

// Sorts (x, index): rising x, equal ones by index. Bits of a float that is not negative rise with
// it; those of a negative one fall.
uint64_t rising(float x, int64_t index) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);  // no negative zero
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(index);
}
uint64_t falling(float x, int64_t index) { return rising(-x, index); }
int64_t token_choice(uint64_t key) { return static_cast<uint32_t>(key); }

void place_by_token(Placing& place, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n)
    for (int64_t i = 0; i < place.choice.cols(); ++i) place(n, i);
}

void place_by_choice(Placing& place, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < place.choice.cols(); ++i)
    for (int64_t n = begin; n < end; ++n) place(n, i);
}

void place_best_tokens_first(Placing& place, int64_t begin, int64_t end) {
  std::vector<uint64_t> order;
  for (int64_t n = begin; n < end; ++n) order.push_back(falling(place.w.row<float>(n)[0], n));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < place.choice.cols(); ++i)
    for (uint64_t at : order) place(token_choice(at), i);
}

void place_at_random(Placing& place, int64_t begin, int64_t end) {
  const RngKey key = place.key.fold(2);
  const int64_t tokens = place.choice.rows();
  std::vector<uint64_t> order;
  for (int64_t i = 0; i < place.choice.cols(); ++i) {
    order.clear();
    for (int64_t n = begin; n < end; ++n)
      order.push_back(rising(uniform(key, static_cast<uint64_t>(i * tokens + n)), n));
    std::sort(order.begin(), order.end());
    for (uint64_t at : order) place(token_choice(at), i);
  }
}

// An expert's places go to its heaviest pairs whatever the others do, so only experts that are
// asked for too much are sorted, and those only in part.
void place_by_weight(Placing& place, int64_t begin, int64_t end) {
  const int64_t k = place.choice.cols();
  // [E+1] where an expert's pairs stand in `pairs`
  std::vector<int64_t> bounds(place.used.size() + 1, 0);
  const auto each_pair = [&](auto&& f) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t i = 0; i < k; ++i)
        if (place.selected.row<int32_t>(n)[i] != 0 || place.buffer.skipped_take_room)
          f(n, i, static_cast<size_t>(place.choice.row<int32_t>(n)[i]));
  };
  for (int64_t n = begin; n < end; ++n) std::fill_n(place.kept.row<int32_t>(n), k, 0);
  each_pair([&](int64_t, int64_t, size_t e) { ++bounds[e + 1]; });
  std::partial_sum(bounds.begin(), bounds.end(), bounds.begin());
  std::vector<uint64_t> pairs(static_cast<size_t>(bounds.back()));
  std::vector<int64_t> next(bounds.begin(), bounds.end() - 1);
  each_pair([&](int64_t n, int64_t i, size_t e) {
    pairs[static_cast<size_t>(next[e]++)] = falling(place.w.row<float>(n)[i], (n - begin) * k + i);
  });
  for (size_t e = 0; e < place.used.size(); ++e) {
    const auto first = pairs.begin() + bounds[e], last = pairs.begin() + bounds[e + 1];
    if (place.slots < last - first) std::nth_element(first, first + place.slots, last);
    for (auto at = first; at != last; ++at)
      place(begin + token_choice(*at) / k, token_choice(*at) % k);
  }
}

void place_scope(Placing& place, int64_t begin, int64_t end) {
  switch (place.buffer.order) {
    case Order::choice_major: return place_by_choice(place, begin, end);
    case Order::token_major: return place_by_token(place, begin, end);
    case Order::by_weight: return place_by_weight(place, begin, end);
    case Order::batch_priority: return place_best_tokens_first(place, begin, end);
    case Order::random:
      return place.key.empty() ? place_by_choice(place, begin, end)
                               : place_at_random(place, begin, end);
  }
}

}  // namespace

int64_t expert_capacity(const BufferCapacity& c, int64_t tokens, int64_t experts, int64_t top_k) {
  constexpr double kEndless = 0x1p62;  // a factor may be as large as one likes
  const double asked = shortest_decimal(c.factor) *
                       static_cast<double>((c.count_choices ? top_k : 1) * tokens) /
                       static_cast<double>(experts);
  const double wanted = std::min(asked, kEndless);
  int64_t slots = 0;
  switch (c.rounding) {
    case BufferCapacity::Rounding::floor: slots = static_cast<int64_t>(std::floor(wanted)); break;
    case BufferCapacity::Rounding::floor_to_even:
      slots = static_cast<int64_t>(std::floor(wanted));
      slots += slots % 2;
      break;
    case BufferCapacity::Rounding::round:
      slots = static_cast<int64_t>(std::nearbyint(wanted));
      break;
    case BufferCapacity::Rounding::ceil: slots = static_cast<int64_t>(std::ceil(wanted)); break;
  }
  if (c.at_most_tokens) slots = std::min(slots, tokens);
  return std::max(slots, c.minimum);
}

int64_t capacity_forward(Run& run, Tensor kept, Tensor choice, Tensor selected, Tensor w,
                         std::span<const int64_t> bounds, int64_t experts,
                         const BufferCapacity& buffer, RngKey key, int64_t zero_from) {
  OnHost host(run);
  Placing place{.kept = host.write(kept),
                .choice = host.read(choice),
                .selected = host.read(selected),
                .w = host.read(w),
                .buffer = buffer,
                .key = key,
                .zero_from = zero_from};
  const std::vector<int64_t> scopes = scope_bounds(buffer.scope, bounds, choice.rows());
  for (size_t s = 0; s + 1 < scopes.size(); ++s) {
    place.slots = expert_capacity(buffer, scopes[s + 1] - scopes[s], experts, choice.cols());
    place.used.assign(static_cast<size_t>(experts), 0);
    place_scope(place, scopes[s], scopes[s + 1]);
  }
  return place.dropped;
}

}  // namespace moe
