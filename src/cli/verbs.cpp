#include "cli/verbs.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace moe::cli {
namespace {

std::atomic<bool> stop_requested{false};

void on_signal(int) {
  stop_requested = true;
  std::signal(SIGINT, SIG_DFL);
}

// As the signal's own action, so that a shell sees what ended the command. On a terminal a line
// without its end may stand: a progress line, or the ^C that was typed.
void end_on_signal(int signal) {
  constexpr std::string_view kLine = "\nmoe: interrupted\n";
  const std::string_view line = isatty(STDERR_FILENO) != 0 ? kLine : kLine.substr(1);
  [[maybe_unused]] const ssize_t told = write(STDERR_FILENO, line.data(), line.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

const std::vector<Verb>& verbs() {
  constexpr const char *kMake = "Train", *kUse = "Use", *kLook = "Measure and look inside",
                       *kTurn = "Turn one model into another", *kAbout = "About";
  static const std::vector<Verb> table = {
      {"train", kMake, "train a model from text", add_train},
      {"tokenize", kMake, "make shards of tokens from text that is larger than memory",
       add_tokenize},
      {"generate", kUse, "continue a text", add_generate},
      {"chat", kUse, "talk with a model in the terminal", add_chat},
      {"serve", kUse, "answer over HTTP as OpenAI's API does, with a page to talk in", add_serve},
      {"get", kUse, "fetch a small ready-made model, or list what there is", add_get},
      {"score", kLook, "how well a model predicts a text", add_score},
      {"quiz", kLook, "how often models answer questions right that are made of a text", add_quiz},
      {"compare", kLook, "two models on one text: quality, speed, size, and where they part",
       add_compare},
      {"inspect", kLook,
       "parameters, arithmetic and memory of a model; with --text, what its experts do",
       add_inspect},
      {"bench", kLook, "how fast a model, this machine and this engine are", add_bench},
      {"league", kLook, "routing recipes against a dense twin, matched, and what papers claim",
       add_league},
      {"plan", kLook, "what training by many processes would take, layout by layout", add_plan},
      {"convert", kTurn, "between folders and GGUF files, quantised or not", add_convert},
      {"carve", kTurn, "cut the FFNs of a dense model into experts, without training", add_carve},
      {"upcycle", kTurn, "a dense model's FFNs, copied, become the experts of an MoE model",
       add_upcycle},
      {"merge", kTurn, "several dense models of one shape become the experts of one MoE model",
       add_merge},
      {"prune", kTurn, "drop the experts of an MoE model that do least on a text", add_prune},
      {"recipes", kAbout, "the routing recipes: formula, defaults, losses, source", add_recipes},
      {"route", kAbout, "work a routing recipe out on given numbers", add_route},
      {"help", kAbout, "what a verb takes, as its --help does", add_help},
      {"man", kAbout, "the manual page of the command or of one verb", add_man},
      {"completion", kAbout, "a script that completes this command in bash, zsh or fish",
       add_completion},
  };
  return table;
}

std::atomic<bool>& watch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return stop_requested;
}

void end_on_interrupts() {
  for (int signal : {SIGINT, SIGTERM})
    if (std::signal(signal, end_on_signal) == SIG_IGN)
      std::signal(signal, SIG_IGN);  // a shell's background job
}

}  // namespace moe::cli
