#include "serve/api.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/tensor_map.h"
#include "serve/caller.h"
#include "serve/messages.h"
#include "serve/page.h"
#include "serve/responses.h"
#include "text/chat.h"

namespace moe::serve {
namespace {

constexpr const char* kBody = "request body";
constexpr size_t kLargeBody = 256 << 10;  // bytes
// Clients that look things up ask for it of whatever server they have.
constexpr std::string_view kEmbeddings = "/v1/embeddings";
// Paths of Ollama's and llama.cpp's servers, and those here that come nearest.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"/api/chat", "/v1/chat/completions"},
    {"/api/generate", "/v1/completions"},
    {"/api/show", "/v1/models"},
    {"/api/tags", "/v1/models"},
    {"/props", "/v1/models"},
    {"/v1", "/v1/models"},
};

// What a large body took would stay with this thread's part of the heap for good.
void give_back_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// An exchange whose answers have some headers more.
class WithHeaders : public Exchange {
 public:
  WithHeaders(std::shared_ptr<Exchange> inner, Headers headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}
  const HttpRequest& request() const override { return inner_->request(); }
  void send(int status, std::string_view type, std::string body, Headers headers) override {
    inner_->send(status, type, std::move(body), with(std::move(headers)));
  }
  void begin(int status, std::string_view type, Headers headers) override {
    inner_->begin(status, type, with(std::move(headers)));
  }
  void write(std::string piece) override { inner_->write(std::move(piece)); }
  void finish() override { inner_->finish(); }
  bool gone() const override { return inner_->gone(); }

 private:
  Headers with(Headers headers) const {
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    return headers;
  }
  std::shared_ptr<Exchange> inner_;
  Headers headers_;
};

// "localhost:8080" -> "localhost", "[::1]:8080" -> "[::1]"
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.ends_with(']') ? host : host.substr(0, colon);
}

}  // namespace

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WorkQueue::add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void WorkQueue::work() {
  for (;;) {
    std::function<void()> next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    try {
      next();
    } catch (...) {  // no memory even to refuse it: what it holds answers as it goes
    }
  }
}

Api::Api(const Served& served, Engine& engine, Metrics& metrics, const ServeOptions& options)
    : served_(served),
      metrics_(metrics),
      options_(options),
      jobs_{.served = &served,
            .engine = &engine,
            .metrics = &metrics,
            .api_keys = &options.api_keys,
            .max_seconds = options.max_seconds,
            .quiet_seconds = options.quiet_seconds} {}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> table = {
      {"GET", "/", true, &Api::page},
      {"GET", "/health", true, &Api::health},
      {"GET", "/metrics", false, &Api::metrics},
      {"GET", "/experts", false, &Api::experts},
      {"GET", "/v1/models", false, &Api::models},
      {"GET", "/v1/models/*", false, &Api::model},
      {"POST", "/v1/chat/completions", false, &Api::chat},
      {"POST", "/v1/completions", false, &Api::completions},
      {"POST", "/v1/messages", false, &Api::messages},
      {"POST", "/v1/messages/count_tokens", false, &Api::count_tokens},
      {"POST", "/v1/responses", false, &Api::responses},
      {"POST", "/tokenize", false, &Api::tokenize},
      {"POST", "/detokenize", false, &Api::detokenize},
      {"GET", "/tokenizer_info", false, &Api::tokenizer_info},
      {"POST", "/apply-template", false, &Api::apply_template},
  };
  return table;
}

// A path that ends with * stands for all that begin so.
bool Api::Route::has(std::string_view asked) const {
  const std::string_view all = path;
  return all.ends_with('*') ? asked.starts_with(all.substr(0, all.size() - 1)) : asked == all;
}

// HEAD is GET whose body is not sent.
const Api::Route& Api::find_route(const HttpRequest& request) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string allowed;
  for (const Route& route : routes()) {
    if (!route.has(request.path)) continue;
    if (route.method == method) return route;
    allowed = route.method;
  }
  if (!allowed.empty())
    throw ApiError{405,
                   message("{} takes {}, not {}", printable(request.path), allowed,
                           printable(request.method, 20)),
                   "",
                   "method_not_allowed",
                   {{"Allow", allowed}}};
  std::vector<std::string> paths, posted;
  for (const Route& route : routes()) {
    paths.emplace_back(route.path);
    if (route.method == std::string_view("POST")) posted.emplace_back(route.path);
  }
  if (request.path == kEmbeddings)
    throw ApiError{404,
                   message("this server makes text only, so there is no {} here; it takes POST at "
                           "{}",
                           kEmbeddings, fmt::join(posted, ", ")),
                   "", "not_found"};
  for (const auto& [theirs, ours] : kElsewhere)
    if (request.path == theirs)
      throw ApiError{
          404,
          message("there is no {} here; this server has OpenAI's API, where {} comes nearest",
                  theirs, ours),
          "", "not_found"};
  throw ApiError{404,
                 message("there is no {} here{}", printable(request.path),
                         suggestion(request.path.substr(0, 80), paths)),
                 "", "not_found"};
}

