#include "comm/identity.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace moe::comm::identity_test {
namespace {

// A process that does nothing until it is ended.
class Sleeper {
 public:
  Sleeper() {
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) pause();
    _exit(0);  // it was gone before it was asked for
  }
  ~Sleeper() {
    if (!is_alive()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  pid_t pid() const { return pid_; }
  bool is_alive() {
    if (!over_) over_ = waitpid(pid_, nullptr, WNOHANG) != 0;
    return !over_;
  }
  void wait() {
    if (!over_) waitpid(pid_, nullptr, 0);
    over_ = true;
  }

 private:
  pid_t pid_ = -1;
  bool over_ = false;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}
std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(Identity, IsThatOfOneProcess) {
  const std::string own = identity_of(getpid());
  if (own.empty()) GTEST_SKIP() << "this system does not say who a process is";
  EXPECT_EQ(identity_of(getpid()), own);
  Sleeper other;
  const std::vector<std::string> words = words_of(own), others = words_of(identity_of(other.pid()));
  ASSERT_EQ(words.size(), 4u);
  ASSERT_EQ(others.size(), 4u);
  EXPECT_EQ(others[0], words[0]) << "the machine's boot";
  EXPECT_EQ(others[1], words[1]) << "the namespace";
  EXPECT_EQ(words[2], std::to_string(getpid()));
  EXPECT_EQ(others[2], std::to_string(other.pid()));
  EXPECT_GE(std::stoll(others[3]), std::stoll(words[3])) << "it started later";
}

// Another machine or boot, another container, a number that was given away again.
TEST(Identity, OnlyTheProcessThatIsMeantIsEnded) {
  // When a process began is known to a hundredth of a second. One that begins in the same as this
  // one differs from it in its number alone, and with that changed it is this one that is meant.
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  Sleeper meant;
  const std::string identity = identity_of(meant.pid());
  if (identity.empty()) GTEST_SKIP() << "this system does not say who a process is";
  const std::vector<std::string> words = words_of(identity);
  for (size_t i = 0; i < words.size(); ++i) {
    std::vector<std::string> other = words;
    other[i] = i == 2 ? std::to_string(getpid()) : other[i] + "1";
    EXPECT_FALSE(end_process(text_of(other))) << text_of(other);
  }
  for (const char* none : {"", " ", "a b 0 1", "a b -1 1", "a b c d"})
    EXPECT_FALSE(end_process(none)) << none;
  EXPECT_TRUE(meant.is_alive());

  EXPECT_TRUE(end_process(identity));
  meant.wait();
  EXPECT_FALSE(end_process(identity)) << "it has ended";
  EXPECT_EQ(identity_of(meant.pid()), "");
}

}  // namespace
}  // namespace moe::comm::identity_test
