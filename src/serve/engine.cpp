#include "serve/engine.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "serve/api_error.h"

namespace moe::serve {
namespace {

constexpr const char* kRetryAfter = "2";  // seconds; a guess, as nobody knows how long replies get

}  // namespace

Engine::Engine(ModelRunner& runner, const Tokenizer& tokenizer, const EngineOptions& options,
               Metrics& metrics, SharedDraft* draft)
    : runner_(runner),
      options_(options),
      metrics_(metrics),
      batcher_(runner, tokenizer, options.parallel, options.context, draft) {}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
}

void Engine::submit(std::vector<TextRequest> requests) {
  for (const TextRequest& request : requests) batcher_.check(request);
  {
    const std::lock_guard lock(mutex_);
    const int64_t waiting = waiting_ + std::ssize(inbox_), more = std::ssize(requests);
    // Texts of one request beyond the queue are taken where nobody waits, else they never could be.
    if (waiting > 0 && waiting + more > options_.queue)
      throw ApiError{429,
                     fmt::format("{} texts wait already, and {} may; try again later", waiting,
                                 options_.queue),
                     "",
                     "queue_full",
                     {{"Retry-After", kRetryAfter}}};
    inbox_.insert(inbox_.end(), std::make_move_iterator(requests.begin()),
                  std::make_move_iterator(requests.end()));
  }
  changed_.notify_one();
}

void Engine::run() {
  for (bool busy = false;;) {
    std::vector<TextRequest> taken;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || busy || !inbox_.empty(); });
      if (stop_) return;
      taken.swap(inbox_);
      waiting_ = batcher_.waiting() + std::ssize(taken);
    }
    for (TextRequest& request : taken) batcher_.add(std::move(request));
    busy = batcher_.step();
    try {
      metrics_.set_load(batcher_.waiting(), batcher_.active(), runner_.expert_rows());
    } catch (...) {  // no memory to count in; the next step counts again
    }
    const std::lock_guard lock(mutex_);
    waiting_ = batcher_.waiting();
  }
}

}  // namespace moe::serve
