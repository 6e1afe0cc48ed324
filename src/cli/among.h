// A verb that several processes run together, under mpirun; and what any command does with a
// failure.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "comm/world.h"
#include "core/memory.h"

namespace moe::cli {

// Says in one line what was thrown, `who` before it where it is given, and returns the exit code: 2
// for wrong usage, 1 for what went wrong.
int tell_failure(const std::exception&, const std::string& who = "");

// Processes on one machine may take even parts of what is free there, where nobody said otherwise.
void share_memory(MemoryLimits&, const comm::World&);

// How many of `left` processes can do a work together, at least 1.
using Usable = std::function<int(int left)>;

// Runs `work` in all processes that mpirun started with this one, or in this one alone, and returns
// its exit code. Only the first process has a screen. What fails in all of them it says once; a
// failure of one, who says so, ends all of them. With `usable`, in a world that can heal, those
// that are left when one is lost run `work` again.
int run_among(const std::function<int(const comm::World&)>& work, const Usable& usable = {});

}  // namespace moe::cli
