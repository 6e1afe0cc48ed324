// Each prompt is the whole dialogue anew. The session keeps what it has read of it, so nothing here
// needs to know what the cache holds.
#include "infer/dialogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace moe {
namespace {

constexpr size_t kTurn = 2;  // a question and its reply

// What a prompt leaves free of the context: a reply's length, or a quarter where replies may be
// longer.
int64_t room_for_reply(int64_t context, int64_t max_tokens) {
  return std::min(std::max<int64_t>(max_tokens, 1), (context + 3) / 4);
}

// Gives of a reply under way what is new to who watches it.
class ReplyView {
 public:
  ReplyView(const ReplySyntax& syntax, const EmitText& emit, const EmitText& think)
      : reader_(syntax), emit_(emit), think_(think) {}

  bool add(const std::string& piece) {
    text_ += piece;
    const ReplyReader::Certain certain = reader_.read(text_);
    return show(certain.thought, certain.content);
  }
  bool show(std::string_view thought, std::string_view content) {
    const bool on = give(think_, thought, thought_);
    return give(emit_, content, content_) && on;
  }

 private:
  static bool give(const EmitText& to, std::string_view all, size_t& given) {
    const std::string fresh = take_new(all, given);
    return fresh.empty() || !to || to(fresh);
  }

  ReplyReader reader_;
  const EmitText &emit_, &think_;
  std::string text_;
  size_t content_ = 0, thought_ = 0;  // bytes given
};

}  // namespace

Dialogue::Dialogue(Model& model, Run& run, const Tokenizer& tokenizer, GenerateOptions options,
                   int64_t context)
    : tokenizer_(tokenizer),
      template_(chat_template(tokenizer)),
      options_(std::move(options)),
      context_(context_for(model.config(), context, run.device != nullptr)),
      session_(model, run, context_, options_.session) {
  validate(options_);
  check_asked_for(model.config(), options_.session.routing);
  // A model that begins another message has ended its reply.
  const std::vector<std::string>& stops = template_.stops();
  options_.stop.insert(options_.stop.end(), stops.begin(), stops.end());
}

std::vector<Message> Dialogue::messages_from(size_t turn) const {
  std::vector<Message> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin() + static_cast<int64_t>(turn), turns_.end());
  return messages;
}

// Says which part is too long: only the last message can be said shorter.
void Dialogue::fail_too_long(int64_t tokens, int64_t most) const {
  const auto around = [&](const std::string& system) {
    std::vector<Message> messages;
    if (!system.empty()) messages.push_back({"system", system});
    messages.push_back({"user", ""});
    return static_cast<int64_t>(tokenizer_.encode(template_.prompt(messages)).size());
  };
  const std::string limit =
      fmt::format("of the context of {} a prompt may take {}", context_, most);
  if (const int64_t marks = around(""); marks > most)
    fail(
        "the marks around a message alone take {} tokens, and {}; give a longer @context, or take "
        "a model trained with one",
        marks, limit);
  if (const int64_t with_system = around(system_); with_system > most)
    fail("the system message with the marks takes {} tokens, and {}; shorten the system message",
         with_system, limit);
  fail("{} {} tokens, and {}; say it shorter",
       system_.empty() ? "this takes" : "with the system message this takes", tokens, limit);
}

// Lets the oldest questions go, each with its reply, until the rest leaves room for a reply.
Dialogue::Prompt Dialogue::fit_prompt() {
  const int64_t most = context_ - room_for_reply(context_, options_.max_tokens);
  for (size_t first = first_;; first += kTurn) {
    Prompt prompt{template_.prompt(messages_from(first)), {}};
    prompt.ids = tokenizer_.encode(prompt.text);
    if (static_cast<int64_t>(prompt.ids.size()) <= most) {
      first_ = first;
      return prompt;
    }
    if (first + kTurn >= turns_.size())
      fail_too_long(static_cast<int64_t>(prompt.ids.size()), most);
  }
}

Reply Dialogue::reply(const EmitText& emit, const KeepReading& keep, const EmitText& think) {
  const size_t first = first_;
  Prompt prompt = fit_prompt();
  GenerateOptions options = options_;
  options.sampler.seed += replies_;
  const ReplySyntax syntax = template_.reply_syntax(false, opens_thought(prompt.text));
  ReplyView view(syntax, emit, think);
  const EmitText in_parts = [&](const std::string& piece) { return view.add(piece); };
  Generated generated =
      generate(session_, tokenizer_, prompt.ids, options, syntax.parses() ? in_parts : emit, keep);
  if (generated.finish == "interrupted" && generated.tokens == 0) {
    first_ = first;
    return {.prompt = std::move(prompt.text), .generated = std::move(generated)};
  }
  ParsedReply parsed{.content = generated.text};
  if (syntax.parses()) {
    parsed = parse_reply(syntax, generated.text);
    view.show(parsed.thought, parsed.content);
  }
  ++replies_;
  turns_.push_back({"assistant", parsed.content, parsed.thought});
  return {std::move(prompt.text), std::move(generated), std::move(parsed.content),
          std::move(parsed.thought), static_cast<int64_t>(first_ - first)};
}

Reply Dialogue::ask(const std::string& text, const EmitText& emit, const KeepReading& keep,
                    const EmitText& think) {
  const size_t before = turns_.size();
  turns_.push_back({"user", text});
  try {
    Reply r = reply(emit, keep, think);
    if (turns_.size() == before + 1) turns_.pop_back();
    return r;
  } catch (...) {
    turns_.pop_back();
    throw;
  }
}

Reply Dialogue::ask_again(const EmitText& emit, const KeepReading& keep, const EmitText& think) {
  if (turns_.empty()) fail_usage("there is no reply yet that another could stand for");
  const size_t size = turns_.size();
  const Message before = std::move(turns_.back());
  turns_.pop_back();
  try {
    Reply r = reply(emit, keep, think);
    if (turns_.size() < size) turns_.push_back(before);
    return r;
  } catch (...) {
    turns_.push_back(before);
    throw;
  }
}

void Dialogue::set_system(const std::string& text) {
  if (!text.empty()) template_.check(std::vector<Message>{{"system", text}});
  system_ = text;
}

void Dialogue::reset() {
  turns_.clear();
  first_ = 0;
  replies_ = 0;
}

}  // namespace moe
