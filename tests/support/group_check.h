// The contract of a group, for whatever its processes are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/rng.h"
#include "core/threads.h"

namespace moe::test {

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

// Collective: every process checks what it sees.
inline void expect_keeps_its_word(const comm::Group& group) {
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
  {
    const std::vector<float> mine = numbers_of<float>(group.rank, 1001);
    std::vector<float> halves = mine, sum = mine;
    group.sum_shares(halves);
    group.sum(std::span(sum));
    const Span own = partition(1001, group.rank, group.size);
    for (int64_t i = own.begin; i < own.end; ++i)
      EXPECT_EQ(halves[static_cast<size_t>(i)], sum[static_cast<size_t>(i)]);
    group.gather_shares(halves);
    EXPECT_EQ(halves, sum);
  }
  EXPECT_EQ(group.of_first(2.5 + group.rank), 2.5);
  std::vector<std::string> texts;
  for (int p = 0; p < group.size; ++p) texts.push_back(std::string(static_cast<size_t>(p), 'x'));
  EXPECT_EQ(group.gather(std::string(static_cast<size_t>(group.rank), 'x')), texts);
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
  const auto check = [&] {
    for (int p = 0; p < group.size; ++p)
      EXPECT_EQ(std::count(in[static_cast<size_t>(p)].begin(), in[static_cast<size_t>(p)].end(),
                           static_cast<std::byte>(16 * p + group.rank)),
                3 * p + group.rank)
          << "from " << p << " to " << group.rank;
  };
  group.link->exchange(send, receive);
  check();
  for (std::vector<std::byte>& bytes : in) std::fill(bytes.begin(), bytes.end(), std::byte{255});
  const comm::Link::Traffic before = group.link->traffic();
  {
    const std::function<void()> again = [&] { group.link->exchange(send, receive); };
    const std::vector<std::function<void()>> twice = {again, again};
    comm::Behind behind(*group.link, twice, 1);
    behind.wait_for(1);
    check();
    for (std::vector<std::byte>& bytes : in) std::fill(bytes.begin(), bytes.end(), std::byte{255});
    behind.allow(2);
    behind.wait_for(2);
  }
  check();
  const comm::Link::Traffic& after = group.link->traffic();
  EXPECT_GT(after.sent, before.sent);
  EXPECT_GE(after.hidden, before.hidden);
  EXPECT_GE(after.seconds, before.seconds - 1e-12);  // what is hidden was counted, but for rounding
}

}  // namespace moe::test
