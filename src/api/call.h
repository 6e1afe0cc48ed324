// What every function of include/moe/moe.h is made of: no exception leaves it, its message is kept
// for moe_last_error(), and what it hands out lies in malloc's memory.
#pragma once

#include <moe/moe.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/memory.h"
#include "hub/hub.h"
#include "infer/memory_plan.h"
#include "infer/options.h"
#include "jobs/drafting.h"
#include "tensor/run.h"

struct moe_model {
  std::shared_ptr<moe::LoadedModel> owner;  // and its sessions, which may outlive it
  moe::LoadedModel& loaded;
  moe::Run run;
  moe::MemoryLimits limits;
  moe::ComputeOptions compute;  // as asked for, which its drafts compute as too
  // By what they were called: small models that guess for it (infer/draft.h), each opened once.
  std::map<std::string, std::shared_ptr<moe::LoadedModel>> drafts;
  // bytes that its sessions have still to fill
  std::shared_ptr<std::atomic<int64_t>> promised = std::make_shared<std::atomic<int64_t>>(0);

  moe_model(moe::LoadedModel from, int threads, moe::DType dtype, const moe::MemoryLimits& may_use,
            const moe::ComputeOptions& asked)
      : owner(std::make_shared<moe::LoadedModel>(std::move(from))),
        loaded(*owner),
        run(threads, dtype),
        limits(may_use),
        compute(asked) {}
};

namespace moe::api {

void set_last_error(const char* message) noexcept;

// Runs `body` and turns what it throws into a status, as the command does into an exit code.
template <class F>
moe_status guarded(F&& body) noexcept {
  try {
    body();
    return MOE_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.kind() == Error::Kind::usage ? MOE_USAGE : MOE_FAILED;
  } catch (const std::bad_alloc&) {
    set_last_error(
        "out of memory; use a smaller model or shorter texts, and in training a smaller batch or "
        "recompute");
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("something that is no std::exception was thrown");
  }
  return MOE_FAILED;
}

// A pointer of the caller's that must not be NULL; `what` names function and argument.
template <class T>
T& need(T* pointer, const char* what) {
  if (pointer == nullptr) fail_usage("{} is NULL", what);
  return *pointer;
}
// `count` things at `pointer`, which may be NULL where there are none.
template <class T>
std::span<T> need(T* pointer, size_t count, const char* what) {
  if (count > 0) need(pointer, what);
  return {pointer, count};
}
// Looked at before what it fills, which is NULL in a program whose array of results has no elements
// either.
inline std::span<const int32_t> need_sequence(const int32_t* ids, size_t count, const char* what) {
  if (count == 0) fail_usage("{}: a sequence needs at least one id", what);
  return need(ids, count, what);
}
inline std::string need_string(const char* text, const char* what) { return &need(text, what); }
inline std::string need_folder(const char* path, const char* what) {
  if (need(path, what) == '\0') fail_usage("{} is empty; name a folder", what);
  return path;
}

// Settles the memory of a call, which fails where that does not fit, before it starts. `results`:
// bytes that the call hands out; `advice`: what to change.
void settle(moe_model& model, std::span<const ForwardUse> uses, const char* advice,
            int64_t results = 0);
inline void settle(moe_model& model, const ForwardUse& use, const char* advice,
                   int64_t results = 0) {
  settle(model, std::span(&use, 1), advice, results);
}

// The draft that the options name, for texts of at most `capacity` tokens; nothing where they name
// none. The model keeps it open, and so does what this returns. `threads`: of the products.
std::unique_ptr<Drafting> draft_for(moe_model&, const DraftOptions&, const SessionOptions&,
                                    int threads, int64_t capacity);

// Copies for the caller, who frees them with moe_free(). A text has a zero byte behind it.
char* given(std::string_view text);
int32_t* given(std::span<const int32_t> ids);

}  // namespace moe::api
