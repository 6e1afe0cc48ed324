#include "ops/cpu/quant/quant_tiles.h"

#include <algorithm>

namespace moe::ops {

namespace {
// Rows whose records stay in the second cache while all columns pass.
constexpr int64_t kCachedBytes = int64_t{400} << 10;
}  // namespace

QuantNext panels_ahead(const QuantTask& task, int64_t group, int64_t step, bool again) {
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(task.dtype, task.in));
  if (group + step < task.groups.end)
    return {task.panels + (group + step) * group_bytes, step * group_bytes};
  if (again) return {task.panels + task.groups.begin * group_bytes, step * group_bytes};
  return task.next;
}

void multiply_tiles(const QuantTask& task, const TileKernels& kernels) {
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(task.dtype, task.in));
  const int64_t blocks = task.in / kQuantBlock,
                record_bytes = record_stride(task.in) * static_cast<int64_t>(sizeof(QuantRecord)),
                together = std::max(kCachedBytes / record_bytes, kernels.most);
  for (int64_t first = 0; first < task.rows; first += together) {
    const int64_t rows = std::min(together, task.rows - first);
    for (int64_t g = task.groups.begin, step; g < task.groups.end; g += step) {
      step = kernels.pair != nullptr && g + 1 < task.groups.end ? 2 : 1;
      const int64_t most = step == 2 ? kernels.most_pair : kernels.most,
                    count = (rows + most - 1) / most;
      const char* panel = task.panels + g * group_bytes;
      const QuantNext ahead = panels_ahead(task, g, step, first + rows < task.rows);
      const int64_t next_step = (ahead.bytes / count / blocks + 63) / 64 * 64;
      // Tiles of nearly the same size; the first ones fetch all of what comes next.
      for (int64_t t = 0; t < count; ++t) {
        const Span mine = partition(rows, static_cast<int>(t), static_cast<int>(count));
        const int64_t tile_rows = mine.end - mine.begin, fetched = t * next_step * blocks;
        const TileTask at{first + mine.begin,
                          tile_rows,
                          g,
                          panel,
                          ahead.data + fetched,
                          fetched < ahead.bytes ? next_step : 0};
        (step == 2 ? kernels.pair : kernels.one)[tile_rows - 1](task, at);
      }
    }
  }
}

}  // namespace moe::ops
