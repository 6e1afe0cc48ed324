#include "serve/api_error.h"

#include <new>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/memory.h"

namespace moe::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* messages_type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

std::string body_of(const ApiError& e) {
  const Json body = {{"error",
                      {{"message", e.message},
                       {"type", type_of(e.status)},
                       {"param", or_null(e.param)},
                       {"code", or_null(e.code)}}}};
  return one_line_json(body);
}

std::string messages_body_of(const ApiError& e) {
  // Clients look for these words, and shorten what they send.
  const bool too_long = e.code == "context_length_exceeded";
  const Json body = {{"type", "error"},
                     {"error",
                      {{"type", messages_type_of(e.status)},
                       {"message", too_long ? "prompt is too long: " + e.message : e.message}}}};
  return one_line_json(body);
}

std::string body_of(const ApiError& e, std::string_view path) {
  const bool of_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
  return of_messages ? messages_body_of(e) : body_of(e);
}

ApiError api_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ApiError& e) {
    return e;
  } catch (const Error& e) {
    return {e.kind() == Error::Kind::usage ? 400 : 500, e.what()};
  } catch (const std::bad_alloc&) {
    return {503, "there was no memory for this; ask for less, or try again later", "",
            "out_of_memory"};
  } catch (const std::exception& e) {
    return {500, e.what()};
  }
}

}  // namespace moe::serve
