// A dialogue with a model: the messages so far, and one session that reads of each prompt only what
// is new.
#pragma once

#include <string>
#include <vector>

#include "infer/generate.h"
#include "text/chat.h"

namespace moe {

struct Reply {
  std::string prompt;   // the dialogue as the model was given it
  Generated generated;  // its text is the reply without the mark that ends it
  std::string content;  // of the text; all of it where there is no thought
  std::string thought;  // of the text, where it stands in a channel or between tags
  int64_t let_go = 0;   // messages that the model saw for the reply before and no longer for this
                        // one, because its context was full
};

class Dialogue {
 public:
  // Model, run and tokenizer outlive it. The tokenizer's template says how messages are written;
  // fails where that is not known. `max_tokens` is of a reply. The n-th reply is drawn from seed +
  // n - 1, so the first is what generate() gives. `context`: tokens that prompt and reply have
  // together, 0: the model's. Usage errors: as generate() and context_for().
  Dialogue(Model&, Run&, const Tokenizer&, GenerateOptions, int64_t context = 0);

  // Says `text` and returns the model's reply. Fails, and leaves everything as it was, where the
  // text holds a mark of the template or, with the system message, does not fit the context. Where
  // `keep` ends the reading of the prompt, everything is left as it was too, and the reply is empty
  // and "interrupted". A reply's thoughts go to `think`; the dialogue goes on without them, unless
  // the template writes those of earlier messages.
  Reply ask(const std::string& text, const EmitText&, const KeepReading& keep = {},
            const EmitText& think = {});
  // Takes the last reply back and draws another one; a usage error where there is none.
  Reply ask_again(const EmitText&, const KeepReading& keep = {}, const EmitText& think = {});
  // Stands before the first message from now on; empty: nothing does.
  void set_system(const std::string& text);
  // Further variables of the template from now on; usage errors as ChatTemplate::set_variables().
  void set_variables(jinja::Variables variables) { template_.set_variables(std::move(variables)); }
  // Forgets everything but the system message.
  void reset();
  // All of them, with those that were let go.
  std::vector<Message> messages() const { return messages_from(0); }

 private:
  std::vector<Message> messages_from(size_t turn) const;
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
  };
  Prompt fit_prompt();
  [[noreturn]] void fail_too_long(int64_t tokens, int64_t most) const;
  Reply reply(const EmitText&, const KeepReading&, const EmitText& think);

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  GenerateOptions options_;
  int64_t context_;
  Session session_;
  std::string system_;
  std::vector<Message> turns_;  // questions and replies in turn
  size_t first_ = 0;            // of the turns that the model sees
  uint64_t replies_ = 0;
};

}  // namespace moe
