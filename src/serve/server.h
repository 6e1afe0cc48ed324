// A model behind HTTP: the runner with its engine, the endpoints and the door put together.
#pragma once

#include <memory>
#include <string>

#include "hub/hub.h"
#include "infer/model_runner.h"
#include "infer/shared_draft.h"
#include "serve/adapters.h"
#include "serve/options.h"

namespace moe::serve {

// Tokens that the cache of keys and values gets; `free`: bytes that it may take half of, and what
// else takes `beside` bytes a token.
int64_t cache_tokens_of(const ModelConfig&, const ServeOptions&, DType cache_dtype, int64_t free,
                        bool on_gpu = false, int64_t beside = 0);
// What the model is called in replies.
std::string name_of_model(const std::string& path, const ServeOptions&);

class Server {
 public:
  // Listens from now on; model and run outlive it. Fails naming what cannot be: the address, a
  // model that cannot write text, a chat template that is none.
  // `adapters`, which outlive it too: those that requests may ask for; `draft`: that guesses.
  Server(const LoadedModel&, Run&, const SessionOptions&, std::string name, int64_t cache_tokens,
         const ServeOptions&, NamedAdapters* adapters = nullptr, SharedDraft* draft = nullptr);
  ~Server();

  int port() const;
  // Serves in this thread until drain() is done.
  void run();
  // From any thread: takes nothing new, waits for what is under way, at most so long, and ends
  // run().
  void drain(int seconds);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace moe::serve
