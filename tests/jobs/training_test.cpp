// A run from its options, as several processes prepare it that see different files.
#include "jobs/training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/files.h"
#include "support/processes.h"

namespace moe::training_test {
namespace {

using namespace moe::test;

namespace fs = std::filesystem;

Training prepared(const Json& values, const comm::Group& group) {
  RunOptions options;
  FieldList list = fields(options);
  Given given;
  for (const auto& [name, value] : values.items()) {
    list.at(name).set(value);
    given.add(name, GivenBy::caller);
  }
  return Training(options, given, group);
}

// One of them would wait for another that has ended. So it is where a folder was copied to a
// machine while its run was not over.
TEST(Training, ProcessesAgreeOnWhetherARunIsOver) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("line {} of a text\n", i);
  put(folder / "text.txt", text);
  const std::atomic<bool> stop = false;
  prepared({{"data", {folder / "text.txt"}},
            {"eval_data", {folder / "text.txt"}},
            {"out", folder / "out"},
            {"steps", 1},
            {"layers", 1},
            {"width", 8},
            {"heads", 1},
            {"context", 16},
            {"batch", 1},
            {"recipe", "dense"},
            {"threads", 1}},
           {})
      .run({}, stop);
  fs::copy(folder / "out", folder / "other", fs::copy_options::recursive);
  Json line = Json::parse(slurp(folder / "other/metrics.jsonl"));
  ASSERT_EQ(line.erase("eval_ce"), 1u);
  put(folder / "other/metrics.jsonl", line.dump() + "\n");
  const std::vector<std::string> failures = failures_of(2, [&](const comm::Group& group) {
    prepared({{"out", folder / (group.is_first() ? "out" : "other")}, {"resume", true}}, group);
  });
  for (const std::string& failure : failures)
    EXPECT_EQ(failure.substr(0, failure.find(';')),
              "process 1 has another rest of the run than process 0: something there, nothing "
              "here");
}

}  // namespace
}  // namespace moe::training_test
