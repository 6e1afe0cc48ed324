#include "jobs/drafting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "ops/devices.h"

namespace moe {

void check_one_guesser(const DraftOptions& o, const GenerateOptions& generate) {
  if (!o.model.empty() && generate.prompt_lookup > 0)
    fail_usage("@prompt_lookup and @draft both guess what comes next; give one of them");
}

void check_draft_options(const DraftOptions& o, const Given& given) {
  validate(o);
  if (o.model.empty())
    for (const char* name : {"draft_tokens", "draft_min_p"})
      if (given.has(name)) fail_usage("{} is of a draft model: add @draft MODEL", field(name));
}

void check_draft_options(const DraftOptions& o, const GenerateOptions& generate,
                         const Given& given) {
  check_draft_options(o, given);
  check_one_guesser(o, generate);
}

Drafting::Drafting(const DraftOptions& options, const LoadedModel& writer,
                   const SessionOptions& of_writer, const ComputeOptions& compute, int64_t of_text,
                   const MemoryLimits& limits, const Watch& watch)
    : Drafting(options, std::make_shared<LoadedModel>(open_model(options.model, limits)), writer,
               of_writer, compute, of_text, watch) {}

Drafting::Drafting(const DraftOptions& options, std::shared_ptr<LoadedModel> draft,
                   const LoadedModel& writer, const SessionOptions& of_writer,
                   const ComputeOptions& compute, int64_t of_text, const Watch& watch)
    : options_(options),
      tokenizer_(*writer.tokenizer),
      loaded_(std::move(draft)),
      run_(thread_count(compute.threads), compute_dtype(compute, *loaded_->model),
           ops::device_of(compute.device)),
      capacity_(DraftModel::capacity(loaded_->model->config(), of_text, run_.device != nullptr)),
      session_(DraftModel::session_options(loaded_->model->config(), of_writer.cache_dtype)) {
  check_draft(writer.model->config(), tokenizer_, loaded_->model->config(), *loaded_->tokenizer);
  if (capacity_ < of_text)
    watch.tell(
        message("note: the model of @draft was made for {} tokens in one text; behind them it "
                "guesses nothing",
                capacity_));
}

ForwardUse Drafting::use(int64_t tokens) const {
  return session_use(*loaded_->model, session_, run_.compute, std::min(tokens, capacity_),
                     capacity_);
}

Guesser& Drafting::start() {
  loaded_->model->move_to(run_.device);
  model_ = std::make_unique<DraftModel>(*loaded_->model, run_, tokenizer_, capacity_, options_,
                                        session_);
  return *model_;
}

ForwardUse Drafting::shared_use(int64_t tokens) const {
  return session_use(*loaded_->model, session_, run_.compute, prompt_chunk(),
                     SharedDraft::cache_tokens(capacity_, tokens));
}

SharedDraft& Drafting::start_shared(int64_t tokens) {
  loaded_->model->move_to(run_.device);
  shared_ = std::make_unique<SharedDraft>(*loaded_->model, run_, tokenizer_, capacity_,
                                          SharedDraft::cache_tokens(capacity_, tokens), options_,
                                          session_);
  return *shared_;
}

int64_t Drafting::token_bytes() const {
  return cache_bytes(loaded_->model->config(), cache_dtype(session_, *loaded_->model, run_.compute),
                     1);
}

int64_t Drafting::unfilled() const {
  return token_bytes() * (capacity_ - (model_ ? model_->most_held() : 0));
}

void tell_guesses(const GenerateOptions& options, const Generated& sum, const Watch& watch) {
  const bool drafts = options.guesser != nullptr;
  if (!drafts && options.prompt_lookup == 0) return;
  watch.tell(fmt::format("{}: {} of {} guessed tokens were right; {:.1f} tokens/s",
                         drafts ? "draft" : "prompt lookup", sum.accepted, sum.proposed,
                         static_cast<double>(sum.tokens) / std::max(sum.decode_seconds, 1e-9)));
}

}  // namespace moe
