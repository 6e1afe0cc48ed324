// The option list of `moe serve`, but for what all verbs that write text have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "options/fields.h"

namespace moe::serve {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> api_keys;  // empty: none is needed
  std::string cors;                   // an origin, or *; empty: closed
  std::string name;                   // of the model in replies; empty: from its path
  std::string template_kwargs;        // JSON; variables of the chat template in every request
  std::string reasoning_format = "auto";
  int64_t parallel = 8;
  int64_t queue = 256;
  int64_t context = 0;       // 0: the model's
  int64_t cache_tokens = 0;  // 0: found out from the free memory
  int64_t max_seconds = 600;
  // A stream that has sent nothing for so long says that it goes on: proxies cut one that is silent
  // for longer, and few wait for less than half a minute. Tests alone choose another time.
  double quiet_seconds = 10;
  int64_t max_body = int64_t{8} << 20;
};
FieldList fields(ServeOptions&);
// Where thoughts go that stand between tags: "auto", apart from the content; "none", they stay in
// it. llama.cpp's names.
const std::vector<std::string>& reasoning_formats();
// Whether they go apart; a usage error where the format is none of those.
bool parts_thoughts(const std::string& reasoning_format);
// Throws (usage) on values outside their range.
void validate(const ServeOptions&);
// Whether a host, by name or number, is this machine and no other can reach it; a name such as
// 127.example.org may lead anywhere.
bool is_loopback(std::string_view host);
// Whether others than this machine may ask, and need no key.
bool is_open(const ServeOptions&);

}  // namespace moe::serve
