// Runs the command `moe` (MOE_BINARY) as a user does, and checks the one thing all its failures
// share: an exit code and one clear line.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/json.h"
#include "support/files.h"

namespace moe::test {

struct CommandResult {
  int code = -1;         // exit code; 128 + signal when one ended it
  std::string out, err;  // standard output and error
};

// The words of `line`, apart at single blanks, and `more` behind them: paths and texts.
inline std::vector<std::string> command_line(const std::string& line,
                                             const std::vector<std::string>& more = {}) {
  std::istringstream in(line);
  std::vector<std::string> words(std::istream_iterator<std::string>(in), {});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// `meanwhile` is called with the process id while it runs; `input` is its standard input.
inline CommandResult run_command(const std::string& program, const std::vector<std::string>& words,
                                 const std::function<void(pid_t)>& meanwhile = {},
                                 const std::string& input = "") {
  const TempFolder folder;
  const std::string in = folder / "in", out = folder / "out", err = folder / "err";
  put(in, input);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(in.c_str(), O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  if (meanwhile) meanwhile(child);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(out), slurp(err)};
}

inline CommandResult moe_command(const std::vector<std::string>& words,
                                 const std::function<void(pid_t)>& meanwhile = {},
                                 const std::string& input = "") {
  return run_command(MOE_BINARY, words, meanwhile, input);
}

// A text of `lines` lines that are alike, one of lines that are nearly so, and the options of a
// model so small that it learns them in a moment.
inline std::string repeated_text(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "the router sends each token to two experts\n";
  return text;
}
inline std::string small_text(int lines = 100) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += fmt::format("line {}: the router sends each token to two experts\n", i);
  return text;
}
inline std::vector<std::string> train_small(const std::string& data, const std::string& out,
                                            const std::string& steps) {
  return command_line(
      "train --width 16 --heads 2 --layers 2 --experts 4 --top-k 2 --expert-width 16 --context 32 "
      "--batch 2 --threads 2 --lr 0.01",
      {"--data", data, "--out", out, "--steps", steps});
}

// It failed with `code`, said so in one line that begins "moe: " and contains every part, and
// printed nothing else but the log of a run that began.
inline void expect_refused(const std::vector<std::string>& words, int code,
                           const std::vector<std::string>& parts) {
  std::string line;
  for (const std::string& word : words) line += word + " ";
  SCOPED_TRACE(line);
  const CommandResult r = moe_command(words);
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(r.out, "");
  ASSERT_FALSE(r.err.empty());
  EXPECT_EQ(r.err.back(), '\n');
  std::vector<std::string> said;
  std::istringstream lines(r.err);
  for (std::string text; std::getline(lines, text);)
    if (!text.starts_with("data: ") && !text.starts_with("model: ") && !text.starts_with("run: ") &&
        !text.starts_with("note: "))
      said.push_back(text);
  ASSERT_EQ(said.size(), 1u) << r.err;
  EXPECT_TRUE(said[0].starts_with("moe: ")) << r.err;
  for (const std::string& part : parts) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, said[0]);
}

inline void has(const std::string& text, const std::string& part) {
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text);
}

// It ended well.
inline CommandResult ok(const std::vector<std::string>& words) {
  CommandResult r = moe_command(words);
  EXPECT_EQ(r.code, 0) << r.err;
  return r;
}

// What `moe score` gives the model on the text; 0 when it fails.
inline double perplexity(const std::string& model, const std::string& text) {
  const CommandResult r = ok({"score", model, "--text", text, "--json"});
  return r.code == 0 ? parse_json(r.out, "moe score").at("perplexity").get<double>() : 0;
}

}  // namespace moe::test
