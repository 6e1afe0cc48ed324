// What products take of memory, for who estimates it (model/cost.h, infer/memory_plan.h), and what
// they may take.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops/ops.h"
#include "tensor/dtype.h"
#include "tensor/param.h"

namespace moe::ops {

// matmul_dw: rows summed by one product, and bytes of rows packed ahead at once where groups are
// few; they are to be in the cache still when their products read them.
constexpr int64_t kDwInnerRows = 512;
constexpr int64_t kDwWaveBytes = int64_t{1} << 20;

// Experts whose copies find no room in the budget, or that are met for the first time, are turned a
// few columns at a time by the thread that multiplies them (cpu/gemm/parts.h). Products that want a
// whole matrix, oneDNN's and those back to the rows, have them packed in scratch, used and
// forgotten, as many at a time as this holds, at least one. Each such call reads the expert's
// weights from the file, writes the copy and reads it: about three times the memory traffic of a
// packed expert where rows are few, little beside the products of a prompt.
constexpr int64_t kPassingBytes = int64_t{32} << 20;

// Of the copies of all experts of w [E,O,I] or [O,I] that products y = x w^T make, x being of this
// dtype; `wide`: by matmul_forward_f32.
struct CopyBytes {
  int64_t expert = 0, all = 0;
};
CopyBytes forward_copy_bytes(const Param& w, DType x, bool wide = false);
// Of the copy that kept_neurons_forward makes of w [F,D] or [1,F,D], one of its matrices.
int64_t kept_copy_bytes(const Param& w);
// Of those that training keeps of w, f32 and not bound: that one and the one for products back.
// Both are padded to whole blocks, which of narrow experts are several times their numbers.
int64_t trained_copy_bytes(const Param& w, DType x, bool wide = false);

// What the copies of bound weights (Param::bind) may take together, bytes; absent: half of what is
// free when the next one is made. They are made an expert at a time, of the only matrix of its kind
// when rows first meet it, of one of several when they meet it again, and what does not fit is
// packed anew at each use. Weights that are not bound are packed whole, whatever the limit. The
// first call puts these weights together, and comes before products with them; a later one for all
// or some of them moves the limit of all, and threads may multiply meanwhile.
void limit_copies(std::span<Param* const>, std::optional<int64_t> bytes);
// What those copies take now, bytes.
int64_t copies_taken(std::span<Param* const>);

// Scores that choose_keys, and best scores that choose_blocks holds at once, but always those of
// one query.
constexpr int64_t kScoresAtOnce = int64_t{1} << 20;

// What newton_schulz takes for all of these [O,I] and [E,O,I] on the CPU, bytes.
int64_t newton_schulz_bytes(List<Tensor> all, DType compute, int threads);

// What measure_read_bandwidth reads through.
int64_t read_buffer_bytes();

}  // namespace moe::ops
