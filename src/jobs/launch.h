// What processes that work together must have alike before they begin.
#pragma once

#include <functional>
#include <string>

#include "comm/group.h"
#include "options/fields.h"

namespace moe {

// Fails in all processes, naming the first thing in which one differs from the first process: the
// version, the instruction set, an option (but for the threads, of which each may have its own) or
// one of `more`, which is asked for only where there are several. Collective.
void check_same_launch(const comm::Group&, const FieldList& options,
                       const std::function<comm::Facts()>& more);

}  // namespace moe
