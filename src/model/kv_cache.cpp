#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace moe {
namespace {

constexpr size_t kMinChunk = size_t{4} << 20;
// What chooses entries is laid out anew each time, by what takes these types alone.
DType index_entries_in(DType dtype) { return dtype == DType::f16 ? DType::f32 : dtype; }
constexpr int64_t kNoSequence = -1;  // for a length

int64_t blocks_for(int64_t tokens) { return (tokens + ops::kKeyBlock - 1) / ops::kKeyBlock; }

}  // namespace

KvCache::KvCache(const ModelConfig& config, DType dtype, int64_t capacity, Device* device)
    : memory_(kMinChunk, device),
      blocks_(blocks_for(capacity)),
      holders_(static_cast<size_t>(blocks_)),
      rope_(config.rope_scaling),
      state_numbers_(config.state_numbers()) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::q8_0)
    fail_usage("keys and values cannot be kept in {}; take f32, bf16, f16 or q8_0", name_of(dtype));
  if (config.sparse.block > 0 && is_quantised(dtype))
    fail_usage(
        "keys and values that are chosen in blocks cannot be kept in {}; take f32, f16 or bf16",
        name_of(dtype));
  for (int64_t i = 0; i < config.layers; ++i) {
    const AttentionShape shape = config.attention(i);
    for (const int64_t width :
         {shape.key_width, shape.latent.present() ? shape.key_width : shape.value_width})
      if (width % block_of(dtype).elements != 0)
        fail_usage(
            "keys and values in {} are kept in blocks of {} numbers, but the model's heads have "
            "{}; take f16 or bf16",
            name_of(dtype), block_of(dtype).elements, width);
  }
  if (config.latent.present() && is_quantised(dtype))
    fail_usage("what latent attention keeps of a token cannot be kept in {}; take f16 or bf16",
               name_of(dtype));
  if (config.window_chunks && config.attention_window % ops::kKeyBlock != 0)
    fail_usage(
        "attention is cut into chunks of {} tokens, and keys are kept in blocks of {}; a text can "
        "be read piece by piece only where chunks are whole blocks",
        config.attention_window, ops::kKeyBlock);
  int64_t states = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    state_at_.push_back(states);
    states += config.state_numbers(i);
    index_.emplace_back();
    entries_.emplace_back();
    if (!config.attends(i)) {
      k_.emplace_back();
      v_.emplace_back();
      continue;
    }
    const AttentionShape shape = config.attention(i);
    if (shape.latent.present()) {
      // as rows: all heads of a query meet them, and turn a block of them once for all
      const int64_t width = shape.cached_key_width();
      k_.push_back(memory_.alloc(dtype, {blocks_ * ops::kKeyBlock, width}));
      v_.push_back(k_.back().slice_cols(shape.shared_width, width));
      if (shape.index_heads > 0)
        index_.back() = memory_.alloc(dtype, {blocks_, shape.index_width, ops::kKeyBlock});
      if (const Entries& e = shape.entries; e.present()) {
        LayerEntries& of = entries_.back();
        of.tokens = e.tokens;
        of.each = e.in_block(ops::kKeyBlock);
        of.all = memory_.alloc(dtype, {blocks_ * of.each, width});
        if (e.chosen())
          of.index = memory_.alloc(index_entries_in(dtype), {blocks_ * of.each, e.width});
      }
      continue;
    }
    // Where blocks are chosen, which is done without a GPU, heads see other blocks than their
    // neighbours and are read apart.
    const bool apart = shape.block > 0 && device == nullptr;
    k_.push_back(is_quantised(dtype) || apart
                     ? memory_.alloc(dtype, {blocks_ * ops::kKeyBlock, shape.k_width()})
                     : memory_.alloc(dtype, {blocks_, shape.k_width(), ops::kKeyBlock}));
    if (shape.index_heads > 0)
      index_.back() = memory_.alloc(dtype, {blocks_, shape.index_width, ops::kKeyBlock});
    // by heads each one's values follow each other, which a CPU reads at nearly twice the rate
    v_.push_back(device != nullptr || apart
                     ? memory_.alloc(dtype, {blocks_ * ops::kKeyBlock, shape.v_width()})
                     : memory_.alloc(dtype, {blocks_, shape.kv_heads, ops::kKeyBlock,
                                             shape.v_width() / shape.kv_heads}));
  }
  for (int64_t block = blocks_; block-- > 0;) free_blocks_.push_back(static_cast<int32_t>(block));
}

