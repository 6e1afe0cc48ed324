// The keys of attention that sees what an indexer chooses, single tokens or blocks of them (github
// ggml-org/llama.cpp src/models/deepseek2.cpp, src/models/minimax-m3.cpp).
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr const char *kTop = "attention.indexer.top_k",
                     *kIndexHeads = "attention.indexer.head_count",
                     *kIndexWidth = "attention.indexer.key_length",
                     *kIndexTypes = "attention.indexer.types",
                     *kIndexBlock = "attention.indexer.block_size",
                     *kIndexLocal = "attention.indexer.local_blocks";

// Layers that route have an indexer; which these are the tensors show. The first key counts blocks.
void read_gguf_blocks(const Gguf& file, GgufKeys& keys, ModelConfig& c) {
  constexpr int64_t kMost = int64_t{1} << 20;  // so that their product is far from overflow
  c.sparse.block = keys.size(kIndexBlock, 1, kMost);
  c.sparse.local = keys.size(kIndexLocal, 1);
  c.sparse.top = keys.size(kTop, 1, kMost) * c.sparse.block;
  for (int64_t i = 0; i < c.layers; ++i)
    if (!file.contains(fmt::format("blk.{}.indexer.k_proj.weight", i)))
      c.sparse.whole_layers.push_back(i);
}

}  // namespace

// Files from before the key of types existed show by their tensors which layers have an indexer.
void read_gguf_indexers(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row,
                        ModelConfig& c) {
  c.sparse.heads = keys.size(kIndexHeads, 1);
  c.sparse.width = keys.size(kIndexWidth, 1);
  if (row.blocks) return read_gguf_blocks(file, keys, c);
  c.sparse.top = keys.size(kTop, 1);
  std::vector<bool> full;
  if (keys.has(kIndexTypes)) full = keys.flags(kIndexTypes);
  else
    for (int64_t i = 0; i < c.layers; ++i)
      full.push_back(file.contains(fmt::format("blk.{}.indexer.attn_k.weight", i)));
  if (std::ssize(full) < c.layers)  // behind them layers that predict further tokens may be told of
    fail("{}: key \"{}\" lists {} layers of {}", keys.where(), keys.name(kIndexTypes), full.size(),
         c.layers);
  for (int64_t i = 0; i < c.layers; ++i)
    if (!full[static_cast<size_t>(i)]) c.sparse.followers.push_back(i);
}

void add_gguf_indexers(std::vector<GgufEntry>& out, const std::string& prefix,
                       const GgufArchitecture& row, const ModelConfig& c) {
  using Type = GgufEntry::Type;
  const auto size = [&](const char* key, int64_t x) {
    out.push_back({prefix + key, Type::u32, x});
  };
  size(kTop, row.blocks ? c.sparse.blocks() : c.sparse.top);
  size(kIndexHeads, c.sparse.heads);
  size(kIndexWidth, c.sparse.width);
  if (row.blocks) {
    size(kIndexBlock, c.sparse.block);
    size(kIndexLocal, c.sparse.local);
  }
  if (!row.shared_indexers) return;
  std::vector<bool> full;
  for (int64_t i = 0; i < c.layers; ++i) full.push_back(c.attention(i).index_heads > 0);
  out.push_back({prefix + kIndexTypes, Type::booleans, full});
}

std::string why_not_gguf_indexers(const GgufArchitecture& row, const ModelConfig& c) {
  const bool blocks = c.sparse.block > 0;
  if (row.indexed != c.sparse.present())
    return row.indexed ? "its attention is not sparse" : "its attention is sparse";
  if (row.blocks != blocks && c.sparse.present())
    return blocks ? "its attention sees blocks that it chooses"
                  : "its attention sees single tokens that it chooses";
  return !row.shared_indexers && !c.sparse.followers.empty()
             ? "some of its layers take the tokens another one chose"
             : "";
}

std::string why_not_block_layers(const GgufArchitecture& row, const ModelConfig& c) {
  for (int64_t i = 0; row.blocks && i < c.layers; ++i)
    if ((c.attention(i).top > 0) != c.is_moe(i))
      return fmt::format("layer {} sees {}, as no layer that {} does", i,
                         c.is_moe(i) ? "all tokens" : "blocks that it chooses",
                         c.is_moe(i) ? "routes" : "is dense");
  return "";
}

}  // namespace moe
