#include "serve/reply_style.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace moe::serve {
namespace {

class CompletionStyle : public ReplyStyle {
 public:
  std::string whole(const Json& reply) override { return one_line_json(reply); }
  std::string chunk(const Json& chunk) override { return event(one_line_json(chunk)); }
  std::string end() override { return event("[DONE]"); }
  std::string failure(const ApiError& e) override { return event(body_of(e)); }

 private:
  static std::string event(const std::string& data) { return "data: " + data + "\n\n"; }
};

// Empty where there is none, or where it is null.
std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::unique_ptr<ReplyStyle> completion_style() { return std::make_unique<CompletionStyle>(); }

std::string BlockStyle::whole(const Json& reply) {
  take(reply, "message");
  enter(Block::none);
  return one_line_json(object());
}

std::string BlockStyle::chunk(const Json& chunk) {
  take(chunk, "delta");
  return sent();
}

std::string BlockStyle::end() {
  enter(Block::none);
  stop();
  return sent();
}

std::string BlockStyle::sent() { return std::exchange(events_, {}); }

void BlockStyle::send(const OrderedJson& data) {
  events_ += fmt::format("event: {}\ndata: {}\n\n", data.at("type").get<std::string>(),
                         one_line_json(data));
}

BlockStyle::Usage BlockStyle::usage_of(const Json& usage) {
  const auto details = usage.find("completion_tokens_details");
  return {usage.at("prompt_tokens").get<int64_t>(),
          usage.at("prompt_tokens_details").at("cached_tokens").get<int64_t>(),
          usage.at("completion_tokens").get<int64_t>(),
          details == usage.end() ? 0 : details->at("reasoning_tokens").get<int64_t>()};
}

void BlockStyle::take(const Json& completion, const char* message) {
  if (!std::exchange(begun_, true)) {
    const auto id = completion.at("id").get<std::string>();
    head_ = {id.substr(id.find('-') + 1), completion.at("created").get<int64_t>(),
             completion.at("model").get<std::string>()};
    begin();
  }
  if (const auto usage = completion.find("usage"); usage != completion.end() && usage->is_object())
    usage_ = usage_of(*usage);
  for (const Json& choice : completion.at("choices")) {
    take_message(choice.at(message));
    finish_ = text_at(choice, "finish_reason");
    stopped_by_ = text_at(choice, "stop_reason");
  }
}

void BlockStyle::take_message(const Json& message) {
  add(Block::thought, message, "reasoning_content");
  add(Block::text, message, "content");
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  for (const Json& call : *calls) {
    const Json& function = call.at("function");
    if (const auto index = call.at("index").get<int64_t>();
        block_ != Block::call || call_ != index) {
      enter(Block::none);
      enter(Block::call, text_at(call, "id"), text_at(function, "name"));
      call_ = index;
    }
    add(Block::call, function, "arguments");
  }
}

void BlockStyle::add(Block block, const Json& message, const char* key) {
  const std::string piece = text_at(message, key);
  if (piece.empty()) return;
  enter(block);
  write(piece);
}

void BlockStyle::enter(Block block, const std::string& id, const std::string& name) {
  if (block == block_) return;
  if (block_ != Block::none) close();
  block_ = block;
  if (block_ != Block::none) open(id, name);
}

}  // namespace moe::serve
