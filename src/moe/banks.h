// Several banks of experts at once: the routed and the shared ones of a layer.
#pragma once

#include <span>

#include "moe/experts.h"

namespace moe {

// One bank's forward, as ExpertBank::forward has it.
struct BankPass {
  ExpertBank* bank;
  Tensor out;        // [R,D] f32 or A
  const Rows* rows;  // of one dtype in all passes
  ExpertBank::Saved* saved;
};
// The forwards of all of them, to the bit, with their products side by side.
void forward_banks(Run&, std::span<const BankPass>);

}  // namespace moe
