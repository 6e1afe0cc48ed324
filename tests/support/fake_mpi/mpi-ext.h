// Of Open MPI 5, what goes on without a process that failed.
#pragma once

#include "mpi.h"

// NOLINTBEGIN: MPI's own names

#define OMPI_HAVE_MPI_EXT_FTMPI 1
enum { MPI_FT = 1 };

inline int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group* group) {
  *group = 1;
  return moe::test::fake_mpi().result("MPIX_Comm_get_failed", comm);
}
inline int MPIX_Comm_revoke(MPI_Comm comm) {
  moe::test::fake_mpi().revoked = comm;
  return moe::test::fake_mpi().result("MPIX_Comm_revoke", comm);
}
inline int MPIX_Comm_shrink(MPI_Comm comm, MPI_Comm* left) {
  moe::test::fake_mpi().shrunk = comm;
  return moe::test::fake_mpi().make("MPIX_Comm_shrink", comm, left);
}

// NOLINTEND
