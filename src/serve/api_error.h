// What a request is refused with, in the form of OpenAI's API or of Anthropic's.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "serve/http_server.h"

namespace moe::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field that is wrong; empty: none
  std::string code = {};   // e.g. "context_length_exceeded"; empty: none
  Headers headers = {};    // e.g. Retry-After
};

// {"error": {"message", "type", "param", "code"}}; the type follows from the status.
std::string body_of(const ApiError&);
// The same as Anthropic's Messages API has it: {"type": "error", "error": {"type", "message"}}.
std::string messages_body_of(const ApiError&);
// The one or the other, by the path that was asked for.
std::string body_of(const ApiError&, std::string_view path);
// Whatever was thrown while a request was read or answered: an ApiError, an Error of the library
// (usage: 400, else 500), memory that was refused (503) or another exception (500).
ApiError api_error(const std::exception_ptr&);

}  // namespace moe::serve
