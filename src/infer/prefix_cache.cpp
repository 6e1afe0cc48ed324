#include "infer/prefix_cache.h"

#include <algorithm>

namespace moe {
namespace {

template <class Tokens>
Tokens tokens_of_block(std::span<const int32_t> ids, int64_t block) {
  Tokens tokens;
  std::copy_n(ids.begin() + block * ops::kKeyBlock, ops::kKeyBlock, tokens.begin());
  return tokens;
}

// All but the last token's, which is read in any case.
int64_t blocks_to_take(std::span<const int32_t> ids) {
  return std::max<int64_t>(std::ssize(ids) - 1, 0) / ops::kKeyBlock;
}

}  // namespace

PrefixCache::~PrefixCache() {
  for (const auto& [key, node] : nodes_) cache_.release(node.block);
}

template <class F>
void PrefixCache::walk(auto& nodes, int64_t root, std::span<const int32_t> ids, int64_t blocks,
                       const F& f) {
  int64_t parent = root;
  for (int64_t i = 0; i < blocks; ++i) {
    const auto found = nodes.find({parent, tokens_of_block<Tokens>(ids, i)});
    if (found == nodes.end()) return;
    parent = found->second.number;
    f(found->second);
  }
}

int64_t PrefixCache::adopt(int32_t slot, std::span<const int32_t> ids, int32_t adapter) {
  std::vector<int32_t> blocks;
  ++clock_;
  walk(nodes_, root(cache_.stretched(slot), adapter), ids, blocks_to_take(ids), [&](Node& node) {
    node.used = clock_;
    blocks.push_back(node.block);
  });
  cache_.adopt(slot, blocks);
  return std::ssize(blocks) * ops::kKeyBlock;
}

int64_t PrefixCache::held(std::span<const int32_t> ids, bool stretched, int32_t adapter) const {
  int64_t blocks = 0;
  walk(nodes_, root(stretched, adapter), ids, blocks_to_take(ids), [&](const Node&) { ++blocks; });
  return blocks * ops::kKeyBlock;
}

void PrefixCache::keep(int32_t slot, std::span<const int32_t> ids, int32_t adapter) {
  if (cache_.has_states()) return;  // of blocks alone nothing could go on
  const std::span<const int32_t> blocks = cache_.blocks(slot);
  const int64_t full = std::min(std::ssize(ids), cache_.length(slot)) / ops::kKeyBlock;
  const int64_t root = PrefixCache::root(cache_.stretched(slot), adapter);
  Node* parent = nullptr;
  int64_t at = 0;
  ++clock_;
  walk(nodes_, root, ids, full, [&](Node& node) {
    node.used = clock_;
    parent = &node;
    ++at;
  });
  for (; at < full; ++at) {
    const int32_t block = blocks[static_cast<size_t>(at)];
    const Key key{parent != nullptr ? parent->number : root, tokens_of_block<Tokens>(ids, at)};
    Node& node = nodes_[key] = {parent, ++last_number_, block, 0, clock_};
    cache_.retain(block);
    if (parent != nullptr) ++parent->children;
    parent = &node;
  }
}

bool PrefixCache::drop_oldest(bool held) {
  auto oldest = nodes_.end();
  for (auto entry = nodes_.begin(); entry != nodes_.end(); ++entry) {
    const Node& node = entry->second;
    if (node.children > 0 || (cache_.holders(node.block) > 1) != held) continue;
    if (oldest == nodes_.end() || node.used < oldest->second.used) oldest = entry;
  }
  if (oldest == nodes_.end()) return false;
  cache_.release(oldest->second.block);
  if (Node* parent = oldest->second.parent; parent != nullptr) --parent->children;
  nodes_.erase(oldest);
  return true;
}

void PrefixCache::make_room(int64_t tokens) {
  while (cache_.available() < tokens && (drop_oldest(false) || drop_oldest(true))) {
  }
}

}  // namespace moe
