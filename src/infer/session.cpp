#include "infer/session.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "ops/ops.h"

namespace moe {

int64_t prompt_chunk() { return ops::quantised_products_in_tiles() ? 1024 : 512; }

Session::Session(ModelRunner& runner, int64_t capacity)
    : runner_(runner), slot_(runner.cache().open(capacity)), capacity_(capacity) {}

Session::Session(Model& model, Run& run, int64_t capacity, const SessionOptions& options)
    : own_(std::make_unique<ModelRunner>(model, run, capacity, options)),
      runner_(*own_),
      slot_(own_->cache().open(capacity)),
      capacity_(capacity) {}

std::span<const float> Session::prefill(std::span<const int32_t> ids, int64_t rows,
                                        const KeepReading& keep) {
  const std::span<float> logits = room_for_logits(ids, rows);
  return read(logits, ids, rows, keep) ? logits : std::span<const float>();
}

void Session::prefill_into(std::span<float> logits, std::span<const int32_t> ids) {
  const int64_t rows = std::ssize(logits) / runner_.model().config().vocab;
  check_room(ids, rows);
  read(logits, ids, rows, {});
}

bool Session::read(std::span<float> logits, std::span<const int32_t> ids, int64_t rows,
                   const KeepReading& keep) {
  const int64_t count = std::ssize(ids), vocab = runner_.model().config().vocab,
                chunk = prompt_chunk();
  for (int64_t at = 0; at < count; at += chunk) {
    if (keep && !keep(at, count)) return false;
    const int64_t end = std::min(at + chunk, count),
                  // [first,end): whose logits are wanted
        first = std::min(std::max(at, count - rows), end);
    const int64_t before = std::max<int64_t>(0, first - (count - rows));
    step(logits.subspan(static_cast<size_t>(before * vocab)),
         ids.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)), end - first,
         rows == 1);
  }
  return true;
}

std::span<const float> Session::decode(std::span<const int32_t> ids) {
  const std::span<float> logits = room_for_logits(ids, std::ssize(ids));
  step(logits, ids, std::ssize(ids), false);
  return logits;
}

void Session::truncate(int64_t length) {
  runner_.cache().truncate(slot_, std::min(length, this->length()));
  ids_.resize(static_cast<size_t>(runner_.cache().length(slot_)));
}

int64_t Session::keep_prefix(std::span<const int32_t> ids) {
  int64_t held =
      std::mismatch(ids.begin(), ids.end(), ids_.begin(), ids_.end()).first - ids.begin();
  if (held == std::ssize(ids) && held > 0) --held;
  truncate(held);
  return this->length();
}

void Session::check_room(std::span<const int32_t> ids, int64_t rows) const {
  const int64_t count = std::ssize(ids);
  if (ids.empty())
    fail_usage("nothing to continue from: the prompt has no tokens; give at least one character");
  if (rows < 1 || rows > count)
    fail_usage("logits of {} tokens are asked for where {} are read", rows, count);
  if (length() + count > capacity_)
    fail(
        "the session holds {} tokens and {} are to follow, but its capacity is {}; truncate it, or "
        "open one with a larger capacity",
        length(), count, capacity_);
}

std::span<float> Session::room_for_logits(std::span<const int32_t> ids, int64_t rows) {
  check_room(ids, rows);
  logits_.resize(static_cast<size_t>(rows * runner_.model().config().vocab));
  return logits_;
}

void Session::step(std::span<float> logits, std::span<const int32_t> ids, int64_t wanted,
                   bool only_read) {
  const StepRows rows{slot_, ids, wanted, only_read};
  try {
    runner_.step(logits, {&rows, 1});
  } catch (...) {  // what was taken back may be all
    truncate(runner_.cache().length(slot_));
    throw;
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  computed_ += std::ssize(ids);
}

}  // namespace moe
