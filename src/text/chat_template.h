// The templates by which open chat models were trained to read dialogues, recognised by the Jinja
// text that comes with a model. A new family is a row of the table in chat_template.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

// What stands around messages. "content" below is a message's text.
struct ChatTemplate {
  enum class System {
    message,     // stands as a message of its own
    first_user,  // inside the first user's message, before its content
    last_user,   // inside the dialogue's last message, if that is the user's
    none,        // cannot be said
  };
  struct Marks {
    std::string open, close;
  };

  std::string name;
  std::string begin;  // of a dialogue
  System system_as = System::message;
  Marks system, user;
  std::string reply_open, reply_end, reply_after;  // reply_end is what a model learns to end with
  std::string ask;  // opens the reply that is asked for; reply_open without the spaces that a model
                    // writes itself
  bool trim = false;                   // contents lose the white space around them
  bool trim_reply = false;             // replies do
  bool drop_thoughts = false;          // of replies only what stands behind </think>
  bool end_plain = false;              // reply_after is left out behind a last message
  bool always_system = false;          // also where there is none to say
  std::string default_system;          // where a dialogue has none
  std::vector<std::string> forbidden;  // parts messages, so it may not stand inside one
  std::vector<std::string> stops;      // a model that writes one has ended its reply
};

// What `moe train` writes and what stands in where a model has no template.
const ChatTemplate& chatml();

std::vector<std::string> chat_template_names();
// By the template of the tokenizer's config; chatml() where there is none. Fails, naming those
// known, where no row recognises it.
ChatTemplate chat_template(const Tokenizer& tokenizer);
// `bos` and `eos`: what the tokenizer calls them; empty where it has none.
ChatTemplate recognize_template(std::string_view jinja, const std::string& bos,
                                const std::string& eos);

}  // namespace moe
