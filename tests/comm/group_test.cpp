// What every group promises, whatever its processes are: the same checks for a process alone and
// for several.
#include "comm/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "support/processes.h"

namespace moe {
namespace {

using namespace test;

// Numbers of process `rank`, so unlike in size that the order in which they are added shows in the
// last bits.
template <class T>
std::vector<T> numbers_of(int rank, size_t count) {
  const RngKey key = RngKey::from_seed(static_cast<uint64_t>(rank));
  std::vector<T> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(static_cast<T>(
        std::ldexp(normal(key, i), static_cast<int>(uniform_index(key.fold(1), i, 24)))));
  return out;
}

template <class T>
void expect_sums_in_the_order_of_ranks(const comm::Group& group, size_t count) {
  std::vector<T> got = numbers_of<T>(group.rank, count), want = numbers_of<T>(0, count);
  for (int p = 1; p < group.size; ++p) {
    const std::vector<T> more = numbers_of<T>(p, count);
    for (size_t i = 0; i < count; ++i) want[i] += more[i];
  }
  group.sum(std::span<T>(got));
  EXPECT_EQ(got, want) << count << " numbers, process " << group.rank << " of " << group.size;
}

// The contract of a group. A second kind of processes is put through it as a whole.
void expect_keeps_its_word(const comm::Group& group) {
  ASSERT_GE(group.rank, 0);
  ASSERT_LT(group.rank, group.size);
  expect_sums_in_the_order_of_ranks<float>(group, (size_t{1} << 20) + 5);
  for (size_t count : {0, 1, 3, 1000}) {
    expect_sums_in_the_order_of_ranks<float>(group, count);
    expect_sums_in_the_order_of_ranks<double>(group, count);
    expect_sums_in_the_order_of_ranks<int64_t>(group, count);
  }
  for (int p = 0; p < group.size; ++p) EXPECT_TRUE(group.any(p == group.rank)) << p;
  EXPECT_FALSE(group.any(false));
  EXPECT_EQ(group.largest(-1.5 - group.rank), -1.5);
  EXPECT_EQ(group.largest(0.1 + group.rank), 0.1 + (group.size - 1));
  if (group.size == 1) return;

  // Process q sends 3 q + p bytes to p, so none to itself where q is 0; each byte says whose it is.
  std::vector<std::vector<std::byte>> out, in;
  for (int p = 0; p < group.size; ++p) {
    out.emplace_back(static_cast<size_t>(3 * group.rank + p),
                     static_cast<std::byte>(16 * group.rank + p));
    in.emplace_back(static_cast<size_t>(3 * p + group.rank));
  }
  const std::vector<std::span<const std::byte>> send(out.begin(), out.end());
  const std::vector<std::span<std::byte>> receive(in.begin(), in.end());
  group.link->exchange(send, receive);
  for (int p = 0; p < group.size; ++p)
    EXPECT_EQ(std::count(in[static_cast<size_t>(p)].begin(), in[static_cast<size_t>(p)].end(),
                         static_cast<std::byte>(16 * p + group.rank)),
              3 * p + group.rank)
        << "from " << p << " to " << group.rank;
}

TEST(Group, OfOneProcessIsTheIdentity) {
  const comm::Group alone;
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.size, 1);
  expect_keeps_its_word(alone);
}

TEST(Group, OfSeveralProcessesKeepsItsWord) {
  for (int size : {2, 3, 5}) run_processes(size, expect_keeps_its_word);
}

// Or the check of the order above proves nothing.
TEST(Group, TheOrderOfASumIsSeen) {
  const std::vector<float> a = numbers_of<float>(0, 1000), b = numbers_of<float>(1, 1000),
                           c = numbers_of<float>(2, 1000);
  int differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ += (a[i] + b[i]) + c[i] != a[i] + (b[i] + c[i]);
  EXPECT_GT(differ, 100);
}

TEST(Group, AProcessThatIsGoneFailsTheOthersInsteadOfHoldingThem) {
  const std::vector<std::string> failures = failures_of(3, [](const comm::Group& group) {
    std::vector<double> x(10);
    group.sum(std::span(x));
    if (group.rank == 1) fail("no more room on the disk");
    for (int i = 0; i < 3; ++i) group.sum(std::span(x));
  });
  EXPECT_EQ(failures, (std::vector<std::string>{"process 1 is gone", "no more room on the disk",
                                                "process 1 is gone"}));
}

}  // namespace
}  // namespace moe
