// One text that a model reads and goes on with: its tokens, and a slot of a runner's cache that
// holds their keys and values.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "infer/model_runner.h"

namespace moe {

// Tokens of a prompt that a forward reads at most, which bounds the memory of a long one: 512, and
// 1,024 where the processor has AMX, which multiplies so fast that reading the experts' weights
// anew for each 512 would hold it up.
int64_t prompt_chunk();

// Asked before each chunk of what is to be read of a prompt, `done` of whose `total` tokens are
// read; false: the rest is not read. Empty: nobody asks.
using KeepReading = std::function<bool(int64_t done, int64_t total)>;

class Session {
 public:
  // A sequence of the runner's, which outlives it. `capacity`: most tokens that it will ever hold.
  Session(ModelRunner&, int64_t capacity);
  // The only sequence of a runner of its own.
  Session(Model&, Run&, int64_t capacity, const SessionOptions& options = {});
  ~Session() { runner_.cache().close(slot_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Reads tokens behind those that are held, a chunk after another, and returns the logits [rows,V]
  // after the last `rows` of them, valid until the next call; nothing when `keep` said no. At least
  // one token.
  std::span<const float> prefill(std::span<const int32_t> ids, int64_t rows = 1,
                                 const KeepReading& keep = {});
  // The same into room of the caller's, [rows,V], whose numbers mean nothing where it fails.
  void prefill_into(std::span<float> logits, std::span<const int32_t> ids);
  // The same in one forward, with the logits [n,V] after each: the token that was drawn last, and
  // guesses of what follows it.
  std::span<const float> decode(std::span<const int32_t> ids);
  // Drops what stands behind the first `length` tokens.
  void truncate(int64_t length);
  // Drops what does not agree with `ids`, and the last of them if it would be held: its logits have
  // still to be computed. Returns how many are held.
  int64_t keep_prefix(std::span<const int32_t> ids);

  std::span<const int32_t> ids() const { return ids_; }  // what the cache holds
  int64_t length() const { return std::ssize(ids_); }
  int64_t capacity() const { return capacity_; }
  int64_t computed() const {
    return computed_;
  }  // tokens since the session began, those since dropped too
  ModelRunner& runner() { return runner_; }

 private:
  // logits [wanted,V]
  void step(std::span<float> logits, std::span<const int32_t> ids, int64_t wanted, bool only_read);
  void check_room(std::span<const int32_t> ids, int64_t rows) const;
  std::span<float> room_for_logits(std::span<const int32_t> ids, int64_t rows);
  // False: `keep` said no.
  bool read(std::span<float> logits, std::span<const int32_t> ids, int64_t rows,
            const KeepReading& keep);

  std::unique_ptr<ModelRunner> own_;
  ModelRunner& runner_;
  int32_t slot_;
  int64_t capacity_;
  std::vector<int32_t> ids_;
  int64_t computed_ = 0;
  std::vector<float> logits_;  // [rows,V]
};

}  // namespace moe
