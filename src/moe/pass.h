// A forward pass: what it is of, how it routes, what is kept of it and what is asked of it. One
// value, made by whoever wants a forward and given as it is to every layer; a layer knows its own
// number and takes its part. A new fact about a forward is a field here.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/rng.h"
#include "ops/ops.h"

namespace moe {

class KvCache;         // model/kv_cache.h; nobody here looks into it
struct MoeLayerSaved;  // moe/layer.h
struct RoutingSpec;    // moe/router.h

// The input of a forward: N tokens of any number of sequences laid end to end. A training batch, a
// prompt, a decode step and a server's mixed batch are all this. Views; the caller owns the memory.
struct Batch {
  std::span<const int32_t> ids = {};        // [N]; of the router only hash routing reads them
  std::span<const int32_t> positions = {};  // [N] in its sequence, from 0
  std::span<const int64_t> bounds = {};  // [S+1] rows of sequence s: [bounds[s], bounds[s+1]); for
                                         // a router alone empty is one sequence
  std::span<const int32_t> slots =
      {};  // [S] where the cache keeps sequence s (KvCache::open); none without a cache

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(bounds.size()) - 1; }
};

// What becomes of a block's Saved once its forward is done.
enum class Keep {
  all,      // kept until backward
  inputs,   // only the block's input is kept; backward runs the block's forward again
  nothing,  // released at once: evaluation and generation
};

// What routers work out beside their plans. Each costs time, so each is asked for.
struct Wanted {
  bool counts = false;          // pairs per expert, before any drop
  bool balance_counts = false;  // what the balance loss counts
  bool losses = false;          // the value of each auxiliary loss

  static constexpr Wanted all() { return {true, true, true}; }
  bool any() const { return counts || balance_counts || losses; }
};

// Where a layer draws.
enum class Site : uint64_t { attention_dropout, ffn_dropout, router };

struct Pass {
  Batch batch = {};
  // of the mode: training or evaluation; unused by dense layers
  const RoutingSpec* routing = nullptr;
  Keep keep = Keep::nothing;
  // where keys and values go and are read from; null: the batch holds all there are
  KvCache* cache = nullptr;
  RngKey key = {};  // of the step and micro-batch; empty: no randomness
  // Counted pairs [E] that other micro-batches of the optimizer step have, for each MoE layer in
  // order (BalanceLoss::Shares); empty: none are known.
  std::span<const std::vector<int64_t>> step_counts = {};
  // Choices to take instead of the routers' own (moe/stages/replay.h): [N,K] i32 for each MoE layer
  // in order, alive until backward. Null: the routers choose.
  const std::vector<Tensor>* recorded = nullptr;
  Wanted wanted = {};
  // [M,E] i32: pairs per expert of each MoE layer, before any drop, are added to it, which nobody
  // has to wait for. Absent: nobody asks.
  Tensor totals = {};
  // [S] true: of a sequence whose tokens are only read, none of which is drawn. Where experts are
  // neurons of one network (moe/neurons.h) such tokens take all of them, as reading the weights
  // once for many tokens costs no more. Empty: no sequence is. Forward only.
  std::span<const bool> only_read = {};
  // [S] how many rows of each sequence, its last, somebody reads the hidden states of: those alone
  // come of the forward, and where a cache keeps what later tokens ask of the others and nobody
  // looks at the routing, the last block does no more than that for them. Empty: all rows. Forward
  // only.
  std::span<const int64_t> last_rows = {};
  // Where a layer's experts lie on several processes (moe/plan.h): all of them make this very pass,
  // as generation does, not passes of texts of their own. Forward only.
  bool same_everywhere = false;
  // Told what each MoE layer did while its views are alive, and what each block gave, h [N,D] f32;
  // null: nobody asks. Not called again when backward recomputes.
  const std::function<void(int64_t layer, const MoeLayerSaved&)>* on_routing = nullptr;
  const std::function<void(int64_t layer, const Tensor& h)>* on_block = nullptr;
  // of the batch's positions: Model::prepare fills it; absent where they are not rotary
  ops::CosSinTable cos_sin = {};
  // By which cos_sin turns, for what turns by other positions; null where nothing does.
  const ops::RopeFrequencies* frequencies = nullptr;
  // The same of layers whose window has frequencies of its own; absent where none has.
  ops::CosSinTable window_cos_sin = {};
  // The same of queries that grow with their positions; absent where none do.
  ops::CosSinTable query_cos_sin = {};
  // [N,D] f32: what routed experts of the last layer that has some gave, and its gradient, where it
  // joins the residual stream behind the next layer. Model::forward and backward make the room;
  // absent where it joins at once.
  Tensor late = {}, dlate = {};
  // [N,K] i32: the keys that sparse attention sees, as ops::choose_keys has them, of the last layer
  // that chose; or [N,G*B] the blocks of them, as ops::choose_blocks has these. Model::prepare
  // makes the room; absent where every token sees all before it.
  Tensor kept = {};

  bool draws() const { return !key.empty(); }
  bool goes_back() const { return keep != Keep::nothing; }
  // Of one place in one layer.
  RngKey key_of(int64_t layer, Site site) const {
    return draws() ? key.fold(static_cast<uint64_t>(layer)).fold(static_cast<uint64_t>(site))
                   : RngKey{};
  }
  // Of the `index`-th MoE layer; empty: none.
  std::span<const int64_t> step_counts_of(int64_t index) const {
    return step_counts.empty() ? std::span<const int64_t>{}
                               : step_counts[static_cast<size_t>(index)];
  }
  // [E]
  Tensor totals_of(int64_t index) const {
    return Tensor(totals.row<int32_t>(index), DType::i32, {totals.cols()});
  }
  Tensor recorded_of(int64_t index) const {
    return recorded ? recorded->at(static_cast<size_t>(index)) : Tensor{};
  }
};

}  // namespace moe
