// Which process is meant, on a machine where containers may give several the same number under the
// same host name, and where the number of one that has ended is given away again.
#pragma once

#include <sys/types.h>

#include <string>

namespace moe::comm {

// Of a process that the caller sees as `pid`: the boot of the machine, the namespace of the
// numbers, the number and when the process started. One word each; empty where the system does not
// say all of it, or there is no such process.
std::string identity_of(pid_t pid);

// Ends the process that had this identity_of() itself, and no other one: nothing is done where the
// caller does not see it under its number, or it has ended. Whether it was ended.
bool end_process(const std::string& identity);

}  // namespace moe::comm
