// Processes that are threads of one: a group for tests, which keeps what comm::Link promises with
// nothing but shared memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "core/error.h"

namespace moe::test {

// What is under way between the processes.
struct Mail {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> letters;  // by (from, to)
  std::set<int> ended;  // those that will never write again
  int failed = -1;      // the first of them that failed
};

class ThreadLink final : public comm::Link {
 public:
  ThreadLink(Mail& mail, int rank) : mail_(mail), rank_(rank) {}
  ~ThreadLink() override {
    const std::lock_guard lock(mail_.mutex);
    mail_.ended.insert(rank_);
    if (std::uncaught_exceptions() > 0 && mail_.failed < 0) mail_.failed = rank_;
    mail_.changed.notify_all();
  }

 protected:
  int own_rank() const override { return rank_; }
  void bring(std::span<const std::span<const std::byte>> send,
             std::span<const std::span<std::byte>> receive) override {
    std::unique_lock lock(mail_.mutex);
    for (size_t p = 0; p < send.size(); ++p)
      if (!send[p].empty())
        mail_.letters[{rank_, static_cast<int>(p)}].emplace_back(send[p].begin(), send[p].end());
    mail_.changed.notify_all();
    for (size_t p = 0; p < receive.size(); ++p) {
      if (receive[p].empty()) continue;
      auto& box = mail_.letters[{static_cast<int>(p), rank_}];
      const auto from = static_cast<int>(p);
      mail_.changed.wait(
          lock, [&] { return !box.empty() || mail_.failed >= 0 || mail_.ended.contains(from); });
      if (box.empty())
        throw comm::LostError(
            message("process {} is gone", mail_.failed >= 0 ? mail_.failed : from));
      if (box.front().size() != receive[p].size())
        fail("process {} expects {} bytes of process {}, which sends {}", rank_, receive[p].size(),
             p, box.front().size());
      std::copy(box.front().begin(), box.front().end(), receive[p].begin());
      box.pop_front();
    }
  }

 private:
  Mail& mail_;
  int rank_;
};

// body(group) in each of `size` processes; what each failed with, empty where it did not.
inline std::vector<std::string> failures_of(int size,
                                            const std::function<void(const comm::Group&)>& body) {
  Mail mail;
  std::vector<std::string> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadLink link(mail, rank);
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
