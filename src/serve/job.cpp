#include "serve/job.h"

#include <fmt/format.h>

#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/clock.h"
#include "serve/api_error.h"
#include "serve/caller.h"
#include "serve/reply.h"
#include "serve/reply_style.h"

namespace moe::serve {
namespace {

void append(TokenRouting& to, const TokenRouting& from) {
  to.ids.insert(to.ids.end(), from.ids.begin(), from.ids.end());
  to.experts.insert(to.experts.end(), from.experts.begin(), from.experts.end());
  to.weights.insert(to.weights.end(), from.weights.begin(), from.weights.end());
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

ReplyHead new_head(bool chat) {
  static std::atomic<uint64_t> count{0};
  const auto now = static_cast<int64_t>(std::time(nullptr));
  return {fmt::format("{}-{:x}-{}", chat ? "chatcmpl" : "cmpl", now, ++count), now};
}

// After it was submitted it belongs to the engine's thread.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(const JobContext& context, std::shared_ptr<Exchange> exchange, const ParsedRequest& request)
      : context_(context),
        exchange_(std::move(exchange)),
        form_(request.form),
        echo_(request.echo),
        choices_(request.choices),
        writer_(*context.served, request.form, new_head(request.form.chat)),
        style_(request.style ? request.style : completion_style()) {
    for (size_t i = 0; i < request.texts.size(); ++i) {
      all_.emplace_back().index = static_cast<int64_t>(i);
      all_.back().prompt_ids = request.texts[i].prompt;
      all_.back().text = form_.begun;
      last_.push_back(began_);
    }
  }

  void submit(std::vector<TextRequest> texts) {
    left_ = texts.size();
    const std::string client = client_of(exchange_->request(), *context_.api_keys);
    for (size_t i = 0; i < texts.size(); ++i) {
      TextRequest& text = texts[i];
      text.client = client;
      text.wanted = [job = shared_from_this()] { return job->wanted(); };
      if (const auto first = writer_.first_call(); first != nullptr) {
        all_[i].first_call = first;
        text.goes_on = [first](const std::string& piece) { return !first->add(piece); };
      }
      text.on_progress = [job = shared_from_this(), i](const TextProgress& p) {
        job->on_progress(i, p);
      };
      text.on_end = [job = shared_from_this(), i](const Generated& g,
                                                  const std::exception_ptr& error) {
        job->on_end(i, g, error);
      };
    }
    context_.engine->submit(std::move(texts));
  }

 private:
  // The engine asks before each step, for texts too that wait for their turn: what a stream says
  // while nothing is written is said here.
  bool wanted() {
    const bool on = !failed_ && !exchange_->gone() &&
                    seconds_since(began_) < static_cast<double>(context_.max_seconds);
    if (on && form_.stream) {
      try {
        keep_open();
      } catch (...) {  // as in on_end()
        fail(std::current_exception());
      }
    }
    return on && !failed_;
  }

  // A chat's stream begins as soon as its prompt is accepted, and none is silent for long.
  void keep_open() {
    if (form_.chat && !streaming_)
      for (Choice& choice : all_) show(choice);
    else if (seconds_since(last_sent_) >= context_.quiet_seconds) send_events(style_->ping());
  }

  void on_progress(size_t i, const TextProgress& p) {
    Choice& choice = all_[i];
    if (!p.ids.empty()) {
      if (choice.all.ids.empty()) context_.metrics->observe_first_token(seconds_since(began_));
      context_.metrics->observe_tokens(std::ssize(p.ids),
                                       choice.all.ids.empty() ? 0 : seconds_since(last_[i]));
      last_[i] = Clock::now();
    }
    choice.text += p.text;
    append(choice.all.ids, p.ids);
    append(choice.all.logprobs, p.logprobs);
    append(choice.all.prompt_logprobs, p.prompt_logprobs);
    append(choice.all.routing, p.routing);
    if (!form_.stream || failed_) return;
    append(choice.unsent, p.routing);
    append(choice.unsent_logprobs, p.logprobs);
    show(choice);
  }

  void show(Choice& choice) {
    if (const Json chunk = writer_.chunk(choice, echo_of(choice)); !chunk.is_null())
      send_events(style_->chunk(chunk));
  }
  // A view, as a prompt may be long and chunks are many.
  std::string_view echo_of(const Choice& choice) const {
    if (echo_.empty()) return {};
    return echo_[static_cast<size_t>(choice.index / choices_)];
  }
  void send_events(std::string events) {
    if (events.empty()) return;
    last_sent_ = Clock::now();
    if (!std::exchange(streaming_, true))
      exchange_->begin(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
    exchange_->write(std::move(events));
  }

  void on_end(size_t i, const Generated& g, const std::exception_ptr& error) {
    Choice& choice = all_[i];
    choice.ended = true;
    context_.metrics->count_prompt(g.prompt_tokens, g.prompt_tokens - g.read_tokens);
    context_.metrics->count_guesses(g.proposed, g.accepted);
    --left_;
    try {
      choice.end = g;
      if (error && !failed_) fail(error);
      if (form_.stream && !failed_) show(choice);
      if (left_ == 0 && !failed_) finish();
    } catch (...) {  // a reply that cannot be written down must not end the engine
      if (!failed_) fail(std::current_exception());
    }
  }

  // Where there is no memory even to say so, the exchange answers as one that was forgotten.
  void fail(const std::exception_ptr& error) {
    failed_ = true;
    try {
      const ApiError e = api_error(error);
      if (!streaming_) return answer(e.status, body_of(e, exchange_->request().path), e.headers);
      send_events(style_->failure(e));
      count(e.status);
      exchange_->finish();
    } catch (...) {
      exchange_.reset();
    }
  }

  void finish() {
    if (!form_.stream) return answer(200, style_->whole(writer_.whole(all_, echo_, choices_)), {});
    if (form_.include_usage) send_events(style_->chunk(writer_.usage_chunk(all_, choices_)));
    send_events(style_->end());
    count(200);
    exchange_->finish();
  }

  void answer(int status, std::string body, Headers headers) {
    count(status);
    exchange_->send(status, "application/json", std::move(body), std::move(headers));
  }
  void count(int status) {
    // What nginx calls it where a client has left before its answer.
    constexpr int kClientGone = 499;
    context_.metrics->count_request(exchange_->request().path,
                                    exchange_->gone() ? kClientGone : status);
  }

  JobContext context_;
  std::shared_ptr<Exchange> exchange_;
  ReplyForm form_;
  std::vector<std::string> echo_;
  int64_t choices_;
  ReplyWriter writer_;
  std::shared_ptr<ReplyStyle> style_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point last_sent_ = began_;  // when a stream's last event went
  std::vector<Clock::time_point> last_;   // of each choice, when its last token came
  std::vector<Choice> all_;
  size_t left_ = 0;
  bool streaming_ = false, failed_ = false;
};

}  // namespace

void start_job(const JobContext& context, std::shared_ptr<Exchange> exchange,
               ParsedRequest request) {
  std::make_shared<Job>(context, std::move(exchange), request)->submit(std::move(request.texts));
}

}  // namespace moe::serve
