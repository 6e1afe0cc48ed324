// The module's own code over an MPI that fails where it is told to (tests/support/fake_mpi): what
// is lost between the calls of a join or a heal, which no run over a real MPI hits when it is
// wanted.
#include "comm/mpi_module/mpi_module.cpp"  // NOLINT: what it holds is seen nowhere else

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace moe::test::mpi_module_test {
namespace {

// The module's world is joined anew by each test, which MPI itself would not allow.
class MpiModule : public testing::Test {
 protected:
  MpiModule() {
    FakeMpi& fake = fake_mpi();
    fake.size = 1;
    fake.fails.clear();
    fake.before = 0;
    fake.bad_comm = fake.bad_request = false;
    fake.returning.clear();
  }
  ~MpiModule() override {
    pulses.reset();  // its thread calls the fake
    EXPECT_FALSE(fake_mpi().bad_comm) << "a communicator that was never made";
    EXPECT_FALSE(fake_mpi().bad_request) << "a request that was never made";
  }
  // "" where it joined.
  std::string join() { return words(moe_mpi_2()->join); }
  std::string heal() { return words(moe_mpi_2()->heal); }

  int rank = -1, size = -1;

 private:
  template <class F>
  std::string words(F&& call) {
    std::array<char, 128> why{};
    return call(&rank, &size, why.data(), static_cast<int>(why.size())) == 0 ? "" : why.data();
  }
};

TEST_F(MpiModule, JoinsAndLeaves) {
  EXPECT_EQ(join(), "");
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(size, 1);
  EXPECT_TRUE(fake_mpi().returning.contains(MPI_COMM_WORLD));
  EXPECT_TRUE(fake_mpi().returning.contains(MPI_COMM_SELF));
  EXPECT_EQ(moe_mpi_2()->leave(), 0);
}

TEST_F(MpiModule, SaysWhichErrorKeptItFromJoining) {
  for (const char* call :
       {"MPI_Comm_set_errhandler", "MPI_Comm_dup", "MPI_Comm_rank", "MPI_Comm_size"}) {
    for (int before = 0;; ++before) {  // each time that it is called
      fake_mpi().fails = call;
      fake_mpi().before = before;
      const std::string why = join();
      if (!fake_mpi().fails.empty()) {  // it is not called so often
        EXPECT_EQ(why, "");
        EXPECT_GT(before, 0) << call;
        break;
      }
      EXPECT_EQ(why, "fake error 16") << call << " after " << before;
    }
    fake_mpi().fails.clear();
  }
}

// Another process that got through will find out and shrink the same world.
TEST_F(MpiModule, HealsAgainWhereAProcessIsLostInAHeal) {
  for (const char* call : {"MPI_Comm_set_errhandler", "MPI_Comm_dup", "MPI_Comm_size"}) {
    ASSERT_EQ(join(), "");
    rank = size = -1;
    fake_mpi().fails = call;
    EXPECT_EQ(heal(), "fake error 16") << call;
    EXPECT_EQ(size, -1) << "they have not met";
    const MPI_Comm left = world;
    EXPECT_NE(left, fake_mpi().shrunk);
    EXPECT_EQ(heal(), "") << call;
    EXPECT_EQ(fake_mpi().revoked, left);
    EXPECT_EQ(fake_mpi().shrunk, left);
    EXPECT_EQ(rank, 0);
    EXPECT_EQ(size, 1);
    EXPECT_EQ(moe_mpi_2()->leave(), 0);
  }
}

TEST_F(MpiModule, KeepsItsWorldWhereNothingIsLeftOfIt) {
  ASSERT_EQ(join(), "");
  const MPI_Comm before = world;
  fake_mpi().fails = "MPIX_Comm_shrink";
  EXPECT_EQ(heal(), "fake error 16");
  EXPECT_EQ(world, before);
  EXPECT_EQ(heal(), "");
  EXPECT_EQ(fake_mpi().shrunk, before);
}

TEST_F(MpiModule, WaitsForNoRequestOfACallThatFailed) {
  fake_mpi().size = 2;
  ASSERT_EQ(join(), "");
  pulses.reset();  // whose calls are not to fail
  for (const char* call : {"MPI_Irecv", "MPI_Isend"}) {
    const char sent = 1;
    char received = 0;
    const std::array<const void*, 2> send = {nullptr, &sent};
    const std::array<void*, 2> receive = {nullptr, &received};
    const std::array<int64_t, 2> bytes = {0, 1};
    std::array<char, 128> why{};
    int lost = -1;
    fake_mpi().fails = call;
    EXPECT_NE(moe_mpi_2()->exchange(send.data(), bytes.data(), receive.data(), bytes.data(), &lost,
                                    why.data(), static_cast<int>(why.size())),
              0);
    EXPECT_EQ(lost, 1);
    EXPECT_STREQ(why.data(), "it ended");
  }
}

}  // namespace
}  // namespace moe::test::mpi_module_test
