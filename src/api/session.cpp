// A session: one text under way over a loaded model, its keys and values kept, with threads and
// memory of its own.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/call.h"
#include "api/options.h"
#include "core/json.h"
#include "infer/generate.h"
#include "jobs/replies.h"
#include "options/common.h"
#include "options/read.h"

using namespace moe;
using namespace moe::api;

// The text is `ids`. What the cache holds of it follows when a call needs it: the last token drawn
// is not there yet, and what a call that failed has left is dropped.
struct moe_session {
  std::shared_ptr<LoadedModel> loaded;
  Run run;
  Session session;
  std::unique_ptr<Drafting> draft;  // null: nobody guesses
  Guesser* guesser;                 // the draft's
  std::vector<int32_t> ids;
  // Memory that was promised to the cache, and is not filled yet.
  std::shared_ptr<std::atomic<int64_t>> all_promised;
  int64_t token_bytes, most = 0, promised = 0;

  moe_session(const moe_model& model, int threads, int64_t capacity, const SessionOptions& options,
              std::unique_ptr<Drafting> drafting)
      : loaded(model.owner),
        run(threads, model.run.compute),
        session(*loaded->model, run, capacity, options),
        draft(std::move(drafting)),
        guesser(draft ? &draft->start() : nullptr),
        all_promised(model.promised),
        token_bytes(cache_bytes(loaded->model->config(),
                                cache_dtype(options, *loaded->model, run.compute), 1)) {
    promise();
  }
  ~moe_session() { *all_promised -= promised; }
  // After every call that may have filled some.
  void promise() {
    most = std::max(most, session.length());
    const int64_t now = (session.capacity() - most) * token_bytes + (draft ? draft->unfilled() : 0);
    *all_promised += now - promised;
    promised = now;
  }
};

namespace moe::api {
namespace {

constexpr const char* kOpenAdvice =
    "open the session with a smaller \"capacity\", or load the model with more \"memory\"";

int64_t capacity_of(const ModelConfig& config, int64_t asked, bool on_gpu) {
  constexpr int64_t kMost = int64_t{1}
                            << 30;  // keeps positions and the size of the cache far from overflow
  if (asked < 0 || asked > kMost)
    fail_usage("@capacity is {}; give 1 to {} tokens, or 0 for the model's context of {}", asked,
               kMost, config.context);
  const int64_t longest = config.longest_text(on_gpu);
  if (longest > 0 && asked > longest)
    fail_usage("@capacity is {}, but {}", asked, why_texts_end(config));
  return asked > 0 ? asked : context_for(config, 0, on_gpu);
}

GenerateOptions continue_options(const char* options) {
  WriteOptions asked;
  const Given said = read_caller_options(fields(asked), options);
  FieldList sessions_own = fields(asked.generate.session);
  sessions_own.add(fields(asked.draft));
  for (const Field& own : sessions_own)
    if (said.has(own.name))
      fail_usage("{} is a session's own: give it to the call that opens it", field(own.name));
  validate(asked.generate);
  return asked.generate;
}

}  // namespace
}  // namespace moe::api

extern "C" {

moe_status moe_session_open(moe_session** session, moe_model* model, const char* options) {
  return guarded([&] {
    need(session, "moe_session_open: session") = nullptr;
    moe_model& m = need(model, "moe_session_open: model");
    OpenOptions open;
    read_caller_options(fields(open), options);
    check_draft_asked(open.draft);
    Model& weights = *m.loaded.model;
    check_asked_for(weights.config(), open.session.routing);
    const int64_t capacity = capacity_of(weights.config(), open.capacity, m.run.device != nullptr);
    const int threads = open.threads == 0 ? m.run.threads : thread_count(open.threads);
    std::vector<ForwardUse> uses = {
        session_use(weights, open.session, m.run.compute, capacity, capacity)};
    std::unique_ptr<Drafting> draft = draft_for(m, open.draft, open.session, threads, capacity);
    if (draft) uses.push_back(draft->use(capacity));
    settle(m, uses, kOpenAdvice);
    *session = new moe_session(m, threads, capacity, open.session, std::move(draft));
  });
}

void moe_session_close(moe_session* session) { delete session; }

size_t moe_session_length(const moe_session* session) {
  return session == nullptr ? 0 : session->ids.size();
}

moe_status moe_session_prefill(moe_session* session, const int32_t* ids, size_t count, size_t rows,
                               float* logits) {
  return guarded([&] {
    moe_session& s = need(session, "moe_session_prefill: session");
    const std::span<const int32_t> more = need_sequence(ids, count, "moe_session_prefill: ids");
    if (rows > count)
      fail_usage("moe_session_prefill: logits of {} ids are asked for where {} are given", rows,
                 count);
    if (rows > 0) need(logits, "moe_session_prefill: logits");
    std::vector<int32_t> text = s.ids;
    text.insert(text.end(), more.begin(), more.end());
    const auto wanted = static_cast<int64_t>(std::max<size_t>(rows, 1));
    s.session.keep_prefix(text);
    s.session.truncate(std::ssize(text) - wanted);
    const std::span<const int32_t> unread =
        std::span(text).subspan(static_cast<size_t>(s.session.length()));
    if (rows == 0) s.session.prefill(unread);
    else
      s.session.prefill_into({logits, rows * static_cast<size_t>(s.loaded->model->config().vocab)},
                             unread);
    s.ids = std::move(text);
    s.promise();
  });
}

moe_status moe_session_generate(moe_session* session, const char* prompt, size_t bytes,
                                const char* options, moe_on_text on_text, void* user, char** json) {
  return guarded([&] {
    if (json != nullptr) *json = nullptr;
    moe_session& s = need(session, "moe_session_generate: session");
    const std::span<const char> given_prompt = need(prompt, bytes, "moe_session_generate: prompt");
    const std::string said(given_prompt.begin(), given_prompt.end());
    GenerateOptions asked = continue_options(options);
    if (s.draft) check_one_guesser(s.draft->options(), asked);
    asked.guesser = s.guesser;
    const Tokenizer& tokenizer = *s.loaded->tokenizer;
    const std::vector<int32_t> more =
        s.ids.empty() ? tokenizer.encode_text(said) : tokenizer.encode(said);
    std::vector<int32_t> text = s.ids;
    text.insert(text.end(), more.begin(), more.end());
    asked.max_tokens =
        std::min(asked.max_tokens, std::max<int64_t>(0, s.session.capacity() - std::ssize(text)));
    Generated out = generate(s.session, tokenizer, text, asked, [&](const std::string& piece) {
      return on_text == nullptr || on_text(user, piece.data(), piece.size()) == 0;
    });
    char* reply = json == nullptr ? nullptr : given(one_line_json(generate_reply(said, out)));
    text.insert(text.end(), out.ids.begin(), out.ids.end());
    s.ids = std::move(text);
    s.promise();
    if (json != nullptr) *json = reply;
  });
}

moe_status moe_session_truncate(moe_session* session, size_t length) {
  return guarded([&] {
    moe_session& s = need(session, "moe_session_truncate: session");
    if (length > s.ids.size())
      fail_usage(
          "moe_session_truncate: the session holds {} ids, fewer than the {} that are to stay",
          s.ids.size(), length);
    s.ids.resize(length);
    s.session.truncate(static_cast<int64_t>(length));
  });
}
}
