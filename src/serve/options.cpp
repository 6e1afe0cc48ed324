#include "serve/options.h"

#include "core/error.h"
#include "text/chat_request.h"

namespace moe::serve {

const std::vector<std::string>& reasoning_formats() {
  static const std::vector<std::string> names = {"auto", "none"};
  return names;
}

bool parts_thoughts(const std::string& reasoning_format) {
  return place_of(reasoning_format, reasoning_formats(), "reasoning_format") == 0;
}

FieldList fields(ServeOptions& o) {
  FieldList list;
  list.add("host", o.host,
           "address to listen at; 0.0.0.0: all of this machine's, where an @api_key keeps others "
           "out");
  list.add("port", o.port, "0: a free one, which standard error names");
  list.add(
          "api_key", o.api_keys,
          "requests need it as Authorization: Bearer KEY or X-Api-Key: KEY; may be given more than "
          "once")
      .one_each();
  list.add("cors", o.cors, "pages of this origin may ask too; *: of any");
  list.add("name", o.name,
           "what the model is called in replies; default: its path's last part, without .gguf");
  list.add("chat_template_kwargs", o.template_kwargs, kTemplateKwargsHelp);
  list.add_choice("reasoning_format", o.reasoning_format, reasoning_formats(),
                  "auto: thoughts between tags, such as <think>, are reasoning_content, apart from "
                  "the content; none: they stay in it");
  list.add("parallel", o.parallel, "replies at the same time").also({"np"});
  list.add("queue", o.queue, "replies that may wait for their turn; more are refused");
  list.add("context", o.context, "longest text, prompt and reply; 0: the model's context")
      .unit("tokens")
      .also({"ctx_size"});
  list.add("cache_tokens", o.cache_tokens,
           "room for keys and values of all texts together; 0: @context times @parallel, or what "
           "half of the free memory holds")
      .unit("tokens");
  list.add("max_seconds", o.max_seconds, "a request that takes longer is ended").unit("seconds");
  list.add("max_body", o.max_body, "longest body of a request").unit("bytes");
  return list;
}

void validate(const ServeOptions& o) {
  if (o.parallel < 1 || o.parallel > 1024)
    fail_usage("@parallel is {}; it must be 1 to 1024", o.parallel);
  if (o.queue < 0) fail_usage("@queue is {}; it must be 0 or above", o.queue);
  if (o.context < 0) fail_usage("@context is {}; it must be 0 (the model's) or above", o.context);
  if (o.cache_tokens < 0)
    fail_usage("@cache_tokens is {}; it must be 0 (found out) or above", o.cache_tokens);
  if (o.max_seconds < 1) fail_usage("@max_seconds is {}; it must be 1 or above", o.max_seconds);
  if (o.max_body < 1024) fail_usage("@max_body is {}; it must be 1024 or above", o.max_body);
  parts_thoughts(o.reasoning_format);
  for (const std::string& key : o.api_keys)
    if (key.empty()) fail_usage("an empty @api_key would let nobody in");
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

bool is_open(const ServeOptions& o) { return o.api_keys.empty() && !is_loopback(o.host); }

}  // namespace moe::serve
