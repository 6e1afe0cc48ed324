// A dialogue in the terminal or through pipes: replies go to standard output, everything else to
// standard error.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/append.h"
#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "hub/adapter.h"
#include "hub/named_models.h"
#include "hub/tensor_map.h"
#include "infer/dialogue.h"
#include "infer/eval_routing.h"
#include "infer/options.h"
#include "jobs/drafting.h"
#include "jobs/forward_memory.h"
#include "jobs/replies.h"
#include "ops/devices.h"
#include "text/chat_request.h"
#include "text/jsonl.h"

namespace moe::cli {
namespace {

constexpr int64_t kReplyTokens = 1000;
constexpr const char* kBlanks = " \t";

struct Flags {
  std::string model, adapter, system, template_kwargs;
  GenerateOptions generate{.max_tokens = kReplyTokens};
  int64_t context = 0;  // 0: the model's
  DraftOptions draft;
  ComputeOptions compute;
  MemoryOptions memory;
  bool show_speed = false, json = false;
  Given given;
};

// While it lives, Ctrl-C asks the reply to end, and a second one ends the process, as any does at
// the prompt.
class Interruptible {
 public:
  Interruptible() : stop_(watch_interrupts()) {
    stop_ = false;
    std::signal(SIGTERM, SIG_DFL);
  }
  ~Interruptible() { std::signal(SIGINT, SIG_DFL); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  bool asked() const { return stop_; }

 private:
  std::atomic<bool>& stop_;
};

class Chat {
 public:
  Chat(Dialogue& dialogue, const Flags& flags, int64_t context)
      : dialogue_(dialogue),
        json_(flags.json),
        show_speed_(flags.show_speed),
        max_tokens_(flags.generate.max_tokens),
        context_(context),
        terminal_(isatty(STDIN_FILENO) == 1) {}

  // 0, or through a pipe the exit code of the first line that could not be done.
  int run();
  const std::vector<std::vector<int64_t>>& expert_rows() const { return expert_rows_; }
  // Tokens and seconds of all replies together.
  const Generated& sum() const { return sum_; }

 private:
  struct Command {
    const char* name;
    const char* argument;  // what stands behind it; empty: nothing may
    const char* help;
    void (Chat::*act)(const std::string& argument);
  };
  static const std::vector<Command>& commands();

  void take(const std::string& line);
  void obey(const std::string& line);
  using Ask = std::function<Reply(const EmitText&, const KeepReading&, const EmitText& think)>;
  void say(const Ask& reply);
  void note_end(const Reply& reply) const;

  void help(const std::string&);
  void reset(const std::string&);
  void set_system(const std::string& text);
  void save(const std::string& path);
  void regenerate(const std::string&);
  void quit(const std::string&) { done_ = true; }