void Api::check_caller(const HttpRequest& request, bool open) const {
  const std::string_view origin = request.header("origin"), host = request.header("host");
  // A page that the user happens to look at must not make the user's browser ask.
  const bool own_page = origin.empty() || origin.ends_with(fmt::format("//{}", host));
  if (!own_page && options_.cors != "*" && origin != options_.cors)
    throw ApiError{403,
                   message("pages of {} may not ask here; start the server with --cors {} to let "
                           "them",
                           printable(origin), printable(origin)),
                   "", "origin_not_allowed"};
  // Nor by a name that leads to this machine.
  if (options_.api_keys.empty() && is_loopback(options_.host) && !host.empty() &&
      !is_loopback(without_port(host)))
    throw ApiError{403,
                   message("this server is for {} only, and was asked for as {}; start it with "
                           "--api-key or another --host",
                           options_.host, printable(host)),
                   "", "host_not_allowed"};
  if (open || options_.api_keys.empty()) return;
  if (key_of(request, options_.api_keys).empty())
    throw ApiError{401,
                   "the request needs the server's key, as Authorization: Bearer KEY or as "
                   "X-Api-Key: KEY",
                   "",
                   "invalid_api_key",
                   {{"WWW-Authenticate", "Bearer"}}};
}

Headers Api::cors_headers(const HttpRequest& request) const {
  const std::string origin(request.header("origin"));
  if (origin.empty() || options_.cors.empty()) return {};
  if (options_.cors != "*" && origin != options_.cors) return {};
  return {{"Access-Control-Allow-Origin", options_.cors},
          {"Access-Control-Allow-Headers",
           "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Vary", "Origin"}};
}

void Api::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  if (Headers cors = cors_headers(request); !cors.empty())
    exchange = std::make_shared<WithHeaders>(std::move(exchange), std::move(cors));
  try {
    if (request.method == "OPTIONS") {
      check_caller(request, true);
      return answer(*exchange, 204, "text/plain", "");
    }
    const Route& route = find_route(request);
    check_caller(request, route.open);
    if (route.method == std::string_view("GET")) return run(route, exchange);
    bodies_.add([this, &route, exchange] {
      run(route, exchange);
      if (exchange->request().body.size() > kLargeBody) give_back_memory();
    });
  } catch (...) {
    refuse(*exchange, api_error(std::current_exception()));
  }
}

void Api::run(const Route& route, const std::shared_ptr<Exchange>& exchange) {
  try {
    (this->*route.act)(exchange);
  } catch (...) {
    ApiError e = api_error(std::current_exception());
    // What goes wrong while a request is read is the request's fault.
    if (e.status == 500) e.status = 400;
    refuse(*exchange, e);
  }
}

void Api::answer(Exchange& exchange, int status, const std::string& type, std::string body,
                 Headers headers) {
  const auto route = std::ranges::find_if(
      routes(), [&](const Route& r) { return r.has(exchange.request().path); });
  // Paths that are none are counted together, since a client can make up any number of them.
  metrics_.count_request(route == routes().end() ? "other" : route->path, status);
  exchange.send(status, type, std::move(body), std::move(headers));
}

void Api::answer(Exchange& exchange, const Json& json) {
  answer(exchange, 200, "application/json", one_line_json(json));
}

void Api::refuse(Exchange& exchange, const ApiError& e) {
  answer(exchange, e.status, "application/json", body_of(e, exchange.request().path), e.headers);
}

void Api::page(const std::shared_ptr<Exchange>& exchange) {
  answer(*exchange, 200, "text/html; charset=utf-8",
         page_html(served_.moe_layers.empty() ? 0 : served_.model->config().routing.scored()),
         {{"Content-Security-Policy", page_policy()}, {"X-Content-Type-Options", "nosniff"}});
}

void Api::health(const std::shared_ptr<Exchange>& exchange) {
  if (draining_) throw ApiError{503, "the server is going away", "", "draining"};
  answer(*exchange, {{"status", "ok"}});
}

void Api::metrics(const std::shared_ptr<Exchange>& exchange) {
  answer(*exchange, 200, "text/plain; version=0.0.4", metrics_.prometheus());
}

void Api::experts(const std::shared_ptr<Exchange>& exchange) {
  answer(*exchange, metrics_.experts());
}

Json Api::model_json(const std::string& name) const {
  const ModelConfig& config = served_.model->config();
  const bool routes = !served_.moe_layers.empty();
  Json json = {
      {"id", name},
      {"object", "model"},
      {"created", std::time(nullptr)},
      {"owned_by", "moe.cpp"},
      {"meta",
       {{"context", served_.context},
        {"vocab", config.vocab},
        {"layers", config.layers},
        {"moe_layers", served_.moe_layers},
        {"num_experts", routes ? config.routing.scored() : 0},
        {"top_k", served_.slots},
        {"recipe", routes ? Json(config.routing.recipe) : Json()},
        {"dialogues", dialogues_of(*served_.tokenizer) == Dialogues::none ? "none" : "template"},
        {"parameters", static_cast<int64_t>(parameter_count(config))}}}};
  if (name != served_.name) json["parent"] = served_.name;
  return json;
}