int32_t KvCache::open(int64_t limit) {
  const auto unused = std::find(lengths_.begin(), lengths_.end(), kNoSequence);
  const auto slot = static_cast<int32_t>(unused - lengths_.begin());
  if (unused == lengths_.end()) {
    const auto slots = static_cast<size_t>(slot) + 1;
    tables_.resize(slots);
    states_.resize(slots);
    stretched_.resize(slots);
    lengths_.push_back(kNoSequence);
  }
  stretched_[static_cast<size_t>(slot)] = stretches(limit);
  states_[static_cast<size_t>(slot)].assign(static_cast<size_t>(state_numbers_), 0);
  lengths_[static_cast<size_t>(slot)] = 0;  // last: where memory was refused it is not open
  return slot;
}

void KvCache::close(int32_t slot) {
  truncate(slot, 0);
  lengths_[static_cast<size_t>(slot)] = kNoSequence;
  states_[static_cast<size_t>(slot)] = {};
}

void KvCache::check_open(int32_t slot) const {
  if (slot < 0 || slot >= std::ssize(lengths_) || length(slot) == kNoSequence)
    fail("slot {} of the cache has no sequence", slot);
}

int32_t KvCache::take_block() {
  const int32_t block = free_blocks_.back();
  free_blocks_.pop_back();
  retain(block);
  return block;
}

void KvCache::release(int32_t block) {
  if (--holders_[static_cast<size_t>(block)] == 0) free_blocks_.push_back(block);
}

void KvCache::copy_block(int32_t to, int32_t from) {
  for (const std::vector<Tensor>* layers : {&k_, &v_, &index_})
    for (const Tensor& t : *layers) {
      if (t.empty() || !t.dense()) continue;  // a layer without, or part of the keys
      const auto bytes = static_cast<size_t>(t.rows() * t.row_bytes / blocks_);
      auto* data = static_cast<char*>(t.data);
      char *there = data + static_cast<size_t>(to) * bytes,
           *here = data + static_cast<size_t>(from) * bytes;
      if (Device* device = memory_.device()) device->copy(there, here, bytes);
      else std::memcpy(there, here, bytes);
    }
}

void KvCache::extend(int32_t slot, int64_t tokens) {
  check_open(slot);
  std::vector<int32_t>& table = tables_[static_cast<size_t>(slot)];
  const int64_t length = this->length(slot) + tokens;
  // A block that others have too is not written to.
  const bool shared =
      tokens > 0 && this->length(slot) % ops::kKeyBlock != 0 && holders(table.back()) > 1;
  const int64_t more = blocks_for(length) - std::ssize(table) + (shared ? 1 : 0);
  if (more > std::ssize(free_blocks_))
    fail(
        "the cache of keys and values has room for {} tokens in blocks of {}, and {} blocks are "
        "free where {} are needed to go on to token {}; end or truncate "
        "another sequence, or give the cache a larger capacity",
        capacity(), ops::kKeyBlock, free_blocks_.size(), more, length);
  table.reserve(static_cast<size_t>(blocks_for(length)));  // a block that is taken has its place
  if (shared) {
    const int32_t own = take_block();
    copy_block(own, table.back());
    release(std::exchange(table.back(), own));
  }
  while (std::ssize(table) < blocks_for(length)) table.push_back(take_block());
  lengths_[static_cast<size_t>(slot)] = length;
}

// The last block comes back first, so that who grows again by as much has them in the same order.
void KvCache::truncate(int32_t slot, int64_t length) {
  std::vector<int32_t>& table = tables_[static_cast<size_t>(slot)];
  if (length >= this->length(slot)) return;
  if (has_states()) {
    length = 0;
    std::fill_n(states_[static_cast<size_t>(slot)].begin(), state_numbers_, 0.0f);
  }
  for (const int64_t kept = blocks_for(length); std::ssize(table) > kept; table.pop_back())
    release(table.back());
  lengths_[static_cast<size_t>(slot)] = length;
}

