// What every group promises, whatever its processes are: the same checks for a process alone and
// for several.
#include "comm/group.h"

#include "comm/layout.h"
#include "support/files.h"
#include "support/group_check.h"
#include "support/processes.h"

namespace moe::group_test {
namespace {

using namespace test;

TEST(Devices, AreOfOneProcess) {
  comm::Group alone, several;
  several.size = 2;
  EXPECT_NO_THROW(comm::need_one_process(alone, DeviceKind::cuda));
  EXPECT_NO_THROW(comm::need_one_process(several, DeviceKind::cpu));
  EXPECT_THROW(comm::need_one_process(several, DeviceKind::cuda), Error);
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

// 6 processes, two copies over three: neighbours hold one copy, every third the same experts.
TEST(Layout, PartsOfAGroupAreGroups) {
  run_processes(6, [](const comm::Group& all) {
    const comm::Layout layout(all, 3);
    EXPECT_EQ(layout.experts().size, 3);
    EXPECT_EQ(layout.experts().rank, all.rank % 3);
    EXPECT_EQ(layout.copies().size, 2);
    EXPECT_EQ(layout.copies().rank, all.rank / 3);
    EXPECT_TRUE(layout.is_spread());
    EXPECT_EQ(layout.is_of_first_copy(), all.rank < 3);
    expect_keeps_its_word(layout.experts());
    expect_keeps_its_word(layout.copies());
    expect_keeps_its_word(all);
    double sum = all.rank;
    layout.copies().sum(std::span(&sum, 1));
    EXPECT_EQ(sum, all.rank % 3 * 2 + 3);
  });
  run_processes(2, [](const comm::Group& all) {
    const comm::Layout layout(all, 1);
    EXPECT_FALSE(layout.is_spread());
    EXPECT_EQ(layout.copies().size, 2);
    EXPECT_TRUE(all.rank == 1 || layout.is_of_first_copy());
    EXPECT_FAILS(comm::Layout(all, 3),
                 "expert_parallel 3 does not divide the 2 processes there are");
    EXPECT_FAILS(comm::Layout(all, 0), "expert_parallel is 0; it must be at least 1");
  });
}

// Whatever the layout every number of a parameter is moved by one process, which holds it.
TEST(Layout, EveryNumberIsMovedOnce) {
  constexpr int64_t kExperts = 7, kNumbers = 7 * 11;
  for (const auto& [size, spread] : {std::pair(1, 1), {3, 1}, {4, 4}, {6, 3}, {8, 2}})
    for (const int64_t experts : {int64_t{0}, kExperts}) {
      std::vector<int> moved(kNumbers);
      for (int p = 0; p < size; ++p) {
        const comm::Layout layout({.rank = p, .size = size}, spread);
        const Span own = layout.moved_by(p, kNumbers, spread > 1 ? experts : 0);
        const Span held = partition(kExperts, layout.experts().rank, spread);
        for (int64_t i = own.begin; i < own.end; ++i) {
          ++moved[static_cast<size_t>(i)];
          if (spread > 1 && experts > 0)
            EXPECT_TRUE(i / 11 >= held.begin && i / 11 < held.end) << i;
        }
      }
      EXPECT_EQ(moved, std::vector<int>(kNumbers, 1)) << size << " " << spread;
    }
}

TEST(Together, AFailureOfOneIsOneOfAll) {
  const auto work = [](bool in_all) {
    return failures_of(3, [in_all](const comm::Group& group) {
      comm::together(group, [] {});
      try {
        comm::together(group, [&] {
          if (in_all || group.rank == 1) fail_usage("@lr is {}", in_all ? 0 : group.rank);
        });
      } catch (const comm::SharedError& e) {
        EXPECT_EQ(e.kind(), Error::Kind::usage);
        throw;
      }
    });
  };
  EXPECT_EQ(work(false), std::vector<std::string>(3, "process 1 of 3: lr is 1"));
  EXPECT_EQ(work(true), std::vector<std::string>(3, "lr is 0"));
  EXPECT_FAILS(comm::together({}, [] { fail("alone"); }), "alone");
}

TEST(Together, WhatWasSharedIsNotSharedAgain) {
  const std::vector<std::string> failures = failures_of(2, [](const comm::Group& group) {
    comm::together(group, [&] { comm::alike(group, [] { fail("of all"); }); });
  });
  EXPECT_EQ(failures, std::vector<std::string>(2, "of all"));
}

TEST(Group, ALostProcessIsNamedWithWhatWasUnderWay) {
  const std::vector<std::string> failures = failures_of(2, [](const comm::Group& group) {
    double x = 1;
    if (group.rank == 1) fail("killed");
    comm::during([] { return "the sum of one number"; }, [&] { group.sum(std::span(&x, 1)); });
  });
  EXPECT_EQ(failures[0], "the sum of one number: process 1 is gone");
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
}  // namespace moe::group_test
