// The module over MPI 3. Messages of one pair of processes keep their order, so neither tags nor
// further communicators are needed to tell one exchange from the next.
//
// MPI itself waits for ever for a process that was stopped or whose link was cut. So each process
// has a thread that sends a pulse to all others, and an exchange gives up when it has to wait for a
// process whose pulse has been missing for kPatience.
//
// Open MPI 5 can go on without a process that failed, if it was started for that (mpirun --with-ft
// ulfm; the User-Level Failure Mitigation chapter proposed for MPI). It notices a process that was
// killed by itself.
#include "comm/mpi_module/mpi_module.h"

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // after mpi.h, whose types it takes
#endif
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(20), kPulse(1), kFarewell(5);
constexpr std::chrono::milliseconds kLook(200);
// MPI counts in int.
constexpr int64_t kPiece = int64_t{1} << 30;

int say(char* why, int room, const char* what) {
  std::snprintf(why, static_cast<size_t>(room), "%s", what);
  return 1;
}

int say_error(char* why, int room, int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
    std::snprintf(text, sizeof text, "error %d of MPI", error);
  return say(why, room, text);
}

// Who is alive, as far as is known.
class Pulses {
 public:
  Pulses(MPI_Comm comm, int rank, int size)
      : comm_(comm),
        rank_(rank),
        size_(size),
        sends_(static_cast<size_t>(size), MPI_REQUEST_NULL),
        receives_(static_cast<size_t>(size), MPI_REQUEST_NULL),
        in_(static_cast<size_t>(size)),
        gone_(static_cast<size_t>(size)),
        heard_(static_cast<size_t>(size)) {
    for (int p = 0; p < size_; ++p) {
      heard_[static_cast<size_t>(p)] = Clock::now();
      gone_[static_cast<size_t>(p)] = p != rank_ && !listen(p);
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Pulses() {
    over_ = true;
    thread_.join();
    for (MPI_Request& request : receives_)
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);  // where these fail there is nothing to end
        MPI_Request_free(&request);
      }
    for (MPI_Request& request : sends_)
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }

  bool is_silent(int p) const {
    return p != rank_ && Clock::now() - heard_[static_cast<size_t>(p)].load() > kPatience;
  }

