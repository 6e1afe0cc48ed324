#include "train/step_lines.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>

#include "support/files.h"
#include "support/step_numbers.h"

namespace moe::step_lines_test {
namespace {

using namespace test;

std::string at(int64_t step) { return fmt::format("{{\"step\":{}}}", step); }

TEST(StepLines, AppendsAndCutsOffWhatIsRunAgain) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    StepLines file(path, 0);
    for (int64_t s = 1; s <= 6; ++s) file.append(at(s));
    file.sync();
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  {
    StepLines file(path, 4);
    EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4}));
    file.append(at(5));
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  StepLines file(path, 9);
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5})) << "nothing to cut";
}

TEST(StepLines, ALineThatAKillCutShortGoes) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl", good = at(1) + "\n";
  for (const std::string& torn :
       {std::string("{\"step\":2,\"tok"), std::string("{\"step\":2,\"tok\n"),
        std::string(100, '\0'), std::string("\n")}) {
    put(path, good + torn);
    StepLines file(path, 5);
    EXPECT_EQ(slurp(path), good);
  }
  put(path, "{\"step\":1");
  StepLines file(path, 5);
  EXPECT_EQ(slurp(path), "");
}

TEST(StepLines, TheLastLineIsChanged) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  StepLines file(path, 0);
  file.append(at(1));
  file.append(at(2));
  const auto longer = [](std::string_view line) {
    EXPECT_EQ(line, at(2));
    return std::string(R"({"more":1,"step":2})");
  };
  EXPECT_EQ(file.change_last(longer), R"({"more":1,"step":2})");
  file.append(at(3));
  EXPECT_EQ(slurp(path), at(1) + "\n" + R"({"more":1,"step":2})" + "\n" + at(3) + "\n");
}

// What it said of its step is not told again.
TEST(StepLines, TheLastLineStaysWhereAnotherHasNoRoom) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  StepLines file(path, 0);
  file.append(at(1));
  file.append(at(2));
  const std::string before = slurp(path);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{before.size() + 3, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] {
    file.change_last([](std::string_view) { return std::string(R"({"more":1,"step":2})"); });
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("free some space"), std::string::npos) << message;
  EXPECT_EQ(slurp(path), before);
}

TEST(StepLines, AFolderThatCannotBeWrittenIsNamed) {
  EXPECT_FAILS(StepLines("/nonexistent/metrics.jsonl", 0), "/nonexistent/metrics.jsonl");
}

std::vector<std::string> last(const std::string& path, int64_t most) {
  std::vector<std::string> lines;
  each_last_line(path, most, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(StepLines, TheLastLinesComeInOrder) {
  const TempFolder folder;
  const std::string path = folder / "lines.jsonl";
  EXPECT_EQ(last(path, 2), std::vector<std::string>{}) << "no file";
  put(path, "");
  EXPECT_EQ(last(path, 2), std::vector<std::string>{});
  put(path, "a\nbb\n\nccc\ntorn");
  EXPECT_EQ(last(path, 1), std::vector<std::string>{"ccc"});
  EXPECT_EQ(last(path, 3), (std::vector<std::string>{"bb", "", "ccc"}));
  EXPECT_EQ(last(path, 9), (std::vector<std::string>{"a", "bb", "", "ccc"}));
  EXPECT_EQ(last(path, 0), std::vector<std::string>{});
}

}  // namespace
}  // namespace moe::step_lines_test