  Dialogue& dialogue_;
  bool json_, show_speed_;
  int64_t max_tokens_, context_;
  bool terminal_;  // a person types; else lines come through a pipe
  bool done_ = false;
  std::vector<std::vector<int64_t>> expert_rows_;  // of the session
  Generated sum_;
};

const std::vector<Chat::Command>& Chat::commands() {
  static const std::vector<Command> table = {
      {"/help", "", "this list", &Chat::help},
      {"/reset", "", "forget the dialogue, but not the system message", &Chat::reset},
      {"/system", "TEXT",
       "set the system message, which stands before the dialogue; without TEXT take it away",
       &Chat::set_system},
      {"/regenerate", "", "take the last reply back and draw another one", &Chat::regenerate},
      {"/save", "FILE.jsonl", "add the dialogue to a file that `moe train --data` reads",
       &Chat::save},
      {"/quit", "", "end, as Ctrl-D does", &Chat::quit},
  };
  return table;
}

int Chat::run() {
  int code = 0;
  int64_t number = 0;
  for (std::string line; !done_;) {
    if (terminal_) tell("> ");
    if (!std::getline(std::cin, line)) break;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    try {
      take(line);
    } catch (const Error& e) {
      if (terminal_) {
        tell("moe: {}\n", one_line(in_flags(e.marked())));
        continue;
      }
      // Who reads the replies must be able to find the one that is missing.
      tell("moe: line {}: {}; the line is passed over\n", number, one_line(in_flags(e.marked())));
      if (code == 0) code = e.kind() == Error::Kind::usage ? 2 : 1;
    }
  }
  if (terminal_ && !done_) tell("\n");
  return code;
}

// /word, as commands are spelled; "/usr/bin is a folder" and "/ is the root" are messages.
bool is_command(const std::string& line) {
  if (line.size() < 2 || line[0] != '/') return false;
  const size_t end = std::min(line.find_first_of(kBlanks), line.size());
  return std::all_of(line.begin() + 1, line.begin() + static_cast<std::ptrdiff_t>(end),
                     [](unsigned char c) { return std::isalpha(c) != 0; }) &&
         end > 1;
}

void Chat::take(const std::string& line) {
  if (line.find_first_not_of(kBlanks) == std::string::npos) return;
  if (is_command(line)) return obey(line);
  const std::string text = line.starts_with("//") ? line.substr(1) : line;
  say([&](const EmitText& emit, const KeepReading& keep, const EmitText& think) {
    return dialogue_.ask(text, emit, keep, think);
  });
}

void Chat::obey(const std::string& line) {
  const size_t space = std::min(line.find_first_of(kBlanks), line.size());
  const size_t begin = std::min(line.find_first_not_of(kBlanks, space), line.size());
  const std::string name = line.substr(0, space),
                    argument = line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
    if (name != command.name) continue;
    if (command.argument[0] == '\0' && !argument.empty())
      fail_usage("{} takes nothing behind it, not '{}'", name, printable(argument));
    return (this->*command.act)(argument);
  }
  fail_usage("{} is no command (a message that begins so is typed with //){}", printable(name, 40),
             suggestion(name.substr(0, 40), names));
}

void Chat::say(const Ask& reply) {
  const Interruptible interrupt;
  ReadingLine reading(!json_);
  bool thinks = false;
  const auto end_thought = [&] {
    if (std::exchange(thinks, false)) tell("\n");
  };
  const auto emit = [&](const std::string& text) {
    reading.clear();
    end_thought();
    if (!json_) {
      fmt::print("{}", text);
      std::fflush(stdout);
    }
    return !interrupt.asked();
  };
  const auto think = [&](const std::string& text) {
    reading.clear();
    if (!json_) tell("{}{}", std::exchange(thinks, true) ? "" : "thinks: ", text);
    return !interrupt.asked();
  };
  const auto read = [&](int64_t done, int64_t total) {
    reading.show(done, total);
    return !interrupt.asked();
  };
  const Reply r = reply(emit, read, think);
  reading.clear();
  end_thought();
  expert_rows_ = r.generated.expert_rows;
  const Generated& g = r.generated;
  sum_.tokens += g.tokens;
  sum_.proposed += g.proposed;
  sum_.accepted += g.accepted;
  sum_.decode_seconds += g.decode_seconds;
  if (json_) {
    Json line = {{"prompt", r.prompt},
                 {"text", r.content},
                 {"prompt_tokens", g.prompt_tokens},
                 {"read_tokens", g.read_tokens},
                 {"tokens", g.tokens},
                 {"finish", g.finish},
                 {"proposed", g.proposed},
                 {"accepted", g.accepted},
                 {"let_go", r.let_go}};
    if (!r.thought.empty()) line["reasoning_content"] = r.thought;
    fmt::print("{}", one_line_json(line));
  }
  fmt::print("\n");
  std::fflush(stdout);
  note_end(r);
  if (show_speed_) tell("{}\n", describe_speed(g));
  if (interrupt.asked() && !terminal_) done_ = true;
}

// What a reader may wonder about.
void Chat::note_end(const Reply& r) const {
  if (r.let_go > 0)
    tell("note: the context of {} tokens is full; the oldest {} messages were let go\n", context_,
         r.let_go);
  if (r.generated.finish == "interrupted" && r.generated.tokens == 0)
    tell("note: interrupted while the message was being read; it is as if it had not been said\n");
  if (r.generated.finish != "length") return;
  if (r.generated.tokens < max_tokens_)
    tell("note: the reply was cut where the context of {} tokens ends\n", context_);
  else tell("note: the reply was cut after {} tokens; -n allows more\n", r.generated.tokens);
}

void Chat::help(const std::string&) {
  for (const Command& c : commands())
    tell("  {:<18}  {}\n", fmt::format("{} {}", c.name, c.argument), c.help);
  tell("  {:<18}  {}\n  {:<18}  {}\n", "//TEXT", "say a text that begins with /", "Ctrl-C",
       "end a reply; at the prompt, end");
}

void Chat::reset(const std::string&) {
  dialogue_.reset();
  tell("the dialogue begins anew\n");
}

void Chat::set_system(const std::string& text) {
  dialogue_.set_system(text);
  tell("{}\n", text.empty() ? "there is no system message now" : "the system message is set");
}

void Chat::regenerate(const std::string&) {
  say([&](const EmitText& emit, const KeepReading& keep, const EmitText& think) {
    return dialogue_.ask_again(emit, keep, think);
  });
}

void Chat::save(const std::string& path) {
  if (path.empty()) fail_usage("/save needs the name of a file, as in /save dialogues.jsonl");
  if (!is_jsonl(path))
    fail_usage("{}: the name must end in .jsonl, by which `moe train --data` knows what it holds",
               printable(path));
  const std::vector<Message> messages = dialogue_.messages();
  if (messages.empty() || messages.back().role != "assistant")
    fail_usage("there is no reply yet to be saved");
  append_line(path, jsonl_line(messages));
  tell("{} messages were added to {} as one line\n", messages.size(), path);
}

void note_training(const Tokenizer& tokenizer, const std::string& model) {
  if (dialogues_of(tokenizer) == Dialogues::none)
    tell(
        "note: {} was not trained on dialogues (it has no chat template): it only continues the "
        "text of one, written as ChatML\n",
        model);
}

int run_chat(const Flags& f) {
  GenerateOptions options = f.generate;
  check_draft_options(f.draft, options, f.given);
  const LoadedModel loaded = open_adapted(f.model, f.adapter, f.memory.limits);
  Run run(thread_count(f.compute.threads), compute_dtype(f.compute, *loaded.model),
          ops::device_of(f.compute.device));
  const ModelConfig& config = loaded.model->config();
  const int64_t context = context_for(config, f.context, run.device != nullptr);
  tell_of_context(config, context, on_screen());
  std::vector<ForwardUse> uses = {
      session_use(*loaded.model, options.session, run.compute, context, context)};
  std::optional<Drafting> draft;
  if (!f.draft.model.empty()) {
    draft.emplace(f.draft, loaded, options.session, f.compute, context, f.memory.limits,
                  on_screen());
    uses.push_back(draft->use(context));
  }
  const bool large = prepare_memory(
      f.model, uses, {}, f.memory,
      fmt::format("lower --context from {}, take --cache-dtype q8_0{} or a smaller model", context,
                  draft ? ", no --draft" : ""),
      on_screen());
  loaded.model->move_to(run.device);
  if (draft) options.guesser = &draft->start();
  Dialogue dialogue(*loaded.model, run, *loaded.tokenizer, options, context);
  dialogue.set_variables(parse_template_variables(f.template_kwargs));
  dialogue.set_system(f.system);
  note_training(*loaded.tokenizer, f.model);
  if (isatty(STDIN_FILENO) == 1)
    tell(
        "{}: {} parameters, a context of {} tokens. /help lists what can be typed beside messages, "
        "Ctrl-D ends.\n",
        f.model, human_count(parameter_count(config)), context);
  Chat chat(dialogue, f, context);
  const int code = chat.run();
  if (!f.json) tell_guesses(options, chat.sum(), on_screen());
  if (large || f.memory.hot_set)
    tell_hot_set(hot_set(*loaded.model, chat.expert_rows()), on_screen());
  return code;
}

}  // namespace

Action add_chat(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->model);
  add_adapter(list, f->adapter);
  list.add("system", f->system, "what stands before the dialogue");
  list.add("chat_template_kwargs", f->template_kwargs, kTemplateKwargsHelp);
  list.add(fields(f->generate));
  list.at("tokens").help = "most tokens of a reply";
  list.add("context", f->context,
           "most tokens that the model sees, prompt and reply; 0: the model's context. Their keys "
           "and values take memory from the start")
      .unit("tokens")
      .also({"ctx_size"});
  list.add(fields(f->draft));
  list.add(fields(f->compute));
  add_memory(list, f->memory);
  add_hot_set(list, f->memory);
  add_show_speed(list, f->show_speed);
  list.add("json", f->json, "each reply as one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  app.footer(
      "Each line is a message; /help lists the commands. Through a pipe, each line of standard "
      "input is a message and each reply ends with a line end; a line that "
      "cannot be answered is named on standard error and passed over.");
  return [f] { return run_chat(*f); };
}

}  // namespace moe::cli
