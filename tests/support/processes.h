// Processes that are threads of one: a group for tests, which keeps what comm::Link promises with
// nothing but shared memory.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "core/error.h"

namespace moe::test {

// Where the processes meet.
struct Meeting {
  explicit Meeting(int size) : offered(static_cast<size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::span<const std::span<const std::byte>>> offered;  // [P] what each sends
  int arrived = 0;
  int64_t round = 0;
  int gone = -1;  // a process that will never come again
};

class ThreadLink final : public comm::Link {
 public:
  ThreadLink(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  ~ThreadLink() override {
    const std::lock_guard lock(meeting_.mutex);
    if (meeting_.gone < 0) meeting_.gone = rank_;
    meeting_.changed.notify_all();
  }

  void exchange(std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    meeting_.offered[static_cast<size_t>(rank_)] = send;
    meet();
    for (size_t p = 0; p < receive.size(); ++p) {
      const std::span<const std::byte> from = meeting_.offered[p][static_cast<size_t>(rank_)];
      if (from.size() != receive[p].size())
        fail("process {} expects {} bytes of process {}, which sends {}", rank_, receive[p].size(),
             p, from.size());
      if (!from.empty()) std::memcpy(receive[p].data(), from.data(), from.size());
    }
    meet();
  }

 private:
  // Returns when all are here.
  void meet() {
    std::unique_lock lock(meeting_.mutex);
    const int64_t round = meeting_.round;
    if (++meeting_.arrived == static_cast<int>(meeting_.offered.size())) {
      meeting_.arrived = 0;
      ++meeting_.round;
      meeting_.changed.notify_all();
    }
    meeting_.changed.wait(lock, [&] { return meeting_.round != round || meeting_.gone >= 0; });
    if (meeting_.round == round) fail("process {} is gone", meeting_.gone);
  }

  Meeting& meeting_;
  int rank_;
};

// body(group) in each of `size` processes; what each failed with, empty where it did not.
inline std::vector<std::string> failures_of(int size,
                                            const std::function<void(const comm::Group&)>& body) {
  Meeting meeting(size);
  std::vector<std::string> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadLink link(meeting, rank);
        body({rank, size, &link});
      } catch (const std::exception& e) {
        failures[static_cast<size_t>(rank)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// The same where none may fail.
inline void run_processes(int size, const std::function<void(const comm::Group&)>& body) {
  const std::vector<std::string> failures = failures_of(size, body);
  for (size_t p = 0; p < failures.size(); ++p)
    EXPECT_EQ(failures[p], "") << "process " << p << " of " << size;
}

}  // namespace moe::test
