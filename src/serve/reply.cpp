#include "serve/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "moe/stages/replay.h"
#include "serve/base64.h"
#include "text/utf8.h"

namespace moe::serve {
namespace {

constexpr float kLeastLogprob = -9999;  // stands for minus infinity, which JSON has not

float finite(float logprob) { return std::max(logprob, kLeastLogprob); }

int64_t character_count(std::string_view text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Step::Kind::character) return false;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return true;
}

// A token's text. One that is a part of a character is spelled as OpenAI's completions spell it, so
// that no two tokens read alike.
std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  std::string piece = tokenizer.piece(id);
  if (is_utf8(piece)) return piece;
  std::string spelled = "bytes:";
  for (const unsigned char byte : piece) spelled += fmt::format("\\x{:02x}", byte);
  return spelled;
}

// `id`: of the choice, so that no two calls of a reply have the same.
Json call_json(const ToolCall& call, const std::string& id, size_t index) {
  return {{"index", index},
          {"id", fmt::format("call_{}_{}", id, index)},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

Json ReplyWriter::base(const char* object) const {
  return {{"id", head_.id},
          {"object", object},
          {"created", head_.created},
          {"model", form_.model},
          {"system_fingerprint", "moe.cpp"}};
}

Json ReplyWriter::usage(const std::vector<Choice>& all, int64_t choices) const {
  int64_t prompt = 0, cached = 0, written = 0, thought = 0;
  for (const Choice& choice : all) {
    written += choice.end.tokens;
    if (tells_thoughts()) thought += thought_tokens(choice);
    if (choice.index % choices != 0) continue;  // choices share a prompt
    prompt += choice.end.prompt_tokens;
    cached += choice.end.prompt_tokens - choice.end.read_tokens;
  }
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", written},
                {"total_tokens", prompt + written},
                {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (tells_thoughts()) usage["completion_tokens_details"] = {{"reasoning_tokens", thought}};
  return usage;
}

// The tokens up to where the thought ends, its tags among them.
int64_t ReplyWriter::thought_tokens(const Choice& choice) const {
  std::string written;
  std::vector<size_t> begins;
  for (const int32_t id : choice.all.ids) {
    begins.push_back(written.size());
    written += served_.tokenizer->piece(id);
  }
  const size_t end = thought_bytes(syntax(), written);
  return std::lower_bound(begins.begin(), begins.end(), end) - begins.begin();
}

std::string ReplyWriter::finish_reason(const Choice& choice, bool calls) const {
  if (calls) return "tool_calls";
  return choice.end.finish == "stop" ? "stop" : "length";
}

// As vLLM tells it: which of the request's stops ended the text, or of its tokens; null: none.
Json ReplyWriter::stop_reason(const Choice& choice) const {
  if (choice.end.stop_id) return *choice.end.stop_id;
  const auto stop = std::find(form_.stops.begin(), form_.stops.end(), choice.end.stop);
  return stop != form_.stops.end() ? Json(*stop) : Json();
}

Json ReplyWriter::chat_logprobs(const std::vector<TokenLogprobs>& list) const {
  const auto entry = [&](const TokenLogprob& t) {
    const std::string piece = served_.tokenizer->piece(t.id);
    Json bytes = Json::array();
    for (const unsigned char byte : piece) bytes.push_back(byte);
    return Json{{"token", piece}, {"logprob", finite(t.logprob)}, {"bytes", std::move(bytes)}};
  };
  Json content = Json::array();
  for (const TokenLogprobs& token : list) {
    Json one = entry(token.token);
    one["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.top) one["top_logprobs"].push_back(entry(other));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

// `echo`: the prompt's text, where its tokens stand before those of the list. `offset`: the
// character of the text where the first token begins, moved behind the last one. The prompt's
// tokens may have more characters than its text, in front: what begins a text, or a blank before
// its first word.
Json ReplyWriter::completion_logprobs(const std::vector<TokenLogprobs>& list, const Choice& choice,
                                      std::optional<std::string_view> echo, int64_t& offset) const {
  const Tokenizer& tokenizer = *served_.tokenizer;
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(),
       offsets = Json::array();
  const auto add = [&](int32_t id, const TokenLogprobs* token, int64_t shown) {
    const std::string text = token_text(tokenizer, id);
    tokens.push_back(text);
    offsets.push_back(std::max<int64_t>(offset, 0));
    offset += shown;
    logprobs.push_back(token != nullptr ? Json(finite(token->token.logprob)) : Json());
    Json others = token != nullptr ? Json::object() : Json();
    if (token != nullptr) {
      for (const TokenLogprob& other : token->top)
        others[token_text(tokenizer, other.id)] = finite(other.logprob);
      others[text] = finite(token->token.logprob);  // beside the likeliest, as OpenAI has it
    }
    top.push_back(std::move(others));
  };
  const auto characters = [&](int32_t id) { return character_count(tokenizer.piece(id)); };
  if (echo) {
    offset = character_count(*echo);
    for (const int32_t id : choice.prompt_ids) offset -= characters(id);
    // Nothing stands before the first token of a prompt that it could have been predicted from.
    add(choice.prompt_ids.at(0), nullptr, characters(choice.prompt_ids[0]));
    for (const TokenLogprobs& token : choice.all.prompt_logprobs)
      add(token.token.id, &token, characters(token.token.id));
  }
  for (const TokenLogprobs& token : list) {
    const int32_t id = token.token.id;
    const bool hidden = std::binary_search(form_.hidden.begin(), form_.hidden.end(), id);
    add(id, &token, hidden ? 0 : characters(id));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

Json ReplyWriter::logprobs(const std::vector<TokenLogprobs>& list, const Choice& choice,
                           std::optional<std::string_view> echo, int64_t& offset) const {
  if (!form_.logprobs) return nullptr;
  return form_.chat ? chat_logprobs(list) : completion_logprobs(list, choice, echo, offset);
}

// Of each of the prompt's tokens but the first, by ids, its own and those of the likeliest.
Json ReplyWriter::prompt_logprobs(const Choice& choice) const {
  Json list = Json::array();
  list.push_back(nullptr);
  for (const TokenLogprobs& token : choice.all.prompt_logprobs) {
    Json by_id = Json::object();
    const auto add = [&](const TokenLogprob& each, int64_t rank) {
      by_id[std::to_string(each.id)] = {{"logprob", finite(each.logprob)},
                                        {"rank", rank},
                                        {"decoded_token", token_text(*served_.tokenizer, each.id)}};
    };
    for (size_t i = 0; i < token.top.size(); ++i) add(token.top[i], static_cast<int64_t>(i) + 1);
    add(token.token, token.rank);
    list.push_back(std::move(by_id));
  }
  return list;
}

// [{"id", "text", "experts": [[K] of each MoE layer], "weights": likewise}]
Json ReplyWriter::routing_tokens(const TokenRouting& routing) const {
  const auto layers = std::ssize(served_.moe_layers), slots = served_.slots;
  Json tokens = Json::array();
  for (int64_t n = 0; n < std::ssize(routing.ids); ++n) {
    Json experts = Json::array(), weights = Json::array();
    for (int64_t l = 0; l < layers; ++l) {
      Json chosen = Json::array(), with = Json::array();
      for (int64_t k = 0; k < slots; ++k) {
        const auto at = static_cast<size_t>((n * layers + l) * slots + k);
        if (routing.experts[at] < 0) continue;
        chosen.push_back(routing.experts[at]);
        with.push_back(shortest_decimal(routing.weights[at]));
      }
      experts.push_back(std::move(chosen));
      weights.push_back(std::move(with));
    }
    const int32_t id = routing.ids[static_cast<size_t>(n)];
    tokens.push_back({{"id", id},
                      {"text", served_.tokenizer->piece(id)},
                      {"experts", std::move(experts)},
                      {"weights", std::move(weights)}});
  }
  return tokens;
}

void ReplyWriter::add_routing(Json& json, const Choice& choice) const {
  const TokenRouting& routing = choice.all.routing;
  const std::string numbers = to_base64(routing.experts);
  const Json shape = {routing.ids.size(), served_.moe_layers.size(), served_.slots};
  if (form_.routed_experts) json["routed_experts"] = numbers;
  if (!form_.routing) return;
  json["routing"] = {{"layers", served_.moe_layers},
                     {"num_experts", served_.model->config().routing.scored()},
                     {"top_k", served_.slots},
                     {"prompt_tokens", choice.prompt_tokens()},
                     {"tokens", routing_tokens(routing)},
                     {"routed_experts", numbers},
                     {"shape", shape}};
}

ReplySyntax ReplyWriter::syntax() const {
  ReplySyntax syntax = served_.chat->reply_syntax(form_.tools, form_.opened);
  syntax.arguments = &form_.arguments;
  syntax.apart = form_.thoughts_apart;
  return syntax;
}

// Whether the client is to see more, or other, than the text as it stands.
bool ReplyWriter::parses() const { return form_.chat && syntax().parses(); }

// Whether how many tokens a thought took can be told.
bool ReplyWriter::tells_thoughts() const { return form_.chat && syntax().tags != nullptr; }

// A call that has to come is ended by its grammar.
std::shared_ptr<FirstCall> ReplyWriter::first_call() const {
  const bool ends = form_.one_call && form_.tools && !form_.forced;
  return ends ? std::make_shared<FirstCall>(syntax()) : nullptr;
}

// What a whole text that is parsed is for the client.
ParsedReply ReplyWriter::parsed(const Choice& choice) const {
  if (form_.forced) return parse_forced(form_.call_name, choice.text);
  if (choice.first_call != nullptr && choice.first_call->reply())
    return *choice.first_call->reply();
  ParsedReply reply = parse_reply(syntax(), choice.text);
  if (form_.one_call && reply.calls.size() > 1) reply.calls.resize(1);
  return reply;
}

// Of a choice under way what will stay.
ReplyReader::Certain ReplyWriter::certain(Choice& choice) const {
  if (!parses()) return {.content = choice.text};
  if (form_.forced) return {};
  if (choice.reader == nullptr) choice.reader = std::make_shared<ReplyReader>(syntax());
  return choice.reader->read(choice.text);
}

Json ReplyWriter::message(const ParsedReply& reply, const Choice& choice) const {
  const std::string content = form_.before + reply.content;
  Json message = {{"role", form_.role}, {"content", content}, {"refusal", nullptr}};
  if (!reply.thought.empty() && form_.thoughts_told) message["reasoning_content"] = reply.thought;
  if (reply.calls.empty()) return message;
  if (content.empty()) message["content"] = nullptr;
  message["tool_calls"] = Json::array();
  for (size_t i = 0; i < reply.calls.size(); ++i)
    message["tool_calls"].push_back(
        call_json(reply.calls[i], fmt::format("{}_{}", head_.id, choice.index), i));
  return message;
}

Json ReplyWriter::whole(const std::vector<Choice>& all, const std::vector<std::string>& echo,
                        int64_t choices) const {
  Json reply = base(form_.chat ? "chat.completion" : "text_completion");
  reply["choices"] = Json::array();
  for (const Choice& choice : all) {
    Json json = {{"index", choice.index}};
    const ParsedReply parts = parses() ? parsed(choice) : ParsedReply{.content = choice.text};
    std::optional<std::string_view> before;
    if (form_.echo) before = echo[static_cast<size_t>(choice.index / choices)];
    if (form_.chat) json["message"] = message(parts, choice);
    else json["text"] = std::string(before.value_or("")) + choice.text;
    int64_t offset = 0;
    json["logprobs"] = logprobs(choice.all.logprobs, choice, before, offset);
    json["finish_reason"] = finish_reason(choice, !parts.calls.empty());
    json["stop_reason"] = stop_reason(choice);
    if (form_.prompt_logprobs && !form_.chat) json["prompt_logprobs"] = prompt_logprobs(choice);
    add_routing(json, choice);
    reply["choices"].push_back(std::move(json));
  }
  if (form_.prompt_logprobs && form_.chat) reply["prompt_logprobs"] = prompt_logprobs(all.at(0));
  reply["usage"] = usage(all, choices);
  return reply;
}

Json ReplyWriter::chunk(Choice& choice, std::string_view echo) const {
  const bool first = !choice.begun;
  if (form_.echo && form_.logprobs && choice.all.ids.empty() && !choice.ended) return nullptr;
  ParsedReply parts;
  if (choice.ended) parts = parses() ? parsed(choice) : ParsedReply{.content = choice.text};
  const ReplyReader::Certain now =
      choice.ended ? ReplyReader::Certain{parts.thought, parts.content} : certain(choice);
  const std::string text = take_new(now.content, choice.shown),
                    thought = form_.thoughts_told ? take_new(now.thought, choice.shown_thought)
                                                  : std::string();
  if (text.empty() && thought.empty() && !first && !choice.ended && choice.unsent.ids.empty() &&
      choice.unsent_logprobs.empty())
    return nullptr;
  Json json = {
      {"index", choice.index},
      {"logprobs",
       logprobs(choice.unsent_logprobs, choice,
                first && form_.echo ? std::optional(echo) : std::nullopt, choice.offset)},
      {"finish_reason", choice.ended ? Json(finish_reason(choice, !parts.calls.empty())) : Json()}};
  if (choice.ended) json["stop_reason"] = stop_reason(choice);
  if (form_.chat) {
    Json delta = Json::object();
    if (first) delta["role"] = form_.role;
    if (first || !text.empty()) delta["content"] = first ? form_.before + text : text;
    if (!thought.empty()) delta["reasoning_content"] = thought;
    for (size_t i = 0; i < parts.calls.size(); ++i)
      delta["tool_calls"].push_back(
          call_json(parts.calls[i], fmt::format("{}_{}", head_.id, choice.index), i));
    json["delta"] = std::move(delta);
  } else {
    json["text"] = first && form_.echo ? std::string(echo) + text : text;
  }
  if (form_.routing && !choice.unsent.ids.empty())
    json["routing"] = {{"layers", served_.moe_layers},
                       {"prompt_tokens", choice.prompt_tokens()},
                       {"tokens", routing_tokens(choice.unsent)}};
  if (choice.ended && form_.routed_experts) add_routing(json, choice);
  choice.begun = true;
  choice.unsent = {};
  choice.unsent_logprobs.clear();
  Json reply = base(form_.chat ? "chat.completion.chunk" : "text_completion");
  reply["choices"] = Json::array({std::move(json)});
  if (form_.include_usage) reply["usage"] = nullptr;
  return reply;
}

Json ReplyWriter::usage_chunk(const std::vector<Choice>& all, int64_t choices) const {
  Json reply = base(form_.chat ? "chat.completion.chunk" : "text_completion");
  reply["choices"] = Json::array();
  reply["usage"] = usage(all, choices);
  return reply;
}

}  // namespace moe::serve
