// Products of many rows with weights of which no copy is kept, in tiles. Threads share the columns
// of all matrices.
#include <algorithm>

#include "ops/cpu/gemm/parts.h"
#include "ops/cpu/gemm/tile_product.h"

namespace moe::ops {
namespace {

// Rows of a group that are multiplied together: their tiles and sums are to stay in the second
// cache beside a block of columns.
constexpr int64_t kMostTogether = 512;
// What turning a block of columns costs, in rows multiplied with it.
constexpr int64_t kTurningRows = 200;

// Units are blocks of columns.
struct TileStretch : Stretch {
  const PackLayout* layout;
};

void run_blocks(const TileStretch& s, Span blocks, const void* tiles, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Part& p = *s.part;
  const Tensor out = p.out.slice_rows(s.group->begin, s.group->end);
  const TileProduct product{s.layout, out.rows(), out.dtype, p.add};
  void* sums = scratch.alloc_bytes(static_cast<size_t>(product.sums_bytes()));
  auto* panel = static_cast<char*>(scratch.alloc_bytes(static_cast<size_t>(product.panel_bytes())));
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    pack_piece(panel, p.w, s.group->expert, block, scratch);
    product.run_block(out.data, source_of(out).stride, tiles, panel, block, sums);
  }
}

void run_share(std::span<const TileStretch> stretches, Span share, Arena& scratch) {
  const ArenaScope scope(scratch);
  TilesOfThread tiles(scratch);
  for (const TileStretch& s : stretches)
    if (const Span blocks = s.in(share); blocks.begin < blocks.end)
      run_blocks(s, blocks, tiles.of(*s.part, *s.group), scratch);
}

}  // namespace

bool multiply_passing(Run& run, const std::vector<Part>& parts, std::span<const Group> groups,
                      int threads) {
  const std::vector<const PackLayout*> layouts = tile_layouts(parts);
  const bool forward = std::all_of(parts.begin(), parts.end(),
                                   [](const Part& p) { return p.w.copy == Copy::forward; });
  if (layouts.empty() || !forward) return false;
  std::vector<Group> cut;
  for (const Group& g : groups)
    for (int64_t begin = g.begin; begin < g.end; begin += kMostTogether)
      cut.push_back({g.expert, begin, std::min(begin + kMostTogether, g.end)});
  std::vector<TileStretch> stretches;
  int64_t total = 0;
  for (const Group& g : cut)
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t cost = (kTurningRows + kUnit * g.units()) * parts[i].in.cols();
      stretches.push_back({{&parts[i], &g, column_blocks(*layouts[i]), cost, total}, layouts[i]});
      total = stretches.back().end();
    }
  parallel_shares(run, threads, [&](size_t share, Arena& scratch) {
    run_share(stretches, partition(total, static_cast<int>(share), threads), scratch);
  });
  return true;
}

}  // namespace moe::ops