void Api::models(const std::shared_ptr<Exchange>& exchange) {
  Json data = Json::array({model_json(served_.name)});
  for (const std::string& name : served_.adapters) data.push_back(model_json(name));
  answer(*exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void Api::model(const std::shared_ptr<Exchange>& exchange) {
  constexpr std::string_view kPrefix = "/v1/models/";
  const std::string name = exchange->request().path.substr(kPrefix.size());
  const auto& adapters = served_.adapters;
  if (name != served_.name && std::find(adapters.begin(), adapters.end(), name) == adapters.end())
    throw ApiError{
        404, message("there is no model '{}' here; there is '{}'", printable(name), served_.name),
        "model", "model_not_found"};
  answer(*exchange, model_json(name));
}

void Api::write(const std::shared_ptr<Exchange>& exchange, ReadRequest read) {
  if (draining_) throw ApiError{503, "the server is going away", "", "draining"};
  start_job(jobs_, exchange, read(exchange->request().body, served_));
}

void Api::chat(const std::shared_ptr<Exchange>& exchange) { write(exchange, read_chat); }

void Api::completions(const std::shared_ptr<Exchange>& exchange) {
  write(exchange, read_completion);
}

void Api::messages(const std::shared_ptr<Exchange>& exchange) { write(exchange, read_messages); }

void Api::responses(const std::shared_ptr<Exchange>& exchange) { write(exchange, read_responses); }

void Api::count_tokens(const std::shared_ptr<Exchange>& exchange) {
  answer(*exchange, {{"input_tokens", count_messages(exchange->request().body, served_)}});
}

// llama-server calls the text "content", vLLM "prompt", where it is no dialogue.
void Api::tokenize(const std::shared_ptr<Exchange>& exchange) {
  const Json body = parse_json(exchange->request().body, kBody);
  const JsonReader fields(body, kBody);
  const bool dialogue = fields.has("messages");
  const char* key = fields.has("prompt") ? "prompt" : "content";
  const std::string text =
      dialogue ? chat_prompt(exchange->request().body, served_) : fields.get<std::string>(key);
  const bool special = fields.get<bool>(
      "add_special_tokens",
      fields.get<bool>("add_special", !dialogue && key == std::string_view("prompt")));
  const Tokenizer& tokenizer = *served_.tokenizer;
  const std::vector<int32_t> ids = special ? tokenizer.encode_text(text) : tokenizer.encode(text);
  Json tokens = ids;
  if (fields.get<bool>("with_pieces", false))
    for (size_t i = 0; i < ids.size(); ++i)
      tokens[i] = {{"id", ids[i]}, {"piece", tokenizer.piece(ids[i])}};
  Json reply = {
      {"tokens", std::move(tokens)}, {"count", ids.size()}, {"max_model_len", served_.context}};
  if (fields.get<bool>("return_token_strs", false)) {
    reply["token_strs"] = Json::array();
    for (const int32_t id : ids) reply["token_strs"].push_back(tokenizer.piece(id));
  }
  answer(*exchange, reply);
}

void Api::detokenize(const std::shared_ptr<Exchange>& exchange) {
  const Json body = parse_json(exchange->request().body, kBody);
  const auto wide = JsonReader(body, kBody).get<std::vector<int64_t>>("tokens");
  std::vector<int32_t> ids;
  for (const int64_t id : wide) {
    if (id < 0 || id >= served_.tokenizer->vocab_size())
      throw ApiError{400,
                     message("{} is no token id; the vocabulary has 0 to {}", id,
                             served_.tokenizer->vocab_size() - 1),
                     "tokens"};
    ids.push_back(static_cast<int32_t>(id));
  }
  const std::string text = served_.tokenizer->decode(ids);
  answer(*exchange, {{"content", text}, {"prompt", text}});
}

void Api::tokenizer_info(const std::shared_ptr<Exchange>& exchange) {
  const Tokenizer& tokenizer = *served_.tokenizer;
  const auto text = [&](const std::optional<int32_t>& id) {
    return id ? Json(tokenizer.piece(*id)) : Json();
  };
  const std::string jinja = chat_template_of(tokenizer), eos = end_text(tokenizer);
  answer(*exchange, {{"tokenizer_class", tokenizer.spec()},
                     {"vocab_size", tokenizer.vocab_size()},
                     {"bos_token", text(tokenizer.bos_id())},
                     {"eos_token", eos.empty() ? Json() : Json(eos)},
                     {"pad_token", nullptr},
                     {"add_bos_token", tokenizer.special().add_bos},
                     {"model_max_length", served_.context},
                     {"chat_template", jinja.empty() ? chat_template_jinja() : jinja}});
}

void Api::apply_template(const std::shared_ptr<Exchange>& exchange) {
  answer(*exchange, {{"prompt", chat_prompt(exchange->request().body, served_)}});
}

}  // namespace moe::serve
