// Keys and values of texts that were read, found again by the tokens that a new text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/kv_cache.h"

namespace moe {

// Tokens that there is room for in the whole blocks that so many need.
inline int64_t in_blocks(int64_t tokens) {
  return (tokens + ops::kKeyBlock - 1) / ops::kKeyBlock * ops::kKeyBlock;
}

// A tree of full blocks: a child's tokens follow its parent's, so that a block stands for all
// tokens from the first one on. Sequences that stretch (KvCache::stretched) have a root of their
// own, since their keys are others, and so has each adapter (model/adapters.h). It holds its blocks
// of the cache, which outlives it, beside the sequences that have them. For one thread at a time.
class PrefixCache {
 public:
  explicit PrefixCache(KvCache& cache) : cache_(cache) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Lets a sequence without tokens begin with the blocks that agree with `ids`, and returns how
  // many tokens that is; at least the last of `ids` stays to be read, since its logits are wanted.
  int64_t adopt(int32_t slot, std::span<const int32_t> ids, int32_t adapter = 0);
  // As many as adopt() would find for a sequence that stretches or does not.
  int64_t held(std::span<const int32_t> ids, bool stretched = false, int32_t adapter = 0) const;
  // Holds the full blocks of a sequence, whose tokens are `ids`.
  void keep(int32_t slot, std::span<const int32_t> ids, int32_t adapter = 0);
  // Lets go of blocks that no sequence has, those that were asked for longest ago first, until the
  // cache has room for so many tokens. Where they do not suffice, sequences keep their blocks to
  // themselves: what lies before those in the tree, and is nobody's, goes too.
  void make_room(int64_t tokens);

 private:
  using Tokens = std::array<int32_t, ops::kKeyBlock>;
  using Key = std::pair<int64_t, Tokens>;  // the parent's number, and what follows its tokens
  struct Node {
    Node* parent = nullptr;
    int64_t number = 0;
    int32_t block = 0;
    int64_t children = 0;
    uint64_t used = 0;  // when it was asked for last
  };

  // Numbers of nodes begin above 0.
  static int64_t root(bool stretched, int32_t adapter) {
    return -2 * static_cast<int64_t>(adapter) - (stretched ? 1 : 0);
  }
  // f(node) along the held blocks that agree with `ids`, at most `blocks` of them.
  template <class F>
  static void walk(auto& nodes, int64_t root, std::span<const int32_t> ids, int64_t blocks,
                   const F& f);
  // Of the blocks that none follows, the one asked for longest ago; `held`: one that a sequence
  // has.
  bool drop_oldest(bool held);

  KvCache& cache_;
  std::map<Key, Node> nodes_;
  int64_t last_number_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace moe
