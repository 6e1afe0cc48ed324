// What runs the model: takes what requests ask for into one batcher and steps it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "infer/batcher.h"
#include "serve/metrics.h"

namespace moe::serve {

struct EngineOptions {
  int64_t parallel = 8;  // texts at the same time
  int64_t queue = 256;   // texts that may wait for them
  int64_t context = 0;   // tokens of a text at most
};

class Engine {
 public:
  // Runner, tokenizer, metrics and draft outlive it; null: nobody guesses.
  Engine(ModelRunner&, const Tokenizer&, const EngineOptions&, Metrics&,
         SharedDraft* draft = nullptr);

  // Steps in this thread until stop(). It should be the one that loaded the model: OpenMP keeps
  // threads for each that has asked for some, and lets them sleep between steps where they are more
  // than the cores.
  void run();
  // From any thread: ends run(). Texts under way are dropped where they stand.
  void stop();

  // From any thread: all of them or none. An Error (usage) for what cannot be done, an ApiError
  // (429) where too many wait. The callbacks of the requests are called in the thread of run().
  void submit(std::vector<TextRequest>);

 private:
  ModelRunner& runner_;
  EngineOptions options_;
  Metrics& metrics_;
  Batcher batcher_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TextRequest> inbox_;
  int64_t waiting_ = 0;  // in the batcher
  bool stop_ = false;
};

}  // namespace moe::serve
