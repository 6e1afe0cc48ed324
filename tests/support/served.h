// A server of a tiny model in this process, and requests to it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/json.h"
#include "serve/server.h"
#include "support/http_client.h"
#include "support/tiny_model.h"
#include "text/chat.h"

namespace moe::test {

inline Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}
inline OrderedJson ordered(const Json& json) { return parse_ordered_json(json.dump(), "test"); }

struct ServedModel {
  // `jinja`: the chat template; ChatML where it is empty.
  // `adapters`: names of drawn ones. `drafted`: of what is to guess always; null: nobody does.
  explicit ServedModel(serve::ServeOptions options = {}, const std::string& jinja = "",
                       const std::vector<std::string>& adapters = {},
                       ModelConfig config = served_config(),
                       std::unique_ptr<Model> drafted = nullptr)
      : draft_model(std::move(drafted)) {
    loaded.model = fresh(config);
    loaded.tokenizer = make_tokenizer("bytes");
    mark_dialogues(*loaded.tokenizer);
    if (!jinja.empty()) loaded.tokenizer->set_config_json(Json({{"chat_template", jinja}}).dump());
    for (const std::string& name : adapters) draw_adapter(name);
    options.port = 0;
    if (draft_model)
      draft =
          std::make_unique<SharedDraft>(*draft_model, draft_run, *loaded.tokenizer, config.context,
                                        4096, DraftOptions{.model = {}, .tokens = 8, .min_p = 0});
    server = std::make_unique<serve::Server>(loaded, run, SessionOptions{}, "tiny", 4096, options,
                                             &named, draft.get());
    thread = std::thread([this] { server->run(); });
  }
  ~ServedModel() {
    server->drain(20);
    if (thread.joinable()) thread.join();
  }

  static ModelConfig served_config() {
    ModelConfig config = plain_config();
    config.context = 1024;
    config.init.std = 0.3f;  // logits far enough apart that texts differ
    return config;
  }

  HttpReply post(const std::string& path, const Json& body, const std::string& headers = "") {
    return HttpClient(server->port()).ask("POST", path, body.dump(), headers);
  }
  HttpReply get(const std::string& path, const std::string& headers = "") {
    return HttpClient(server->port()).ask("GET", path, "", headers);
  }
  // The body of an answer that has to be 200.
  Json ask(const std::string& path, const Json& body) {
    const HttpReply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  void draw_adapter(const std::string& name) {
    const auto drawn = std::make_shared<Adapters>();
    for (Param* p : loaded.model->params())
      if (p->is_matrix() && p->layer >= 0 && p->part != Part::router) drawn->add(*p, {2}, false);
    for (const auto& adapter : drawn->all())
      for (Param* half : {&adapter->a, &adapter->b})
        for (int64_t i = 0; i < half->value.numel(); ++i)
          half->value.as<float>()[i] =
              0.1f * normal(RngKey::from_seed(named.names.size() + 1), static_cast<uint64_t>(i));
    named.choice.add(drawn);
    named.names.push_back(name);
  }

  LoadedModel loaded;
  serve::NamedAdapters named;
  moe::Run run{2}, draft_run{2};
  std::unique_ptr<Model> draft_model;
  std::unique_ptr<SharedDraft> draft;
  std::unique_ptr<serve::Server> server;
  std::thread thread;
};

// The data of the events of a stream; the last one is [DONE].
inline std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  size_t at = 0;
  for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string line = body.substr(at, end - at);
    EXPECT_EQ(line.substr(0, 6), "data: ");
    if (line == "data: [DONE]") {
      EXPECT_EQ(end + 2, body.size());
      return events;
    }
    events.push_back(Json::parse(line.substr(6)));
  }
  ADD_FAILURE() << "the stream has no end: " << body;
  return events;
}

// The same of a stream whose events have names, which are the types of their data; no mark ends it.
inline std::vector<Json> named_events_of(const std::string& body) {
  std::vector<Json> events;
  size_t at = 0;
  for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = body.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    if (!event.starts_with("event: ") || data == std::string::npos) {
      ADD_FAILURE() << "no event: " << event;
      continue;
    }
    events.push_back(Json::parse(event.substr(data + 7)));
    EXPECT_EQ(events.back()["type"], event.substr(7, data - 7));
  }
  EXPECT_EQ(at, body.size());
  return events;
}

}  // namespace moe::test
