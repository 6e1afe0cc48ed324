#include "api/call.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe::api {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";
};
thread_local LastError last_error;

// The flags of all verbs, "--top-k" and "-n", and the names that they have in JSON and in other languages: "top_k", "tokens".
const std::map<std::string, std::string, std::less<>>& keywords() {
  static const auto table = [] {
    std::map<std::string, std::string, std::less<>> names;
    const cli::Command command = cli::make_command();
    const cli::CommandInfo root = cli::describe(*command.app, "moe");
    for (const cli::CommandInfo* verb : cli::all_commands(root))
      for (const cli::OptionInfo& flag : verb->flags) {
        std::string keyword = flag.names.back().substr(flag.names.back().find_first_not_of('-'));
        std::replace(keyword.begin(), keyword.end(), '-', '_');
        for (const std::string& name : flag.names) names.emplace(name, keyword);
      }
    return names;
  }();
  return table;
}

bool is_of_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' || c == '/'; }

// Messages are written for the command line. Whoever calls a function gave options by keyword, so here "--top-k is 9" becomes "top_k is 9" and "top-k" in
// quotes "top_k". What stands between backticks is a command line, and stays one.
std::string with_keywords(const std::string& message) {
  std::string out;
  bool command = false;
  for (size_t at = 0; at < message.size();) {
    if (message[at] == '`') command = !command;
    size_t end = at;
    while (end < message.size() && is_of_a_word(message[end])) ++end;
    while (end > at + 1 && message[end - 1] == '.') --end;  // of a sentence
    if (end == at) {
      out += message[at++];
      continue;
    }
    std::string word = message.substr(at, end - at);
    const bool quoted = at > 0 && message[at - 1] == '"' && end < message.size() && message[end] == '"';
    const auto found = command ? keywords().end() : keywords().find(quoted ? "--" + word : word);
    out += found != keywords().end() ? found->second : word;
    at = end;
  }
  return out;
}

void* allocated(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void set_last_error(const char* message) noexcept {
  try {
    last_error.text = with_keywords(one_line(message));
    last_error.shown = last_error.text.c_str();
  } catch (...) {
    last_error.shown = "out of memory";
  }
}

void apply_options(CLI::App& app, const char* options) {
  if (options != nullptr && *options != '\0') apply_options(app, parse_json(options, "options"), "options");
}

void apply_options(CLI::App& app, Json named, const std::string& where) {
  app.set_help_flag();  // no option of a program
  const auto is_left_out = [&](std::string key, const Json& value) {
    std::replace(key.begin(), key.end(), '_', '-');
    return (value.is_null() || ((value.is_array() || cli::takes_named_numbers(key)) && value.empty())) && app.get_option_no_throw("--" + key) != nullptr;
  };
  if (named.is_object())
    for (auto it = named.begin(); it != named.end();) it = is_left_out(it.key(), it.value()) ? named.erase(it) : std::next(it);
  cli::apply_json(app, named.dump(), where);
}

void settle(moe_model& model, const ForwardUse& use, const char* advice, int64_t results) {
  MemoryNeed beside;
  beside.add("results", results);
  beside.add("sessions", *model.promised);
  settle_memory(use, beside, model.limits, advice);
}

char* given(std::string_view text) {
  char* copy = static_cast<char*>(allocated(text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

int32_t* given(std::span<const int32_t> ids) {
  auto* copy = static_cast<int32_t*>(allocated(std::max<size_t>(ids.size_bytes(), 1)));
  if (!ids.empty()) std::memcpy(copy, ids.data(), ids.size_bytes());
  return copy;
}

}  // namespace moe::api

extern "C" {

const char* moe_version(void) { return MOE_VERSION; }

const char* moe_last_error(void) { return moe::api::last_error.shown; }

void moe_free(void* memory) { std::free(memory); }
}
