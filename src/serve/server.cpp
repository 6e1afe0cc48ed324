#include "serve/server.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "core/error.h"
#include "infer/generate.h"
#include "infer/memory_plan.h"
#include "serve/api.h"

namespace moe::serve {
namespace {

std::vector<int64_t> layers_that_route(const ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.is_moe(i)) layers.push_back(i);
  return layers;
}

Served served_of(const LoadedModel& loaded, const ChatTemplate& chat, const ModelRunner& runner,
                 std::string name, const NamedAdapters* adapters, int64_t context,
                 bool thoughts_apart) {
  return {.name = std::move(name),
          .adapters = adapters != nullptr ? adapters->names : std::vector<std::string>{},
          .model = loaded.model.get(),
          .tokenizer = loaded.tokenizer.get(),
          .chat = &chat,
          .tokens = std::make_shared<grammar::TokenTable>(*loaded.tokenizer),
          .context = context,
          .slots = runner.slots(),
          .moe_layers = layers_that_route(loaded.model->config()),
          .thoughts_apart = thoughts_apart};
}

HttpOptions http_options(const ServeOptions& o) {
  HttpOptions http;
  http.host = o.host;
  http.port = o.port;
  http.max_body = o.max_body;
  return http;
}

}  // namespace

int64_t cache_tokens_of(const ModelConfig& config, const ServeOptions& o, DType cache_dtype,
                        int64_t free, bool on_gpu, int64_t beside) {
  const int64_t context = context_for(config, o.context, on_gpu);
  if (o.cache_tokens > 0) return o.cache_tokens;
  const int64_t fit = free / 2 / std::max<int64_t>(1, cache_bytes(config, cache_dtype, 1) + beside);
  return std::max(std::min(context * o.parallel, fit), std::min(context, 2 * fit));
}

std::string name_of_model(const std::string& path, const ServeOptions& o) {
  if (!o.name.empty()) return o.name;
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

namespace {

ChatTemplate chat_template_with(const std::string& kwargs, const Tokenizer& tokenizer) {
  ChatTemplate chat = chat_template(tokenizer);
  chat.set_variables(parse_template_variables(kwargs));
  return chat;
}

}  // namespace

// What a part uses stands before it; the door comes first, as answers that the engine still holds
// go back through it when all ends.
struct Server::Parts {
  Parts(const LoadedModel& loaded, Run& run, const SessionOptions& session, std::string name,
        int64_t cache_tokens, const ServeOptions& given, NamedAdapters* adapters,
        SharedDraft* draft)
      : options(given),
        http(
            http_options(given), [this](std::shared_ptr<Exchange> e) { api.handle(std::move(e)); },
            [](int status, const std::string& message, std::string_view path) {
              return body_of({status, message}, path);
            }),
        chat(chat_template_with(given.template_kwargs, *loaded.tokenizer)),
        runner(*loaded.model, run, cache_tokens, session),
        served(served_of(loaded, chat, runner, std::move(name), adapters,
                         context_for(loaded.model->config(), given.context, run.device != nullptr),
                         parts_thoughts(given.reasoning_format))),
        metrics(served.moe_layers),
        engine(runner, *loaded.tokenizer, {given.parallel, given.queue, served.context}, metrics,
               draft),
        api(served, engine, metrics, options) {
    if (adapters != nullptr) runner.set_adapters(&adapters->choice);
  }

  ServeOptions options;
  HttpServer http;
  ChatTemplate chat;
  ModelRunner runner;
  Served served;
  Metrics metrics;
  Engine engine;
  Api api;
};

Server::Server(const LoadedModel& loaded, Run& run, const SessionOptions& session, std::string name,
               int64_t cache_tokens, const ServeOptions& options, NamedAdapters* adapters,
               SharedDraft* draft) {
  validate(options);
  check_asked_for(loaded.model->config(), session.routing);
  parts_ = std::make_unique<Parts>(loaded, run, session, std::move(name), cache_tokens, options,
                                   adapters, draft);
}

Server::~Server() = default;

int Server::port() const { return parts_->http.port(); }

void Server::run() {
  std::thread door([this] { parts_->http.run(); });
  parts_->engine.run();
  parts_->http.stop();
  door.join();
}

void Server::drain(int seconds) {
  using Clock = std::chrono::steady_clock;
  parts_->api.drain();
  parts_->http.close_door();
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (parts_->http.open_requests() > 0 && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  parts_->engine.stop();
}

}  // namespace moe::serve