 private:
  bool listen(int p) {
    const auto i = static_cast<size_t>(p);
    if (MPI_Irecv(&in_[i], 1, MPI_CHAR, p, 0, comm_, &receives_[i]) == MPI_SUCCESS) return true;
    receives_[i] = MPI_REQUEST_NULL;
    return false;
  }
  void run() {
    Clock::time_point next{};
    for (; !over_; std::this_thread::sleep_for(kLook)) {
      const Clock::time_point now = Clock::now();
      const bool due = now >= next;
      if (due) next = now + kPulse;
      for (int p = 0; p < size_; ++p) {
        if (p == rank_) continue;
        const auto i = static_cast<size_t>(p);
        if (gone_[i]) continue;
        int done = 0;
        // null counts as done; one that does not arrive is not followed by another
        gone_[i] = due && MPI_Test(&sends_[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS;
        if (!gone_[i] && done) {
          gone_[i] = MPI_Isend(&out_, 1, MPI_CHAR, p, 0, comm_, &sends_[i]) != MPI_SUCCESS;
          if (gone_[i]) sends_[i] = MPI_REQUEST_NULL;  // a request of a failed call is none
        }
        done = 0;
        gone_[i] = gone_[i] || MPI_Test(&receives_[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS;
        if (gone_[i] || !done) continue;
        heard_[i] = now;
        gone_[i] = !listen(p);
      }
    }
  }

  MPI_Comm comm_;
  int rank_, size_;
  std::vector<MPI_Request> sends_, receives_;  // [P]
  std::vector<char> in_;                       // [P]
  std::vector<bool> gone_;                     // [P] MPI says so
  char out_ = 0;
  std::vector<std::atomic<Clock::time_point>> heard_;  // [P]
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

MPI_Comm world = MPI_COMM_NULL;
int world_rank = 0, world_size = 0;
std::unique_ptr<Pulses> pulses;  // null until all have met, and where they could not meet again

bool is_silent(int p) { return pulses != nullptr && pulses->is_silent(p); }

// Between two looks at what has not come yet. Another thread or program may want the core: that of
// this process too, whose experts work while rows are on the way.
class Patience {
 public:
  void wait() {
    if (++looks_ < kSpins) return;
    if (looks_ < 2 * kSpins) sched_yield();
    else usleep(kSleep);
  }

 private:
  static constexpr int kSpins = 100;
  static constexpr useconds_t kSleep = 20;  // microseconds
  int looks_ = 0;
};

// By default an error of MPI ends all processes.
int return_errors(MPI_Comm comm) { return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); }

// Takes `comm` for the world from now on, also where an error of MPI is returned: another process
// may have got through, and then this one has to heal() the same world as that one.
int meet_in(MPI_Comm comm, int* rank, int* size) {
  world = comm;
  MPI_Comm of_pulses = MPI_COMM_NULL;
  int error = return_errors(world);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(world, &world_rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(world, &world_size);
  if (error == MPI_SUCCESS) error = MPI_Comm_dup(world, &of_pulses);
  if (error != MPI_SUCCESS) return error;
  pulses = std::make_unique<Pulses>(of_pulses, world_rank, world_size);
  *rank = world_rank;
  *size = world_size;
  return MPI_SUCCESS;
}

int join(int* rank, int* size, char* why, int room) {
  int given = MPI_THREAD_SINGLE;
  // Open MPI 5: what was stopped or is cut off counts as failed too, and one that notices tells the
  // others. Unknown to other MPIs.
  setenv("OMPI_MCA_mpi_ft_detector", "true", 0);
  setenv("OMPI_MCA_mpi_ft_propagator_with_rbcast", "true", 0);
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS)
    return say(why, room, "MPI_Init_thread failed");
  // What belongs to no communicator MPI 3 raises in the first of these, MPI 4 in the second.
  int error = return_errors(MPI_COMM_WORLD);
  if (error == MPI_SUCCESS) error = return_errors(MPI_COMM_SELF);
  if (error != MPI_SUCCESS) return say_error(why, room, error);
  if (given != MPI_THREAD_MULTIPLE)
    return say(why, room, "this MPI lets one thread at a time speak (no MPI_THREAD_MULTIPLE)");
  MPI_Comm comm = MPI_COMM_NULL;
  error = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  if (error == MPI_SUCCESS) error = meet_in(comm, rank, size);
  return error == MPI_SUCCESS ? 0 : say_error(why, room, error);
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

int can_heal() {
  int* value = nullptr;
  int given = 0;
  return MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_FT, &value, &given) == MPI_SUCCESS && given &&
         *value;
}

// One that failed, -1 where none is known.
int known_failure() {
  MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(world, &failed) != MPI_SUCCESS) return -1;
  int count = 0, first = 0, rank = -1;
  if (MPI_Group_size(failed, &count) == MPI_SUCCESS && count > 0 &&
      MPI_Comm_group(world, &all) == MPI_SUCCESS) {
    if (MPI_Group_translate_ranks(failed, 1, &first, all, &rank) != MPI_SUCCESS) rank = -1;
    MPI_Group_free(&all);
  }
  MPI_Group_free(&failed);
  return rank;
}

// Where another process noticed, who it was is known here a moment later.
int failed_process() {
  int failed = -1;
  for (int tries = 0; can_heal() && tries < 40 && (failed = known_failure()) < 0; ++tries)
    usleep(50'000);
  return failed;
}

// What failed here fails in all processes, and nothing of it is under way any more. What these
// calls return is the failure that is known already.
void end_exchanges(std::vector<MPI_Request>& requests) {
  if (!can_heal()) return;
  MPIX_Comm_revoke(world);
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

int heal(int* rank, int* size, char* why, int room) {
  MPIX_Comm_revoke(world);  // where it fails the others come all the same, a little later
  pulses.reset();
  MPI_Comm left = MPI_COMM_NULL;
  int error = MPIX_Comm_shrink(world, &left);
  if (error == MPI_SUCCESS) error = meet_in(left, rank, size);
  return error == MPI_SUCCESS ? 0 : say_error(why, room, error);
}

#else

int can_heal() { return 0; }
int failed_process() { return -1; }
void end_exchanges(std::vector<MPI_Request>&) {}
int heal(int*, int*, char* why, int room) {
  return say(why, room, "this MPI cannot go on without a process");
}

#endif

// All of what one process brings another, in pieces.
template <class F>
int each_piece(int64_t bytes, F&& start) {
  int error = MPI_SUCCESS;
  for (int64_t at = 0; at < bytes && error == MPI_SUCCESS; at += kPiece)
    error = start(at, static_cast<int>(std::min(kPiece, bytes - at)));
  return error;
}

int exchange(const void* const* send, const int64_t* send_bytes, void* const* receive,
             const int64_t* receive_bytes, int* lost, char* why, int room) {
  *lost = -1;
  int error = MPI_SUCCESS;
  std::vector<MPI_Request> requests;
  std::vector<int> with;  // whom each request is of
  const auto add = [&](int p, auto&& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int result = start(&request);
    // a request of a failed call is none
    requests.push_back(result == MPI_SUCCESS ? request : MPI_REQUEST_NULL);
    with.push_back(p);
    return result;
  };
  // Each begins with its next neighbour, so that not all send to the same one at once.
  for (int i = 0; i < world_size && error == MPI_SUCCESS; ++i) {
    const int p = (world_rank + i) % world_size;
    if (p == world_rank) {
      if (send_bytes[p] > 0) std::memcpy(receive[p], send[p], static_cast<size_t>(send_bytes[p]));
      continue;
    }
    error = each_piece(receive_bytes[p], [&](int64_t at, int bytes) {
      return add(p, [&](MPI_Request* request) {
        return MPI_Irecv(static_cast<char*>(receive[p]) + at, bytes, MPI_BYTE, p, 0, world,
                         request);
      });
    });
    if (error == MPI_SUCCESS)
      error = each_piece(send_bytes[p], [&](int64_t at, int bytes) {
        return add(p, [&](MPI_Request* request) {
          return MPI_Isend(static_cast<const char*>(send[p]) + at, bytes, MPI_BYTE, p, 0, world,
                           request);
        });
      });
  }
  const auto count = static_cast<int>(requests.size());
  Patience patience;
  for (int done = 0; error == MPI_SUCCESS; patience.wait()) {
    error = MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE);
    if (error == MPI_SUCCESS && done) return 0;
    for (int i = 0; i < count; ++i)
      if (requests[static_cast<size_t>(i)] != MPI_REQUEST_NULL &&
          is_silent(with[static_cast<size_t>(i)])) {
        *lost = with[static_cast<size_t>(i)];
        end_exchanges(requests);
        return say(why, room, "nothing has been heard of it for 20 seconds");
      }
  }
  end_exchanges(requests);
  *lost = failed_process();
  return *lost < 0 ? say_error(why, room, error) : say(why, room, "it ended");
}

int leave() {
  MPI_Request all = MPI_REQUEST_NULL;
  int error = MPI_Ibarrier(world, &all), done = 0;
  bool silent = false;
  while (error == MPI_SUCCESS && !done && !silent) {
    error = MPI_Test(&all, &done, MPI_STATUS_IGNORE);
    if (!done) usleep(1000);
    for (int p = 0; p < world_size && !done; ++p) silent = silent || is_silent(p);
  }
  if (error != MPI_SUCCESS || !done) return 1;
  pulses.reset();
  MPI_Finalize();  // all are through: what fails now is nobody's loss
  return 0;
}

void abandon(int code) {
  // MPI may wait for a launcher that cannot be reached.
  std::thread([code] {
    std::this_thread::sleep_for(kFarewell);
    _exit(code);
  }).detach();
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

}  // namespace

const MoeMpi* moe_mpi_2() {
  static const MoeMpi table = {join, exchange, can_heal, heal, leave, abandon};
  return &table;
}
