// Going on with a run as a user does it: by its folder alone, with what changed named, and ended by
// Ctrl-C wherever it is.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ops/devices.h"
#include "support/command.h"
#include "train/checkpoint.h"

namespace moe::test::resume_test {
namespace {

namespace fs = std::filesystem;

class ResumeCommand : public ::testing::Test {
 protected:
  ResumeCommand() {
    for (const char* name : {"text.txt", "held.txt", "other.txt"}) {
      std::string text;
      for (int i = 0; i < 300; ++i)
        text += fmt::format("{} {}: the router sends each token to two experts\n", name, i);
      put(folder_ / name, text);
    }
  }
  std::vector<std::string> train(const std::string& out,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words = command_line(
        "train --width 16 --heads 2 --layers 1 --experts 4 --top-k 2 --expert-width 16 --context "
        "32 --batch 2 --threads 1 --no-report",
        {"--out", folder_ / out, "--data", folder_ / "text.txt"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> resume(const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train", "--resume", "--out", folder_ / out, "--no-report"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Ctrl-C once `step` stands in its metrics.
  CommandResult stopped_at(const std::vector<std::string>& words, const std::string& out,
                           int step) const {
    return moe_command(words, [&](pid_t child) {
      const std::string sign = fmt::format("\"step\":{},", step);
      for (int wait = 0;
           wait < 10000 && slurp(folder_ / out + "/metrics.jsonl").find(sign) == std::string::npos;
           ++wait)
        usleep(1000);
      kill(child, SIGINT);
    });
  }
  // f(line) for the line of a step in the metrics of a run.
  void change_line(const std::string& out, int step, const std::function<void(Json&)>& f) const {
    std::istringstream in(slurp(folder_ / out + "/metrics.jsonl"));
    std::string metrics;
    for (std::string text; std::getline(in, text);) {
      Json line = parse_json(text, "metrics.jsonl");
      if (line.at("step") == step) f(line);
      metrics += line.dump() + "\n";
    }
    put(folder_ / out + "/metrics.jsonl", metrics);
  }
  TempFolder folder_;
};

TEST_F(ResumeCommand, TheFolderIsEnough) {
  const std::vector<std::string> more = {
      "--steps",      "2000",   "--lr",           "0.002", "--eval-data", folder_ / "held.txt",
      "--eval-every", "500",    "--weight-decay", "0",     "--recipe",    "mixtral",
      "--tokenizer",  "bpe:300"};
  const CommandResult stopped = stopped_at(train("parts", more), "parts", 30);
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_NE(stopped.err.find("moe train --resume --out " + folder_ / "parts"), std::string::npos)
      << stopped.err;
  const CommandResult rest = ok(resume("parts"));
  EXPECT_NE(rest.err.find("step 2000: held-out ce"), std::string::npos) << rest.err;
  ok(train("whole", more));
  EXPECT_TRUE(slurp(folder_ / "whole/model.safetensors") ==
              slurp(folder_ / "parts/model.safetensors"));
}

TEST_F(ResumeCommand, NamesWhatWasChanged) {
  const std::vector<std::string> constant = {"--steps",  "2",        "--schedule",
                                             "constant", "--warmup", "0"};
  ok(train("out", constant));
  expect_refused(resume("out", {"--steps", "4", "--lr", "1e-5"}), 2,
                 {"--lr was 0.001 and is now 1e-05"});
  expect_refused(resume("out", {"--steps", "4", "--layers", "2"}), 2,
                 {"num_hidden_layers was 1 and is now 2"});
  expect_refused(resume("out", {"--steps", "4", "--data", folder_ / "other.txt"}), 1,
                 {"text.txt", "other.txt", "--from"});
  ok(resume("out", {"--steps", "4"}));
  ok(train("cosine", {"--steps", "2"}));
  expect_refused(resume("cosine", {"--steps", "4"}), 2, {"planned for 2", "--from"});
}

// As a stop in the evaluation at its end leaves one.
TEST_F(ResumeCommand, ARunThatOwesItsLastEvaluationTakesIt) {
  ok(train("out", {"--steps", "2", "--eval-data", folder_ / "held.txt"}));
  const std::string whole = slurp(folder_ / "out/metrics.jsonl"),
                    weights = slurp(folder_ / "out/model.safetensors");
  change_line("out", 2, [](Json& line) { line.erase("eval_ce"); });
  ASSERT_NE(slurp(folder_ / "out/metrics.jsonl"), whole);
  const CommandResult rest = ok(resume("out"));
  has(rest.err, "step 2: held-out ce");
  has(rest.err, "done: 2 steps");
  EXPECT_EQ(slurp(folder_ / "out/metrics.jsonl"), whole);
  EXPECT_TRUE(slurp(folder_ / "out/model.safetensors") == weights);
  has(ok(resume("out")).err, "trained already");
  ok(train("none", {"--steps", "2"}));
  has(ok(resume("none", {"--eval-data", folder_ / "held.txt"})).err, "trained already");
}

// It was to take none.
TEST_F(ResumeCommand, ARunWithoutHeldOutTextOwesNoEvaluation) {
  ok(train("out", {"--steps", "2", "--schedule", "constant", "--warmup", "0"}));
  const std::string before = slurp(folder_ / "out/metrics.jsonl");
  ok(resume("out", {"--steps", "3", "--eval-data", folder_ / "held.txt"}));
  EXPECT_TRUE(slurp(folder_ / "out/metrics.jsonl").starts_with(before));
}

// One that is done.
TEST_F(ResumeCommand, ADoneRunDoesNotPassOverAnotherText) {
  ok(train("out", {"--steps", "2"}));
  EXPECT_NE(ok(resume("out")).err.find("trained already"), std::string::npos);
  EXPECT_NE(ok(train("out", {"--steps", "2", "--resume"})).err.find("trained already"),
            std::string::npos);
  expect_refused(resume("out", {"--data", folder_ / "other.txt"}), 1,
                 {"not the one it was trained on", "text.txt", "other.txt", "--from"});
  expect_refused(resume("out", {"--lr", "0.5"}), 2, {"--lr was 0.001 and is now 0.5"});
  fs::remove(folder_ / "text.txt");
  EXPECT_NE(ok(resume("out")).err.find("trained already"), std::string::npos);
}

TEST_F(ResumeCommand, ADoneRunDoesNotPassOverAnotherModel) {
  ok(train("out", {"--steps", "2"}));
  expect_refused(resume("out", {"--layers", "2"}), 2, {"num_hidden_layers was 1 and is now 2"});
  expect_refused(resume("out", {"--from", folder_ / "other"}), 2,
                 {"it began with drawn weights, not with " + folder_ / "other"});
}

// Which may leave fewer steps than a file foresaw.
TEST_F(ResumeCommand, AFilesWarmUpGivesWayToTheMinutes) {
  put(folder_ / "run.json", R"({"warmup": 1000000})");
  std::vector<std::string> more = {"--minutes", "0.01", "--config", folder_ / "run.json"};
  ok(train("out", more));
  more.push_back("--resume");
  EXPECT_NE(ok(train("out", more)).err.find("trained already"), std::string::npos);
  const CommandResult asked =
      moe_command(train("no", {"--minutes", "0.01", "--warmup", "1000000"}));
  EXPECT_EQ(asked.code, 2);
  has(asked.err, "measuring how long a step takes");
  has(asked.err, "--warmup is 1000000 of ");
}

// A script that starts a run or goes on with it works its minutes out anew each time.
TEST_F(ResumeCommand, MinutesLeaveTheStepsOfARunThatGoesOnAsTheyWere) {
  const CommandResult stopped =
      stopped_at(train("out", {"--steps", "2000", "--eval-data", folder_ / "held.txt"}), "out", 30);
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  expect_refused(resume("out", {"--minutes", "0"}), 2, {"--minutes is 0; it must be above 0"});
  const CommandResult rest = ok(resume("out", {"--minutes", "0.001", "--eval-every", "0"}));
  has(rest.err, "; it keeps its 2000 steps, whatever --minutes says");
  has(rest.err, "step 2000: held-out ce");
  EXPECT_EQ(load_checkpoint(folder_ / "out").options.minutes, 0);
}

TEST_F(ResumeCommand, TextThatWasMovedIsNamed) {
  ok(train("out", {"--steps", "2", "--schedule", "constant", "--warmup", "0"}));
  fs::rename(folder_ / "text.txt", folder_ / "moved.txt");
  expect_refused(resume("out", {"--steps", "3"}), 1, {folder_ / "text.txt", "--data"});
  ok(resume("out", {"--steps", "3", "--data", folder_ / "moved.txt"}));
  ok(resume("out", {"--steps", "4"}));  // it knows the new place now
  expect_refused(resume("none"), 2, {"--data is missing", "none"});
}

TEST_F(ResumeCommand, StepsMayBeWrittenWithAnExponent) {
  ok(train("out", {"--steps", "1e0"}));
  const std::string metrics = slurp(folder_ / "out/metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 1);
  expect_refused(train("no", {"--steps", "1.5"}), 2, {"--steps", "1.5"});
}

TEST_F(ResumeCommand, TheBestWeightsAreKeptOrNamed) {
  const std::vector<std::string> more = {
      "--steps",  "6", "--schedule",  "constant",           "--lr",         "0.1",
      "--warmup", "0", "--eval-data", folder_ / "held.txt", "--eval-every", "1"};
  const CommandResult plain = ok(train("plain", more));
  EXPECT_NE(plain.err.find("lowest held-out ce: "), std::string::npos) << plain.err;
  EXPECT_NE(plain.err.find("--keep-best"), std::string::npos) << plain.err;
  EXPECT_FALSE(fs::exists(folder_ / "plain/best"));
  std::vector<std::string> keep = more;
  keep.insert(keep.end(), {"--keep-best", "--json"});
  const CommandResult kept = ok(train("kept", keep));
  EXPECT_NE(kept.err.find("those weights are in " + folder_ / "kept/best"), std::string::npos)
      << kept.err;
  EXPECT_LT(Json::parse(kept.out).at("best").at("eval_ce"), Json::parse(kept.out).at("eval_ce"));
  ok({"inspect", folder_ / "kept/best"});
}

// The evaluation of the first step stands in the metrics as the lowest.
TEST_F(ResumeCommand, WeightsThatWereNotKeptAreNotPromised) {
  ok(train("out", {"--steps", "2", "--schedule", "constant", "--warmup", "0", "--eval-every", "1",
                   "--eval-data", folder_ / "held.txt"}));
  change_line("out", 1, [](Json& line) { line["eval_ce"] = 0.0625; });
  const CommandResult r = ok(resume("out", {"--steps", "3", "--keep-best"}));
  has(r.err, "lowest held-out ce: 0.0625 at step 1; those weights were not kept");
  EXPECT_FALSE(fs::exists(folder_ / "out/best"));
}

TEST_F(ResumeCommand, OptionsWithoutWhatTheyHangOnAreRefused) {
  expect_refused(train("no", {"--keep-best"}), 2,
                 {"--keep-best goes by held-out text: add --eval-data or --hold-out"});
  expect_refused(train("no", {"--eval-every", "0"}), 2,
                 {"--eval-every goes by held-out text: add --eval-data or --hold-out"});
  expect_refused(train("no", {"--momentum", "0.9"}), 2,
                 {"--momentum is of --optimizer muon; add that or leave it out"});
  expect_refused(train("no", {"--cooldown", "0.5"}), 2,
                 {"--cooldown is of --schedule wsd; add that or leave it out"});
  expect_refused(train("no", {"--min-lr", "1e-4", "--schedule", "constant"}), 2,
                 {"--schedule constant keeps it at --lr; leave one of the two out"});
  put(folder_ / "run.json",
      R"({"momentum": 0.9, "cooldown": 0.5, "keep_best": true, "eval_every": 1, "steps": 1})");
  ok(train("out", {"--config", folder_ / "run.json"}));
}

// The next run would take what lies there for text.
TEST_F(ResumeCommand, AFolderAmongTheTextsIsRefused) {
  const std::string texts = folder_ / "texts";
  put(texts + "/one.txt", slurp(folder_ / "text.txt"));
  for (const std::string& out : {texts, texts + "/", texts + "/deep/er"}) {
    expect_refused({"train", "--data", texts, "--out", out}, 2,
                   {"--out " + out + " lies in --data " + texts, "choose another --out"});
    expect_refused({"train", "--data", folder_ / "text.txt", "--eval-data", texts, "--out", out}, 2,
                   {"lies in --eval-data " + texts});
  }
  EXPECT_FALSE(fs::exists(texts + "/deep"));
  fs::create_directory_symlink(texts, folder_ / "link");
  expect_refused({"train", "--data", texts, "--out", folder_ / "link/out"}, 2, {"lies in --data"});
}

bool has_device() {
  try {
    ops::cuda_device();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Where it is to write and compute is looked at before the text is, which may take minutes.
TEST_F(ResumeCommand, APlaceThatIsNoneIsSaidFirst) {
  const std::vector<std::string> words = {"train", "--data", folder_ / "nowhere.txt", "--out"};
  std::vector<std::string> in_file = words, on_device = words;
  in_file.push_back(folder_ / "text.txt/out");
  expect_refused(in_file, 1, {"cannot create the folder", "Not a directory", "another --out"});
  in_file.back() = "/proc/moe/out";  // which root has the rights to
  expect_refused(in_file, 1,
                 {"cannot create the folder", "no file can be made in /proc (", "another --out"});
  on_device.insert(on_device.end(), {folder_ / "no", "--device", "cuda"});
  if (!has_device()) has(moe_command(on_device).err, "CUDA");
}

// Catches `signal`: the command has got so far as to say what ended it.
bool catches(pid_t child, int signal) {
  const std::string status = slurp(fmt::format("/proc/{}/status", child));
  const size_t at = status.find("SigCgt:");
  return at != std::string::npos &&
         (std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// While it reads and learns a tokenizer, and while it measures for --minutes.
TEST_F(ResumeCommand, CtrlCEndsWhatComesBeforeTheSteps) {
  std::string text;
  for (int64_t i = 0; i < 400000; ++i)
    text += fmt::format("w{}{} ", i * 7919 % 100003, i * 104729 % 999983);
  put(folder_ / "text.txt", text);
  const auto interrupted = [&](const std::vector<std::string>& words, int milliseconds) {
    return moe_command(words, [&](pid_t child) {
      for (int wait = 0; wait < 10000 && !catches(child, SIGINT); ++wait) usleep(1000);
      usleep(static_cast<useconds_t>(1000 * milliseconds));
      kill(child, SIGINT);
    });
  };
  const CommandResult early = interrupted(train("early", {"--tokenizer", "bpe:20000"}), 50);
  EXPECT_EQ(early.code, 128 + SIGINT);
  EXPECT_EQ(early.err, "moe: interrupted\n");
  EXPECT_FALSE(fs::exists(folder_ / "early"));
  CommandResult measuring;
  EXPECT_LT(seconds_of([&] {
              measuring = interrupted(
                  train("measuring", {"--minutes", "60", "--accumulate", "10000"}), 1500);
            }),
            60);
  EXPECT_NE(measuring.code, 0);
  EXPECT_NE(measuring.err.find("interrupted"), std::string::npos) << measuring.err;
  EXPECT_FALSE(fs::exists(folder_ / "measuring/model.safetensors"));
}

}  // namespace
}  // namespace moe::test::resume_test
