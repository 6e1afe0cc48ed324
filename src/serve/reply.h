// Replies in OpenAI's form, whole and in the chunks of a stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "serve/request.h"
#include "text/first_call.h"
#include "text/thoughts.h"
#include "text/tool_calls.h"

namespace moe::serve {

// What came of one choice so far.
struct Choice {
  int64_t index = 0;
  std::vector<int32_t> prompt_ids;
  std::string text;
  TextProgress all;  // its logprobs, routing and ids; its text stays empty
  Generated end;     // once it has ended
  bool ended = false;
  bool begun = false;  // a stream has sent something of it
  // Of a stream whose text is parsed: what was read of it.
  std::shared_ptr<ReplyReader> reader = {};
  // Of one that ends with its first call; null: it goes on.
  std::shared_ptr<FirstCall> first_call = {};
  size_t shown = 0;          // bytes of the content that a stream has sent
  size_t shown_thought = 0;  // likewise
  TokenRouting unsent;       // of a stream
  std::vector<TokenLogprobs> unsent_logprobs;
  int64_t offset = 0;  // characters of the tokens whose log-probabilities were written down

  int64_t prompt_tokens() const { return std::ssize(prompt_ids); }
};

// What all replies of a request have in common.
struct ReplyHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
};

class ReplyWriter {
 public:
  ReplyWriter(const Served& served, const ReplyForm& form, ReplyHead head)
      : served_(served), form_(form), head_(std::move(head)) {}

  // What ends a choice that is to have one call; null: none is to.
  std::shared_ptr<FirstCall> first_call() const;
  // The whole reply. `echo`: the texts of the prompts, each with `choices` choices.
  Json whole(const std::vector<Choice>&, const std::vector<std::string>& echo,
             int64_t choices) const;
  // A chunk with what the choice has new; null: nothing. `echo` stands before a completion's first,
  // which waits until all of the prompt is read where its log-probabilities are asked for.
  Json chunk(Choice&, std::string_view echo) const;
  // The last one, where the usage is asked for.
  Json usage_chunk(const std::vector<Choice>&, int64_t choices) const;

 private:
  Json base(const char* object) const;
  Json usage(const std::vector<Choice>&, int64_t choices) const;
  ReplySyntax syntax() const;
  bool parses() const;
  bool tells_thoughts() const;
  int64_t thought_tokens(const Choice&) const;
  ParsedReply parsed(const Choice&) const;
  ReplyReader::Certain certain(Choice&) const;
  Json message(const ParsedReply&, const Choice&) const;
  Json logprobs(const std::vector<TokenLogprobs>&, const Choice&,
                std::optional<std::string_view> echo, int64_t& offset) const;
  Json chat_logprobs(const std::vector<TokenLogprobs>&) const;
  Json completion_logprobs(const std::vector<TokenLogprobs>&, const Choice&,
                           std::optional<std::string_view> echo, int64_t& offset) const;
  Json prompt_logprobs(const Choice&) const;
  Json routing_tokens(const TokenRouting&) const;
  void add_routing(Json& choice, const Choice&) const;
  std::string finish_reason(const Choice&, bool calls) const;
  Json stop_reason(const Choice&) const;

  const Served& served_;
  ReplyForm form_;
  ReplyHead head_;
};

}  // namespace moe::serve
