// How a reply goes over the wire, whole and in the events of a stream. ReplyWriter says in OpenAI's
// form what came; a style of another API says the same in that API's.
#pragma once

#include <memory>
#include <string>

#include "core/json.h"
#include "serve/api_error.h"

namespace moe::serve {

class ReplyStyle {
 public:
  virtual ~ReplyStyle() = default;

  // The body of an answer; `reply`: a completion, of a chat or not.
  virtual std::string whole(const Json& reply) = 0;
  // The events that a chunk of a completion becomes, each with the empty line behind it. Perhaps
  // none.
  virtual std::string chunk(const Json& chunk) = 0;
  // Those behind the last chunk.
  virtual std::string end() = 0;
  // What says that a stream goes on while nothing comes: a comment, unless the API has an event.
  virtual std::string ping() { return ": the reply is under way\n\n"; }
  // What ends a stream in which something went wrong.
  virtual std::string failure(const ApiError&) = 0;
};

// As the completions of OpenAI's API are, and their chunks.
std::unique_ptr<ReplyStyle> completion_style();

// A reply to a chat as a row of blocks, each a thought, a text or a call: what the other APIs have.
class BlockStyle : public ReplyStyle {
 public:
  std::string whole(const Json& reply) final;
  std::string chunk(const Json& chunk) final;
  std::string end() final;

 protected:
  enum class Block { none, thought, text, call };

  // Of the reply as a whole.
  struct Head {
    std::string id;  // behind the prefix that the API's ids have
    int64_t created = 0;
    std::string model;
  };
  struct Usage {
    int64_t prompt = 0, cached = 0, written = 0;
    int64_t thought = 0;  // of those written; 0 where it cannot be told
  };

  // Called in this order: begin(), then for each block open(), write() and close(), then stop().
  virtual void begin() = 0;
  // A call's id and name are empty for other blocks.
  virtual void open(const std::string& id, const std::string& name) = 0;
  virtual void write(const std::string& piece) = 0;
  virtual void close() = 0;
  virtual void stop() = 0;
  // All that came so far.
  virtual OrderedJson object() const = 0;

  // Sends an event, which is called by the data's "type".
  void send(const OrderedJson& data);
  // What was sent since this was asked last.
  std::string sent();

  Block block() const { return block_; }
  const Head& head() const { return head_; }
  const Usage& usage() const { return usage_; }
  // "stop", "length" or "tool_calls"; empty: it goes on.
  const std::string& finish() const { return finish_; }
  // Which of the request's stops ended it; empty: none.
  const std::string& stopped_by() const { return stopped_by_; }

 private:
  static Usage usage_of(const Json& usage);
  void take(const Json& completion, const char* message);
  void take_message(const Json& message);
  void add(Block block, const Json& message, const char* key);
  void enter(Block block, const std::string& id = {}, const std::string& name = {});

  bool begun_ = false;
  Block block_ = Block::none;
  int64_t call_ = -1;  // index of the one that is open
  Head head_;
  Usage usage_;
  std::string finish_, stopped_by_, events_;
};

}  // namespace moe::serve
