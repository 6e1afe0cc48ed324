#include "text/encode.h"

#include <atomic>
#include <exception>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/threads.h"

namespace moe {
namespace {

// Enough to keep the threads busy, little enough to hold.
constexpr size_t kBatchBytes = size_t{32} << 20;

// A token is learned from when its first byte lies in one of the spans.
std::vector<TokenSpan> untrained_tokens(const std::vector<int64_t>& starts,
                                        const std::vector<ByteSpan>& trained) {
  std::vector<TokenSpan> out;
  size_t span = 0;
  for (uint32_t i = 0; i < starts.size(); ++i) {
    const int64_t at = starts[i];
    while (span < trained.size() && trained[span].end <= at) ++span;
    const bool learned = span < trained.size() && trained[span].begin <= at;
    if (!learned && !out.empty() && out.back().end == i) ++out.back().end;
    else if (!learned) out.push_back({i, i + 1});
  }
  return out;
}

// A token that is not learned from.
void put_in_front(EncodedRun& run, int32_t id) {
  run.ids.insert(run.ids.begin(), id);
  for (TokenSpan& span : run.untrained) ++span.begin, ++span.end;
  if (!run.untrained.empty() && run.untrained.front().begin == 1) run.untrained.front().begin = 0;
  else run.untrained.insert(run.untrained.begin(), {0, 1});
}

EncodedRun encode(const Tokenizer& tokenizer, const TextRun& run) {
  EncodedRun out;
  if (tokenizer.ids_are_bytes() && !run.owns) out.raw = run.text();
  else out.ids = tokenizer.encode(run.text());
  out.bytes = static_cast<int64_t>(run.text().size());
  out.held_out = run.held_out;
  out.in_pair = run.in_pair;
  if (!run.all_trained) out.untrained = untrained_tokens(tokenizer.starts(run.text()), run.trained);
  const std::optional<int32_t> end = tokenizer.eos_id();
  if (run.add_end && end && !out.ids.empty() && out.ids.back() != *end) out.ids.push_back(*end);
  if (run.add_begin && tokenizer.special().add_bos && tokenizer.bos_id())
    put_in_front(out, *tokenizer.bos_id());
  if (out.tokens() >= std::numeric_limits<uint32_t>::max())
    fail("a document of {} bytes is too long", out.bytes);
  // A document of JSON Lines is one, whatever it holds.
  if (end && !run.owns)
    for (uint32_t i = 0; i < out.ids.size(); ++i)
      if (out.ids[i] == *end) out.ends.push_back(i + 1);
  const auto all = static_cast<uint32_t>(out.tokens());
  if (run.ends_document && all > 0 && (out.ends.empty() || out.ends.back() != all))
    out.ends.push_back(all);
  return out;
}

}  // namespace

int id_width(int64_t vocab) { return vocab <= 1 << 8 ? 1 : vocab <= 1 << 16 ? 2 : 4; }

Encoder::Encoder(const Tokenizer& tokenizer, int threads, Sink sink)
    : tokenizer_(tokenizer),
      threads_(threads > 0 ? threads : available_threads()),
      sink_(std::move(sink)) {}

void Encoder::add(TextRun&& run) {
  waiting_bytes_ += run.text().size();
  waiting_.push_back(std::move(run));
  if (waiting_bytes_ >= kBatchBytes) flush();
}

// Texts are of any length, so threads take the next one as they come free.
void Encoder::flush() {
  const std::vector<TextRun> runs = std::exchange(waiting_, {});
  waiting_bytes_ = 0;
  std::vector<EncodedRun> encoded(runs.size());
  std::vector<std::exception_ptr> errors(runs.size());
  std::atomic<size_t> next = 0;
  parallel_for(threads_, static_cast<int64_t>(std::min(runs.size(), static_cast<size_t>(threads_))),
               1, [&](int64_t, int64_t, int) {
                 for (size_t i = next++; i < runs.size(); i = next++) {
                   try {
                     encoded[i] = encode(tokenizer_, runs[i]);
                   } catch (...) {
                     errors[i] = std::current_exception();
                   }
                 }
               });
  for (size_t i = 0; i < runs.size(); ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    sink_(std::move(encoded[i]));
  }
}

}  // namespace moe
