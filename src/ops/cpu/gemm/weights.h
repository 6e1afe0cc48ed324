// Where the experts' packed copies lie that one call of a product reads. A weight that is trained
// is packed as a whole (repack.h); one that only lies in a file is packed an expert at a time when
// rows meet it, and the copies of all weights together stay within one limit (ops/memory.h).
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/gemm/packed.h"
#include "ops/cpu/gemm/repack.h"

namespace moe::ops {

// What a product reads a weight as.
enum class Copy : uint8_t {
  forward,   // w(k, n) = value(n, k), packed as `dtype`
  backward,  // w(k, n) = value(k, n), packed as `dtype`
  blocks,    // panels of a quantised value (quant_product.h)
};

// One weight of a call. at(e) is null where expert e still has to be packed.
struct CallWeight {
  Param* w = nullptr;
  Bank bank{};
  Copy copy = Copy::forward;
  DType dtype = DType::f32;  // of what is packed; of a quantised product the value's own
  int64_t expert_bytes = 0;
  const char* whole = nullptr;       // all experts one after another, or
  std::span<const char*> experts{};  // [E] each where it was packed, in scratch
  ExpertCopies* kept = nullptr;      // where it is looked for and kept
  bool looked_for = false;           // whether pack_within_budget() has
  CopyBudget* budget = nullptr;      // null: no limit

  const char* at(int64_t e) const {
    return whole != nullptr ? whole + e * expert_bytes : experts[static_cast<size_t>(e)];
  }
};

// A weight of a call; what it holds is gone when the caller rewinds scratch.
CallWeight call_weight(Run& run, Param& w, Copy copy, DType dtype);
// Finds the copies of these experts, and packs those that are missing as far as the budget reaches;
// but of a bank of several experts not the one that is met for the first time, so that a prompt
// waits for no memory but the scratch that its experts pass through (a fresh page has to be
// cleared, and under a virtual machine found), and what is met once takes none. A weight is looked
// for once a call. Work is shared over experts and blocks of columns. Threads that run one model at
// the same time wait for each other only while a copy is made.
void pack_within_budget(Run& run, std::span<CallWeight* const> weights,
                        std::span<const int64_t> experts);
// Of a forward copy a block of columns of an expert, of panels a group of them: what pack_piece()
// packs into `out`. scratch: of the calling thread.
int64_t piece_bytes(const CallWeight& weight);
void pack_piece(char* out, const CallWeight& weight, int64_t expert, int64_t piece, Arena& scratch);
// Where a whole would begin of which `piece` lies so many bytes behind its beginning.
inline char* beginning(const void* piece, int64_t bytes) {
  return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(piece) -
                                 static_cast<std::uintptr_t>(bytes));
}
// Packs what is still missing of these experts into scratch, where it stays until the caller
// rewinds it.
void pack_into_scratch(Run& run, std::span<CallWeight* const> weights,
                       std::span<const int64_t> experts);

}  // namespace moe::ops
