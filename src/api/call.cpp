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

void settle(moe_model& model, const ForwardUse& use, const char* advice, int64_t results) {
  MemoryNeed beside;
  beside.add("results", results);
  beside.add("sessions", *model.promised);
  settle_memory(use, beside, model.limits, advice);
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
