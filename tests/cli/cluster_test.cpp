// `mpirun moe train` as a user starts it: the numbers of one process, failures in one line, and an
// end when one process is gone.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/command.h"
#include "train/metrics.h"
#include "train/step_lines.h"

namespace moe::cluster_test {
namespace {

using namespace test;

#ifdef MOE_MPIEXEC

CommandResult mpirun(int processes, const std::vector<std::string>& words,
                     const std::function<void(pid_t)>& meanwhile = {}) {
  std::vector<std::string> all =
      command_line(fmt::format("--oversubscribe -n {} {}", processes, MOE_BINARY));
  all.insert(all.end(), words.begin(), words.end());
  return run_command(MOE_MPIEXEC, all, meanwhile);
}

// As train_small, with micro-batches for four processes.
std::vector<std::string> train_shared(const std::string& folder, const std::string& out,
                                      const std::string& steps, const std::string& more = "") {
  return command_line(
      "train --width 16 --heads 2 --layers 2 --experts 4 --top-k 2 --expert-width 16 --context 32 "
      "--batch 1 --accumulate 4 --threads 1 --lr 0.01 --warmup 1 --schedule constant --no-report " +
          more,
      {"--data", folder + "/text.txt", "--out", out, "--steps", steps});
}

std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  each_last_line(out + "/metrics.jsonl", 1 << 20, [&](std::string_view line) {
    losses.push_back(parse_metrics_line(line, out)->ce);
  });
  return losses;
}

// The lines in which the command, not its launcher, says what went wrong.
std::vector<std::string> failures_in(const std::string& err) {
  std::vector<std::string> found;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("moe: ")) found.push_back(line);
  return found;
}

void expect_one_failure(const CommandResult& r, const std::string& part) {
  EXPECT_NE(r.code, 0);
  const std::vector<std::string> said = failures_in(r.err);
  ASSERT_EQ(said.size(), 1u) << r.err;
  has(said[0], part);
}

struct ClusterTest : ::testing::Test {
  TempFolder folder;
  const std::string root = folder.path();

  void SetUp() override { put(folder / "text.txt", small_text()); }
};

TEST_F(ClusterTest, EveryLayoutTrainsAsOneProcess) {
  ok(train_shared(root, folder / "alone", "6"));
  const std::vector<double> want = losses_of(folder / "alone");
  ASSERT_EQ(want.size(), 6u);
  for (const auto& [processes, spread] : {std::pair(2, 1), {2, 2}, {4, 2}}) {
    const std::string out = folder / fmt::format("{}-{}", processes, spread);
    const CommandResult r = mpirun(
        processes, train_shared(root, out, "6", fmt::format("--expert-parallel {}", spread)));
    EXPECT_EQ(r.code, 0) << r.err;
    has(r.err, fmt::format("processes: {}; ", processes));
    const std::vector<double> got = losses_of(out);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
  }
  // goes on in another number of processes
  EXPECT_EQ(mpirun(4, train_shared(root, folder / "2-2", "8", "--resume")).code, 0);
  EXPECT_EQ(losses_of(folder / "2-2").size(), 8u);
}

TEST_F(ClusterTest, ScoresAndWritesWithSpreadExperts) {
  const std::string model = folder / "model";
  ok(train_shared(root, model, "6"));
  const std::vector<std::string> lines[] = {
      command_line("score --threads 1 --windows 20",
                   {model, "--text", folder / "text.txt", "--json"}),
      command_line("generate --threads 1 --tokens 30 --temperature 0.8 --seed 4 --samples 2",
                   {model, "-p", "the router"})};
  for (const std::vector<std::string>& words : lines) {
    const CommandResult alone = ok(words), spread = mpirun(3, words);
    EXPECT_EQ(spread.code, 0) << spread.err;
    EXPECT_EQ(spread.out, alone.out);
  }
  expect_one_failure(mpirun(5, lines[1]), "a layer's 4 experts cannot lie on 5 processes");
  std::vector<std::string> both = lines[1];
  both.insert(both.end(), {":", "-n", "1", MOE_BINARY});
  both.insert(both.end(), lines[1].begin(), lines[1].end());
  both.back() = "the experts";
  expect_one_failure(mpirun(1, both), "process 1 has another prompt than process 0");
}

TEST_F(ClusterTest, FailuresAreOneLine) {
  const std::string out = folder / "out";
  expect_one_failure(mpirun(3, train_shared(root, out, "2")),
                     "--accumulate is 4, which 3 processes cannot share evenly");
  expect_one_failure(mpirun(4, train_shared(root, out, "2", "--expert-parallel 3")),
                     "--expert-parallel 3 does not divide the 4 processes");
  expect_one_failure(mpirun(1, train_shared(root, out, "2", "--expert-parallel 2")),
                     "--expert-parallel 2 does not divide the 1 processes");
  EXPECT_FALSE(std::filesystem::exists(out));
  put(folder / "other.txt", small_text(90));
  std::vector<std::string> words = train_shared(root, out, "2");
  words.insert(words.end(), {":", "-n", "1", MOE_BINARY});
  std::vector<std::string> others = train_shared(root, out, "2");
  *(std::find(others.begin(), others.end(), "--data") + 1) = folder / "other.txt";
  std::vector<std::string> both = words;
  both.insert(both.end(), others.begin(), others.end());
  expect_one_failure(mpirun(1, both), "process 1 has another --data than process 0");
  *(std::find(others.begin(), others.end(), "--data") + 1) = folder / "nowhere.txt";
  both = words;
  both.insert(both.end(), others.begin(), others.end());
  expect_one_failure(mpirun(1, both), "process 1 of 2: cannot open");
  both = words;
  others = train_shared(root, out, "2", "--clip 0.5");
  both.insert(both.end(), others.begin(), others.end());
  expect_one_failure(mpirun(1, both), "process 1 has another --clip than process 0: 0.5 there");
}

