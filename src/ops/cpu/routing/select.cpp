// Selection. All comparisons are of scores as integer keys that hold the index too, so that the
// rule of ties is part of the comparison.
#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/op_checks.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {
namespace {

// Larger is better: the score's bits put in order, below them the index turned round. No two keys
// of one comparison are equal, and none is 0.
using Key = uint64_t;

Key key_of(uint32_t ordered, int64_t index) {
  return Key{ordered} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}
Key key_of(float score, int64_t index) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0: the two tie
  return key_of(bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u),
                index);
}
int64_t index_of(Key key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }
float score_of(Key key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

constexpr int64_t kBlock = 8;

Key best_of_block(const Key* keys) {
  Key best[kBlock / 2];
  for (int64_t i = 0; i < kBlock / 2; ++i) best[i] = std::max(keys[i], keys[i + kBlock / 2]);
  return std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
}

// The best of n keys that are all below `limit`; 0 when there is none.
Key best_below(const Key* keys, int64_t n, Key limit) {
  Key best = 0;
  for (int64_t i = 0; i < n; ++i) best = std::max(best, keys[i] < limit ? keys[i] : 0);
  return best;
}

// Ranks the experts of one token at a time. The memory is the thread's, taken once for all its
// tokens.
struct Ranking {
  Ranking(Arena& arena, int64_t expert_count, const ExpertGroups* expert_groups)
      : experts(expert_count),
        blocks((expert_count + kBlock - 1) / kBlock),
        grouped(expert_groups),
        keys(static_cast<Key*>(
            arena.alloc_bytes(static_cast<size_t>(blocks * kBlock) * sizeof(Key)))),
        best(static_cast<Key*>(arena.alloc_bytes(static_cast<size_t>(blocks) * sizeof(Key)))),
        groups(static_cast<Key*>(arena.alloc_bytes(
            static_cast<size_t>(grouped != nullptr ? grouped->groups : 0) * sizeof(Key)))) {
    std::fill(keys + experts, keys + blocks * kBlock, Key{0});
  }

  // out = the k best experts of this token in falling order; false where a score is not a number.
  // s, bias [E]; bias may be null
  bool rank(int32_t* out, int64_t k, const float* s, const float* bias) {
    bool broken = false;
    for (int64_t e = 0; e < experts; ++e) {
      const float score = bias != nullptr ? s[e] + bias[e] : s[e];
      broken |= score != score;
      keys[e] = key_of(score, e);
    }
    if (grouped != nullptr) broken |= !mask_groups();
    for (int64_t b = 0; b < blocks; ++b) best[b] = best_of_block(keys + b * kBlock);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = index_of(*std::max_element(best, best + blocks)), block = e / kBlock;
      out[i] = static_cast<int32_t>(e);
      keys[e] = 0;
      best[block] = best_of_block(keys + block * kBlock);
    }
    return !broken;
  }

 private:
  // Puts the experts outside the kept groups below every score there is, -inf too; false where a
  // group's score is not a number.
  bool mask_groups() {
    const int64_t size = experts / grouped->groups;
    bool broken = false;
    for (int64_t g = 0; g < grouped->groups; ++g) {
      Key taken = std::numeric_limits<Key>::max();
      float score = 0;
      for (int64_t i = 0; i < grouped->best; ++i) {
        taken = best_below(keys + g * size, size, taken);
        score += score_of(taken);
      }
      broken |= score != score;
      groups[g] = key_of(score, g);
    }
    Key last = std::numeric_limits<Key>::max();
    for (int64_t i = 0; i < grouped->keep; ++i) last = best_below(groups, grouped->groups, last);
    for (int64_t g = 0; g < grouped->groups; ++g)
      if (groups[g] < last)
        for (int64_t e = g * size; e < (g + 1) * size; ++e) keys[e] = key_of(uint32_t{0}, e);
    return !broken;
  }

  int64_t experts, blocks;
  const ExpertGroups* grouped;  // null: all experts compete
  Key* keys;                    // [blocks * kBlock], 0 where an expert is taken or none is
  Key* best;                    // [blocks] the best key of each block
  Key* groups;                  // [groups]
};

}  // namespace

void top_experts(Run& run, Tensor choice, Tensor s, Tensor bias, const ExpertGroups* grouped) {
  const float* b = bias.empty() ? nullptr : bias.as<float>();
  const int64_t tokens = s.rows(), k = choice.cols();
  std::vector<int64_t> broken(
      static_cast<size_t>(run.threads),
      tokens);  // the first token with a score that is not a number, by thread
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    ArenaScope scope(arena);
    Ranking ranking(arena, s.cols(), grouped);
    int64_t& first = broken[static_cast<size_t>(thread)];
    for (int64_t n = begin; n < end; ++n)
      if (!ranking.rank(choice.row<int32_t>(n), k, s.row<float>(n), b)) first = std::min(first, n);
  });
  need_numbers(*std::min_element(broken.begin(), broken.end()), tokens);
}

