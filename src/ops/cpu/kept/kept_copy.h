// A copy of the rows that tokens pick from, in large pages, a neuron's three side by side. In a
// mapped file nearly every row that is picked lies in a page of its own, whose place the processor
// has to look up first: rows of 1,152 bytes came at 0.55 of the rate of reading in order, out of
// such a copy at 0.8 (Zen 3; docs/carving.md).
#pragma once

#include "ops/cpu/kept/kept_task.h"
#include "tensor/param.h"
#include "tensor/run.h"

namespace moe::ops {

// Where the matrices of `task` are only read, and their copies have a limit (ops::limit_copies),
// lets it read them from a copy, which is made when it is first asked for and counts as one of
// `down` (packed.h). Where that limit leaves no room they are read where they lie.
void read_from_copy(Run&, KeptTask& task, const Param& gate, const Param& up, const Param& down);

}  // namespace moe::ops
