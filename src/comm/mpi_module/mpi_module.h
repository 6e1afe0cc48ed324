// The one door to MPI, in plain C: a table of functions that moe_mpi.so gives. The command and the
// library are not linked with MPI, so they run where none is installed; comm/world.cpp loads the
// module when mpirun started the process.
#pragma once

#include <cstdint>

extern "C" {

struct MoeMpi {
  // Each returns 0, or writes into `why` [room] what went wrong, ended by a zero, and returns
  // something else.
  int (*join)(int* rank, int* size, char* why, int room);
  // As comm::Link::exchange, [P] each. Pairs of processes with nothing to bring do not meet. `lost`
  // is the process that is gone or silent, where it is known, else -1. Where the others can go on
  // without it, an exchange that fails in one process soon fails in all of them.
  int (*exchange)(const void* const* send, const int64_t* send_bytes, void* const* receive,
                  const int64_t* receive_bytes, int* lost, char* why, int room);
  // Whether heal() may be called.
  int (*can_heal)();
  // After an exchange has failed: leaves out the processes that are gone and joins those left
  // anew, as join() does. All that are left call it.
  int (*heal)(int* rank, int* size, char* why, int room);
  // Waits for all others to leave too; nothing may be called afterwards. Returns other than 0 where
  // one of them failed instead.
  int (*leave)();
  // Ends every process of the job, this one with `code`; does not return.
  void (*abandon)(int code);
};

// The only name that the module exports. The number in it changes with the table.
[[gnu::visibility("default")]] const MoeMpi* moe_mpi_2();
}
