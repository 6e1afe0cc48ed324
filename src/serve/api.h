// The endpoints: a table of paths, who may ask, and what each gives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serve/api_error.h"
#include "serve/job.h"
#include "serve/options.h"

namespace moe::serve {

// Runs what it is given one after the other in a thread of its own.
class WorkQueue {
 public:
  WorkQueue() : thread_([this] { work(); }) {}
  // What was not begun is dropped.
  ~WorkQueue();
  void add(std::function<void()> work);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

class Api {
 public:
  // Views, which outlive it.
  Api(const Served&, Engine&, Metrics&, const ServeOptions&);

  // Answers one request, now or later, whatever it says. Bodies are read in a thread of their own,
  // so that a long one stalls nobody's stream.
  void handle(std::shared_ptr<Exchange>);
  // From now on whoever asks for text is told that the server goes away.
  void drain() { draining_ = true; }

 private:
  struct Route {
    const char* method;
    const char* path;
    bool open;  // needs no key
    void (Api::*act)(const std::shared_ptr<Exchange>&);
    bool has(std::string_view asked) const;
  };
  static const std::vector<Route>& routes();
  const Route& find_route(const HttpRequest&) const;
  void check_caller(const HttpRequest&, bool open) const;
  Headers cors_headers(const HttpRequest&) const;
  void run(const Route&, const std::shared_ptr<Exchange>&);
  void answer(Exchange&, int status, const std::string& type, std::string body,
              Headers headers = {});
  void answer(Exchange&, const Json&);
  void refuse(Exchange&, const ApiError&);
  // Answers with a text that `read` finds asked for.
  using ReadRequest = ParsedRequest (*)(std::string_view body, const Served&);
  void write(const std::shared_ptr<Exchange>&, ReadRequest read);

  void page(const std::shared_ptr<Exchange>&);
  void health(const std::shared_ptr<Exchange>&);
  void metrics(const std::shared_ptr<Exchange>&);
  void experts(const std::shared_ptr<Exchange>&);
  void models(const std::shared_ptr<Exchange>&);
  void model(const std::shared_ptr<Exchange>&);
  void chat(const std::shared_ptr<Exchange>&);
  void completions(const std::shared_ptr<Exchange>&);
  void messages(const std::shared_ptr<Exchange>&);
  void responses(const std::shared_ptr<Exchange>&);
  void count_tokens(const std::shared_ptr<Exchange>&);
  void tokenize(const std::shared_ptr<Exchange>&);
  void detokenize(const std::shared_ptr<Exchange>&);
  void tokenizer_info(const std::shared_ptr<Exchange>&);
  void apply_template(const std::shared_ptr<Exchange>&);
  // Of the model, or of one of its adapters.
  Json model_json(const std::string& name) const;

  const Served& served_;
  Metrics& metrics_;
  const ServeOptions& options_;
  JobContext jobs_;
  std::atomic<bool> draining_{false};
  WorkQueue bodies_;
};

}  // namespace moe::serve
