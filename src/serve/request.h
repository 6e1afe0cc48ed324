// The body of a request for text: its fields read and checked, and what they ask of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "infer/batcher.h"
#include "text/chat_template.h"

namespace moe::serve {

// What requests are read against. Views; they live as long as the server.
struct Served {
  std::string name;                   // of the model, in replies
  std::vector<std::string> adapters;  // names of those that requests may ask for, from number 1 on
  const Model* model = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;
  std::shared_ptr<const grammar::TokenTable> tokens;
  int64_t context = 0;  // tokens of a text at most
  int64_t slots = 0;    // ModelRunner::slots
  std::vector<int64_t> moe_layers;
  bool thoughts_apart = true;  // unless a request says otherwise
};

class ReplyStyle;

// How the reply is to be written down.
struct ReplyForm {
  std::string model = {};  // what the reply says that it was written by
  bool chat = false;
  bool stream = false, include_usage = false;
  bool echo = false;  // completions: the prompt stands before its continuation
  bool logprobs = false;
  bool prompt_logprobs = false;         // in vLLM's form
  bool routing = false;                 // readable, and
  bool routed_experts = false;          // the numbers alone
  bool tools = false;                   // the reply may call some
  bool forced = false;                  // it has to (ForcedCall)
  bool one_call = false;                // it ends with the first, and no other is told
  std::string call_name = {};           // of a forced call, where the prompt has it
  ToolArguments arguments = {};         // of the tools
  const ThoughtTags* opened = nullptr;  // of a thought that the prompt opened
  bool thoughts_apart = true;           // from the content, where they stand between tags
  bool thoughts_told = true;            // those that are apart
  // Those that the request names: of them a reply tells which one ended it.
  std::vector<std::string> stops = {};
  std::vector<int32_t> hidden = {};  // TextRules::hidden
  std::string role = "assistant";    // of a chat's reply
  std::string before = {};           // stands before a chat's content
  std::string begun = {};            // a reply is read as if it stood before it
};

struct ParsedRequest {
  ReplyForm form;
  int64_t choices = 1;             // of each prompt
  int64_t prompt_tokens = 0;       // of all texts
  std::vector<std::string> echo;   // the text of each prompt, where it is asked for
  std::vector<TextRequest> texts;  // prompt by prompt, choice by choice
  // Of the reply; null: as OpenAI's completions have it.
  std::shared_ptr<ReplyStyle> style = {};
};

// Throw ApiError or Error (usage) with the field that is wrong.
ParsedRequest read_completion(std::string_view body, const Served&);
ParsedRequest read_chat(std::string_view body, const Served&);
// The prompt that the model's template makes of the messages and tools of a request.
std::string chat_prompt(std::string_view body, const Served&);

}  // namespace moe::serve
