#include "api/call.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/nearest.h"

namespace moe::api {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";
};
thread_local LastError last_error;

void* allocated(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void set_last_error(const char* message) noexcept {
  try {
    last_error.text = one_line(message);
    last_error.shown = last_error.text.c_str();
  } catch (...) {
    last_error.shown = "out of memory";
  }
}

void settle(moe_model& model, std::span<const ForwardUse> uses, const char* advice,
            int64_t results) {
  MemoryNeed beside;
  beside.add("results", results);
  beside.add("sessions", *model.promised);
  settle_memory(uses, beside, model.limits, advice);
}

std::unique_ptr<Drafting> draft_for(moe_model& model, const DraftOptions& options,
                                    const SessionOptions& session, int threads, int64_t capacity) {
  if (options.model.empty()) return nullptr;
  std::shared_ptr<LoadedModel> draft;
  if (const auto open = model.drafts.find(options.model); open != model.drafts.end())
    draft = open->second;
  else draft = std::make_shared<LoadedModel>(open_model(options.model, model.limits));
  ComputeOptions compute = model.compute;
  compute.threads = threads;
  auto drafting =
      std::make_unique<Drafting>(options, draft, model.loaded, session, compute, capacity, Watch());
  model.drafts.emplace(options.model, std::move(draft));  // one that fits the model
  return drafting;
}

char* given(std::string_view text) {
  char* copy = static_cast<char*>(allocated(text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

int32_t* given(std::span<const int32_t> ids) {
  auto* copy = static_cast<int32_t*>(allocated(std::max<size_t>(ids.size_bytes(), 1)));
  if (!ids.empty()) std::memcpy(copy, ids.data(), ids.size_bytes());
  return copy;
}

}  // namespace moe::api

extern "C" {

const char* moe_version(void) { return MOE_VERSION; }

const char* moe_last_error(void) { return moe::api::last_error.shown; }

void moe_free(void* memory) { std::free(memory); }
}
