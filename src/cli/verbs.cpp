#include "cli/verbs.h"

#include <csignal>

namespace moe::cli {
namespace {

std::atomic<bool> stop_requested{false};

void on_signal(int) {
  stop_requested = true;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      {"train", "train a model from text", add_train},
      {"tokenize", "make shards of tokens from text that is larger than memory", add_tokenize},
      {"generate", "continue a text", add_generate},
      {"chat", "talk with a model in the terminal", add_chat},
      {"score", "how well a model predicts a text", add_score},
      {"compare", "one model beside another on a text: quality, speed, size, and where they part", add_compare},
      {"convert", "between folders and GGUF files, quantised or not; prints what became of each tensor", add_convert},
      {"carve", "turn the FFNs of a dense model into experts, without training", add_carve},
      {"upcycle", "a dense model's FFNs, copied, become the experts of an MoE model", add_upcycle},
      {"merge", "several dense models of one shape become the experts of one MoE model", add_merge},
      {"prune", "drop the experts of an MoE model that do least on a text", add_prune},
      {"inspect", "parameters, arithmetic and memory of a model; with --text, what its routers do", add_inspect},
      {"recipes", "the routing recipes: formula, defaults, losses, source", add_recipes},
      {"route", "work a routing recipe out on given numbers", add_route},
      {"bench", "what this machine and this engine can do", add_bench},
      {"completion", "a script that completes this command in bash, zsh or fish", add_completion},
      {"man", "the manual page of the command or of one verb", add_man},
  };
  return table;
}

std::atomic<bool>& watch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return stop_requested;
}

}  // namespace moe::cli