void select_all(Run&, Tensor selected) {
  for (int64_t n = 0; n < selected.rows(); ++n)
    std::fill_n(selected.row<int32_t>(n), selected.cols(), 1);
}

// Every expert's tokens, as the key of the last one it took in each scope; a token is taken when
// its own key is not below.
void top_tokens(Run& run, Tensor selected, Tensor cutoff, Tensor choice, Tensor s,
                std::span<const int64_t> bounds, std::span<const int64_t> take) {
  const int64_t tokens = s.rows(), experts = s.cols(),
                scopes = static_cast<int64_t>(bounds.size()) - 1;
  ArenaScope scratch(run.scratch);
  auto* last = static_cast<Key*>(
      run.scratch.alloc_bytes(static_cast<size_t>(scopes * experts) * sizeof(Key)));  // [scopes, E]
  parallel_for(run.threads, experts, 1, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    ArenaScope scope(arena);
    Key* keys = static_cast<Key*>(arena.alloc_bytes(static_cast<size_t>(tokens) * sizeof(Key)));
    for (int64_t e = begin; e < end; ++e) {
      double sum = 0;
      int64_t counted = 0;
      for (int64_t i = 0; i < scopes; ++i) {
        const int64_t from = bounds[static_cast<size_t>(i)],
                      n = bounds[static_cast<size_t>(i) + 1] - from;
        if (n == 0) continue;
        for (int64_t t = 0; t < n; ++t) keys[t] = key_of(s.row<float>(from + t)[e], from + t);
        Key* const cut = keys + take[static_cast<size_t>(i)] - 1;
        std::nth_element(keys, cut, keys + n, std::greater<>());
        last[i * experts + e] = *cut;
        sum += score_of(*cut);
        ++counted;
      }
      cutoff.as<float>()[e] =
          counted > 0 ? static_cast<float>(sum / static_cast<double>(counted)) : 0;
    }
  });
  for (int64_t i = 0; i < scopes; ++i) {
    const int64_t from = bounds[static_cast<size_t>(i)];
    each_token(run, bounds[static_cast<size_t>(i) + 1] - from, [&](int64_t t) {
      const int64_t n = from + t;
      const int32_t* expert = choice.row<int32_t>(n);
      for (int64_t j = 0; j < experts; ++j)
        selected.row<int32_t>(n)[j] =
            key_of(s.row<float>(n)[expert[j]], n) >= last[i * experts + expert[j]];
    });
  }
}

void reach_threshold(Run& run, Tensor selected, Tensor choice, Tensor s, Tensor threshold) {
  each_token(run, s.rows(), [&](int64_t n) {
    const int32_t* expert = choice.row<int32_t>(n);
    for (int64_t j = 0; j < choice.cols(); ++j)
      selected.row<int32_t>(n)[j] = s.row<float>(n)[expert[j]] >= threshold.as<float>()[expert[j]];
  });
}

void count_on_from_ids(Run& run, Tensor choice, std::span<const int32_t> ids, int64_t experts) {
  each_token(run, choice.rows(), [&](int64_t n) {
    for (int64_t i = 0; i < choice.cols(); ++i)
      choice.row<int32_t>(n)[i] = static_cast<int32_t>((ids[static_cast<size_t>(n)] + i) % experts);
  });
}

void shuffle_by_ids(Run& run, Tensor choice, std::span<const int32_t> ids, int64_t experts,
                    RngKey seed) {
  parallel_for(run.threads, choice.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    Arena& arena = run.thread_scratch[static_cast<size_t>(thread)];
    ArenaScope scope(arena);
    auto* order =
        static_cast<int32_t*>(arena.alloc_bytes(static_cast<size_t>(experts) * sizeof(int32_t)));
    for (int64_t n = begin; n < end; ++n) {
      const RngKey key = seed.fold(static_cast<uint64_t>(ids[static_cast<size_t>(n)]));
      std::iota(order, order + experts, 0);
      for (int64_t i = 0; i < choice.cols(); ++i) {
        std::swap(
            order[i],
            order[i + static_cast<int64_t>(uniform_index(key, static_cast<uint64_t>(i),
                                                         static_cast<uint64_t>(experts - i)))]);
        choice.row<int32_t>(n)[i] = order[i];
      }
    }
  });
}

}  // namespace moe::ops::cpu
