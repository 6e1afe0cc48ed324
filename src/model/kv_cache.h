// What past tokens left, kept between forwards: keys and values in blocks of 64 tokens that many
// sequences share out between them, and the states of layers that have others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/compressor.h"
#include "model/rope.h"
#include "moe/pass.h"
#include "tensor/arena.h"
#include "tensor/run.h"

namespace moe {

// A sequence has a slot: a number by which batches name it, a table of the blocks that hold its
// positions 0 to 63, 64 to 127, ..., and a length. Blocks are handed out as it grows and come back
// when it is truncated or closed. Sequences that begin alike may share whole blocks, which come
// back when the last holder lets go. A block lies in all layers alike; within one, keys lie
// transposed (ops::KvView) but for q8_0, whose blocks of numbers run along a row, and values by
// heads but on a device; both as rows in layers that choose blocks of them, but on a device.
// Entries that stand for several tokens lie in the block of the last of these. Layers of linear
// attention, of convolutions, of state spaces and with entries keep a state a sequence, f32, which
// only goes forward: nothing can be taken back but everything, and no two sequences can share a
// beginning. Owns its memory. For one thread at a time.
class KvCache {
 public:
  // Room for `capacity` tokens of all sequences together, in whole blocks. Keys and values are kept
  // in `dtype`: f32, bf16, f16, or q8_0 (heads of a multiple of 32), in the memory of `device`;
  // null: the CPU's. Fails (usage) for another dtype, or a model that it does not fit.
  KvCache(const ModelConfig&, DType dtype, int64_t capacity, Device* device = nullptr);

  int64_t capacity() const { return blocks_ * ops::kKeyBlock; }  // tokens
  int64_t available() const {
    return std::ssize(free_blocks_) * ops::kKeyBlock;
  }  // tokens, in blocks that no sequence has

  // The slot of a new sequence without tokens. `limit`: the most tokens that it will ever hold,
  // by which a model that has two sets of rotary frequencies chooses; 0: few.
  int32_t open(int64_t limit = 0);
  // Whether keys of a sequence of that limit are turned by the other set.
  bool stretches(int64_t limit) const { return moe::stretches(rope_, limit); }
  bool stretched(int32_t slot) const { return stretched_[static_cast<size_t>(slot)]; }
  void close(int32_t slot);
  int64_t length(int32_t slot) const { return lengths_[static_cast<size_t>(slot)]; }
  // Room for so many tokens more, whose keys and values store() brings. Fails, and changes nothing,
  // where there are too few blocks.
  void extend(int32_t slot, int64_t tokens);
  // Drops what stands behind the first `length` tokens; everything where there are states and that
  // is less than all.
  void truncate(int32_t slot, int64_t length);
  bool has_states() const { return state_numbers_ > 0; }

  // The blocks of a sequence, in order.
  std::span<const int32_t> blocks(int32_t slot) const { return tables_[static_cast<size_t>(slot)]; }
  // Lets a sequence without tokens begin with full blocks that somebody holds, of a sequence that
  // stretches as this one does. Fails where there are states.
  void adopt(int32_t slot, std::span<const int32_t> blocks);
  // One holder of a block more, beside the sequences that have it; release() takes it back.
  void retain(int32_t block) { ++holders_[static_cast<size_t>(block)]; }
  void release(int32_t block);
  int64_t holders(int32_t block) const { return holders_[static_cast<size_t>(block)]; }

  // Copies the batch's new keys and values to their places, rounded to the cache's dtype. k, v [N,
  // G*C] A; with latents of L numbers, R of a key turning, k [N,R+L] and v absent
  void store(Run&, int64_t layer, const Batch&, Tensor k, Tensor v);
  // Of the batch's sequences; valid until the next change of a slot, and as long as the batch is.
  ops::KvView view(int64_t layer, const Batch&) const;
  // The same of the keys [N,C] A of a layer's indexer, which have no values.
  void store_index(Run&, int64_t layer, const Batch&, Tensor k);
  ops::KvView index_view(int64_t layer, const Batch&) const;
  // The same of the entries [T,C] A that a batch makes in a layer that has them, and of those of
  // its indexer, absent without; and where entry `number` of a sequence lies among all.
  void store_entries(Run&, int64_t layer, const Batch&, const MadeEntries&, Tensor entries,
                     Tensor index);
  int64_t entry_row(int64_t layer, int32_t slot, int64_t number) const;
  Tensor entries(int64_t layer) const { return entries_[static_cast<size_t>(layer)].all; }
  Tensor index_entries(int64_t layer) const { return entries_[static_cast<size_t>(layer)].index; }
  // Of the batch's sequences, in a layer that has one: the state of each, to be read and written by
  // the layer (ModelConfig::state_numbers). Valid as long as view()'s.
  std::vector<float*> states(int64_t layer, const Batch&);

 private:
  void check_open(int32_t slot) const;
  int32_t take_block();
  void copy_block(int32_t to, int32_t from);
  std::vector<int64_t> rows_of(const Batch&) const;

  Arena memory_;
  int64_t blocks_;
  std::vector<Tensor> k_;  // per layer [blocks, G*C, 64] or [blocks * 64, G*C]
  // per layer [blocks, G, 64, C], on a device and where blocks are chosen [blocks * 64, G*C]; of
  // latents part of k
  std::vector<Tensor> v_;
  struct LayerEntries {
    int64_t tokens = 0, each = 0;  // that an entry stands for; room for entries in a block
    // [blocks * each, C], and f32 or bf16 of an indexer, absent without
    Tensor all = {}, index = {};
  };
  std::vector<LayerEntries> entries_;  // per layer
  std::vector<Tensor> index_;          // per layer [blocks, C, 64]; empty where it has no indexer
  std::vector<int32_t> free_blocks_;   // the next one last
  std::vector<int32_t> holders_;       // of each block
  std::vector<std::vector<int32_t>> tables_;  // of each slot
  std::vector<int64_t> lengths_;              // of each slot; -1: it has no sequence
  std::vector<bool> stretched_;               // of each slot
  RopeScaling rope_;
  int64_t state_numbers_;                   // of a sequence in all layers
  std::vector<int64_t> state_at_;           // of each layer, where its state begins among them
  std::vector<std::vector<float>> states_;  // of each slot
};

}  // namespace moe