// Children of a process, as /proc has them.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(in)), {});
    std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));
    char state = 0;
    pid_t of = 0;
    if (rest >> state >> of && of == parent) found.push_back(std::stoi(name));
  }
  return found;
}

void wait_for_steps(const std::string& out, size_t steps) {
  for (int i = 0; i < 600; ++i) {
    if (std::filesystem::exists(out + "/metrics.jsonl") && losses_of(out).size() >= steps) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  FAIL() << "no " << steps << " steps in " << out;
}

TEST_F(ClusterTest, TermSavesInAllLayouts) {
  for (int spread : {1, 2}) {
    const std::string out = folder / fmt::format("out{}", spread);
    const CommandResult r =
        mpirun(2, train_shared(root, out, "100000", fmt::format("--expert-parallel {}", spread)),
               [&](pid_t launcher) {
                 wait_for_steps(out, 3);
                 kill(launcher, SIGTERM);
               });
    EXPECT_NE(r.code, 0);
    has(r.err, "is saved in");
    const CommandResult again =
        moe_command(train_shared(root, out, std::to_string(losses_of(out).size() + 1), "--resume"));
    EXPECT_EQ(again.code, 0) << again.err;
  }
}

TEST_F(ClusterTest, AKilledProcessEndsAll) {
  const std::string out = folder / "out";
  std::chrono::steady_clock::time_point killed;
  const CommandResult r =
      mpirun(2, train_shared(root, out, "100000", "--save-every 2"), [&](pid_t launcher) {
        wait_for_steps(out, 3);
        const std::vector<pid_t> processes = children_of(launcher);
        ASSERT_EQ(processes.size(), 2u);
        kill(processes.back(), SIGKILL);
        killed = std::chrono::steady_clock::now();
      });
  EXPECT_NE(r.code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(30));
  const CommandResult again =
      moe_command(train_shared(root, out, "100001", "--resume"), [&](pid_t process) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        kill(process, SIGTERM);
      });
  EXPECT_EQ(again.code, 130) << again.err;
}

TEST_F(ClusterTest, TheNetworkIsMeasured) {
  const CommandResult r = mpirun(2, {"bench", "network"});
  EXPECT_EQ(r.code, 0) << r.err;
  has(r.out, "2 processes, each sends to all others at the same time");
  has(r.out, "moe plan --network ");
  const Json figures = Json::parse(mpirun(2, {"bench", "network", "--json"}).out);
  EXPECT_GT(figures["latency_seconds"].get<double>(), 0);
  EXPECT_GT(figures["bytes_per_second"].get<double>(), 1e6);
  EXPECT_EQ(figures["sizes"].size(), 4u);
  const CommandResult alone = moe_command({"bench", "network"});
  EXPECT_EQ(alone.code, 2);
  has(alone.err, "start them with mpirun");
}

// Open MPI 5 and later.
bool can_heal() {
  return run_command(MOE_MPIEXEC, command_line("--with-ft ulfm -n 1 true")).code == 0;
}

TEST_F(ClusterTest, ElasticNeedsAnMpiThatCan) {
  const std::string out = folder / "out";
  const CommandResult alone = moe_command(train_shared(root, out, "2", "--elastic"));
  EXPECT_EQ(alone.code, 2);
  has(alone.err, "--elastic is for several processes");
  expect_one_failure(mpirun(2, train_shared(root, out, "2", "--elastic")),
                     "--elastic needs processes that go on when one is lost");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(ClusterTest, ElasticGoesOnWithoutAProcess) {
  if (!can_heal()) GTEST_SKIP() << "this MPI cannot go on without a process";
  const std::string out = folder / "out";
  std::vector<std::string> words = command_line("--with-ft ulfm --oversubscribe -n 3");
  words.push_back(MOE_BINARY);
  for (const std::string& word :
       train_shared(root, out, "300", "--elastic --accumulate 6 --save-every 2"))
    words.push_back(word);
  const CommandResult r = run_command(MOE_MPIEXEC, words, [&](pid_t launcher) {
    wait_for_steps(out, 3);
    const std::vector<pid_t> processes = children_of(launcher);
    ASSERT_EQ(processes.size(), 3u);
    kill(processes.front(), SIGKILL);
  });
  has(r.err, "is lost: ");
  has(r.err, "moe: going on in 2 processes");
  EXPECT_EQ(losses_of(out).size(), 300u) << r.err;
}

#else

TEST(ClusterTest, NeedsMpi) { GTEST_SKIP() << "built without MPI (scripts/deps.sh mpi)"; }

#endif

}  // namespace
}  // namespace moe::cluster_test
