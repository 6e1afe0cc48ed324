// A model behind HTTP, until Ctrl-C or SIGTERM.
#include "serve/server.h"

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/memory.h"
#include "hub/adapter.h"
#include "hub/tensor_map.h"
#include "infer/eval_routing.h"
#include "infer/generate.h"
#include "infer/options.h"
#include "jobs/drafting.h"
#include "jobs/forward_memory.h"
#include "ops/devices.h"

namespace moe::cli {
namespace {

constexpr int kDrainSeconds = 30;

struct Flags {
  std::string model;
  std::vector<std::string> adapters;
  serve::ServeOptions serve;
  SessionOptions session;
  DraftOptions draft;
  ComputeOptions compute;
  MemoryOptions memory;
  Given given;
};

// Drains the server once a signal asks for it. A second Ctrl-C ends the process.
class SignalWatch {
 public:
  explicit SignalWatch(serve::Server& server)
      : stop_(watch_interrupts()), thread_([this, &server] {
          while (!stop_ && !done_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          if (done_) return;
          tell("moe: finishing the replies under way, {} s at most\n", kDrainSeconds);
          server.drain(kDrainSeconds);
        }) {}
  ~SignalWatch() {
    done_ = true;
    thread_.join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  std::atomic<bool>& stop_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

int run_serve(const Flags& f) {
  validate(f.serve);
  check_draft_options(f.draft, f.given);
  const LoadedModel loaded = open_model(f.model, f.memory.limits);
  const std::string name = serve::name_of_model(f.model, f.serve);
  serve::NamedAdapters adapters = serve::attach_adapters(*loaded.model, f.adapters, name);
  const ModelConfig& config = loaded.model->config();
  Run run(thread_count(f.compute.threads), compute_dtype(f.compute, *loaded.model),
          ops::device_of(f.compute.device));
  const bool on_gpu = run.device != nullptr;
  const DType cached = cache_dtype(f.session, *loaded.model, run.compute);
  std::optional<Drafting> draft;
  if (!f.draft.model.empty())
    draft.emplace(f.draft, loaded, f.session, f.compute,
                  context_for(config, f.serve.context, on_gpu), f.memory.limits, on_screen());
  const auto uses = [&](int64_t tokens) {
    std::vector<ForwardUse> all = {session_use(*loaded.model, f.session, run.compute,
                                               prompt_chunk(), tokens, f.serve.parallel)};
    if (draft) all.push_back(draft->shared_use(tokens));
    return all;
  };
  const MemoryPlan plan = plan_memory(uses(0), {}, f.memory.limits);
  const int64_t tokens =
      serve::cache_tokens_of(config, f.serve, cached, plan.available - plan.weights, on_gpu,
                             draft ? draft->token_bytes() : 0);
  const bool large = prepare_memory(
      f.model, uses(tokens), {}, f.memory,
      marked(fmt::format("lower @cache_tokens, {}or take @cache_dtype q8_0 or a smaller model",
                         draft ? "leave @draft out, " : "")),
      on_screen());
  loaded.model->move_to(run.device);
  serve::Server server(loaded, run, f.session, name, tokens, f.serve, &adapters,
                       draft ? &draft->start_shared(tokens) : nullptr);
  tell("{}: {} parameters, texts of up to {} tokens, room for {} tokens in all{}\n", f.model,
       human_count(parameter_count(config)), context_for(config, f.serve.context, on_gpu), tokens,
       large ? "; larger than memory" : "");
  if (serve::is_open(f.serve))
    tell("note: whoever reaches {} may ask and needs no key; --api-key KEY asks for one\n",
         f.serve.host);
  tell("at / is a page to talk in, at /v1 OpenAI's API (docs/server.md); Ctrl-C ends it\n");
  tell("listening on http://{}:{}\n", f.serve.host, server.port());
  const SignalWatch watch(server);
  server.run();
  return 0;
}

}  // namespace

Action add_serve(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->model);
  list.add(
      "adapter", f->adapters,
      "PATH: run the model with this low-rank adapter, a folder as PEFT and moe train @tune "
      "lora leave it, or a .gguf as llama.cpp takes it. NAME=PATH, as often as there are some: "
      "a request whose \"model\" is NAME is answered with that one, any other without");
  list.add(fields(f->serve));
  list.add(fields(f->draft));
  list.add(fields(f->compute));
  list.add(fields(f->session));
  add_memory(list, f->memory);
  add_flags(app, std::move(list), f->given);
  app.footer(
      "OpenAI's clients find it at http://HOST:PORT/v1, a browser at http://HOST:PORT. SIGTERM or "
      "Ctrl-C ends it when the replies under way are finished.");
  return [f] { return run_serve(*f); };
}

}  // namespace moe::cli
