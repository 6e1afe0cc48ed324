// Choices to entries and back, entry by entry; what a token takes depends on nothing but its own
// entries.
#include "moe/stages/replay.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "moe/stages/stage_math.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

// Whether the entries [K] name experts that there are, each at most once. seen [E] is false on
// entry and on return.
bool is_valid(const int32_t* entries, int64_t slots, int64_t experts, std::vector<char>& seen) {
  bool valid = true;
  for (int64_t i = 0; i < slots; ++i) {
    const int32_t e = chosen_expert(entries[i]);
    if (e == kNothingChosen) continue;
    valid &= e < experts && !seen[static_cast<size_t>(e)];
    if (e < experts) seen[static_cast<size_t>(e)] = 1;
  }
  for (int64_t i = 0; i < slots; ++i)
    if (const int32_t e = chosen_expert(entries[i]); e != kNothingChosen && e < experts)
      seen[static_cast<size_t>(e)] = 0;
  return valid;
}

[[noreturn]] void fail_token(const int32_t* entries, int64_t slots, int64_t experts, int64_t token,
                             int64_t tokens, const std::string& where) {
  std::vector<char> seen(static_cast<size_t>(experts));
  for (int64_t i = 0; i < slots; ++i) {
    const int32_t e = chosen_expert(entries[i]);
    if (e == kNothingChosen) continue;
    if (e >= experts)
      fail(
          "{}: token {} of {} has expert {} at rank {}, but there are {} experts, from 0 on; it "
          "was made with another model, or is damaged",
          where, token, tokens, e, i, experts);
    if (seen[static_cast<size_t>(e)])
      fail(
          "{}: token {} of {} has expert {} twice; a token goes to an expert once, so the record "
          "is damaged",
          where, token, tokens, e);
    seen[static_cast<size_t>(e)] = 1;
  }
  fail("{}: token {} of {} cannot be read", where, token, tokens);
}

}  // namespace

void record_choices(Tensor out, Tensor choice, Tensor selected, Tensor kept) {
  for (int64_t n = 0; n < choice.rows(); ++n)
    for (int64_t i = 0; i < choice.cols(); ++i) {
      const int32_t e = choice.row<int32_t>(n)[i];
      out.row<int32_t>(n)[i] = selected.row<int32_t>(n)[i] == 0 ? kNothingChosen
                               : kept.row<int32_t>(n)[i] == 0   ? not_sent(e)
                                                                : e;
    }
}

void check_recorded(Tensor recorded, int64_t tokens, int64_t slots, int64_t experts,
                    const std::string& where, int threads) {
  if (recorded.dtype != DType::i32 || recorded.rank != 2 || recorded.rows() != tokens ||
      recorded.cols() != slots)
    fail(
        "{} is {}, but {} tokens with {} choices each are routed, which is i32 [{}, {}]; give the "
        "record of these tokens and of a model that routes alike",
        where, describe(recorded), tokens, slots, tokens, slots);
  // the first token that cannot be replayed, by thread
  std::vector<int64_t> broken(static_cast<size_t>(threads), tokens);
  parallel_for(threads, tokens, kGrain, [&](int64_t begin, int64_t end, int thread) {
    std::vector<char> seen(static_cast<size_t>(experts));
    int64_t& first = broken[static_cast<size_t>(thread)];
    for (int64_t n = begin; n < end; ++n)
      if (!is_valid(recorded.row<int32_t>(n), slots, experts, seen)) first = std::min(first, n);
  });
  const int64_t first = *std::min_element(broken.begin(), broken.end());
  if (first < tokens)
    fail_token(recorded.row<int32_t>(first), slots, experts, first, tokens, where);
}

int64_t replay_choices(Run& run, Tensor choice, Tensor selected, Tensor kept, Tensor agreed,
                       Tensor recorded, int64_t experts) {
  const int64_t k = recorded.cols();
  OnHost host(run);
  choice = host.write(choice), selected = host.write(selected), kept = host.write(kept);
  agreed = host.write(agreed);
  std::vector<int64_t> own(static_cast<size_t>(run.threads), 0);  // by thread
  parallel_for(run.threads, recorded.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    enum : char { kFree, kOwn, kTaken };
    std::vector<char> of_token(static_cast<size_t>(experts));
    for (int64_t n = begin; n < end; ++n) {
      std::fill(of_token.begin(), of_token.end(), kFree);
      int32_t *expert = choice.row<int32_t>(n), *taken = selected.row<int32_t>(n),
              *stays = kept.row<int32_t>(n);
      for (int64_t i = 0; i < k; ++i) {
        if (taken[i] == 0) continue;
        of_token[static_cast<size_t>(expert[i])] = kOwn;
        ++own[static_cast<size_t>(thread)];
      }
      const int32_t* entry = recorded.row<int32_t>(n);
      int32_t both = 0;
      for (int64_t i = 0; i < k; ++i) {
        taken[i] = entry[i] != kNothingChosen;
        stays[i] = entry[i] >= 0;
        if (taken[i] == 0) continue;
        expert[i] = chosen_expert(entry[i]);
        both += of_token[static_cast<size_t>(expert[i])] == kOwn;
        of_token[static_cast<size_t>(expert[i])] = kTaken;
      }
      agreed.as<int32_t>()[n] = both;
      int32_t next = 0;
      for (int64_t i = 0; i < k; ++i) {
        if (taken[i] != 0) continue;
        while (of_token[static_cast<size_t>(next)] == kTaken) ++next;
        expert[i] = next++;
      }
    }
  });
  return std::accumulate(own.begin(), own.end(), int64_t{0});
}

}  // namespace moe