void KvCache::adopt(int32_t slot, std::span<const int32_t> blocks) {
  check_open(slot);
  if (has_states() && !blocks.empty())
    fail(
        "the states of layers without attention, or with entries, belong to one sequence; slot {} "
        "cannot begin with another's",
        slot);
  if (length(slot) > 0)
    fail(
        "slot {} holds {} tokens already, and only a sequence without any can begin with those of "
        "another",
        slot, length(slot));
  tables_[static_cast<size_t>(slot)].reserve(blocks.size());
  for (const int32_t block : blocks) {
    if (block < 0 || block >= blocks_ || holders(block) == 0)
      fail("block {} of the cache is held by nobody, so there is nothing to begin with", block);
    retain(block);
    tables_[static_cast<size_t>(slot)].push_back(block);
  }
  lengths_[static_cast<size_t>(slot)] = std::ssize(blocks) * ops::kKeyBlock;
}

std::vector<int64_t> KvCache::rows_of(const Batch& batch) const {
  if (std::ssize(batch.slots) != batch.sequences())
    fail("a batch of {} sequences names {} slots of the cache", batch.sequences(),
         batch.slots.size());
  std::vector<int64_t> rows;
  rows.reserve(batch.positions.size());
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int32_t slot = batch.slots[static_cast<size_t>(s)];
    check_open(slot);
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(slot)];
    for (int64_t n = batch.bounds[static_cast<size_t>(s)];
         n < batch.bounds[static_cast<size_t>(s) + 1]; ++n) {
      const int64_t position = batch.positions[static_cast<size_t>(n)];
      if (position < 0 || position >= length(slot))
        fail("a token stands at position {} of slot {}, which was extended to {} tokens only",
             position, slot, length(slot));
      rows.push_back(int64_t{table[static_cast<size_t>(position / ops::kKeyBlock)]} *
                         ops::kKeyBlock +
                     position % ops::kKeyBlock);
    }
  }
  return rows;
}

void KvCache::store(Run& run, int64_t layer, const Batch& batch, Tensor k, Tensor v) {
  const auto l = static_cast<size_t>(layer);
  const std::vector<int64_t> row = rows_of(batch);
  if (row.empty()) return;
  ops::store_keys(run, k_[l], k, row);
  if (!v.empty()) ops::store_keys(run, v_[l], v, row);
}

std::vector<float*> KvCache::states(int64_t layer, const Batch& batch) {
  rows_of(batch);  // checks the slots
  std::vector<float*> at;
  for (const int32_t slot : batch.slots)
    at.push_back(states_[static_cast<size_t>(slot)].data() + state_at_[static_cast<size_t>(layer)]);
  return at;
}

ops::KvView KvCache::view(int64_t layer, const Batch& batch) const {
  const auto l = static_cast<size_t>(layer);
  return {k_[l], v_[l], batch.bounds, {}, batch.slots, tables_};
}

int64_t KvCache::entry_row(int64_t layer, int32_t slot, int64_t number) const {
  const LayerEntries& of = entries_[static_cast<size_t>(layer)];
  const int64_t block = ((number + 1) * of.tokens - 1) / ops::kKeyBlock;
  return tables_[static_cast<size_t>(slot)][static_cast<size_t>(block)] * of.each + number -
         block * ops::kKeyBlock / of.tokens;
}

void KvCache::store_entries(Run& run, int64_t layer, const Batch& batch, const MadeEntries& made,
                            Tensor entries, Tensor index) {
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < made.bounds.size(); ++s)
    for (int64_t e = made.bounds[s]; e < made.bounds[s + 1]; ++e)
      rows.push_back(entry_row(layer, batch.slots[s], made.number[static_cast<size_t>(e)]));
  const LayerEntries& of = entries_[static_cast<size_t>(layer)];
  ops::store_keys(run, of.all, entries, rows);
  if (!index.empty()) ops::store_keys(run, of.index, index, rows);
}

void KvCache::store_index(Run& run, int64_t layer, const Batch& batch, Tensor k) {
  const std::vector<int64_t> row = rows_of(batch);
  if (!row.empty()) ops::store_keys(run, index_[static_cast<size_t>(layer)], k, row);
}

ops::KvView KvCache::index_view(int64_t layer, const Batch& batch) const {
  return {index_[static_cast<size_t>(layer)], {}, batch.bounds, {}, batch.slots, tables_};
}

}  // namespace moe
