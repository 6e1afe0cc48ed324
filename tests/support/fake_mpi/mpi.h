// As much of MPI as comm/mpi_module calls, for the test of that module: one process of several,
// whose others never answer. It fails the call that it is told to fail.
#pragma once

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

// NOLINTBEGIN: MPI's own names

using MPI_Comm = int;
using MPI_Request = int;
using MPI_Group = int;
using MPI_Errhandler = int;
using MPI_Datatype = int;
struct MPI_Status {};

enum { MPI_SUCCESS = 0, MPI_ERR_OTHER = 16 };
enum { MPI_THREAD_SINGLE = 0, MPI_THREAD_MULTIPLE = 3 };
enum { MPI_COMM_NULL = 0, MPI_COMM_WORLD = 1, MPI_COMM_SELF = 2 };
enum { MPI_REQUEST_NULL = 0, MPI_GROUP_NULL = 0, MPI_ERRORS_RETURN = 1 };
enum { MPI_CHAR = 1, MPI_BYTE = 2, MPI_MAX_ERROR_STRING = 256 };
inline MPI_Status* const MPI_STATUS_IGNORE = nullptr;
inline MPI_Status* const MPI_STATUSES_IGNORE = nullptr;

namespace moe::test {

struct FakeMpi {
  int size = 1;                      // processes, of which this is the first
  std::string fails;                 // the call that does, once
  int before = 0;                    // so many of them get through first
  bool bad_comm = false;             // a call was given a communicator that was never made
  bool bad_request = false;          // likewise
  std::set<MPI_Comm> returning;      // whose errors are returned
  MPI_Comm revoked = 0, shrunk = 0;  // the last one that was
  MPI_Comm newest = MPI_COMM_SELF;   // of all that were made
  std::set<MPI_Request> requests;    // under way
  MPI_Request last = 0;
  std::mutex mutex;  // a thread of pulses calls too

  int result(const char* call, MPI_Comm comm) {
    const std::lock_guard lock(mutex);
    if (comm <= MPI_COMM_NULL || comm > newest) {
      bad_comm = true;
      return MPI_ERR_OTHER;
    }
    if (fails != call || before-- > 0) return MPI_SUCCESS;
    fails.clear();
    return MPI_ERR_OTHER;
  }
  // A failed call leaves nonsense in the place of the request.
  int start(const char* call, MPI_Comm comm, MPI_Request* request) {
    const int error = result(call, comm);
    const std::lock_guard lock(mutex);
    *request = error == MPI_SUCCESS ? ++last : 1 << 30;
    if (error == MPI_SUCCESS) requests.insert(last);
    return error;
  }
  int make(const char* call, MPI_Comm from, MPI_Comm* made) {
    const int error = result(call, from);
    const std::lock_guard lock(mutex);
    if (error == MPI_SUCCESS) {
      *made = ++newest;
      if (returning.contains(from)) returning.insert(newest);
    }
    return error;
  }
  bool is_request(MPI_Request request) {
    const std::lock_guard lock(mutex);
    const bool is = request == MPI_REQUEST_NULL || requests.contains(request);
    bad_request = bad_request || !is;
    return is;
  }
  void forget(MPI_Request* request) {
    is_request(*request);
    const std::lock_guard lock(mutex);
    requests.erase(*request);
    *request = MPI_REQUEST_NULL;
  }
};

inline FakeMpi& fake_mpi() {
  static FakeMpi it;
  return it;
}

}  // namespace moe::test

inline int MPI_Init_thread(int*, char***, int, int* given) {
  *given = MPI_THREAD_MULTIPLE;
  return moe::test::fake_mpi().result("MPI_Init_thread", MPI_COMM_WORLD);
}
inline int MPI_Finalize() { return MPI_SUCCESS; }
inline int MPI_Abort(MPI_Comm, int) { return MPI_SUCCESS; }
inline int MPI_Error_string(int error, char* text, int* length) {
  *length = std::snprintf(text, MPI_MAX_ERROR_STRING, "fake error %d", error);
  return MPI_SUCCESS;
}
inline int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler) {
  const int error = moe::test::fake_mpi().result("MPI_Comm_set_errhandler", comm);
  if (error == MPI_SUCCESS) moe::test::fake_mpi().returning.insert(comm);
  return error;
}
inline int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  return moe::test::fake_mpi().make("MPI_Comm_dup", comm, made);
}
inline int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  *rank = 0;
  return moe::test::fake_mpi().result("MPI_Comm_rank", comm);
}
inline int MPI_Comm_size(MPI_Comm comm, int* size) {
  *size = moe::test::fake_mpi().size;
  return moe::test::fake_mpi().result("MPI_Comm_size", comm);
}
inline int MPI_Irecv(void*, int, MPI_Datatype, int, int, MPI_Comm comm, MPI_Request* request) {
  return moe::test::fake_mpi().start("MPI_Irecv", comm, request);
}
inline int MPI_Isend(const void*, int, MPI_Datatype, int, int, MPI_Comm comm,
                     MPI_Request* request) {
  return moe::test::fake_mpi().start("MPI_Isend", comm, request);
}
inline int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return moe::test::fake_mpi().result("MPI_Ibarrier", comm);
}
inline int MPI_Test(MPI_Request* request, int* done, MPI_Status*) {
  *done = *request == MPI_REQUEST_NULL;
  return moe::test::fake_mpi().is_request(*request) ? MPI_SUCCESS : MPI_ERR_OTHER;
}
inline int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status*) {
  *done = 1;
  for (int i = 0; i < count; ++i) *done = *done && requests[i] == MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}
inline int MPI_Waitall(int count, MPI_Request* requests, MPI_Status*) {
  for (int i = 0; i < count; ++i) moe::test::fake_mpi().forget(&requests[i]);
  return MPI_SUCCESS;
}
inline int MPI_Cancel(MPI_Request* request) {
  return moe::test::fake_mpi().is_request(*request) ? MPI_SUCCESS : MPI_ERR_OTHER;
}
inline int MPI_Request_free(MPI_Request* request) {
  moe::test::fake_mpi().forget(request);
  return MPI_SUCCESS;
}
inline int MPI_Comm_get_attr(MPI_Comm, int, void* value, int* given) {
  static int yes = 1;
  *static_cast<int**>(value) = &yes;
  *given = 1;
  return MPI_SUCCESS;
}
// Groups: 1 holds those that failed, process 1 alone; 2 holds all.
inline int MPI_Comm_group(MPI_Comm comm, MPI_Group* group) {
  *group = 2;
  return moe::test::fake_mpi().result("MPI_Comm_group", comm);
}
inline int MPI_Group_size(MPI_Group, int* size) {
  *size = 1;
  return MPI_SUCCESS;
}
inline int MPI_Group_translate_ranks(MPI_Group, int, const int*, MPI_Group, int* rank) {
  *rank = 1;
  return MPI_SUCCESS;
}
inline int MPI_Group_free(MPI_Group* group) {
  *group = MPI_GROUP_NULL;
  return MPI_SUCCESS;
}

// NOLINTEND
